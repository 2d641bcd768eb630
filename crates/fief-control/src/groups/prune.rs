// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Groups that the plan does not have, as those of a service that was stopped: they are removed once nobody is in them.
//!
//! Until then they hold nobody's quota up. Version 1 refuses a quota that is below the one of any group beneath, whoever is in that, and
//! counts a removed group for some 16 ms more: the kernel takes it out of its tree when the last reference to it is gone
//! (cpu_cgroup_css_released, kernel/sched/core.c). So a group gives up its quota before it is removed. One that somebody is still in keeps
//! its quota where the groups above are to have as much, and gives it up otherwise: without one it has what they have.

use std::collections::HashMap;
use std::fs;
use std::path::{Path, PathBuf};

use super::portion::Quota;
use super::{Groups, Hierarchy, Plan, plan};
use crate::cgroup;

/// The quotas that groups are to have, by folder.
type Quotas = HashMap<PathBuf, Option<Quota>>;

impl Groups {
    /// Removes the groups of containers that have no processes any more. One that somebody entered meanwhile stays.
    pub(super) fn prune(&self, plan: &Plan) {
        let planned = plan.groups.iter().map(|group| (self.root.join(&group.folder), group.quota)).collect();
        prune(&self.hierarchy, &self.root, &planned, None);
    }
}

/// `limit`: what the groups above are to have.
fn prune(hierarchy: &Hierarchy, folder: &Path, planned: &Quotas, limit: Option<Quota>) {
    for child in cgroup::children(folder) {
        let name = child.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        let is_group = !folder.ends_with(plan::OWN) && [plan::OWN, plan::PROGRAMS].contains(&name);
        if !is_group && !name.starts_with('@') {
            continue; // a managed cgroup of version 2
        }
        if let Some(quota) = planned.get(&child) {
            prune(hierarchy, &child, planned, quota.or(limit));
            continue;
        }
        prune(hierarchy, &child, planned, limit);
        if cgroup::processes(&child).is_empty() || Quota::is_below(limit, hierarchy.quota(&child)) {
            // where it fails and is in the way, the kernel refuses the quota above, and that is told
            let _ = hierarchy.set_quota(&child, None);
        }
        let _ = fs::remove_dir(&child);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::groups::Version;

    #[test]
    fn a_group_that_the_plan_lacks_holds_no_quota_up() {
        let top = tempfile::tempdir().expect("a folder");
        let groups = Groups::of(Hierarchy { version: Version::V1, top: top.path().to_owned() }, "scope");
        // the files of the kernel's folders do not keep them from being removed; these stay
        let there = [
            ("@shop", "120000", "17\n"),
            ("@shop/@stopped", "100000", ""),
            ("@shop/@small", "40000", ""),
            ("@shop/@left", "100000", "18\n"),
            ("@shop/@left/@below", "80000", "19\n"),
            ("@shop/@fits", "40000", "20\n"),
        ];
        for (folder, quota, processes) in there {
            let folder = groups.root.join(folder);
            fs::create_dir_all(&folder).expect("made");
            let files = [("cpu.cfs_quota_us", quota), ("cpu.cfs_period_us", "100000"), ("cgroup.procs", processes)];
            files.iter().for_each(|(file, text)| fs::write(folder.join(file), text).expect("written"));
        }
        // 30 % of two CPUs, which has been 60 %
        let shop = plan::Group {
            folder: "@shop".into(),
            container: "shop".into(),
            weight: 100.0,
            idle: false,
            quota: Quota::of(300_000, 2),
            is_leaf: false,
        };
        groups.prune(&Plan { groups: vec![shop], pull: 1.0 });
        let file = |folder: &str| groups.root.join(folder).join("cpu.cfs_quota_us");
        let quota = |folder: &str| fs::read_to_string(file(folder)).expect("there");
        assert_eq!(["@shop/@stopped", "@shop/@small"].map(quota), ["-1"; 2], "a removed one counts for a while");
        assert_eq!(["@shop/@left", "@shop/@left/@below"].map(quota), ["-1"; 2], "they have what shop has");
        assert_eq!(quota("@shop/@fits"), "40000");
        assert_eq!(quota("@shop"), "120000", "what is planned is written from the leaves on, later");
    }
}
