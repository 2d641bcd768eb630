// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Figure 14 of the resource container paper: how much of its throughput a server keeps for twenty well-behaved clients
//! while somebody floods it with SYNs, by what stands in front of it.
//!
//! Each way has a testbed of its own, so that none finds what another left behind; they take turns. Each figure is a fraction of the same way's
//! own throughput without a flood in the same round, so that nobody gains by being slow in quiet times. The packet
//! filter's limit is told the flood's prefix; Fief's policy names no source.
//!
//! Those twenty have proved themselves before the flood begins. How a client fares that comes for the first time under
//! the flood is measured apart (`newcomer`).

mod by_server;
mod cost;
mod isolation;
mod measure;
mod newcomer;
mod outcome;
mod stand;
mod way;

pub use by_server::isolating_main;
pub use measure::{Attack, Measurement};
pub use way::Way;

use crate::effort::is_least;
use crate::error::Result;
use crate::experiments::Outcome;
use crate::flood::forget_request_sockets;
use crate::noise::quietest;
use crate::progress::Progress;
use crate::wanted::{Wanted, usable};
use cost::Kind;
use measure::measure;
use stand::{Front, Stand};

const PORT: u16 = 80;

/// What to measure and how often.
#[derive(Clone, Debug)]
pub struct Plan {
    pub rounds: usize,
    pub seconds: f64,
    pub warm_up: f64,
    /// How often a disturbed measurement may be taken again.
    pub retries: usize,
    /// Of a flood without clients, for what a SYN costs.
    pub cost_seconds: f64,
    /// Of clients that come for the first time, and how many come in each.
    pub newcomer_rounds: usize,
    /// Until each table and queue is as the flood leaves it, and SYNs that come again have begun to.
    pub newcomer_settle: f64,
    pub newcomers: usize,
    pub is_quick: bool,
}

impl Plan {
    fn of(quick: bool) -> Plan {
        let full = Plan {
            rounds: 7,
            seconds: 2.0,
            warm_up: 1.5,
            retries: 1,
            cost_seconds: 1.0,
            newcomer_rounds: 5,
            newcomer_settle: 2.5,
            newcomers: newcomer::COUNT,
            is_quick: false,
        };
        let few = Plan { rounds: 3, retries: 0, newcomer_rounds: 2, is_quick: true, ..full };
        match quick {
            _ if is_least() => Plan {
                rounds: 1,
                seconds: 0.1,
                warm_up: 0.05,
                cost_seconds: 0.1,
                newcomer_rounds: 1,
                newcomer_settle: 0.3,
                newcomers: 2,
                ..few
            },
            true => few,
            false => full,
        }
    }

    /// What one way is measured against, the quiet case first. A quick run leaves out what no bound needs.
    fn attacks(&self, way: Way) -> Vec<Attack> {
        let mut attacks = vec![Attack::None, Attack::Prefix(70_000)];
        if !self.is_quick {
            attacks.insert(1, Attack::Prefix(10_000));
        }
        if !self.is_quick || matches!(way, Way::Stock | Way::Limit | Way::Server | Way::Fief) {
            attacks.push(Attack::Prefix(200_000));
        }
        if way == Way::Fief || !self.is_quick {
            attacks.extend([Attack::Anywhere(70_000), Attack::AmongClients(70_000)]);
        }
        attacks
    }

    /// Whether it is measured what a SYN costs there.
    fn costs(&self, way: Way) -> bool {
        matches!(way, Way::Stock | Way::Fief) || way == Way::Limit && !self.is_quick
    }

    /// Whether this round also tells when a flood is isolated, which hardly differs from time to time.
    fn isolates(&self, round: usize) -> bool {
        round == 0 || !self.is_quick
    }

    fn steps(&self, stands: &[Stand]) -> usize {
        let measurements: usize = stands.iter().map(|stand| self.attacks(stand.way).len()).sum();
        let costs = stands.iter().filter(|stand| self.costs(stand.way)).count();
        let is_fief = stands.iter().any(|stand| stand.way == Way::Fief);
        let isolations = (0..self.rounds).filter(|&round| is_fief && self.isolates(round)).count();
        let newcomers = self.newcomer_rounds * newcomer::cases(stands).len();
        self.rounds * (measurements + costs + usize::from(is_fief)) + isolations + newcomers
    }
}

pub fn run(quick: bool) -> Result<Outcome> {
    let plan = Plan::of(quick);
    let only = Wanted::from_env();
    let wanted = Way::ALL.into_iter().filter(|way| only.any(&[way.name()]));
    let (ways, notes) = usable(wanted, |way| way.check(), |way| way.title().to_owned());
    let stands: Vec<Stand> = ways.into_iter().map(Stand::new).collect::<Result<_>>()?;
    let mut progress = Progress::new("syn-flood", plan.steps(&stands));
    let (mut measurements, mut costs) = (Vec::new(), Vec::new());
    let (mut isolations, mut by_server) = (Vec::new(), Vec::new());
    for round in 0..plan.rounds {
        for turn in 0..stands.len() {
            let stand = &stands[(turn + round) % stands.len()];
            let front = stand.front()?;
            by_server.extend(front.as_ref().and_then(Front::time_to_isolate_s));
            for attack in plan.attacks(stand.way) {
                progress.step(&format!("round {}, {}, {attack}", round + 1, stand.way.title()))?;
                measurements.push(measure_quietly(&plan, stand, attack, round)?);
            }
            if plan.costs(stand.way) {
                progress.step(&format!("round {}, {}, the cost of a SYN", round + 1, stand.way.title()))?;
                costs.push((stand.way.into(), cost::measure(&plan, stand)?));
            }
            drop(front);
            forget_request_sockets(&stand.topology.server);
        }
        let Some(fief) = stands.iter().find(|stand| stand.way == Way::Fief) else { continue };
        progress.step(&format!("round {}, the cost of a SYN that Fief answers", round + 1))?;
        let front = fief.fief(&way::policy(""))?;
        costs.push((Kind::Answered, cost::measure(&plan, fief)?));
        drop(front);
        if plan.isolates(round) {
            progress.step(&format!("round {}, the time until a flood is isolated", round + 1))?;
            isolations.push(isolation::measure(fief)?);
        }
    }
    let mut newcomers = Vec::new();
    for round in 0..plan.newcomer_rounds {
        for case in newcomer::cases(&stands) {
            progress.step(&format!("round {}, newcomers, {}", round + 1, case.title()))?;
            newcomers.push(newcomer::measure(&plan, &stands, case, round)?);
        }
    }
    let ways: Vec<Way> = stands.iter().map(|stand| stand.way).collect();
    let measured = outcome::Measured {
        floods: &measurements,
        costs: &costs,
        isolations: &isolations,
        by_server: &by_server,
        newcomers: &newcomers,
    };
    Ok(outcome::of(&ways, &measured, notes))
}

/// Again while somebody else used the machine; the least disturbed one counts.
fn measure_quietly(plan: &Plan, stand: &Stand, attack: Attack, round: usize) -> Result<Measurement> {
    quietest(plan.retries, |one: &Measurement| &one.noise, || measure(plan, stand, attack, round))
}
