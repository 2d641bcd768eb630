// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `fief record`: usage, kept.

use std::sync::Arc;
use std::sync::mpsc::channel;
use std::time::Instant;

use fief_agent::Turns;
use fief_agent::record::{Folder, Keeper, RecorderOptions};

use crate::cli;
use crate::failure::{Failure, Result};
use crate::output::{Output, say};
use fief_control::Fief;

pub fn run(args: &cli::Record, output: &mut Output) -> Result<()> {
    if !nix::unistd::geteuid().is_root() {
        return Err(Failure::new("a record is read from the kernel; run it as root"));
    }
    let fief = Fief::from_env()?;
    let (ended, end) = channel();
    ctrlc::set_handler(move || {
        let _ = ended.send(());
    })
    .map_err(|error| Failure::new(format!("cannot wait for Ctrl-C: {error}")))?;
    let mut keeper = Keeper::open(Folder::of(&args.folder), options(args.interval, args.keep))?;
    output.line(format!("records into {}", args.folder.display()))?;
    output.flush()?;
    let mut turns = Turns::every(args.interval, Instant::now());
    let mut left = args.count.map(std::num::NonZeroU32::get);
    while left != Some(0) && end.recv_timeout(turns.wait()).is_err() {
        if turns.is_due() {
            keeper.turn(fief.snapshot().map(Arc::new), &mut |problem| say(problem));
            left = left.map(|left| left - 1);
        }
    }
    let failures = keeper.failures();
    keeper.finish()?;
    match failures {
        0 => Ok(()),
        failures => Err(Failure::new(format!("{failures} readings could not be kept"))),
    }
}

pub fn options(interval: std::time::Duration, mib: u64) -> RecorderOptions {
    RecorderOptions { interval, most_bytes: mib.saturating_mul(1024 * 1024) }
}
