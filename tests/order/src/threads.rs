// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Threads that begin to wait, and whose containers they are of.

use crate::Machine;

unsafe extern "C" {
    fn threads_named(id: u32);
    fn threads_of_user(id: u32);
    fn threads_wait(thread: u32, bound: u32, part: u32) -> u32;
    fn threads_held(thread: u32, now: u64) -> u64;
    fn threads_waits(thread: u32) -> bool;
    fn threads_run(thread: u32, ns: u64);
    fn threads_give_back(thread: u32) -> bool;
    fn threads_wake(thread: u32);
    fn threads_charged(thread: u32) -> u32;
    fn threads_foreign(thread: u32) -> bool;
    fn threads_unqueued() -> u64;
    fn threads_stuck(counts: u32, runs: bool, minor: u32, preempt_rcu: bool) -> bool;
}

/// How a thread waits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Wait {
    /// The container in whose line it is.
    pub line: u32,
    /// The one whose use of the CPU its work is.
    pub charged: u32,
    /// It has the part of another container than it works for.
    pub foreign: bool,
}

impl Machine {
    /// The policy names it.
    pub fn name(&mut self, id: u32) {
        // SAFETY: the machine has the tables, and the tests stay below their size.
        unsafe { threads_named(id) }
    }

    /// It is the parent of a user's containers.
    pub fn give_to_user(&mut self, id: u32) {
        // SAFETY: as above.
        unsafe { threads_of_user(id) }
    }

    /// The n-th thread, which works for `bound` and has the part of `part`, begins to wait.
    pub fn begin(&mut self, thread: u32, bound: u32, part: u32) -> Wait {
        // SAFETY: as above.
        unsafe {
            let line = threads_wait(thread, bound, part);
            Wait { line, charged: threads_charged(thread), foreign: threads_foreign(thread) }
        }
    }

    /// It has just begun to wait at `now`: when it is asked again, since it is held below its line.
    pub fn held_until(&mut self, thread: u32, now: u64) -> Option<u64> {
        // SAFETY: as above.
        let until = unsafe { threads_held(thread, now) };
        (until > 0).then_some(until)
    }

    /// Whether it is in a line.
    pub fn waits(&self, thread: u32) -> bool {
        // SAFETY: as above.
        unsafe { threads_waits(thread) }
    }

    /// It has the CPU for so long.
    pub fn work(&mut self, thread: u32, ns: u64) {
        // SAFETY: as above.
        unsafe { threads_run(thread, ns) }
    }

    /// Whether it would give the CPU back as it begins to run.
    pub fn gives_back(&self, thread: u32) -> bool {
        // SAFETY: as above.
        unsafe { threads_give_back(thread) }
    }

    /// It waits no longer.
    pub fn end(&mut self, thread: u32) {
        // SAFETY: as above.
        unsafe { threads_wake(thread) }
    }

    /// Threads that began to wait in the line of another container, since their own had no queue.
    pub fn unqueued(&self) -> u64 {
        // SAFETY: as above.
        unsafe { threads_unqueued() }
    }
}

/// Linux 6.x, with PREEMPT_RCU or without.
#[derive(Debug, Clone, Copy)]
pub struct Kernel {
    pub minor: u32,
    pub preempt_rcu: bool,
}

/// Whether a thread may not leave its CPU: the kernel has counted so much against it, and it runs there or does not.
pub fn is_stuck(_: &mut Machine, on: Kernel, counts: u32, runs: bool) -> bool {
    // SAFETY: as above.
    unsafe { threads_stuck(counts, runs, on.minor, on.preempt_rcu) }
}
