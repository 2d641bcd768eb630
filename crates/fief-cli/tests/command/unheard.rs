// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Standard output and standard error that nobody reads, or whose disk is full: what serves goes on.

use std::fs::{self, File};
use std::process::{Command, Stdio};
use std::time::Duration;

use fief_testkit::{Cgroup, Feature, Process, require, wait_until};
use nix::sys::signal::Signal;

use crate::place::Place;
use crate::started::{SHOP, policy};

const SOON: Duration = Duration::from_secs(20);

/// Takes nothing: no space left on device.
fn full() -> File {
    File::options().write(true).open("/dev/full").expect("it is there")
}

#[test]
fn a_server_of_which_nothing_can_be_said_goes_on_and_its_code_is_told() {
    let Some(place) = Place::new() else { return };
    let shop = policy(SHOP);
    // that it went into the background is said before its end is waited for
    let mut run = place.fief().arg("run").arg(shop.path()).args(["--", "sh", "-c", "sleep 3 & exit 0"]);
    let ended = run.command().stdout(Stdio::null()).stderr(full()).status().expect("fief starts");
    assert_eq!(ended.code(), Some(0));
}

#[test]
fn a_unit_is_kept_over_its_restarts_where_nobody_reads_that_it_is() {
    let Some(place) = Place::new() else { return };
    place.apply();
    let slice = Cgroup::new("slice").expect("a cgroup");
    let unit = slice.path().join("web.service");
    let make = || fs::create_dir(&unit).expect("own cgroup");
    let end = || fs::remove_dir(&unit).expect("nobody is in it");
    make();
    let (reader, writer) = std::io::pipe().expect("a pipe");
    drop(reader);
    let mut keep = place.fief().args(["manage", "--keep", "--container", "shop"]).arg(&unit);
    keep.command().stdout(writer);
    let keep = Process::start(std::mem::replace(keep.command(), Command::new("true"))).expect("fief starts");
    let is_managed = || place.units().iter().any(|folder| unit.as_os_str() == folder.as_str());
    wait_until(SOON, is_managed).expect("it is managed");
    end();
    make();
    let kept = wait_until(SOON, is_managed);
    keep.signal(Signal::SIGTERM);
    let ended = keep.finish(SOON);
    end();
    kept.expect("it is managed again");
    assert_eq!(ended.expect("it ends").status.code(), Some(0));
}

#[test]
fn a_mount_that_cannot_say_that_it_serves_is_not_left() {
    if !require(Feature::Fuse) {
        return;
    }
    let Some(place) = Place::new() else { return };
    place.apply();
    let folder = tempfile::tempdir().expect("a folder");
    let mut mount = place.fief().arg("mount").arg(folder.path());
    mount.command().stdout(full());
    let ended = mount.ends();
    let table = fs::read_to_string("/proc/self/mountinfo").expect("a table");
    let is_left = table.contains(folder.path().to_str().expect("text"));
    if is_left {
        let _ = Command::new("umount").arg("-l").arg(folder.path()).status();
    }
    assert!(ended.code == 1 && ended.stderr.contains("cannot write to standard output"), "{ended:?}");
    assert!(!is_left, "nobody serves it");
}
