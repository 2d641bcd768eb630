// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Processes that run already when they are managed or moved into a unit: all their threads and all that they have forked are the
//! unit's, at any depth.

use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use fief::Container;
use fief_bpf::abi;
use fief_control::{ManageOptions, Target};
use fief_testkit::{Cgroup, Process, cgroup2_mount, lives, wait_until};
use fief_tests_netns::{Installation, SOON, Setup, role, spin};

use crate::view;

/// A process of several threads that work until it is killed; each can make containers once it is managed.
fn worker() -> ! {
    for _ in 0..3 {
        std::thread::spawn(|| {
            loop {
                spin(Duration::from_millis(1));
                std::thread::yield_now();
            }
        });
    }
    loop {
        if let Ok(container) = Container::create() {
            let _bound = container.bind().unwrap();
            container.set_name("made").unwrap();
            spin(Duration::from_millis(2));
            let marker = std::env::var("FF_MARKER").unwrap();
            fs::write(marker, container.info().unwrap().depth.to_string()).unwrap();
        }
        spin(Duration::from_millis(2));
    }
}

#[test]
fn a_running_process_of_several_threads_is_managed() {
    let name = "running::a_running_process_of_several_threads_is_managed";
    if role().is_some() {
        worker();
    }
    let installation = Installation::with(&Setup::default());
    let folder = tempfile::tempdir().unwrap();
    for (n, in_cgroup) in [(0, true), (1, false)] {
        let own = in_cgroup.then(|| Cgroup::new("running").unwrap());
        let marker = folder.path().join(n.to_string());
        let mut command = installation.part(own.as_ref().map(Cgroup::path), name, "worker");
        command.env("FF_MARKER", &marker);
        let process = Process::start(command).unwrap();
        let pid = process.pid() as i32;
        let threads = || fs::read_dir(format!("/proc/{pid}/task")).map_or(0, Iterator::count);
        wait_until(SOON, || threads() >= 4).unwrap();
        let options = ManageOptions { container: None, follow: false };
        let managed = installation.fief().manage(&Target::Process(pid), &options).unwrap();
        assert!(managed.threads >= 4, "{managed:?}");
        assert_ne!(managed.cgroup, cgroup2_mount().unwrap(), "hooks at the top would tax everybody");
        let now = || view(installation.fief(), &managed.container);
        wait_until(SOON, || now().threads >= 3 && now().usage.cpu_ns() > 50_000_000).unwrap();
        // and its containers are below that
        wait_until(SOON, || fs::read_to_string(&marker).is_ok_and(|text| text == "2")).unwrap();
        drop(process);
        wait_until(SOON, || now().threads == 0 && now().processes == 0).unwrap_or_else(|_| panic!("{:?}", now()));
    }
}

/// The kernel tells of the first thread of a process alone.
#[test]
fn all_threads_of_a_process_that_is_moved_in_have_the_units_home() {
    let name = "running::all_threads_of_a_process_that_is_moved_in_have_the_units_home";
    if role().is_some() {
        worker();
    }
    let installation = Installation::with(&Setup::default());
    let (outside, folder) = (Cgroup::new("outside").unwrap(), tempfile::tempdir().unwrap());
    let mut command = installation.part(Some(outside.path()), name, "worker");
    command.env("FF_MARKER", folder.path().join("marker"));
    let process = Process::start(command).unwrap();
    let pid = process.pid();
    let threads = || fs::read_dir(format!("/proc/{pid}/task")).map_or(0, Iterator::count);
    wait_until(SOON, || threads() >= 4).unwrap();
    let now = || view(installation.fief(), "unit");
    let before = now();
    fs::write(installation.cgroup().join("cgroup.procs"), pid.to_string()).unwrap();
    // the first one works for a container of its own by and by
    wait_until(SOON, || now().threads >= before.threads + 3).unwrap_or_else(|_| panic!("{before:?}, {:?}", now()));
    wait_until(SOON, || now().usage.cpu_ns() > before.usage.cpu_ns() + 50_000_000).unwrap();
    drop(process);
}

#[test]
fn a_process_that_is_moved_in_has_the_units_home_at_any_depth() {
    let name = "running::a_process_that_is_moved_in_has_the_units_home_at_any_depth";
    match role() {
        Some(role) => {
            let container = Container::create().unwrap();
            assert_eq!(container.info().unwrap().depth, 2, "{role}");
            let parent = container.info().unwrap().parent.unwrap();
            assert!(parent >= abi::FIEF_FIRST_ID);
            spin(Duration::from_millis(20));
        }
        None => {
            let installation = Installation::with(&Setup::default());
            let inner = installation.cgroup().join("inner");
            // deeper than containers can lie
            let depths: Vec<PathBuf> = (1..=20).map(|depth| inner.join(["deeper"; 20][..depth].join("/"))).collect();
            let deepest = depths.last().expect("some").clone();
            fs::create_dir_all(&deepest).unwrap();
            let before = view(installation.fief(), "unit").usage.cpu_ns();
            for cgroup in [&inner, &deepest] {
                let process = installation.start(Some(cgroup), name, "moved");
                assert!(process.finish(SOON).unwrap().status.success());
            }
            let after = view(installation.fief(), "unit").usage.cpu_ns();
            assert!(after > before + 30_000_000, "{before} {after}");
            for folder in depths.iter().rev() {
                wait_until(SOON, || fs::remove_dir(folder).is_ok()).unwrap();
            }
            wait_until(SOON, || fs::remove_dir(&inner).is_ok()).unwrap();
        }
    }
}

#[test]
fn a_process_that_forks_all_the_time_is_managed_with_all_that_it_has_forked() {
    let installation = Installation::with(&Setup::default());
    let top = cgroup2_mount().unwrap();
    for _ in 0..10 {
        let mut command = std::process::Command::new("sh");
        command.args(["-c", "while :; do true & true & true & wait $!; done"]);
        let process = Process::start(command).unwrap();
        let pid = process.pid();
        fs::write(top.join("cgroup.procs"), pid.to_string()).unwrap();
        wait_until(SOON, || !family(pid).is_empty()).unwrap();
        let target = Target::Process(pid.cast_signed());
        let managed = installation.fief().manage(&target, &ManageOptions::default()).unwrap();
        let is_outside = |pid: &u32| {
            let cgroup = fs::read_to_string(format!("/proc/{pid}/cgroup")).unwrap_or_default();
            let own = cgroup.lines().find_map(|line| line.strip_prefix("0::"));
            // one that has ended is nowhere any more
            own.is_some_and(|own| !top.join(own.trim_start_matches('/')).starts_with(&managed.cgroup)) && lives(*pid)
        };
        let outside: Vec<u32> = family(pid).into_iter().filter(is_outside).collect();
        assert!(outside.is_empty(), "{outside:?}");
        drop(process);
        wait_until(SOON, || fs::remove_dir(&managed.cgroup).is_ok()).unwrap();
    }
}

/// Descendants of a process.
fn family(pid: u32) -> Vec<u32> {
    let text = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap_or_default();
    let children = text.split_whitespace().filter_map(|child| child.parse().ok());
    children.flat_map(|child| [vec![child], family(child)].concat()).collect()
}
