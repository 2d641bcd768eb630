// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `cpu-shares`: fixed shares, weights, both together, and shares of shares, while every container wants more than it has.
//!
//! On a machine with two CPUs also containers with unequal numbers of processes, of which one may be less than its part has room for.
//! With `--vm` these have a guest of their own, whose CPUs run at the same time and whose clock is this machine's.
//! Beside each, what the kernel's own scheduler makes of cgroups whose weights are in the proportion of what is given.

use std::time::Duration;

use serde_json::json;

use super::groups::Groups;
use super::load::{Load, Stand, error_points, means, windows};
use crate::effort::is_least;
use crate::error::{Context, Error, Kind, Result};
use crate::experiments::Outcome;
use crate::figures::Bound;
use crate::plot::Plot;
use crate::progress::Progress;
use crate::statistics::median;
use crate::table::Table;
use crate::vm;

/// A window where each step is only tried.
const LEAST: Duration = Duration::from_millis(100);

const ABOUT: &str = "Containers whose processes only compute, on all CPUs of the machine. Each must get its share, or its part \
of the rest by its weight, of the whole run and of each second; on two CPUs however many processes it has.";

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

/// On two CPUs, of which a process has one at most.
const UNEQUAL: [Case; 3] = [
    Case {
        name: "shares 50/30/20, 2, 5 and 1 processes",
        loads: &[
            load("a", "cpu.share = \"50%\"", 2, 50.0),
            load("b", "cpu.share = \"30%\"", 5, 30.0),
            load("c", "cpu.share = \"20%\"", 1, 20.0),
        ],
    },
    Case {
        name: "weights 1:1, 1 and 7 processes",
        // a share turns the scheduler on
        loads: &[load("a", "", 1, 50.0), load("b", "", 7, 50.0), load("unused", "cpu.share = \"1%\"", 0, 0.0)],
    },
    Case {
        name: "weights 1:2:1, 1, 3 and 6 processes",
        loads: &[
            load("a", "cpu.weight = 100", 1, 25.0),
            load("b", "cpu.weight = 200", 3, 50.0),
            load("c", "cpu.weight = 100", 6, 25.0),
        ],
    },
];

/// What divides the CPU.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Way {
    Fief,
    Groups,
}

impl Way {
    fn name(self) -> &'static str {
        match self {
            Way::Fief => "Fief",
            Way::Groups => "EEVDF, cgroup weights",
        }
    }

    /// Of its figures.
    fn prefix(self) -> &'static str {
        match self {
            Way::Fief => "",
            Way::Groups => "cgroup_",
        }
    }
}

/// Cases that are measured alike.
struct Part {
    cases: &'static [Case],
    windows: usize,
    length: Duration,
    /// Adds their figures.
    figures: fn(Way, &Part, &Windows, &mut Outcome),
}

/// What each container had by window, of each case.
type Windows = Vec<Vec<Vec<f64>>>;

impl Part {
    /// One process at a time or, in a guest of their own, processes that run at the same time.
    fn exact(quick: bool) -> Part {
        let second = Duration::from_secs(1);
        let (cases, windows, length) = match (is_least(), quick) {
            // two levels
            (true, _) => (&CASES[3..], 1, LEAST),
            (_, true) => (&CASES[..], 5, second),
            _ => (&CASES[..], 20, second),
        };
        Part { cases, windows, length, figures: figures_of_exact }
    }

    fn unequal(quick: bool) -> Part {
        let seconds = Duration::from_secs(4);
        let (cases, windows, length) = match (is_least(), quick) {
            (true, _) => (&UNEQUAL[..1], 1, LEAST),
            (_, true) => (&UNEQUAL[..], 3, seconds),
            _ => (&UNEQUAL[..], 5, seconds),
        };
        Part { cases, windows, length, figures: figures_of_unequal }
    }

    fn by_fief(&self, stand: &mut Stand, progress: &mut Progress) -> Result<Windows> {
        let case = |case: &Case| {
            progress.step(case.name)?;
            stand.windows(case.loads, self.windows, self.length)
        };
        self.cases.iter().map(case).collect()
    }

    fn by_groups(&self, progress: &mut Progress) -> Result<Windows> {
        let case = |case: &Case| {
            progress.step(&format!("{}, {}", case.name, Way::Groups.name()))?;
            let groups = Groups::new(case.loads.iter().map(|load| group(load.container)))?;
            for load in case.loads {
                // the smallest is 1
                groups.weigh(&group(load.container), (load.expected * 100.0).round().max(1.0) as u32)?;
            }
            let put = |process, container: &str| groups.put(process, &group(container));
            windows(case.loads, self.windows, self.length, put)
        };
        self.cases.iter().map(case).collect()
    }

    fn errors<'a>(&'a self, windows: &'a Windows) -> impl Iterator<Item = (&'a Case, Vec<f64>)> {
        let errors = |(case, windows): (&'a Case, &Vec<Vec<f64>>)| {
            (case, windows.iter().map(|window| error_points(window, case.loads)).collect())
        };
        self.cases.iter().zip(windows).map(errors)
    }
}

