// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Whose turn it is: clients that think, that try again or bring an arrival, and requests that nobody waits for any more.
//! Pure.
//!
//! All pauses of one kind are equal, so each kind is a queue in order and not a heap.

use super::Load;
use super::arrivals::Schedule;
use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// A client whose connection failed tries again after this.
const RETRY: Duration = Duration::from_millis(10);
/// Requests are given up together, so that the timer is not set anew for each one that was answered in time.
const PATIENCE_STEP: Duration = Duration::from_millis(5);

/// One request of one client: its number, and which of its requests it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Turn {
    pub client: usize,
    pub request: usize,
}

#[derive(Debug)]
pub struct Turns {
    begin: Instant,
    think: Duration,
    patience: Option<Duration>,
    thinking: VecDeque<(Instant, usize)>,
    retrying: VecDeque<(Instant, usize)>,
    /// In an open loop: what comes when, and who is free to bring it.
    schedule: Option<Schedule>,
    free: Vec<usize>,
    /// Requests of an open loop that have come and were not taken.
    come: u64,
    giving_up: VecDeque<(Instant, Turn)>,
}

/// What happens next.
#[derive(Debug, PartialEq, Eq)]
pub enum Due {
    Start(usize),
    /// A request of an open loop, and no client is free.
    Shed,
}

impl Turns {
    pub fn new(load: &Load, begin: Instant) -> Turns {
        let schedule = load.arrivals.map(Schedule::new);
        let (closed, open) = if schedule.is_none() { (load.clients, 0) } else { (0, load.clients) };
        Turns {
            begin,
            think: Duration::from_micros(load.think_us),
            patience: (load.patience_ms > 0).then(|| Duration::from_millis(load.patience_ms)),
            thinking: (0..closed).map(|client| (begin, client)).collect(),
            retrying: VecDeque::new(),
            schedule,
            free: (0..open).collect(),
            come: 0,
            giving_up: VecDeque::new(),
        }
    }

    /// What is due by now, one by one.
    pub fn take(&mut self, now: Instant) -> Option<Due> {
        for queue in [&mut self.thinking, &mut self.retrying] {
            if let Some((_, client)) = queue.pop_front_if(|(due, _)| *due <= now) {
                return Some(Due::Start(client));
            }
        }
        if let Some(schedule) = self.schedule.as_mut() {
            self.come += schedule.take(now.saturating_duration_since(self.begin));
        }
        self.come = self.come.checked_sub(1)?;
        Some(self.free.pop().map_or(Due::Shed, Due::Start))
    }

    /// A request whose patience has ended; it may have been answered meanwhile.
    pub fn take_given_up(&mut self, now: Instant) -> Option<Turn> {
        self.giving_up.pop_front_if(|(due, _)| *due <= now).map(|(_, turn)| turn)
    }

    /// When to look again.
    pub fn next(&self) -> Option<Instant> {
        let waiting = [self.thinking.front(), self.retrying.front()].into_iter().flatten().map(|entry| entry.0);
        let arrival = self.schedule.as_ref().and_then(|schedule| self.begin.checked_add(schedule.next()));
        let patience = self.giving_up.front().map(|entry| entry.0 + PATIENCE_STEP);
        waiting.chain(arrival).chain(patience).min()
    }

    pub fn begun(&mut self, turn: Turn, now: Instant) {
        if let Some(patience) = self.patience {
            self.giving_up.push_back((now + patience, turn));
        }
    }

    /// The client got an answer; whether it asks again at once.
    pub fn answered(&mut self, client: usize, now: Instant) -> bool {
        if self.schedule.is_some() {
            self.free.push(client);
            return false;
        }
        if self.think.is_zero() {
            return true;
        }
        self.thinking.push_back((now + self.think, client));
        false
    }

    /// The client got none.
    pub fn failed(&mut self, client: usize, now: Instant) {
        match self.schedule {
            Some(_) => self.free.push(client),
            None => self.retrying.push_back((now + RETRY, client)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::load::{Arrivals, Close, Protocol};

    fn load(clients: usize) -> Load {
        Load {
            server: ([10, 77, 0, 1], 80).into(),
            protocol: Protocol::Http,
            path: "/".to_owned(),
            seconds: 1.0,
            warm_up: 0.0,
            first: [10, 77, 2, 1].into(),
            addresses: 1,
            clients,
            think_us: 2000,
            arrivals: None,
            patience_ms: 100,
            close: Close::Rst,
            settle_ms: 0,
            cpu: 0,
            fifo: 0,
            live_ms: 0,
        }
    }

    #[test]
    fn who_was_answered_thinks_and_who_was_not_tries_again_later() {
        let begin = Instant::now();
        let mut turns = Turns::new(&load(2), begin);
        assert_eq!([turns.take(begin), turns.take(begin)], [Some(Due::Start(0)), Some(Due::Start(1))]);
        assert!(!turns.answered(0, begin), "it thinks first");
        turns.failed(1, begin);
        let (thought, retried) = (begin + Duration::from_millis(2), begin + RETRY);
        assert_eq!(turns.next(), Some(thought));
        assert_eq!([turns.take(thought), turns.take(thought)], [Some(Due::Start(0)), None]);
        assert_eq!(turns.take(retried), Some(Due::Start(1)));
    }

    #[test]
    fn an_arrival_is_brought_by_who_is_free_and_else_shed() {
        let begin = Instant::now();
        let mut turns = Turns::new(&Load { arrivals: Some(Arrivals::evenly(100.0)), ..load(1) }, begin);
        let second = begin + Duration::from_millis(20);
        assert_eq!([turns.take(second), turns.take(second)], [Some(Due::Start(0)), Some(Due::Shed)]);
        assert_eq!(turns.take(second), None);
        assert!(!turns.answered(0, second), "the next one has not come yet");
        assert_eq!(turns.take(begin + Duration::from_millis(30)), Some(Due::Start(0)));
    }

    #[test]
    fn patience_ends_in_the_order_of_the_requests() {
        let begin = Instant::now();
        let mut turns = Turns::new(&load(2), begin);
        let turn = |client| Turn { client, request: 1 };
        turns.begun(turn(0), begin);
        turns.begun(turn(1), begin + Duration::from_millis(1));
        let end = begin + Duration::from_millis(100);
        assert_eq!([turns.take_given_up(end), turns.take_given_up(end)], [Some(turn(0)), None]);
    }
}
