// SPDX-License-Identifier: Apache-2.0 OR MIT
//! How long a client waits that comes for the first time while the server is flooded.
//!
//! The flood's sources are spoofed all over a /10, and the newcomers are scattered over the same /10, so no prefix tells
//! them apart. For `isolate into` both come from one foreign /16, all of which is isolated. Nobody else loads the server: what is measured is the way through the door, not a queue behind it. A spoofed
//! source that gets a SYN-ACK stays silent, as in the other floods.

use super::measure::FOREIGN;
use super::stand::{SPOOFED, Stand};
use super::way::{INTO, LIMITS, NO_BUDGET, policy};
use super::{PORT, Plan, Way};
use crate::command::can_run_with;
use crate::error::Result;
use crate::flood::{Flood, Sent, Sources, forget_request_sockets};
use crate::newcomers::{Newcomers, Waits};
use crate::noise::{Noise, Snapshot};
use serde_json::{Value, json};
use std::net::{Ipv4Addr, SocketAddrV4};
use std::time::Duration;

pub const RATE: u32 = 70_000;
/// The kernel sends a SYN again after 1 and 3 seconds; the third time would be at 7.
pub const PATIENCE_S: f64 = 7.0;
/// Of each round.
pub const COUNT: usize = 20;
const PER_SECOND: f64 = 20.0;
const AGAIN_S: f64 = 1.0;
/// A SYN or two at a time: in the long pauses of larger bursts a budget gathers tokens, and newcomers, which run on the
/// flooder's core while it sleeps, would take most of them.
const PAUSE_US: u32 = 20;

/// What stands in front, and how the flooder goes about it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Case {
    Other(Way),
    /// Fief answers every SYN of a source that it has not isolated.
    Unbudgeted,
    /// 5,000 a second of sources that have not proved themselves.
    Budgeted,
    /// The same, and each spoofed SYN comes again after a second, as a client's does.
    Resent,
    /// Flood and newcomers come from one prefix, which is isolated: it is served last.
    Isolated,
}

impl Case {
    pub const ALL: [Case; 8] = [
        Case::Unbudgeted,
        Case::Budgeted,
        Case::Resent,
        Case::Isolated,
        Case::Other(Way::Stock),
        Case::Other(Way::Cookies),
        Case::Other(Way::Limit),
        Case::Other(Way::Synproxy),
    ];

    pub fn way(self) -> Way {
        match self {
            Case::Other(way) => way,
            _ => Way::Fief,
        }
    }

    /// Part of its figures' names.
    pub fn name(self) -> &'static str {
        match self {
            Case::Other(way) => way.name(),
            Case::Unbudgeted => "",
            Case::Budgeted => "budget",
            Case::Resent => "resend",
            Case::Isolated => "isolated_into",
        }
    }

    pub fn title(self) -> &'static str {
        match self {
            Case::Other(way) => way.title(),
            Case::Unbudgeted => "Fief",
            Case::Budgeted => "Fief, unproven = 5000",
            Case::Resent => "the same, each spoofed SYN sent twice",
            Case::Isolated => "of an isolated prefix, isolate into",
        }
    }

    pub fn load(self) -> String {
        let each = if self == Case::Resent { ", each SYN twice, 1 s apart (both count)" } else { "" };
        let sources = self.sources();
        format!("{RATE} SYN/s spoofed from {sources}{each}; {COUNT} newcomers of the same prefix a round, 20 a second")
    }

    fn limits(self) -> &'static str {
        match self {
            Case::Unbudgeted => NO_BUDGET,
            Case::Isolated => INTO,
            _ => LIMITS,
        }
    }

    /// Of the flood, and of the newcomers.
    fn sources(self) -> Sources {
        if self == Case::Isolated { FOREIGN } else { SPOOFED }
    }

    /// Whether this Fief has what it needs; another is not measured.
    fn is_possible(self) -> bool {
        self != Case::Isolated || can_run_with(&policy(INTO)).is_ok()
    }
}

