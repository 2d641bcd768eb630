// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The least limit that Fief's scheduler holds.
//!
//! No CPU charges a running thread before its tick, and until then no other one knows that the budget is used up. So a container whose
//! threads run on all CPUs uses a tick of each before all of them stop. Periods to come pay that off, but no more than `DEBT_MOST` of them:
//! the rest is forgiven. A limit that gives less in these periods is not held. What the container has then is the least one.

use fief_policy::{Policy, as_percent};
use nix::time::{ClockId, clock_getres};

/// Those of bpf/sched/order.h.
const PERIOD_NS: u64 = 20_000_000;
const DEBT_MOST: u64 = 100;

/// A sentence for each limit that is lower.
pub(crate) fn below_least(policy: &Policy) -> Vec<String> {
    tick_ns().map(|tick_ns| below(policy, tick_ns)).unwrap_or_default()
}

/// The clock that moves with the tick tells how long that is; no other interface of the kernel's does.
fn tick_ns() -> Option<u64> {
    let tick = clock_getres(ClockId::CLOCK_MONOTONIC_COARSE).ok()?;
    Some(tick.tv_sec() as u64 * 1_000_000_000 + tick.tv_nsec() as u64)
}

fn below(policy: &Policy, tick_ns: u64) -> Vec<String> {
    let least = least_ppm(tick_ns);
    let is_below = |limit_ppm: u32| limit_ppm != 0 && u64::from(limit_ppm) < least;
    let limited = policy.containers.iter().filter(|container| is_below(container.cpu.limit_ppm));
    let told = |path: &str| {
        let least = as_percent(least);
        format!(
            "{path}: the least cpu.limit that Fief's scheduler holds here, where its threads run on all CPUs at once, is \
             {least}"
        )
    };
    limited.map(|container| told(&container.path)).collect()
}

/// Of the machine, in parts per million, however many CPUs it has: a debt and a quota both grow with them.
fn least_ppm(tick_ns: u64) -> u64 {
    (tick_ns * 1_000_000).div_ceil(PERIOD_NS * DEBT_MOST)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_limit_below_a_tick_in_two_seconds_is_told() {
        let told = |limit: &str, tick_ms: u64| {
            let text = format!("version = 1\n[container.shop]\ncpu.limit = \"{limit}\"\n[container.free]\n");
            let policy = fief_policy::parse(&text, "policy").unwrap_or_else(|errors| panic!("{errors}"));
            below(&policy, tick_ms * 1_000_000)
        };
        let said = told("0.1%", 4);
        assert!(said.len() == 1 && said[0].starts_with("shop: the least cpu.limit"), "{said:?}");
        assert!(said[0].ends_with("is 0.2%"), "{said:?}");
        assert_eq!(told("0.2%", 4), [""; 0]);
        assert_eq!(told("0.1%", 1), [""; 0], "ticks are shorter");
        assert!(told("0.4%", 10)[0].ends_with("is 0.5%"));
    }

    #[test]
    fn a_tick_is_between_one_and_ten_milliseconds() {
        let tick = tick_ns().expect("a clock");
        assert!((900_000..=11_000_000).contains(&tick), "{tick}");
    }

    #[test]
    fn periods_and_debts_are_the_schedulers() {
        let order = include_str!("../../../bpf/sched/order.h");
        let defined = |name: &str| -> Option<u64> {
            let value = |line: &str| -> Option<u64> {
                let mut words = line.strip_prefix("#define ")?.split_whitespace();
                words.next().filter(|word| *word == name)?;
                words.next()?.trim_end_matches("ull").parse().ok()
            };
            order.lines().find_map(value)
        };
        assert_eq!((defined("PERIOD_NS"), defined("DEBT_MOST")), (Some(PERIOD_NS), Some(DEBT_MOST)));
    }
}
