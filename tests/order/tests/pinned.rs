// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A thread that may run on one CPU alone takes that one from whoever is worse, and no other one.

use fief_tests_order::{Cpus, priority};

const MS: u64 = 1_000_000;
const ROOT: u32 = 0;

/// The first CPU's thread runs, and a better one wakes up that may run on that CPU alone.
fn wakes_on(cpu: u32, is_known: bool) -> (Cpus, u32) {
    let mut cpus = Cpus::new();
    let worse = cpus.container(ROOT, priority(1));
    let better = cpus.container(ROOT, priority(9));
    let (runs, wakes) = (cpus.thread(worse), cpus.thread(better));
    cpus.work(runs, MS);
    if is_known {
        cpus.work(wakes, MS);
    }
    cpus.pin(wakes, cpu);
    cpus.wake(runs);
    assert_eq!(cpus.choose(), Some(runs));
    cpus.wake(wakes);
    assert_eq!(cpus.is_at_front(), is_known);
    (cpus, wakes)
}

/// Whether the first one is to give its CPU up.
fn takes_the_first(cpu: u32, is_known: bool) -> bool {
    let (mut cpus, wakes) = wakes_on(cpu, is_known);
    let takes = cpus.is_preempted();
    cpus.sleep(MS);
    assert_eq!(cpus.choose(), (cpu == 0).then_some(wakes));
    takes
}

#[test]
fn it_takes_the_cpu_that_it_may_run_on() {
    assert!(takes_the_first(0, false));
    assert!(takes_the_first(0, true));
}

#[test]
fn it_leaves_the_others_alone() {
    assert!(!takes_the_first(1, false));
    assert!(!takes_the_first(1, true));
}

#[test]
fn it_takes_the_cpu_that_it_is_confined_to_once_it_is_there() {
    let (mut cpus, wakes) = wakes_on(1, false);
    cpus.confine(wakes, 0);
    cpus.change(wakes);
    assert!(!cpus.is_preempted(), "the kernel has not moved it");
    cpus.pin(wakes, 0);
    cpus.change(wakes);
    assert!(cpus.is_preempted());
}
