// SPDX-License-Identifier: Apache-2.0 OR MIT
//! CPU of one request, with admission and without, on a stage without wake-ups between CPUs; and with empty programs at the
//! same places.

use super::side::{Side, Sides};
use super::{Plan, put_page};
use crate::error::Result;
use crate::experiments::Outcome;
use crate::figures::Bound;
use crate::progress::Progress;
use crate::stage::{Manner, Stage};
use crate::statistics::{Spread, median, ratios};
use crate::table::{Table, number};
use serde_json::json;

pub fn run(plan: &Plan, progress: &mut Progress, outcome: &mut Outcome) -> Result<()> {
    let mut stage = Stage::start("/page.html", put_page)?;
    let topology = stage.topology();
    let sides = Sides::new(&topology.server)?;
    let mut ns: [[Vec<f64>; 3]; Manner::ALL.len()] = Default::default();
    for round in 0..plan.stage_rounds {
        for turn in 0..Side::ALL.len() {
            let place = (round + turn) % Side::ALL.len();
            let side = Side::ALL[place];
            progress.step(&format!("CPU of a request, {}", side.title()))?;
            let force = sides.put(side)?;
            for (manner, ns) in Manner::ALL.into_iter().zip(&mut ns) {
                let took = stage.request_ns(manner, plan.batches)?;
                outcome.measurements.push(json!({
                    "experiment": "admission-cost", "part": "cpu", "what": side.title(), "how": manner.title(),
                    "round": round, "request_ns": took, "nginx": "not managed",
                }));
                ns[place].push(took);
            }
            force.end()?;
        }
    }
    for (manner, ns) in Manner::ALL.into_iter().zip(&ns) {
        report(plan, manner, ns, outcome);
    }
    stage.stop()
}

/// `ns`: in the order of [`Side::ALL`], one value a round.
fn report(plan: &Plan, manner: Manner, ns: &[Vec<f64>; 3], outcome: &mut Outcome) {
    let [without, floor, with] = ns;
    let mut table = Table::new(
        format!("CPU of one request, us, {}; server and client on one core", manner.title()),
        &["", "us", "of this, without costs", "quartiles"],
    );
    for (side, taken) in Side::ALL.into_iter().zip(ns) {
        let kept = Spread::of(&ratios(without, taken));
        let us = number(median(taken) / 1000.0);
        let quartiles = format!("{:.4} - {:.4}", kept.low, kept.high);
        table.row([side.title().to_owned(), us, format!("{:.4}", kept.median), quartiles]);
    }
    table.note(format!(
        "{} rounds; the lowest tenth of {} batches of 5 ms each, no wake-up between CPUs.",
        plan.stage_rounds, plan.batches
    ));
    outcome.tables.push(table);
    let load = format!("one client on the server's core, {}, 1 kB; nginx not managed", manner.title());
    let mut add = |name: &str, over: &[f64], under: &[f64], bound: Option<Bound>, what: &str| {
        let name = format!("admission_cpu{name}{}", manner.suffix());
        let value = median(&ratios(over, under));
        let figure = match bound {
            Some(bound) => outcome.figures.must(name, value, bound),
            None => outcome.figures.add(name, value),
        };
        figure.of(format!("CPU a request (server and client), {what}"), "ratio", &load);
    };
    add("", without, with, Some(Bound::AtLeast(0.96)), "without, of with admission");
    add("_floor", without, floor, None, "without, of with empty programs at the same places");
    add("_vs_floor", floor, with, None, "empty programs at the same places, of with admission");
    let added: Vec<f64> = with.iter().zip(without).map(|(with, without)| with - without).collect();
    let figure = outcome.figures.add(format!("admission_added_ns{}", manner.suffix()), median(&added));
    figure.of("CPU a request, with admission less without", "ns", load);
}
