// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A machine with one CPU on which the scheduler's order decides, with a clock that only its threads move.

#![allow(unsafe_code)]

mod classes;
pub mod core;
mod cpus;
mod floor;
mod front;
mod lent;
mod line;
mod mishaps;
mod threads;
pub mod users;
mod waits;

use std::sync::{Mutex, MutexGuard};

pub use classes::{Class, Classes, limit_delay_ns};
pub use cpus::{Cpus, First};
pub use floor::Late;
pub use lent::Requests;
pub use line::{Answer, Line, Policy, Work};
pub use mishaps::Goes;
pub use threads::{Kernel, Wait, is_stuck};
pub use waits::{Ended, Waits};

unsafe extern "C" {
    fn order_reset();
    fn order_container(id: u32, parent: u32, share_ppm: u32, limit_ppm: u32, weight: u32, priority: u32);
    fn order_charge(id: u32, ns: u64);
    fn order_wait(id: u32) -> u32;
    fn order_queue(id: u32) -> u32;
    fn order_run(id: u32);
    fn order_cpus(cpus: u32);
    fn order_held(id: u32) -> bool;
    fn order_pick(now: u64) -> i32;
    fn order_looks() -> u32;
    fn order_move(id: u32, parent: u32);
    fn order_listed() -> u32;
    fn order_stopped(try_ns: u64);
    fn order_lock_waits() -> u64;
}

/// Ids of containers begin here; what is below is Fief's own.
pub const FIRST: u32 = 8;

/// The container that is above the users' own.
pub const USERS: u32 = 6;

/// What a container is given.
#[derive(Debug, Clone, Copy)]
pub struct Given {
    pub share_ppm: u32,
    pub limit_ppm: u32,
    pub weight: u32,
    pub priority: u32,
}

impl Default for Given {
    fn default() -> Self {
        Self { share_ppm: 0, limit_ppm: 0, weight: 100, priority: 100 }
    }
}

/// Percent of the machine.
pub fn share(percent: u32) -> Given {
    Given { share_ppm: percent * 10_000, ..Given::default() }
}

/// Percent of the machine.
pub fn limit(percent: u32) -> Given {
    Given { limit_ppm: percent * 10_000, ..Given::default() }
}

/// Among siblings.
pub fn weight(weight: u32) -> Given {
    Given { weight, ..Given::default() }
}

/// Higher goes first.
pub fn priority(priority: u32) -> Given {
    Given { priority, ..Given::default() }
}

/// The tables are the process's: one machine at a time.
static ONE: Mutex<()> = Mutex::new(());

#[derive(Debug)]
pub struct Machine {
    now_ns: u64,
    next: u32,
    used_ns: Vec<u64>,
    idle_ns: u64,
    _one: MutexGuard<'static, ()>,
}

impl Machine {
    pub fn new() -> Self {
        let one = ONE.lock().unwrap_or_else(|broken| broken.into_inner());
        // SAFETY: the lock keeps every other user of the tables away.
        unsafe { order_reset() };
        Self { now_ns: 1_000_000_000, next: FIRST, used_ns: vec![0; 4096], idle_ns: 0, _one: one }
    }

    /// A new child of a container; 0 is the root.
    pub fn container(&mut self, parent: u32, given: Given) -> u32 {
        let id = self.next;
        self.next += 1;
        // SAFETY: as in `new`; the tests stay below the table's size.
        unsafe { order_container(id, parent, given.share_ppm, given.limit_ppm, given.weight, given.priority) };
        id
    }

    /// One more thread of it wants the CPU. Returns the number of the queue where it waits.
    pub fn wait(&mut self, id: u32) -> u32 {
        let line = self.line(id);
        // SAFETY: as above.
        unsafe { order_queue(line) }
    }

    /// The same. Returns the container in whose line it waits.
    pub fn line(&mut self, id: u32) -> u32 {
        // SAFETY: as above.
        unsafe { order_wait(id) }
    }

    /// One fewer waits in its line.
    pub fn sleep(&mut self, id: u32) {
        // SAFETY: as above.
        unsafe { order_run(id) }
    }

    /// Time that nobody ordered, as for receiving.
    pub fn charge(&mut self, id: u32, ns: u64) {
        self.now_ns += ns;
        self.charge_beside(id, ns);
    }

    /// The same in so many CPUs' time, each of which is charged at its own tick, and chooses anew then.
    pub fn run_on(&mut self, cpus: u32, length_ns: u64, tick_ns: u64) {
        // SAFETY: as above.
        unsafe { order_cpus(cpus) };
        let mut chosen = vec![None; cpus as usize];
        let end = self.now_ns + length_ns;
        while self.now_ns < end {
            for one in &mut chosen {
                if let Some(id) = one.take() {
                    self.charge_beside(id, tick_ns);
                    self.wait(id);
                }
                *one = self.pick();
                one.iter().for_each(|id| self.sleep(*id));
                self.now_ns += tick_ns / u64::from(cpus);
            }
        }
    }

    fn charge_beside(&mut self, id: u32, ns: u64) {
        self.used_ns[id as usize] += ns;
        // SAFETY: as above.
        unsafe { order_charge(id, ns) }
    }

    /// From now on another CPU has the tree's lock, and has been stopped; each try to take it takes so long.
    pub fn stopped(&mut self, try_ns: u64) {
        // SAFETY: as in `new`.
        unsafe { order_stopped(try_ns) }
    }

    /// It has gone on.
    pub fn goes_on(&mut self) {
        self.stopped(0);
    }

    /// How long this CPU waits for the lock.
    pub fn waits_for_the_lock_ns(&mut self) -> u64 {
        // SAFETY: as in `new`.
        unsafe { order_lock_waits() }
    }

    /// Whether a limit keeps its running thread from going on.
    pub fn is_held(&self, id: u32) -> bool {
        // SAFETY: as above.
        unsafe { order_held(id) }
    }

    /// It has another parent from now on.
    pub fn move_to(&mut self, id: u32, parent: u32) {
        // SAFETY: as above.
        unsafe { order_move(id, parent) }
    }

    /// Containers that the tree's lists have, or that have one.
    pub fn listed(&self) -> u32 {
        // SAFETY: as above.
        unsafe { order_listed() }
    }

    /// How often the tree was looked at for the last pick.
    pub fn looks(&self) -> u32 {
        // SAFETY: as above.
        unsafe { order_looks() }
    }

    /// Whose thread is next.
    pub fn pick(&mut self) -> Option<u32> {
        // SAFETY: as above.
        u32::try_from(unsafe { order_pick(self.now_ns) }).ok()
    }

    /// The next thread runs for `slice_ns` and waits again; without one the CPU is idle for as long.
    pub fn step(&mut self, slice_ns: u64) -> Option<u32> {
        let picked = self.pick();
        match picked {
            Some(id) => {
                self.sleep(id);
                self.charge(id, slice_ns);
                self.wait(id);
            }
            None => {
                self.now_ns += slice_ns;
                self.idle_ns += slice_ns;
            }
        }
        picked
    }

    /// Steps for so long.
    pub fn run(&mut self, length_ns: u64, slice_ns: u64) {
        let end = self.now_ns + length_ns;
        while self.now_ns < end {
            self.step(slice_ns);
        }
    }

    /// What a container had itself.
    pub fn used_ns(&self, id: u32) -> u64 {
        self.used_ns[id as usize]
    }

    pub fn now(&self) -> u64 {
        self.now_ns
    }

    pub fn idle_ns(&self) -> u64 {
        self.idle_ns
    }
}

impl Default for Machine {
    fn default() -> Self {
        Self::new()
    }
}
