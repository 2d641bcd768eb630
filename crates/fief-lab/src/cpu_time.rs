// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What processes and kernel threads ran, by the scheduler's own clock: to the nanosecond, and without steal.

/// Of all threads of these processes, up to now.
pub fn cpu_seconds(processes: &[u32]) -> f64 {
    let run_ns = |path: std::path::PathBuf| {
        let text = std::fs::read_to_string(path.join("schedstat")).unwrap_or_default();
        text.split(' ').next().and_then(|word| word.parse::<u64>().ok()).unwrap_or(0)
    };
    let threads = processes.iter().filter_map(|pid| std::fs::read_dir(format!("/proc/{pid}/task")).ok());
    let total: u64 = threads.flatten().flatten().map(|thread| run_ns(thread.path())).sum();
    total as f64 / 1e9
}
