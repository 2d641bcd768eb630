// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The experiments of the resource container papers, re-made on two cores: `fief lab NAME`.
//!
//! Each experiment makes its own namespaces, alternates without and with Fief, and ends in figures with the names and
//! bounds that the project promises. It runs the command `fief` as any user would and looks at it from outside: what
//! the clients saw, and what the kernel's own clocks say.
//!
//! A figure is a median of rounds. Rounds in which the server's core was not the bottleneck, or somebody else used the
//! machine, are measured again or marked.

mod command;
mod company;
mod cpu_time;
mod effort;
mod error;
mod experiments;
mod figures;
mod flood;
mod installation;
mod load;
mod newcomers;
mod noise;
mod plot;
mod precedence;
mod progress;
mod remains;
mod report;
mod sample;
mod server;
mod stage;
mod statistics;
mod table;
mod wanted;
mod workers;

pub use error::{Error, Kind, Result};
pub use figures::{Bound, Figure, Figures};
pub use load::load_main;

use std::path::PathBuf;
use std::process::ExitCode;

/// Which experiment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Experiment {
    Primitives,
    PriorityClients,
    Accounting,
    SynFlood,
    HeaderControl,
    Classes,
    UserVsKernel,
    AdmissionCost,
    Parse,
    Lrp,
    Demo,
}

impl Experiment {
    pub const ALL: [Experiment; 11] = [
        Experiment::Primitives,
        Experiment::PriorityClients,
        Experiment::Accounting,
        Experiment::SynFlood,
        Experiment::HeaderControl,
        Experiment::Classes,
        Experiment::UserVsKernel,
        Experiment::AdmissionCost,
        Experiment::Parse,
        Experiment::Lrp,
        Experiment::Demo,
    ];

    pub fn name(self) -> &'static str {
        match self {
            Experiment::Primitives => "primitives",
            Experiment::PriorityClients => "priority-clients",
            Experiment::Accounting => "accounting",
            Experiment::SynFlood => "syn-flood",
            Experiment::HeaderControl => "header-control",
            Experiment::Classes => "classes",
            Experiment::UserVsKernel => "user-vs-kernel",
            Experiment::AdmissionCost => "admission-cost",
            Experiment::Parse => "parse",
            Experiment::Lrp => "lrp",
            Experiment::Demo => "demo",
        }
    }

    /// One line for the help.
    pub fn about(self) -> &'static str {
        match self {
            Experiment::Primitives => "what each operation on a container costs",
            Experiment::PriorityClients => "response time of one paying client beside many others",
            Experiment::Accounting => "whether every nanosecond is charged to whom it belongs",
            Experiment::SynFlood => "what a server keeps of its throughput under a flood of SYNs",
            Experiment::HeaderControl => "what preferred clients and a limited URL keep under overload",
            Experiment::Classes => "three classes of clients before 50 blocking workers",
            Experiment::UserVsKernel => "the same limit kept by the server and by the kernel",
            Experiment::AdmissionCost => "what the front door costs a packet, by the number of rules, and a server",
            Experiment::Parse => "what a head costs whatever its segments are, and whether servers read it the same",
            Experiment::Lrp => "who pays for a flood that nobody polices",
            Experiment::Demo => "priority-clients for newcomers, with a live picture",
        }
    }

    pub fn from_name(name: &str) -> Option<Experiment> {
        Experiment::ALL.into_iter().find(|experiment| experiment.name() == name)
    }
}

#[derive(Clone, Debug)]
pub struct Args {
    pub experiment: Experiment,
    /// Fewer loads and rounds, and the same measurements.
    pub quick: bool,
    /// One object a line on standard output; the last holds the figures.
    pub json: bool,
    /// A folder for result.json, plots and index.html.
    pub report: Option<PathBuf>,
}

/// Runs an experiment, prints it, and gives back its figures.
pub fn run(args: &Args) -> Result<Figures> {
    progress::prepare()?;
    let _remains = remains::Remains::watch()?;
    let _precedence = precedence::Precedence::take();
    let mut outcome = match args.experiment {
        Experiment::Primitives => experiments::primitives::run(args.quick)?,
        Experiment::PriorityClients => experiments::priority_clients::run(args.quick)?,
        Experiment::Accounting => experiments::accounting::run(args.quick)?,
        Experiment::SynFlood => experiments::syn_flood::run(args.quick)?,
        Experiment::HeaderControl => experiments::header_control::run(args.quick)?,
        Experiment::Classes => experiments::classes::run(args.quick)?,
        Experiment::UserVsKernel => experiments::user_vs_kernel::run(args.quick)?,
        Experiment::AdmissionCost => experiments::admission_cost::run(args.quick)?,
        Experiment::Parse => experiments::parse::run(args.quick)?,
        Experiment::Lrp => experiments::lrp::run(args.quick)?,
        Experiment::Demo => experiments::demo::run(args.quick)?,
    };
    if let Some((text, object)) = company::told() {
        outcome.measurements.push(object);
        if let Some(table) = outcome.tables.last_mut() {
            table.note(text);
        }
    }
    if effort::is_least() {
        outcome.measurements.push(serde_json::json!({ "least": "each step was only tried; the figures mean nothing" }));
    }
    let folder = match &args.report {
        Some(folder) => Some(folder.clone()),
        // The demo always leaves something to look at, in a folder that nobody can have prepared.
        None if args.experiment == Experiment::Demo => Some(report::fresh_folder()?),
        None => None,
    };
    if let Some(folder) = &folder {
        report::write(folder, &outcome)?;
    }
    report::print(&outcome, args.json, folder.as_deref());
    Ok(outcome.figures)
}

/// The hidden commands of the binary, `lab-...`: load generators, servers and workers that the experiments start as
/// children of the same program. `words[0]` is the command.
pub fn child_main(words: &[String]) -> ExitCode {
    let Some((word, arguments)) = words.split_first() else {
        return ExitCode::from(2);
    };
    let result = match word.as_str() {
        "lab-guard" => remains::guard_main(arguments),
        "lab-load" => load::load_main(arguments),
        "lab-flood" => flood::flood_main(arguments),
        "lab-newcomers" => newcomers::newcomers_main(arguments),
        "lab-server" => server::server_main(arguments),
        "lab-client" => stage::client_main(arguments),
        "lab-isolating" => experiments::syn_flood::isolating_main(arguments),
        "lab-workers" => workers::workers_main(arguments),
        "lab-primitives" => experiments::primitives::child_main(arguments),
        "lab-accounting" => experiments::accounting::child_main(arguments),
        _ => Err(Error::new(Kind::Usage, format!("no such command: {word}"))),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("fief {word}: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Whether a word is one of the hidden commands that [`child_main`] takes.
pub fn is_child(word: &str) -> bool {
    word.starts_with("lab-")
}
