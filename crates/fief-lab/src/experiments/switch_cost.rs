// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `switch-cost`: what a context switch costs under Fief's scheduler, beside the kernel's own (EEVDF) and about the least that a
//! scheduler can do which is a program (`RCLinux`, table 1 and figure 4).
//!
//! As lmbench does it: processes in a ring pass a token on through pipes, all on one CPU. What a pipe takes without a switch is
//! subtracted. The kernel must take schedulers (`sched_ext`); with `--vm` an emulated machine's does, whose clock counts instructions.

mod operations;
mod outcome;
mod ring;
mod side;
mod worker;

use serde_json::json;

use crate::effort::is_least;
use crate::error::{Error, Kind, Result};
use crate::experiments::Outcome;
use crate::progress::Progress;
use outcome::Found;
use side::{CHARGING, PLAIN, Policies, Side};
use worker::{Answer, Order, Worker};

pub use worker::child_main;

/// How much is measured.
struct Plan {
    rounds: usize,
    /// Of each ring.
    processes: &'static [usize],
    /// That exist, each with a weight; the processes are spread over them.
    containers: &'static [usize],
}

impl Plan {
    fn of(quick: bool) -> Plan {
        let containers = &[1, 96, 10_000];
        match quick {
            _ if is_least() => Plan { rounds: 1, processes: &[2], containers: &[1] },
            true => Plan { rounds: 2, processes: &[2, 16, 96], containers },
            false => Plan { rounds: 3, processes: &[2, 4, 8, 16, 32, 64, 96], containers },
        }
    }

    fn steps(&self) -> usize {
        self.rounds * (PLAIN.len() + CHARGING.len() * self.containers.len())
    }
}

pub fn run(quick: bool) -> Result<Outcome> {
    fief_bpf::schedule::here().map_err(|error| {
        let hint = "`fief lab switch-cost --vm` boots a kernel that takes schedulers";
        Error::new(Kind::Missing, format!("{error}; {hint}"))
    })?;
    let plan = Plan::of(quick);
    let mut progress = Progress::new("switch-cost", plan.steps());
    let mut found = Found::default();
    let mut worker = Worker::plain()?;
    worker.ask(&Order::Make { containers: 0, processes: plan.processes.to_vec() })?;
    for round in 0..plan.rounds {
        for side in in_turn(&PLAIN, round) {
            progress.step(&format!("round {}, {}", round + 1, side.name()))?;
            let answer = side.while_in_force(None, || worker.ask(&Order::Measure { operations: true }))?;
            found.push(side, 0, round, &answer);
        }
    }
    worker.end()?;
    charging(&plan, &mut progress, &mut found)?;
    Ok(outcome::of(&found))
}

/// The sides in which Fief charges.
fn charging(plan: &Plan, progress: &mut Progress, found: &mut Found) -> Result<()> {
    let policies = Policies::apply()?;
    let mut worker = Worker::managed()?;
    for &containers in plan.containers {
        worker.ask(&Order::Make { containers, processes: plan.processes.to_vec() })?;
        for round in 0..plan.rounds {
            for side in in_turn(&CHARGING, round) {
                progress.step(&format!("{containers} containers, round {}, {}", round + 1, side.name()))?;
                // a process with ever more descriptors takes longer to fork, whoever schedules
                let order = Order::Measure { operations: containers == plan.containers[0] };
                let answer = side.while_in_force(Some(&policies), || worker.ask(&order))?;
                found.push(side, containers, round, &answer);
            }
        }
    }
    worker.end()?;
    policies.down()
}

/// Each round begins with another one.
fn in_turn(sides: &'static [Side], round: usize) -> impl Iterator<Item = Side> {
    (0..sides.len()).map(move |at| sides[(at + round) % sides.len()])
}

impl Found {
    fn push(&mut self, side: Side, containers: usize, round: usize, answer: &Answer) {
        for ring in &answer.rings {
            self.measurements.push(json!({
                "side": side.name(), "containers": containers, "round": round, "processes": ring.processes,
                "switch_ns": ring.hop_ns - answer.pipe_ns, "hop_ns": ring.hop_ns, "pipe_ns": answer.pipe_ns,
                "switches_per_hop": ring.switches,
            }));
            self.switches.push(outcome::Switch {
                side,
                containers,
                processes: ring.processes,
                ns: ring.hop_ns - answer.pipe_ns,
            });
        }
        for (name, ns) in &answer.operations {
            self.measurements.push(json!({ "side": side.name(), "round": round, "operation": name, "ns": ns }));
            self.operations.push((side, name.clone(), *ns));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_round_begins_with_another_side() {
        let firsts: Vec<_> = (0..3).filter_map(|round| in_turn(&CHARGING, round).next()).collect();
        assert_eq!(firsts, CHARGING);
        assert_eq!(in_turn(&CHARGING, 1).count(), CHARGING.len());
    }
}
