// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What a saturated nginx keeps of its throughput with admission: every handshake held back until the first bytes, every
//! request ruled. And what it keeps with empty programs at the same places.
//!
//! One nginx runs through it all, which nobody manages; what is compared is put into force and taken down around it, so
//! each side has the same process with the same memory.

use super::side::{Side, Sides};
use super::{PORT, Plan};
use crate::error::Result;
use crate::experiments::Outcome;
use crate::figures::Bound;
use crate::progress::Progress;
use crate::sample::{CLIENTS, Comparison, Sample, WAYS, Way, warn};
use crate::statistics::median;
use crate::table::number;
use fief_testkit::{Nginx, Topology};

/// In the order of [`Side::ALL`].
type Samples = [Vec<Sample>; 3];

pub fn run(
    plan: &Plan,
    topology: &Topology,
    nginx: &Nginx,
    progress: &mut Progress,
    outcome: &mut Outcome,
) -> Result<()> {
    let sides = Sides::new(&topology.server)?;
    let workers = nginx.workers();
    let mut samples: [Samples; WAYS.len()] = Default::default();
    for round in 0..plan.pairs {
        for turn in 0..Side::ALL.len() {
            let place = (round + turn) % Side::ALL.len();
            let side = Side::ALL[place];
            progress.step(&format!("nginx, {}", side.title()))?;
            let force = sides.put(side)?;
            for (way, samples) in WAYS.iter().zip(&mut samples) {
                let sample = Sample::take(topology, &workers, &(way.load)(plan.load_seconds, PORT, "/page.html"))?;
                let mut object = sample.to_json(&format!("admission-cost{}", way.suffix), side.title(), round);
                object["nginx"] = "not managed".into();
                outcome.measurements.push(object);
                samples[place].push(sample);
            }
            force.end()?;
        }
    }
    for (way, samples) in WAYS.iter().zip(&samples) {
        report(plan, way, samples, &sides, outcome);
    }
    Ok(())
}

fn report(plan: &Plan, way: &Way, samples: &Samples, sides: &Sides<'_>, outcome: &mut Outcome) {
    let mut table = way.table();
    for (side, taken) in Side::ALL.into_iter().zip(samples) {
        let middle = |of: fn(&Sample) -> f64| number(median(&taken.iter().map(of).collect::<Vec<_>>()));
        let [by_second, by_cpu_second] = match side {
            Side::Without => [String::new(), String::new()],
            _ => Comparison::of(taken, &samples[0]).cells(),
        };
        let (rate, cpu_rate) = (middle(|one| one.per_second), middle(|one| one.per_cpu_second));
        table.row([side.title().to_owned(), rate, by_second, cpu_rate, by_cpu_second]);
    }
    let [without, floor, with] = samples;
    Comparison::of(with, without).note(&mut table);
    table.note(format!(
        "{} rounds; {CLIENTS} clients, {}, a file of 1 kB; nginx itself is not managed. Empty programs at: {}.",
        plan.pairs,
        way.title,
        sides.sections().join(", ")
    ));
    warn(samples.iter().flatten(), &mut table);
    outcome.tables.push(table);
    let load = format!("{CLIENTS} closed-loop clients on the other core, {}, 1 kB; nginx not managed", way.title);
    let mut add = |name: &str, over: &[Sample], under: &[Sample], bound: Option<Bound>, what: &str| {
        let comparison = Comparison::of(over, under);
        let name = format!("throughput{name}{}", way.suffix);
        let figure = match bound {
            Some(bound) => outcome.figures.must(name, comparison.figure(), bound),
            None => outcome.figures.add(name, comparison.figure()),
        };
        figure.of(format!("{}, {what}", comparison.metric()), "ratio", &load);
    };
    add("", with, without, Some(Bound::AtLeast(0.9)), "with admission, of without");
    add("_floor", floor, without, None, "empty programs at the same places, of without");
    add("_vs_floor", with, floor, Some(Bound::AtLeast(0.98)), "with admission, of empty programs at the same places");
}