#[derive(Clone, Debug)]
pub struct Measurement {
    pub case: Case,
    round: usize,
    pub waits: Waits,
    sent: Sent,
    pub noise: Noise,
}

impl Measurement {
    /// Seconds of each; one that was not served counts as the whole patience.
    pub fn seconds(&self) -> impl Iterator<Item = f64> {
        self.waits.served_s.iter().map(|wait| wait.unwrap_or(PATIENCE_S))
    }

    pub fn unserved(&self) -> usize {
        self.waits.served_s.iter().filter(|wait| wait.is_none()).count()
    }

    pub fn to_json(&self) -> Value {
        json!({
            "experiment": "syn-flood", "part": "newcomers", "way": self.case.title(), "round": self.round,
            "load": self.case.load(), "waited_s": self.waits.served_s, "patience_s": PATIENCE_S,
            "unserved": self.unserved(), "refused": self.waits.refused,
            "sent_per_second": self.sent.per_second(), "busy": self.noise.busy, "foreign": self.noise.foreign,
        })
    }
}

/// Those that this round measures with the stands that there are.
pub fn cases(stands: &[Stand]) -> Vec<Case> {
    let has_stand = |case: &Case| stands.iter().any(|stand| stand.way == case.way());
    Case::ALL.into_iter().filter(has_stand).filter(|case| case.is_possible()).collect()
}

pub fn measure(plan: &Plan, stands: &[Stand], case: Case, round: usize) -> Result<Measurement> {
    let stand = stands.iter().find(|stand| stand.way == case.way()).expect("a case has its stand");
    let topology = &stand.topology;
    let front = match case.way() {
        Way::Fief => Some(stand.fief(&policy(case.limits()))?),
        _ => None,
    };
    let again_s = if case == Case::Resent { AGAIN_S } else { 0.0 };
    let flood = Flood { again_s, pause_us: PAUSE_US, ..Flood::of(topology, case.sources(), f64::from(RATE), 40.0) };
    let flood = flood.start(&topology.clients)?;
    std::thread::sleep(Duration::from_secs_f64(plan.newcomer_settle));
    let before = Snapshot::take();
    let newcomers = Newcomers {
        server: SocketAddrV4::new(Ipv4Addr::new(10, 77, 0, 1), PORT),
        addresses: addresses(plan, case, round),
        per_second: PER_SECOND,
        patience_s: PATIENCE_S,
    };
    let waits = newcomers.come(&topology.clients)?;
    let noise = before.until_now();
    let sent = flood.end()?;
    drop(front);
    forget_request_sockets(&topology.server);
    Ok(Measurement { case, round, waits, sent, noise })
}

/// Nobody comes twice: an odd factor scatters the numbers over the prefix without a collision.
fn addresses(plan: &Plan, case: Case, round: usize) -> Vec<Ipv4Addr> {
    let place = Case::ALL.iter().position(|&one| one == case).unwrap_or(0);
    let first = (round * Case::ALL.len() + place) * plan.newcomers;
    (first..first + plan.newcomers).map(|n| case.sources().address((n as u32 + 1).wrapping_mul(0x9e37_79b1))).collect()
}

#[cfg(test)]
impl Measurement {
    pub fn with_waits(case: Case, served_s: &[Option<f64>]) -> Measurement {
        let waits = Waits { served_s: served_s.to_vec(), refused: 0 };
        Measurement { case, round: 0, waits, sent: Sent::default(), noise: Noise::default() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn no_newcomer_has_come_before() {
        let plan = Plan::of(false);
        let all: Vec<_> = (0..plan.newcomer_rounds)
            .flat_map(|round| Case::ALL.into_iter().flat_map(move |case| addresses(&Plan::of(false), case, round)))
            .collect();
        assert_eq!(all.len(), plan.newcomer_rounds * Case::ALL.len() * COUNT);
        assert_eq!(all.iter().collect::<HashSet<_>>().len(), all.len(), "within a prefix");
    }
}
