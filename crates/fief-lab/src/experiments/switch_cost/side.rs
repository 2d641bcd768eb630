// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Who has the CPUs while something is measured, and whether Fief charges.

use fief_bpf::schedule;
use fief_bpf::yardstick::Yardstick;

use crate::command::PolicyFile;
use crate::error::{Error, Result};
use crate::installation::Installation;

/// The worker's home.
pub const HOME: &str = "lab";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scheduler {
    /// The kernel's own: EEVDF.
    Kernel,
    /// A minimal one, which is a program.
    Yardstick,
    Fief,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Side {
    pub scheduler: Scheduler,
    /// Fief's programs that charge are attached, and charge the processes.
    pub charging: bool,
}

const fn side(scheduler: Scheduler, charging: bool) -> Side {
    Side { scheduler, charging }
}

/// Without Fief.
pub const PLAIN: [Side; 2] = [side(Scheduler::Kernel, false), side(Scheduler::Yardstick, false)];
/// Fief's scheduler goes by what is charged, so it has no side without.
pub const CHARGING: [Side; 3] =
    [side(Scheduler::Kernel, true), side(Scheduler::Yardstick, true), side(Scheduler::Fief, true)];

impl Side {
    pub fn name(self) -> &'static str {
        match (self.scheduler, self.charging) {
            (Scheduler::Kernel, false) => "eevdf",
            (Scheduler::Yardstick, false) => "scx_simple",
            (Scheduler::Kernel, true) => "eevdf_charging",
            (Scheduler::Yardstick, true) => "scx_simple_charging",
            (Scheduler::Fief, _) => "fief",
        }
    }

    /// For people.
    pub fn title(self) -> &'static str {
        match (self.scheduler, self.charging) {
            (Scheduler::Kernel, false) => "EEVDF",
            (Scheduler::Yardstick, false) => "as scx_simple",
            (Scheduler::Kernel, true) => "EEVDF, charging",
            (Scheduler::Yardstick, true) => "as scx_simple, charging",
            (Scheduler::Fief, _) => "Fief",
        }
    }

    /// Before and after it, the kernel's own has the CPUs.
    pub fn while_in_force<T>(self, policies: Option<&Policies>, work: impl FnOnce() -> Result<T>) -> Result<T> {
        let failed = |error: fief_bpf::Error| Error::failed(error.to_string());
        match (self.scheduler, policies) {
            (Scheduler::Kernel, _) => {
                schedule::here().map_err(failed)?;
                work()
            }
            (Scheduler::Yardstick, _) => {
                let yardstick = Yardstick::attach().map_err(failed)?;
                let done = work()?;
                yardstick.end().map_err(failed)?;
                Ok(done)
            }
            (Scheduler::Fief, Some(policies)) => policies.scheduled(work),
            (Scheduler::Fief, None) => Err(Error::failed("Fief's scheduler goes by what Fief charges")),
        }
    }
}

/// Fief in force: it charges, and divides the CPU or not.
#[derive(Debug)]
pub struct Policies {
    installation: Installation,
    charges: PolicyFile,
    schedules: PolicyFile,
}

impl Policies {
    /// It charges.
    pub fn apply() -> Result<Policies> {
        // a weight that is not everybody's is what turns the scheduler on
        let policy = |schedule: &str| {
            PolicyFile::new(&format!(
                "version = 1\nschedule = \"{schedule}\"\n\n[container.{HOME}]\ncpu.weight = 200\n"
            ))
        };
        let (charges, schedules) = (policy("off")?, policy("auto")?);
        schedules.check()?;
        Ok(Policies { installation: Installation::apply(&charges)?, charges, schedules })
    }

    fn scheduled<T>(&self, work: impl FnOnce() -> Result<T>) -> Result<T> {
        self.installation.change(&self.schedules)?;
        require("fief")?;
        let done = work()?;
        require("fief")?;
        self.installation.change(&self.charges)?;
        Ok(done)
    }

    pub fn down(self) -> Result<()> {
        self.installation.down()
    }
}

/// Errors: another scheduler has the CPUs, so that a figure would be of that one.
fn require(name: &str) -> Result<()> {
    match schedule::attached() {
        Some(attached) if attached == name => Ok(()),
        other => Err(Error::failed(format!("{} has the CPUs, not {name}", other.as_deref().unwrap_or("the kernel")))),
    }
}
