// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The hierarchy of cgroups that has the CPU's controller, and the files of its two versions: `cpu.shares`,
//! `cpu.cfs_quota_us` and `cpu.cfs_period_us` in version 1, `cpu.weight` and `cpu.max` in version 2 (the kernel's
//! Documentation/admin-guide/cgroup-v2.rst and Documentation/scheduler/sched-bwc.rst).

use std::fs::{self, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};

use fief_bpf::{Context, Error, ErrorKind, Result};
use nix::errno::Errno;
use serde::{Deserialize, Serialize};

use super::portion::Quota;
use crate::{cgroup, wire};

/// A `cpu.shares` of 1024 is a `cpu.weight` of 100.
const SHARES_OF_WEIGHT: f64 = 10.24;

/// Of cgroups.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Version {
    /// A hierarchy for each controller.
    V1,
    /// One hierarchy for all.
    V2,
}

/// Where the controller of the CPU is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hierarchy {
    /// Of its files.
    pub version: Version,
    /// Where it is mounted.
    #[serde(serialize_with = "wire::path")]
    pub top: PathBuf,
}

impl Hierarchy {
    /// The kernel has the controller in one version at a time. Errors: [`ErrorKind::NotFound`] it is in neither that is mounted.
    pub fn find() -> Result<Self> {
        let is_v1 = |kind: &str, options: &str| kind == "cgroup" && options.split(',').any(|option| option == "cpu");
        if let Some(top) = cgroup::mounted(&is_v1) {
            return Ok(Self { version: Version::V1, top });
        }
        let top = cgroup::mount_point()?;
        if has_word(&top.join("cgroup.controllers"), "cpu") {
            return Ok(Self { version: Version::V2, top });
        }
        Err(Error::new(ErrorKind::NotFound, "no hierarchy of cgroups that is mounted has the controller cpu")
            .remedy("mount one: mount -t cgroup -o cpu cgroup /sys/fs/cgroup/cpu (a folder that you make)"))
    }

