// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `cpu-shares`: fixed shares, weights, both together, and shares of shares, while every container wants more than it has.

use std::time::Duration;

use serde_json::json;

use super::load::{Load, Stand, error_points, means};
use crate::effort::is_least;
use crate::error::Result;
use crate::experiments::Outcome;
use crate::figures::Bound;
use crate::plot::Plot;
use crate::progress::Progress;
use crate::table::Table;

const ABOUT: &str = "Containers whose processes only compute, on all CPUs of the machine. Each must get its share, or its part \
of the rest by its weight, of the whole run and of each second.";

const fn load(container: &'static str, given: &'static str, processes: usize, expected: f64) -> Load {
    Load { container, given, processes, expected }
}

struct Case {
    name: &'static str,
    loads: &'static [Load],
}

const CASES: [Case; 4] = [
    Case {
        name: "shares 16/32/48/4",
        loads: &[
            load("a", "cpu.share = \"16%\"", 2, 16.0),
            load("b", "cpu.share = \"32%\"", 2, 32.0),
            load("c", "cpu.share = \"48%\"", 2, 48.0),
            load("d", "cpu.share = \"4%\"", 2, 4.0),
        ],
    },
    Case {
        name: "weights 1:2:4",
        loads: &[
            load("a", "cpu.weight = 100", 2, 100.0 / 7.0),
            load("b", "cpu.weight = 200", 2, 200.0 / 7.0),
            load("c", "cpu.weight = 400", 2, 400.0 / 7.0),
        ],
    },
    Case {
        name: "share 40, weights 1:2",
        loads: &[
            load("a", "cpu.share = \"40%\"", 2, 40.0),
            load("b", "cpu.weight = 100", 2, 20.0),
            load("c", "cpu.weight = 200", 2, 40.0),
        ],
    },
    Case {
        name: "two levels",
        loads: &[
            load("g", "cpu.share = \"50%\"", 0, 0.0),
            load("g/x", "cpu.share = \"35%\"", 2, 35.0),
            load("g/y", "cpu.share = \"15%\"", 2, 15.0),
            load("h", "cpu.share = \"50%\"", 0, 0.0),
            load("h/p", "cpu.weight = 100", 2, 12.5),
            load("h/q", "cpu.weight = 300", 2, 37.5),
        ],
    },
];

pub fn run(quick: bool) -> Result<Outcome> {
    let seconds = match (is_least(), quick) {
        (true, _) => 1,
        (_, true) => 5,
        _ => 20,
    };
    let mut progress = Progress::new("cpu-shares", CASES.len());
    let mut outcome = Outcome { name: "cpu-shares", about: ABOUT.to_owned(), ..Outcome::default() };
    let mut table =
        Table::new("CPU time in percent of the machine", &["case", "container", "given", "got", "worst second"]);
    let mut stand = Stand::default();
    let (mut worst, mut worst_window) = (0f64, 0f64);
    let mut series = Vec::new();
    for case in &CASES {
        progress.step(case.name)?;
        let windows = stand.windows(case.loads, seconds, Duration::from_secs(1))?;
        let found = means(&windows);
        worst = worst.max(error_points(&found, case.loads));
        let errors: Vec<f64> = windows.iter().map(|window| error_points(window, case.loads)).collect();
        worst_window = errors.iter().copied().fold(worst_window, f64::max);
        series.push((case.name.to_owned(), errors));
        for (at, load) in case.loads.iter().enumerate().filter(|(_, load)| load.processes > 0) {
            let farthest = windows.iter().map(|window| window[at] - load.expected);
            let farthest = farthest.fold(0f64, |far, one| if one.abs() > far.abs() { one } else { far });
            table.row([
                case.name.to_owned(),
                load.container.to_owned(),
                format!("{:.2}", load.expected),
                format!("{:.2}", found[at]),
                format!("{farthest:+.2}"),
            ]);
            outcome.measurements.push(json!({
                "case": case.name, "container": load.container, "given_percent": load.expected, "percent": found[at],
                "windows_percent": windows.iter().map(|window| window[at]).collect::<Vec<_>>(),
            }));
        }
    }
    stand.end()?;
    let errors = [
        ("worst_error_points", worst, 0.1, "over each run"),
        ("window_error_points", worst_window, 1.0, "in one second"),
    ];
    for (name, points, most, over) in errors {
        outcome.figures.must(name, points, Bound::AtMost(most)).of(
            format!("largest distance of a container from what it is given, {over}"),
            "percent of the machine",
            "2 computing processes in each container",
        );
    }
    let title = "Largest distance of a container from what it is given, in each second";
    let plot = Plot::of_rounds("windows", title, "percent of the machine", series);
    outcome.plots.push(Plot { x: "second".to_owned(), ..plot });
    outcome.tables.push(table);
    Ok(outcome)
}
