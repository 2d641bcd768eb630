// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A service's life under Fief: policies, and Fief's own programs, that change under load, and a server that is started anew.
//!
//! Clients ask as fast as they are answered, all the time. Nothing here is told by Fief alone: clients count what they lose, a prober
//! sees whether the policy is in force, and what Fief charged before is held against what it charges after.

mod accounts;
mod adoption;
mod application;
mod changes;
mod classes;
mod crowd;
mod holder;
mod outcome;
mod policy;
mod probe;
mod restarts;
mod unit;
mod upgrades;

pub use holder::main as holder_main;

use crate::command;
use crate::effort::is_least;
use crate::error::Result;
use crate::experiments::Outcome;
use crate::progress::Progress;
use crate::wanted::Wanted;
use changes::{Changes, What};
use fief_testkit::Topology;
use std::time::Duration;

const PORT: u16 = 80;
/// Of another listener, that is enforced and watched in turn.
const WATCHED: u16 = 81;

#[derive(Debug)]
struct Plan {
    reloads: usize,
    /// From the begin of one to that of the next.
    reload_every: Duration,
    /// Changes of Fief's programs.
    upgrades: usize,
    /// Of each side, in rounds in which the sides take turns.
    rounds: usize,
    restarts_a_round: usize,
    adoptions: usize,
    /// After a restart or a change of programs, until the load is what it was.
    rest: Duration,
}

impl Plan {
    fn of(quick: bool) -> Self {
        let (reloads, upgrades, rounds, adoptions) = if quick { (20, 2, 2, 10) } else { (50, 10, 4, 20) };
        let whole = Self {
            reloads,
            reload_every: Duration::from_secs(1),
            upgrades,
            rounds,
            restarts_a_round: 5,
            adoptions,
            rest: Duration::from_millis(1500),
        };
        match is_least() {
            false => whole,
            true => Self { reloads: 6, upgrades: 1, rounds: 1, restarts_a_round: 1, adoptions: 1, ..whole },
        }
    }

    fn restarts(&self) -> usize {
        self.rounds * self.restarts_a_round
    }

    fn steps(&self) -> usize {
        self.reloads + self.upgrades + 3 * self.restarts() + self.adoptions
    }
}

/// The measurements of each part; a part that `FIEF_LAB_ONLY` leaves out has none.
#[derive(Debug, Default)]
struct Measured {
    reloads: Option<Changes>,
    upgrades: Option<Changes>,
    restarts: Vec<restarts::Round>,
    adopt_ms: Vec<f64>,
}

pub fn run(quick: bool) -> Result<Outcome> {
    command::can_run()?;
    let plan = Plan::of(quick);
    let wanted = Wanted::from_env();
    let topology = Topology::new()?;
    let mut progress = Progress::new("service", plan.steps());
    let mut measured = Measured::default();
    if wanted.any(&["reloads"]) {
        measured.reloads = Some(changes::measure(&plan, &topology, What::Policies, &mut progress)?);
    }
    if wanted.any(&["upgrades"]) {
        measured.upgrades = Some(changes::measure(&plan, &topology, What::Programs, &mut progress)?);
    }
    if wanted.any(&["restarts"]) {
        measured.restarts = restarts::measure(&plan, &topology, &mut progress)?;
    }
    if wanted.any(&["adoption"]) {
        measured.adopt_ms = adoption::measure(&plan, &topology, &mut progress)?;
    }
    Ok(outcome::of(&plan, &measured))
}