    /// What machines call it.
    pub fn word(&self) -> &'static str {
        match self.version {
            Version::V1 => "cgroup-v1",
            Version::V2 => "cgroup-v2",
        }
    }

    /// What people call it.
    pub fn name(&self) -> String {
        let version = if self.version == Version::V1 { 1 } else { 2 };
        format!("cgroup v{version} ({})", self.top.display())
    }

    /// Files that hold the attributes.
    pub fn files(&self) -> [(&'static str, &'static str); 3] {
        match self.version {
            Version::V1 => {
                [("cpu.share", "cpu.shares"), ("cpu.weight", "cpu.shares"), ("cpu.limit", "cpu.cfs_quota_us")]
            }
            Version::V2 => [("cpu.share", "cpu.weight"), ("cpu.weight", "cpu.weight"), ("cpu.limit", "cpu.max")],
        }
    }

    /// The one that has the limit.
    pub(crate) fn limit_file(&self) -> &'static str {
        let [.., (_, file)] = self.files();
        file
    }

    /// Whether a group has one.
    pub(crate) fn is_limited(&self, folder: &Path) -> bool {
        self.quota(folder).is_some()
    }

    /// Whether the groups below have the files.
    pub(super) fn is_enabled(&self, folder: &Path) -> bool {
        match self.version {
            Version::V1 => folder.exists(),
            Version::V2 => has_word(&folder.join("cgroup.subtree_control"), "cpu"),
        }
    }

    /// Gives the groups below the files.
    pub(super) fn enable(&self, folder: &Path) -> Result<()> {
        if self.is_enabled(folder) {
            return Ok(());
        }
        write(&folder.join("cgroup.subtree_control"), "+cpu")
    }

    /// Takes them away, and with them what they hold.
    pub(super) fn disable(&self, folder: &Path) -> Result<()> {
        if self.version == Version::V1 || !self.is_enabled(folder) {
            return Ok(());
        }
        write(&folder.join("cgroup.subtree_control"), "-cpu")
    }

    /// Among its siblings, in the terms of version 2.
    pub(super) fn set_weight(&self, folder: &Path, weight: f64) -> Result<()> {
        let (file, value) = match self.version {
            Version::V1 => ("cpu.shares", weight * SHARES_OF_WEIGHT),
            Version::V2 => ("cpu.weight", weight),
        };
        set(&folder.join(file), &format!("{:.0}", value.round()))
    }

    /// In the terms of version 2; that of a group without the file is the default.
    pub(super) fn weight(&self, folder: &Path) -> f64 {
        let read = |file: &str| fs::read_to_string(folder.join(file)).ok()?.trim().parse::<f64>().ok();
        let weight = match self.version {
            Version::V1 => read("cpu.shares").map(|shares| shares / SHARES_OF_WEIGHT),
            Version::V2 => read("cpu.weight"),
        };
        weight.unwrap_or(100.0)
    }

    /// Whether it runs only when nobody else wants to. An idle group has no weight that could be written.
    pub(super) fn set_idle(&self, folder: &Path, idle: bool) -> Result<()> {
        set(&folder.join("cpu.idle"), if idle { "1" } else { "0" })
    }

    pub(super) fn set_quota(&self, folder: &Path, quota: Option<Quota>) -> Result<()> {
        match (self.version, quota) {
            (Version::V2, None) => set(&folder.join("cpu.max"), "max"),
            (Version::V2, Some(Quota { quota_us, period_us })) => {
                set(&folder.join("cpu.max"), &format!("{quota_us} {period_us}"))
            }
            (Version::V1, None) => set(&folder.join("cpu.cfs_quota_us"), "-1"),
            (Version::V1, Some(Quota { quota_us, period_us })) => {
                let (quota, period) = (folder.join("cpu.cfs_quota_us"), folder.join("cpu.cfs_period_us"));
                if read(&period) != period_us.to_string() {
                    // the old quota in the new period could be more than the parent's, which the kernel refuses
                    set(&quota, "-1")?;
                    set(&period, &period_us.to_string())?;
                }
                set(&quota, &quota_us.to_string())
            }
        }
    }

    /// The quota that is set.
    pub(super) fn quota(&self, folder: &Path) -> Option<Quota> {
        let (quota, period) = match self.version {
            Version::V1 => (read(&folder.join("cpu.cfs_quota_us")), read(&folder.join("cpu.cfs_period_us"))),
            Version::V2 => {
                let text = read(&folder.join("cpu.max"));
                let (quota, period) = text.split_once(' ')?;
                (quota.to_owned(), period.to_owned())
            }
        };
        Some(Quota { quota_us: quota.parse().ok()?, period_us: period.parse().ok()? })
    }

    /// The group of a process; `None`: it has ended, or nobody can tell.
    pub(super) fn of_process(&self, pid: i32) -> Option<PathBuf> {
        let text = fs::read(format!("/proc/{pid}/cgroup")).ok()?;
        Some(cgroup::below(&self.top, self.path_in(&text)?))
    }

    /// Lines are `number:controllers:path`. A path is bytes: who makes a cgroup names it.
    fn path_in<'a>(&self, text: &'a [u8]) -> Option<&'a [u8]> {
        if self.version == Version::V2 {
            return cgroup::in_unified(text);
        }
        text.split(|byte| *byte == b'\n').find_map(|line| {
            let mut fields = line.splitn(3, |byte| *byte == b':');
            let (controllers, path) = (fields.nth(1)?, fields.next()?);
            controllers.split(|byte| *byte == b',').any(|controller| controller == b"cpu").then_some(path)
        })
    }
}

fn has_word(file: &Path, word: &str) -> bool {
    read(file).split(' ').any(|one| one == word)
}

fn read(file: &Path) -> String {
    fs::read_to_string(file).unwrap_or_default().trim().to_owned()
}

/// Writes a value that is not there.
fn set(file: &Path, value: &str) -> Result<()> {
    let found = read(file);
    // `max` stands with its period
    if found == value || (value == "max" && found.starts_with("max ")) { Ok(()) } else { write(file, value) }
}

fn write(file: &Path, value: &str) -> Result<()> {
    let written = OpenOptions::new()
        .write(true)
        .truncate(true)
        .open(file)
        .and_then(|mut opened| opened.write_all(value.as_bytes()));
    let remedy = written.as_ref().err().and_then(std::io::Error::raw_os_error).and_then(|code| remedy(file, code));
    let written = written.context(|| format!("cannot write {value} to {}", file.display()));
    written.map_err(|e: Error| match remedy {
        Some(remedy) => e.remedy(remedy),
        None => e,
    })
}

