// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `fief top`: live, on a terminal or in plain lines.

use crate::cli::Top;
use crate::failure::Result;
use crate::history::{self, Pace};
use crate::output::Output;
use crate::tui::{plain, terminal};

pub fn run(args: &Top, output: &mut Output) -> Result<()> {
    let is_dumb = std::env::var_os("TERM").is_none_or(|term| term == "dumb");
    match args.plain || is_dumb || !Output::is_terminal() {
        true => plain::run(args, history::source(&args.history, Pace::Leaps)?.as_mut(), output),
        false => terminal::run(args, history::source(&args.history, Pace::AsItWas)?.as_mut()),
    }
}
