// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Shares, weights and limits of the CPU by cgroups, where Fief's scheduler cannot have the CPUs: a tree of groups that mirrors
//! the containers which hold processes ([`plan`]), written into the hierarchy that has the controller ([`hierarchy`]).
//!
//! The state is the tree of cgroups itself, so it outlives every process of Fief. Cgroups know whole processes: a thread that
//! binds to another container stays in the group of its process's home ([`reach`] names what follows for a policy).

mod hierarchy;
mod plan;
mod portion;
mod programs;
mod prune;
mod reach;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use fief_bpf::table::Table;
use fief_bpf::{Result, abi, process, schedule};
use serde::{Deserialize, Serialize};

pub use hierarchy::{Hierarchy, Version};
pub use programs::move_main;
pub use reach::beyond_groups;

use crate::charge::online_cpus;
use crate::tree::Tree;
use crate::{Fief, cgroup};
use plan::{Plan, leaf, nodes};
use portion::Quota;

/// The CPU is divided by cgroups.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct GroupsView {
    /// Where.
    pub hierarchy: Hierarchy,
    /// Containers that have a group.
    pub containers: BTreeSet<String>,
    /// What is not divided as the policy says, a sentence each with what to do.
    pub problems: Vec<String>,
}

/// How often processes are looked for that fork while they are moved.
const ROUNDS: usize = 10;

const REAL_TIME: &str = "a process with real-time threads enters no group without cpu.rt_runtime_us of its own";

/// Where the groups of an installation are.
#[derive(Debug)]
pub(crate) struct Groups {
    hierarchy: Hierarchy,
    /// The folder of the root container.
    root: PathBuf,
}

impl Groups {
    fn of(hierarchy: Hierarchy, scope: &str) -> Self {
        let root = hierarchy.top.join("fief").join(scope);
        Self { hierarchy, root }
    }

    fn is_on(&self) -> bool {
        self.root.exists() && self.hierarchy.is_enabled(&self.root)
    }

    /// The group of the processes of a container; `None`: the root.
    fn leaf(&self, path: Option<&str>) -> PathBuf {
        self.root.join(leaf(path))
    }

    fn plan(&self, tree: &Tree, units: &[(PathBuf, abi::fief_ref)]) -> Plan {
        let lives = |(unit, home): &&(PathBuf, abi::fief_ref)| !self.has_programs(unit) && tree.has(*home);
        let homes = units.iter().filter(lives).map(|(_, home)| home.id).collect();
        Plan::of(&nodes(tree), &homes, &programs::containers(tree), online_cpus())
    }

    fn make(&self, folder: &Path) -> Result<()> {
        let mut above: Vec<&Path> =
            folder.ancestors().skip(1).take_while(|one| one.starts_with(&self.hierarchy.top)).collect();
        above.reverse();
        for parent in above {
            cgroup::create(parent)?;
            self.hierarchy.enable(parent)?;
        }
        cgroup::create(folder)
    }

    /// Makes what is missing, then sets everything. A quota goes down from the leaves on and up from the root on: version 1
    /// takes no group that has more than the one above, at any moment.
    fn write(&self, plan: &Plan) -> Result<()> {
        let at = |group: &plan::Group| self.root.join(&group.folder);
        self.make(&self.root)?;
        self.hierarchy.enable(&self.root)?;
        for group in &plan.groups {
            self.make(&at(group))?;
        }
        let falls = |group: &&plan::Group| Quota::is_below(group.quota, self.hierarchy.quota(&at(group)));
        for group in plan.groups.iter().rev().filter(falls) {
            self.hierarchy.set_quota(&at(group), group.quota)?;
        }
        for group in &plan.groups {
            let folder = at(group);
            self.hierarchy.set_quota(&folder, group.quota)?;
            self.hierarchy.set_idle(&folder, group.idle)?;
            if !group.idle {
                self.hierarchy.set_weight(&folder, group.weight)?;
            }
        }
        self.write_pull(plan.pull)
    }

