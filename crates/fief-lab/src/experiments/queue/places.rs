// SPDX-License-Identifier: Apache-2.0 OR MIT
//! How many requests at once a server is to get: the number that Fief finds out, beside the best of those that a policy could
//! say. The best one is where the paying client waits least, among those with nearly the most requests a second.

use super::case::{Case, Connections, Measured};
use super::kind::Kind;
use super::plan::MANY;
use super::stand::Stand;
use super::way::{self, Way};
use super::{Plan, cost};
use crate::error::Result;
use crate::experiments::Outcome;
use crate::figures::Bound;
use crate::progress::Progress;
use crate::statistics::{median, ratios};
use crate::table::{Table, number};
use fief_testkit::Topology;
use serde_json::json;

const KINDS: [Kind; 3] = [Kind::Nginx, Kind::Nginx4, Kind::Sleeper];
const COST_US: u64 = 300;
/// `None`: Fief finds it out.
const PLACES: [Option<u32>; 8] = [None, Some(1), Some(2), Some(4), Some(8), Some(16), Some(32), Some(64)];
const TRIED: [Option<u32>; 3] = [None, Some(1), Some(8)];
/// Of the most requests a second.
const NEARLY: f64 = 0.97;
/// Until Fief has found a number.
const FINDS_S: f64 = 3.0;

struct One {
    kind: Kind,
    places: Option<u32>,
    measured: Measured,
}

/// Adds what came out to the outcome.
pub fn run(plan: &Plan, topology: &Topology, outcome: &mut Outcome) -> Result<()> {
    let is_tried = plan.is_tried();
    let numbers: &[Option<u32>] = if is_tried { &TRIED } else { &PLACES };
    let mut kinds: Vec<Kind> = KINDS.into_iter().filter(|kind| kind.check().is_ok()).collect();
    if is_tried {
        kinds.truncate(1);
    }
    let rounds = plan.rounds.min(3);
    let mut progress = Progress::new("queue, places", kinds.len() * numbers.len() * rounds);
    let mut all = Vec::new();
    for &kind in &kinds {
        let work = cost::work(topology, (kind, Connections::Each), COST_US, plan.seconds.min(0.5))?;
        for round in 0..rounds {
            for turn in 0..numbers.len() {
                let places = numbers[(turn + round) % numbers.len()];
                progress.step(&format!("round {}, {}, {}", round + 1, kind.title(), title(places)))?;
                let stand = Stand::under(topology, kind, Way::Queue, work, Some(&policy(places)))?;
                let case = Case { kind, way: Way::Queue, connections: Connections::Each, low: MANY, cost_us: COST_US };
                let warm_up = if is_tried { plan.warm_up } else { FINDS_S };
                let measured = case.measure(topology, round, (plan.seconds, warm_up), |_| ())?;
                stand.stop()?;
                all.push(One { kind, places, measured });
            }
        }
    }
    outcome.measurements.extend(all.iter().map(|one| {
        let measured = &one.measured;
        json!({
            "experiment": "queue", "part": "places", "server": one.kind.name(), "places": one.places, "round": measured.round,
            "paying_mean_us": measured.high.mean_us(), "requests_per_second": measured.throughput(),
        })
    }));
    for kind in kinds {
        outcome.tables.push(table(kind, numbers, &all));
        let best = best(&rows(kind, numbers, &all));
        let of = |places: Option<u32>, value: fn(&Measured) -> f64| values(kind, places, &all, value);
        let against = |value: fn(&Measured) -> f64| median(&ratios(&of(None, value), &of(Some(best), value)));
        let load = format!("{}, {MANY} others, as fast as they are answered, one paying client", kind.title());
        let mut must = |name: &str, value: f64, bound: Bound, metric: &str| {
            let name = format!("{}.auto_vs_best_{name}", kind.name());
            outcome.figures.must(name, value, bound).of(metric, "ratio", load.clone());
        };
        let metric = "requests a second with in-service = \"auto\", of those with the best number";
        must("throughput", against(Measured::throughput), Bound::AtLeast(NEARLY), metric);
        let metric = "mean response time of the paying client with in-service = \"auto\", of that with the best number";
        must("t200", against(|one| one.high.mean_us()), Bound::AtMost(1.3), metric);
        let metric =
            "the number of places with which the paying client waits least, of those with nearly the best throughput";
        outcome.figures.add(format!("{}.best_places", kind.name()), best.into()).of(metric, "places", load);
    }
    Ok(())
}

fn policy(places: Option<u32>) -> String {
    way::policy(
        &places.map_or_else(|| "queue = true".to_owned(), |count| format!("queue = {{ in-service = {count} }}")),
    )
}

fn title(places: Option<u32>) -> String {
    places.map_or_else(|| "auto".to_owned(), |count| format!("{count} at once"))
}

fn values(kind: Kind, places: Option<u32>, all: &[One], value: fn(&Measured) -> f64) -> Vec<f64> {
    let mut some: Vec<_> =
        all.iter().filter(|one| one.kind == kind && one.places == places).map(|one| &one.measured).collect();
    some.sort_by_key(|one| one.round);
    some.into_iter().map(value).collect()
}

/// A number, requests a second, and how long the paying client waits.
type Row = (u32, f64, f64);

fn rows(kind: Kind, numbers: &[Option<u32>], all: &[One]) -> Vec<Row> {
    let row = |places: u32| {
        let of = |value: fn(&Measured) -> f64| median(&values(kind, Some(places), all, value));
        (places, of(Measured::throughput), of(|one| one.high.mean_us()))
    };
    numbers.iter().copied().flatten().map(row).collect()
}

fn best(rows: &[Row]) -> u32 {
    let most = rows.iter().map(|row| row.1).fold(0.0, f64::max);
    let near = rows.iter().filter(|row| row.1 >= NEARLY * most);
    near.min_by(|one, other| one.2.total_cmp(&other.2)).map_or(1, |row| row.0)
}

fn table(kind: Kind, numbers: &[Option<u32>], all: &[One]) -> Table {
    let title_of = format!("{}, {MANY} others, by how many requests it has at once", kind.title());
    let mut table = Table::new(title_of, &["at once", "paying client waits, ms", "requests a second"]);
    for &places in numbers {
        let of = |value: fn(&Measured) -> f64| number(median(&values(kind, places, all, value)));
        table.row([title(places), of(|one| one.high.mean_us() / 1000.0), of(Measured::throughput)]);
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_best_number_waits_least_of_those_that_do_nearly_the_most() {
        let rows = [(1, 900.0, 1.0), (2, 975.0, 2.0), (4, 1000.0, 3.0), (8, 990.0, 9.0)];
        assert_eq!(best(&rows), 2);
    }
}
