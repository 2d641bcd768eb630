// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The tree of groups that mirrors the containers which hold processes.
//!
//! ```text
//! fief/<scope>/            root
//! ├── own                  processes of the root
//! └── @shop                its share, weight and limit
//!     ├── own              processes whose home is shop, one child among the others
//!     ├── @cgi
//!     │   └── programs     what servers start for their clients, if the policy wants that here
//!     └── @gold
//!         └── own
//! ```
//!
//! Processes are in leaves only: version 2 wants that of a group that divides the CPU, and in version 1 each thread beside a
//! group would count as much as the group. A name of a container begins with `@`, so that none is that of a control file.

use std::collections::{HashMap, HashSet};
use std::path::{Path, PathBuf};

use fief_bpf::abi;

use super::portion::{Quota, Sibling, parts, weights};
use crate::tree::Tree;

/// The folder of the processes of a container.
pub(super) const OWN: &str = "own";

/// The folder of the programs that servers start, where the policy names the container for them.
pub(super) const PROGRAMS: &str = "programs";

/// A container as the tree of groups sees it.
#[derive(Debug, Clone)]
pub(super) struct Node {
    pub(super) id: u32,
    /// `None`: the root.
    pub(super) parent: Option<u32>,
    pub(super) path: String,
    pub(super) attributes: abi::fief_attributes,
}

/// One cgroup.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Group {
    /// Below the folder of the scope.
    pub(super) folder: PathBuf,
    /// Path of the container; a leaf has that of its container.
    pub(super) container: String,
    pub(super) weight: f64,
    pub(super) idle: bool,
    pub(super) quota: Option<Quota>,
    /// It has the processes themselves.
    pub(super) is_leaf: bool,
}

/// All of them, parents first.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct Plan {
    pub(super) groups: Vec<Group>,
    /// How many times as much as one group beside it the whole installation weighs.
    pub(super) pull: f64,
}

/// The containers and the root.
pub(super) fn nodes(tree: &Tree) -> Vec<Node> {
    let mut found: Vec<Node> = Vec::new();
    for row in tree.rows() {
        let is_root = row.container.id == abi::FIEF_ROOT;
        if !is_root && row.container.id < abi::FIEF_FIRST_ID {
            continue; // no process is in what Fief keeps for itself
        }
        let parent = tree.parent(row).map_or(abi::FIEF_ROOT, |parent| parent.container.id);
        found.push(Node {
            id: row.container.id,
            parent: (!is_root).then_some(parent),
            path: tree.path(row),
            attributes: row.attributes(tree.slot),
        });
    }
    found
}

struct Builder<'a> {
    nodes: HashMap<u32, &'a Node>,
    children: HashMap<u32, Vec<u32>>,
    homes: &'a HashSet<u32>,
    programs: &'a HashSet<u32>,
    cpus: u32,
    groups: Vec<Group>,
}

impl Plan {
    /// `homes`: the containers that processes are in; `programs`: those that servers' programs go to.
    pub(super) fn of(nodes: &[Node], homes: &HashSet<u32>, programs: &HashSet<u32>, cpus: u32) -> Self {
        let by_id: HashMap<u32, &Node> = nodes.iter().map(|node| (node.id, node)).collect();
        let mut occupied = HashSet::new();
        for home in homes.union(programs) {
            let mut at = by_id.get(home);
            while let Some(node) = at {
                occupied.insert(node.id);
                at = node.parent.and_then(|parent| by_id.get(&parent));
            }
        }
        let mut children: HashMap<u32, Vec<u32>> = HashMap::new();
        for node in nodes.iter().filter(|node| occupied.contains(&node.id)) {
            if let Some(parent) = node.parent {
                children.entry(parent).or_default().push(node.id);
            }
        }
        let mut builder = Builder { nodes: by_id, children, homes, programs, cpus, groups: Vec::new() };
        builder.below(abi::FIEF_ROOT, Path::new(""), None);
        let pull = builder.pull();
        Self { groups: builder.groups, pull }
    }
}

