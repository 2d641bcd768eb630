// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What the measurements come to. Pure.

use serde_json::Value;

use super::side::{CHARGING, PLAIN, Side};
use crate::experiments::Outcome;
use crate::figures::{Bound, Figures};
use crate::plot::{Plot, Series};
use crate::statistics::{median, ratios};
use crate::table::{Table, number};

const ABOUT: &str = "Processes in a ring pass a token on through pipes, on one CPU: what one pass takes, less what a pipe takes without a \
switch. Fief's scheduler is held against the kernel's own and against a minimal one that is a program too, with Fief's charging \
attached in all three: it goes by what is charged.";

const LOAD: &str = "2 to 96 processes in a ring, spread over 1, 96 and 10,000 containers with weights, on one CPU";
const OPERATIONS: [&str; 4] = ["fork", "exec", "pipe", "select"];
const EEVDF: Side = CHARGING[0];
const SIMPLE: Side = CHARGING[1];
const FIEF: Side = CHARGING[2];

/// One ring in one round.
#[derive(Clone, Copy, Debug)]
pub struct Switch {
    pub side: Side,
    pub containers: usize,
    pub processes: usize,
    pub ns: f64,
}

/// All that was measured.
#[derive(Debug, Default)]
pub struct Found {
    pub switches: Vec<Switch>,
    pub operations: Vec<(Side, String, f64)>,
    pub measurements: Vec<Value>,
}

impl Found {
    /// By round.
    fn switch(&self, side: Side, containers: usize, processes: usize) -> Vec<f64> {
        let at = |one: &&Switch| (one.side, one.containers, one.processes) == (side, containers, processes);
        self.switches.iter().filter(at).map(|one| one.ns).collect()
    }

    fn operation(&self, side: Side, name: &str) -> Vec<f64> {
        self.operations.iter().filter(|one| one.0 == side && one.1 == name).map(|one| one.2).collect()
    }

    /// The rings that were measured on all charging sides, as containers and processes, each once, ascending.
    fn cells(&self) -> Vec<(usize, usize)> {
        let mut cells: Vec<_> =
            self.switches.iter().filter(|one| one.side.charging).map(|one| (one.containers, one.processes)).collect();
        cells.sort_unstable();
        cells.dedup();
        cells
    }

    /// The ratio of two sides in one cell, by rounds.
    fn ratio(&self, over: Side, under: Side, (containers, processes): (usize, usize)) -> f64 {
        let [over, under] = [over, under].map(|side| self.switch(side, containers, processes));
        median(&ratios(&over, &under))
    }

    /// Of those cells the largest; one that was not measured is.
    fn worst(&self, over: Side, under: Side, only: impl Fn(usize, usize) -> bool) -> f64 {
        let cells = self.cells().into_iter().filter(|cell| only(cell.0, cell.1));
        let all = cells.map(|cell| self.ratio(over, under, cell));
        all.reduce(|worst, one| if one > worst || one.is_nan() { one } else { worst }).unwrap_or(f64::NAN)
    }
}

pub fn of(found: &Found) -> Outcome {
    Outcome {
        name: "switch-cost",
        about: ABOUT.to_owned(),
        tables: vec![switches(found), operations(found)],
        plots: plots(found),
        measurements: found.measurements.clone(),
        figures: figures(found),
    }
}

