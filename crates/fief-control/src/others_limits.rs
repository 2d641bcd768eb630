// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Limits of the CPU that others gave cgroups: under a scheduler of sched_ext the kernel does not hold them, and Fief's does not know them.

use std::fs;
use std::path::Path;

use crate::cgroup;

/// More are not looked at.
const FOLDERS: usize = 10_000;
/// So many are named.
const NAMED: usize = 3;

/// The note for an apply that turns the scheduler on; `None`: no cgroup has a limit, or only version 1 has the controller.
pub(crate) fn note() -> Option<String> {
    let top = cgroup::mount_point().ok()?;
    let limited = limited_below(&top);
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

/// Their paths from the top.
fn limited_below(top: &Path) -> Vec<String> {
    let (mut found, mut folders) = (Vec::new(), vec![top.to_owned()]);
    let mut seen = 0;
    while let Some(folder) = folders.pop().filter(|_| seen < FOLDERS) {
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
        assert_eq!(limited_below(top.path()), ["a/b", "c"]);
    }
}
