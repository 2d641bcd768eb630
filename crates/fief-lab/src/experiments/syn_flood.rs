// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Figure 14 of the resource container paper: how much of its throughput a server keeps for twenty well-behaved clients
//! while somebody floods it with SYNs, by what stands in front of it.
//!
//! One nginx runs through it all; what stands in front of it takes turns. Each figure is a fraction of the same way's
//! own throughput without a flood in the same round, so that nobody gains by being slow in quiet times. The packet
//! filter's limit is told the flood's prefix; Fief's policy names no source.

mod cost;
mod isolation;
mod measure;
mod outcome;
mod way;

pub use measure::{Attack, Measurement};
pub use way::Way;

use crate::error::Result;
use crate::experiments::Outcome;
use crate::flood;
use crate::progress::Progress;
use fief_testkit::{Nginx, NginxConfig, Topology, pin_command};
use measure::measure;

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
    pub is_quick: bool,
}

impl Plan {
    fn of(quick: bool) -> Plan {
        match quick {
            true => Plan { rounds: 3, seconds: 0.5, warm_up: 0.3, retries: 0, cost_seconds: 0.25, is_quick: true },
            false => Plan { rounds: 7, seconds: 2.0, warm_up: 1.5, retries: 1, cost_seconds: 1.0, is_quick: false },
        }
    }

    /// What one way is measured against, the quiet case first. A quick run leaves out what no bound needs.
    fn attacks(&self, way: Way) -> Vec<Attack> {
        let mut attacks = vec![Attack::None, Attack::Prefix(70_000)];
        if !self.is_quick {
            attacks.insert(1, Attack::Prefix(10_000));
        }
        if !(self.is_quick && way == Way::Limit) {
            attacks.push(Attack::Prefix(200_000));
        }
        if way == Way::Fief || !self.is_quick {
            attacks.extend([Attack::Anywhere(70_000), Attack::AmongClients(70_000)]);
        }
        attacks
    }

    fn steps(&self) -> usize {
        let measurements: usize = Way::ALL.iter().map(|&way| self.attacks(way).len()).sum();
        self.rounds * (measurements + cost::STEPS + isolation::STEPS)
    }
}

pub fn run(quick: bool) -> Result<Outcome> {
    let plan = Plan::of(quick);
    let topology = Topology::new()?;
    measure::add_spoofed_prefix(&topology)?;
    flood::hush(&topology)?;
    let nginx = start_nginx(&topology)?;
    let (ways, missing): (Vec<_>, Vec<_>) =
        Way::ALL.into_iter().map(|way| (way, way.check())).partition(|(_, check)| check.is_ok());
    let notes = missing
        .into_iter()
        .filter_map(|(way, check)| check.err().map(|error| format!("{} was left out: {error}", way.title())))
        .filter_map(|note| note.lines().next().map(str::to_owned));
    let notes = notes.collect();
    let ways: Vec<Way> = ways.into_iter().map(|(way, _)| way).collect();
    let mut progress = Progress::new("syn-flood", plan.steps());
    let (mut measurements, mut costs, mut isolations) = (Vec::new(), Vec::new(), Vec::new());
    for round in 0..plan.rounds {
        for turn in 0..ways.len() {
            let way = ways[(turn + round) % ways.len()];
            let _front = way.start(&topology)?;
            for attack in plan.attacks(way) {
                progress.step(&format!("round {}, {}, {attack}", round + 1, way.title()))?;
                measurements.push(measure_quietly(&plan, &topology, way, attack, round)?);
            }
        }
        costs.push(cost::measure(&plan, &topology, &ways, &mut progress)?);
        if ways.contains(&Way::Fief) {
            isolations.push(isolation::measure(&topology, &mut progress)?);
        }
    }
    drop(nginx);
    Ok(outcome::of(&plan, &ways, &measurements, &costs, &isolations, notes))
}

/// Again while somebody else used the machine; the least disturbed one counts.
fn measure_quietly(plan: &Plan, topology: &Topology, way: Way, attack: Attack, round: usize) -> Result<Measurement> {
    let mut best = measure(plan, topology, way, attack, round)?;
    for _ in 0..plan.retries {
        if !best.noise.is_disturbed() {
            break;
        }
        let again = measure(plan, topology, way, attack, round)?;
        if again.noise.foreign < best.noise.foreign {
            best = again;
        }
    }
    Ok(best)
}

fn start_nginx(topology: &Topology) -> Result<Nginx> {
    let config = NginxConfig::listening(PORT, &[&PORT.to_string()], 1, "")?;
    let mut command = topology.server.command("nginx");
    command.args(config.arguments()).stderr(std::process::Stdio::null());
    pin_command(&mut command, Topology::server_cpu());
    Ok(Nginx::start_command(&topology.server, command, config)?)
}
