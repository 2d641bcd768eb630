// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What applications set of the CPU of their own containers, where nobody holds it: that turns no scheduler on, which is the
//! operator's to do.

use fief_bpf::abi;
use fief_bpf::table::Row;

use crate::SchedulerView;
use crate::priorities::some_of;
use crate::tree::Tree;

/// A line for all of them; `None`: there are none.
pub(super) fn by_applications(tree: &Tree, scheduler: &SchedulerView) -> Option<String> {
    let is_held = |path: &String| match scheduler {
        SchedulerView::On { .. } => true,
        SchedulerView::Groups(groups) => groups.containers.contains(path),
        SchedulerView::Off | SchedulerView::Ejected(_) => false,
    };
    if matches!(scheduler, SchedulerView::On { .. }) {
        return None; // there may be a million of them
    }
    let is_own = |row: &&Row| {
        let of_policy = row.record.flags & abi::FIEF_CONTAINER_POLICY != 0;
        row.container.id >= abi::FIEF_FIRST_ID && row.record.state == abi::FIEF_ALIVE && !of_policy
    };
    let asks = |row: &&Row| {
        let abi::fief_attributes { share_ppm, limit_ppm, weight, priority, policy, .. } = row.attributes(tree.slot);
        share_ppm != 0 || limit_ppm != 0 || weight != 100 || priority != 100 || policy != abi::FIEF_POLICY_FAIR
    };
    let paths = tree.rows().iter().filter(is_own).filter(asks).map(|row| tree.path(row));
    let paths: Vec<String> = paths.filter(|path| !is_held(path)).collect();
    let named: Vec<&str> = paths.iter().map(String::as_str).collect();
    let told = || format!("{}: cpu.* as applications set it, which turns no scheduler on", some_of(&named));
    (!named.is_empty()).then(told)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{GroupsView, Hierarchy, Version};

    fn row(id: u32, flags: u32, attributes: abi::fief_attributes) -> Row {
        let container = abi::fief_ref { id, generation: 1 };
        let (state, attributes) = (abi::FIEF_ALIVE, [attributes; 2]);
        let record = abi::fief_container { generation: 1, state, flags, attributes, ..Default::default() };
        Row { container, record }
    }

    #[test]
    fn what_an_application_sets_is_told_where_nobody_holds_it() {
        let plain = abi::fief_attributes { weight: 100, priority: 100, ..Default::default() };
        let tree = Tree::of(
            vec![
                row(8, abi::FIEF_CONTAINER_POLICY, abi::fief_attributes { limit_ppm: 7, ..plain }),
                row(9, 0, plain),
                row(10, 0, abi::fief_attributes { limit_ppm: 100_000, ..plain }),
                row(11, 0, abi::fief_attributes { priority: 0, ..plain }),
            ],
            0,
        );
        let told = |scheduler: &SchedulerView| by_applications(&tree, scheduler);
        let all = "#10, #11: cpu.* as applications set it, which turns no scheduler on";
        assert_eq!(told(&SchedulerView::Off).as_deref(), Some(all));
        assert_eq!(told(&SchedulerView::Ejected("a stall".into())).as_deref(), Some(all));
        assert_eq!(told(&SchedulerView::On { counts: Vec::new(), combined: Vec::new() }), None);
        let hierarchy = Hierarchy { version: Version::V1, top: "/sys/fs/cgroup/cpu".into() };
        let containers = ["#10".to_owned()].into();
        let groups = SchedulerView::Groups(GroupsView { hierarchy, containers, problems: Vec::new() });
        assert!(told(&groups).is_some_and(|told| told.starts_with("#11: ")), "{:?}", told(&groups));
    }
}
