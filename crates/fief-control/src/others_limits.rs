// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Limits of the CPU that others gave cgroups: under a scheduler of sched_ext the kernel does not hold them, and Fief's does not know them.

use std::collections::{HashSet, VecDeque};
use std::fs;
use std::path::{Path, PathBuf};

use crate::cgroup;
use crate::groups::{Hierarchy, Version};

/// More are not looked at. The upper ones come first: a user can make as many as it likes, but only below its own.
const FOLDERS: usize = 10_000;
/// So many are named.
const NAMED: usize = 3;

/// The note for an apply that turns the scheduler on; `None`: no cgroup has a limit.
pub(crate) fn note() -> Option<String> {
    let hierarchy = Hierarchy::find().ok()?;
    let limited = limited_below(&hierarchy, FOLDERS);
    let named: Vec<_> = limited.iter().take(NAMED).map(String::as_str).collect();
    let more = limited.len().saturating_sub(NAMED);
    let more = if more == 0 { String::new() } else { format!(" and {more} more") };
    (!named.is_empty()).then(|| {
        format!(
            "the kernel does not enforce {} while Fief's scheduler is on; it is set in {}{more}: give those processes a container with \
             cpu.limit",
            hierarchy.limit_file(),
            named.join(", ")
        )
    })
}

/// The paths from the top of those in use, of the first so many folders.
fn limited_below(hierarchy: &Hierarchy, most: usize) -> Vec<String> {
    let top = &hierarchy.top;
    let folders: Vec<PathBuf> = upper_first(top).take(most).collect();
    // version 1 does not tell whether a process is below
    let used: HashSet<&Path> = match hierarchy.version {
        Version::V1 => {
            let occupied = folders.iter().filter(|folder| has_processes(folder));
            occupied.flat_map(|folder| folder.ancestors()).collect()
        }
        Version::V2 => folders.iter().filter(|folder| is_populated(folder)).map(PathBuf::as_path).collect(),
    };
    let limited = folders.iter().filter(|folder| used.contains(folder.as_path()) && hierarchy.is_limited(folder));
    let path = |folder: &PathBuf| folder.strip_prefix(top).unwrap_or(folder).display().to_string();
    let mut found: Vec<String> = limited.map(path).collect();
    found.sort();
    found
}

/// A folder and all below it.
fn upper_first(top: &Path) -> impl Iterator<Item = PathBuf> {
    let mut folders = VecDeque::from([top.to_owned()]);
    std::iter::from_fn(move || {
        let folder = folders.pop_front()?;
        folders.extend(cgroup::children(&folder));
        Some(folder)
    })
}

fn has_processes(folder: &Path) -> bool {
    fs::read(folder.join("cgroup.procs")).is_ok_and(|text| !text.is_empty())
}

/// In it or below.
fn is_populated(folder: &Path) -> bool {
    fs::read_to_string(folder.join("cgroup.events")).is_ok_and(|text| text.contains("populated 1"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn write(folder: &Path, files: &[(&str, &str)]) {
        fs::create_dir_all(folder).unwrap();
        files.iter().for_each(|(file, text)| fs::write(folder.join(file), text).unwrap());
    }

    fn limited(version: Version, top: &Path, most: usize) -> Vec<String> {
        limited_below(&Hierarchy { version, top: top.to_owned() }, most)
    }

    #[test]
    fn cgroups_with_a_limit_are_found() {
        let top = tempfile::tempdir().unwrap();
        for (folder, limit, used) in
            [("a", "max 100000\n", 1), ("a/b", "50000 100000\n", 1), ("c", "100 1000\n", 1), ("d", "100 1000\n", 0)]
        {
            let events = format!("populated {used}\nfrozen 0\n");
            write(&top.path().join(folder), &[("cpu.max", limit), ("cgroup.events", &events)]);
        }
        assert_eq!(limited(Version::V2, top.path(), FOLDERS), ["a/b", "c"]);
    }

    #[test]
    fn those_of_version_1_are_found_with_processes_in_them_or_below() {
        let top = tempfile::tempdir().unwrap();
        for (folder, quota, procs) in [
            ("", "-1\n", "1\n"),
            ("free", "-1\n", "7\n"),
            ("in", "50000\n", "8\n"),
            ("above", "50000\n", ""),
            ("above/below", "-1\n", "9\n"),
            ("empty", "50000\n", ""),
        ] {
            let files = [("cpu.cfs_quota_us", quota), ("cpu.cfs_period_us", "100000\n"), ("cgroup.procs", procs)];
            write(&top.path().join(folder), &files);
        }
        assert_eq!(limited(Version::V1, top.path(), FOLDERS), ["above", "in"]);
        assert_eq!(limited(Version::V2, top.path(), FOLDERS), [""; 0]);
    }

    #[test]
    fn what_a_user_makes_below_its_own_hides_nothing_beside_it() {
        let top = tempfile::tempdir().unwrap();
        for name in ["a.user", "b.service", "c.user"] {
            let folder = top.path().join(name);
            (0..20).for_each(|number| fs::create_dir_all(folder.join(format!("{number}"))).unwrap());
            write(&folder, &[("cpu.max", "100 1000\n"), ("cgroup.events", "populated 1\n")]);
        }
        assert_eq!(limited(Version::V2, top.path(), 10), ["a.user", "b.service", "c.user"]);
    }
}
