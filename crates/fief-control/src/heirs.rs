// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Heirs: which container has the usage of another one, once that has ended. Pure.
//!
//! The kernel side decides it (`container_heir` in bpf/core/containers.bpf.h): the nearest one above that lives, where the container and each
//! one between that has ended pass usage up, and else `retired`. The root, which is above all, inherits nothing. So it makes no difference
//! which of several ended first: what one of them left to another went where that one's own usage went.
//! Limits: of a parent that has ended only the path is known, so of several such with one path the last of the table is taken for it. One
//! that was moved elsewhere as it ended is taken to have left its usage where it was before.

use std::collections::HashMap;

use fief::abi::{FIEF_MAX_DEPTH, FIEF_RETIRED, FIEF_ROOT};

use crate::ContainerView;

/// Of the containers of one snapshot, by their positions.
#[derive(Debug)]
pub struct Heirs<'s> {
    containers: &'s [ContainerView],
    by_id: HashMap<u32, usize>,
    /// By path.
    living: HashMap<&'s str, usize>,
    /// The same of those that have ended, whose slots stay for those below them.
    ended: HashMap<&'s str, usize>,
}

impl<'s> Heirs<'s> {
    /// Of these containers.
    pub fn of(containers: &'s [ContainerView]) -> Self {
        let by_id = containers.iter().enumerate().map(|(at, view)| (view.id, at)).collect();
        let by_path = |ended: bool| -> HashMap<&'s str, usize> {
            let these = containers.iter().enumerate().filter(|(_, view)| (view.state == "ended") == ended);
            these.map(|(at, view)| (view.path.as_str(), at)).collect()
        };
        Self { containers, by_id, living: by_path(false), ended: by_path(true) }
    }

    /// A container, and those above it that usage may go to.
    pub fn way_up(&self, at: usize) -> impl Iterator<Item = usize> {
        self.chain(at).filter(move |&here| here == at || !self.has_ended(here))
    }

    /// The first on the way up that can have the usage of a container, which may be that one itself. `None`: there is not even `retired`.
    pub fn heir(&self, at: usize, can_have: impl Fn(usize) -> bool) -> Option<usize> {
        for here in self.chain(at) {
            if (here == at || !self.has_ended(here)) && can_have(here) {
                return Some(here);
            }
            if !self.containers[here].attributes.pass_up {
                break;
            }
        }
        self.by_id.get(&FIEF_RETIRED).copied()
    }

    fn has_ended(&self, at: usize) -> bool {
        self.containers[at].state == "ended"
    }

    /// A container and all above it, those that have ended too. One whose parent has ended says no more than its path.
    fn chain(&self, at: usize) -> impl Iterator<Item = usize> {
        let above = move |&at: &usize| {
            let view = &self.containers[at];
            match view.parent {
                Some(FIEF_ROOT) => None,
                Some(parent) => self.by_id.get(&parent).copied(),
                None => {
                    let own = view.path.as_str();
                    let mut paths = std::iter::successors(Some(own), |path| Some(path.rsplit_once('/')?.0));
                    // who lives with the path of a parent that has ended is another one
                    let parent = paths.nth(1)?;
                    let ended = self.ended.get(parent).copied();
                    ended.or_else(|| paths.find_map(|path| self.living.get(path).copied()))
                }
            }
        };
        // the depth of the tree is bounded; a loop in a torn snapshot is not
        std::iter::successors(Some(at), above).take(FIEF_MAX_DEPTH as usize + 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::tests::container as sample;

    fn container(path: &str, id: u32, parent: Option<u32>, passes_up: bool) -> ContainerView {
        let attributes = fief::abi::fief_attributes { weight: 100, pass_up: passes_up.into(), ..Default::default() };
        ContainerView { path: path.to_owned(), id, parent, attributes: attributes.into(), ..sample() }
    }

    #[test]
    fn usage_goes_up_to_the_nearest_one_that_lives_and_else_to_retired() {
        let all = [
            container("root", FIEF_ROOT, None, false),
            container("retired", FIEF_RETIRED, None, false),
            container("shop", 8, Some(FIEF_ROOT), true),
            container("shop/a", 9, Some(8), true),
            container("shop/a/b", 10, Some(9), true),
            container("shop/a/c", 11, Some(9), false),
            // its parent has ended
            container("shop/gone/d", 12, None, true),
        ];
        let heirs = Heirs::of(&all);
        let twin = [
            container("shop", 8, Some(FIEF_ROOT), true),
            ContainerView { state: "ended", ..container("shop/t", 9, Some(8), true) },
            container("shop/t", 20, Some(8), true),
            container("shop/t/x", 10, None, true),
        ];
        assert_eq!(Heirs::of(&twin).heir(3, |here| here != 3), Some(0), "not the other one of its parent's name");
        let heir = |at: usize, ended: &[usize]| {
            let heir = heirs.heir(at, |here| !ended.contains(&here));
            heir.map(|heir| all[heir].path.as_str())
        };
        assert_eq!(heir(4, &[]), Some("shop/a/b"), "it lives");
        assert_eq!(heir(4, &[4]), Some("shop/a"));
        assert_eq!(heir(4, &[3, 4]), Some("shop"));
        assert_eq!(heir(5, &[5]), Some("retired"), "it passes nothing up");
        assert_eq!(heir(6, &[6]), Some("shop"), "by its path");
        assert_eq!(heir(2, &[2]), Some("retired"), "the root inherits nothing");
    }
    #[test]
    fn whichever_ended_first_usage_stops_at_one_that_passes_nothing_up() {
        for passes_up in [[false, false], [false, true], [true, false], [true, true]] {
            // the other shop/a came after the first one had ended
            let all = |states: [&'static str; 2], parents: [Option<u32>; 2]| {
                vec![
                    container("retired", FIEF_RETIRED, None, false),
                    container("shop", 8, Some(FIEF_ROOT), true),
                    ContainerView { state: states[0], ..container("shop/a", 9, Some(8), passes_up[0]) },
                    ContainerView { state: states[1], ..container("shop/a/b", 10, parents[0], passes_up[1]) },
                    container("shop/a/b/c", 11, parents[1], true),
                    container("shop/a", 12, Some(8), true),
                ]
            };
            let expected = if passes_up == [true; 2] { Some(1) } else { Some(0) };
            for (states, parents) in [
                (["alive", "alive"], [Some(9), Some(10)]),
                (["ended", "orphan"], [None, Some(10)]),
                (["alive", "ended"], [Some(9), None]),
                (["ended", "ended"], [None, None]),
            ] {
                let all = all(states, parents);
                let heirs = Heirs::of(&all);
                assert_eq!(heirs.heir(4, |here| here == 1), expected, "{states:?}, which pass up: {passes_up:?}");
                let above: Vec<usize> = heirs.way_up(4).collect();
                let living: Vec<usize> = (1..5).rev().filter(|&at| all[at].state != "ended").collect();
                assert_eq!(above, living, "{states:?}");
            }
        }
    }
}
