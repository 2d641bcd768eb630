// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What a context switch between two managed threads costs beyond an empty program, by the kernel's own count of run time.
//!
//! The empty program is attached behind Fief's at the same tracepoint, so both run at the same switches.

use super::Plan;
use super::stage::Stage;
use super::worker::{Answer, Order};
use crate::error::{Error, Result};
use crate::experiments::Outcome;
use crate::figures::Bound;
use crate::progress::Progress;
use crate::sides::places;
use crate::statistics::{Spread, median};
use crate::table::{Table, number};
use fief_bpf::floor::Floor;
use fief_bpf::runs::Runs;
use fief_testkit::Topology;
use serde_json::json;

const TRACEPOINT: &str = "sched_switch";
/// Of the ping-pong, in each round.
const BATCHES: usize = 10;

pub fn steps(plan: &Plan) -> usize {
    plan.switch_rounds
}

pub fn run(plan: &Plan, stage: &mut Stage, progress: &mut Progress, outcome: &mut Outcome) -> Result<()> {
    let places = places()?;
    let Some(place) = places.into_iter().find(|place| place.name() == TRACEPOINT) else {
        return Err(Error::failed(format!("Fief has no program at {TRACEPOINT}")));
    };
    let failed = |error: fief_bpf::Error| Error::failed(format!("cannot count the runs at {TRACEPOINT}: {error}"));
    let floor = Floor::attach(std::slice::from_ref(&place), None, None).map_err(failed)?;
    let lost = || Error::failed("the empty program is gone");
    let empty = floor.program(0).ok_or_else(lost)?.try_clone().map_err(|_| lost())?;
    let [ours, empty] = [place.program().map_err(failed)?, empty].map(Runs::of);
    let (ours, empty) = (ours.map_err(failed)?, empty.map_err(failed)?);
    let (mut with, mut without) = (Vec::new(), Vec::new());
    for round in 0..plan.switch_rounds {
        progress.step("switches between two managed threads")?;
        let before = (ours.so_far().map_err(failed)?, empty.so_far().map_err(failed)?);
        let order = Order::Switch { cpu: Topology::server_cpu(), batches: BATCHES };
        let Answer::Switched { .. } = stage.ask(&order)? else {
            return Err(Error::failed("the worker did not say how its threads switched"));
        };
        let ran = ours.so_far().map_err(failed)?.since(before.0);
        let floor = empty.so_far().map_err(failed)?.since(before.1);
        outcome.measurements.push(json!({
            "experiment": "switch_ns", "round": round, "switches": ran.count, "ns": ran.mean_ns(),
            "empty_ns": floor.mean_ns(),
        }));
        with.push(ran.mean_ns());
        without.push(floor.mean_ns());
    }
    let beyond = Spread::of(&with.iter().zip(&without).map(|(with, without)| with - without).collect::<Vec<_>>());
    let mut table = Table::new(
        "A switch between two managed threads, ns of run time by the kernel's own count",
        &["Fief's program", "an empty one", "beyond it", "quartiles"],
    );
    let quartiles = format!("{} - {}", number(beyond.low), number(beyond.high));
    table.row([number(median(&with)), number(median(&without)), number(beyond.median), quartiles]);
    table.note(format!("{} rounds; reading the clock twice is part of both.", plan.switch_rounds));
    outcome.tables.push(table);
    let load = "two threads of a managed server, each bound to a container of its own, that wake each other on one CPU";
    let metric = "run time of the program at a context switch, less that of an empty program at the same switches";
    outcome.figures.must("switch_ns", beyond.median, Bound::AtMost(100.0)).of(metric, "ns", load);
    let metric = "run time of an empty program at a context switch, by the kernel's own count";
    outcome.figures.add("switch_empty_ns", median(&without)).of(metric, "ns", load);
    Ok(())
}