fn figures(found: &Found) -> Figures {
    let mut figures = Figures::default();
    let any = |_, _| true;
    figures.must("vs_scx_simple", found.worst(FIEF, SIMPLE, any), Bound::AtMost(1.10)).of(
        "a switch under Fief's scheduler, of one under a minimal scheduler that is a program, charging attached in both; the largest of all \
         rings",
        "ratio",
        LOAD,
    );
    figures.must("vs_eevdf", found.worst(FIEF, EEVDF, any), Bound::AtMost(1.20)).of(
        "a switch under Fief's scheduler, of one under the kernel's own with charging attached; the largest of all rings",
        "ratio",
        LOAD,
    );
    figures.add("scx_simple_vs_eevdf", found.worst(SIMPLE, EEVDF, any)).of(
        "the floor of the former: a switch under the minimal scheduler, of one under the kernel's own, charging attached in both",
        "ratio",
        LOAD,
    );
    let ends = |pick: fn(Vec<usize>) -> Option<usize>| {
        let cells = found.cells();
        [pick(cells.iter().map(|cell| cell.0).collect()), pick(cells.iter().map(|cell| cell.1).collect())]
    };
    let [fewest, most] = [ends(|all| all.into_iter().min()), ends(|all| all.into_iter().max())];
    for ([containers, processes], which) in [(fewest, "fewest"), (most, "most")] {
        let (Some(containers), Some(processes)) = (containers, processes) else { continue };
        for side in CHARGING {
            let name = format!("{}_{which}_ns", side.name());
            let metric = format!("a switch with the {which} processes and containers: {}", side.title());
            let load = format!("{processes} processes in a ring, {containers} containers");
            figures.add(name, median(&found.switch(side, containers, processes))).of(metric, "ns", load);
        }
    }
    for name in OPERATIONS {
        for (under, to) in [(SIMPLE, "scx_simple"), (EEVDF, "eevdf")] {
            let ratio = median(&ratios(&found.operation(FIEF, name), &found.operation(under, name)));
            let metric = format!("{} under Fief's scheduler, of: {}", described(name), under.title());
            figures.add(format!("{name}_vs_{to}"), ratio).of(metric, "ratio", "one process, one container");
        }
    }
    figures
}

fn described(operation: &str) -> &'static str {
    match operation {
        "fork" => "a process that is forked, ends at once and is waited for",
        "exec" => "the program true, started and waited for",
        "pipe" => "a token through a pipe to another process and back",
        _ => "a look at 100 pipes of which none is ready",
    }
}

fn switches(found: &Found) -> Table {
    let mut head = vec!["containers", "processes"];
    head.extend(PLAIN.iter().chain(&CHARGING).map(|side| side.title()));
    head.extend(["of scx_simple", "of EEVDF"]);
    let mut table = Table::new("A context switch, ns", &head);
    for (containers, processes) in found.cells() {
        let of = |side: Side| {
            let containers = if side.charging { containers } else { 0 };
            number(median(&found.switch(side, containers, processes)))
        };
        let mut row = vec![containers.to_string(), processes.to_string()];
        row.extend(PLAIN.into_iter().chain(CHARGING).map(of));
        row.extend([SIMPLE, EEVDF].map(|under| format!("{:.3}", found.ratio(FIEF, under, (containers, processes)))));
        table.row(row);
    }
    table.note("Medians over rounds; the first two sides are without Fief, and so without containers.");
    table
}

fn operations(found: &Found) -> Table {
    let mut head = vec!["operation"];
    head.extend(PLAIN.iter().chain(&CHARGING).map(|side| side.title()));
    let mut table = Table::new("What else processes do, us", &head);
    for name in OPERATIONS {
        let us = |side| number(median(&found.operation(side, name)) / 1000.0);
        table.row([described(name).to_owned()].into_iter().chain(PLAIN.into_iter().chain(CHARGING).map(us)));
    }
    table
}

