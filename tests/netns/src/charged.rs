// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What a thread has worked, by the kernel's own clock of it, and what a container is charged.

use std::time::Duration;

use fief::Container;
use nix::time::{ClockId, clock_gettime};

/// CPU time of the calling thread.
pub fn own_clock() -> Duration {
    Duration::from(clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID).expect("every thread has a clock"))
}

/// CPU time of threads that the container is charged with.
pub fn used(container: &Container) -> Duration {
    Duration::from_nanos(container.usage().expect("a container can be read").thread_ns)
}

/// That is how the tests of rings write times.
pub const fn ms(count: u64) -> Duration {
    Duration::from_millis(count)
}

/// Fails where the caller stands, unless a time is so near.
#[track_caller]
pub fn is_about(what: Duration, expected: Duration, within: Duration) {
    assert!(what.abs_diff(expected) <= within, "{what:?} is not within {within:?} of {expected:?}");
}
