// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Real-time threads of limited containers: the kernel has a class for them above those that a scheduler of sched_ext, or a cgroup's
//! quota, divides. They are charged, and nothing stops them.

use std::collections::HashSet;
use std::fs;
use std::path::Path;

use fief_bpf::process;
use fief_policy::{Listener, Policy, is_within};

use crate::children::ROOT;
use crate::{Snapshot, cgroup};

/// So many threads of a managed cgroup are looked at.
const THREADS: usize = 10_000;

/// A sentence for each managed cgroup that has some.
pub(super) fn find(policy: &Policy, snapshot: &Snapshot) -> Vec<String> {
    if snapshot.scheduler.word().is_none() {
        return Vec::new(); // nobody holds a limit
    }
    let managed: HashSet<&Path> = snapshot.units.iter().filter_map(|unit| unit.cgroup.as_deref()).collect();
    let units = snapshot.units.iter().filter(|unit| is_limited(policy, &unit.container));
    units.filter_map(|unit| of_unit(unit.cgroup.as_ref()?, &managed, process::is_real_time)).collect()
}

/// Whether threads that are at home there can come under a limit: that of the home, of a class below that they work for, of where the
/// programs go that they start for it, or of a container above one of these. Other containers below are none of theirs.
fn is_limited(policy: &Policy, home: &str) -> bool {
    let limited = policy.containers.iter().filter(|container| container.cpu.limit_ppm != 0);
    let limited: Vec<&str> = limited.map(|container| container.path.as_str()).collect();
    let is_held = |path: &str| limited.iter().any(|above| is_within(path, above));
    let classes = policy.listeners.iter().flat_map(Listener::class_paths);
    let mut served = classes.filter(|class| home == ROOT || is_within(class, home));
    is_held(home) || served.any(|class| is_held(class) || programs_of(policy, class).is_some_and(is_held))
}

/// Where programs go that are started for the clients of a class: the nearest container says it.
fn programs_of<'a>(policy: &'a Policy, class: &str) -> Option<&'a str> {
    let above = policy.containers.iter().filter(|container| is_within(class, &container.path));
    above.filter_map(|container| container.programs.as_deref()).next_back()
}

/// `managed`: those that have a home of their own.
fn of_unit(folder: &Path, managed: &HashSet<&Path>, is_real_time: impl Fn(i32) -> bool) -> Option<String> {
    let found: Vec<i32> = threads(folder, managed).into_iter().filter(|tid| is_real_time(*tid)).collect();
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

/// In it and below, without those of another managed cgroup.
fn threads(folder: &Path, managed: &HashSet<&Path>) -> Vec<i32> {
    let (mut found, mut folders) = (Vec::new(), vec![folder.to_owned()]);
    while let Some(folder) = folders.pop().filter(|_| found.len() < THREADS) {
        let text = fs::read_to_string(folder.join("cgroup.threads")).unwrap_or_default();
        // 0: of another PID namespace; for the kernel it would be the caller
        found.extend(text.lines().filter_map(|line| line.parse::<i32>().ok()).filter(|tid| *tid > 0));
        folders.extend(cgroup::children(&folder).into_iter().filter(|child| !managed.contains(child.as_path())));
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
        let alone = HashSet::from([top.path()]);
        assert_eq!(of_unit(top.path(), &alone, |_| false), None);
        let one = of_unit(top.path(), &alone, |tid| tid == 9).expect("it is told");
        assert!(one.contains(": thread 9 has a real-time policy (") && one.ends_with(" 0 9"), "{one}");
        let all = of_unit(top.path(), &alone, |_| true).expect("they are told");
        assert!(all.contains(": 3 threads, as 7, have a real-time policy ("), "{all}");
        // one that is managed itself has its own home, and is told for that
        let nested = HashSet::from([top.path(), below.as_path()]);
        assert_eq!(of_unit(top.path(), &nested, |tid| tid == 9), None);
        assert!(of_unit(&below, &nested, |tid| tid == 9).is_some());
    }

    fn limited<const N: usize>(containers: &str, classes: &[&str], homes: [&str; N]) -> [bool; N] {
        let mut text = format!("version = 1\n{containers}");
        for (place, class) in classes.iter().enumerate() {
            let from = if place + 1 == classes.len() { "any".to_owned() } else { format!("10.{place}.0.0/16") };
            let head = if place == 0 { "[listener.web]\naddress = \"0.0.0.0:80\"\n" } else { "" };
            text += &format!("{head}[[listener.web.client]]\nfrom = [\"{from}\"]\ncontainer = \"{class}\"\n");
        }
        let policy = fief_policy::parse(&text, "policy").unwrap_or_else(|errors| panic!("{errors}"));
        homes.map(|home| is_limited(&policy, home))
    }

    #[test]
    fn a_home_is_limited_by_what_is_above_it_and_by_classes_below() {
        let containers =
            "[container.\"a/b\"]\ncpu.limit = \"10%\"\n[container.\"a/b/c\"]\n[container.\"a/x\"]\n[container.d]\n";
        let homes = ["a", "a/b", "a/b/c", "a/x", "d", ROOT];
        assert_eq!(limited(containers, &["a/b", "a/x"], homes), [true, true, true, false, false, true]);
        // below the limit
        assert_eq!(limited(containers, &["a/b/c", "a/x"], homes), [true, true, true, false, false, true]);
        let free = containers.replace("cpu.limit = \"10%\"\n", "");
        assert_eq!(limited(&free, &["a/b", "a/x"], homes), [false; 6]);
    }

    #[test]
    fn a_limit_below_a_home_that_its_threads_never_come_under_is_not_theirs() {
        let containers =
            "[container.site]\n[container.\"site/web\"]\n[container.\"site/batch\"]\ncpu.limit = \"10%\"\n";
        let homes = ["site", "site/web", "site/batch", ROOT];
        assert_eq!(limited(containers, &[], homes), [false, false, true, false]);
        assert_eq!(limited(containers, &["site/web"], homes), [false, false, true, false]);
        // but programs that are started for a client inherit the policy, and have their home there
        let programs = containers.replace("[container.site]\n", "[container.site]\nprograms = \"site/batch\"\n");
        assert_eq!(limited(&programs, &["site/web"], homes), [true, true, true, true]);
        assert_eq!(limited(&programs, &[], homes), [false, false, true, false], "nobody is served");
    }
}
