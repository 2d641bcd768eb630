// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The clients of each class, with a connection for each request and with one that they keep, all at once and until they are told to
//! end. What is under way then is waited for, so that every request is known to be answered or not.

use super::{PORT, WATCHED};
use crate::error::{Error, Result};
use crate::load::{Close, Load, Seen, end};
use fief_testkit::{Client, Family, Topology};
use std::thread::JoinHandle;
use std::time::Duration;

/// Those of the middle class are tenants', who are to have no more work once they have no clients.
const PARTS: [(Client, Close, u16); 6] = [
    (Client::High, Close::Fin, PORT),
    (Client::High, Close::Keep, PORT),
    (Client::Low, Close::Fin, PORT),
    (Client::Low, Close::Keep, PORT),
    (Client::Middle, Close::Fin, PORT),
    (Client::Middle, Close::Fin, WATCHED),
];
const CLIENTS: usize = 4;
const ADDRESSES: u8 = 20;
/// As wrk's.
const PATIENCE_MS: u64 = 2000;
/// Longer than an experiment.
const MOST: Duration = Duration::from_secs(3600);
const SECOND_MS: u64 = 1000;

/// In words, for figures.
pub const WORDS: &str = "24 closed-loop clients of three classes, a connection for each request and kept ones, as fast as they are answered";

/// What clients saw in all, and in each second.
type Watched = Result<(Seen, Vec<Seen>)>;

#[derive(Debug)]
struct Part {
    class: Client,
    pid: u32,
    seen: Option<JoinHandle<Watched>>,
}

/// Ends with its guard.
#[derive(Debug)]
pub struct Crowd {
    parts: Vec<Part>,
}

/// What the clients saw.
#[derive(Debug, Default)]
pub struct Answered {
    /// Of each class: high, low, middle.
    pub classes: [Seen; 3],
    /// Requests served in each second, of all together.
    pub seconds: Vec<f64>,
}

impl Answered {
    fn all(&self, of: impl Fn(&Seen) -> u64) -> u64 {
        self.classes.iter().map(of).sum()
    }

    pub fn served(&self) -> u64 {
        self.all(|seen| seen.latency.count())
    }

    pub fn lost(&self) -> u64 {
        self.all(Seen::lost)
    }

    /// Those that took 0.9 s or longer, and were served or not.
    pub fn stalls(&self) -> u64 {
        self.all(|seen| seen.stalls)
    }
}

impl Crowd {
    pub fn start(topology: &Topology) -> Result<Self> {
        let mut crowd = Self { parts: Vec::new() };
        for (class, close, port) in PARTS {
            let load = Load {
                server: Topology::server_address(Family::V4, port),
                close,
                seconds: MOST.as_secs_f64(),
                patience_ms: PATIENCE_MS,
                settle_ms: PATIENCE_MS,
                live_ms: SECOND_MS,
                ..Load::of(class, ADDRESSES, CLIENTS)
            };
            let running = load.start(&topology.clients)?;
            let pid = running.pid();
            let seen = std::thread::spawn(move || {
                let mut seconds = Vec::new();
                let seen = running.watch(|second| seconds.push(second.clone()))?;
                Ok((seen, seconds))
            });
            crowd.parts.push(Part { class, pid, seen: Some(seen) });
        }
        Ok(crowd)
    }

    pub fn end(mut self) -> Result<Answered> {
        let mut answered = Answered::default();
        for (class, seen) in self.join() {
            let (seen, seconds) = seen?;
            answered.classes[place(class)].merge(&seen);
            let served = seconds.iter().map(Seen::per_second);
            // all began at once, and the last one that is whole is told of by all
            answered.seconds = match answered.seconds.is_empty() {
                true => served.collect(),
                false => answered.seconds.iter().zip(served).map(|(one, other)| one + other).collect(),
            };
        }
        Ok(answered)
    }

    fn join(&mut self) -> Vec<(Client, Watched)> {
        self.parts.iter().filter(|part| part.seen.is_some()).for_each(|part| end(part.pid));
        let joined = self.parts.iter_mut().filter_map(|part| Some((part.class, part.seen.take()?.join())));
        let broken = || Err(Error::failed("a load's reader ended before it"));
        joined.map(|(class, seen)| (class, seen.unwrap_or_else(|_| broken()))).collect()
    }
}

impl Drop for Crowd {
    fn drop(&mut self) {
        self.join();
    }
}

/// In [`Answered::classes`].
pub fn place(class: Client) -> usize {
    match class {
        Client::High => 0,
        Client::Low => 1,
        Client::Middle => 2,
    }
}
