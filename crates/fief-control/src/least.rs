// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The least limit that Fief's scheduler holds.
//!
//! No CPU charges a running thread before its tick, and until then no other one knows that the budget is used up. So a container whose
//! threads run on all CPUs uses a tick of each before all of them stop. Periods to come pay that off, but no more than `DEBT_MOST` of them:
//! the rest is forgiven. A limit that gives less in these periods is not held. What the container has then is the least one.

use fief_policy::{Container, Policy, as_percent};
use nix::time::{ClockId, clock_getres};

use crate::priorities::some_of;

/// Those of bpf/sched/order.h.
const PERIOD_NS: u64 = 20_000_000;
const DEBT_MOST: u64 = 100;

/// One sentence for all limits that are lower: each of a thousand tenants may have one.
pub(crate) fn below_least(policy: &Policy) -> Option<String> {
    below(policy, tick_ns()?)
}

/// The clock that moves with the tick tells how long that is; no other interface of the kernel's does.
fn tick_ns() -> Option<u64> {
    let tick = clock_getres(ClockId::CLOCK_MONOTONIC_COARSE).ok()?;
    Some(tick.tv_sec() as u64 * 1_000_000_000 + tick.tv_nsec() as u64)
}

fn below(policy: &Policy, tick_ns: u64) -> Option<String> {
    let least = least_ppm(tick_ns);
    let is_below = |container: &&Container| {
        let limit_ppm = u64::from(container.cpu.limit_ppm);
        limit_ppm != 0 && limit_ppm < least
    };
    let paths: Vec<&str> = policy.containers.iter().filter(is_below).map(|container| container.path.as_str()).collect();
    let told = || {
        format!(
            "{}: the least cpu.limit that Fief's scheduler holds here, where threads of one container run on all CPUs at once, is {}",
            some_of(&paths),
            as_percent(least)
        )
    };
    (!paths.is_empty()).then(told)
}

/// Of the machine, in parts per million, however many CPUs it has: a debt and a quota both grow with them.
fn least_ppm(tick_ns: u64) -> u64 {
    (tick_ns * 1_000_000).div_ceil(PERIOD_NS * DEBT_MOST)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(containers: &str, tick_ms: u64) -> Option<String> {
        let text = format!("version = 1\n{containers}");
        let policy = fief_policy::parse(&text, "policy").unwrap_or_else(|errors| panic!("{errors}"));
        below(&policy, tick_ms * 1_000_000)
    }

    #[test]
    fn a_limit_below_a_tick_in_two_seconds_is_told() {
        let shop = |limit: &str, tick_ms| {
            told(&format!("[container.shop]\ncpu.limit = \"{limit}\"\n[container.free]\n"), tick_ms)
        };
        let said = shop("0.1%", 4).expect("it is told");
        assert!(said.starts_with("shop: the least cpu.limit") && said.ends_with("is 0.2%"), "{said}");
        assert_eq!(shop("0.2%", 4), None);
        assert_eq!(shop("0.1%", 1), None, "ticks are shorter");
        assert!(shop("0.4%", 10).is_some_and(|said| said.ends_with("is 0.5%")));
    }

    #[test]
    fn many_limits_below_the_least_are_told_at_once() {
        let tenant = |number: u32| format!("[container.t{number}]\ncpu.limit = \"0.1%\"\n");
        let tenants = (0..1000).map(tenant).collect::<Vec<String>>().concat();
        let said = told(&tenants, 4).expect("it is told");
        assert!(said.starts_with("t0, t1, t2 and 997 more: the least cpu.limit"), "{said}");
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
