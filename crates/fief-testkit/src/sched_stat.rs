// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What the scheduler counts of a thread (Documentation/scheduler/sched-stats.rst).

use crate::{Error, Result};
use std::time::Duration;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SchedStat {
    /// By its own clock, without steal.
    pub ran: Duration,
    /// Ready to run while others did.
    pub waited: Duration,
}

impl SchedStat {
    /// Up to now. Errors: [`Kind::Missing`](crate::Kind) there is no such thread, or a kernel without SCHED_INFO.
    pub fn of(thread: u32) -> Result<SchedStat> {
        SchedStat::read(&format!("/proc/{thread}/schedstat"))
    }

    pub fn of_caller() -> Result<SchedStat> {
        SchedStat::read("/proc/thread-self/schedstat")
    }

    fn read(path: &str) -> Result<SchedStat> {
        let text = std::fs::read_to_string(path).map_err(|error| Error::io(format!("read {path}"), error))?;
        SchedStat::parse(&text).ok_or_else(|| Error::failed(format!("{path} says {text:?}")))
    }

    fn parse(text: &str) -> Option<SchedStat> {
        let mut fields = text.split_whitespace().map(|field| field.parse().map(Duration::from_nanos).ok());
        Some(SchedStat { ran: fields.next()??, waited: fields.next()?? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_field_is_what_ran_and_the_second_what_waited() {
        let stat = SchedStat { ran: Duration::from_nanos(5_000_000_007), waited: Duration::from_nanos(12) };
        assert_eq!(SchedStat::parse("5000000007 12 3\n"), Some(stat));
        assert_eq!(SchedStat::parse("5000000007\n"), None);
    }

    #[test]
    fn a_thread_that_works_runs() {
        let before = SchedStat::of_caller().expect("it is there");
        while SchedStat::of_caller().expect("it is there").ran == before.ran {}
    }
}
