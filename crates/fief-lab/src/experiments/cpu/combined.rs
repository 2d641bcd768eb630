// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `combined`: a thread that serves two containers in turn has the CPU of both (its scheduler binding), until one of them is pruned
//! or the application resets it.

use std::time::{Duration, Instant};

use serde_json::json;

use super::load::{Spinner, Stand};
use super::require_one_cpu;
use super::serve::Server;
use crate::bench::First;
use crate::command::usage;
use crate::effort::is_least;
use crate::error::Result;
use crate::experiments::Outcome;
use crate::figures::Bound;
use crate::plot::Plot;
use crate::progress::Progress;
use crate::table::Table;

const ABOUT: &str = "One thread serves a container of 60 % and one of 5 % in turn, beside a process of another that has 35 % and wants \
all. It has the CPU of both, whichever it works for, and each is charged what it did for it. Then it serves the one of 5 % alone: once \
the other is pruned, or the thread has reset its scheduler binding, it has 5 of each 40 parts, and 5 of 100 where another thread asks \
for the 60.";

const WIDE: &str = "wide";
const NARROW: &str = "narrow";
const HOG: &str = "hog";
const CONTAINERS: [(&str, &str); 3] =
    [(WIDE, "cpu.share = \"60%\""), (NARROW, "cpu.share = \"5%\""), (HOG, "cpu.share = \"35%\"")];

/// Longer than a container counts that is not served any more.
const PRUNED: Duration = Duration::from_millis(1500);

/// How the thread came to serve the narrow container alone.
#[derive(Clone, Copy, PartialEq)]
enum Way {
    /// It serves both.
    Both,
    /// It has not served the other one for some time.
    Pruned,
    /// It has said so, just now.
    Reset,
}

struct Case {
    name: &'static str,
    way: Way,
    /// Another process wants what the wide container has.
    other: bool,
    expected: f64,
}

const CASES: [Case; 5] = [
    Case { name: "serves both", way: Way::Both, other: false, expected: 65.0 },
    Case { name: "after pruning", way: Way::Pruned, other: false, expected: 12.5 },
    Case { name: "after pruning, all wanted", way: Way::Pruned, other: true, expected: 5.0 },
    Case { name: "after a reset", way: Way::Reset, other: false, expected: 12.5 },
    Case { name: "after a reset, all wanted", way: Way::Reset, other: true, expected: 5.0 },
];

struct Plan {
    rounds: usize,
    /// How long the thread serves both before each window.
    settles: Duration,
    /// Of a window.
    length: Duration,
}

fn plan(quick: bool) -> Plan {
    let settles = Duration::from_millis(500);
    match (is_least(), quick) {
        (true, _) => Plan { rounds: 1, settles: Duration::from_millis(100), length: Duration::from_millis(100) },
        (_, true) => Plan { rounds: 2, settles, length: Duration::from_secs(2) },
        _ => Plan { rounds: 5, settles, length: Duration::from_secs(2) },
    }
}

struct Parties {
    server: Server,
    hog: Spinner,
    other: Spinner,
}

/// What was seen in one window.
struct Window {
    percent: f64,
    hog_percent: f64,
    /// Parts of the thread's time that the containers were charged, percent.
    charged: [f64; 2],
}

impl Parties {
    fn window(&mut self, case: &Case, plan: &Plan) -> Result<Window> {
        self.server.tell("serve 0 1")?;
        std::thread::sleep(plan.settles);
        match case.way {
            Way::Both => {}
            Way::Pruned => {
                self.server.tell("serve 1")?;
                std::thread::sleep(PRUNED);
            }
            Way::Reset => self.server.tell("forget 1")?,
        }
        if case.other {
            self.other.go_on()?;
        }
        let window = self.measure(plan.length)?;
        self.other.stop()?;
        Ok(window)
    }

