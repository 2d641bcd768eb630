// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `fief exec`: a server under the policy that is in force. Its exit code becomes ours.

use std::process::ExitCode;

use crate::cli::Exec;
use crate::failure::Result;
use crate::{look, program};
use fief_control::{ExecOptions, Fief};

pub fn run(args: &Exec) -> Result<ExitCode> {
    program::with_codes_of_env(serve(args))
}

fn serve(args: &Exec) -> Result<ExitCode> {
    let fief = Fief::from_env()?;
    if !fief.installed() {
        return Err(look::nothing());
    }
    program::find(&args.server)?;
    let options = ExecOptions {
        container: args.container.clone(),
        listeners: args.listener.clone(),
        no_follow: args.no_follow,
        tell: Some(program::tell),
    };
    if args.here {
        return match fief.exec_here(&args.server, args.argv0.as_deref(), &options) {
            Ok(never) => match never {},
            Err(error) => Err(error.into()),
        };
    }
    Ok(program::ended(fief.exec(&args.server, &options)?))
}
