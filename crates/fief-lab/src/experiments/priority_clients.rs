// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Figure 11 of the resource container paper: the response time of one high-priority client while others saturate the
//! server, by what the operator does about it.
//!
//! Each round measures every way at every number of low clients, in an order that turns from round to round, so that a
//! slow minute of the machine hits all of them alike. Flatness is T(40)/T(5) and not T(40)/T(0): without any load the
//! core goes idle between requests, and waking up is slower than a short queue.

mod kind;
mod measure;
mod outcome;

pub use kind::Kind;
pub use measure::{Measurement, measure};
pub use outcome::of as outcome_of;

use crate::effort::is_least;
use crate::error::Result;
use crate::experiments::Outcome;
use crate::noise::quietest;
use crate::progress::Progress;
use fief_testkit::Topology;

/// What to measure and how often.
#[derive(Clone, Debug)]
pub struct Plan {
    pub kinds: Vec<Kind>,
    /// Numbers of low-priority clients.
    pub loads: Vec<usize>,
    pub rounds: usize,
    pub seconds: f64,
    pub warm_up: f64,
    /// How often a disturbed measurement may be taken again.
    pub retries: usize,
}

impl Plan {
    pub fn quick() -> Plan {
        Plan { kinds: Kind::ALL.to_vec(), loads: vec![5, 40], rounds: 3, seconds: 2.0, warm_up: 0.5, retries: 0 }
    }

    /// Each step tried once.
    pub fn least() -> Plan {
        Plan { rounds: 1, seconds: 0.2, warm_up: 0.1, ..Plan::quick() }
    }

    pub fn full() -> Plan {
        Plan { loads: vec![0, 5, 10, 20, 30, 40, 200, 1000], rounds: 5, retries: 2, ..Plan::quick() }
    }
}

pub fn run(quick: bool) -> Result<Outcome> {
    let plan = match quick {
        _ if is_least() => Plan::least(),
        true => Plan::quick(),
        false => Plan::full(),
    };
    let topology = Topology::new()?;
    let (kinds, missing): (Vec<_>, Vec<_>) =
        plan.kinds.iter().map(|&kind| (kind, kind.check())).partition(|(_, check)| check.is_ok());
    let notes =
        missing.into_iter().map(|(kind, check)| format!("{} was left out: {}", kind.title(), reason(check))).collect();
    let kinds: Vec<Kind> = kinds.into_iter().map(|(kind, _)| kind).collect();
    let mut progress = Progress::new("priority-clients", plan.rounds * kinds.len() * plan.loads.len());
    let mut measurements = Vec::new();
    for round in 0..plan.rounds {
        for turn in 0..kinds.len() {
            let kind = kinds[(turn + round) % kinds.len()];
            measurements.extend(round_of(&plan, &topology, kind, round, &mut progress)?);
        }
    }
    Ok(outcome_of(&plan, &measurements, notes))
}

/// One server, every load.
fn round_of(
    plan: &Plan,
    topology: &Topology,
    kind: Kind,
    round: usize,
    progress: &mut Progress,
) -> Result<Vec<Measurement>> {
    let server = kind.start(topology)?;
    let mut measurements = Vec::new();
    for &low in &plan.loads {
        progress.step(&format!("round {}, {}, {low} others", round + 1, kind.title()))?;
        let once = || measure(plan, topology, kind, low, round, |_| ());
        measurements.push(quietest(plan.retries, |one: &Measurement| &one.noise, once)?);
    }
    server.stop()?;
    Ok(measurements)
}

fn reason(check: Result<()>) -> String {
    check.err().map(|error| error.to_string()).unwrap_or_default()
}
