// SPDX-License-Identifier: Apache-2.0 OR MIT
//! CPU of one request by what is in force, on the stage without wake-ups between CPUs.

use super::{Rounds, Side, Trial};
use crate::error::Result;
use crate::experiments::Outcome;
use crate::plot::Plot;
use crate::progress::Progress;
use crate::stage::{Manner, Stage};
use crate::statistics::{Spread, median, ratios};
use crate::table::{Table, in_ms};
use serde_json::json;

#[derive(Clone, Copy, Debug)]
pub struct Plan {
    pub rounds: usize,
    /// Of 5 ms each, in each round, side and manner.
    pub batches: usize,
}

/// One step a side and round. `after` comes while the side is still in force.
pub fn run(
    plan: Plan,
    stage: &mut Stage,
    trial: Trial<'_>,
    progress: &mut Progress,
    outcome: &mut Outcome,
    after: impl FnMut(Side) -> Result<()>,
) -> Result<()> {
    let take = |manner| {
        let ns = stage.request_ns(manner, plan.batches)?;
        Ok((ns, json!({ "request_ns": ns })))
    };
    let ns = trial.measure(("cpu", "CPU of a request"), plan.rounds, (progress, outcome), take, after)?;
    for (manner, ns) in Manner::ALL.into_iter().zip(&ns) {
        report(plan, manner, ns, trial, outcome);
    }
    Ok(())
}

fn report(plan: Plan, manner: Manner, ns: &Rounds<f64>, trial: Trial<'_>, outcome: &mut Outcome) {
    let Trial { sides, about, promises } = trial;
    let mut table = Table::new(
        format!("CPU of one request, ms, {}; server and client on one core", manner.title()),
        &["", "ms", "of this, without costs", "quartiles"],
    );
    let without = ns.of(Side::Without);
    for (side, taken) in ns.iter() {
        let kept = Spread::of(&ratios(without, taken));
        let ms = in_ms(median(taken) / 1000.0);
        let quartiles = format!("{:.4} - {:.4}", kept.low, kept.high);
        table.row([sides.title(side), ms, format!("{:.4}", kept.median), quartiles]);
    }
    table.note(format!(
        "{} rounds; the lowest tenth of {} batches of 5 ms each, no wake-up between CPUs; {about}.",
        plan.rounds, plan.batches
    ));
    trial.note_places(manner, &mut table);
    outcome.tables.push(table);
    outcome.plots.push(Plot::of_rounds(
        &format!("cpu{}", manner.suffix()),
        format!("CPU of one request, {}", manner.title()),
        "ms",
        ns.iter().map(|(side, taken)| (sides.title(side), taken.iter().map(|ns| ns / 1e6).collect())),
    ));
    let load = format!("one client on the server's core, {}, 1 kB; {about}", manner.title());
    trial.add_figures(&mut outcome.figures, manner, &load, |side, of| {
        // less CPU is more of what was kept
        let what = format!("CPU a request (server and client), {}, of {}", sides.title(of), sides.title(side));
        (median(&ratios(ns.of(of), ns.of(side))), what)
    });
    for (setting, promise) in promises.iter().enumerate() {
        let Some(name) = promise.added else { continue };
        let with = ns.of(Side::With(setting)).iter();
        let added: Vec<f64> = with.zip(without).map(|(with, without)| with - without).collect();
        let title = sides.title(Side::With(setting));
        let figure = outcome.figures.add(format!("{name}{}", manner.suffix()), median(&added));
        figure.of(format!("CPU a request (server and client), {title}, less without"), "ns", &load);
    }
}
