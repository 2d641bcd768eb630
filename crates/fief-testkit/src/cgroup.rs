// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Where cgroup version 2 is mounted, and a cgroup that ends with its guard.

use crate::{Error, Kind, Result, lives};
use std::path::{Path, PathBuf};
use std::sync::Once;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

static COUNT: AtomicU32 = AtomicU32::new(0);

/// The mount point of cgroup2; on a machine with version 1 controllers it is usually `.../unified`.
pub fn cgroup2_mount() -> Result<PathBuf> {
    let text = mountinfo().map_err(|error| Error::io("read /proc/self/mountinfo", error))?;
    find(&text).ok_or_else(|| Error::new(Kind::Missing, "no cgroup2 is mounted"))
}

/// Names in it may be any bytes; ours are text.
fn mountinfo() -> std::io::Result<String> {
    std::fs::read("/proc/self/mountinfo").map(|bytes| String::from_utf8_lossy(&bytes).into_owned())
}

fn find(mountinfo: &str) -> Option<PathBuf> {
    find_mount(mountinfo, |kind, _| kind == "cgroup2")
}

/// Version 1 of the CPU's controller.
fn find_cpu(mountinfo: &str) -> Option<PathBuf> {
    find_mount(mountinfo, |kind, options| kind == "cgroup" && options.split(',').any(|option| option == "cpu"))
}

/// Fields: id parent major:minor root MOUNT options [optional..] - TYPE source OPTIONS.
fn find_mount(mountinfo: &str, wanted: impl Fn(&str, &str) -> bool) -> Option<PathBuf> {
    mountinfo.lines().find_map(|line| {
        let (before, after) = line.split_once(" - ")?;
        let mut after = after.split(' ');
        let (kind, options) = (after.next()?, after.nth(1).unwrap_or_default());
        wanted(kind, options).then(|| before.split(' ').nth(4).map(PathBuf::from))?
    })
}

/// A cgroup `ff-<pid>-<n>-<role>` right below the mount.
#[derive(Debug)]
pub struct Cgroup {
    path: PathBuf,
}

impl Cgroup {
    /// The first one of a process sweeps what dead ones left.
    pub fn new(role: &str) -> Result<Cgroup> {
        static SWEPT: Once = Once::new();
        SWEPT.call_once(|| {
            sweep_cgroups();
        });
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let path = cgroup2_mount()?.join(format!("ff-{}-{count}-{role}", std::process::id()));
        std::fs::create_dir(&path).map_err(|error| Error::io(format!("make {}", path.display()), error))?;
        Ok(Cgroup { path })
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Moves a process in.
    pub fn add(&self, pid: u32) -> Result<()> {
        let file = self.path.join("cgroup.procs");
        std::fs::write(&file, pid.to_string())
            .map_err(|error| Error::io(format!("move {pid} into {}", file.display()), error))
    }
}

impl Drop for Cgroup {
    fn drop(&mut self) {
        if let Some(parent) = self.path.parent() {
            remove(&self.path, parent);
        }
    }
}

/// Moves what is inside to the mount's root and removes the directory, which stays busy while a zombie is in it.
fn remove(path: &Path, top: &Path) {
    for entry in std::fs::read_dir(path).into_iter().flatten().flatten() {
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            remove(&entry.path(), top);
        }
    }
    let _ = crate::wait_until(Duration::from_secs(5), || {
        for pid in std::fs::read_to_string(path.join("cgroup.procs")).unwrap_or_default().lines() {
            let _ = std::fs::write(top.join("cgroup.procs"), pid);
        }
        std::fs::remove_dir(path).is_ok() || !path.exists()
    });
}

/// Removes the cgroups that dead processes left, and those of their installations.
pub fn sweep_cgroups() -> usize {
    let text = mountinfo().unwrap_or_default();
    let tops: Vec<PathBuf> = find(&text).into_iter().chain(find_cpu(&text)).collect();
    tops.iter().map(|top| sweep(top, top) + sweep(&top.join("fief"), top)).sum()
}

fn sweep(folder: &Path, top: &Path) -> usize {
    let mut removed = 0;
    for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        let owner: Option<u32> =
            name.strip_prefix("ff-").and_then(|rest| rest.split('-').next()).and_then(|pid| pid.parse().ok());
        if owner.is_some_and(|pid| !lives(pid)) {
            remove(&entry.path(), top);
            removed += 1;
        }
    }
    removed
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Feature, require};

    #[test]
    fn finds_the_mount_beside_version_1() {
        let text = "25 20 0:22 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu\n\
                    33 20 0:30 / /sys/fs/cgroup/unified rw,relatime shared:4 - cgroup2 cgroup2 rw\n";
        assert_eq!(find(text), Some(PathBuf::from("/sys/fs/cgroup/unified")));
        assert_eq!(find_cpu(text), Some(PathBuf::from("/sys/fs/cgroup/cpu")));
        assert_eq!(find(""), None);
    }

    #[test]
    fn what_a_dead_process_left_is_removed_with_all_below() {
        if !require(Feature::Cgroup2) {
            return;
        }
        let mut child = std::process::Command::new("true").spawn().expect("true");
        child.wait().expect("it was started here");
        let top = cgroup2_mount().expect("a mount");
        let left = top.join("fief").join(format!("ff-{}-0", child.id()));
        // another test may sweep it while it is made
        let make = || std::fs::create_dir_all(left.join("@shop/own")).is_ok();
        crate::wait_until(std::time::Duration::from_secs(5), make).expect("made");
        // perhaps another test swept it
        sweep_cgroups();
        assert!(!left.exists());
        let _ = std::fs::remove_dir(top.join("fief"));
    }

    #[test]
    fn a_cgroup_ends_with_its_guard_though_a_process_is_inside() {
        if !require(Feature::Cgroup2) {
            return;
        }
        let cgroup = Cgroup::new("guard").expect("a cgroup");
        let mut command = std::process::Command::new("sleep");
        command.arg("1000");
        let process = crate::Process::start(command).expect("sleep");
        cgroup.add(process.pid()).expect("moved");
        let path = cgroup.path().to_owned();
        drop(cgroup);
        assert!(!path.exists());
    }
}
