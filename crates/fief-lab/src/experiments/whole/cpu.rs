// SPDX-License-Identifier: Apache-2.0 OR MIT
//! CPU of one request with everything on, on the stage without wake-ups between CPUs.

use super::{PATH, Plan, Stand, Way};
use crate::error::Result;
use crate::experiments::Outcome;
use crate::plot::Plot;
use crate::progress::Progress;
use crate::stage::{Manner, Stage};
use crate::statistics::{Spread, median, ratios};
use crate::table::{Table, in_ms};
use serde_json::json;

/// ns a request, a value a round, in the order of [`Way::ALL`].
type Taken = [Vec<f64>; Way::ALL.len()];

pub fn run(plan: &Plan, progress: &mut Progress, outcome: &mut Outcome) -> Result<()> {
    let mut stage = Stage::bare(PATH)?;
    let topology = stage.topology();
    let stand = Stand::new(&topology)?;
    let mut taken: [Taken; Manner::ALL.len()] = Default::default();
    for round in 0..plan.stage_rounds {
        for turn in 0..Way::ALL.len() {
            let place = (round + turn) % Way::ALL.len();
            let way = Way::ALL[place];
            progress.step(&format!("CPU of a request, {}", way.title()))?;
            let running = stand.start(way)?;
            for (manner, taken) in Manner::ALL.into_iter().zip(&mut taken) {
                let ns = stage.request_ns(manner, plan.batches)?;
                outcome.measurements.push(json!({
                    "experiment": "whole", "part": "cpu", "what": way.title(), "how": manner.title(), "round": round,
                    "request_ns": ns,
                }));
                taken[place].push(ns);
            }
            running.stop()?;
        }
    }
    for (manner, taken) in Manner::ALL.into_iter().zip(&taken) {
        report(plan, manner, taken, outcome);
    }
    stage.stop()
}

fn report(plan: &Plan, manner: Manner, taken: &Taken, outcome: &mut Outcome) {
    let [plain, floor, whole, queue] = taken;
    let mut table = Table::new(
        format!("CPU of one request, ms, {}; server and client on one core", manner.title()),
        &["", "ms", "plain, of this", "quartiles"],
    );
    for (way, taken) in Way::ALL.into_iter().zip(taken) {
        let kept = Spread::of(&ratios(plain, taken));
        let ms = in_ms(median(taken) / 1000.0);
        let quartiles = format!("{:.4} - {:.4}", kept.low, kept.high);
        table.row([way.title().to_owned(), ms, format!("{:.4}", kept.median), quartiles]);
    }
    table.note(format!("{} rounds; a process of its own in each, so memory lies elsewhere.", plan.stage_rounds));
    outcome.tables.push(table);
    let ms = |taken: &Vec<f64>| taken.iter().map(|ns| ns / 1e6).collect();
    let series = Way::ALL.into_iter().zip(taken).map(|(way, taken)| (way.title().to_owned(), ms(taken)));
    let title = format!("CPU of one request, {}", manner.title());
    outcome.plots.push(Plot::of_rounds(&format!("cpu{}", manner.suffix()), title, "ms", series));
    let load = format!("one client on the server's core, {}, 1 kB; four rules of requests", manner.title());
    for (word, over, under, what) in [
        ("", plain, whole, "plain nginx, of with everything on"),
        ("_queue", plain, queue, "plain nginx, of with the queue in the place of the shim"),
        ("_floor", plain, floor, "plain nginx, of with empty programs at the same places"),
        ("_vs_floor", floor, whole, "with empty programs at the same places, of with everything on"),
    ] {
        let name = format!("whole_cpu{word}{}", manner.suffix());
        let figure = outcome.figures.add(name, median(&ratios(over, under)));
        figure.of(format!("CPU a request (server and client), {what}"), "ratio", &load);
    }
}