fn group(container: &str) -> String {
    format!("lab-{}", container.replace('/', "-"))
}

fn worst(of: impl Iterator<Item = f64>) -> f64 {
    of.fold(0.0, f64::max)
}

pub fn run(quick: bool) -> Result<Outcome> {
    let cpus = std::thread::available_parallelism().context("count the CPUs")?.get();
    let exact = (cpus == 1 || !vm::is_inside()).then(|| Part::exact(quick));
    let unequal = (cpus == 2).then(|| Part::unequal(quick));
    let parts: Vec<Part> = exact.into_iter().chain(unequal).collect();
    if parts.is_empty() {
        return Err(Error::new(Kind::Missing, format!("a guest with {cpus} CPUs has no part of cpu-shares")));
    }
    let mut progress = Progress::new("cpu-shares", 2 * parts.iter().map(|part| part.cases.len()).sum::<usize>());
    let mut outcome = Outcome { name: "cpu-shares", about: ABOUT.to_owned(), ..Outcome::default() };
    let mut stand = Stand::default();
    let by_fief = parts.iter().map(|part| part.by_fief(&mut stand, &mut progress)).collect::<Result<Vec<_>>>()?;
    stand.end()?;
    let by_groups = parts.iter().map(|part| part.by_groups(&mut progress)).collect::<Result<Vec<_>>>();
    let mut table = Table::new(
        "CPU time in percent of the machine",
        &["case", "by", "container", "given", "got", "farthest window"],
    );
    let mut found = vec![(Way::Fief, by_fief)];
    match by_groups {
        Ok(windows) => found.push((Way::Groups, windows)),
        Err(error) if error.kind() == Kind::Missing => table.note(format!("{}: {error}", Way::Groups.name())),
        Err(error) => return Err(error),
    }
    for (way, windows) in &found {
        for (part, windows) in parts.iter().zip(windows) {
            tell(*way, part, windows, &mut table, &mut outcome);
            (part.figures)(*way, part, windows, &mut outcome);
        }
    }
    let series = parts.iter().zip(&found[0].1).flat_map(|(part, windows)| part.errors(windows));
    let series = series.map(|(case, errors)| (case.name.to_owned(), errors));
    let title = "Largest distance of a container from what it is given, in each window";
    let plot = Plot::of_rounds("windows", title, "percent of the machine", series);
    outcome.plots.push(Plot { x: "window".to_owned(), ..plot });
    outcome.tables.push(table);
    Ok(outcome)
}

fn tell(way: Way, part: &Part, windows: &Windows, table: &mut Table, outcome: &mut Outcome) {
    for (case, windows) in part.cases.iter().zip(windows) {
        let found = means(windows);
        for (at, load) in case.loads.iter().enumerate().filter(|(_, load)| load.processes > 0) {
            let farthest = windows.iter().map(|window| window[at] - load.expected);
            let farthest = farthest.fold(0f64, |far, one| if one.abs() > far.abs() { one } else { far });
            table.row([
                case.name.to_owned(),
                way.name().to_owned(),
                load.container.to_owned(),
                format!("{:.2}", load.expected),
                format!("{:.2}", found[at]),
                format!("{farthest:+.2}"),
            ]);
            outcome.measurements.push(json!({
                "case": case.name, "by": way.name(), "container": load.container, "processes": load.processes,
                "given_percent": load.expected, "percent": found[at],
                "windows_percent": windows.iter().map(|window| window[at]).collect::<Vec<_>>(),
            }));
        }
    }
}

fn figures_of_exact(way: Way, part: &Part, windows: &Windows, outcome: &mut Outcome) {
    let runs = part.cases.iter().zip(windows).map(|(case, windows)| error_points(&means(windows), case.loads));
    let seconds = part.errors(windows).flat_map(|(_, errors)| errors);
    let errors = [
        ("worst_error_points", worst(runs), 0.1, "over each run"),
        ("window_error_points", worst(seconds), 1.0, "in one second"),
    ];
    for (name, points, most, over) in errors {
        put(way, name, points, most, over, "2 computing processes in each container", outcome);
    }
}

fn figures_of_unequal(way: Way, part: &Part, windows: &Windows, outcome: &mut Outcome) {
    let points = worst(part.errors(windows).map(|(_, errors)| median(&errors)));
    let over = "median of the windows of the worst case";
    put(way, "smp_error_points", points, 2.0, over, "two CPUs, 1 to 7 computing processes in each container", outcome);
}

/// What the kernel's own scheduler does is not bound.
fn put(way: Way, name: &str, points: f64, most: f64, over: &str, load: &str, outcome: &mut Outcome) {
    let name = format!("{}{name}", way.prefix());
    let figure = match way {
        Way::Fief => outcome.figures.must(name, points, Bound::AtMost(most)),
        Way::Groups => outcome.figures.add(name, points),
    };
    let what = format!("largest distance of a container from what it is given, {over}; by {}", way.name());
    figure.of(what, "percent of the machine", load);
}