    /// What the whole weighs among the groups beside it; the processes of the hierarchy's root count as one of them.
    fn write_pull(&self, pull: f64) -> Result<()> {
        let own = self.hierarchy.top.join("fief");
        let beside = cgroup::children(&self.hierarchy.top).into_iter().filter(|group| *group != own);
        let weights: f64 =
            beside.map(|group| self.hierarchy.weight(&group)).sum::<f64>() + f64::from(portion::OWN_WEIGHT);
        self.hierarchy.set_weight(&own, (weights * pull).clamp(1.0, portion::MOST))
    }

    /// Managed cgroups, and the groups that their processes belong in.
    fn leaves<'a>(&self, tree: &Tree, units: &'a [(PathBuf, abi::fief_ref)]) -> Vec<(&'a Path, PathBuf)> {
        let rows = tree.rows();
        let leaf = |home: abi::fief_ref| {
            let row = rows.iter().find(|row| row.container == home)?;
            let path = (home.id != abi::FIEF_ROOT).then(|| tree.path(row));
            Some(self.leaf(path.as_deref()))
        };
        units.iter().filter_map(|(unit, home)| Some((unit.as_path(), leaf(*home)?))).collect()
    }

    /// Programs that a server has started are in groups of their own.
    fn holds(&self, unit: &Path, leaf: &Path) -> bool {
        match self.hierarchy.version {
            Version::V2 => unit.starts_with(leaf) || self.has_programs(unit),
            Version::V1 => {
                let is_there = |group: PathBuf| group == leaf || self.has_programs(&group);
                // one of which nobody can tell is not there
                let is_held = |pid| self.hierarchy.of_process(pid).map_or_else(|| process::has_ended(pid), is_there);
                cgroup::processes(unit).into_iter().all(is_held)
            }
        }
    }

    /// Puts the processes of a managed cgroup into their group. Returns whether they are there: those that somebody else has put
    /// into a group stay where they are.
    fn place(&self, unit: &Path, leaf: &Path) -> Result<bool> {
        // version 2 has one place for all, which was chosen when the cgroup was made
        for _ in 0..ROUNDS {
            if self.holds(unit, leaf) || self.hierarchy.version == Version::V2 {
                break;
            }
            for pid in cgroup::processes(unit) {
                let ours = |group: PathBuf| {
                    group == self.hierarchy.top || (group.starts_with(&self.root) && !self.has_programs(&group))
                };
                if self.hierarchy.of_process(pid).is_some_and(ours) {
                    match cgroup::join(leaf, pid) {
                        Err(_) if process::has_ended(pid) => {}
                        joined => joined.map_err(|e| e.remedy(REAL_TIME))?,
                    }
                }
            }
        }
        Ok(self.holds(unit, leaf))
    }

    /// Of a managed cgroup whose processes are not in their group.
    fn outside(&self, unit: &Path) -> String {
        let why = if unit.starts_with(&self.root) {
            "it was managed before the policy divided the CPU: manage its process again, or start the server again"
        } else {
            "its processes are in a cgroup of another manager, as systemd: set it there (systemctl set-property UNIT \
             CPUWeight=...), or start the server by `fief exec`"
        };
        format!("the CPU of {} is not divided as the policy says: {why}", unit.display())
    }

    /// Nothing is divided any more; version 2 keeps the cgroups that are managed.
    fn remove(&self) -> Result<()> {
        match self.hierarchy.version {
            Version::V1 => {
                cgroup::remove(&self.root, &self.hierarchy.top)?;
                cgroup::remove_top(&self.hierarchy.top);
                Ok(())
            }
            Version::V2 => disable(&self.hierarchy, &self.root),
        }
    }
}

/// From the leaves on.
fn disable(hierarchy: &Hierarchy, folder: &Path) -> Result<()> {
    if !hierarchy.is_enabled(folder) {
        return Ok(());
    }
    for child in cgroup::children(folder) {
        disable(hierarchy, &child)?;
    }
    hierarchy.disable(folder)
}

impl Fief {
    /// The groups of this installation, if they divide the CPU.
    pub(crate) fn groups(&self) -> Option<Groups> {
        let groups = Groups::of(Hierarchy::find().ok()?, self.pins().scope());
        groups.is_on().then_some(groups)
    }

