// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Limits of the CPU that others gave cgroups: under a scheduler of sched_ext the kernel does not hold them, and Fief's does not know them.

use std::collections::VecDeque;
use std::fs;
use std::path::Path;

use crate::cgroup;

/// More are not looked at. The upper ones come first: a user can make as many as it likes, but only below its own.
const FOLDERS: usize = 10_000;
/// So many are named.
const NAMED: usize = 3;

/// The note for an apply that turns the scheduler on; `None`: no cgroup has a limit, or only version 1 has the controller.
pub(crate) fn note() -> Option<String> {
    let top = cgroup::mount_point().ok()?;
    let limited = limited_below(&top, FOLDERS);
    let named: Vec<_> = limited.iter().take(NAMED).map(String::as_str).collect();
    let more = limited.len().saturating_sub(NAMED);
    let more = if more == 0 { String::new() } else { format!(" and {more} more") };
    (!named.is_empty()).then(|| {
        format!(
            "the kernel does not enforce cpu.max while Fief's scheduler is on; it is set in {}{more}: give those processes a container with \
             cpu.limit",
            named.join(", ")
        )
    })
}

/// Their paths from the top, of the first so many folders.
fn limited_below(top: &Path, most: usize) -> Vec<String> {
    let (mut found, mut folders) = (Vec::new(), VecDeque::from([top.to_owned()]));
    let mut seen = 0;
    while let Some(folder) = folders.pop_front().filter(|_| seen < most) {
        seen += 1;
        let limit = fs::read_to_string(folder.join("cpu.max")).unwrap_or_default();
        let is_used =
            || fs::read_to_string(folder.join("cgroup.events")).is_ok_and(|text| text.contains("populated 1"));
        if limit.split_whitespace().next().is_some_and(|limit| limit != "max") && is_used() {
            found.push(folder.strip_prefix(top).unwrap_or(&folder).display().to_string());
        }
        folders.extend(cgroup::children(&folder));
    }
    found.sort();
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cgroups_with_a_limit_are_found() {
        let top = tempfile::tempdir().unwrap();
        for (folder, limit, used) in
            [("a", "max 100000\n", 1), ("a/b", "50000 100000\n", 1), ("c", "100 1000\n", 1), ("d", "100 1000\n", 0)]
        {
            let folder = top.path().join(folder);
            fs::create_dir_all(&folder).unwrap();
            fs::write(folder.join("cpu.max"), limit).unwrap();
            fs::write(folder.join("cgroup.events"), format!("populated {used}\nfrozen 0\n")).unwrap();
        }
        assert_eq!(limited_below(top.path(), FOLDERS), ["a/b", "c"]);
    }

    #[test]
    fn what_a_user_makes_below_its_own_hides_nothing_beside_it() {
        let top = tempfile::tempdir().unwrap();
        for name in ["a.user", "b.service", "c.user"] {
            let folder = top.path().join(name);
            (0..20).for_each(|number| fs::create_dir_all(folder.join(format!("{number}"))).unwrap());
            fs::write(folder.join("cpu.max"), "100 1000\n").unwrap();
            fs::write(folder.join("cgroup.events"), "populated 1\n").unwrap();
        }
        assert_eq!(limited_below(top.path(), 10), ["a.user", "b.service", "c.user"]);
    }
}
