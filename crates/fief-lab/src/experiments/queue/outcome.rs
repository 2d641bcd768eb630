// SPDX-License-Identifier: Apache-2.0 OR MIT
//! From single measurements to tables and plots. Pure.

use super::case::{Case, Connections};
use super::figures::figures;
use super::kind::Kind;
use super::plan::Plan;
use super::sample::Sample;
use super::way::Way;
use crate::experiments::Outcome;
use crate::plot::{Plot, Series};
use crate::statistics::{Spread, median, ms};
use crate::table::{Table, cost_ms, in_ms, number};

const ABOUT: &str = "One paying client asks an unmodified server every 2 ms, while others ask as fast as \
they are answered. How long does the paying one wait, and what does the server do in all, by what is done for its class?";

pub fn of(plan: &Plan, sample: &Sample, notes: Vec<String>) -> Outcome {
    let mut outcome = Outcome {
        name: "queue",
        about: ABOUT.to_owned(),
        measurements: sample.iter().map(|one| one.to_json()).collect(),
        figures: figures(plan, sample),
        ..Outcome::default()
    };
    for &kind in &plan.kinds {
        for cost_us in plan.costs_us(kind) {
            for connections in Connections::ALL {
                let place = Place { plan, sample, kind, connections, cost_us };
                outcome.tables.extend(place.tables());
                outcome.plots.extend(place.plot());
            }
        }
    }
    if let Some(table) = outcome.tables.first_mut() {
        table.notes = notes.into_iter().chain(sample.warnings()).collect();
    }
    outcome
}

/// One server, with one kind of connection and one cost of a request.
struct Place<'a> {
    plan: &'a Plan,
    sample: &'a Sample,
    kind: Kind,
    connections: Connections,
    cost_us: u64,
}

impl Place<'_> {
    fn case(&self, way: Way, low: usize) -> Case {
        Case { kind: self.kind, way, connections: self.connections, low, cost_us: self.cost_us }
    }

    fn ways(&self) -> Vec<Way> {
        let has = |way: &Way| self.plan.loads.iter().any(|&low| self.sample.has_case(self.case(*way, low)));
        self.plan.ways.iter().copied().filter(has).collect()
    }

    fn title(&self) -> String {
        format!("{}, {}, requests of {}", self.kind.title(), self.connections.title(), cost_ms(self.cost_us))
    }

    fn tables(&self) -> Vec<Table> {
        let wait = self.table("paying client, ms: mean (quartiles of the rounds) / 99th percentile", |case| {
            let mean = Spread::of(&self.sample.means(case));
            let [median, low, high] = [mean.median, mean.low, mean.high].map(in_ms);
            format!("{median} ({low} - {high}) / {}", in_ms(self.sample.p99_us(case)))
        });
        let all = self.table("requests a second of all clients", |case| number(median(&self.sample.throughputs(case))));
        wait.into_iter().chain(all).collect()
    }

    fn table(&self, what: &str, cell: impl Fn(Case) -> String) -> Option<Table> {
        let ways = self.ways();
        let titles: Vec<String> = ways.iter().map(|way| way.title()).collect();
        let head: Vec<&str> = std::iter::once("others").chain(titles.iter().map(String::as_str)).collect();
        let mut table = Table::new(format!("{}: {what}", self.title()), &head);
        for &low in &self.plan.loads {
            let cells = ways.iter().map(|&way| match self.sample.has_case(self.case(way, low)) {
                true => cell(self.case(way, low)),
                false => "-".to_owned(),
            });
            let cells: Vec<String> = cells.collect();
            if cells.iter().any(|cell| cell != "-") {
                table.row(std::iter::once(low.to_string()).chain(cells));
            }
        }
        (!table.rows.is_empty()).then_some(table)
    }

    /// Of the servers that were measured at several loads.
    fn plot(&self) -> Option<Plot> {
        let series = |way: Way| {
            let cases = self.plan.loads.iter().map(|&low| self.case(way, low));
            let points = cases.filter(|case| self.sample.has_case(*case));
            Series::of(way.title(), points.map(|case| (case.low as f64, ms(&self.sample.means(case)))))
        };
        // one line for the peers: the best of them
        let peer = |way: &Way| {
            let is_best =
                |low: &usize| self.sample.peer(self.case(Way::Queue, *low)).map(|case| case.way) == Some(*way);
            !matches!(way, Way::Haproxy(_)) || self.plan.loads.iter().any(is_best)
        };
        let series: Vec<Series> = self.ways().into_iter().filter(peer).map(series).collect();
        if !self.kind.is_main() || series.iter().all(|series| series.points.len() < 2) {
            return None;
        }
        Some(Plot {
            name: format!("{}{}-{}us", self.kind.name(), self.connections.suffix(), self.cost_us),
            title: format!("Mean response time of the paying client: {}", self.title()),
            x: "others".to_owned(),
            y: "ms".to_owned(),
            series,
            logarithmic: true,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::super::sample::tests::{case, measured};
    use super::*;

    #[test]
    fn what_was_not_measured_has_no_column_and_no_figure() {
        let mut sample = Sample::default();
        sample.push(measured(case(Way::Plain, 5), 2000, 3000));
        sample.push(measured(case(Way::Plain, 200), 66_000, 3000));
        sample.push(measured(case(Way::Haproxy(1), 200), 900, 2500));
        let outcome = of(&Plan::quick(), &sample, vec!["a reason".into()]);
        assert_eq!(outcome.tables[0].head, ["others", "plain", "HAProxy, maxconn 1"]);
        assert!(outcome.tables[0].to_string().contains("a reason"));
        assert_eq!(outcome.plots.len(), 1);
        assert!(outcome.figures.get("go.flatness").is_none(), "there was no queue");
    }
}
