// SPDX-License-Identifier: Apache-2.0 OR MIT
//! From samples to tables, plots and figures. Pure.

use super::{LOADS, Measured, Way};
use crate::experiments::Outcome;
use crate::plot::{Plot, Series};
use crate::sample::{Comparison, Sample, WAYS, warn};
use crate::statistics::{Spread, median, ratios};
use crate::table::{Table, number};

const ABOUT: &str = "One nginx with the shim, the front door with rules of requests, charging and threads that follow their \
sockets; with a queue in the place of the shim; with empty programs at the same places; and plain. How long do clients wait, and how many requests are served, \
by the number of clients?";
const POLICY: &str = "a file of 1 kB; two classes of equal priority, four rules of requests";

pub fn of(measured: &[Measured], rounds: usize) -> Outcome {
    let mut outcome = Outcome { name: "whole", about: ABOUT.to_owned(), ..Outcome::default() };
    for (manner, way) in WAYS.iter().enumerate() {
        let sample = Of { measured, manner };
        let mut table = Table::new(
            format!("{}: p50 / p99 in ms, requests a second, and of plain nginx's (quartiles)", way.manner.title()),
            &["clients", "", "p50", "p99", "requests/s", "of plain", "CPU a request, ms"],
        );
        for clients in LOADS {
            for way in Way::ALL {
                table.row(sample.row(way, clients));
            }
        }
        table.note(format!("{rounds} rounds; {}, {POLICY}.", way.manner.title()));
        warn(sample.all().iter(), &mut table);
        outcome.tables.push(table);
        sample.add_figures(&mut outcome);
        outcome.plots.extend(sample.plots());
    }
    outcome
}

/// The samples of one manner of connecting.
struct Of<'a> {
    measured: &'a [Measured],
    manner: usize,
}

impl Of<'_> {
    fn all(&self) -> Vec<Sample> {
        self.measured.iter().filter(|one| one.manner == self.manner).map(|one| one.sample).collect()
    }

    /// In the order of the rounds.
    fn of(&self, way: Way, clients: usize) -> Vec<Sample> {
        let chosen = self.measured.iter().filter(|one| one.manner == self.manner && one.way == way);
        chosen.filter(|one| one.clients == clients).map(|one| one.sample).collect()
    }

    fn values(&self, way: Way, clients: usize, value: fn(&Sample) -> f64) -> Vec<f64> {
        self.of(way, clients).iter().map(value).collect()
    }

    fn row(&self, way: Way, clients: usize) -> [String; 7] {
        let middle = |value: fn(&Sample) -> f64| number(median(&self.values(way, clients, value)));
        let rate = |way| self.values(way, clients, |one| one.per_second);
        let kept = Spread::of(&ratios(&rate(way), &rate(Way::Plain)));
        [
            clients.to_string(),
            way.title().to_owned(),
            middle(|one| one.p50_us / 1000.0),
            middle(|one| one.p99_us / 1000.0),
            middle(|one| one.per_second),
            format!("{:.4} ({:.4} - {:.4})", kept.median, kept.low, kept.high),
            middle(|one| 1e3 / one.per_cpu_second),
        ]
    }

    fn add_figures(&self, outcome: &mut Outcome) {
        let how = WAYS[self.manner];
        for clients in LOADS {
            let load = format!("{clients} closed-loop clients, {}, {POLICY}", how.manner.title());
            for (way, word) in [(Way::Whole, ""), (Way::Queue, "_queue"), (Way::Floor, "_floor")] {
                let name = |figure: &str| format!("{figure}_{clients}{word}{}", how.manner.suffix());
                let ratio = |value: fn(&Sample) -> f64| {
                    median(&ratios(&self.values(way, clients, value), &self.values(Way::Plain, clients, value)))
                };
                let comparison = Comparison::of(&self.of(way, clients), &self.of(Way::Plain, clients));
                let mut add = |figure: &str, value: f64, metric: &str| {
                    let metric = format!("{metric}, {}, of plain nginx's", way.title());
                    outcome.figures.add(name(figure), value).of(metric, "ratio", &load);
                };
                add("p50", ratio(|one| one.p50_us), "median response time");
                add("p99", ratio(|one| one.p99_us), "99th percentile of the response time");
                add("throughput", comparison.by_second.median, "requests a second");
                let metric = "requests a second of CPU that nginx and its receiving thread used";
                add("cpu", comparison.by_cpu_second.median, metric);
            }
        }
    }

    fn plots(&self) -> Vec<Plot> {
        let how = WAYS[self.manner];
        let plot = |name: &str, title: &str, y: &str, value: fn(&Sample) -> f64| {
            let series = Way::ALL.into_iter().map(|way| {
                Series::of(way.title(), LOADS.map(|clients| (clients as f64, self.values(way, clients, value))))
            });
            Plot {
                name: format!("{name}{}", how.manner.suffix()),
                title: format!("{title}, {}", how.manner.title()),
                x: "closed-loop clients".to_owned(),
                y: y.to_owned(),
                series: series.collect(),
                logarithmic: false,
            }
        };
        vec![
            plot("p50", "Median response time", "ms", |one| one.p50_us / 1000.0),
            plot("p99", "99th percentile of the response time", "ms", |one| one.p99_us / 1000.0),
            plot("throughput", "Requests a second", "requests/s", |one| one.per_second),
        ]
    }
}
