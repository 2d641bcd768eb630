// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `fief top`: live, on a terminal or in plain lines.

use crate::cli::Top;
use crate::failure::Result;
use crate::output::Output;
use crate::tui::{plain, terminal};
use fief_control::Fief;

pub fn run(args: &Top, output: &mut Output) -> Result<()> {
    let mut fief = Fief::from_env()?;
    let is_dumb = std::env::var_os("TERM").is_none_or(|term| term == "dumb");
    match args.plain || is_dumb || !Output::is_terminal() {
        true => plain::run(args, &mut fief, output),
        false => terminal::run(args, &mut fief),
    }
}
