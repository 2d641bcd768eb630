// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A server with one line in front of it, whose clients come by themselves, or ask again once they are answered or refused.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

use crate::classes::{
    Classes, line_comes, line_goes, line_has_enough, line_refuses, line_serves, line_waits, line_would_wait,
};

const MS: u64 = 1_000_000;

/// What a client does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Client {
    /// It asks once.
    Passing,
    /// It asks again when it is answered, once it has thought, and after a second when it is refused.
    Returning,
}

/// What became of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ended {
    pub waited_ms: u64,
    pub served: bool,
}

/// One class's line, whose first is served every so often.
#[derive(Debug)]
pub struct Waits {
    /// Kept for its lock.
    _queue: Classes,
    now_ms: u64,
    serve_us: u64,
    served_us: u64,
    length: usize,
    wait_ns: u64,
    line: VecDeque<(u64, Client)>,
    again: BinaryHeap<Reverse<u64>>,
    think_ms: u64,
    random: u64,
    ended: Vec<Ended>,
}

impl Waits {
    /// `a_second`: served; `length`: so many wait at most.
    pub fn new(a_second: u64, length: usize) -> Self {
        let queue = Classes::new(&[]);
        let wait_ns = 5000 * MS;
        // SAFETY: the queue's lock keeps every other user away.
        unsafe { line_waits(wait_ns, wait_ns / 16) };
        Self {
            _queue: queue,
            now_ms: 1_000_000,
            serve_us: 1_000_000 / a_second,
            served_us: 0,
            length,
            wait_ns,
            line: VecDeque::new(),
            again: BinaryHeap::new(),
            think_ms: 0,
            random: 0x9e37_79b9_7f4a_7c15,
            ended: Vec::new(),
        }
    }

    fn ends(&mut self, since_ms: u64, client: Client, served: bool, late: bool) {
        self.ended.push(Ended { waited_ms: self.now_ms - since_ms, served });
        // SAFETY: as above.
        unsafe { if served { line_serves() } else { line_refuses(late) } };
        match (client, served) {
            (Client::Passing, _) => {}
            (Client::Returning, true) if self.think_ms > 0 => {
                let thinks = self.chance() % (2 * self.think_ms);
                self.again.push(Reverse(self.now_ms + thinks));
            }
            (Client::Returning, true) => self.comes(client),
            (Client::Returning, false) => self.again.push(Reverse(self.now_ms + 1000)),
        }
    }

    fn chance(&mut self) -> u64 {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        self.random >> 16
    }

    /// Clients that ask again think for so long before, on the average.
    pub fn think(&mut self, ms: u64) {
        self.think_ms = ms;
    }

    fn comes(&mut self, client: Client) {
        if self.line.len() >= self.length {
            return self.ends(self.now_ms, client, false, false);
        }
        // SAFETY: as above.
        if unsafe { line_has_enough(self.now_ms * MS) } {
            return self.ends(self.now_ms, client, false, true);
        }
        self.line.push_back((self.now_ms, client));
        let first = self.line.front().map_or(self.now_ms, |(since, _)| *since);
        // SAFETY: as above.
        self.wait_ns = unsafe { line_comes(self.now_ms * MS, self.line.len() as u32, first * MS) };
    }

    /// One that asks again and again, from now on.
    pub fn client_comes(&mut self) {
        self.comes(Client::Returning);
    }

    fn first_goes(&mut self, served: bool) {
        let Some((since, client)) = self.line.pop_front() else { return };
        // SAFETY: as above.
        self.wait_ns = unsafe { line_goes(self.line.len() as u32) };
        self.ends(since, client, served, true);
    }

    /// Goes on for so long, in which so many come each second by themselves.
    pub fn run(&mut self, length_ms: u64, a_second: u64) {
        let mut due = 0;
        for _ in 0..length_ms {
            self.now_ms += 1;
            while self.again.peek().is_some_and(|at| at.0 <= self.now_ms) {
                self.again.pop();
                self.comes(Client::Returning);
            }
            // by chance, as clients do that know nothing of each other
            due += if a_second > 0 { self.chance() % (2 * a_second + 1) } else { 0 };
            while due >= 1000 {
                due -= 1000;
                self.comes(Client::Passing);
            }
            while self.line.front().is_some_and(|(since, _)| (self.now_ms - since) * MS > self.wait_ns) {
                self.first_goes(false);
            }
            self.served_us += 1000;
            while self.served_us >= self.serve_us {
                self.served_us -= self.serve_us;
                self.first_goes(true);
            }
        }
    }

    /// The requests that have ended since the last call.
    pub fn take(&mut self) -> Vec<Ended> {
        std::mem::take(&mut self.ended)
    }

    /// So many would wait if the line were not held to a short wait.
    pub fn would_wait(&self) -> u64 {
        // SAFETY: as above.
        unsafe { line_would_wait(self.now_ms * MS) }
    }

    pub fn waiting(&self) -> usize {
        self.line.len()
    }
}
