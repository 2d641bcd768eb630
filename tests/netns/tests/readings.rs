// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What a reader of a container sees while its threads run on another CPU.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use fief::Container;
use fief_testkit::{cpus, pin};
use fief_tests_netns::{in_unit, spin};

/// The first charge on a CPU takes a line of its cache from another container, which takes longer than a reader tries.
#[test]
fn a_reader_never_loses_what_it_has_seen_of_a_running_thread() {
    in_unit("a_reader_never_loses_what_it_has_seen_of_a_running_thread", || {
        let all = cpus();
        let (work, read) = (all[0], all[all.len() - 1]);
        let mut lost = Vec::new();
        for episode in 0..400 {
            let container = Container::create().unwrap();
            let ended = AtomicBool::new(false);
            let least = std::thread::scope(|scope| {
                let reader = scope.spawn(|| {
                    pin(0, read).unwrap();
                    let (mut seen, mut least) = (0, f64::INFINITY);
                    while !ended.load(Ordering::Relaxed) {
                        let now = container.usage().unwrap().thread_ns;
                        // what the hypervisor took is found out late, and is never most of it
                        if seen > 500_000 {
                            least = f64::min(least, now as f64 / seen as f64);
                        }
                        seen = seen.max(now);
                    }
                    least
                });
                scope.spawn(|| {
                    pin(0, work).unwrap();
                    container.bind_thread().unwrap();
                    for _ in 0..3 {
                        spin(Duration::from_millis(1));
                        container.usage().unwrap();
                    }
                    fief::unbind(&container).unwrap();
                    ended.store(true, Ordering::Relaxed);
                });
                reader.join().unwrap()
            });
            if least < 0.5 {
                lost.push((episode, least));
            }
        }
        assert!(lost.is_empty(), "of what it had seen a reader saw later: {lost:?}");
    });
}
