// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What a reader of a container sees while its threads run on another CPU.

use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use fief::Container;
use fief_testkit::{cpus, pin};
use fief_tests_netns::in_unit;

/// What a reader saw of a thread that was on its CPU all the time.
struct Seen {
    /// Of what it had seen before.
    least: f64,
    /// Of the time that had passed.
    most: f64,
}

/// Works, and charges itself now and then. Whether nobody took its CPU away: what the hypervisor took is found out late.
fn work(container: &Container) -> bool {
    let mut alone = true;
    for _ in 0..3 {
        let begin = Instant::now();
        let mut last = begin;
        while last - begin < Duration::from_millis(1) {
            let now = Instant::now();
            alone &= now - last < Duration::from_micros(100);
            last = now;
        }
        container.usage().unwrap();
    }
    alone
}

fn watch(container: &Container, ended: &AtomicBool, begin: Instant) -> Seen {
    let (mut seen, mut least, mut most) = (0, f64::INFINITY, 0.0);
    while !ended.load(Ordering::Relaxed) {
        let now = container.usage().unwrap().thread_ns;
        if seen > 500_000 {
            least = f64::min(least, now as f64 / seen as f64);
            most = f64::max(most, now as f64 / begin.elapsed().as_nanos() as f64);
        }
        seen = seen.max(now);
    }
    Seen { least, most }
}

/// A container of its own: its first charge takes a line of the CPU's cache from another one, which takes longer than a
/// reader tries.
fn episode(worker: usize, reader: usize) -> Option<Seen> {
    let container = Container::create().unwrap();
    let (begun, ended) = (Barrier::new(2), AtomicBool::new(false));
    std::thread::scope(|scope| {
        let seen = scope.spawn(|| {
            pin(0, reader).unwrap();
            let begin = Instant::now();
            begun.wait();
            watch(&container, &ended, begin)
        });
        let alone = scope.spawn(|| {
            pin(0, worker).unwrap();
            begun.wait();
            container.bind_thread().unwrap();
            let alone = work(&container);
            fief::unbind(&container).unwrap();
            ended.store(true, Ordering::Relaxed);
            alone
        });
        let seen = seen.join().unwrap();
        alone.join().unwrap().then_some(seen)
    })
}

#[test]
fn a_reader_sees_a_running_threads_time_once() {
    in_unit("a_reader_sees_a_running_threads_time_once", || {
        let all = cpus();
        let episodes = (0..8000).filter_map(|_| episode(all[0], all[all.len() - 1])).take(400);
        let (mut count, mut wrong) = (0, Vec::new());
        for seen in episodes {
            count += 1;
            if seen.least < 0.5 || seen.most > 1.5 {
                wrong.push((seen.least, seen.most));
            }
        }
        assert!(wrong.is_empty(), "least of what was seen before, most of the time that passed: {wrong:?}");
        assert_eq!(count, 400, "the machine is too busy to leave a thread alone for three milliseconds");
    });
}
