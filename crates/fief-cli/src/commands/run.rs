// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `fief run`: a server under a policy. Its exit code becomes ours.

use std::process::ExitCode;

use crate::brief;
use crate::cli::Run;
use crate::failure::Result;
use crate::output::say;
use crate::{policy_file, program};
use fief_control::{Fief, RunOptions, Status};

pub fn run(args: &Run) -> Result<ExitCode> {
    program::with_codes_of_env(serve(args))
}

fn serve(args: &Run) -> Result<ExitCode> {
    let file = policy_file::load(&args.policy)?;
    // Before anything is put in force for it.
    program::find(&args.server)?;
    let options =
        RunOptions { file: file.path, no_follow: args.no_follow, tell: Some(program::tell), started: Some(started) };
    let code = Fief::from_env()?.run(&file.policy, &file.text, &args.server, &options)?;
    Ok(program::ended(code))
}

/// On standard error: standard output is the server's.
fn started(status: &Status) {
    brief::lines(status).iter().for_each(say);
}
