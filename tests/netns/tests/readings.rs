// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What a reader of a container sees while its threads run on another CPU.

use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use fief::{Container, Usage};
use fief_bpf::abi;
use fief_bpf::admin::Admin;
use fief_bpf::table::Table;
use fief_testkit::{cpus, pin};
use fief_tests_netns::{Installation, SOON, Setup, in_unit, inside, spin};

/// What a reader saw of a thread that was on its CPU all the time.
struct Seen {
    /// Of what it had seen before.
    least: f64,
    /// Of the time that had passed.
    most: f64,
}

/// Works, and charges itself now and then. Whether nobody took its CPU away: what the hypervisor took is found out late.
fn work(container: &Container, mut last: Instant) -> bool {
    let mut alone = true;
    for _ in 0..3 {
        let begin = last;
        while last - begin < Duration::from_millis(1) {
            let now = Instant::now();
            alone &= now - last < Duration::from_micros(100);
            last = now;
        }
        container.usage().unwrap();
    }
    alone && last.elapsed() < Duration::from_micros(100)
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
            let before = Instant::now();
            container.bind_thread().unwrap();
            let alone = work(&container, before);
            fief::unbind(&container).unwrap();
            ended.store(true, Ordering::Relaxed);
            alone
        });
        let seen = seen.join().unwrap();
        alone.join().unwrap().then_some(seen)
    })
}

/// Of 400: the virtual CPU may stand still behind the thread's last look at its clock, in the midst of a charge, for longer than a
/// reader tries. It did in two of 5,200.
const FEW: usize = 4;

#[test]
fn a_reader_sees_a_running_threads_time_once() {
    in_unit("a_reader_sees_a_running_threads_time_once", || {
        let all = cpus();
        let begin = Instant::now();
        let tries = std::iter::repeat_with(|| episode(all[0], all[all.len() - 1]));
        let episodes = tries.take_while(|_| begin.elapsed() < 15 * SOON).flatten().take(400);
        let (mut count, mut wrong) = (0, Vec::new());
        for seen in episodes {
            count += 1;
            if seen.least < 0.5 || seen.most > 1.5 {
                wrong.push((seen.least, seen.most));
            }
        }
        assert!(wrong.len() <= FEW, "least of what was seen before, most of the time that passed: {wrong:?}");
        assert_eq!(count, 400, "the machine is too busy to leave a thread alone for three milliseconds");
    });
}

/// So long threads come into containers and leave them.
const BUSY: Duration = Duration::from_secs(2);
const STINT: Duration = Duration::from_micros(300);
/// What the hypervisor took of an open stint is found out at its end.
const FOUND_OUT_LATE_NS: u64 = 100_000;

fn come_and_go() {
    let containers: Vec<Container> = (0..150).map(|_| Container::create().unwrap()).collect();
    let begin = Instant::now();
    std::thread::scope(|scope| {
        for cpu in cpus() {
            let containers = &containers;
            scope.spawn(move || {
                pin(0, cpu).unwrap();
                for container in containers.iter().cycle().skip(cpu * 7).take_while(|_| begin.elapsed() < BUSY) {
                    container.bind_thread().unwrap();
                    spin(STINT);
                    fief::unbind(container).unwrap();
                }
            });
        }
    });
}

#[test]
fn a_container_at_rest_has_what_the_kernel_side_tells_of_it() {
    if inside() {
        return come_and_go();
    }
    let installation = Installation::with(&Setup::default());
    let (admin, table) = (Admin::open(installation.fief().pins()), Table::open(installation.fief().pins()));
    let (admin, table) = (admin.unwrap(), table.unwrap());
    let steal = abi::fief_ref { id: abi::FIEF_STEAL, ..Default::default() };
    let stolen = || Usage::from(admin.usage(steal).unwrap()).cpu_ns();
    let (mut compared, mut wrong) = (0, Vec::new());
    std::thread::scope(|scope| {
        let name = "a_container_at_rest_has_what_the_kernel_side_tells_of_it";
        let playing = scope.spawn(|| installation.play(name, "body"));
        while !playing.is_finished() {
            for row in table.rows().filter(|row| row.container.id >= abi::FIEF_FIRST_ID) {
                let stolen_before = stolen();
                let told = || admin.usage(row.container).map(|usage| Usage::from(usage).counters());
                let (least, at_rest, most) = (told(), table.usage_at_rest(row.container), told());
                let (Ok(least), Some(at_rest), Ok(most)) = (least, at_rest, most) else { continue };
                compared += usize::from(at_rest.thread_ns > 0);
                // more where it was found out meanwhile
                let late = FOUND_OUT_LATE_NS + stolen().saturating_sub(stolen_before);
                let counters = least.into_iter().zip(Usage::from(at_rest).counters()).zip(most);
                wrong.extend(
                    counters.filter(|((least, at_rest), most)| at_rest + late < *least || *at_rest > most + late),
                );
            }
        }
        playing.join().unwrap();
    });
    assert!(wrong.is_empty(), "before, at rest, and after: {wrong:?}");
    assert!(compared > 1000, "{compared} readings of containers that had rested");
}
