// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The threads of one container on one CPU, in the order that its policy gives them.

use crate::{Given, Machine};

unsafe extern "C" {
    fn line_reset(thread: u32);
    fn line_policy(id: u32, policy: u32, period_us: u32, budget_us: u32);
    fn line_place(id: u32, thread: u32, weight: u32, slept: bool, now: u64) -> u64;
    fn line_runs(thread: u32, sum_ns: u64);
    fn line_ran(thread: u32, sum_ns: u64);
    fn line_slice(id: u32, thread: u32) -> u64;
    fn object_answers(number: u32, answers: u32, ahead_ns: i64, takes_ns: u64);
    fn object_asked(verb: u32) -> u32;
    fn object_faults(number: u32) -> u64;
    fn object_removed(number: u32) -> bool;
}

/// An order from outside, of number 0: it places threads so far from now, and thinks so long.
#[derive(Debug, Clone, Copy)]
pub struct Answer {
    pub is_one: bool,
    pub ahead_ns: i64,
    pub takes_ns: u64,
}

/// By the numbers of `enum fief_policy`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Policy {
    Fair = 0,
    Fifo = 1,
    Rr = 2,
    Edf = 3,
    Lottery = 4,
    /// The one of number 0 from outside.
    Object = 16,
}

impl Policy {
    pub const ALL: [Self; 6] = [Self::Fair, Self::Fifo, Self::Rr, Self::Edf, Self::Lottery, Self::Object];
}

/// It runs for `burst_ns`, then sleeps until `every_ns` after it last woke up; without the latter it never sleeps.
#[derive(Debug, Clone, Copy)]
pub struct Work {
    pub weight: u32,
    pub burst_ns: u64,
    pub every_ns: Option<u64>,
}

#[derive(Debug)]
struct Thread {
    work: Work,
    /// Where it waits; `None`: it sleeps.
    place: Option<u64>,
    wakes_ns: u64,
    left_ns: u64,
    used_ns: u64,
    /// When it came to wait where it does.
    since_ns: u64,
    /// Longest time in line without the CPU, of waits that have ended.
    longest_ns: u64,
    /// Bursts that ended later than the next one was to begin.
    missed: u32,
}

#[derive(Debug)]
pub struct Line {
    /// Keeps the tables.
    _machine: Machine,
    id: u32,
    policy: Policy,
    now_ns: u64,
    running: Option<usize>,
    threads: Vec<Thread>,
    pub idle_ns: u64,
}

impl Line {
    pub fn new(policy: Policy) -> Self {
        let mut machine = Machine::new();
        let id = machine.container(0, Given::default());
        let mut line = Self {
            _machine: machine,
            id,
            policy,
            now_ns: 1_000_000_000,
            running: None,
            threads: Vec::new(),
            idle_ns: 0,
        };
        line.exchange(policy, 0, 0);
        line
    }

    /// From now on; the times are those of `edf`, 0 for its own.
    pub fn exchange(&mut self, policy: Policy, period_us: u32, budget_us: u32) {
        self.policy = policy;
        // SAFETY: the machine keeps every other user of the tables away.
        unsafe { line_policy(self.id, policy as u32, period_us, budget_us) };
    }

    /// The order from outside is this one from now on.
    pub fn bring(&mut self, answer: Answer) {
        let Answer { is_one, ahead_ns, takes_ns } = answer;
        // SAFETY: as above.
        unsafe { object_answers(0, is_one.into(), ahead_ns, takes_ns) };
    }

    /// How often the order from outside was asked, by `enum fief_turn_verb`.
    pub fn asked(&self, verb: u32) -> u32 {
        // SAFETY: as above; a number of the enumeration.
        unsafe { object_asked(verb) }
    }

    /// Its faults, and whether it is not asked any more.
    pub fn faults(&self) -> (u64, bool) {
        // SAFETY: as above.
        unsafe { (object_faults(0), object_removed(0)) }
    }

    /// A thread that wakes up `after_ns` from now. Returns its number.
    pub fn add(&mut self, work: Work, after_ns: u64) -> usize {
        let wakes_ns = self.now_ns + after_ns;
        // SAFETY: as above; tests have fewer threads than the table.
        unsafe { line_reset(self.threads.len() as u32) };
        self.threads.push(Thread {
            work,
            place: None,
            wakes_ns,
            left_ns: 0,
            used_ns: 0,
            since_ns: 0,
            longest_ns: 0,
            missed: 0,
        });
        self.threads.len() - 1
    }

