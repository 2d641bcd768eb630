// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `rebind`: a thread that works for another container up to a million times a second, by its ring (Banga et al. 1999,
//! section 4.2, whose binding is a system call).
//!
//! A worker under `fief run` divides its time among its containers in parts that it knows, and holds what Fief has charged against
//! what it has measured itself. Then it measures what one rebinding costs.

mod worker;

use std::io::{BufRead, BufReader};
use std::process::Stdio;

use fief_testkit::Process;
use serde::{Deserialize, Serialize};
use serde_json::json;

use crate::command::{self, DOWN, PolicyFile, fief};
use crate::effort::is_least;
use crate::error::{Context, Error, Kind, Result};
use crate::experiments::Outcome;
use crate::experiments::primitives::Costs;
use crate::figures::{Bound, Figures};
use crate::plot::{Plot, Series};
use crate::progress::Progress;
use crate::statistics::median;
use crate::table::{Table, number};

const ABOUT: &str = "One thread works for several containers in turn, in known parts, and says so in its ring. Its own clock \
tells what each must be charged; time in which it did not have the CPU is left out. Then the cost of one rebinding, to the thread and \
with what the kernel does with the record.";

const POLICY: &str = "version = 1\n\n[container.lab]\n";

/// Parts of the work of each container.
const DIVISIONS: [&[u32]; 2] = [&[3, 7], &[1, 2, 4, 9]];
/// Rebindings a second.
const RATES: [u32; 7] = [1_000, 3_000, 10_000, 30_000, 100_000, 300_000, 1_000_000];

/// One line of the worker: a division at a rate.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Divided {
    parts: Vec<u32>,
    wanted_rate: u32,
    /// Rebindings a second, as they came.
    rate: f64,
    worked_ns: Vec<u64>,
    charged_ns: Vec<u64>,
}

impl Divided {
    /// The largest distance of a container's part of the charges from its part of the work.
    fn error_points(&self) -> f64 {
        let part = |of: &[u64], at: usize| of[at] as f64 * 100.0 / of.iter().sum::<u64>() as f64;
        let error = |at| (part(&self.charged_ns, at) - part(&self.worked_ns, at)).abs();
        (0..self.parts.len())
            .map(error)
            .fold(0.0, |worst, error| if error > worst || error.is_nan() { error } else { worst })
    }

    /// By how much the charges exceed the work, percent.
    fn excess_percent(&self) -> f64 {
        let sum = |of: &[u64]| of.iter().sum::<u64>() as f64;
        (sum(&self.charged_ns) / sum(&self.worked_ns) - 1.0) * 100.0
    }
}

/// What the worker says in one round.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Round {
    divided: Vec<Divided>,
    costs: Costs,
}

/// The child's main.
pub fn child_main(arguments: &[String]) -> Result<()> {
    let milliseconds = arguments.first().and_then(|word| word.parse().ok());
    let milliseconds = milliseconds.ok_or_else(|| Error::new(Kind::Usage, "a worker takes its milliseconds"))?;
    let rates: Result<Vec<u32>> = arguments[1..]
        .iter()
        .map(|word| word.parse().map_err(|_| Error::new(Kind::Usage, format!("{word} is no rate"))))
        .collect();
    worker::main(milliseconds, &rates?)
}

pub fn run(quick: bool) -> Result<Outcome> {
    command::can_run()?;
    let (rounds, rates): (_, &[u32]) = match quick {
        _ if is_least() => (1, &[1_000, 1_000_000]),
        true => (3, &[1_000, 10_000, 100_000, 1_000_000]),
        false => (7, &RATES),
    };
    let milliseconds = if is_least() { 20 } else { 1000 };
    let mut progress = Progress::new("rebind", rounds);
    let policy = PolicyFile::new(POLICY)?;
    let mut measured = Vec::new();
    for round in 0..rounds {
        progress.step(&format!("round {}", round + 1))?;
        measured.push(round_of(&policy, milliseconds, rates)?);
    }
    Ok(outcome(&measured, rates))
}

fn round_of(policy: &PolicyFile, milliseconds: u32, rates: &[u32]) -> Result<Round> {
    let mut command = fief()?;
    command.arg("run").arg(policy.path()).arg("--").arg(command::own()?);
    command.args(["lab-rebind", &milliseconds.to_string()]).args(rates.iter().map(u32::to_string));
    command.stdin(Stdio::null()).stdout(Stdio::piped());
    let mut worker = Process::start(command)?;
    let mut answers = BufReader::new(worker.child().stdout.take().expect("it was piped"));
    let mut line = String::new();
    answers.read_line(&mut line).context("hear the worker")?;
    let round = serde_json::from_str(&line).context("read what the worker says (its own words are above)")?;
    worker.finish(DOWN)?;
    Ok(round)
}

