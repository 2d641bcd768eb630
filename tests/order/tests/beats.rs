// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A limited container that is alone gets its limit, however late the beats are at which it may go on.

use fief_tests_order::{Cpus, limit};

const MS: u64 = 1_000_000;
const ROOT: u32 = 0;
const BEATS: u64 = 500;
/// Of two CPUs, %: 6 ms of each period of 20.
const LIMIT: u32 = 15;
const TICK: u64 = 4 * MS;

/// Of its limit, %, where the first look at it comes so long after a beat, and each beat so late.
fn percent(first: u64, late: impl Fn(u64) -> u64) -> f64 {
    let (mut cpus, _) = begun(first);
    let (mut ran, mut passed) = (0, 0);
    for beat in 0..BEATS {
        let late = late(beat);
        passed += cpus.until_beat() + late;
        while cpus.runs().is_some() {
            let step = TICK.min(cpus.until_beat());
            if step == 0 {
                break;
            }
            ran += step;
            if cpus.tick(step) {
                cpus.preempt();
                cpus.choose();
            }
        }
        if cpus.runs().is_some() {
            ran += late;
            cpus.tick(late);
            cpus.late_beat(0);
        } else {
            cpus.late_beat(late);
        }
    }
    ran as f64 * 100.0 / (passed as f64 * 0.3)
}

/// The thread of a limited container runs, at which the first look came so long after a beat.
fn begun(first: u64) -> (Cpus, u32) {
    let mut cpus = Cpus::new();
    let id = cpus.container(ROOT, limit(LIMIT));
    let [thread, other] = [id, ROOT].map(|of| cpus.thread(of));
    cpus.beat();
    cpus.work(other, first);
    cpus.wake(thread);
    assert_eq!(cpus.choose(), Some(thread));
    (cpus, thread)
}

#[test]
fn a_beat_that_takes_longer_than_a_period_leaves_the_cpu_time_for_others() {
    let mut cpus = Cpus::new();
    cpus.beat();
    for _ in 0..3 {
        cpus.slow_beat(13 * MS);
        assert!(cpus.until_beat() > 0);
    }
}

#[test]
fn beats_that_are_late_take_nothing_from_a_limit() {
    for first in [0, 1, 2, 4, 5, 6, 10, 15, 19] {
        for late in [0, 50_000, 200_000, MS, 6 * MS, 13 * MS] {
            let same = percent(first * MS, |_| late);
            let now_and_then = percent(first * MS, |beat| if beat % 7 == 0 { late } else { 0 });
            for got in [same, now_and_then] {
                assert!((99.5..100.5).contains(&got), "{got:.2} % with beats {late} ns late, {first} ms after one");
            }
        }
    }
}