fn remedy(file: &Path, code: i32) -> Option<&'static str> {
    let name = file.file_name()?.to_str()?;
    match (Errno::from_raw(code), name) {
        (Errno::EROFS, _) => Some("cgroups are mounted read-only here: run fief where they can be written"),
        (Errno::ENOENT, _) => Some("use a kernel with CONFIG_FAIR_GROUP_SCHED and CONFIG_CFS_BANDWIDTH"),
        (Errno::EINVAL, "cpu.cfs_quota_us" | "cpu.max") => {
            Some("a cgroup above has a lower quota, or the kernel a higher least one: raise cpu.limit")
        }
        (Errno::EBUSY, "cgroup.subtree_control") => {
            Some("a cgroup with processes of its own cannot divide the CPU: move them into one below it")
        }
        (Errno::EINVAL, "cgroup.subtree_control") => {
            Some("real-time processes outside of the root keep the controller off (CONFIG_RT_GROUP_SCHED)")
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A folder with the files of a group, as the kernel makes them.
    fn group(version: Version) -> (tempfile::TempDir, Hierarchy) {
        let folder = tempfile::tempdir().expect("a folder");
        let files: &[(&str, &str)] = match version {
            Version::V1 => &[("cpu.shares", "1024\n"), ("cpu.cfs_quota_us", "-1\n"), ("cpu.cfs_period_us", "100000\n")],
            Version::V2 => &[("cpu.weight", "100\n"), ("cpu.max", "max 100000\n"), ("cgroup.subtree_control", "\n")],
        };
        for (name, text) in files.iter().chain(&[("cpu.idle", "0\n")]) {
            fs::write(folder.path().join(name), text).expect("written");
        }
        let hierarchy = Hierarchy { version, top: folder.path().to_owned() };
        (folder, hierarchy)
    }

    #[test]
    fn each_version_has_its_files() {
        let quota = Quota { quota_us: 30_000, period_us: 100_000 };
        for (version, weight, max) in
            [(Version::V1, "cpu.shares", "cpu.cfs_quota_us"), (Version::V2, "cpu.weight", "cpu.max")]
        {
            let (folder, hierarchy) = group(version);
            let text = |file: &str| read(&folder.path().join(file));
            hierarchy.set_weight(folder.path(), 250.0).expect("written");
            assert_eq!(text(weight), if version == Version::V1 { "2560" } else { "250" });
            assert!((hierarchy.weight(folder.path()) - 250.0).abs() < 1e-9);
            assert_eq!(hierarchy.quota(folder.path()), None);
            hierarchy.set_quota(folder.path(), Some(quota)).expect("written");
            assert_eq!(text(max), if version == Version::V1 { "30000" } else { "30000 100000" });
            assert_eq!(hierarchy.quota(folder.path()), Some(quota));
            let long = Quota { quota_us: 4000, period_us: 1_000_000 };
            hierarchy.set_quota(folder.path(), Some(long)).expect("written");
            assert_eq!(hierarchy.quota(folder.path()), Some(long));
            hierarchy.set_quota(folder.path(), None).expect("written");
            assert_eq!(hierarchy.quota(folder.path()), None);
            hierarchy.set_idle(folder.path(), true).expect("written");
            assert_eq!(text("cpu.idle"), "1");
        }
    }

    #[test]
    fn what_cannot_be_written_is_told_with_its_path_and_a_remedy() {
        let folder = tempfile::tempdir().expect("a folder");
        let hierarchy = Hierarchy { version: Version::V1, top: folder.path().to_owned() };
        let error = hierarchy.set_weight(&folder.path().join("gone"), 100.0).expect_err("no such group");
        let said = error.to_string();
        assert!(said.contains("cannot write 1024 to") && said.contains("gone/cpu.shares"), "{said}");
        assert!(said.contains("CONFIG_FAIR_GROUP_SCHED"), "{said}");
    }

    #[test]
    fn the_group_of_a_process_is_that_of_the_controller() {
        let text = b"9:name=systemd:/init.scope\n2:cpu,cpuacct:/a/b:\xff\n3:cpuset:/c\n0::/d/\xfe\n";
        let path = |version| Hierarchy { version, top: PathBuf::new() }.path_in(text).map(<[u8]>::to_vec);
        assert_eq!(path(Version::V1).as_deref(), Some(&b"/a/b:\xff"[..]));
        assert_eq!(path(Version::V2).as_deref(), Some(&b"/d/\xfe"[..]));
    }
}