/// Of all rounds: medians, so that one in which somebody else had the machine says nothing.
fn outcome(rounds: &[Round], rates: &[u32]) -> Outcome {
    let mut table = Table::new("Charges against work", &["containers", "rebindings/s", "error, points", "excess, %"]);
    let mut figures = Figures::default();
    let (mut worst, mut series) = (0f64, Vec::new());
    for (which, parts) in DIVISIONS.iter().enumerate() {
        let mut points = Vec::new();
        for (at, rate) in rates.iter().enumerate() {
            let of_rounds: Vec<_> = rounds.iter().map(|round| &round.divided[which * rates.len() + at]).collect();
            let errors: Vec<f64> = of_rounds.iter().map(|divided| divided.error_points()).collect();
            let excess: Vec<f64> = of_rounds.iter().map(|divided| divided.excess_percent()).collect();
            let came: Vec<f64> = of_rounds.iter().map(|divided| divided.rate).collect();
            let error = median(&errors);
            worst = if error > worst || error.is_nan() { error } else { worst };
            table.row([
                parts_text(parts),
                number(median(&came)),
                format!("{error:.3}"),
                format!("{:+.2}", median(&excess)),
            ]);
            points.push((f64::from(*rate), errors));
        }
        series.push(Series::of(parts_text(parts), points));
    }
    let load = "one thread that computes, on one CPU";
    figures.must("worst_error_points", worst, Bound::AtMost(0.5)).of(
        "largest distance of a container's part of the charges from its part of the work, over all rates and divisions",
        "percent of the work",
        load,
    );
    let cost = |name: &str| -> Vec<f64> { rounds.iter().map(|round| round.costs.of(name)).collect() };
    let of_getppid = |name: &str| median(&crate::statistics::ratios(&cost(name), &cost("getppid")));
    let meaning = "what a thread does for one rebinding by its ring, of the cheapest system call";
    let ring = of_getppid("record");
    // an emulated processor counts instructions, and its counter costs more than a call
    match crate::vm::is_inside() {
        true => figures.add("ring_vs_getppid", ring),
        false => figures.must("ring_vs_getppid", ring, Bound::AtMost(0.15)),
    }
    .of(meaning, "ratio", load);
    let parts = [
        (
            "ring_and_kernel_vs_getppid",
            "ring",
            "the same with its part of the flush and of the division by the kernel, of the cheapest system call",
        ),
        (
            "ring_vs_getppid_floor",
            "counter",
            "a look at the processor's counter, without which no record is, of the cheapest system call",
        ),
        ("bind_vs_getppid", "bind", "one rebinding by a call, of the cheapest system call"),
    ];
    for (name, which, metric) in parts {
        figures.add(name, of_getppid(which)).of(metric, "ratio", load);
    }
    let mut costs = Table::new("Cost of a rebinding, ns", &["way", "least of a round, median"]);
    for (name, title) in [
        ("record", "by the ring, for the thread"),
        ("ring", "by the ring, with the kernel's part"),
        ("bind", "by a call"),
        ("counter", "a look at the processor's counter"),
        ("getppid", "getppid"),
    ] {
        costs.row([title.to_owned(), number(median(&cost(name)))]);
        figures.add(format!("{name}_ns"), median(&cost(name))).of(format!("least cost of: {title}"), "ns", load);
    }
    let measurements = rounds.iter().enumerate().map(|(round, of)| json!({ "round": round, "measured": of })).collect();
    let plot = Plot {
        name: "error".to_owned(),
        title: "Charges against work".to_owned(),
        x: "rebindings a second".to_owned(),
        y: "points".to_owned(),
        series,
        logarithmic: false,
    };
    let about = ABOUT.to_owned();
    Outcome { name: "rebind", about, tables: vec![table, costs], plots: vec![plot], measurements, figures }
}

fn parts_text(parts: &[u32]) -> String {
    parts.iter().map(u32::to_string).collect::<Vec<_>>().join(":")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_error_is_of_parts_and_not_of_sums() {
        let divided = Divided {
            parts: vec![3, 7],
            wanted_rate: 1,
            rate: 1.0,
            worked_ns: vec![300, 700],
            charged_ns: vec![620, 1380],
        };
        assert!((divided.error_points() - 1.0).abs() < 1e-9);
        assert!((divided.excess_percent() - 100.0).abs() < 1e-9);
        let nothing = Divided { charged_ns: vec![0, 0], ..divided };
        assert!(nothing.error_points().is_nan());
    }
}
