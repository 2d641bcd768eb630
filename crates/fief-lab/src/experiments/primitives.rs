// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Table 1 of the resource container paper: what each operation on a container costs, beside what the kernel's own
//! cheapest call, a bare socket and a cgroup cost.
//!
//! The operations run in a worker under `fief run`. Beside it runs a stranger, a process that nobody manages: once
//! while the worker keeps Fief in force and once after it is down, so that a tax on strangers shows. Times are minima
//! of many batches, because whatever disturbs a batch only adds; the figures are medians over rounds.

mod bare;
mod batch;
mod managed;

use crate::command::{self, DOWN, PolicyFile};
use crate::effort::is_least;
use crate::error::{Context, Error, Kind, Result};
use crate::experiments::Outcome;
use crate::figures::{Bound, Figures};
use crate::plot::Plot;
use crate::progress::Progress;
use crate::statistics::{Spread, median, ratios};
use crate::table::{Table, number};
pub use batch::{BATCHES, Costs};
use fief_testkit::{Cgroup, NetNs, Process};
pub use managed::measure_bind;
use serde::Serialize;
use serde_json::{Value, json};
use std::io::{BufRead, BufReader, Write};
use std::process::Stdio;

const ABOUT: &str = "What an application pays for each operation on a container: one socket option, in a thread of a \
managed unit, beside the cheapest system call, a bare socket, and the same move with a cgroup.";

/// The worker's home; what it makes is below.
const POLICY: &str = "version = 1\n\n[container.lab]\n";

/// The child's main.
pub fn child_main(arguments: &[String]) -> Result<()> {
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match words.as_slice() {
        ["managed"] => managed::main(),
        ["bare", cgroup] => bare::main(std::path::Path::new(cgroup)),
        _ => Err(Error::new(Kind::Usage, "a worker is `managed`, or `bare` with a cgroup")),
    }
}

/// The costs of one round, in ns.
#[derive(Debug)]
struct Round {
    managed: Costs,
    /// The stranger while Fief is in force for somebody else, and after.
    beside: Costs,
    down: Costs,
}

pub fn run(quick: bool) -> Result<Outcome> {
    command::can_run()?;
    let rounds = match quick {
        _ if is_least() => 1,
        true => 5,
        false => 15,
    };
    let mut progress = Progress::new("primitives", 3 * rounds);
    let namespace = NetNs::new("primitives")?;
    let policy = PolicyFile::new(POLICY)?;
    let cgroup = Cgroup::new("threads")?;
    let measured: Vec<Round> =
        (0..rounds).map(|round| round_of(round, &namespace, &policy, &cgroup, &mut progress)).collect::<Result<_>>()?;
    Ok(outcome(&measured))
}

fn round_of(
    round: usize,
    namespace: &NetNs,
    policy: &PolicyFile,
    cgroup: &Cgroup,
    progress: &mut Progress,
) -> Result<Round> {
    progress.step(&format!("round {}, a managed worker", round + 1))?;
    let program = command::own()?;
    let words = ["lab-primitives", "managed"].map(Into::into);
    let mut command = policy.run(namespace, program, words.into())?;
    command.stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut worker = Process::start(command)?;
    // Kept open: the worker, and with it Fief, ends when the pipe does.
    let input = worker.child().stdin.take();
    let mut answers = BufReader::new(worker.child().stdout.take().expect("it was piped"));
    let managed = answer(&mut answers)?;
    progress.step(&format!("round {}, a stranger beside it", round + 1))?;
    let beside = bare(cgroup)?;
    drop(input);
    worker.finish(DOWN)?;
    progress.step(&format!("round {}, the stranger alone", round + 1))?;
    Ok(Round { managed, beside, down: bare(cgroup)? })
}

/// Runs the stranger to its end.
fn bare(cgroup: &Cgroup) -> Result<Costs> {
    let mut command = command::child("lab-primitives")?;
    command.arg("bare").arg(cgroup.path()).stdin(Stdio::null()).stdout(Stdio::piped());
    let output = Process::start(command)?.finish(DOWN)?;
    answer(&mut output.stdout.as_slice())
}

fn answer(lines: &mut impl BufRead) -> Result<Costs> {
    let mut line = String::new();
    lines.read_line(&mut line).context("hear the worker")?;
    serde_json::from_str(&line).context("read the worker's costs (its own words are above)")
}

/// Writes the costs as the one line that the parent reads.
pub fn tell<T: Serialize>(costs: &T) -> Result<()> {
    let text = serde_json::to_string(costs).context("write down the costs")?;
    let mut output = std::io::stdout();
    writeln!(output, "{text}").and_then(|()| output.flush()).context("tell the costs")
}

/// Of every figure.
const LOAD: &str = "one thread, nothing else; a pair on two CPUs where it is named";

/// Its name, what it is, and who measures it.
type Operation = (&'static str, &'static str, fn(&Round) -> &Costs);

const OPERATIONS: [Operation; 15] = [
    ("getppid", "getppid, the cheapest call", |round| &round.managed),
    ("bind", "bind the thread", |round| &round.managed),
    ("get_binding", "ask for the thread's binding", |round| &round.managed),
    ("create_destroy", "create and destroy a container", |round| &round.managed),
    ("usage", "read a container's usage", |round| &round.managed),
    ("get_attributes", "read its attributes", |round| &round.managed),
    ("set_attribute", "set an attribute", |round| &round.managed),
    ("pass", "pass it to another process and close", |round| &round.managed),
    ("open_binding", "open the thread's container and close", |round| &round.managed),
    ("bind_pair_alone", "bind and unbind, one thread", |round| &round.managed),
    ("bind_pair_contended", "the same on two CPUs, one container", |round| &round.managed),
    ("socket_managed", "a bare socket in a managed unit", |round| &round.managed),
    ("socket", "a bare socket, unmanaged", |round| &round.down),
    ("cgroup_threads", "write to cgroup.threads", |round| &round.down),
    ("setsockopt", "a stranger's setsockopt, Fief down", |round| &round.down),
];

