// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Rounds: every way of dealing with an overload takes its turn in each of them, in an order that turns too.

use super::crowd::{Trial, trial};
use super::sample::{Measured, Sample};
use super::way::{Step, Way};
use crate::error::Result;
use crate::noise::quietest;
use crate::progress::Progress;
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

fn best(
    plan: &Plan,
    topology: &Topology,
    server: &[u32],
    (way, step): (&Way, &Step),
    round: usize,
) -> Result<Measured> {
    let once = || trial(topology, server, &step.crowds, plan.seconds * step.seconds, plan.warm_up * step.warm_up);
    let trial = quietest(plan.retries, |trial: &Trial| &trial.noise, once)?;
    Ok(Measured { way: way.name.clone(), step: step.clone(), round, trial })
}
