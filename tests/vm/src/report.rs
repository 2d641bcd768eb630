// SPDX-License-Identifier: Apache-2.0 OR MIT
//! One line for each check, in the order they are made; a failed one does not keep the next from being made.

use std::process::ExitCode;

/// What a check found: in both cases the figures.
pub type Found = Result<String, String>;

/// The checks up to now.
#[derive(Debug, Default)]
pub struct Report {
    failed: u32,
}

impl Report {
    /// Makes a check and prints what came out.
    pub fn check(&mut self, name: &str, check: impl FnOnce() -> Found) {
        match check() {
            Ok(figures) => println!("ok {name}: {figures}"),
            Err(why) => {
                println!("FAILED {name}: {why}");
                self.failed += 1;
            }
        }
    }

    /// Says what cannot be checked on this kernel, and why. `run.sh` takes that for a failure where the kernel should have it.
    pub fn skip(&self, name: &str, why: &str) {
        println!("skipped {name}: {why}");
    }

    /// The exit code of the program.
    pub fn code(&self) -> ExitCode {
        if self.failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
    }
}

/// Charged time is right if it is what the worker's own clock says, but for interrupts, which the kernel's clock of a
/// thread can hold and Fief's charges do not.
pub fn same_time(charged_ns: u64, worked_ns: u64) -> Found {
    between(charged_ns, worked_ns, worked_ns + worked_ns / 100)
}

/// As [`same_time`], with the start of the worker's process, which is charged too but not on the worker's clock.
pub fn same_time_and_start(charged_ns: u64, worked_ns: u64) -> Found {
    between(charged_ns, worked_ns, worked_ns + worked_ns / 2)
}

fn between(charged_ns: u64, worked_ns: u64, most_ns: u64) -> Found {
    let figures = format!("charged {:.1} ms of {:.1} ms", charged_ns as f64 / 1e6, worked_ns as f64 / 1e6);
    let least_ns = worked_ns - worked_ns / 100;
    if (least_ns..most_ns).contains(&charged_ns) { Ok(figures) } else { Err(figures) }
}

/// An error as text.
pub fn text(error: impl std::fmt::Display) -> String {
    error.to_string()
}