    fn measure(&self, length: Duration) -> Result<Window> {
        let charged = || -> Result<[u64; 2]> {
            let all = usage()?;
            let of = |name: &str| all.iter().find(|one| one.container == name).map_or(0, |one| one.thread_ns);
            Ok([of(WIDE), of(NARROW)])
        };
        let (charged_before, before, hog_before, begin) =
            (charged()?, self.server.used()?, self.hog.used()?, Instant::now());
        std::thread::sleep(length);
        let (after, hog_after, passed) = (self.server.used()?, self.hog.used()?, begin.elapsed().as_secs_f64());
        let charged_after = charged()?;
        let parts = [0, 1].map(|at| (charged_after[at] - charged_before[at]) as f64);
        let sum: f64 = parts.iter().sum();
        Ok(Window {
            percent: (after - before).as_secs_f64() * 100.0 / passed,
            hog_percent: (hog_after - hog_before).as_secs_f64() * 100.0 / passed,
            charged: parts.map(|part| part * 100.0 / sum),
        })
    }
}

pub fn run(quick: bool) -> Result<Outcome> {
    require_one_cpu("combined", |cpus| format!("one thread cannot have 65 % of {cpus} CPUs"))?;
    let plan = plan(quick);
    let mut progress = Progress::new("combined", plan.rounds * CASES.len());
    let mut outcome = Outcome { name: "combined", about: ABOUT.to_owned(), ..Outcome::default() };
    let mut stand = Stand::default();
    stand.give(&CONTAINERS)?;
    let mut parties =
        Parties { server: Server::start(&[WIDE, NARROW])?, hog: Spinner::start(HOG)?, other: Spinner::start(WIDE)? };
    parties.hog.go_on()?;
    // the containers have all of the CPU, and who asks what they were charged would have a hundredth of it
    let first = First::take()?;
    let mut got: Vec<Vec<f64>> = CASES.iter().map(|_| Vec::new()).collect();
    let mut charged: Vec<f64> = Vec::new();
    for round in 0..plan.rounds {
        for (case, got) in CASES.iter().zip(&mut got) {
            progress.step(&format!("round {}, {}", round + 1, case.name))?;
            let window = parties.window(case, &plan)?;
            got.push(window.percent);
            if case.way == Way::Both {
                charged.push(window.charged[0]);
            }
            outcome.measurements.push(json!({
                "round": round, "case": case.name, "expected_percent": case.expected, "percent": window.percent,
                "hog_percent": window.hog_percent, "charged_percent": window.charged,
            }));
        }
    }
    let Parties { server, hog, other } = parties;
    drop((hog, other, first));
    server.end()?;
    stand.end()?;
    let mean = |of: &[f64]| of.iter().sum::<f64>() / of.len() as f64;
    let mut table =
        Table::new("CPU time of the thread in percent of the machine", &["case", "expected", "got", "worst window"]);
    let mut worst = 0f64;
    for (case, got) in CASES.iter().zip(&got) {
        let farthest = got.iter().map(|one| one - case.expected);
        let farthest = farthest.fold(0f64, |far, one| if one.abs() > far.abs() { one } else { far });
        worst = worst.max((mean(got) - case.expected).abs());
        table.row([
            case.name.to_owned(),
            format!("{:.2}", case.expected),
            format!("{:.2}", mean(got)),
            format!("{farthest:+.2}"),
        ]);
    }
    let load =
        "a thread over a container of 60 % and one of 5 %, in turns of 1 ms, beside a process of one that has 35 %";
    outcome.figures.must("worst_error_points", worst, Bound::AtMost(1.0)).of(
        "largest distance of the thread from what it must have: 65 while it serves both, and the part of the one of 5 % after pruning or \
         a reset, which is 5 of 40 where nobody wants the 60, and 5 of 100 where another thread does",
        "percent of the machine",
        load,
    );
    for (name, case) in [("combined_percent", 0), ("pruned_percent", 2), ("reset_percent", 4)] {
        let said = format!("what the thread got, {}", CASES[case].name);
        outcome.figures.add(name, mean(&got[case])).of(said, "percent of the machine", load);
    }
    outcome.figures.must("charged_error_points", (mean(&charged) - 50.0).abs(), Bound::AtMost(1.0)).of(
        "distance of what the container of 60 % is charged from half of the thread's time, all of which it works in equal turns",
        "percent of the thread's time",
        load,
    );
    let series = CASES.iter().zip(got).map(|(case, got)| (case.name.to_owned(), got));
    let title = "CPU time of a thread that serves two containers";
    outcome.plots.push(Plot::of_rounds("combined", title, "percent of the machine", series));
    outcome.tables.push(table);
    Ok(outcome)
}
