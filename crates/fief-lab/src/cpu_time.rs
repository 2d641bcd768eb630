// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What processes and kernel threads ran, by the scheduler's own clock: to the nanosecond, and without steal.

use fief_testkit::SchedStat;
use std::time::Duration;

/// Of all threads of these processes, up to now.
pub fn cpu_seconds(processes: &[u32]) -> f64 {
    let threads = processes.iter().filter_map(|pid| std::fs::read_dir(format!("/proc/{pid}/task")).ok());
    let numbers = threads.flatten().flatten().filter_map(|thread| thread.file_name().to_str()?.parse().ok());
    // one that has ended meanwhile ran nothing
    let ran: Duration = numbers.map(|thread| SchedStat::of(thread).unwrap_or_default().ran).sum();
    ran.as_secs_f64()
}
