// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Where cgroups hold a process, and whether its limit of the CPU holds.

use std::fs;
use std::time::{Duration, Instant};

use fief_testkit::wait_until;

/// Processes that are limited to a tenth of the machine have nearly that within `at_last`, and never much more, over windows of
/// two seconds. `ran`: the CPU time that they have used.
#[track_caller]
pub fn has_its_tenth(cpus: u32, at_last: Duration, ran: impl Fn() -> Duration) {
    let window = || {
        let (begin, before) = (Instant::now(), ran());
        wait_until(at_last, || begin.elapsed() > Duration::from_secs(2)).unwrap();
        (ran() - before).as_secs_f64() / begin.elapsed().as_secs_f64() / f64::from(cpus) * 100.0
    };
    window();
    // others on the machine can keep them from having it, and nobody may give them more
    let mut percent = 0.0;
    wait_until(at_last, || {
        percent = window();
        assert!(percent <= 12.0, "{percent} %");
        percent >= 8.0
    })
    .unwrap_or_else(|_| panic!("{percent} %"));
}

/// The group of the CPU that a process is in, as the kernel tells it.
pub fn cpu_group(pid: u32) -> String {
    let text = fs::read_to_string(format!("/proc/{pid}/cgroup")).unwrap_or_default();
    let is_own = |line: &&str| line.split(':').nth(1).is_some_and(|names| names.split(',').any(|name| name == "cpu"));
    let line = text.lines().find(is_own).or_else(|| text.lines().find(|line| line.starts_with("0::")));
    line.and_then(|line| line.splitn(3, ':').nth(2)).unwrap_or_default().to_owned()
}
