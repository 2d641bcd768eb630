// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The experiments of the resource container papers, re-made on two cores: the program `fief-lab`, which `fief lab NAME` becomes.
//!
//! Each experiment makes its own namespaces, alternates without and with Fief, and ends in figures with the names and
//! bounds that the project promises. It runs the command `fief` beside this program as any user would and looks at it from
//! outside: what the clients saw, and what the kernel's own clocks say.
//!
//! A figure is a median of rounds. Rounds in which the server's core was not the bottleneck, or somebody else used the
//! machine, are measured again or marked.

mod bench;
mod cgi_server;
mod children;
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
mod sides;
mod stage;
mod statistics;
mod table;
mod vm;
mod wanted;
mod workers;

use std::process::ExitCode;

use clap::{Args, FromArgMatches};
use fief_lab_args::{Experiment, Lab, PROGRAM};

use crate::error::{Kind, Result};

/// As a shell has it for Ctrl-C.
const INTERRUPTED: u8 = 130;

fn main() -> ExitCode {
    if let Some(code) = children::main() {
        return code;
    }
    let lab = clap::Command::new(PROGRAM).version(env!("CARGO_PKG_VERSION")).max_term_width(100);
    let matches = Lab::augment_args(lab).arg_required_else_help(true).get_matches();
    let args = Lab::from_arg_matches(&matches).unwrap_or_else(|error| error.exit());
    log();
    let Err(error) = run(&args) else { return ExitCode::SUCCESS };
    eprintln!("fief lab: {error}");
    match error.kind() {
        Kind::Interrupted => ExitCode::from(INTERRUPTED),
        _ => ExitCode::FAILURE,
    }
}

/// What libraries tell of themselves, as in `fief`: where `FIEF_LOG` asks for it, on standard error.
fn log() {
    let Ok(filter) = tracing_subscriber::EnvFilter::try_from_env("FIEF_LOG") else { return };
    tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).without_time().init();
}

/// The command that makes the same measurements, of the same parts.
fn repeat(args: &Lab, wanted: &wanted::Wanted) -> String {
    let quick = if args.quick { " --quick" } else { "" };
    let vm = if vm::is_inside() { " --vm" } else { "" };
    format!("{}fief lab {}{quick}{vm}", wanted.before_command(), args.experiment.name())
}

/// Runs an experiment and prints it.
fn run(args: &Lab) -> Result<()> {
    if args.vm {
        return vm::run(args);
    }
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
        Experiment::Whole => experiments::whole::run(args.quick)?,
        Experiment::Queue => experiments::queue::run(args.quick)?,
        Experiment::CpuShares => experiments::cpu::run_shares(args.quick)?,
        Experiment::CpuLimits => experiments::cpu::run_limits(args.quick)?,
        Experiment::KernelWork => experiments::cpu::run_flood(args.quick)?,
        Experiment::Combined => experiments::cpu::run_combined(args.quick)?,
        Experiment::Media => experiments::media::run(args.quick)?,
        Experiment::SwitchCost => experiments::switch_cost::run(args.quick)?,
        Experiment::CgiSandbox => experiments::cgi_sandbox::run(args.quick)?,
        Experiment::GuestServers => experiments::guest_servers::run(args.quick)?,
        Experiment::Rebind => experiments::rebind::run(args.quick)?,
        Experiment::Metrics => experiments::metrics::run(args.quick)?,
        Experiment::Service => experiments::service::run(args.quick)?,
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
        report::write(folder, &outcome, &repeat(args, &wanted::Wanted::from_env()))?;
    }
    report::print(&outcome, args.json, folder.as_deref());
    Ok(())
}