fn plots(found: &Found) -> Vec<Plot> {
    let cells = found.cells();
    let mut numbers: Vec<usize> = cells.iter().map(|cell| cell.0).collect();
    numbers.dedup();
    let series = |side: Side, containers: usize, name: String| {
        let at = cells.iter().filter(|cell| cell.0 == containers || !side.charging).map(|cell| cell.1);
        let containers = if side.charging { containers } else { 0 };
        let mut at: Vec<_> = at.collect();
        at.sort_unstable();
        at.dedup();
        Series::of(name, at.into_iter().map(|processes| (processes as f64, found.switch(side, containers, processes))))
    };
    let plot = |name: &str, title: &str, series| Plot {
        name: name.to_owned(),
        title: title.to_owned(),
        x: "processes".to_owned(),
        y: "ns".to_owned(),
        series,
        logarithmic: false,
    };
    let Some(&most) = numbers.last() else { return Vec::new() };
    let sides = PLAIN.into_iter().chain(CHARGING).map(|side| series(side, most, side.title().to_owned())).collect();
    let fief = numbers.iter().map(|&number| series(FIEF, number, format!("{number} containers"))).collect();
    vec![
        plot("sides", &format!("A context switch, {most} containers"), sides),
        plot("containers", "A context switch under Fief's scheduler", fief),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(switches: &[(Side, usize, usize, f64)]) -> Found {
        let switches =
            switches.iter().map(|&(side, containers, processes, ns)| Switch { side, containers, processes, ns });
        Found { switches: switches.collect(), ..Found::default() }
    }

    #[test]
    fn the_figure_is_that_of_the_worst_ring() {
        let found = found(&[
            (PLAIN[0], 0, 2, 50.0),
            (EEVDF, 1, 2, 100.0),
            (SIMPLE, 1, 2, 110.0),
            (FIEF, 1, 2, 115.5),
            (EEVDF, 96, 2, 100.0),
            (SIMPLE, 96, 2, 150.0),
            (FIEF, 96, 2, 120.0),
        ]);
        let figures = figures(&found);
        let figure = |name: &str| figures.get(name).expect("a figure");
        assert!((figure("vs_scx_simple") - 1.05).abs() < 1e-9);
        assert!((figure("vs_eevdf") - 1.2).abs() < 1e-9);
        assert!((figure("scx_simple_vs_eevdf") - 1.5).abs() < 1e-9);
        assert_eq!([figure("fief_fewest_ns"), figure("fief_most_ns")], [115.5, 120.0]);
    }

    #[test]
    fn a_ratio_is_within_a_round() {
        let rounds = [1.0, 3.0, 1.0].map(|slow| [(EEVDF, 1, 2, 100.0 * slow), (FIEF, 1, 2, 110.0 * slow)]);
        assert!((found(&rounds.concat()).ratio(FIEF, EEVDF, (1, 2)) - 1.1).abs() < 1e-9);
    }

    #[test]
    fn a_ring_that_was_not_measured_misses_its_bound() {
        let found = found(&[(EEVDF, 1, 2, 100.0), (SIMPLE, 1, 2, 100.0), (FIEF, 1, 2, 100.0), (FIEF, 1, 8, 100.0)]);
        let missed: Vec<_> = figures(&found).missed().map(|figure| figure.name.clone()).collect();
        assert_eq!(missed, ["vs_scx_simple", "vs_eevdf"]);
        assert!(figures(&Found::default()).get("vs_eevdf").is_some_and(f64::is_nan));
    }

    #[test]
    fn operations_are_compared_within_a_round() {
        let mut found = Found::default();
        for (slow, side, us) in [(1.0, EEVDF, 10.0), (1.0, FIEF, 12.0), (4.0, EEVDF, 10.0), (4.0, FIEF, 12.0)] {
            found.operations.push((side, "fork".to_owned(), us * slow));
        }
        assert!((figures(&found).get("fork_vs_eevdf").expect("a figure") - 1.2).abs() < 1e-9);
    }

    #[test]
    fn every_table_and_plot_can_be_drawn() {
        let found = found(&[(PLAIN[0], 0, 2, 50.0), (EEVDF, 1, 2, 100.0), (FIEF, 1, 2, 115.5), (FIEF, 96, 2, 120.0)]);
        let outcome = of(&found);
        assert_eq!(outcome.tables[0].rows.len(), 2);
        assert_eq!(outcome.plots.iter().map(|plot| plot.series.len()).collect::<Vec<_>>(), [5, 2]);
    }
}