fn outcome(rounds: &[Round]) -> Outcome {
    let mut table = Table::new("Cost of an operation, ns", &["operation", "least", "median", "quartiles"]);
    for (name, title, who) in OPERATIONS {
        let costs: Vec<f64> = rounds.iter().map(|round| who(round).of(name)).collect();
        let spread = Spread::of(&costs);
        let least = costs.iter().copied().fold(f64::INFINITY, f64::min);
        let quartiles = format!("{} - {}", number(spread.low), number(spread.high));
        table.row([title.to_owned(), number(least), number(spread.median), quartiles]);
    }
    Outcome {
        name: "primitives",
        about: ABOUT.to_owned(),
        tables: vec![table],
        plots: vec![plot(rounds)],
        measurements: rounds.iter().enumerate().map(measurement).collect(),
        figures: figures(rounds),
    }
}

/// Those that the figures compare.
fn plot(rounds: &[Round]) -> Plot {
    let compared = ["getppid", "bind", "cgroup_threads", "create_destroy", "socket", "setsockopt"];
    let chosen = OPERATIONS.into_iter().filter(|(name, ..)| compared.contains(name));
    let series =
        chosen.map(|(name, title, who)| (title.to_owned(), rounds.iter().map(|round| who(round).of(name)).collect()));
    Plot { logarithmic: true, ..Plot::of_rounds("operations", "Cost of an operation", "ns", series) }
}

fn measurement((round, costs): (usize, &Round)) -> Value {
    json!({
        "experiment": "primitives",
        "round": round,
        "managed_ns": costs.managed,
        "beside_ns": costs.beside,
        "down_ns": costs.down,
    })
}

fn figures(rounds: &[Round]) -> Figures {
    let managed = |name: &str| -> Vec<f64> { rounds.iter().map(|round| round.managed.of(name)).collect() };
    let down = |name: &str| -> Vec<f64> { rounds.iter().map(|round| round.down.of(name)).collect() };
    let beside: Vec<f64> = rounds.iter().map(|round| round.beside.of("setsockopt")).collect();
    let ratio = |over: &[f64], under: &[f64]| median(&ratios(over, under));
    let mut figures = Figures::default();
    let mut must =
        |name: &str, value: f64, bound: Bound, metric: &str| figures.must(name, value, bound).of(metric, "ratio", LOAD);
    let bind = managed("bind");
    must(
        "bind_vs_getppid",
        ratio(&bind, &managed("getppid")),
        Bound::AtMost(4.0),
        "binding a thread to the other of two containers, of the cheapest system call",
    );
    must(
        "bind_vs_cgroup",
        ratio(&bind, &down("cgroup_threads")),
        Bound::AtMost(0.15),
        "binding a thread, of a write to cgroup.threads of the other of two cgroups",
    );
    must(
        "create_destroy_vs_socket",
        ratio(&managed("create_destroy"), &down("socket")),
        Bound::AtMost(2.5),
        "creating and destroying a container, of a bare datagram socket that a stranger makes and closes",
    );
    must(
        "bind_contended",
        ratio(&managed("bind_pair_contended"), &managed("bind_pair_alone")),
        Bound::AtMost(1.3),
        "bind and unbind on two CPUs, one container, a descriptor each; of one CPU alone",
    );
    must(
        "foreign_sockopt",
        ratio(&beside, &down("setsockopt")),
        Bound::AtMost(1.02),
        "a stranger's setsockopt while Fief manages somebody else; of the same with Fief down",
    );
    for (name, title, who) in OPERATIONS {
        let costs: Vec<f64> = rounds.iter().map(|round| who(round).of(name)).collect();
        figures.add(format!("{name}_ns"), median(&costs)).of(format!("least cost of: {title}"), "ns", LOAD);
    }
    figures
}

#[cfg(test)]
mod tests {
    use super::*;

    fn costs(entries: &[(&str, f64)]) -> Costs {
        let mut costs = Costs::default();
        entries.iter().for_each(|&(name, ns)| costs.put(name, ns));
        costs
    }

    #[test]
    fn figures_compare_within_a_round() {
        let round = |slow: f64| Round {
            managed: costs(&[
                ("getppid", 100.0),
                ("bind", 300.0 * slow),
                ("create_destroy", 3000.0 * slow),
                ("bind_pair_alone", 400.0),
                ("bind_pair_contended", 480.0),
            ]),
            beside: costs(&[("setsockopt", 202.0 * slow)]),
            down: costs(&[("setsockopt", 200.0 * slow), ("socket", 1500.0 * slow), ("cgroup_threads", 3000.0 * slow)]),
        };
        let figures = figures(&[round(1.0), round(1.5), round(1.0)]);
        let figure = |name: &str| figures.get(name).expect("a figure");
        assert_eq!(figure("bind_vs_getppid"), 3.0);
        assert!((figure("bind_vs_cgroup") - 0.1).abs() < 1e-9);
        assert!((figure("create_destroy_vs_socket") - 2.0).abs() < 1e-9);
        assert!((figure("bind_contended") - 1.2).abs() < 1e-9);
        assert!((figure("foreign_sockopt") - 1.01).abs() < 1e-9);
    }

    #[test]
    fn an_operation_that_was_not_measured_is_no_number() {
        let round = Round { managed: Costs::default(), beside: Costs::default(), down: Costs::default() };
        assert!(figures(&[round]).get("bind_vs_cgroup").expect("a figure").is_nan());
    }
}
