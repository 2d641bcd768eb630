// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What is read of a client, and what follows from it, in the order in which the kernel side's police asks
//! (`bpf/front/police.bpf.h`).

use fief::Reason;
use fief_bpf::abi;

use super::{Budget, Isolation};
use crate::ban::Ban;
use crate::verdicts::prefix_text;

/// What is read of a client, before anything is concluded.
pub(super) struct Read {
    pub(super) now: u64,
    pub(super) slot: u32,
    pub(super) address: [u8; 16],
    pub(super) guard: abi::fief_guard,
    pub(super) load: abi::fief_load,
    pub(super) banned: Option<Ban>,
    pub(super) source: Option<abi::fief_source>,
    pub(super) meters: Vec<abi::fief_meter>,
    pub(super) never_isolated: bool,
    pub(super) never_penalised: bool,
}

impl Read {
    pub(super) fn reaches(&self, level: u32) -> bool {
        level <= self.load.level
    }

    /// As police has it: a SYN costs its alleged source nothing, and the connection does.
    pub(super) fn connections_count(&self) -> bool {
        self.source.is_some() && self.guard.flags & (abi::FIEF_GUARD_FORWARD | abi::FIEF_GUARD_MONITOR) == 0
    }

    pub(super) fn penalty(&self) -> Option<u64> {
        let until = self.source.as_ref().map_or(0, |source| source.penalty_until_ns);
        (until > self.now).then(|| until - self.now)
    }

    pub(super) fn isolating(&self) -> impl Iterator<Item = &abi::fief_meter> {
        self.meters.iter().filter(|meter| meter.isolated_until_ns > self.now)
    }

    pub(super) fn isolations(&self) -> Vec<Isolation> {
        self.isolating()
            .map(|meter| Isolation {
                prefix: prefix_text(&meter.prefix, meter.length),
                since_ns: meter.isolated_since_ns,
                remaining_ns: meter.isolated_until_ns - self.now,
            })
            .collect()
    }

    pub(super) fn admits(&self) -> bool {
        self.guard.flags & (abi::FIEF_GUARD_ADMIT | abi::FIEF_GUARD_MONITOR) == abi::FIEF_GUARD_ADMIT
            && self.reaches(self.guard.admit_level)
    }

    pub(super) fn isolates(&self) -> bool {
        self.guard.isolate_ns != 0 && !self.never_isolated && self.reaches(self.guard.isolate_level)
    }

    /// Whether its connections are of the class for those that are served last.
    pub(super) fn is_last(&self) -> bool {
        let since = self.source.as_ref().map_or(self.now, |source| source.since_ns);
        let was_before = |meter: &abi::fief_meter| meter.isolated_since_ns <= since;
        self.guard.flags & abi::FIEF_GUARD_INTO != 0
            && self.admits()
            && self.isolates()
            && self.isolating().any(was_before)
    }

    /// In the order of the kernel side's police.
    pub(super) fn refusal(&self, budgets: &[Budget]) -> Option<Reason> {
        let reached = |of: &str| budgets.iter().any(|budget| budget.in_force && budget.of == of && budget.is_reached());
        let into = self.guard.flags & abi::FIEF_GUARD_INTO != 0 && self.admits();
        if self.banned.is_some() {
            return Some(Reason::Banned);
        }
        if self.guard.flags & abi::FIEF_GUARD_POLICE == 0 {
            return None;
        }
        if self.penalty().is_some() && !self.never_penalised {
            return Some(Reason::SynPenalty);
        }
        if self.source.is_none() && self.isolates() && !into && self.isolating().next().is_some() {
            return Some(Reason::SynIsolated);
        }
        if reached("client-rule") || reached("client-rule-source") {
            return Some(Reason::SynRate);
        }
        reached("proven").then_some(Reason::SynIsolated)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read() -> Read {
        let guard = abi::fief_guard {
            flags: abi::FIEF_GUARD_POLICE,
            isolate_ns: 1,
            isolate_level: abi::FIEF_ALWAYS,
            ..Default::default()
        };
        let meter = abi::fief_meter { isolated_since_ns: 50, isolated_until_ns: 200, ..Default::default() };
        Read {
            now: 100,
            slot: 0,
            address: [0; 16],
            guard,
            load: abi::fief_load::default(),
            banned: None,
            source: None,
            meters: vec![meter],
            never_isolated: false,
            never_penalised: false,
        }
    }

    fn source(since_ns: u64, penalty_until_ns: u64) -> Option<abi::fief_source> {
        Some(abi::fief_source { since_ns, proven_ns: since_ns, penalty_until_ns, ..Default::default() })
    }

    #[test]
    fn an_unproven_client_of_an_isolated_prefix_is_refused_and_a_proven_one_is_not() {
        assert_eq!(read().refusal(&[]), Some(Reason::SynIsolated));
        assert_eq!(Read { source: source(60, 0), ..read() }.refusal(&[]), None);
        assert_eq!(Read { now: 200, ..read() }.refusal(&[]), None, "it is over");
    }

    #[test]
    fn a_penalty_comes_before_all_else_and_ends() {
        let punished = Read { source: source(10, 150), ..read() };
        assert_eq!((punished.refusal(&[]), punished.penalty()), (Some(Reason::SynPenalty), Some(50)));
        assert_eq!(Read { source: source(10, 100), ..read() }.penalty(), None);
    }

    #[test]
    fn exceptions_are_refused_by_neither() {
        let excepted = Read { never_isolated: true, never_penalised: true, ..read() };
        assert_eq!(excepted.refusal(&[]), None);
        let punished = Read { source: source(10, 150), ..excepted };
        assert_eq!(punished.refusal(&[]), None);
    }

    #[test]
    fn isolation_bound_to_a_level_is_none_below_it() {
        let mut calm = read();
        calm.guard.isolate_level = abi::FIEF_BUSY;
        assert_eq!(calm.refusal(&[]), None);
        calm.load.level = abi::FIEF_OVERLOADED;
        assert_eq!(calm.refusal(&[]), Some(Reason::SynIsolated));
    }

    #[test]
    fn with_a_class_for_them_isolated_clients_are_served_last_unless_they_were_proven_before() {
        let mut into = read();
        into.guard.flags |= abi::FIEF_GUARD_INTO | abi::FIEF_GUARD_ADMIT;
        assert_eq!((into.refusal(&[]), into.is_last()), (None, true));
        into.source = source(60, 0);
        assert!(into.is_last(), "proven within the isolation");
        into.source = source(40, 0);
        assert!(!into.is_last(), "proven before it");
    }
}
