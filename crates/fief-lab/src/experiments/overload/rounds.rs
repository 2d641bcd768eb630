// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Rounds: every way of dealing with an overload takes its turn in each of them, in an order that turns too.

use super::crowd::{Crowd, trial};
use super::sample::{Measured, Sample};
use super::site::Site;
use crate::error::Result;
use crate::progress::Progress;
use crate::wanted;
use fief_testkit::Topology;

#[derive(Clone, Copy, Debug)]
pub struct Plan {
    pub rounds: usize,
    /// Of one trial, unless the step says otherwise.
    pub seconds: f64,
    pub warm_up: f64,
    /// How often a disturbed trial may be taken again.
    pub retries: usize,
}

/// What is done about the overload: a server, and what it is put through, in this order.
#[derive(Clone, Debug)]
pub struct Way {
    pub name: String,
    pub title: String,
    pub site: Site,
    pub steps: Vec<Step>,
}

#[derive(Clone, Debug)]
pub struct Step {
    pub name: String,
    pub crowds: Vec<Crowd>,
    /// Times the plan's.
    pub warm_up: f64,
    pub seconds: f64,
    /// Whether the server's core must be the bottleneck for the step to mean something.
    pub saturates: bool,
}

impl Step {
    pub fn new(name: impl Into<String>, crowds: Vec<Crowd>) -> Step {
        Step { name: name.into(), crowds, warm_up: 1.0, seconds: 1.0, saturates: true }
    }

    /// A step that the server can bear.
    pub fn with_idle_time(mut self) -> Step {
        self.saturates = false;
        self
    }

    /// A step that takes so many times longer until it is steady.
    pub fn slow(mut self, warm_up: f64, seconds: f64) -> Step {
        (self.warm_up, self.seconds) = (warm_up, seconds);
        self
    }
}

/// Those that this machine can do, and for the others why not.
pub fn usable(ways: Vec<Way>) -> (Vec<Way>, Vec<String>) {
    wanted::usable(ways, |way| way.site.check(), |way| way.title.clone())
}

pub fn run(name: &'static str, plan: &Plan, topology: &Topology, ways: &[Way]) -> Result<Sample> {
    let steps: usize = ways.iter().map(|way| way.steps.len()).sum();
    let mut progress = Progress::new(name, plan.rounds * steps);
    let mut sample = Sample::new(name);
    for round in 0..plan.rounds {
        for turn in 0..ways.len() {
            let way = &ways[(turn + round) % ways.len()];
            let running = way.site.start(topology)?;
            let server = running.processes(topology)?;
            for step in &way.steps {
                progress.step(&format!("round {}, {}, {}", round + 1, way.title, step.name))?;
                sample.push(best(plan, topology, &server, (way, step), round)?);
            }
            running.stop()?;
        }
    }
    Ok(sample)
}

/// Of several trials the one in which others used the least CPU.
fn best(
    plan: &Plan,
    topology: &Topology,
    server: &[u32],
    (way, step): (&Way, &Step),
    round: usize,
) -> Result<Measured> {
    let once = || trial(topology, server, &step.crowds, plan.seconds * step.seconds, plan.warm_up * step.warm_up);
    let mut best = once()?;
    for _ in 0..plan.retries {
        if !best.noise.is_disturbed() {
            break;
        }
        let again = once()?;
        if again.noise.foreign < best.noise.foreign {
            best = again;
        }
    }
    Ok(Measured { way: way.name.clone(), step: step.clone(), round, trial: best })
}
