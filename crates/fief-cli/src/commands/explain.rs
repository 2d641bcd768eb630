// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `fief explain`: what the front door decided and why, and what a container was charged for. A table of contents: counters by reason
//! (`counted`), drops as they happen (`follow`), what a policy says about one client and request (`dry`), with what is known of the
//! client (`live`), sources of charges (`charge`), and the clients that cost most (`costliest`).

mod charge;
mod costliest;
pub mod counted;
mod dry;
mod follow;
mod live;
pub mod queues;

use crate::cli::Explain;
use crate::failure::Result;
use crate::output::Output;

pub fn run(args: &Explain, output: &mut Output) -> Result<()> {
    match (args.from, &args.charge) {
        (Some(from), _) => dry::run(args, from, output),
        (None, Some(container)) => charge::run(args, container, output),
        (None, None) if args.costliest => costliest::run(args, output),
        (None, None) if args.follow => follow::run(args, output),
        (None, None) => counted::run(args, output),
    }
}
