// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Real-time threads of limited containers: the kernel has a class for them above those that a scheduler of sched_ext, or a cgroup's
//! quota, divides. They are charged, and nothing stops them.

use std::fs;
use std::path::Path;

use fief_bpf::process;
use fief_policy::{Policy, is_within};

use crate::children::ROOT;
use crate::{Snapshot, cgroup};

/// So many threads of a managed cgroup are looked at.
const THREADS: usize = 10_000;

/// A sentence for each managed cgroup that has some.
pub(super) fn find(policy: &Policy, snapshot: &Snapshot) -> Vec<String> {
    if snapshot.scheduler.word().is_none() {
        return Vec::new(); // nobody holds a limit
    }
    let units = snapshot.units.iter().filter(|unit| is_limited(policy, &unit.container));
    units.filter_map(|unit| of_unit(unit.cgroup.as_ref()?, process::is_real_time)).collect()
}

/// Whether threads that are at home there can come under a limit: that of the home, of what is above it, or of a class below.
fn is_limited(policy: &Policy, home: &str) -> bool {
    let mut limited = policy.containers.iter().filter(|container| container.cpu.limit_ppm != 0);
    limited.any(|one| home == ROOT || is_within(home, &one.path) || is_within(&one.path, home))
}

fn of_unit(folder: &Path, is_real_time: impl Fn(i32) -> bool) -> Option<String> {
    let found: Vec<i32> = threads(folder).into_iter().filter(|tid| is_real_time(*tid)).collect();
    let first = found.first()?;
    let have = match found.len() {
        1 => format!("thread {first} has"),
        count => format!("{count} threads, as {first}, have"),
    };
    Some(format!(
        "{}: {have} a real-time policy (SCHED_FIFO, SCHED_RR or SCHED_DEADLINE), which comes before whatever divides the CPU: that time is \
         charged, and no cpu.limit ends it; give each another policy: chrt --other --pid 0 {first}",
        folder.display()
    ))
}

/// In it and below.
fn threads(folder: &Path) -> Vec<i32> {
    let (mut found, mut folders) = (Vec::new(), vec![folder.to_owned()]);
    while let Some(folder) = folders.pop().filter(|_| found.len() < THREADS) {
        let text = fs::read_to_string(folder.join("cgroup.threads")).unwrap_or_default();
        // 0: of another PID namespace; for the kernel it would be the caller
        found.extend(text.lines().filter_map(|line| line.parse::<i32>().ok()).filter(|tid| *tid > 0));
        folders.extend(cgroup::children(&folder));
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn real_time_threads_in_a_cgroup_or_below_are_told() {
        let top = tempfile::tempdir().expect("a folder");
        let below = top.path().join("worker");
        fs::create_dir(&below).expect("made");
        fs::write(top.path().join("cgroup.threads"), "7\n8\n0\n").expect("written");
        fs::write(below.join("cgroup.threads"), "9\n").expect("written");
        assert_eq!(of_unit(top.path(), |_| false), None);
        let one = of_unit(top.path(), |tid| tid == 9).expect("it is told");
        assert!(one.contains(": thread 9 has a real-time policy (") && one.ends_with(" 0 9"), "{one}");
        let all = of_unit(top.path(), |_| true).expect("they are told");
        assert!(all.contains(": 3 threads, as 7, have a real-time policy ("), "{all}");
    }

    #[test]
    fn a_home_is_limited_by_what_is_above_it_and_by_classes_below() {
        let text = "version = 1\n[container.\"a/b\"]\ncpu.limit = \"10%\"\n[container.\"a/b/c\"]\n[container.d]\n";
        let policy = fief_policy::parse(text, "policy").unwrap_or_else(|errors| panic!("{errors}"));
        let limited = ["a", "a/b", "a/b/c", "d", ROOT].map(|home| is_limited(&policy, home));
        assert_eq!(limited, [true, true, true, false, true]);
        let free = text.replace("cpu.limit = \"10%\"\n", "");
        let free = fief_policy::parse(&free, "policy").unwrap_or_else(|errors| panic!("{errors}"));
        assert!(!is_limited(&free, ROOT));
    }
}
