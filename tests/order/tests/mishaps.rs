// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Threads that are changed while they wait, CPUs that are stopped while they have the lock, and more lines than a choice looks at.

use fief_tests_order::{Cpus, Given, Goes};

const MS: u64 = 1_000_000;
const ROOT: u32 = 0;
const BEATS_A_SECOND: u32 = 50;
/// After so long the kernel removes a scheduler; those who waited for 6 s are looked for each half a second.
const SECONDS: u32 = 8;

/// A container, and a thread of it of which nothing has to be asked.
fn known(cpus: &mut Cpus) -> (u32, u32) {
    let id = cpus.container(ROOT, Given::default());
    let thread = cpus.thread(id);
    cpus.work(thread, MS);
    (id, thread)
}

/// As often as somebody likes: each time it comes to wait anew, and waits since the first time.
#[test]
fn who_waits_alone_and_is_changed_is_let_in_for_having_waited() {
    for beats in [1, 5, 6 * BEATS_A_SECOND] {
        let mut cpus = Cpus::new();
        let (_, thread) = known(&mut cpus);
        cpus.hog(true);
        cpus.wake(thread);
        assert!(cpus.is_at_front());
        for beat in 1..=SECONDS * BEATS_A_SECOND {
            cpus.beat();
            if beat % beats == 0 {
                cpus.change(thread);
            }
        }
        assert!(cpus.is_late(thread), "changed each {beats} beats");
        cpus.hog(false);
        assert_eq!(cpus.choose(), Some(thread));
        cpus.sleep(MS);
        assert_eq!(cpus.choose(), None);
        assert!(cpus.is_clean());
    }
}

#[test]
fn who_is_changed_is_not_put_behind_those_who_waited_for_less() {
    let mut cpus = Cpus::new();
    let (_, first) = known(&mut cpus);
    let (_, second) = known(&mut cpus);
    cpus.hog(true);
    cpus.wake(first);
    cpus.beat();
    cpus.wake(second);
    for _ in 0..SECONDS * BEATS_A_SECOND {
        cpus.beat();
        cpus.change(first);
    }
    assert!(cpus.is_late(first) && cpus.is_late(second));
    cpus.hog(false);
    assert_eq!(cpus.choose(), Some(first));
}

/// Children of the root, or of another one. A look is at 128 of them.
#[test]
fn a_thread_goes_on_beside_any_number_of_lines_that_have_none_for_its_cpu() {
    for (lines, below) in [100, 127, 128, 129, 200, 256, 300, 700].into_iter().flat_map(|n| [(n, false), (n, true)]) {
        let mut cpus = Cpus::new();
        let parent = if below { cpus.container(ROOT, Given::default()) } else { ROOT };
        let own = cpus.container(parent, Given::default());
        let thread = cpus.thread(own);
        cpus.work(thread, MS);
        cpus.wake(thread);
        assert_eq!(cpus.choose(), Some(thread));
        for _ in 0..lines {
            let id = cpus.container(parent, Given::default());
            cpus.line_of_others(id);
        }
        for _ in 0..5 {
            assert!(cpus.slice_ends(), "{lines} lines, below another one: {below}");
        }
    }
}

#[test]
fn a_cpu_that_has_none_of_many_lines_soon_knows() {
    for (lines, below) in [100, 200, 1000, 3000].into_iter().flat_map(|n| [(n, false), (n, true)]) {
        let mut cpus = Cpus::new();
        let parent = if below { cpus.container(ROOT, Given::default()) } else { ROOT };
        for _ in 0..lines {
            let id = cpus.container(parent, Given::default());
            cpus.line_of_others(id);
        }
        let before = cpus.choices();
        assert_eq!(cpus.choose(), None);
        assert!(cpus.choices() - before <= 2, "{lines} lines, below another one: {below}");
    }
}

#[test]
fn who_could_not_be_counted_out_is_not_counted_while_it_sleeps() {
    let mut cpus = Cpus::new();
    let (id, thread) = known(&mut cpus);
    let (_, other) = known(&mut cpus);
    cpus.wake(thread);
    cpus.wake(other);
    assert_eq!(cpus.counted(id), 1);
    cpus.begin_without_lock(thread);
    assert_eq!(cpus.counted(id), 1);
    cpus.sleep(MS);
    assert_eq!(cpus.counted(id), 0);
    cpus.drain();
    assert!(cpus.is_clean());
}

/// Wherever it is stopped, and however far the thread goes meanwhile that it is about to count. Whether there is such a step.
fn is_stopped_at(stop: u32, wakes: bool, goes: Goes) -> bool {
    let mut cpus = Cpus::new();
    let (_, thread) = known(&mut cpus);
    let (_, other) = known(&mut cpus);
    cpus.wake(thread);
    assert!(cpus.is_at_front());
    let stopped = cpus.open_stopped(thread, wakes.then_some(other), stop, goes);
    cpus.drain();
    // what could not be done then is done now
    cpus.work(thread, MS);
    cpus.drain();
    assert!(cpus.is_clean(), "another one wakes up: {wakes}, stopped at {stop}, {goes:?}");
    stopped
}

#[test]
fn no_count_is_lost_where_a_cpu_is_stopped_as_it_looks_for_who_waits() {
    for (goes, wakes) in Goes::ALL.into_iter().flat_map(|goes| [(goes, false), (goes, true)]) {
        let steps = (0..).take_while(|&stop| is_stopped_at(stop, wakes, goes)).count();
        assert!(steps > 20, "{steps}");
    }
}

#[test]
fn who_has_left_the_front_to_run_does_not_wait_for_the_lock() {
    let mut cpus = Cpus::new();
    let (_, thread) = known(&mut cpus);
    cpus.wake(thread);
    assert_eq!(cpus.choose(), Some(thread));
    assert_eq!(cpus.end_without_lock_ns(thread), 0);
}

/// It waited on the turn that is lent to it, and was not counted out as it began.
#[test]
fn no_thread_keeps_the_turn_from_itself_that_is_lent_to_it() {
    let (mut cpus, [gold, _], thread) = Cpus::server();
    cpus.wake(thread);
    assert_eq!(cpus.line(thread), Some(gold));
    cpus.begin_without_lock(thread);
    assert_eq!(cpus.counted(gold), 1);
    assert!(cpus.slice_ends());
    assert_eq!(cpus.turn(), Some(gold));
}

#[test]
fn what_a_cpu_owes_is_paid_by_another_one() {
    let mut cpus = Cpus::new();
    let (id, thread) = known(&mut cpus);
    cpus.wake(thread);
    assert_eq!(cpus.choose(), Some(thread));
    cpus.owe();
    assert_eq!(cpus.counted(id), 1, "it went on");
    cpus.other_chooses();
    assert_eq!(cpus.counted(id), 0);
}

/// More than a slice is: each thread comes to its line until it is, not the first one of a beat alone.
#[test]
fn who_is_to_be_settled_comes_to_its_line_also_later_in_a_beat() {
    let mut cpus = Cpus::new();
    let (id, thread) = known(&mut cpus);
    cpus.beat();
    for _ in 0..3 {
        cpus.charge(id, 10 * MS);
        cpus.wake(thread);
        assert_eq!(cpus.line(thread), Some(id));
        assert_eq!(cpus.choose(), Some(thread));
        cpus.sleep(MS / 10);
    }
    cpus.wake(thread);
    assert!(cpus.is_at_front());
}
