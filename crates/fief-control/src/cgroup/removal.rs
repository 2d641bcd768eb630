// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The end of cgroups of ours: with those below them, and with or without processes that are still in them.

use std::fs;
use std::io::Write;
use std::path::Path;
use std::time::Duration;

use fief_bpf::{Context, Result};
use nix::errno::Errno;
use nix::sys::signal::{SigSet, SigmaskHow, sigprocmask};

use super::{children, join, processes};

/// How often a cgroup is tried that processes fork in, or end in, and for how long between.
const ATTEMPTS: u32 = 100;
const PAUSE: Duration = Duration::from_millis(10);
/// From which attempt on its processes stand still until they are moved: those that keep forking are caught late or never (on two CPUs
/// a round over 150 of them takes seconds). Not the first, since a system call that is waited in may fail then (EINTR).
const STILL_FROM: u32 = 1;

/// Removes a cgroup of ours with those below; processes that are still in it go to `top`, the root of its hierarchy, and go on there.
pub fn remove(path: &Path, top: &Path) -> Result<()> {
    for child in children(path) {
        remove(&child, top)?;
    }
    // nobody ends this meanwhile but by SIGKILL: create() thaws what that leaves
    let mut before = SigSet::empty();
    let blocked = sigprocmask(SigmaskHow::SIG_BLOCK, Some(&SigSet::all()), Some(&mut before)).is_ok();
    let removed = remove_one(path, top);
    if removed.is_err() {
        set_frozen(path, false);
    }
    if blocked {
        // it takes what it gave
        let _ = sigprocmask(SigmaskHow::SIG_SETMASK, Some(&before), None);
    }
    removed
}

fn remove_one(path: &Path, top: &Path) -> Result<()> {
    let what = || format!("cannot remove the cgroup {}", path.display());
    for attempt in 0..ATTEMPTS {
        match fs::remove_dir(path) {
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(()),
            Err(e) if e.raw_os_error() == Some(Errno::EBUSY as i32) => {}
            done => return done.context(what),
        }
        if attempt == STILL_FROM && !processes(path).contains(&std::process::id().cast_signed()) {
            set_frozen(path, true);
        }
        empty(path, top);
        std::thread::sleep(PAUSE);
    }
    let remedy = format!("end what runs in it ({}/cgroup.procs), and try again", path.display());
    fs::remove_dir(path).context(what).map_err(|e| e.remedy(remedy))
}

/// A process that is moved to a cgroup that is not frozen goes on. Version 1 has no such file.
pub(super) fn set_frozen(path: &Path, frozen: bool) {
    // without it forks are only harder to catch
    let _ = fs::OpenOptions::new()
        .write(true)
        .open(path.join("cgroup.freeze"))
        .and_then(|mut file| file.write_all(if frozen { b"1" } else { b"0" }));
}

/// What a process forked while it was moved is found the next time.
fn empty(path: &Path, top: &Path) {
    for pid in processes(path) {
        // a process that ended meanwhile is as good as moved
        let _ = join(top, pid);
    }
}

/// Removes a cgroup of ours with those below, unless somebody stays in one of them; whether it is gone. Who is about to end has a moment
/// for it, and what is beside one that stays goes all the same.
pub fn remove_empty(path: &Path) -> Result<bool> {
    for _ in 0..ATTEMPTS {
        if remove_where_nobody_is(path)? {
            return Ok(true);
        }
        std::thread::sleep(PAUSE);
    }
    Ok(false)
}

fn remove_where_nobody_is(path: &Path) -> Result<bool> {
    for child in children(path) {
        remove_where_nobody_is(&child)?;
    }
    match fs::remove_dir(path) {
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => Ok(true),
        Err(e) if e.raw_os_error() == Some(Errno::EBUSY as i32) => Ok(false),
        done => done.context(|| format!("cannot remove the cgroup {}", path.display())).map(|()| true),
    }
}

/// Removes the folder of all scopes below the root of a hierarchy once the last one is gone.
pub fn remove_top(top: &Path) {
    // it is not empty while another scope lives
    let _ = fs::remove_dir(top.join("fief"));
}

#[cfg(test)]
mod tests {
    use std::process::{Command, Stdio};

    use fief_testkit::{Cgroup, Feature, require, wait_until};

    use super::*;

    #[test]
    fn who_cannot_be_moved_stands_still_meanwhile_and_goes_on() {
        if !require(Feature::Cgroup2) {
            return;
        }
        let deadline = Duration::from_secs(20);
        let cgroup = Cgroup::new("still").expect("a cgroup");
        let mut cat = Command::new("cat").stdin(Stdio::piped()).stdout(Stdio::null()).spawn().expect("cat starts");
        cgroup.add(cat.id()).expect("it runs");
        let events = || fs::read_to_string(cgroup.path().join("cgroup.events")).expect("version 2");
        let is_frozen_meanwhile = || {
            std::thread::scope(|scope| {
                let removed = scope.spawn(|| remove(cgroup.path(), &cgroup.path().join("nowhere")));
                let mut is_frozen = false;
                let ends = wait_until(deadline, || {
                    is_frozen = events().contains("frozen 1");
                    is_frozen || removed.is_finished()
                });
                ends.expect("it ends");
                let error = removed.join().expect("no panic").expect_err("somebody is in it");
                assert!(error.advice().is_some());
                is_frozen
            })
        };
        // who looks may stand still for as long as it is
        assert!((0..5).any(|_| is_frozen_meanwhile()), "it is frozen");
        wait_until(deadline, || events().contains("frozen 0")).expect("it is thawed");
        drop(cat.stdin.take());
        cat.wait().expect("it ends");
    }

    #[test]
    fn who_is_in_a_cgroup_keeps_it() {
        if !require(Feature::Cgroup2) {
            return;
        }
        let cgroup = Cgroup::new("kept").expect("a cgroup");
        let [kept, empty] = ["kept/server", "empty/server"].map(|below| cgroup.path().join(below));
        [&kept, &empty].into_iter().for_each(|folder| fs::create_dir_all(folder).expect("made"));
        let mut cat = Command::new("cat").stdin(Stdio::piped()).stdout(Stdio::null()).spawn().expect("cat starts");
        join(&kept, cat.id().cast_signed()).expect("it runs");
        let removed = remove_empty(cgroup.path());
        let there = [&kept, &empty].map(|folder| folder.exists());
        let own = processes(&kept);
        drop(cat.stdin.take());
        cat.wait().expect("it ends");
        assert!(!removed.expect("no error"));
        assert_eq!((there, own), ([true, false], vec![cat.id().cast_signed()]));
        assert!(remove_empty(cgroup.path()).expect("nobody is in it") && !cgroup.path().exists());
    }
}
