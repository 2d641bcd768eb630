// SPDX-License-Identifier: Apache-2.0 OR MIT
//! When the requests of an open loop come: evenly, and in volleys. Pure.
//!
//! Volleys are those of the paper's burst experiment: so many requests back to back, at irregular times, beside the even
//! ones. Their sizes and times come from a generator with a fixed seed, so that every way is offered the same.

use serde::{Deserialize, Serialize};
use std::time::Duration;

#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Arrivals {
    pub per_second: f64,
    pub volleys: Option<Volleys>,
}

/// `least` to `most` requests at once, after pauses of half to one and a half of the mean.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Volleys {
    pub least: u32,
    pub most: u32,
    pub per_second: f64,
}

/// Tells how many requests have come, as time goes by.
#[derive(Debug)]
pub struct Schedule {
    arrivals: Arrivals,
    /// Even arrivals so far.
    even: u64,
    next_volley: Duration,
    state: u64,
}

impl Arrivals {
    pub fn evenly(per_second: f64) -> Arrivals {
        Arrivals { per_second, volleys: None }
    }
}

impl Schedule {
    pub fn new(arrivals: Arrivals) -> Schedule {
        let mut schedule = Schedule { arrivals, even: 0, next_volley: Duration::MAX, state: 0x9e37_79b9_7f4a_7c15 };
        if let Some(volleys) = arrivals.volleys {
            schedule.next_volley = schedule.pause(volleys);
        }
        schedule
    }

    /// When the next request comes, since the begin.
    pub fn next(&self) -> Duration {
        self.next_even().min(self.next_volley)
    }

    fn next_even(&self) -> Duration {
        match self.arrivals.per_second {
            rate if rate > 0.0 => Duration::from_secs_f64((self.even + 1) as f64 / rate),
            _ => Duration::MAX,
        }
    }

    /// How many have come up to now and were not told before.
    pub fn take(&mut self, now: Duration) -> u64 {
        let mut count = 0;
        while self.next_even() <= now {
            self.even += 1;
            count += 1;
        }
        while let Some(volleys) = self.arrivals.volleys
            && self.next_volley <= now
        {
            let span = u64::from(volleys.most.saturating_sub(volleys.least)) + 1;
            count += u64::from(volleys.least) + self.random() % span;
            let pause = self.pause(volleys);
            self.next_volley += pause;
        }
        count
    }

    fn pause(&mut self, volleys: Volleys) -> Duration {
        let part = 0.5 + (self.random() % 1000) as f64 / 1000.0;
        Duration::from_secs_f64(part / volleys.per_second.max(0.01))
    }

    /// xorshift64: even enough for a load.
    fn random(&mut self) -> u64 {
        self.state ^= self.state << 13;
        self.state ^= self.state >> 7;
        self.state ^= self.state << 17;
        self.state
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn even_arrivals_come_at_their_rate_however_often_one_looks() {
        for look_ms in [1, 7, 250] {
            let mut schedule = Schedule::new(Arrivals::evenly(300.0));
            let count: u64 = (1..=1000 / look_ms).map(|n| schedule.take(Duration::from_millis(n * look_ms))).sum();
            assert!((297..=300).contains(&count), "{count} looking every {look_ms} ms");
        }
    }

    #[test]
    fn volleys_have_their_size_and_their_mean_rate() {
        let volleys = Volleys { least: 50, most: 80, per_second: 2.0 };
        let mut schedule = Schedule::new(Arrivals { per_second: 0.0, volleys: Some(volleys) });
        let mut sizes = Vec::new();
        while schedule.next() < Duration::from_secs(100) {
            sizes.push(schedule.take(schedule.next()));
        }
        assert!((180..=220).contains(&sizes.len()), "{} volleys in 100 s", sizes.len());
        assert!(sizes.iter().all(|size| (50..=80).contains(size)), "{sizes:?}");
    }

    #[test]
    fn without_arrivals_nothing_comes() {
        let mut schedule = Schedule::new(Arrivals::evenly(0.0));
        assert_eq!(schedule.take(Duration::from_secs(1000)), 0);
        assert_eq!(schedule.next(), Duration::MAX);
    }
}
