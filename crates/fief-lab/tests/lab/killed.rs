// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What is left of a lab that is killed: its number is that of `fief lab`, which became it.

use std::process::Stdio;
use std::time::Duration;

use fief_testkit::{Feature, alone, require, wait_until};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::lab;

#[test]
fn a_killed_lab_leaves_nothing() {
    if ![Feature::Root, Feature::NetNs, Feature::Cgroup2, Feature::Bpf, Feature::Nginx].into_iter().all(require) {
        return;
    }
    let _alone = alone();
    let files = tempfile::tempdir().expect("a folder");
    let mut lab = lab("lrp");
    // of the ways of this experiment the one that has an installation all the time
    lab.env("FIEF_LAB_ONLY", "without").env("TMPDIR", files.path());
    let mut lab = lab.stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("a lab");
    let name = |folder: &str, prefix: &str| {
        let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
        entries.filter(|entry| entry.file_name().to_string_lossy().starts_with(prefix)).count()
    };
    let left = || {
        let pid = lab.id();
        let places = [("/run/netns", format!("ff-{pid}-")), ("/sys/fs/bpf", format!("ff-lab-{pid}"))];
        let [namespaces, installations] = places.map(|(folder, prefix)| name(folder, &prefix));
        [namespaces, installations, files.path().read_dir().expect("a folder").count()]
    };
    let soon = Duration::from_secs(60);
    wait_until(soon, || left().iter().all(|count| *count > 0)).expect("it has made everything");
    let pid = Pid::from_raw(lab.id().cast_signed());
    kill(pid, Signal::SIGKILL).expect("it runs");
    let gone = wait_until(soon, || left() == [0, 0, 0]);
    let there = left();
    lab.wait().expect("it was started here");
    gone.unwrap_or_else(|_| panic!("namespaces, installations, files: {there:?}"));
}
