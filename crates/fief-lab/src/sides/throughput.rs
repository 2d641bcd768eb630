// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What a saturated server keeps of its throughput, by what is in force; the clients are on the other core.
//!
//! One nginx runs through it all; what is compared is put into force and taken down around it, so each side has the same
//! process with the same memory.

use super::{Rounds, Side, Trial};
use crate::error::Result;
use crate::experiments::Outcome;
use crate::plot::Plot;
use crate::progress::Progress;
use crate::sample::{CLIENTS, Comparison, Sample, WAYS, Way, warn};
use crate::stage::Manner;
use crate::statistics::median;
use crate::table::number;
use fief_testkit::Topology;

#[derive(Clone, Copy, Debug)]
pub struct Plan {
    pub rounds: usize,
    pub seconds: f64,
    pub port: u16,
    /// Of 1 kB.
    pub path: &'static str,
}

/// One step a side and round. `after` comes while the side is still in force.
pub fn run(
    plan: Plan,
    (topology, workers): (&Topology, &[u32]),
    trial: Trial<'_>,
    progress: &mut Progress,
    outcome: &mut Outcome,
    after: impl FnMut(Side) -> Result<()>,
) -> Result<()> {
    let take = |manner: Manner| {
        let load = (WAYS[manner.place()].load)(plan.seconds, plan.port, plan.path);
        let sample = Sample::take(topology, workers, &load)?;
        Ok((sample, sample.values()))
    };
    let samples = trial.measure(("throughput", "nginx"), plan.rounds, (progress, outcome), take, after)?;
    for (way, samples) in WAYS.iter().zip(&samples) {
        report(plan, way, samples, trial, outcome);
    }
    Ok(())
}

fn report(plan: Plan, way: &Way, samples: &Rounds<Sample>, trial: Trial<'_>, outcome: &mut Outcome) {
    let Trial { sides, about, .. } = trial;
    let how = way.manner.title();
    let mut table = way.table();
    let without = samples.of(Side::Without);
    for (side, taken) in samples.iter() {
        let middle = |of: fn(&Sample) -> f64| number(median(&taken.iter().map(of).collect::<Vec<_>>()));
        let [by_second, by_cpu_second] = match side {
            Side::Without => [String::new(), String::new()],
            _ => Comparison::of(taken, without).cells(),
        };
        let (rate, cpu_rate) = (middle(|one| one.per_second), middle(|one| one.per_cpu_second));
        table.row([sides.title(side), rate, by_second, cpu_rate, by_cpu_second]);
    }
    Comparison::of(samples.of(Side::With(0)), without).note(&mut table);
    table.note(format!("{} rounds; {CLIENTS} clients, {how}, a file of 1 kB; {about}.", plan.rounds));
    trial.note_places(way.manner, &mut table);
    warn(samples.iter().flat_map(|(_, taken)| taken), &mut table);
    outcome.tables.push(table);
    outcome.plots.push(plot(way.manner, samples, |side| sides.title(side)));
    let load = format!("{CLIENTS} closed-loop clients on the other core, {how}, 1 kB; {about}");
    trial.add_figures(&mut outcome.figures, way.manner, &load, |side, of| {
        let comparison = Comparison::of(samples.of(side), samples.of(of));
        (comparison.figure(), format!("{}, {}, of {}", comparison.metric(), sides.title(side), sides.title(of)))
    });
}

fn plot(manner: Manner, samples: &Rounds<Sample>, title: impl Fn(Side) -> String) -> Plot {
    let of = |taken: &[Sample]| taken.iter().map(|one| one.per_second).collect();
    let series = samples.iter().map(|(side, taken)| (title(side), of(taken)));
    let name = format!("throughput{}", manner.suffix());
    Plot::of_rounds(&name, format!("Requests a second, {}", manner.title()), "requests a second", series)
}
