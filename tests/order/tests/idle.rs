// SPDX-License-Identifier: Apache-2.0 OR MIT
//! No wake-up is lost: a CPU that finds nothing and a thread that comes to wait see each other, whatever the order of their steps is.

use fief_tests_order::{Cpus, First, Given};

const MS: u64 = 1_000_000;
const ROOT: u32 = 0;

/// More orders than there are if one of both has no steps; fewer are an error of the test.
const ORDERS: u32 = 50;

/// What the scheduler knows of a thread that wakes up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Thread {
    /// Nothing: it comes to a line.
    New,
    /// It is asked nothing: it waits at the front, where nobody else waits.
    Known,
}

const THREADS: [Thread; 2] = [Thread::New, Thread::Known];

/// Two containers, and a thread of each: the first one is known. The first CPU has not chosen yet.
fn two(second: Thread, same: bool) -> (Cpus, [u32; 2]) {
    let mut cpus = Cpus::new();
    let a = cpus.container(ROOT, Given::default());
    let b = if same { a } else { cpus.container(ROOT, Given::default()) };
    let threads = [cpus.thread(a), cpus.thread(b)];
    cpus.work(threads[0], MS);
    if second == Thread::Known {
        cpus.work(threads[1], MS);
    }
    assert!(cpus.is_clean());
    (cpus, threads)
}

/// Each of them has the CPU once, one after the other, and nothing is left of them then.
fn all_run(cpus: &mut Cpus, threads: &[u32], how: &str) {
    let mut ran: Vec<u32> = Vec::new();
    for turn in 0..threads.len() {
        // the first one has the CPU by itself: it was told of it, if it did not see it
        let next = if turn == 0 { cpus.runs() } else { cpus.choose() };
        ran.push(next.unwrap_or_else(|| panic!("{how}: one of {threads:?} waits, and the CPU is idle; {ran:?} ran")));
        cpus.sleep(MS);
    }
    ran.sort_unstable();
    assert_eq!(ran, threads, "{how}");
    assert_eq!(cpus.choose(), None, "{how}");
    assert!(cpus.is_clean(), "{how}: something is left");
}

#[test]
fn a_cpu_that_finds_nothing_and_a_thread_that_comes_to_wait_see_each_other() {
    for kind in THREADS {
        let (mut cpus, [_, thread]) = two(kind, false);
        let orders = cpus.every_order(First::Chooses, thread, |cpus, how| {
            all_run(cpus, &[thread], &format!("{kind:?}, {how}"));
        });
        assert!(orders > ORDERS, "{orders}");
    }
}

/// The one that waits is taken from the front, while the other one turns it into lines.
#[test]
fn who_comes_while_the_front_is_taken_is_not_lost_and_nobody_is_counted_twice() {
    for (kind, same) in THREADS.into_iter().flat_map(|kind| [(kind, false), (kind, true)]) {
        let (mut cpus, threads) = two(kind, same);
        cpus.wake(threads[0]);
        assert!(cpus.is_at_front());
        let orders = cpus.every_order(First::Chooses, threads[1], |cpus, how| {
            all_run(cpus, &threads, &format!("{kind:?}, same {same}, {how}"));
        });
        assert!(orders > ORDERS, "{orders}");
    }
}

/// One is woken by an interrupt of the idle CPU, the other one from elsewhere.
#[test]
fn an_idle_cpu_gets_both_of_two_threads_that_come_at_once() {
    for (kind, same) in THREADS.into_iter().flat_map(|kind| [(kind, false), (kind, true)]) {
        let (mut cpus, threads) = two(kind, same);
        assert_eq!(cpus.choose(), None);
        let orders = cpus.every_order(First::Wakes(threads[0]), threads[1], |cpus, how| {
            all_run(cpus, &threads, &format!("{kind:?}, same {same}, {how}"));
        });
        assert!(orders > ORDERS, "{orders}");
    }
}

/// A line of others is there already: the CPU chooses among lines, and none is of the one that comes.
#[test]
fn who_comes_to_lines_while_the_cpu_chooses_among_them_is_not_lost() {
    for kind in THREADS {
        let (mut cpus, [first, second]) = two(kind, false);
        let c = cpus.container(ROOT, Given::default());
        let third = cpus.thread(c);
        for thread in [first, third] {
            cpus.wake(thread);
        }
        assert!(!cpus.is_at_front());
        let orders = cpus.every_order(First::Chooses, second, |cpus, how| {
            all_run(cpus, &[first, second, third], &format!("{kind:?}, {how}"));
        });
        assert!(orders > ORDERS, "{orders}");
    }
}

/// As one is that goes to a CPU where another class has the time: it has come to wait before the CPU said that it found nothing.
#[test]
fn who_is_long_under_way_keeps_no_cpu_busy_and_is_found_at_the_next_beat() {
    for kind in THREADS {
        let (mut cpus, [_, thread]) = two(kind, false);
        let before = cpus.choices();
        cpus.set_out(thread);
        assert_eq!(cpus.choose(), None, "{kind:?}");
        assert!(cpus.choices() - before <= 10, "{kind:?}: {} choices in a row", cpus.choices() - before);
        let before = cpus.choices();
        for _ in 0..3 {
            cpus.beat();
        }
        assert_eq!(cpus.choices(), before, "{kind:?}: nothing to choose from");
        cpus.arrive();
        cpus.beat();
        all_run(&mut cpus, &[thread], &format!("{kind:?}"));
    }
}

#[test]
fn an_idle_cpu_is_woken_for_each_thread_that_comes() {
    let (mut cpus, threads) = two(Thread::New, false);
    for round in 0..10 {
        assert_eq!(cpus.choose(), None);
        cpus.wake(threads[round % 2]);
        assert_eq!(cpus.runs(), Some(threads[round % 2]), "round {round}");
        cpus.sleep(MS);
    }
    assert_eq!(cpus.choose(), None);
    assert!(cpus.is_clean());
}
