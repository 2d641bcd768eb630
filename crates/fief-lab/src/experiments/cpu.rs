// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `cpu-shares`, `cpu-limits`, `kernel-work` and `combined`: whether containers get the CPU that the policy gives them (Banga et al. 1999, figures 5
//! and 6 of the later report), and a thread that of all whom it serves (section 4.3 of the paper).
//!
//! Processes that only compute are bound to containers from outside. Their own clocks, which Fief does not touch, tell what they
//! got. The kernel must take schedulers (sched_ext); with `--vm` an emulated machine's does, and its clock is exact.

mod combined;
mod flood;
mod groups;
mod limits;
mod load;
mod serve;
mod shares;

use crate::error::{Context, Error, Kind, Result};

pub use combined::run as run_combined;
pub use flood::{receive_main, run as run_flood, send_main};
pub use groups::{Groups, weight_beside};
pub use limits::run as run_limits;
pub use load::{Spinner, Stand, bind, spin_main, used};
pub use serve::serve_main;
pub use shares::run as run_shares;

/// For what is given to one thread at a time, which has one CPU at most, whatever part of the machine is its. `why`: what several CPUs
/// would be wrong for.
pub fn require_one_cpu(experiment: &str, why: impl FnOnce(usize) -> String) -> Result<()> {
    match std::thread::available_parallelism().context("count the CPUs")?.get() {
        1 => Ok(()),
        cpus => {
            let what = format!("{}; `fief lab {experiment} --vm` boots a machine with one", why(cpus));
            Err(Error::new(Kind::Missing, what))
        }
    }
}
