// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Police: which connection requests are too many, as the kernel side's records. The kernel side decides
//! (`bpf/front/police.bpf.h`). Here a policy's rates become buckets and guards.

use std::collections::HashMap;
use std::fmt::Write;
use std::hash::{DefaultHasher, Hasher};

use fief_bpf::map::MapHandle;
use fief_bpf::{Result, abi, batch, inner};
use fief_policy::{Client, Level, Listener, Mode, Per, Policy, SynRate, Thresholds};

const SECOND_NS: u64 = 1_000_000_000;

/// The buckets of a policy, numbered from 1 in the order of the file.
#[derive(Debug, Default)]
pub(crate) struct Buckets {
    records: Vec<abi::fief_bucket>,
}

impl Buckets {
    /// Adds a bucket; returns its number. `identity` says which one it is from policy to policy.
    pub(crate) fn add(&mut self, mut bucket: abi::fief_bucket, identity: u64) -> u32 {
        bucket.identity = identity;
        self.records.push(bucket);
        self.records.len() as u32
    }

    /// Them as the kernel side reads them in this slot. Those that the policy in force has too keep how full they are, so that
    /// applying a policy again opens no door for a burst.
    pub(crate) fn array(self, tables: &MapHandle, slot: u32) -> Result<MapHandle> {
        let in_force: Vec<(u32, abi::fief_bucket)> = match inner::get(tables, 1 - slot)? {
            Some(table) => batch::entries(&table)?,
            None => Vec::new(),
        };
        let before = in_force.into_iter().map(|(_, bucket)| (bucket.identity, bucket)).collect();
        let carried = self.records.into_iter().map(|fresh| carried_over(fresh, &before));
        let records: Vec<_> = std::iter::once(abi::fief_bucket::default()).chain(carried).collect();
        inner::array("bucket_table", &records)
    }
}

/// How full the same bucket of the policy in force is.
fn carried_over(mut fresh: abi::fief_bucket, before: &HashMap<u64, abi::fief_bucket>) -> abi::fief_bucket {
    let Some(old) = before.get(&fresh.identity).filter(|old| old.container == fresh.container) else { return fresh };
    fresh.arrival_ns = old.arrival_ns;
    fresh.used_ns = old.used_ns;
    fresh.looked_ns = old.looked_ns;
    fresh
}

/// What the rate of a client rule adds to the entries of its prefixes.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct ClientRate {
    pub(crate) bucket: u32,
    pub(crate) level: u8,
    pub(crate) monitor: u8,
    /// First and last port of the clients; 0 and 0: all.
    pub(crate) ports: (u16, u16),
}

/// The buckets of a listener's client rules, by rule.
pub(crate) fn client_rates(policy: &Policy, listener: &Listener, buckets: &mut Buckets) -> Vec<ClientRate> {
    let rate = |client: &Client| {
        let Some(syn) = &client.syn else { return ClientRate::default() };
        ClientRate {
            bucket: buckets.add(syn_bucket(syn), identity(&listener.name, client)),
            level: level(syn.when),
            monitor: is_monitor([policy.mode, listener.mode, client.mode]),
            ports: syn.from_port.unwrap_or_default(),
        }
    };
    listener.clients.iter().map(rate).collect()
}

fn syn_bucket(syn: &SynRate) -> abi::fief_bucket {
    let (interval_ns, tolerance_ns) = rate(syn.per_second, syn.burst);
    let kind = kind(syn.per);
    abi::fief_bucket { interval_ns, tolerance_ns, kind, ..Default::default() }
}

pub(crate) fn kind(per: Per) -> u32 {
    match per {
        Per::Rule => abi::FIEF_BUCKET_SHARED,
        Per::Source => abi::FIEF_BUCKET_PER_SOURCE,
    }
}

/// Interval and tolerance of a bucket.
pub(crate) fn rate(per_second: u32, burst: u32) -> (u64, u64) {
    let interval = SECOND_NS / u64::from(per_second.max(1));
    (interval, interval * u64::from(burst.max(1) - 1))
}

/// Whether each source that the rule is for has a rate of its own.
fn has_own_rate(client: &Client) -> bool {
    client.syn.as_ref().is_some_and(|syn| syn.per == Per::Source)
}

