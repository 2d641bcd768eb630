// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Two CPUs with all of the scheduler: the first one gives itself away, the second one has other work, and threads wake up.

use crate::{Given, Machine, Policy};

unsafe extern "C" {
    fn cpus_begin();
    fn cpus_thread(thread: u32, id: u32);
    fn cpus_pin(thread: u32, cpu: u32, is_there: bool);
    fn cpus_wake(thread: u32);
    fn cpus_set_out(thread: u32);
    fn cpus_arrive();
    fn cpus_choices() -> u32;
    fn cpus_choose() -> u32;
    fn cpus_runs() -> u32;
    fn cpus_sleep(ran_ns: u64);
    fn cpus_bind(id: u32);
    fn cpus_request(thread: u32, id: u32);
    fn cpus_beat();
    fn cpus_give(id: u32, limit_ppm: u32, priority: u32, policy: u32);
    fn cpus_front() -> bool;
    fn cpus_line(thread: u32) -> u32;
    fn cpus_preempted() -> bool;
    fn cpus_unsettled_ns(id: u32) -> u64;
    fn cpus_are_clean() -> bool;
    fn cpus_race(first: u32, second: u32, stops: *const u32, count: u32) -> u32;
    fn cpus_keep(back: bool);
}

/// So often one of two that act at once stops, and the other one goes on.
const STOPS: usize = 3;
const NOBODY: u32 = u32::MAX;

/// What the first CPU does while a thread wakes up on the second one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum First {
    /// It has no thread, and chooses.
    Chooses,
    /// A thread wakes up on it.
    Wakes(u32),
}

/// The containers are the machine's, and fewer than 24; threads are fewer than 8.
#[derive(Debug)]
pub struct Cpus {
    machine: Machine,
    threads: u32,
}

impl Cpus {
    /// The first one has no thread, and has not chosen yet.
    pub fn new() -> Self {
        let machine = Machine::new();
        // SAFETY: the machine keeps every other user of the tables away.
        unsafe { cpus_begin() };
        Self { machine, threads: 0 }
    }

    /// A new child of a container; 0 is the root.
    pub fn container(&mut self, parent: u32, given: Given) -> u32 {
        self.machine.container(parent, given)
    }

    /// From now on.
    pub fn give(&mut self, id: u32, given: Given, policy: Policy) {
        // SAFETY: as in `new`; the test names a container that it made.
        unsafe { cpus_give(id, given.limit_ppm, given.priority, policy as u32) }
    }

    /// A new thread, which works for the container and sleeps. Nothing is known of it.
    pub fn thread(&mut self, id: u32) -> u32 {
        let thread = self.threads;
        self.threads += 1;
        assert!(self.threads <= 8, "the table has no more");
        // SAFETY: as in `new`; the table has room for it.
        unsafe { cpus_thread(thread, id) };
        thread
    }

    /// A thread that sleeps may run on that one alone, 0 or 1, from now on.
    pub fn pin(&mut self, thread: u32, cpu: u32) {
        assert!(cpu < 2, "there are two");
        // SAFETY: as in `new`; the test names a thread that it made, here and below.
        unsafe { cpus_pin(thread, cpu, true) }
    }

    /// One that waits on the other may run on that one alone; the kernel has not moved it yet.
    pub fn confine(&mut self, thread: u32, cpu: u32) {
        assert!(cpu < 2, "there are two");
        // SAFETY: as above.
        unsafe { cpus_pin(thread, cpu, false) }
    }

    /// It wakes up, on the second CPU. If the first one is idle and is told so, it chooses.
    pub fn wake(&mut self, thread: u32) {
        // SAFETY: as in `new`.
        unsafe { cpus_wake(thread) }
    }

    /// The same, but it is under way to where it waits until it arrives.
    pub fn set_out(&mut self, thread: u32) {
        // SAFETY: as in `new`.
        unsafe { cpus_set_out(thread) }
    }

    /// The one that is under way does.
    pub fn arrive(&mut self) {
        // SAFETY: as in `new`.
        unsafe { cpus_arrive() }
    }