    /// Lets groups divide the CPU from now on, as the policy in force says.
    pub(crate) fn install_groups(&self, hierarchy: Hierarchy, notes: &mut Vec<String>) -> Result<()> {
        self.write_groups(&Groups::of(hierarchy, self.pins().scope()), notes)
    }

    /// What is managed has changed: the groups follow, if there are any. What fails is no error of what was managed.
    pub(crate) fn refresh_groups(&self, notes: &mut Vec<String>) {
        if let Some(Err(e)) = self.groups().map(|groups| self.write_groups(&groups, notes)) {
            notes.push(format!("shares, weights and limits of the CPU are not as the policy says: {e}"));
        }
    }

    fn write_groups(&self, groups: &Groups, notes: &mut Vec<String>) -> Result<()> {
        let tree = Tree::read(&Table::open(self.pins())?);
        let units = self.unit_homes()?;
        let plan = groups.plan(&tree, &units);
        // what the plan lacks may have more than the groups above are to have
        groups.prune(&plan);
        groups.write(&plan)?;
        for (unit, leaf) in groups.leaves(&tree, &units) {
            match groups.place(unit, &leaf) {
                Ok(true) => {}
                Ok(false) => notes.push(groups.outside(unit)),
                Err(e) => notes.push(e.to_string()),
            }
        }
        self.hold_programs(groups, &tree)?;
        // and what processes have left for another group
        groups.prune(&plan);
        Ok(())
    }

    /// What the groups are now; `None`: there are none.
    pub(crate) fn groups_view(&self, tree: &Tree) -> Result<Option<GroupsView>> {
        let Some(groups) = self.groups() else { return Ok(None) };
        let units = self.unit_homes()?;
        let outside = groups.leaves(tree, &units).into_iter().filter(|(unit, leaf)| !groups.holds(unit, leaf));
        let mut problems: Vec<String> = outside.map(|(unit, _)| groups.outside(unit)).collect();
        if let Err(e) = schedule::foreign() {
            problems.push(format!("cgroups divide the CPU, and nobody knows how, since {e}"));
        }
        problems.extend(self.programs_problem(tree));
        let there =
            groups.plan(tree, &units).groups.into_iter().filter(|group| groups.root.join(&group.folder).exists());
        let containers = there.map(|group| group.container).collect();
        Ok(Some(GroupsView { hierarchy: groups.hierarchy, containers, problems }))
    }

    /// The folder of the hierarchy of version 2 in which a managed cgroup of this container has to be.
    pub(crate) fn unit_folder(&self, path: Option<&str>) -> Result<PathBuf> {
        match self.groups().filter(|groups| groups.hierarchy.version == Version::V2) {
            Some(groups) => Ok(groups.leaf(path)),
            None => cgroup::own(self.pins().scope()),
        }
    }

    /// The group of version 1 that a process of this container enters beside the managed cgroup.
    pub(crate) fn group_beside(&self, path: Option<&str>) -> Option<PathBuf> {
        let groups = self.groups().filter(|groups| groups.hierarchy.version == Version::V1)?;
        Some(groups.leaf(path))
    }

    /// Sets the weight and the limit of a group, and takes it away; says where that was.
    pub(crate) fn try_group(&self) -> Result<String> {
        let hierarchy = Hierarchy::find()?;
        let was_enabled = hierarchy.is_enabled(&hierarchy.top);
        let groups = Groups::of(hierarchy.clone(), self.pins().scope());
        let tried = groups.make(&groups.root).and_then(|()| {
            hierarchy.set_weight(&groups.root, 200.0)?;
            hierarchy.set_quota(&groups.root, Quota::of(500_000, online_cpus()))
        });
        let removed = cgroup::remove(&groups.root, &hierarchy.top);
        cgroup::remove_top(&hierarchy.top);
        if !was_enabled {
            // somebody else may have come to use it
            let _ = hierarchy.disable(&hierarchy.top);
        }
        tried.and(removed).map(|()| hierarchy.name())
    }