/// The part of a guard that is about connection requests.
pub(crate) fn guard(listener: &Listener, guard: &mut abi::fief_guard) {
    if listener.is_policed() {
        guard.flags |= abi::FIEF_GUARD_POLICE;
    }
    // said where there is none, so that a guard of an older version is asked about all clients
    if !listener.clients.iter().any(has_own_rate) {
        guard.flags |= abi::FIEF_GUARD_NO_OWN_RATE;
    }
    guard.penalty_ns = listener.penalty_ns;
    guard.restart_ns = listener.restart_ns;
    if let Some(isolate) = &listener.isolate {
        guard.isolate_ns = isolate.for_ns;
        guard.isolate_above = isolate.above;
        guard.isolate_level = level(isolate.when).into();
    }
    if let Some(unproven) = &listener.unproven {
        (guard.unproven_interval_ns, guard.unproven_tolerance_ns) = rate(unproven.per_second, unproven.burst);
        guard.unproven_level = level(unproven.when).into();
    }
    if let Some(proven) = &listener.proven {
        (guard.proven_interval_ns, guard.proven_tolerance_ns) = rate(proven.per_second, proven.burst);
    }
}

/// When a listener counts as busy or overloaded.
pub(crate) fn thresholds(policy: &Policy) -> abi::fief_thresholds {
    let overload = &policy.overload;
    let both = |of: fn(&Thresholds) -> u32| [of(&overload.busy), of(&overload.overloaded)];
    abi::fief_thresholds {
        queue_percent: both(|thresholds| thresholds.queue_percent),
        cpu_percent: both(|thresholds| thresholds.cpu_percent),
        drops: both(|thresholds| thresholds.drops),
        hold_ns: overload.hold_ns,
    }
}

pub(crate) fn level(level: Level) -> u8 {
    let number = match level {
        Level::Always => abi::FIEF_ALWAYS,
        Level::Busy => abi::FIEF_BUSY,
        Level::Overloaded => abi::FIEF_OVERLOADED,
    };
    number as u8
}

/// What stands further out holds for all within.
pub(crate) fn is_monitor<const N: usize>(modes: [Mode; N]) -> u8 {
    modes.contains(&Mode::Monitor).into()
}

/// Which rule it is, so that a policy that has it unchanged finds its bucket again. What is kept by it is how full the
/// bucket was, so the few that are taken for another's do no harm.
pub(crate) fn identity(listener: &str, rule: &impl std::fmt::Debug) -> u64 {
    struct Into(DefaultHasher);
    impl Write for Into {
        fn write_str(&mut self, text: &str) -> std::fmt::Result {
            self.0.write(text.as_bytes());
            Ok(())
        }
    }
    let mut into = Into(DefaultHasher::new());
    // writing to a hasher cannot fail
    let _ = write!(into, "{listener} {rule:?}");
    into.0.finish().max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_burst_of_one_tolerates_nothing() {
        assert_eq!(rate(300, 1), (3_333_333, 0));
        assert_eq!(rate(1000, 50), (1_000_000, 49_000_000));
    }

    #[test]
    fn a_guard_says_whether_some_rule_has_a_rate_for_each_source() {
        let says_none = |rates: &[Option<Per>]| {
            let client = |per: &Option<Per>| {
                let rate = |per| SynRate { per_second: 1, burst: 1, per, when: Level::Always, from_port: None };
                Client { syn: per.map(rate), ..Client::new(fief_policy::From::Any, "shop") }
            };
            let mut listener = Listener::new("web", "0.0.0.0:80".parse().expect("an address"));
            listener.clients = rates.iter().map(client).collect();
            let mut made = abi::fief_guard::default();
            guard(&listener, &mut made);
            made.flags & abi::FIEF_GUARD_NO_OWN_RATE != 0
        };
        assert!(says_none(&[None]));
        assert!(says_none(&[Some(Per::Rule), None]));
        assert!(!says_none(&[Some(Per::Source), None]));
        assert!(!says_none(&[None, Some(Per::Rule), Some(Per::Source)]));
    }

    #[test]
    fn a_rule_is_known_again_by_what_it_says() {
        let client = |rate: u32| {
            let syn = SynRate { per_second: rate, burst: rate, per: Per::Rule, when: Level::Always, from_port: None };
            Client { syn: Some(syn), ..Client::new(fief_policy::From::Any, "shop") }
        };
        assert_eq!(identity("web", &client(1)), identity("web", &client(1)));
        assert_ne!(identity("web", &client(1)), identity("web", &client(2)));
        assert_ne!(identity("web", &client(1)), identity("api", &client(1)));
    }

    #[test]
    fn monitor_further_out_holds_for_all_within() {
        assert_eq!(is_monitor([Mode::Enforce, Mode::Enforce]), 0);
        assert_eq!(is_monitor([Mode::Monitor, Mode::Enforce]), 1);
    }
}
