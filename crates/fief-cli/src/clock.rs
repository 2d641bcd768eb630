// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Times for people and logs: the kernel side's clock, which counts from the start of the machine, as RFC 3339 in UTC.

use jiff::Timestamp;
use nix::time::{ClockId, clock_gettime};

/// The time of the wall clock at a reading of CLOCK_MONOTONIC, as far as the wall clock was not set since. Microseconds.
pub fn wall(monotonic_ns: u64) -> String {
    let since = now_ns().map_or(0, |now| i128::from(now) - i128::from(monotonic_ns));
    at(Timestamp::now().as_nanosecond() - since)
}

/// The same to a second, for what lies ahead or far behind.
pub fn wall_second(monotonic_ns: u64) -> String {
    let exact = wall(monotonic_ns);
    exact.split_once('.').map_or(exact.clone(), |(second, _)| format!("{second}Z"))
}

fn at(ns: i128) -> String {
    Timestamp::from_nanosecond(ns).map_or_else(|_| "-".to_owned(), |time| format!("{time:.6}"))
}

fn now_ns() -> Option<u64> {
    let now = clock_gettime(ClockId::CLOCK_MONOTONIC).ok()?;
    Some(now.tv_sec() as u64 * 1_000_000_000 + now.tv_nsec() as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_is_written_as_rfc_3339_has_it() {
        assert_eq!(at(1_764_093_600_123_456_789), "2025-11-25T18:00:00.123456Z");
        assert_eq!(at(0), "1970-01-01T00:00:00.000000Z");
    }

    #[test]
    fn a_reading_of_now_is_the_time_of_now() {
        let before = Timestamp::now().as_second();
        let now = now_ns().expect("a clock");
        let read: Timestamp = wall(now).parse().expect("RFC 3339");
        let after = Timestamp::now().as_second();
        assert!((before - 1..=after + 1).contains(&read.as_second()), "{before}, {read}, {after}");
        assert_eq!(wall_second(now).len(), "2025-11-25T18:00:00Z".len());
    }
}