    /// The kernel's own division among processes again.
    pub(crate) fn remove_groups(&self) -> Result<()> {
        self.release_programs()?;
        match Hierarchy::find() {
            Ok(hierarchy) => {
                let groups = Groups::of(hierarchy, self.pins().scope());
                if groups.root.exists() { groups.remove() } else { Ok(()) }
            }
            Err(_) => Ok(()), // there can be none
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::ffi::OsStr;
    use std::fs;
    use std::os::unix::ffi::OsStrExt;
    use std::process::{Command, Stdio};

    use fief_testkit::{Cgroup, Feature, require};

    /// What version 1 makes of a folder.
    const FILES: [(&str, &str); 4] =
        [("cpu.shares", "1024"), ("cpu.cfs_quota_us", "-1"), ("cpu.cfs_period_us", "100000"), ("cpu.idle", "0")];

    fn group(folder: &str, weight: f64, limit_ppm: u32, idle: bool) -> plan::Group {
        let quota = Quota::of(limit_ppm, 2);
        plan::Group { folder: folder.into(), container: folder.into(), weight, idle, quota, is_leaf: false }
    }

    #[test]
    fn a_tree_is_written_and_what_it_no_longer_has_is_removed() {
        let top = tempfile::tempdir().expect("a folder");
        let hierarchy = Hierarchy { version: Version::V1, top: top.path().to_owned() };
        let groups = Groups::of(hierarchy, "scope");
        for folder in ["", "@shop", "@shop/@gold", "@late"] {
            let folder = groups.root.join(folder);
            fs::create_dir_all(&folder).expect("made");
            FILES.iter().for_each(|(file, text)| fs::write(folder.join(file), text).expect("written"));
        }
        FILES.iter().for_each(|(file, text)| fs::write(top.path().join("fief").join(file), text).expect("written"));
        // nobody is in it
        fs::create_dir(groups.root.join("@old")).expect("made");
        let shop = || group("@shop", 10_000.0, 400_000, false);
        let all = vec![shop(), group("@shop/@gold", 50.0, 1000, false), group("@late", 100.0, 0, true)];
        let plan = Plan { groups: all, pull: 2.0 };
        groups.write(&plan).expect("written");
        groups.prune(&plan);
        let read = |file: &str| fs::read_to_string(groups.root.join(file)).expect("there");
        assert_eq!(read("@shop/cpu.shares"), "102400");
        assert_eq!(
            (read("@shop/cpu.cfs_quota_us"), read("@shop/cpu.cfs_period_us")),
            ("80000".into(), "100000".into())
        );
        assert_eq!(read("@shop/@gold/cpu.shares"), "512");
        assert_eq!(read("@shop/@gold/cpu.cfs_period_us"), "1000000");
        assert_eq!((read("@late/cpu.idle"), read("@late/cpu.shares")), ("1".into(), "1024".into()));
        assert_eq!(read("../cpu.shares"), "2048", "twice as much as the root's processes");
        assert!(!groups.root.join("@old").exists() && groups.root.join("@late").exists());
    }

    /// A user names the cgroups of its own subtree.
    #[test]
    fn a_process_is_not_in_its_group_because_the_name_of_its_cgroup_is_no_text() {
        if !require(Feature::Cgroup2) {
            return;
        }
        let top = tempfile::tempdir().expect("a folder");
        let groups = Groups::of(Hierarchy { version: Version::V1, top: top.path().to_owned() }, "scope");
        let unit = Cgroup::new("odd-group").expect("a cgroup");
        let odd = unit.path().join(OsStr::from_bytes(b"\xff"));
        fs::create_dir(&odd).expect("made");
        let leaf = groups.leaf(None);
        assert!(groups.holds(unit.path(), &leaf), "nobody is in it");
        let mut cat = Command::new("cat").stdin(Stdio::piped()).stdout(Stdio::null()).spawn().expect("cat starts");
        cgroup::join(&odd, cat.id().cast_signed()).expect("it runs");
        let held = groups.holds(unit.path(), &leaf);
        drop(cat.stdin.take());
        cat.wait().expect("it ends");
        assert!(!held);
    }
}
