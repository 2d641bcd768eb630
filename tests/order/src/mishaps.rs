// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What happens to threads and CPUs beside what they do themselves.

use crate::{Cpus, Given, priority};

unsafe extern "C" {
    fn mishaps_change(thread: u32);
    fn mishaps_late(thread: u32) -> bool;
    fn mishaps_hog(hogs: bool);
    fn mishaps_serves(thread: u32);
    fn mishaps_client(listener: u32, received: bool);
    fn mishaps_tick(ran_ns: u64) -> bool;
    fn mishaps_until_beat() -> u64;
    fn mishaps_beat(late_ns: u64);
    fn mishaps_slow_beat(step_ns: u64);
    fn mishaps_line(id: u32);
    fn mishaps_counted(id: u32) -> u32;
    fn mishaps_slice() -> bool;
    fn mishaps_preempt();
    fn mishaps_turn() -> u32;
    fn mishaps_begin(thread: u32);
    fn mishaps_wait_ends(thread: u32) -> u64;
    fn mishaps_owe();
    fn mishaps_other_chooses();
    fn mishaps_open(thread: u32, other: u32, stop: u32, steps: u32) -> bool;
    fn mishaps_drain();
    fn order_charge(id: u32, ns: u64);
    fn requests_class(id: u32) -> u32;
    fn requests_line(class: u32, waits: bool);
}

/// How far a thread goes on while the CPU is stopped that was about to count it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Goes {
    Begins,
    Sleeps,
    WakesUp,
    RunsAgain,
}

impl Goes {
    pub const ALL: [Self; 4] = [Self::Begins, Self::Sleeps, Self::WakesUp, Self::RunsAgain];
}

impl Cpus {
    /// The kernel changes something of a thread that waits: its nice value, its CPUs, its cgroup.
    pub fn change(&mut self, thread: u32) {
        // SAFETY: the machine keeps every other user of the tables away; the test names a thread that it made, here and below.
        unsafe { mishaps_change(thread) }
    }

    /// Whether it waits among those that are let in for a moment.
    pub fn is_late(&self, thread: u32) -> bool {
        // SAFETY: as above.
        unsafe { mishaps_late(thread) }
    }

    /// From now on the first CPU has a thread of nobody's that never sleeps, or has none.
    pub fn hog(&mut self, hogs: bool) {
        // SAFETY: as above.
        unsafe { mishaps_hog(hogs) }
    }

    /// A request waits for the first class of a listener's queue; the thread has just received from a client of it.
    pub fn serve(&mut self, thread: u32, classes: &[u32]) {
        // SAFETY: as above; the queue has room for more classes than a test has.
        unsafe {
            for &class in classes {
                requests_class(class);
            }
            requests_line(0, true);
            mishaps_serves(thread);
        }
    }

    /// The thread of the first CPU receives from a client of a listener, or sends to one. Listener 0 has the queue, and 1 none.
    pub fn client(&mut self, listener: u32, received: bool) {
        assert!(self.runs().is_some(), "nobody runs");
        // SAFETY: as above; there is such a thread.
        unsafe { mishaps_client(listener, received) }
    }

    /// That thread runs for so long, until a tick comes. Whether it is to give up the CPU.
    pub fn tick(&mut self, ran_ns: u64) -> bool {
        assert!(self.runs().is_some(), "nobody runs");
        // SAFETY: as above; there is such a thread.
        unsafe { mishaps_tick(ran_ns) }
    }

    /// How long it is until the next beat is due.
    pub fn until_beat(&self) -> u64 {
        // SAFETY: as above.
        unsafe { mishaps_until_beat() }
    }

    /// That comes so much later. An idle CPU that is told so chooses.
    pub fn late_beat(&mut self, late_ns: u64) {
        // SAFETY: as above.
        unsafe { mishaps_beat(late_ns) }
    }

    /// It is due, and a look at each of both CPUs takes so long.
    pub fn slow_beat(&mut self, step_ns: u64) {
        // SAFETY: as above.
        unsafe { mishaps_slow_beat(step_ns) }
    }

    /// A thread that works for the second of two classes, bronze, and serves the listener of the queue, in which a request of the first one
    /// waits, gold. It sleeps.
    pub fn server() -> (Self, [u32; 2], u32) {
        let mut cpus = Self::new();
        let shop = cpus.container(0, Given::default());
        let classes = [9, 1].map(|of| cpus.container(shop, priority(of)));
        let thread = cpus.thread(classes[1]);
        cpus.work(thread, 1_000_000);
        cpus.serve(thread, &classes);
        (cpus, classes, thread)
    }

    /// The container has used so much of a CPU.
    pub fn charge(&mut self, id: u32, ns: u64) {
        // SAFETY: as above.
        unsafe { order_charge(id, ns) }
    }

    /// A thread waits in its line that may not run on the first CPU, as that has seen.
    pub fn line_of_others(&mut self, id: u32) {
        // SAFETY: as above.
        unsafe { mishaps_line(id) }
    }

    /// Threads that are counted in its line.
    pub fn counted(&self, id: u32) -> u32 {
        // SAFETY: as above.
        unsafe { mishaps_counted(id) }
    }

    /// The thread of the first CPU has had its slice; whether it goes on.
    pub fn slice_ends(&mut self) -> bool {
        assert!(self.runs().is_some(), "nobody runs");
        // SAFETY: as above; there is such a thread.
        unsafe { mishaps_slice() }
    }

    /// That thread is taken off the CPU, and waits. The CPU has not chosen yet.
    pub fn preempt(&mut self) {
        assert!(self.runs().is_some(), "nobody runs");
        // SAFETY: as above; there is such a thread.
        unsafe { mishaps_preempt() }
    }

    /// Whose turn that thread has that works for another container.
    pub fn turn(&self) -> Option<u32> {
        // SAFETY: as above.
        unsafe { mishaps_turn() }.checked_sub(1)
    }

    /// The first CPU is given a thread that waits; as it begins to run, a CPU that is stopped has the lock.
    pub fn begin_without_lock(&mut self, thread: u32) {
        // SAFETY: as above.
        unsafe { mishaps_begin(thread) }
    }

    /// How long it takes to end the last wait of a thread that was at the front, while a CPU that is stopped has the lock.
    pub fn end_without_lock_ns(&mut self, thread: u32) -> u64 {
        // SAFETY: as above.
        unsafe { mishaps_wait_ends(thread) }
    }

    /// The thread of the first CPU has its next slice, and stays counted in its line, since a CPU that is stopped has the lock.
    pub fn owe(&mut self) {
        assert!(self.runs().is_some(), "nobody runs");
        // SAFETY: as above; there is such a thread.
        unsafe { mishaps_owe() }
    }

    /// The second CPU chooses.
    pub fn other_chooses(&mut self) {
        // SAFETY: as above.
        unsafe { mishaps_other_chooses() }
    }

    /// A thread that waited at the front begins on the second CPU, while the first one chooses, or another thread wakes up there. The first one is
    /// stopped at its n-th step meanwhile, however far the thread goes on. Whether there is such a step.
    pub fn open_stopped(&mut self, thread: u32, other: Option<u32>, stop: u32, goes: Goes) -> bool {
        // SAFETY: as above.
        unsafe { mishaps_open(thread, other.unwrap_or(u32::MAX), stop, goes as u32) }
    }

    /// All that wait run on the first CPU, until nobody does.
    pub fn drain(&mut self) {
        // SAFETY: as above.
        unsafe { mishaps_drain() }
    }
}
