// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What was measured in all rounds, and how to ask for it. Pure.

use super::crowd::Trial;
use super::way::Step;
use crate::load::Seen;
use crate::statistics::{Histogram, Spread};
use crate::table::number;
use fief_testkit::Topology;
use serde_json::{Value, json};

/// One trial with where it belongs.
#[derive(Clone, Debug)]
pub struct Measured {
    pub way: String,
    pub step: Step,
    pub round: usize,
    pub trial: Trial,
}

#[derive(Debug)]
pub struct Sample {
    name: &'static str,
    measured: Vec<Measured>,
}

impl Sample {
    pub fn new(name: &'static str) -> Sample {
        Sample { name, measured: Vec::new() }
    }

    pub fn push(&mut self, measured: Measured) {
        self.measured.push(measured);
    }

    pub fn has(&self, way: &str) -> bool {
        self.measured.iter().any(|one| one.way == way)
    }

    /// One value a round, in their order, of what a crowd saw.
    pub fn of(&self, way: &str, step: &str, crowd: usize, value: impl Fn(&Seen) -> f64) -> Vec<f64> {
        let mut chosen: Vec<_> = self.select(way, step).collect();
        chosen.sort_by_key(|one| one.round);
        chosen.into_iter().filter_map(|one| one.trial.seen.get(crowd)).map(value).collect()
    }

    fn select(&self, way: &str, step: &str) -> impl Iterator<Item = &Measured> {
        self.measured.iter().filter(move |one| one.way == way && one.step.name == step)
    }

    /// Requests served a second.
    pub fn rates(&self, way: &str, step: &str, crowd: usize) -> Vec<f64> {
        self.of(way, step, crowd, Seen::per_second)
    }

    /// Mean response times in us.
    pub fn means(&self, way: &str, step: &str, crowd: usize) -> Vec<f64> {
        self.of(way, step, crowd, Seen::mean_us)
    }

    /// CPU seconds a second of the server and its receive work, in the order of the rounds.
    pub fn server_cpu(&self, way: &str, step: &str) -> Vec<f64> {
        let mut chosen: Vec<_> = self.select(way, step).collect();
        chosen.sort_by_key(|one| one.round);
        chosen.into_iter().map(|one| one.trial.server_cpu).collect()
    }

    /// Of all rounds in one: a percentile needs many requests.
    pub fn p99_us(&self, way: &str, step: &str, crowd: usize) -> f64 {
        let mut all = Histogram::default();
        let seen = self.select(way, step).filter_map(|one| one.trial.seen.get(crowd));
        seen.for_each(|seen| all.merge(&seen.latency));
        all.quantile(0.99) / 1000.0
    }

    /// What makes the figures less certain.
    pub fn warnings(&self) -> Vec<String> {
        let count = |condition: &dyn Fn(&Measured) -> bool| self.measured.iter().filter(|one| condition(one)).count();
        let total = self.measured.len();
        let disturbed = count(&|one| one.trial.noise.is_disturbed());
        // While others take what the two cores have left, it cannot be told; those are counted above.
        let unbound = count(&|one| {
            let noise = &one.trial.noise;
            one.step.saturates
                && !noise.is_disturbed()
                && !noise.is_server_bound(Topology::server_cpu(), Topology::load_cpu())
        });
        let shed: u64 = self.measured.iter().flat_map(|one| &one.trial.seen).map(|seen| seen.shed).sum();
        [
            (
                disturbed,
                format!("in {disturbed} of {total} trials other programs used the CPU; a quiet machine tells more"),
            ),
            (unbound, format!("in {unbound} of {total} trials the server's core was not the bottleneck")),
            (shed as usize, format!("{shed} requests of open loops were not offered: too many under way")),
        ]
        .into_iter()
        .filter(|(count, _)| *count > 0)
        .map(|(_, text)| text)
        .collect()
    }

    pub fn to_json(&self) -> Vec<Value> {
        self.measured.iter().map(|one| one.to_json(self.name)).collect()
    }
}

impl Measured {
    fn to_json(&self, name: &str) -> Value {
        let crowds: Vec<Value> = self
            .step
            .crowds
            .iter()
            .zip(&self.trial.seen)
            .map(|(crowd, seen)| {
                let each = |count: u64| count as f64 / seen.seconds;
                json!({
                    "class": format!("{:?}", crowd.class).to_lowercase(),
                    "path": crowd.path,
                    "offered_per_second": crowd.offered(),
                    "begun_per_second": each(seen.begun),
                    "served_per_second": seen.per_second(),
                    "refused_per_second": each(seen.refused),
                    "given_up_per_second": each(seen.given_up),
                    "failed_per_second": each(seen.errors),
                    "mean_us": seen.mean_us(),
                    "p99_us": seen.p99_us(),
                    "stalls": seen.stalls,
                    "shed": seen.shed,
                })
            })
            .collect();
        let noise = &self.trial.noise;
        json!({
            "experiment": name,
            "way": self.way,
            "step": self.step.name,
            "round": self.round,
            "crowds": crowds,
            "server_cpu": self.trial.server_cpu,
            "busy": noise.busy,
            "steal": noise.steal(),
            "foreign": noise.foreign,
        })
    }
}

/// A median with its quartiles, as a cell of a table.
pub fn cell(values: &[f64]) -> String {
    match Spread::of(values) {
        spread if spread.rounds == 0 => "-".to_owned(),
        spread => format!("{} ({} - {})", number(spread.median), number(spread.low), number(spread.high)),
    }
}

#[cfg(test)]
impl Sample {
    /// Pushes a round in which each crowd was served so many requests a second, in 1 ms each.
    pub fn push_rates(&mut self, way: &str, step: &str, round: usize, rates: &[u64]) {
        let seen = rates.iter().map(|&rate| {
            let mut latency = Histogram::default();
            (0..rate).for_each(|_| latency.record(1_000_000));
            Seen { seconds: 1.0, latency, ..Seen::default() }
        });
        let noise = crate::noise::Noise { busy: vec![1.0, 0.5], ..crate::noise::Noise::default() };
        let trial = Trial { seen: seen.collect(), noise, server_cpu: 1.0 };
        self.push(Measured { way: way.to_owned(), step: Step::new(step, Vec::new()), round, trial });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_come_in_the_order_of_the_rounds_and_only_of_their_step() {
        let mut sample = Sample::new("x");
        sample.push_rates("fief", "a", 1, &[20, 2]);
        sample.push_rates("fief", "a", 0, &[10, 1]);
        sample.push_rates("fief", "b", 0, &[99]);
        sample.push_rates("nginx", "a", 0, &[99]);
        assert_eq!(sample.rates("fief", "a", 0), [10.0, 20.0]);
        assert_eq!(sample.rates("fief", "a", 1), [1.0, 2.0]);
        assert!(sample.rates("fief", "b", 1).is_empty(), "there was no second crowd");
        assert_eq!(sample.means("nginx", "a", 0), [1000.0]);
    }

    #[test]
    fn an_idle_server_spoils_a_step_that_must_saturate_it() {
        let mut sample = Sample::new("x");
        sample.push_rates("fief", "a", 0, &[10]);
        assert!(sample.warnings().is_empty(), "{:?}", sample.warnings());
        sample.measured[0].trial.noise.busy[Topology::server_cpu()] = 0.5;
        assert!(sample.warnings()[0].contains("1 of 1"), "{:?}", sample.warnings());
        sample.measured[0].step.saturates = false;
        assert!(sample.warnings().is_empty());
    }
}
