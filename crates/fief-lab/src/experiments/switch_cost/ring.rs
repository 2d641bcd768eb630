// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Processes in a ring that pass a token on: each waits at its pipe until the one before it has written.

use std::fs;
use std::io::{Stdin, Stdout, stdin, stdout};
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

use fief::Container;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::{Signal, kill};
use nix::sys::wait::waitpid;
use nix::unistd::{ForkResult, Pid, dup2_stdin, dup2_stdout, getppid, pipe, read, write};
use serde::{Deserialize, Serialize};

use crate::error::{Context, Error, Result};
use crate::statistics::median;

/// Passes of the token in a batch, some 10 ms of an emulated CPU.
const HOPS: usize = 1000;
/// The median of these counts: the timer's interrupts are in each.
const BATCHES: usize = 5;
/// A ring of which no token comes back within that is broken.
const LONGEST_LAP: Duration = Duration::from_secs(20);

/// What one ring took.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct Lapped {
    pub processes: usize,
    /// Of one pass of the token, its pipe included.
    pub hop_ns: f64,
    /// Context switches of the machine for each.
    pub switches: f64,
}

/// The calling process is its first member. The others are killed with the guard.
#[derive(Debug)]
pub struct Ring {
    from: OwnedFd,
    to: OwnedFd,
    others: Vec<Pid>,
}

/// Where the n-th of so many processes works, of so many containers.
fn place(process: usize, processes: usize, containers: usize) -> usize {
    process * containers.max(processes) / processes % containers
}

impl Ring {
    /// Each process binds itself to its container; without containers none does.
    pub fn start(processes: usize, containers: &[Container]) -> Result<Ring> {
        let pipes: Vec<_> =
            (0..processes).map(|_| pipe()).collect::<nix::Result<_>>().context("make the ring's pipes")?;
        // made before there are processes: what is made once is made with a lock, which a child would never get
        let ends = (stdin(), stdout());
        let (mut others, parent) = (Vec::new(), Pid::this());
        for process in 1..processes {
            let (from, to) = (&pipes[process].0, &pipes[(process + 1) % processes].1);
            // SAFETY: the calling process has one thread, and the child makes system calls alone until it is killed.
            match unsafe { nix::unistd::fork() }.context("start a process of the ring")? {
                ForkResult::Parent { child } => others.push(child),
                ForkResult::Child => {
                    let container =
                        (!containers.is_empty()).then(|| &containers[place(process, processes, containers.len())]);
                    pass_on(parent, container, (from, to), &ends);
                }
            }
        }
        let mut pipes = pipes.into_iter();
        let (Some((from, _)), Some((_, to))) = (pipes.next(), pipes.next()) else {
            return Err(Error::failed("a ring has two processes or more"));
        };
        let ring = Ring { from, to, others };
        ring.try_out()?;
        Ok(ring)
    }

    /// The first lap, so that one that is broken does not hang.
    fn try_out(&self) -> Result<()> {
        write(&self.to, b"t").context("pass the token on")?;
        let mut polled = [PollFd::new(self.from.as_fd(), PollFlags::POLLIN)];
        let wait = PollTimeout::try_from(LONGEST_LAP).unwrap_or(PollTimeout::MAX);
        match poll(&mut polled, wait).context("wait for the token")? {
            0 => Err(Error::failed("a process of the ring does not pass the token on")),
            _ => read(&self.from, &mut [0]).map(drop).context("take the token"),
        }
    }

    fn processes(&self) -> usize {
        self.others.len() + 1
    }

    fn lap(&self) -> Result<()> {
        write(&self.to, b"t").context("pass the token on")?;
        read(&self.from, &mut [0]).map(drop).context("take the token")
    }

    pub fn measure(&self) -> Result<Lapped> {
        let processes = self.processes();
        let laps = (HOPS / processes).max(1);
        let hops = (laps * processes) as f64;
        let (mut times, mut switches) = (Vec::new(), Vec::new());
        // the first one warms up
        for batch in 0..=BATCHES {
            let switched = switches_so_far()?;
            let begin = Instant::now();
            for _ in 0..laps {
                self.lap()?;
            }
            let took = begin.elapsed().as_nanos() as f64;
            if batch > 0 {
                times.push(took / hops);
                switches.push((switches_so_far()? - switched) as f64 / hops);
            }
        }
        Ok(Lapped { processes, hop_ns: median(&times), switches: median(&switches) })
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        for process in &self.others {
            // one that has ended is as good
            let _ = kill(*process, Signal::SIGKILL);
            let _ = waitpid(*process, None);
        }
    }
}

/// A member's main.
fn pass_on(parent: Pid, container: Option<&Container>, (from, to): (&OwnedFd, &OwnedFd), ends: &(Stdin, Stdout)) -> ! {
    let _ = nix::sys::prctl::set_pdeathsig(Signal::SIGKILL);
    // the kernel sends nothing for a parent that ended before that
    let tied = getppid() == parent;
    let bound = tied && container.is_none_or(|container| container.bind_thread().is_ok());
    let placed = bound && dup2_stdin(from).and_then(|()| dup2_stdout(to)).is_ok();
    // else each process has the descriptors of all containers, and whoever looks for a socket in all processes looks at them
    // SAFETY: nothing of this process uses them any more.
    let placed = placed && unsafe { libc::close_range(3, u32::MAX, 0) } == 0;
    let mut token = [0];
    while placed && read(&ends.0, &mut token) == Ok(1) && write(&ends.1, &token) == Ok(1) {}
    // the ring that began says that it is broken
    // SAFETY: ends the process without anything that it has of its parent.
    unsafe { libc::_exit(1) }
}

/// Of the whole machine, by the kernel's count.
fn switches_so_far() -> Result<u64> {
    let text = fs::read_to_string("/proc/stat").context("read /proc/stat")?;
    told(&text).ok_or_else(|| Error::failed("/proc/stat tells no context switches"))
}

fn told(stat: &str) -> Option<u64> {
    stat.lines().find_map(|line| line.strip_prefix("ctxt "))?.trim().parse().ok()
}

/// What a token takes through a pipe to the process itself, without a switch.
pub fn pipe_alone() -> Result<f64> {
    let (from, to) = pipe().context("make a pipe")?;
    let mut times = Vec::new();
    for batch in 0..=BATCHES {
        let begin = Instant::now();
        for _ in 0..HOPS {
            write(&to, b"t").context("write to a pipe")?;
            read(&from, &mut [0]).context("read from a pipe")?;
        }
        if batch > 0 {
            times.push(begin.elapsed().as_nanos() as f64 / HOPS as f64);
        }
    }
    Ok(median(&times))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn processes_are_spread_over_all_containers() {
        let places = |processes, containers| -> Vec<usize> {
            (0..processes).map(|process| place(process, processes, containers)).collect()
        };
        assert_eq!(places(3, 1), [0, 0, 0]);
        assert_eq!(places(4, 2), [0, 1, 0, 1]);
        assert_eq!(places(4, 10_000), [0, 2500, 5000, 7500]);
        assert_eq!(places(96, 96), (0..96).collect::<Vec<_>>());
    }

    #[test]
    fn the_kernels_count_of_switches_is_found_among_its_others() {
        assert_eq!(told("cpu  1 2\nintr 7 0\nctxt 4711\nbtime 5\n"), Some(4711));
        assert_eq!(told("cpu  1 2\n"), None);
    }

    #[test]
    fn a_token_goes_round() {
        let ring = Ring::start(3, &[]).expect("a ring");
        let lapped = ring.measure().expect("it goes round");
        assert_eq!(lapped.processes, 3);
        assert!(lapped.hop_ns > 0.0);
    }
}
