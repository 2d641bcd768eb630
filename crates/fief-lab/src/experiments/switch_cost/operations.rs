// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What else lmbench asks of processes: fork, exec, pipe and select.

use std::os::fd::{AsFd, OwnedFd};
use std::process::{Command, Stdio};
use std::time::Instant;

use nix::sys::select::{FdSet, select};
use nix::sys::time::TimeVal;
use nix::sys::wait::waitpid;
use nix::unistd::{ForkResult, pipe};

use super::ring::Lapped;
use crate::error::{Context, Error, Result};
use crate::statistics::median;

const BATCHES: usize = 5;
/// Descriptors of a select, of which none is ready.
const SELECTED: usize = 100;

/// ns by name; of those that need no ring.
pub fn measure() -> Result<Vec<(String, f64)>> {
    let pipes: Vec<_> = (0..SELECTED).map(|_| pipe()).collect::<nix::Result<_>>().context("make pipes")?;
    Ok(vec![
        ("fork".to_owned(), times(20, fork)?),
        ("exec".to_owned(), times(5, exec)?),
        ("select".to_owned(), times(50, || look(&pipes))?),
    ])
}

/// A token to another process and back, as lmbench's pipe latency; none where no ring has two processes.
pub fn round_trip(rings: &[Lapped]) -> Option<(String, f64)> {
    let two = rings.iter().find(|ring| ring.processes == 2)?;
    Some(("pipe".to_owned(), two.hop_ns * 2.0))
}

/// ns of one, as the median of batches; the first one warms up.
fn times(size: usize, mut operation: impl FnMut() -> Result<()>) -> Result<f64> {
    let mut times = Vec::new();
    for batch in 0..=BATCHES {
        let begin = Instant::now();
        for _ in 0..size {
            operation()?;
        }
        if batch > 0 {
            times.push(begin.elapsed().as_nanos() as f64 / size as f64);
        }
    }
    Ok(median(&times))
}

/// A process that ends at once.
fn fork() -> Result<()> {
    // SAFETY: the calling process has one thread, and the child does nothing but end.
    match unsafe { nix::unistd::fork() }.context("fork")? {
        // SAFETY: ends the process without anything that it has of its parent.
        ForkResult::Child => unsafe { libc::_exit(0) },
        ForkResult::Parent { child } => waitpid(child, None).map(drop).context("wait for a process"),
    }
}

/// The smallest program that there is everywhere.
fn exec() -> Result<()> {
    let ended = Command::new("true").stdin(Stdio::null()).status().context("start true")?;
    if ended.success() { Ok(()) } else { Err(Error::failed("true is not true")) }
}

fn look(pipes: &[(OwnedFd, OwnedFd)]) -> Result<()> {
    let mut set = FdSet::new();
    pipes.iter().for_each(|(from, _)| set.insert(from.as_fd()));
    let mut none = TimeVal::new(0, 0);
    select(None, &mut set, None, None, &mut none).map(drop).context("select")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_operation_is_measured() {
        let measured = measure().expect("measured");
        assert_eq!(measured.iter().map(|(name, _)| name.as_str()).collect::<Vec<_>>(), ["fork", "exec", "select"]);
        assert!(measured.iter().all(|(_, ns)| *ns > 0.0), "{measured:?}");
    }

    #[test]
    fn a_round_trip_is_two_passes_of_a_ring_of_two() {
        let ring = |processes, hop_ns| Lapped { processes, hop_ns, switches: 1.0 };
        assert_eq!(round_trip(&[ring(8, 9.0), ring(2, 7.0)]), Some(("pipe".to_owned(), 14.0)));
        assert_eq!(round_trip(&[ring(8, 9.0)]), None);
    }
}