impl Builder<'_> {
    fn below(&mut self, id: u32, folder: &Path, limit: Option<Quota>) {
        let children = self.children.get(&id).cloned().unwrap_or_default();
        let node = self.nodes.get(&id).copied();
        let attributes = node.map(|node| node.attributes).unwrap_or_default();
        let mut siblings: Vec<Sibling> = children.iter().filter_map(|child| self.sibling(*child)).collect();
        if self.homes.contains(&id) {
            siblings.push(Sibling::OWN);
        }
        if self.programs.contains(&id) {
            siblings.push(Sibling::OWN);
        }
        let whole_ppm = if id == abi::FIEF_ROOT { 0 } else { attributes.share_ppm };
        let mut weights = weights(whole_ppm, attributes.reserved_ppm, &siblings).into_iter();
        for child in children {
            let (Some(node), Some(weight)) = (self.nodes.get(&child).copied(), weights.next()) else { continue };
            let own = Quota::of(node.attributes.limit_ppm, self.cpus);
            // the smaller one holds; version 1 refuses a group that has more than the one above
            let quota = if Quota::is_below(limit, own) && own.is_some() { limit } else { own };
            let below = folder.join(format!("@{}", component(&node.path)));
            self.groups.push(Group {
                folder: below.clone(),
                container: node.path.clone(),
                weight,
                idle: node.attributes.priority == 0,
                quota,
                is_leaf: false,
            });
            self.below(child, &below, quota.or(limit));
        }
        let leaves = [(OWN, self.homes.contains(&id)), (PROGRAMS, self.programs.contains(&id))];
        for (name, weight) in leaves.into_iter().filter(|(_, is)| *is).map(|(name, _)| name).zip(weights) {
            let container = node.map_or_else(String::new, |node| node.path.clone());
            let leaf = folder.join(name);
            self.groups.push(Group { folder: leaf, container, weight, idle: false, quota: None, is_leaf: true });
        }
    }

    fn sibling(&self, id: u32) -> Option<Sibling> {
        let attributes = self.nodes.get(&id)?.attributes;
        let abi::fief_attributes { share_ppm, weight, priority, .. } = attributes;
        Some(Sibling { share_ppm, weight, priority })
    }

    /// All that nobody manages is one child more of the root, as it is for the scheduler.
    fn pull(&self) -> f64 {
        let reserved = self.nodes.get(&abi::FIEF_ROOT).map_or(0, |root| root.attributes.reserved_ppm);
        let children = self.children.get(&abi::FIEF_ROOT).into_iter().flatten();
        let mut siblings: Vec<Sibling> = children.filter_map(|child| self.sibling(*child)).collect();
        if self.homes.contains(&abi::FIEF_ROOT) {
            siblings.push(Sibling::OWN);
        }
        siblings.push(Sibling::OWN);
        let parts = parts(0, reserved, &siblings);
        let (others, ours) = parts.split_last().expect("one was pushed");
        ours.iter().sum::<f64>() / others
    }
}

/// The last one of a path.
fn component(path: &str) -> &str {
    path.rsplit_once('/').map_or(path, |(_, name)| name)
}

/// The folder of the processes of a container, by its path; empty: the root.
pub(super) fn leaf(path: Option<&str>) -> PathBuf {
    group(path).join(OWN)
}

/// The folder of the programs that servers start and that go to a container.
pub(super) fn programs(path: &str) -> PathBuf {
    group(Some(path)).join(PROGRAMS)
}

