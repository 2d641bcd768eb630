// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `fief lab`: becomes the program `fief-lab` beside this one, with the same words. The experiments are a program of their own
//! because they link what no root command should: servers, packet sockets, perf events, plots.

use std::io;
use std::os::unix::process::CommandExt;
use std::path::Path;

use crate::failure::{Failure, Result};

/// Does not come back where the program is there: its output, its signals and its exit code are those of this process.
pub fn run() -> Result<()> {
    let own = std::env::current_exe().map_err(|error| Failure::new(format!("cannot find this program: {error}")))?;
    let program = own.with_file_name(fief_lab_args::PROGRAM);
    // the word `lab` is the second: `fief` has no options before a command
    let error = std::process::Command::new(&program).args(std::env::args_os().skip(2)).exec();
    Err(not_started(&program, &error))
}

fn not_started(program: &Path, error: &io::Error) -> Failure {
    let program = program.display();
    Failure::new(match error.kind() {
        io::ErrorKind::NotFound => format!(
            "cannot start the lab: {program} is not there; the package fief-lab or `make install-lab` puts it beside fief, `cargo \
             build -p fief-lab` in the same profile builds it"
        ),
        _ => format!("cannot start the lab: {program}: {error}"),
    })
}
