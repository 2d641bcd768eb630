// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The command `fief`. A table of contents: `cli` has the words, each command has a file below `commands`, `failure`
//! prints what went wrong.

// it panics where nobody reads, or the disk is full
#![cfg_attr(not(test), warn(clippy::print_stderr))]

mod brief;
mod charged;
mod cli;
mod clock;
mod commands;
mod failure;
mod history;
mod interval;
mod look;
mod output;
mod policy_file;
mod program;
mod quantity;
mod queued;
mod record;
mod tree;
mod tui;

use std::process::ExitCode;

use clap::Parser;
use clap::error::ErrorKind;

use crate::cli::{Cli, Command};
use crate::failure::{RUN_FAILED, Result, USAGE};
use crate::output::Output;

fn main() -> ExitCode {
    if let Some(code) = commands::child::main() {
        return code;
    }
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => return usage_error(&error),
    };
    log();
    let mut output = Output::standard();
    let done = dispatch(&cli.command, &mut output);
    match done.and_then(|code| output.finish().map(|()| code)) {
        Ok(code) => code,
        Err(failure) => failure.report(),
    }
}

/// What libraries tell of themselves, as the verifier's words upon a program that it refuses: where `FIEF_LOG` asks for it
/// (a filter as of the crate tracing-subscriber: `debug`, `fief_bpf=debug`), on standard error.
fn log() {
    let Ok(filter) = tracing_subscriber::EnvFilter::try_from_env("FIEF_LOG") else { return };
    let log = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).without_time();
    // it would tell that on standard error, and panic
    log.log_internal_errors(false).init();
}

fn dispatch(command: &Command, output: &mut Output) -> Result<ExitCode> {
    match command {
        Command::Probe(args) => commands::probe::run(args, output),
        Command::Check(args) => commands::check::run(args, output),
        Command::Apply(args) => commands::apply::run(args, output),
        Command::Down(args) => commands::down::run(args, output),
        Command::Run(args) => return commands::run::run(args),
        Command::Exec(args) => return commands::exec::run(args),
        Command::Unit(args) => commands::unit::run(args, output),
        Command::Manage(args) => commands::manage::run(args, output),
        Command::Bind(args) => commands::bind::run(args, output),
        Command::Mount(args) => commands::mount::run(args, output),
        Command::Umount(args) => commands::umount::run(args, output),
        Command::Ls(args) => commands::ls::run(args, output),
        Command::Status(args) => commands::status::run(args, output),
        Command::Show(args) => commands::show::run(args, output),
        Command::Explain(args) => commands::explain::run(args, output),
        Command::Ban(args) => commands::ban::run(args, output),
        Command::Pardon(args) => commands::pardon::run(args, output),
        Command::Usage(args) => commands::usage::run(args, output),
        Command::Top(args) => commands::top::run(args, output),
        Command::Agent(args) => commands::agent::run(args, output),
        Command::Record(args) => commands::record::run(args, output),
        Command::Replay(args) => commands::replay::run(args, output),
        Command::Bill(args) => commands::bill::run(args, output),
        Command::Lab(_) => commands::lab::run(),
        Command::Schema => commands::schema::run(output),
        Command::Completions(args) => commands::completions::run(args, output),
        Command::Man(args) => commands::man::run(args),
        Command::Interface(args) => commands::interface::run(args),
    }?;
    Ok(ExitCode::SUCCESS)
}

/// Help and version are no errors. Wrong usage of `run` and `exec` has the code of Fief's own failures, so that it is never
/// taken for the server's.
fn usage_error(error: &clap::Error) -> ExitCode {
    // With the terminal gone there is nobody left to tell.
    let _ = error.print();
    let is_run = std::env::args_os().nth(1).is_some_and(|word| word == "run" || word == "exec");
    match error.kind() {
        ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => ExitCode::SUCCESS,
        _ if is_run => ExitCode::from(RUN_FAILED),
        _ => ExitCode::from(USAGE),
    }
}
