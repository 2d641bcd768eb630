// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A reading as what has changed since the one before: counters as their differences, everything else of a container as a whole
//! when any of it changes. Both are of one process, so lists of the kernel side's words are the same. Pure. The crate postcard writes numbers as short as they are.

use std::collections::BTreeMap;

use fief::COUNTERS;
use fief::Usage;
use fief_control::{ClassListenerView, ContainerView, SchedulerView, Snapshot, UnitView};
use serde::{Deserialize, Serialize};

/// Of a container: what it has used, and who holds it.
const NUMBERS: usize = COUNTERS + 6;

/// What a chunk holds.
#[derive(Debug, Deserialize)]
pub(super) enum Step {
    Whole {
        /// Between two readings.
        interval_ms: u64,
        snapshot: Snapshot,
    },
    Change(Change),
}

/// The same, to be written.
#[derive(Debug, Serialize)]
pub(super) enum StepOf<'a> {
    Whole { interval_ms: u64, snapshot: &'a Snapshot },
    Change(&'a Change),
}

/// Whether everything was taken down in between: what never goes back has begun anew. That is the time of containers that are always there,
/// which stands still while none is charged, and the generation of any other's slot, by the difference, since the numbers go round. Not
/// other counters: a packet whose container is not known yet is another's for a moment. Of a time a reading may have too much, as of a CPU
/// that the hypervisor has taken (bpf/core/usage.bpf.h), and the next one less. But an installation that goes on has containers of before,
/// or far more charged in all than there was time for since.
pub fn is_another(before: &Snapshot, after: &Snapshot) -> bool {
    let old: BTreeMap<u32, &ContainerView> = before.containers.iter().map(|view| (view.id, view)).collect();
    let both: Vec<_> = after.containers.iter().filter_map(|new| Some((*old.get(&new.id)?, new))).collect();
    let is_special = |view: &ContainerView| view.id < fief::abi::FIEF_FIRST_ID;
    // installations begin with generations far apart
    let goes_on = both.iter().any(|(old, new)| !is_special(new) && old.generation == new.generation);
    let went_back = |old: &ContainerView, new: &ContainerView| match is_special(new) {
        true => new.usage.thread_ns < old.usage.thread_ns && !goes_on && may_be_charged_since(before, after),
        false => (new.generation.wrapping_sub(old.generation) as i32) < 0,
    };
    after.taken_ns < before.taken_ns || both.iter().any(|(old, new)| went_back(old, new))
}

/// Whether the CPUs had as much time between the two as there is charged at the later one.
fn may_be_charged_since(before: &Snapshot, after: &Snapshot) -> bool {
    let cpu_ns = |view: &ContainerView| u128::from(view.usage.thread_ns) + u128::from(view.usage.receive_ns);
    let charged: u128 = after.containers.iter().map(cpu_ns).sum();
    charged <= u128::from(after.cpus) * u128::from(after.taken_ns.saturating_sub(before.taken_ns))
}

#[derive(Debug, Default, Serialize, Deserialize)]
pub(super) struct Change {
    taken_ns: u64,
    /// Slots of containers that have gone.
    gone: Vec<u32>,
    /// Containers that are new, or have changed in more than numbers.
    placed: Vec<ContainerView>,
    numbers: Vec<Numbers>,
    kinds: Vec<u64>,
    failures: Option<Vec<u64>>,
    rest: Option<Rest>,
}

/// Numbers of a container that are others now.
#[derive(Debug, Serialize, Deserialize)]
struct Numbers {
    /// Slots since the one before.
    step: u32,
    /// A bit for each that changed.
    which: u32,
    /// Their differences, so that small ones are short in both directions.
    by: Vec<i64>,
}

/// What seldom changes.
#[derive(Debug, Serialize, Deserialize)]
struct Rest {
    cpus: u32,
    units: Vec<UnitView>,
    class_listeners: Vec<ClassListenerView>,
    scheduler: SchedulerView,
}

fn numbers(view: &ContainerView) -> [u64; NUMBERS] {
    let mut all = [0; NUMBERS];
    all[..COUNTERS].copy_from_slice(&view.usage.counters());
    let held = [view.handles, view.threads, view.processes, view.sockets, view.files, view.children];
    all[COUNTERS..].copy_from_slice(&held.map(u64::from));
    all
}

fn set_numbers(view: &mut ContainerView, all: [u64; NUMBERS]) {
    let mut counters = [0; COUNTERS];
    counters.copy_from_slice(&all[..COUNTERS]);
    view.usage = Usage::of_counters(counters);
    let held = [
        &mut view.handles,
        &mut view.threads,
        &mut view.processes,
        &mut view.sockets,
        &mut view.files,
        &mut view.children,
    ];
    held.into_iter().zip(&all[COUNTERS..]).for_each(|(to, from)| *to = *from as u32);
}

/// Whether they differ in numbers at most.
fn is_same(a: &ContainerView, b: &ContainerView) -> bool {
    let place =
        |view: &ContainerView| (view.generation, view.parent, view.state, view.policy, view.unit, view.attributes);
    a.path == b.path && place(a) == place(b)
}

fn is_same_rest(a: &Snapshot, b: &Snapshot) -> bool {
    let units = |s: &Snapshot| s.units.iter().map(|u| (u.cgroup.clone(), u.container.clone())).collect::<Vec<_>>();
    let listeners =
        |s: &Snapshot| s.class_listeners.iter().map(|l| (l.address, l.container.clone(), l.cookie)).collect::<Vec<_>>();
    a.cpus == b.cpus && units(a) == units(b) && listeners(a) == listeners(b)
}

impl Change {
    pub(super) fn between(before: &Snapshot, after: &Snapshot) -> Self {
        let earlier: BTreeMap<u32, &ContainerView> = before.containers.iter().map(|view| (view.id, view)).collect();
        let later: BTreeMap<u32, &ContainerView> = after.containers.iter().map(|view| (view.id, view)).collect();
        let mut change = Self {
            taken_ns: after.taken_ns.wrapping_sub(before.taken_ns),
            gone: earlier.keys().filter(|id| !later.contains_key(id)).copied().collect(),
            ..Self::default()
        };
        let mut last = 0;
        for (&id, view) in &later {
            match earlier.get(&id).filter(|old| is_same(old, view)) {
                None => change.placed.push((*view).clone()),
                Some(old) => {
                    let (old, new) = (numbers(old), numbers(view));
                    let differ = (0..NUMBERS).filter(|&at| old[at] != new[at]);
                    let by: Vec<i64> = differ.clone().map(|at| new[at].wrapping_sub(old[at]) as i64).collect();
                    if !by.is_empty() {
                        let which = differ.fold(0, |which, at| which | 1 << at);
                        change.numbers.push(Numbers { step: id - last, which, by });
                        last = id;
                    }
                }
            }
        }
        let counts = |counts: &[(&'static str, u64)]| counts.iter().map(|(_, count)| *count).collect::<Vec<_>>();
        let (old, new) = (counts(&before.system_kinds), counts(&after.system_kinds));
        change.kinds = new.iter().zip(&old).map(|(new, old)| new.wrapping_sub(*old)).collect();
        change.failures = (before.failures != after.failures).then(|| counts(&after.failures));
        let is_rest = before.scheduler == after.scheduler && is_same_rest(before, after);
        change.rest = (!is_rest).then(|| Rest {
            cpus: after.cpus,
            units: after.units.clone(),
            class_listeners: after.class_listeners.clone(),
            scheduler: after.scheduler.clone(),
        });
        change
    }

    /// Makes the later reading of the earlier one.
    pub(super) fn apply(self, snapshot: &mut Snapshot) {
        snapshot.taken_ns = snapshot.taken_ns.wrapping_add(self.taken_ns);
        // both are in the order of slots, and a change names a few of many
        let find = |containers: &[ContainerView], id: u32| containers.binary_search_by_key(&id, |view| view.id);
        snapshot.containers.retain(|view| self.gone.binary_search(&view.id).is_err());
        let mut id = 0_u32;
        for Numbers { step, which, by } in self.numbers {
            id = id.wrapping_add(step);
            let Ok(at) = find(&snapshot.containers, id) else { continue };
            let view = &mut snapshot.containers[at];
            let mut all = numbers(view);
            let changed = (0..NUMBERS).filter(|at| which & 1 << at != 0);
            changed.zip(by).for_each(|(at, by)| all[at] = all[at].wrapping_add(by as u64));
            set_numbers(view, all);
        }
        let mut new = Vec::new();
        for view in self.placed {
            match find(&snapshot.containers, view.id) {
                Ok(at) => snapshot.containers[at] = view,
                Err(_) => new.push(view),
            }
        }
        snapshot.containers.append(&mut new);
        // two lists that are in order, which the standard library merges
        snapshot.containers.sort_by_key(|view| view.id);
        let kinds = snapshot.system_kinds.iter_mut().zip(self.kinds);
        kinds.for_each(|((_, count), by)| *count = count.wrapping_add(by));
        if let Some(failures) = self.failures {
            snapshot.failures.iter_mut().zip(failures).for_each(|((_, count), new)| *count = new);
        }
        if let Some(Rest { cpus, units, class_listeners, scheduler }) = self.rest {
            (snapshot.cpus, snapshot.units) = (cpus, units);
            (snapshot.class_listeners, snapshot.scheduler) = (class_listeners, scheduler);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::series::tests::{container, snapshot};

    fn through(before: &Snapshot, after: &Snapshot) -> (usize, Snapshot) {
        let bytes = postcard::to_stdvec(&StepOf::Change(&Change::between(before, after))).expect("numbers and texts");
        let Step::Change(change) = postcard::from_bytes(&bytes).expect("the same") else { panic!("a change") };
        let mut made = before.clone();
        change.apply(&mut made);
        (bytes.len(), made)
    }

    fn text(snapshot: &Snapshot) -> String {
        format!("{snapshot:?}")
    }

    #[test]
    fn a_change_makes_the_later_of_the_earlier() {
        let before = snapshot(vec![
            container("a", 8, None, 100),
            container("b", 9, None, u64::MAX),
            container("c", 10, None, 5),
            container("d", 11, None, 5),
        ]);
        let mut after = before.clone();
        after.taken_ns += 1_000_000_000;
        after.containers[0].usage.thread_ns = 7_000_000;
        after.containers[0].sockets = 12;
        after.containers[1].usage.thread_ns = 3; // a counter that went round, or back
        after.containers[1].threads = 0;
        after.containers[2] = container("another", 10, Some(8), 1);
        after.containers[2].generation = 2;
        after.containers.remove(3);
        after.containers.push(container("e", 200, Some(8), 1));
        after.system_kinds[0].1 += 77;
        after.failures[0].1 = 9;
        after.units = vec![UnitView { cgroup: Some("/sys/fs/cgroup/web".into()), container: "a".into() }];
        after.scheduler = SchedulerView::On { counts: vec![("picked", 4)], combined: Vec::new() };
        assert_eq!(text(&through(&before, &after).1), text(&after));
        assert_eq!(text(&through(&after, &before).1), text(&before));
    }

    /// A user may make as many containers as the quota allows, and end them, in each second. The record can be read all the same.
    #[test]
    fn a_second_in_which_very_many_came_and_went_is_applied_at_once() {
        const MANY: u32 = 50_000;
        let all = |first: u32| {
            let ids = (0..MANY).map(|at| 8 + first + 2 * at);
            snapshot(ids.map(|id| container(&format!("shop/{id}"), id, Some(0), 5)).collect())
        };
        let (before, after) = (all(0), all(1));
        let change = Change::between(&before, &after);
        let (mut made, begun) = (before, std::time::Instant::now());
        change.apply(&mut made);
        let took = begun.elapsed();
        let of = |snapshot: &Snapshot| snapshot.containers.iter().map(|view| (view.id, view.path.clone())).collect();
        let (made, after): (Vec<_>, Vec<_>) = (of(&made), of(&after));
        assert!(made == after);
        assert!(took < std::time::Duration::from_secs(2), "{took:?}");
    }

    #[test]
    fn what_was_taken_down_while_no_time_was_charged_is_another_by_its_generations() {
        let of = |id: u32, generation: u32| {
            let mut snapshot = snapshot(vec![container("root", 0, None, 0), container("a", id, None, 0)]);
            snapshot.containers[1].generation = generation;
            snapshot
        };
        let is_another_from = |old: u32, new: u32| is_another(&of(8, old), &of(8, new));
        assert!(is_another_from(1000, 990) && is_another_from(3, u32::MAX - 5), "the later, the lower");
        assert!(!is_another_from(990, 990) && !is_another_from(990, 991) && !is_another_from(u32::MAX, 1));
        assert!(!is_another(&of(8, 1000), &of(9, 990)), "each slot has generations of its own");
    }

    #[test]
    fn a_time_that_a_reading_had_too_much_of_makes_no_other_installation() {
        const SECOND: u64 = 1_000_000_000;
        let of = |second: u64, root: u64, idle: u64| {
            let mut snapshot = snapshot(vec![container("root", 0, None, root), container("idle", 2, None, idle)]);
            snapshot.taken_ns = second * SECOND;
            snapshot
        };
        let before = of(60, 20 * SECOND, 90 * SECOND);
        let stood_still = of(61, 20 * SECOND - 50_000_000, 92 * SECOND);
        assert!(!is_another(&before, &stood_still));
        assert!(is_another(&before, &of(61, SECOND / 2, SECOND)), "all of it was charged since");
    }

    #[test]
    fn one_whose_time_is_seldom_charged_goes_on_with_its_containers() {
        let of = |second: u64, root: u64, generation: u32| {
            let a = ContainerView { generation, ..container("a", 8, None, 0) };
            let mut snapshot = snapshot(vec![container("root", 0, None, root), a]);
            snapshot.taken_ns = second * 1_000_000_000;
            snapshot
        };
        assert!(!is_another(&of(60, 600, 7), &of(7200, 595, 7)));
        assert!(is_another(&of(60, 600, 7), &of(7200, 595, 9)), "it has another container, and less time");
    }

    #[test]
    fn whether_cpu_time_is_charged_takes_no_byte_of_a_record() {
        let charged = snapshot(vec![container("a", 8, None, 1)]);
        let paused = Snapshot { charged: false, ..charged.clone() };
        let bytes = |snapshot: &Snapshot| {
            postcard::to_stdvec(&StepOf::Whole { interval_ms: 1000, snapshot }).expect("numbers and texts")
        };
        assert_eq!(bytes(&charged), bytes(&paused));
        let Ok(Step::Whole { snapshot, .. }) = postcard::from_bytes(&bytes(&paused)) else { panic!("a whole reading") };
        assert!(snapshot.charged);
    }

    #[test]
    fn what_has_not_changed_is_not_written() {
        let before = snapshot((8..1008).map(|id| container(&format!("shop/c{id}"), id, Some(0), 5)).collect());
        let mut after = before.clone();
        let (still, _) = through(&before, &after);
        assert!(still < 40, "{still} bytes");
        for view in &mut after.containers[100..200] {
            view.usage.thread_ns += 2_500_000;
            view.usage.packets_in += 9;
        }
        let (bytes, made) = through(&before, &after);
        assert!(bytes < 100 * 12, "{bytes} bytes");
        assert_eq!(text(&made), text(&after));
    }
}
