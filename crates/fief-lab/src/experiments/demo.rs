// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `priority-clients` for a newcomer: an unmodified nginx without and with Fief, watched while it happens.
//!
//! It shows three things in this order: how long the paying client waits, who used the CPU meanwhile, and where to read
//! on. The whole comparison, with its rivals, is `priority-clients`.

mod cpu;
mod picture;

use crate::command;
use crate::error::Result;
use crate::experiments::Outcome;
use crate::experiments::priority_clients::{Kind, Measurement, Plan, measure, outcome_of};
use crate::progress;
use crate::table::Table;
use fief_testkit::Topology;
use picture::Picture;

const ABOUT: &str = "One paying client asks an unmodified nginx for a small page every 2 ms. Beside it 0 to 40 others \
ask as fast as they are answered. How long does the paying one wait, without Fief and with it?";

fn plan(quick: bool) -> Plan {
    Plan {
        kinds: vec![Kind::Plain, Kind::Single],
        loads: vec![0, 5, 10, 20, 30, 40],
        rounds: if quick { 1 } else { 2 },
        seconds: if quick { 1.0 } else { 1.5 },
        warm_up: 0.25,
        retries: 0,
    }
}

pub fn run(quick: bool) -> Result<Outcome> {
    let plan = plan(quick);
    plan.kinds.iter().try_for_each(|kind| kind.check())?;
    let topology = Topology::new()?;
    let mut picture = Picture::new(ABOUT, &plan.loads);
    let mut measurements = Vec::new();
    let mut used = None;
    for round in 0..plan.rounds {
        for &kind in &plan.kinds {
            let (measured, usage) = ladder(&plan, &topology, kind, round, &mut picture)?;
            measurements.extend(measured);
            used = usage.or(used);
        }
    }
    drop(picture);
    let mut outcome = outcome_of(&plan, &measurements, Vec::new());
    outcome.name = "demo";
    outcome.about = ABOUT.to_owned();
    // Quartiles of one or two rounds say nothing.
    outcome.tables.remove(1);
    outcome.tables.extend(used);
    outcome.figures.bound_only();
    Ok(outcome)
}

/// One server under more and more clients; and who used the CPU at the last step, if Fief was there to tell.
fn ladder(
    plan: &Plan,
    topology: &Topology,
    kind: Kind,
    round: usize,
    picture: &mut Picture,
) -> Result<(Vec<Measurement>, Option<Table>)> {
    let column = usize::from(kind == Kind::Single);
    let server = kind.start(topology)?;
    let mut measured = Vec::new();
    let mut table = None;
    for (row, &low) in plan.loads.iter().enumerate() {
        progress::check()?;
        let is_last = row + 1 == plan.loads.len();
        let before = if kind == Kind::Single && is_last { command::usage()? } else { Vec::new() };
        picture.begin(row, column);
        let measurement = measure(plan, topology, kind, low, round, |seen| picture.live(seen.mean_us()))?;
        picture.end(measurement.high.mean_us());
        if !before.is_empty() {
            table = Some(cpu::table(low, &before, &command::usage()?));
        }
        measured.push(measurement);
    }
    server.stop()?;
    Ok((measured, table))
}
