// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `fief explain`: what the front door decided and why. A table of contents: counters by reason (`counted`), drops as they
//! happen (`follow`), and what a policy says about one client and request (`dry`), with what is known of the client (`live`).

pub mod counted;
mod dry;
mod follow;
mod live;
mod queues;

use crate::cli::Explain;
use crate::failure::Result;
use crate::output::Output;

pub fn run(args: &Explain, output: &mut Output) -> Result<()> {
    match args.from {
        Some(from) => dry::run(args, from, output),
        None if args.follow => follow::run(args, output),
        None => counted::run(args, output),
    }
}
