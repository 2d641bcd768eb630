// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What each container used between two snapshots.
//!
//! A container that ended in between left its counters to its parent or to `retired`. What it had used before belongs to
//! no interval of theirs, so it is taken off again; only its last moments stay with the heir.
//!
//! Problem: a snapshot may have too much of a time, as that of a CPU that the hypervisor has taken (bpf/core/usage.bpf.h), and a later one
//! has less. If that counted as no use and no more, intervals would add up to more than was used. How: the next interval begins with the
//! larger of both ([`Interval::start_of_next`]), so that what was too much is taken from what comes then, also from the heir. Readings that
//! come one after the other are [`Intervals`]; a record has its own (commands/bill.rs), since it may hold the end of an installation.

use std::collections::HashMap;

use fief_agent::record::is_another;

use crate::record::Usage;
use fief_control::{ContainerView, Heirs, Snapshot};

/// For the containers of the later snapshot.
#[derive(Debug)]
pub struct Interval {
    pub seconds: f64,
    cpus: u32,
    used: Vec<Usage>,
    /// The most that is known of each counter up to its end.
    known: Vec<Usage>,
}

impl Interval {
    /// Without an earlier snapshot nothing is known to have been used.
    pub fn between(before: Option<&Snapshot>, after: &Snapshot) -> Self {
        let now = after.containers.iter().map(|view| Usage::from(&view.usage));
        let Some(before) = before else {
            let used = vec![Usage::default(); after.containers.len()];
            return Self { seconds: 0.0, cpus: after.cpus, used, known: now.collect() };
        };
        let bases = bases(before, after);
        let known: Vec<Usage> = now.zip(&bases).map(|(now, base)| now.most(*base)).collect();
        Self {
            seconds: after.taken_ns.saturating_sub(before.taken_ns) as f64 / 1e9,
            cpus: after.cpus,
            used: known.iter().zip(bases).map(|(known, base)| known.minus(base)).collect(),
            known,
        }
    }

