// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `fief completions`: a completion script, made of the command line's own description.

use clap::CommandFactory;

use crate::cli::{Cli, Completions};
use crate::failure::Result;
use crate::output::Output;

pub fn run(args: &Completions, output: &mut Output) -> Result<()> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut Cli::command(), "fief", &mut script);
    output.text(String::from_utf8_lossy(&script))
}
