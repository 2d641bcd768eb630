// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Who has answered and sleeps is a server of that listener still; who works on is none for having sent something.

use fief_tests_order::{Cpus, Given};

const MS: u64 = 1_000_000;
const ROOT: u32 = 0;
/// More than anything is lent for (SERVED_WORK_NS).
const LONG: u64 = 160 * MS;
/// A listener that has a queue, and one that has none.
const QUEUE: u32 = 0;
const PLAIN: u32 = 1;
// of bpf/sched/order.h
const SLICE: u64 = 3 * MS;

/// As [`Cpus::server`], and the thread runs.
fn server() -> (Cpus, [u32; 2], u32) {
    let (mut cpus, classes, thread) = Cpus::server();
    cpus.wake(thread);
    assert_eq!(cpus.choose(), Some(thread));
    (cpus, classes, thread)
}

/// The same, but it has worked too long to be a server still.
fn no_server() -> (Cpus, [u32; 2], u32) {
    let (mut cpus, classes, thread) = server();
    cpus.tick(LONG);
    cpus.sleep(MS);
    assert_eq!(wakes_in(&mut cpus, thread), classes[1]);
    (cpus, classes, thread)
}

/// In whose line it waits when it wakes up.
fn wakes_in(cpus: &mut Cpus, thread: u32) -> u32 {
    cpus.wake(thread);
    let line = cpus.line(thread).expect("a line");
    assert_eq!(cpus.choose(), Some(thread));
    line
}

#[test]
fn who_answers_after_long_work_and_sleeps_is_woken_up_in_the_line_of_who_asks() {
    for tick in [false, true] {
        let (mut cpus, [gold, _], thread) = server();
        cpus.tick(LONG);
        cpus.client(QUEUE, false);
        if tick {
            cpus.tick(MS);
        }
        cpus.sleep(MS);
        assert_eq!(wakes_in(&mut cpus, thread), gold, "a tick before it slept: {tick}");
    }
}

#[test]
fn who_answered_nobody_is_no_server_any_more() {
    no_server();
}

#[test]
fn who_sends_all_the_time_and_works_on_is_lent_no_more_than_one_that_does_not() {
    let (mut cpus, _, thread) = server();
    for _ in 0..LONG / (10 * MS) {
        cpus.client(QUEUE, false);
        cpus.tick(10 * MS);
    }
    cpus.slice_ends();
    assert_eq!(cpus.turn(), None, "{thread}");
}

#[test]
fn who_received_from_one_listener_and_sends_to_clients_of_another_serves_the_first() {
    let (mut cpus, [gold, _], thread) = server();
    cpus.client(QUEUE, true);
    cpus.tick(MS);
    cpus.client(PLAIN, false);
    cpus.sleep(MS);
    assert_eq!(wakes_in(&mut cpus, thread), gold);
}

#[test]
fn so_does_who_received_from_both() {
    for received in [[QUEUE, PLAIN], [PLAIN, QUEUE]] {
        for tick in [false, true] {
            let (mut cpus, [gold, _], thread) = no_server();
            cpus.client(received[0], true);
            if tick {
                cpus.tick(MS);
            }
            cpus.client(received[1], true);
            cpus.sleep(MS);
            assert_eq!(wakes_in(&mut cpus, thread), gold, "{received:?}, a tick in between: {tick}");
        }
    }
}

#[test]
fn who_answers_the_one_and_receives_from_the_other_before_it_sleeps_has_answered() {
    for answers_first in [false, true] {
        let (mut cpus, [gold, _], thread) = server();
        cpus.tick(LONG);
        if answers_first {
            cpus.client(QUEUE, false);
        }
        cpus.client(PLAIN, true);
        if !answers_first {
            cpus.client(QUEUE, false);
        }
        cpus.sleep(MS);
        assert_eq!(wakes_in(&mut cpus, thread), gold, "answers first: {answers_first}");
    }
}

#[test]
fn who_answers_clients_of_both_has_answered_where_somebody_can_wait() {
    for answered in [[QUEUE, PLAIN], [PLAIN, QUEUE]] {
        let (mut cpus, [gold, _], thread) = server();
        cpus.tick(LONG);
        for listener in answered {
            cpus.client(listener, false);
        }
        cpus.sleep(MS);
        assert_eq!(wakes_in(&mut cpus, thread), gold, "{answered:?}");
    }
}

/// Not by waking up now and then: it is to be found a server until it has read the next request.
#[test]
fn who_sends_sleeps_for_a_moment_and_works_on_is_lent_a_few_slices_each_time() {
    let (mut cpus, _, _) = server();
    cpus.tick(LONG);
    cpus.client(QUEUE, false);
    let mut lent = 0;
    for _ in 0..20 {
        cpus.sleep(0);
        cpus.wake(0);
        assert_eq!(cpus.choose(), Some(0));
        for _ in 0..30 {
            lent += u32::from(cpus.turn().is_some());
            cpus.tick(SLICE);
            cpus.slice_ends();
        }
        cpus.client(QUEUE, false);
    }
    assert!(lent > 0 && lent <= 20 * 6, "{lent} slices of 600 were lent");
}

#[test]
fn who_was_taken_off_its_cpu_after_it_answered_and_then_sleeps_has_answered() {
    let (mut cpus, [gold, _], thread) = server();
    cpus.tick(LONG);
    cpus.client(QUEUE, false);
    cpus.preempt();
    assert_eq!(cpus.choose(), Some(thread));
    cpus.sleep(MS);
    assert_eq!(wakes_in(&mut cpus, thread), gold);
}

#[test]
fn so_has_one_of_which_nothing_was_to_be_asked_before() {
    let (mut cpus, [gold, _], thread) = no_server();
    cpus.sleep(MS);
    cpus.wake(thread);
    assert!(cpus.is_at_front());
    assert_eq!(cpus.choose(), Some(thread));
    cpus.client(QUEUE, false);
    cpus.preempt();
    assert_eq!(cpus.choose(), Some(thread));
    cpus.sleep(MS);
    assert_eq!(wakes_in(&mut cpus, thread), gold);
}

#[test]
fn a_listener_without_a_queue_has_nobody_asked_anew() {
    for received in [false, true] {
        let mut cpus = Cpus::new();
        let gold = cpus.container(ROOT, Given::default());
        let thread = cpus.thread(gold);
        cpus.work(thread, MS);
        for _ in 0..3 {
            cpus.wake(thread);
            assert!(cpus.is_at_front(), "received: {received}");
            assert_eq!(cpus.choose(), Some(thread));
            cpus.client(PLAIN, received);
            cpus.sleep(MS / 10);
        }
        cpus.wake(thread);
        assert_eq!(cpus.choose(), Some(thread));
        cpus.client(PLAIN, received);
        cpus.tick(MS);
        cpus.preempt();
        assert!(cpus.is_at_front(), "received: {received}, taken off its CPU");
    }
}
