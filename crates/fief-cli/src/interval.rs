// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What each container used between two snapshots.
//!
//! A container that ended in between left its counters to its parent or to `retired`. What it had used before belongs to
//! no interval of theirs, so it is taken off again; only its last moments stay with the heir.

use std::collections::HashMap;

use crate::record::Usage;
use fief_control::{ContainerView, Snapshot};

/// For the containers of the later snapshot.
#[derive(Debug)]
pub struct Interval {
    pub seconds: f64,
    cpus: u32,
    used: Vec<Usage>,
}

impl Interval {
    /// Without an earlier snapshot nothing is known to have been used.
    pub fn between(before: Option<&Snapshot>, after: &Snapshot) -> Self {
        let Some(before) = before else {
            return Self { seconds: 0.0, cpus: after.cpus, used: vec![Usage::default(); after.containers.len()] };
        };
        let key = |view: &ContainerView| (view.id, view.generation);
        let earlier: HashMap<_, _> = before.containers.iter().map(|view| (key(view), view)).collect();
        let later: HashMap<_, _> = after.containers.iter().enumerate().map(|(at, view)| (key(view), at)).collect();
        let mut base: Vec<Usage> = after
            .containers
            .iter()
            .map(|view| earlier.get(&key(view)).map_or_else(Usage::default, |view| Usage::from(&view.usage)))
            .collect();
        let parents: HashMap<u32, &ContainerView> = before.containers.iter().map(|view| (view.id, view)).collect();
        for ended in before.containers.iter().filter(|view| !later.contains_key(&key(view))) {
            if let Some(heir) = heir(ended, &parents, |view| later.get(&key(view)).copied(), after) {
                base[heir] = base[heir].plus(Usage::from(&ended.usage));
            }
        }
        let now = after.containers.iter().map(|view| Usage::from(&view.usage));
        Self {
            seconds: after.taken_ns.saturating_sub(before.taken_ns) as f64 / 1e9,
            cpus: after.cpus,
            used: now.zip(base).map(|(now, base)| now.minus(base)).collect(),
        }
    }

    /// Of the container at a position of the later snapshot.
    pub fn used(&self, at: usize) -> Usage {
        self.used[at]
    }

    pub fn per_second(&self, count: u64) -> f64 {
        if self.seconds > 0.0 { count as f64 / self.seconds } else { 0.0 }
    }

    /// Of the whole machine.
    pub fn part(&self, ns: u64) -> f64 {
        self.per_second(ns) / 1e9 / f64::from(self.cpus.max(1))
    }
}

/// Position of the container that has the counters of one that ended.
fn heir(
    ended: &ContainerView,
    parents: &HashMap<u32, &ContainerView>,
    place: impl Fn(&ContainerView) -> Option<usize>,
    after: &Snapshot,
) -> Option<usize> {
    let mut child = ended;
    // The depth of the tree is bounded; a loop in a torn snapshot is not.
    for _ in 0..=fief::abi::FIEF_MAX_DEPTH {
        let Some(parent) = child.parent.and_then(|id| parents.get(&id)).filter(|_| child.attributes.pass_up) else {
            break;
        };
        match place(parent) {
            Some(at) if after.containers[at].state == "ended" => break,
            Some(at) => return Some(at),
            None => child = parent,
        }
    }
    after.containers.iter().position(|view| view.id == fief::abi::FIEF_RETIRED)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::sample;

    const SECOND: u64 = 1_000_000_000;

    fn used(path: &str, id: u32, parent: Option<u32>, thread_ns: u64) -> ContainerView {
        let mut view = sample::container(path, id, parent);
        view.usage.thread_ns = thread_ns;
        view
    }

    fn passing_up(mut view: ContainerView) -> ContainerView {
        view.attributes.pass_up = true;
        view
    }

    fn two(before: Vec<ContainerView>, after: Vec<ContainerView>) -> Interval {
        let before = sample::snapshot(before);
        let mut after = sample::snapshot(after);
        after.taken_ns += 2 * SECOND;
        Interval::between(Some(&before), &after)
    }

    #[test]
    fn a_part_is_of_all_cpus() {
        let interval = two(vec![used("a", 8, None, SECOND)], vec![used("a", 8, None, 3 * SECOND)]);
        assert_eq!(interval.used(0).thread_ns, 2 * SECOND);
        assert_eq!(interval.part(interval.used(0).thread_ns), 0.5);
    }

    #[test]
    fn a_new_container_in_an_old_slot_does_not_inherit_its_past() {
        let mut young = used("b", 8, None, SECOND);
        young.generation = 2;
        let interval = two(vec![used("a", 8, None, 50 * SECOND)], vec![young]);
        assert_eq!(interval.used(0).thread_ns, SECOND);
    }

    #[test]
    fn an_heir_does_not_seem_to_have_used_what_it_inherited() {
        let interval = two(
            vec![used("a", 8, None, SECOND), passing_up(used("a/#9", 9, Some(8), 10 * SECOND))],
            vec![used("a", 8, None, 11 * SECOND + 5)],
        );
        assert_eq!(interval.used(0).thread_ns, 5, "the last moments of the one that ended");
    }

    #[test]
    fn what_was_not_passed_up_went_to_retired() {
        let retired = |ns| used("retired", fief::abi::FIEF_RETIRED, None, ns);
        let interval = two(
            vec![used("a", 8, None, SECOND), used("a/#9", 9, Some(8), 10 * SECOND), retired(0)],
            vec![used("a", 8, None, SECOND), retired(10 * SECOND + 3)],
        );
        assert_eq!([interval.used(0).thread_ns, interval.used(1).thread_ns], [0, 3]);
    }

    #[test]
    fn a_family_that_ends_together_leaves_all_to_the_grandparent() {
        let interval = two(
            vec![
                used("a", 8, None, 0),
                passing_up(used("a/b", 9, Some(8), 4)),
                passing_up(used("a/b/c", 10, Some(9), 5)),
            ],
            vec![used("a", 8, None, 12)],
        );
        assert_eq!(interval.used(0).thread_ns, 3);
    }

    #[test]
    fn the_first_look_shows_nothing() {
        let interval = Interval::between(None, &sample::snapshot(vec![used("a", 8, None, SECOND)]));
        assert_eq!(interval.part(interval.used(0).thread_ns), 0.0);
    }
}
