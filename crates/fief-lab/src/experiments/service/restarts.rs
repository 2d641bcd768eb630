// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A server that is started anew while clients ask: what they lose under Fief, and what without it. The sides take turns.

use super::changes::classes;
use super::classes::Class;
use super::crowd::{Answered, Crowd};
use super::unit::{Start, Unit};
use super::{Plan, policy};
use crate::command::{PolicyFile, usage};
use crate::error::Result;
use crate::installation::Installation;
use crate::progress::Progress;
use fief_testkit::Topology;

/// Some restarts of one side.
#[derive(Debug)]
pub struct Round {
    pub side: Start,
    pub number: usize,
    /// From the first word of the server's end until it serves again.
    pub ms: Vec<f64>,
    pub answered: Answered,
    /// Under Fief.
    pub classes: Vec<Class>,
}

pub fn measure(plan: &Plan, topology: &Topology, progress: &mut Progress) -> Result<Vec<Round>> {
    let mut rounds = Vec::new();
    for number in 0..plan.rounds {
        let sides = [Start::Plain, Start::DropIn, Start::Waited];
        for turn in 0..sides.len() {
            let side = sides[(turn + number) % sides.len()];
            rounds.push(round(plan, topology, (side, number), progress)?);
        }
    }
    Ok(rounds)
}

fn round(plan: &Plan, topology: &Topology, (side, number): (Start, usize), progress: &mut Progress) -> Result<Round> {
    let policy = match side {
        Start::Waited => policy::with_restart(&policy::text(0)),
        Start::Plain | Start::DropIn => policy::text(0),
    };
    let policy = PolicyFile::new(&policy)?;
    let installation = (side != Start::Plain).then(|| Installation::apply_in(&policy, &topology.server)).transpose()?;
    let mut unit = Unit::start(topology, side)?;
    let crowd = Crowd::start(topology)?;
    std::thread::sleep(plan.rest);
    let mut ms = Vec::new();
    for _ in 0..plan.restarts_a_round {
        progress.step(&format!("a restart {}, round {}", side.words(), number + 1))?;
        ms.push(unit.restart()?.as_secs_f64() * 1e3);
        std::thread::sleep(plan.rest);
    }
    let answered = crowd.end()?;
    let classes = match installation {
        None => Vec::new(),
        Some(_) => classes(&usage()?, &answered, 0),
    };
    drop(unit);
    installation.map_or(Ok(()), Installation::down)?;
    Ok(Round { side, number, ms, answered, classes })
}

/// Requests lost by one side, of those lost by the other over as many restarts; 0 if neither lost one.
pub fn lost_vs(lost: u64, other: u64) -> f64 {
    if lost == 0 { 0.0 } else { lost as f64 / other as f64 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_side_that_lost_nothing_lost_nothing_of_the_others() {
        assert_eq!((lost_vs(0, 0), lost_vs(0, 9), lost_vs(3, 6)), (0.0, 0.0, 0.5));
        assert!(lost_vs(1, 0).is_infinite());
    }
}
