// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A thread that waits alone is in no line until another one comes, and lines that have none for a CPU are passed over there.

use fief_tests_order::{Given, Machine, Requests, priority, share, weight};

const ROOT: u32 = 0;
/// More than there are queues for lines.
const QUEUES: u32 = 4096;
const GOLD: u32 = 0;

fn two() -> (Machine, u32, u32) {
    let mut machine = Machine::new();
    let (a, b) = (machine.container(ROOT, Given::default()), machine.container(ROOT, Given::default()));
    (machine, a, b)
}

#[test]
fn who_waits_alone_is_in_no_line() {
    let (mut machine, a, b) = two();
    assert!(machine.enter(0, a));
    assert_eq!(machine.listed(), 0);
    assert!(!machine.enter(1, b), "somebody waits");
    assert!(machine.leave(0));
    assert!(machine.enter(1, b), "nobody waits any more");
}

#[test]
fn who_waits_alone_is_counted_once_another_comes() {
    let (mut machine, a, b) = two();
    assert!(machine.enter(0, a));
    machine.line(b);
    assert!(!machine.leave(0), "it is in a line");
    let mut picked: Vec<u32> = (0..2).map(|_| machine.step(1_000_000).expect("two wait")).collect();
    picked.sort_unstable();
    assert_eq!(picked, [a, b]);
    machine.end(0);
    assert_eq!(machine.pick(), Some(b), "it waits no longer");
    machine.sleep(b);
    assert_eq!(machine.pick(), None);
    assert_eq!(machine.listed(), 0);
    assert!(machine.enter(1, a), "nobody waits any more");
}

#[test]
fn a_choice_finds_who_waits_alone() {
    let (mut machine, a, _) = two();
    assert!(machine.enter(0, a));
    assert_eq!(machine.pick(), Some(a));
    assert!(!machine.leave(0), "it was chosen among lines");
    machine.end(0);
    assert_eq!(machine.pick(), None);
}

/// What a thread was at the front by tells nothing once it has run.
#[test]
fn who_has_run_counts_nobody_out() {
    let (mut machine, a, _) = two();
    assert!(machine.enter(0, a));
    assert!(machine.leave(0));
    machine.line(a);
    machine.end(0);
    assert_eq!(machine.pick(), Some(a), "another thread of it waits");
}

#[test]
fn those_who_come_to_its_line_wait_in_the_queue_where_it_does() {
    let (mut machine, a, b) = two();
    assert!(machine.enter(0, a));
    assert!(machine.wait(a) > QUEUES, "the queue of the front");
    assert!(machine.wait(b) < QUEUES);
    machine.end(0);
    assert!(machine.wait(a) > QUEUES, "somebody waits there");
    machine.sleep(a);
    machine.sleep(a);
    assert!(machine.wait(a) < QUEUES, "a queue of its own");
}

#[test]
fn no_turn_is_lent_of_whom_a_thread_waits_for_alone() {
    let mut machine = Machine::new();
    let shop = machine.container(ROOT, share(50));
    let [gold, bronze] = [9, 1].map(|of| machine.container(shop, priority(of)));
    assert!(machine.enter(0, gold));
    let requests = Requests::new(&machine, &[gold, bronze]);
    requests.line(GOLD, true);
    assert_eq!(requests.lend(0, bronze), bronze, "its own thread goes first");
    assert!(machine.leave(0));
    let requests = Requests::new(&machine, &[]);
    assert_eq!(requests.lend(0, bronze), gold);
}

#[test]
fn a_line_without_a_thread_for_the_cpu_is_passed_over_there_until_one_comes() {
    let mut machine = Machine::new();
    let (pinned, free) = (machine.container(ROOT, weight(1000)), machine.container(ROOT, weight(100)));
    machine.charge(free, 1_000_000);
    machine.line(pinned);
    machine.line(free);
    assert_eq!(machine.pick(), Some(pinned));
    machine.chooser(1);
    machine.misfits(pinned);
    assert_eq!(machine.pick(), Some(free));
    machine.chooser(0);
    assert_eq!(machine.pick(), Some(pinned), "the other CPU");
    machine.chooser(1);
    machine.line(pinned);
    assert_eq!(machine.pick(), Some(pinned), "this thread may run there");
}

#[test]
fn a_line_is_not_chosen_for_those_who_are_let_in_for_a_moment() {
    let (mut machine, a, b) = two();
    machine.begin(0, a, a);
    machine.line(b);
    machine.charge(b, 1_000_000);
    assert_eq!(machine.pick(), Some(a));
    machine.late(0);
    assert_eq!(machine.pick(), Some(b));
    machine.begin(1, a, a);
    assert_eq!(machine.pick(), Some(a), "one more waits there");
    machine.end(1);
    assert_eq!(machine.pick(), Some(b));
    machine.end(0);
    machine.begin(0, a, a);
    assert_eq!(machine.pick(), Some(a), "it has had its moment");
}

/// Who is let in for a moment is the thread that begins next; where another one came in between, it begins as who waited alone does.
#[test]
fn who_waited_alone_and_was_late_is_late_no_longer_once_it_has_run() {
    let (mut machine, a, b) = two();
    assert!(machine.enter(0, a));
    machine.late(0);
    assert!(machine.leave(0));
    machine.woken(0);
    machine.line(a);
    machine.line(b);
    machine.charge(b, 1_000_000);
    assert_eq!(machine.pick(), Some(a), "another thread of it waits");
}

#[test]
fn who_could_not_be_counted_out_is_counted_out_as_it_waits_again() {
    let (mut machine, a, b) = two();
    machine.begin(0, a, a);
    machine.stopped(100);
    machine.end(0);
    machine.goes_on();
    machine.begin(0, b, b);
    assert_eq!(machine.pick(), Some(b));
    machine.end(0);
    assert_eq!(machine.pick(), None);
    assert_eq!(machine.listed(), 0);
}

#[test]
fn who_waited_alone_and_could_not_be_counted_out_is_counted_out_as_it_waits_again() {
    let (mut machine, a, b) = two();
    assert!(machine.enter(0, a));
    machine.line(b);
    machine.stopped(100);
    machine.end(0);
    machine.goes_on();
    machine.begin(0, b, b);
    machine.end(0);
    machine.sleep(b);
    assert_eq!(machine.pick(), None);
    assert_eq!(machine.listed(), 0);
}
