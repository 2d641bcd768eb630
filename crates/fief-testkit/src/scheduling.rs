// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Where and how threads run: pinning and the real-time class.

use crate::{Error, Result};
use nix::sched::{CpuSet, sched_getaffinity, sched_setaffinity};
use nix::unistd::Pid;
use std::os::unix::process::CommandExt;
use std::process::Command;

/// The CPUs that this process may use.
pub fn cpus() -> Vec<usize> {
    let Ok(set) = sched_getaffinity(Pid::from_raw(0)) else {
        return vec![0];
    };
    (0..CpuSet::count()).filter(|&cpu| set.is_set(cpu).unwrap_or(false)).collect()
}

/// Keeps one thread on one CPU; 0: the calling thread.
pub fn pin(thread: u32, cpu: usize) -> Result<()> {
    let mut set = CpuSet::new();
    set.set(cpu)
        .and_then(|()| sched_setaffinity(Pid::from_raw(thread.cast_signed()), &set))
        .map_err(|errno| Error::errno(format!("pin thread {thread} to cpu {cpu}"), errno))
}

/// Puts one thread into SCHED_FIFO; 0: the calling thread.
pub fn set_fifo(thread: u32, priority: i32) -> Result<()> {
    set(thread, libc::SCHED_FIFO, priority)
}

/// Lets one thread run only where nobody else would.
pub fn set_idle(thread: u32) -> Result<()> {
    set(thread, libc::SCHED_IDLE, 0)
}

/// Puts one thread back among the ordinary ones.
pub fn set_other(thread: u32) -> Result<()> {
    set(thread, libc::SCHED_OTHER, 0)
}

fn set(thread: u32, policy: i32, priority: i32) -> Result<()> {
    let parameter = libc::sched_param { sched_priority: priority };
    // SAFETY: the kernel reads the parameter, which lives until the call returns.
    let result = unsafe { libc::sched_setscheduler(thread.cast_signed(), policy, &raw const parameter) };
    nix::errno::Errno::result(result)
        .map(drop)
        .map_err(|errno| Error::errno(format!("scheduling class {policy}/{priority} for thread {thread}"), errno))
}

/// Sets the nice value of this process's main thread, and so of whatever it starts from there.
pub fn set_nice(nice: i32) -> Result<()> {
    // SAFETY: no pointers are passed.
    let result = unsafe { libc::setpriority(libc::PRIO_PROCESS, 0, nice) };
    nix::errno::Errno::result(result).map(drop).map_err(|errno| Error::errno(format!("set nice {nice}"), errno))
}

/// Makes a command, and whatever it starts, run on one CPU.
pub fn pin_command(command: &mut Command, cpu: usize) {
    let mut set = CpuSet::new();
    // A CPU beyond the set's size cannot be one of `cpus`.
    let _ = set.set(cpu);
    // SAFETY: between fork and exec the closure makes one system call on memory of its own; it neither allocates nor
    // takes a lock.
    unsafe {
        command.pre_exec(move || sched_setaffinity(Pid::from_raw(0), &set).map_err(std::io::Error::from));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pinned_thread_has_one_cpu() {
        std::thread::spawn(|| {
            let last = *cpus().last().expect("a CPU");
            pin(0, last).expect("pinned");
            assert_eq!(cpus(), [last]);
        })
        .join()
        .expect("the thread ends");
    }
}