    /// So often the first CPU has chosen.
    pub fn choices(&self) -> u32 {
        // SAFETY: as in `new`.
        unsafe { cpus_choices() }
    }

    /// The first CPU, which has no thread, chooses; which one it has then. Without one it is idle.
    pub fn choose(&mut self) -> Option<u32> {
        // SAFETY: as in `new`.
        some(unsafe { cpus_choose() })
    }

    /// The thread of the first CPU.
    pub fn runs(&self) -> Option<u32> {
        // SAFETY: as in `new`.
        some(unsafe { cpus_runs() })
    }

    /// That thread has run for so long, and sleeps. The CPU has not chosen yet.
    pub fn sleep(&mut self, ran_ns: u64) {
        assert!(self.runs().is_some(), "nobody runs");
        // SAFETY: as in `new`; there is such a thread.
        unsafe { cpus_sleep(ran_ns) }
    }

    /// A thread that sleeps wakes up, and runs for so long. What was known of it has been looked at then.
    pub fn work(&mut self, thread: u32, ran_ns: u64) {
        self.wake(thread);
        assert_eq!(self.runs().or_else(|| self.choose()), Some(thread));
        self.sleep(ran_ns);
    }

    /// The thread of the first CPU binds itself to the container.
    pub fn bind(&mut self, id: u32) {
        assert!(self.runs().is_some(), "nobody runs");
        // SAFETY: as in `new`.
        unsafe { cpus_bind(id) }
    }

    /// Somebody has bound a thread that sleeps to the container.
    pub fn request(&mut self, thread: u32, id: u32) {
        // SAFETY: as in `new`.
        unsafe { cpus_request(thread, id) }
    }

    /// A period passes.
    pub fn beat(&mut self) {
        // SAFETY: as in `new`.
        unsafe { cpus_beat() }
    }

    /// Whether a thread waits alone, in no line.
    pub fn is_at_front(&self) -> bool {
        // SAFETY: as in `new`.
        unsafe { cpus_front() }
    }

    /// In whose line the thread waits.
    pub fn line(&self, thread: u32) -> Option<u32> {
        // SAFETY: as in `new`.
        some(unsafe { cpus_line(thread) })
    }

    /// Whether the thread of the first CPU is to give it up.
    pub fn is_preempted(&self) -> bool {
        // SAFETY: as in `new`.
        unsafe { cpus_preempted() }
    }

    /// What the container has been charged, and its place in the tree does not know yet.
    pub fn unsettled_ns(&self, id: u32) -> u64 {
        // SAFETY: as in `new`.
        unsafe { cpus_unsettled_ns(id) }
    }

    /// Whether nothing is left of threads that waited.
    pub fn is_clean(&self) -> bool {
        // SAFETY: as in `new`.
        unsafe { cpus_are_clean() }
    }

    /// What the first CPU does, and the thread that wakes up on the second one, at once: in every order of their steps in which no more than
    /// `STOPS` times one of them stops and the other one goes on. `then` looks at what has become of each order. How many there were.
    pub fn every_order(&mut self, first: First, second: u32, mut then: impl FnMut(&mut Self, &str)) -> u32 {
        let mut stops = [0; STOPS];
        let mut orders = 0;
        let wakes = match first {
            First::Chooses => NOBODY,
            First::Wakes(thread) => thread,
        };
        // SAFETY: as in `new`.
        unsafe { cpus_keep(false) };
        loop {
            // SAFETY: as in `new`; there are so many stops.
            let met = unsafe {
                cpus_keep(true);
                cpus_race(wakes, second, stops.as_ptr(), STOPS as u32)
            };
            orders += 1;
            then(self, &format!("{first:?} beside thread {second}, stops {stops:?}"));
            // who was to stop behind its last step did not: the stop before that is a step later the next time
            let Some(last) = (met as usize).checked_sub(1) else { return orders };
            stops[last] += 1;
            stops[last + 1..].fill(0);
        }
    }
}

impl Default for Cpus {
    fn default() -> Self {
        Self::new()
    }
}

fn some(number: u32) -> Option<u32> {
    (number != NOBODY).then_some(number)
}