    pub fn used_ns(&self, thread: usize) -> u64 {
        self.threads[thread].used_ns
    }

    /// The longest time in line without the CPU; of a wait that has not ended, so far.
    pub fn longest_ns(&self, thread: usize) -> u64 {
        let thread = &self.threads[thread];
        let so_far = thread.place.map_or(0, |_| self.now_ns - thread.since_ns);
        thread.longest_ns.max(so_far)
    }

    pub fn missed(&self, thread: usize) -> u32 {
        self.threads[thread].missed
    }

    fn take_place(&mut self, at: usize, slept: bool) {
        let weight = self.threads[at].work.weight;
        // SAFETY: as above.
        let place = unsafe { line_place(self.id, at as u32, weight, slept, self.now_ns) };
        self.threads[at].place = Some(place);
        self.threads[at].since_ns = self.now_ns;
    }

    fn wake(&mut self) {
        for at in 0..self.threads.len() {
            let thread = &mut self.threads[at];
            let sleeps = thread.place.is_none() && thread.left_ns == 0 && self.running != Some(at);
            if sleeps && thread.wakes_ns <= self.now_ns {
                thread.left_ns = thread.work.burst_ns;
                self.take_place(at, true);
            }
        }
    }

    /// Who is first, as the kernel's queue orders places.
    fn first(&self) -> Option<usize> {
        let waiting = (0..self.threads.len()).filter(|&at| self.threads[at].place.is_some());
        waiting.min_by(|&a, &b| {
            let (a, b) = (self.threads[a].place.unwrap_or(0), self.threads[b].place.unwrap_or(0));
            (a.wrapping_sub(b) as i64).cmp(&0)
        })
    }

    fn next_wake(&self) -> u64 {
        let asleep = self.threads.iter().filter(|thread| thread.place.is_none() && thread.left_ns == 0);
        asleep.map(|thread| thread.wakes_ns).min().unwrap_or(u64::MAX)
    }

    pub fn run(&mut self, length_ns: u64) {
        let end = self.now_ns + length_ns;
        while self.now_ns < end {
            self.wake();
            match self.first() {
                Some(at) => self.turn(at, end),
                None => {
                    let until = self.next_wake().min(end);
                    self.idle_ns += until - self.now_ns;
                    self.now_ns = until;
                }
            }
        }
    }

    /// It has the CPU to the end of its slice, or until it sleeps or is overtaken.
    fn turn(&mut self, at: usize, end: u64) {
        let place = self.threads[at].place.take();
        self.running = Some(at);
        // SAFETY: as above.
        let slice = unsafe { line_slice(self.id, at as u32) };
        let until = self.now_ns + slice;
        let thread = &mut self.threads[at];
        thread.longest_ns = thread.longest_ns.max(self.now_ns - thread.since_ns);
        // SAFETY: as above.
        unsafe { line_runs(at as u32, thread.used_ns) };
        while self.now_ns < until.min(end) && self.threads[at].left_ns > 0 {
            let asleep = self.next_wake();
            let thread = &mut self.threads[at];
            let ns = (until.min(end) - self.now_ns).min(thread.left_ns).min(asleep.saturating_sub(self.now_ns).max(1));
            thread.used_ns += ns;
            thread.left_ns -= ns;
            self.now_ns += ns;
            self.wake();
            let earlier =
                |first: usize| (self.threads[first].place.unwrap_or(0).wrapping_sub(place.unwrap_or(0)) as i64) < 0;
            if self.policy == Policy::Edf && self.first().is_some_and(earlier) {
                break;
            }
        }
        self.running = None;
        let thread = &mut self.threads[at];
        // SAFETY: as above.
        unsafe { line_ran(at as u32, thread.used_ns) };
        if thread.left_ns > 0 {
            return self.take_place(at, false);
        }
        match thread.work.every_ns {
            Some(every) => {
                thread.wakes_ns += every;
                thread.missed += u32::from(thread.wakes_ns < self.now_ns);
                thread.wakes_ns = thread.wakes_ns.max(self.now_ns);
            }
            None => {
                thread.left_ns = thread.work.burst_ns;
                self.take_place(at, false);
            }
        }
    }
}
