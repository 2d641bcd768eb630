// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What a thread ran by the clock on the wall, from one switch of its CPU to the next (perf's task clock).
//!
//! The scheduler's own account gives a thread its CPU from the moment when it was woken, though the one before it went on
//! for a while (kernel/sched/core.c, `rq_clock_skip_update`). Beside a thread that is woken while another one receives
//! with softirqs off, that is most of the other one's time.

use crate::{Error, Result};
use perf_event::events::Software;
use perf_event::{Builder, Counter};
use std::time::Duration;

/// Counts from when it was made.
pub struct TaskClock {
    thread: u32,
    counter: Counter,
}

impl TaskClock {
    pub fn of(thread: u32) -> Result<TaskClock> {
        let counter = Builder::new(Software::TASK_CLOCK)
            .observe_pid(thread.cast_signed())
            .include_kernel()
            .enabled(true)
            .build()
            .map_err(|error| Error::io(format!("count what thread {thread} runs (perf_event_open)"), error))?;
        Ok(TaskClock { thread, counter })
    }

    /// Wall time that the thread had a CPU, with what a hypervisor took meanwhile.
    pub fn ran(&mut self) -> Result<Duration> {
        let ns =
            self.counter.read().map_err(|error| Error::io(format!("read what thread {} ran", self.thread), error))?;
        Ok(Duration::from_nanos(ns))
    }
}
