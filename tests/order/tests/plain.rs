// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A thread of which nothing has to be asked anew goes past the tree, until something is another one: a limit, a priority, a policy above it,
//! whom it works for, or what it had.

use fief_tests_order::{Cpus, Given, Policy, limit, priority};

const MS: u64 = 1_000_000;
const ROOT: u32 = 0;

// of bpf/sched/order.h
const SLICE: u64 = 3 * MS;

/// A container in another one, and a thread of it that is known; and the other's.
fn known() -> (Cpus, [u32; 2], u32) {
    let mut cpus = Cpus::new();
    let shop = cpus.container(ROOT, Given::default());
    let gold = cpus.container(shop, Given::default());
    let thread = cpus.thread(gold);
    cpus.work(thread, MS);
    is_plain(&mut cpus, thread);
    (cpus, [shop, gold], thread)
}

/// It wakes up, waits at the front, and runs.
fn is_plain(cpus: &mut Cpus, thread: u32) {
    cpus.wake(thread);
    assert!(cpus.is_at_front());
    assert_eq!(cpus.choose(), Some(thread));
    assert!(!cpus.is_at_front());
    cpus.sleep(MS / 10);
}

/// It wakes up, waits in that line, and runs.
fn is_asked(cpus: &mut Cpus, thread: u32, line: u32) {
    cpus.wake(thread);
    assert!(!cpus.is_at_front());
    assert_eq!(cpus.line(thread), Some(line));
    assert_eq!(cpus.choose(), Some(thread));
    cpus.sleep(MS / 10);
}

#[test]
fn nobody_is_known_who_was_never_asked() {
    let mut cpus = Cpus::new();
    let gold = cpus.container(ROOT, Given::default());
    let thread = cpus.thread(gold);
    is_asked(&mut cpus, thread, gold);
    is_plain(&mut cpus, thread);
    cpus.beat();
    is_plain(&mut cpus, thread);
    assert!(cpus.is_clean());
}

#[test]
fn where_others_wait_it_waits_in_its_line() {
    let (mut cpus, [_, gold], thread) = known();
    let others = cpus.container(ROOT, Given::default());
    let other = cpus.thread(others);
    cpus.wake(other);
    cpus.wake(thread);
    assert!(!cpus.is_at_front());
    assert_eq!(cpus.line(thread), Some(gold));
}

/// On each level of the way up: it is looked at once a beat.
#[test]
fn a_limit_that_is_set_above_holds_from_the_next_beat_on() {
    for level in 0..2 {
        let (mut cpus, way, thread) = known();
        cpus.give(way[level], limit(1), Policy::Fair);
        cpus.beat();
        is_asked(&mut cpus, thread, way[1]);
        // 1 % of two CPUs is 0.4 ms of a period
        cpus.work(thread, 20 * MS);
        cpus.wake(thread);
        assert_eq!(cpus.choose(), None, "level {level}: the limit is used up");
        // and is not forgotten: 20 ms are paid back in 50 periods
        let beats = (1..200).find(|_| {
            cpus.beat();
            cpus.runs().is_some()
        });
        assert!(beats.is_some_and(|beats| (40..60).contains(&beats)), "level {level}: {beats:?} beats");
    }
}

#[test]
fn a_limit_that_is_taken_away_holds_nobody_from_the_next_beat_on() {
    let (mut cpus, [shop, gold], thread) = known();
    cpus.give(shop, limit(50), Policy::Fair);
    cpus.beat();
    is_asked(&mut cpus, thread, gold);
    cpus.give(shop, Given::default(), Policy::Fair);
    cpus.beat();
    is_plain(&mut cpus, thread);
}

/// Whether one that wakes up takes the CPU from the other one. Both wait at the front, and run by that.
fn takes(cpus: &mut Cpus, wakes: u32, runs: u32) -> bool {
    is_plain(cpus, wakes);
    is_plain(cpus, runs);
    cpus.wake(runs);
    assert_eq!(cpus.choose(), Some(runs));
    cpus.wake(wakes);
    assert!(cpus.is_at_front());
    let takes = cpus.is_preempted();
    cpus.sleep(MS / 10);
    assert_eq!(cpus.choose(), Some(wakes));
    cpus.sleep(MS / 10);
    takes
}

#[test]
fn another_priority_above_counts_from_the_next_beat_on() {
    let (mut cpus, [shop, _], thread) = known();
    let others = cpus.container(ROOT, Given::default());
    let other = cpus.thread(others);
    cpus.work(other, MS);
    assert_eq!((takes(&mut cpus, thread, other), takes(&mut cpus, other, thread)), (false, false));
    cpus.give(shop, priority(200), Policy::Fair);
    cpus.beat();
    assert_eq!((takes(&mut cpus, thread, other), takes(&mut cpus, other, thread)), (true, false));
    cpus.give(shop, priority(0), Policy::Fair);
    cpus.beat();
    assert_eq!((takes(&mut cpus, thread, other), takes(&mut cpus, other, thread)), (false, true));
}

#[test]
fn another_policy_of_its_line_counts_from_the_next_beat_on() {
    let (mut cpus, [_, gold], thread) = known();
    cpus.give(gold, Given::default(), Policy::Rr);
    cpus.beat();
    is_asked(&mut cpus, thread, gold);
    is_asked(&mut cpus, thread, gold);
    cpus.give(gold, Given::default(), Policy::Fair);
    is_asked(&mut cpus, thread, gold);
    is_plain(&mut cpus, thread);
}

/// The tree hears of no more than a slice late: else a container whose threads always wait alone would be far behind for it.
#[test]
fn no_more_than_a_slice_is_left_unsettled() {
    let (mut cpus, [shop, gold], thread) = known();
    let (mut alone, mut most) = (0, 0);
    for _ in 0..100 {
        cpus.wake(thread);
        alone += u32::from(cpus.is_at_front());
        assert_eq!(cpus.choose(), Some(thread));
        cpus.sleep(MS);
        most = [shop, gold].map(|id| cpus.unsettled_ns(id)).into_iter().fold(most, u64::max);
    }
    assert!(most <= SLICE + MS, "{most} ns");
    assert!(alone > 70, "{alone} of 100");
    cpus.wake(thread);
    cpus.choose();
    cpus.sleep(10 * SLICE);
    is_asked(&mut cpus, thread, gold);
}

#[test]
fn who_was_bound_while_it_slept_waits_where_it_works_now() {
    let (mut cpus, _, thread) = known();
    let other = cpus.container(ROOT, Given::default());
    cpus.request(thread, other);
    is_asked(&mut cpus, thread, other);
}

#[test]
fn who_bound_itself_waits_where_it_works_now() {
    let (mut cpus, _, thread) = known();
    let other = cpus.container(ROOT, Given::default());
    cpus.wake(thread);
    assert!(cpus.is_at_front());
    assert_eq!(cpus.choose(), Some(thread));
    cpus.bind(other);
    cpus.sleep(MS / 10);
    is_asked(&mut cpus, thread, other);
    is_plain(&mut cpus, thread);
}
