// SPDX-License-Identifier: Apache-2.0 OR MIT
//! When it is time for the next turn of something that is done again and again.

use std::time::{Duration, Instant};

/// Turns at whole intervals: what one costs does not add up, and those that were missed are not made up for.
#[derive(Debug)]
pub struct Turns {
    next: Instant,
    interval: Duration,
}

impl Turns {
    /// The first one then.
    pub fn every(interval: Duration, first: Instant) -> Self {
        Self { next: first, interval }
    }

    /// Whether it is time; the next one then is later.
    pub fn is_due(&mut self) -> bool {
        let now = Instant::now();
        if now < self.next {
            return false;
        }
        let missed = (now - self.next).as_nanos() / self.interval.as_nanos().max(1);
        self.next += self.interval * u32::try_from(missed + 1).unwrap_or(u32::MAX);
        true
    }

    /// How long until the next one.
    pub fn wait(&self) -> Duration {
        self.next.saturating_duration_since(Instant::now())
    }
}