    /// The later snapshot, as the earlier one of the next interval: no counter of it is less than it was.
    pub fn start_of_next(&self, after: &Snapshot) -> Snapshot {
        let mut start = after.clone();
        for (view, known) in start.containers.iter_mut().zip(&self.known) {
            view.usage = fief::Usage::of_counters(known.counters());
        }
        start
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

/// One behind the other: all of them add up to what was used.
#[derive(Debug, Default)]
pub struct Intervals {
    /// What the next one begins with.
    start: Option<Snapshot>,
}

impl Intervals {
    /// From the reading before to this one; the first one has none before it.
    pub fn until(&mut self, now: &Snapshot) -> Interval {
        let mut start = self.start.take();
        if let Some(start) = start.as_mut().filter(|start| is_another(start, now)) {
            // counters have begun anew: what they have now was used since, and would else stand still up to what they had
            start.containers.clear();
        }
        let interval = Interval::between(start.as_ref(), now);
        self.start = Some(interval.start_of_next(now));
        interval
    }
}

/// Of each container of the later snapshot, how much of its counters was known before: of its own, and of what ended containers left it.
fn bases(before: &Snapshot, after: &Snapshot) -> Vec<Usage> {
    let key = |view: &ContainerView| (view.id, view.generation);
    let places: HashMap<_, _> = after.containers.iter().enumerate().map(|(at, view)| (key(view), at)).collect();
    let place = |at: usize| places.get(&key(&before.containers[at])).copied();
    let lives = |&at: &usize| after.containers[at].state != "ended";
    let heirs = Heirs::of(&before.containers);
    let mut bases = vec![Usage::default(); after.containers.len()];
    for (at, view) in before.containers.iter().enumerate() {
        let mut left = Usage::from(&view.usage);
        // one that has ended, and whose slot stays for those below it, has left its counters but for what it has now
        if let Some(own) = place(at).filter(|own| !lives(own)) {
            let kept = left.least(Usage::from(&after.containers[own].usage));
            bases[own] = bases[own].plus(kept);
            left = left.minus(kept);
        }
        let heir = heirs.heir(at, |here| place(here).filter(lives).is_some());
        if let Some(heir) = heir.and_then(place) {
            bases[heir] = bases[heir].plus(left);
        }
    }
    bases
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
    fn one_that_ended_above_others_has_left_its_counters_too() {
        let retired = |ns| used("retired", fief::abi::FIEF_RETIRED, None, ns);
        let with_state = |state: &'static str, view: ContainerView| ContainerView { state, ..view };
        let interval = two(
            vec![used("a", 8, None, 40), used("a/b", 9, Some(8), 5), retired(0)],
            vec![
                with_state("ended", used("a", 8, None, 0)),
                with_state("orphan", used("a/b", 9, None, 5)),
                retired(42),
            ],
        );
        assert_eq!([0, 1, 2].map(|at| interval.used(at).thread_ns), [0, 0, 2]);
    }

    /// It is counted on: SYNs of a listener that is gone, and what is read in the midst of its end.
    #[test]
    fn what_one_that_ended_has_still_is_no_use_of_each_interval() {
        let with_state = |state: &'static str, view: ContainerView| ContainerView { state, ..view };
        let all = |state, a, retired| {
            let orphan = with_state("orphan", used("a/b", 9, None, 5));
            vec![
                with_state(state, used("a", 8, None, a)),
                orphan,
                used("retired", fief::abi::FIEF_RETIRED, None, retired),
            ]
        };
        let readings = vec![
            all("alive", 40, 0),
            all("ended", 40, 0),
            all("ended", 3, 37),
            all("ended", 3, 37),
            all("ended", 4, 37),
        ];
        let none = vec![0, 0, 0];
        assert_eq!(parts(readings), [none.clone(), none.clone(), none, vec![1, 0, 0]]);
    }

    /// One interval behind the other, a second each, with what its containers used.
    fn parts(readings: Vec<Vec<ContainerView>>) -> Vec<Vec<u64>> {
        let mut intervals = Intervals::default();
        let mut parts = Vec::new();
        for (second, containers) in (0_u64..).zip(readings) {
            let mut reading = sample::snapshot(containers);
            reading.taken_ns += second * SECOND;
            let interval = intervals.until(&reading);
            parts.push((0..reading.containers.len()).map(|at| interval.used(at).thread_ns).collect());
        }
        parts.split_off(1)
    }

    #[test]
    fn what_a_reading_had_too_much_of_is_taken_from_what_comes_next() {
        let a = |ns| vec![used("a", 8, None, ns)];
        // 30 of the second one
        assert_eq!(parts(vec![a(100), a(150), a(130), a(160)]), [[50], [0], [10]]);
    }

    #[test]
    fn what_a_reading_had_too_much_of_one_that_then_ended_is_taken_from_the_heir() {
        let a = |ns| used("a", 8, None, ns);
        // 20 of its 50
        let ended = passing_up(used("a/#9", 9, Some(8), 50));
        let readings = vec![vec![a(100)], vec![a(100), ended], vec![a(130)], vec![a(160)]];
        assert_eq!(parts(readings), [vec![0, 50], vec![0], vec![10]]);
    }

    #[test]
    fn what_another_installation_used_counts_from_its_begin() {
        let reading = |generation, idle, a| {
            let a = ContainerView { generation, ..used("a", 8, None, a) };
            vec![used("idle", fief::abi::FIEF_IDLE, None, idle), a]
        };
        let readings = vec![reading(1, 1000, 100), reading(9, 7, 50), reading(9, 9, 51)];
        assert_eq!(parts(readings), [[7, 50], [2, 1]]);
    }

    #[test]
    fn the_first_look_shows_nothing() {
        let interval = Interval::between(None, &sample::snapshot(vec![used("a", 8, None, SECOND)]));
        assert_eq!(interval.part(interval.used(0).thread_ns), 0.0);
    }
}
