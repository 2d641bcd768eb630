// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A server that takes one request at a time, from the classes of a queue that always have somebody waiting.

use std::sync::{Mutex, MutexGuard};

unsafe extern "C" {
    fn classes_reset();
    fn classes_add(level: u32, weight: u32, floor: bool);
    fn classes_wait(class: u32, waits: bool);
    fn classes_flat();
    fn classes_turn(class: u32, turn: u64, level_turn: u64);
    fn classes_next(flat: bool) -> i32;
    fn classes_enter(class: u32, idle: bool);
    fn classes_serve(now: u64) -> i32;
    fn classes_charge(class: u32, ns: u64);
    fn classes_hold(class: u32, until_ns: u64);
    fn classes_promise(level: u32, below: u32, taken: u32);
    fn classes_open();
    fn refusals_follow(now: u64) -> bool;
    fn classes_delay(cost: u64, limit_ns: u64) -> u64;
    pub(crate) fn line_waits(wait_ns: u64, short_ns: u64);
    pub(crate) fn line_comes(now: u64, waiting: u32, first_ns: u64) -> u64;
    pub(crate) fn line_goes(waiting: u32) -> u64;
    pub(crate) fn line_has_enough(now: u64) -> bool;
    pub(crate) fn line_would_wait(now: u64) -> u64;
    pub(crate) fn line_serves();
    pub(crate) fn line_refuses(late: bool);
}

/// A class of the queue.
#[derive(Debug, Clone, Copy)]
pub struct Class {
    /// Number of the first class of its priority.
    pub level: u32,
    pub weight: u32,
    /// It is never kept waiting for ever: its priority is not 0.
    pub floor: bool,
    /// CPU time of each request.
    pub cost_ns: u64,
}

/// The queue is the process's: one at a time.
static ONE: Mutex<()> = Mutex::new(());

#[derive(Debug)]
pub struct Classes {
    costs: Vec<u64>,
    now_ns: u64,
    used_ns: Vec<u64>,
    served: Vec<u64>,
    _one: MutexGuard<'static, ()>,
}

impl Classes {
    pub fn new(classes: &[Class]) -> Self {
        let one = ONE.lock().unwrap_or_else(|broken| broken.into_inner());
        // SAFETY: the lock keeps every other user of the queue away.
        unsafe { classes_reset() };
        for (at, class) in classes.iter().enumerate() {
            // SAFETY: as above; the tests have fewer classes than a queue.
            unsafe {
                classes_add(class.level, class.weight, class.floor);
                classes_wait(at as u32, true);
            }
        }
        Self {
            costs: classes.iter().map(|class| class.cost_ns).collect(),
            now_ns: 1_000_000_000,
            used_ns: vec![0; classes.len()],
            served: vec![0; classes.len()],
            _one: one,
        }
    }

    /// The same, whose turns alone decide: one level, without limits.
    pub fn flat(classes: &[Class]) -> Self {
        let own = Self::new(classes);
        // SAFETY: as above.
        unsafe { classes_flat() };
        own
    }

    /// Sets what a class has had, and what the level has whose number it is.
    pub fn turn(&mut self, class: usize, turn: u64, level_turn: u64) {
        // SAFETY: as above.
        unsafe { classes_turn(class as u32, turn, level_turn) }
    }

    /// The class that is next: found by turns alone, and by all that can decide.
    pub fn next(&self) -> [Option<usize>; 2] {
        // SAFETY: as above.
        [true, false].map(|flat| usize::try_from(unsafe { classes_next(flat) }).ok())
    }

    /// One of it goes to the server at once, since nobody waits; `idle`: nobody is served either.
    pub fn enter(&mut self, class: usize, idle: bool) {
        // SAFETY: as above.
        unsafe { classes_enter(class as u32, idle) }
        self.serves(class);
    }

    /// Whether somebody of it waits.
    pub fn wait(&mut self, class: usize, waits: bool) {
        // SAFETY: as above.
        unsafe { classes_wait(class as u32, waits) }
    }

    /// It has used up its limit for so long.
    pub fn hold(&mut self, class: usize, for_ns: u64) {
        // SAFETY: as above.
        unsafe { classes_hold(class as u32, self.now_ns + for_ns) }
    }

    /// The classes of this level are promised a latency, and those below have `taken` of the `below` places that are left to them.
    pub fn promise(&mut self, level: u32, below: u32, taken: u32) {
        // SAFETY: as above.
        unsafe { classes_promise(level, below, taken) }
    }

    /// From now on all that wait go to the server.
    pub fn open(&mut self) {
        // SAFETY: as above.
        unsafe { classes_open() }
    }

    /// Serves the next request to its end. Whose it was.
    pub fn serve(&mut self) -> Option<usize> {
        // SAFETY: as above.
        let class = usize::try_from(unsafe { classes_serve(self.now_ns) }).ok()?;
        self.serves(class);
        Some(class)
    }

    fn serves(&mut self, class: usize) {
        let cost = self.costs[class];
        self.now_ns += cost;
        self.used_ns[class] += cost;
        self.served[class] += 1;
        // SAFETY: as above.
        unsafe { classes_charge(class as u32, cost) };
    }

    /// Serves for so long. What each class had of it, in percent.
    pub fn run(&mut self, length_ns: u64) -> Vec<f64> {
        let (begin, before) = (self.now_ns, self.used_ns.clone());
        while self.now_ns < begin + length_ns {
            if self.serve().is_none() {
                self.now_ns += 1_000_000;
            }
        }
        let length = (self.now_ns - begin) as f64;
        self.used_ns.iter().zip(before).map(|(after, before)| (after - before) as f64 * 100.0 / length).collect()
    }

    /// Whether a refusal of one that waited may follow another at once.
    pub fn refusal_follows(&mut self, now_ns: u64) -> bool {
        // SAFETY: as above.
        unsafe { refusals_follow(now_ns) }
    }

    /// Requests of each class that were served.
    pub fn served(&self) -> &[u64] {
        &self.served
    }
}

/// How long a class waits for CPU time that it used at once, by its limit in ns a second.
pub fn limit_delay_ns(cost_ns: u64, limit_ns: u64) -> u64 {
    // SAFETY: it is arithmetic alone.
    unsafe { classes_delay(cost_ns, limit_ns) }
}