fn group(path: Option<&str>) -> PathBuf {
    path.into_iter().flat_map(|path| path.split('/')).map(|name| format!("@{name}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(id: u32, parent: u32, path: &str, set: impl FnOnce(&mut abi::fief_attributes)) -> Node {
        let mut attributes = abi::fief_attributes { weight: 100, priority: 100, ..Default::default() };
        set(&mut attributes);
        Node { id, parent: (id != abi::FIEF_ROOT).then_some(parent), path: path.to_owned(), attributes }
    }

    fn root(reserved_ppm: u32) -> Node {
        node(abi::FIEF_ROOT, 0, "root", |a| a.reserved_ppm = reserved_ppm)
    }

    fn shown(plan: &Plan) -> Vec<(String, u32, Option<u64>)> {
        let quota = |group: &Group| group.quota.map(|quota| quota.quota_us);
        let row = |group: &Group| (group.folder.display().to_string(), group.weight.round() as u32, quota(group));
        plan.groups.iter().map(row).collect()
    }

    #[test]
    fn only_containers_with_processes_and_those_above_have_groups() {
        let nodes = [
            root(0),
            node(20, abi::FIEF_ROOT, "shop", |_| ()),
            node(21, 20, "shop/gold", |a| a.weight = 300),
            node(22, 20, "shop/empty", |_| ()),
        ];
        let plan = Plan::of(&nodes, &HashSet::from([21, 20]), &HashSet::new(), 2);
        let expected = [("@shop", 100), ("@shop/@gold", 300), ("@shop/@gold/own", 100), ("@shop/own", 100)];
        let expected: Vec<_> = expected.into_iter().map(|(folder, weight)| (folder.to_owned(), weight, None)).collect();
        assert_eq!(shown(&plan), expected);
        assert!(Plan::of(&nodes, &HashSet::new(), &HashSet::new(), 2).groups.is_empty());
    }

    #[test]
    fn a_share_is_held_among_siblings_and_against_all_others() {
        let nodes = [
            root(400_000),
            node(20, abi::FIEF_ROOT, "a", |a| a.share_ppm = 300_000),
            node(21, abi::FIEF_ROOT, "b", |a| a.share_ppm = 100_000),
        ];
        let plan = Plan::of(&nodes, &HashSet::from([20, 21]), &HashSet::new(), 2);
        let weight = |folder: &str| shown(&plan).into_iter().find(|row| row.0 == folder).map(|row| row.1);
        assert_eq!((weight("@a"), weight("@b")), (Some(10_000), Some(3333)));
        // 40 % of the machine beside one that has the other 60 %
        assert!((plan.pull - 2.0 / 3.0).abs() < 1e-9, "{}", plan.pull);
    }

    #[test]
    fn a_child_has_no_quota_above_its_parents() {
        let nodes = [
            root(0),
            node(20, abi::FIEF_ROOT, "shop", |a| a.limit_ppm = 100_000),
            node(21, 20, "shop/gold", |a| a.limit_ppm = 500_000),
            node(22, 20, "shop/tin", |a| a.limit_ppm = 50_000),
            node(23, 22, "shop/tin/ore", |_| ()),
        ];
        let plan = Plan::of(&nodes, &HashSet::from([21, 23]), &HashSet::new(), 2);
        let quota = |folder: &str| shown(&plan).into_iter().find(|row| row.0 == folder).and_then(|row| row.2);
        assert_eq!(quota("@shop"), Some(20_000));
        assert_eq!(quota("@shop/@gold"), Some(20_000));
        assert_eq!(quota("@shop/@tin"), Some(10_000));
        assert_eq!(quota("@shop/@tin/@ore"), None);
    }

    #[test]
    fn programs_have_a_group_beside_the_processes_that_live_there_before_any_is_started() {
        let nodes = [
            root(0),
            node(20, abi::FIEF_ROOT, "shop", |_| ()),
            node(21, 20, "shop/cgi", |a| a.limit_ppm = 100_000),
            node(22, 21, "shop/cgi/sum-17", |_| ()),
        ];
        let folders = |homes: &[u32]| {
            let homes = homes.iter().copied().collect();
            let plan = Plan::of(&nodes, &homes, &HashSet::from([21]), 2);
            shown(&plan).into_iter().map(|row| (row.0, row.2)).collect::<Vec<_>>()
        };
        let row = |folder: &str, quota| (folder.to_owned(), quota);
        let alone = [row("@shop", None), row("@shop/@cgi", Some(20_000)), row("@shop/@cgi/programs", None)];
        assert_eq!(folders(&[]), alone);
        assert_eq!(folders(&[21])[2..], [row("@shop/@cgi/own", None), row("@shop/@cgi/programs", None)]);
        assert_eq!(programs("shop/cgi"), PathBuf::from("@shop/@cgi/programs"));
    }

    #[test]
    fn priority_0_is_idle_and_the_processes_of_the_root_are_one_child() {
        let nodes = [root(0), node(20, abi::FIEF_ROOT, "later", |a| a.priority = 0)];
        let plan = Plan::of(&nodes, &HashSet::from([20, abi::FIEF_ROOT]), &HashSet::new(), 2);
        assert!(plan.groups.iter().any(|group| group.folder.ends_with("@later") && group.idle));
        assert!(plan.groups.iter().any(|group| group.folder.ends_with("own") && group.is_leaf));
    }

    #[test]
    fn the_folder_of_a_containers_processes_follows_from_its_path() {
        assert_eq!(leaf(Some("shop/tasks")), PathBuf::from("@shop/@tasks/own"));
        assert_eq!(leaf(None), PathBuf::from("own"));
    }
}
