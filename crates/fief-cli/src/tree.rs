// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The containers of a snapshot as a tree, in the order in which they are shown.
//!
//! Paths do not begin with the root, so its children stand beside it at the top. The containers that are always there
//! (root, system, idle, ...) come last. A snapshot is read while the kernel goes on: a parent may be missing, or two
//! containers may seem to be below each other for a moment; each is shown exactly once all the same.

use std::collections::HashMap;

use fief_control::{ContainerView, Snapshot};

/// The order of the containers that are always there, after all others.
const ALWAYS_THERE: [u32; 7] = [
    fief::abi::FIEF_USERS,
    fief::abi::FIEF_ROOT,
    fief::abi::FIEF_SYSTEM,
    fief::abi::FIEF_UNATTRIBUTED,
    fief::abi::FIEF_RETIRED,
    fief::abi::FIEF_STEAL,
    fief::abi::FIEF_IDLE,
];

/// One that is not a policy's, a unit's, an application's or a user's, but a name for a part of the machine's time.
pub fn is_always_there(container: &ContainerView) -> bool {
    ALWAYS_THERE.contains(&container.id)
}

/// Time in which nothing ran for us.
pub fn is_not_ours(container: &ContainerView) -> bool {
    [fief::abi::FIEF_IDLE, fief::abi::FIEF_STEAL].contains(&container.id)
}

/// Positions in [`Snapshot::containers`].
#[derive(Debug)]
pub struct Tree {
    roots: Vec<usize>,
    children: Vec<Vec<usize>>,
}

impl Tree {
    pub fn of(snapshot: &Snapshot) -> Self {
        let containers = &snapshot.containers;
        let places: HashMap<u32, usize> = containers.iter().enumerate().map(|(at, view)| (view.id, at)).collect();
        let mut tree = Self { roots: Vec::new(), children: vec![Vec::new(); containers.len()] };
        for (at, view) in containers.iter().enumerate() {
            let parent = view.parent.filter(|&id| id != fief::abi::FIEF_ROOT).and_then(|id| places.get(&id));
            match parent {
                Some(&parent) if !is_always_there(view) => tree.children[parent].push(at),
                _ => tree.roots.push(at),
            }
        }
        tree.break_loops();
        let place = |at: &usize| {
            let view = &containers[*at];
            let known = ALWAYS_THERE.iter().position(|&id| id == view.id).map_or(0, |place| place + 1);
            (known, view.path.as_str(), view.id)
        };
        tree.roots.sort_by(|a, b| place(a).cmp(&place(b)));
        for children in &mut tree.children {
            children.sort_by(|a, b| place(a).cmp(&place(b)));
        }
        tree
    }

    /// What no root leads to hangs in a loop; its first member becomes a root.
    fn break_loops(&mut self) {
        let mut seen = vec![false; self.children.len()];
        for at in self.walk().into_iter().map(|(at, _)| at) {
            seen[at] = true;
        }
        for first in 0..seen.len() {
            if seen[first] {
                continue;
            }
            for children in &mut self.children {
                children.retain(|&child| child != first);
            }
            self.roots.push(first);
            let mut open = vec![first];
            while let Some(at) = open.pop() {
                seen[at] = true;
                open.extend(&self.children[at]);
            }
        }
    }

    pub fn roots(&self) -> &[usize] {
        &self.roots
    }

    pub fn children(&self, at: usize) -> &[usize] {
        &self.children[at]
    }

    /// Parents before their children, with the number of levels above.
    pub fn walk(&self) -> Vec<(usize, usize)> {
        let mut order = Vec::with_capacity(self.children.len());
        let mut open: Vec<(usize, usize)> = self.roots.iter().rev().map(|&root| (root, 0)).collect();
        while let Some((at, depth)) = open.pop() {
            order.push((at, depth));
            open.extend(self.children[at].iter().rev().map(|&child| (child, depth + 1)));
        }
        order
    }

    /// A container and all below it.
    pub fn below(&self, at: usize) -> Vec<usize> {
        let mut order = Vec::new();
        let mut open = vec![at];
        while let Some(at) = open.pop() {
            order.push(at);
            open.extend(&self.children[at]);
        }
        order
    }
}

/// The last component of a path, indented by its level.
pub fn indented(path: &str, depth: usize) -> String {
    let name = match depth {
        0 => path,
        _ => path.rsplit('/').next().unwrap_or(path),
    };
    format!("{:width$}{name}", "", width = 2 * depth)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::sample::{container, snapshot};

    fn paths(snapshot: &Snapshot) -> Vec<String> {
        let shown = |(at, depth): (usize, usize)| indented(&snapshot.containers[at].path, depth);
        Tree::of(snapshot).walk().into_iter().map(shown).collect()
    }

    #[test]
    fn children_of_the_root_stand_beside_it_and_idle_comes_last() {
        let snapshot = snapshot(vec![
            container("root", 0, None),
            container("idle", 2, Some(0)),
            container("system", 1, None),
            container("shop", 8, Some(0)),
            container("shop/gold", 10, Some(8)),
            container("shop/browse", 11, Some(8)),
            container("shop/gold/#12", 12, Some(10)),
        ]);
        assert_eq!(paths(&snapshot), ["shop", "  browse", "  gold", "    #12", "root", "system", "idle"]);
    }

    #[test]
    fn each_container_is_shown_once_even_if_parents_form_a_loop() {
        let snapshot = snapshot(vec![
            container("a", 8, Some(9)),
            container("b", 9, Some(8)),
            container("c", 10, Some(9)),
            container("d", 11, Some(77)),
            container("e", 12, Some(12)),
        ]);
        let tree = Tree::of(&snapshot);
        let mut seen: Vec<usize> = tree.walk().into_iter().map(|(at, _)| at).collect();
        seen.sort_unstable();
        assert_eq!(seen, [0, 1, 2, 3, 4]);
        assert_eq!(tree.below(0).len(), 3, "the loop a, b and c below it");
    }
}
