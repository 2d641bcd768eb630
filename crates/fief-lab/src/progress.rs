// SPDX-License-Identifier: Apache-2.0 OR MIT
//! How far a long experiment is, on standard error; and whether somebody asked it to end.
//!
//! Ctrl-C sets a flag that each step looks at, so that the guards of namespaces, servers and policies end in their
//! order. A second one removes the namespaces at once.

use crate::error::{Context, Error, Kind, Result};
use crate::remains;
use std::io::{IsTerminal, Write};
use std::sync::Once;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

static INTERRUPTED: AtomicBool = AtomicBool::new(false);
static HANDLER: Once = Once::new();

/// Sweeps what killed runs left, and from now on ends in order on Ctrl-C, SIGTERM and SIGHUP.
pub fn prepare() -> Result<()> {
    let swept = remains::sweep();
    if swept > 0 {
        eprintln!("fief lab: removed {swept} things that an earlier run left");
    }
    let mut result = Ok(());
    HANDLER.call_once(|| {
        result = ctrlc::set_handler(|| {
            if INTERRUPTED.swap(true, Ordering::Relaxed) {
                fief_testkit::remove_all_of(std::process::id());
                std::process::exit(130);
            }
            eprintln!("\nfief lab: ending after this step; once more to end at once");
        });
    });
    result.context("watch for Ctrl-C")
}

/// An error once somebody asked for the end.
pub fn check() -> Result<()> {
    match INTERRUPTED.load(Ordering::Relaxed) {
        true => Err(Error::new(Kind::Interrupted, "ended by request")),
        false => Ok(()),
    }
}

/// Counts the steps of an experiment.
#[derive(Debug)]
pub struct Progress {
    name: &'static str,
    steps: usize,
    done: usize,
    begin: Instant,
}

impl Progress {
    pub fn new(name: &'static str, steps: usize) -> Progress {
        Progress { name, steps, done: 0, begin: Instant::now() }
    }

    /// Tells what comes next; an error if somebody asked for the end.
    pub fn step(&mut self, what: &str) -> Result<()> {
        check()?;
        crate::company::look();
        self.done += 1;
        let left = match self.done {
            1 => String::new(),
            done => {
                let each = self.begin.elapsed().as_secs_f64() / (done - 1) as f64;
                format!(", {:.0} s left", each * (self.steps + 1).saturating_sub(done) as f64)
            }
        };
        let line = format!("{} {}/{}: {what}{left}", self.name, self.done, self.steps);
        let mut stderr = std::io::stderr();
        // A log wants lines; a person wants one that changes.
        let _ = match stderr.is_terminal() {
            true => write!(stderr, "\r\x1b[K{line}"),
            false => writeln!(stderr, "{line}"),
        };
        let _ = stderr.flush();
        Ok(())
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        if std::io::stderr().is_terminal() {
            eprint!("\r\x1b[K");
        }
    }
}
