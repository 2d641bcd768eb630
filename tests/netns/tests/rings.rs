// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Threads are bound by what they write into their ring: their time is divided as they say, and no other thread's.

use std::process::Command;
use std::time::{Duration, Instant};

use fief::{Container, ErrorKind, Place, Rights, Ring};
use fief_testkit::wait_until;
use fief_tests_netns::{Door, SOON, all_end, cpu_ns_of, fork, in_unit, inside, role, spin, unnamed};
use fief_tests_netns::{Installation, Setup, is_about, ms, own_clock, used};
use nix::time::clock_gettime;

/// Has the CPU for `span`, and returns how long it was: a gap between two looks at the clock is somebody else's.
fn work(span: Duration) -> Duration {
    let begin = Instant::now();
    let (mut last, mut gaps) = (Duration::ZERO, Duration::ZERO);
    while last < span + gaps {
        let now = begin.elapsed();
        if now - last > Duration::from_micros(2) {
            gaps += now - last;
        }
        last = now;
    }
    last - gaps
}

/// Divides the work of `total` between two containers, 3 to 7, with a rebinding after each `span` of a tenth.
fn alternate(ring: &mut Ring, places: [Place; 2], span: Duration, total: Duration) -> [Duration; 2] {
    let mut worked = [Duration::ZERO; 2];
    while worked[0] + worked[1] < total {
        for (at, parts) in [(0, 3), (1, 7)] {
            ring.bind(places[at]).unwrap();
            worked[at] += work(span * parts);
        }
    }
    worked
}

#[test]
fn a_ring_divides_the_time_of_its_thread() {
    in_unit("a_ring_divides_the_time_of_its_thread", || {
        // 2000, 20,000 and 200,000 rebindings in a second
        for span in [100_000, 10_000, 1000] {
            // an error of the division would be in each of them, what others on the machine disturb is not
            let mut points = Vec::new();
            while points.len() < 20 && points.last().is_none_or(|points: &f64| points.abs() >= 1.0) {
                points.push(points_off(Duration::from_nanos(span)));
            }
            assert!(points.iter().any(|points| points.abs() < 1.0), "{points:.2?} points at {span} ns");
        }
        all_end();
    });
}

/// How far the charge of one of two containers is off, in points of both.
fn points_off(span: Duration) -> f64 {
    let (a, b) = (Container::create().unwrap(), Container::create().unwrap());
    let mut ring = Ring::open().unwrap();
    let places = [ring.add(&a).unwrap(), ring.add(&b).unwrap()];
    let worked = alternate(&mut ring, places, span, ms(300));
    ring.bind(Place::HOME).unwrap();
    let (a, b) = (used(&a).as_secs_f64(), used(&b).as_secs_f64());
    let expected = worked[0].as_secs_f64() / (worked[0] + worked[1]).as_secs_f64();
    assert!(a + b > 0.1, "{a} and {b} s");
    (a / (a + b) - expected) * 100.0
}

#[test]
fn many_records_without_a_switch_are_all_counted() {
    in_unit("many_records_without_a_switch_are_all_counted", || {
        let containers: Vec<_> = (0..63).map(|_| Container::create().unwrap()).collect();
        let mut ring = Ring::open().unwrap();
        let places: Vec<_> = containers.iter().map(|container| ring.add(container).unwrap()).collect();
        assert_eq!(ring.add(&containers[0]).unwrap_err().kind(), ErrorKind::Full);
        let begin = own_clock();
        for place in places.iter().cycle().take(200_000) {
            ring.bind(*place).unwrap();
        }
        ring.bind(Place::HOME).unwrap();
        ring.flush().unwrap();
        let took = own_clock() - begin;
        let sum: Duration = containers.iter().map(used).sum();
        // the thread's clock may have what the hypervisor stole
        assert!(sum <= took + took / 20 + ms(1) && sum >= took / 2, "{sum:?} of {took:?}");
        let most = containers.iter().map(used).max().unwrap();
        let least = containers.iter().map(used).min().unwrap();
        assert!(least > took / 63 / 8, "{least:?} to {most:?} of {took:?}");
        drop((ring, containers));
        all_end();
    });
}

#[test]
fn a_call_takes_what_was_written_before_it() {
    in_unit("a_call_takes_what_was_written_before_it", || {
        let (a, b) = (Container::create().unwrap(), Container::create().unwrap());
        let mut ring = Ring::open().unwrap();
        let to_a = ring.add(&a).unwrap();
        ring.bind(to_a).unwrap();
        // what is made now is a child of what the ring says
        let child = Container::create().unwrap();
        assert_eq!(child.info().unwrap().parent, Some(a.info().unwrap().id));
        spin(ms(20));
        {
            let _inner = b.bind().unwrap();
            spin(ms(20));
        }
        assert_eq!(fief::current(&a).unwrap().0, a.info().unwrap().id);
        is_about(used(&a), ms(20), ms(5));
        is_about(used(&b), ms(20), ms(5));
        // the place is another container's now; what was written before is the former one's
        ring.remove(to_a).unwrap();
        assert_eq!(ring.add(&b).unwrap(), to_a);
        spin(ms(20));
        is_about(used(&a), ms(40), ms(8));
        ring.bind(to_a).unwrap();
        spin(ms(20));
        is_about(used(&b), ms(40), ms(8));
        drop((ring, a, b, child));
        fief::unbind(&Container::create().unwrap()).unwrap();
        all_end();
    });
}

#[test]
fn what_was_written_before_an_exec_counts_and_nothing_after() {
    in_unit("what_was_written_before_an_exec_counts_and_nothing_after", || {
        let container = Container::create().unwrap();
        let child = fork(|| {
            let mut ring = Ring::open().unwrap();
            let place = ring.add(&container).unwrap();
            ring.bind(place).unwrap();
            work(ms(30));
            ring.bind(Place::HOME).unwrap();
            let script = "i=0; while [ $i -lt 100000 ]; do i=$((i+1)); done";
            let error = std::os::unix::process::CommandExt::exec(Command::new("sh").args(["-c", script]));
            panic!("{error}");
        });
        child.finish();
        let used = used(&container);
        assert!(used > ms(25) && used < ms(45), "{used:?}");
        drop(container);
        all_end();
    });
}

#[test]
fn what_was_written_before_the_end_of_a_thread_counts() {
    in_unit("what_was_written_before_the_end_of_a_thread_counts", || {
        let (first, second) = (Container::create().unwrap(), Container::create().unwrap());
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let mut ring = Ring::open().unwrap();
                let places = [ring.add(&first).unwrap(), ring.add(&second).unwrap()];
                ring.bind(places[0]).unwrap();
                work(ms(30));
                ring.bind(places[1]).unwrap();
                // its end is the kernel's to see
                std::mem::forget(ring);
            });
        });
        // The scope ends with what the thread did, before the kernel has seen the thread's end.
        wait_until(SOON, || used(&first) > ms(25)).unwrap();
        let (first_used, second_used) = (used(&first), used(&second));
        assert!(first_used < ms(45) && second_used < ms(5), "{first_used:?} and {second_used:?}");
        drop((first, second));
        all_end();
    });
}

#[test]
fn a_process_that_is_killed_lets_go_of_what_its_rings_name() {
    in_unit("a_process_that_is_killed_lets_go_of_what_its_rings_name", || {
        for _ in 0..20 {
            let ready = Door::new();
            let child = fork(|| {
                let containers: Vec<_> = (0..10).map(|_| Container::create().unwrap()).collect();
                let mut ring = Ring::open().unwrap();
                let places: Vec<_> = containers.iter().map(|container| ring.add(container).unwrap()).collect();
                drop(containers);
                ready.open();
                loop {
                    places.iter().for_each(|place| ring.bind(*place).unwrap());
                }
            });
            ready.pass();
            // the one before has ended for its maker a moment before its threads leave their CPUs
            wait_until(SOON, || unnamed() == 10).unwrap_or_else(|_| panic!("{} containers", unnamed()));
            child.kill();
        }
        all_end();
    });
}

#[test]
fn the_child_of_a_fork_has_no_ring_and_works_for_what_its_maker_did() {
    in_unit("the_child_of_a_fork_has_no_ring_and_works_for_what_its_maker_did", || {
        let (a, b) = (Container::create().unwrap(), Container::create().unwrap());
        let mut ring = Ring::open().unwrap();
        let places = [ring.add(&a).unwrap(), ring.add(&b).unwrap()];
        ring.bind(places[0]).unwrap();
        // written, and taken by nobody yet
        fork(|| {
            assert_eq!(ring.bind(places[1]).unwrap_err().kind(), ErrorKind::NoRing);
            assert_eq!(ring.flush().unwrap_err().kind(), ErrorKind::NoRing);
            spin(ms(30));
            // and can have one of its own
            let mut own = Ring::open().unwrap();
            let place = own.add(&b).unwrap();
            own.bind(place).unwrap();
            spin(ms(30));
        })
        .finish();
        is_about(used(&a), ms(30), ms(8));
        is_about(used(&b), ms(30), ms(8));
        // the maker's goes on
        ring.bind(places[1]).unwrap();
        spin(ms(20));
        is_about(used(&b), ms(50), ms(8));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                // another thread of the process works for what this one did, and has a ring of its own
                assert_eq!(fief::current(&a).unwrap().0, b.info().unwrap().id);
                Ring::open().unwrap();
            });
        });
        drop((ring, a, b));
        fief::unbind(&Container::create().unwrap()).unwrap();
        all_end();
    });
}

#[test]
fn a_thread_has_one_ring_and_puts_in_what_it_may_use() {
    in_unit("a_thread_has_one_ring_and_puts_in_what_it_may_use", || {
        let container = Container::create().unwrap();
        let mut ring = Ring::open().unwrap();
        assert_eq!(Ring::open().unwrap_err().kind(), ErrorKind::Conflict);
        let place = ring.add(&container).unwrap();
        ring.bind(place).unwrap();
        assert_eq!(fief::current(&container).unwrap().0, container.info().unwrap().id);
        let readable = container.duplicate().unwrap();
        readable.keep_rights(Rights::READ).unwrap();
        assert_eq!(ring.add(&readable).unwrap_err().kind(), ErrorKind::Denied);
        assert_eq!(ring.remove(Place::HOME).unwrap_err().kind(), ErrorKind::Invalid);
        drop(ring);
        Ring::open().unwrap();
        drop((container, readable));
        fief::unbind(&Container::create().unwrap()).unwrap();
        all_end();
    });
}

/// A container that nobody but a ring holds is no lost one.
#[test]
fn a_sweep_leaves_what_a_ring_holds() {
    in_unit("a_sweep_leaves_what_a_ring_holds", || {
        let container = Container::create().unwrap();
        let mut ring = Ring::open().unwrap();
        let place = ring.add(&container).unwrap();
        drop(container);
        // the record at rest is what a sweep sees
        std::thread::sleep(ms(1));
        let pins = fief_control::Fief::from_env().unwrap();
        assert_eq!(fief_bpf::sweep::sweep(pins.pins()).unwrap(), 0);
        assert_eq!(unnamed(), 1);
        ring.bind(place).unwrap();
        assert_eq!(fief::open_current().unwrap().info().unwrap().state, fief::State::Alive);
        drop(ring);
        fief::unbind(&Container::create().unwrap()).unwrap();
        all_end();
    });
}

/// A thread that never leaves its CPU is read from another one: nobody but its own CPU can read its ring.
#[test]
fn a_thread_that_never_switches_is_read_from_outside() {
    const NAME: &str = "a_thread_that_never_switches_is_read_from_outside";
    if inside() {
        assert_eq!(role().as_deref(), Some("busy"));
        let container = Container::create().unwrap();
        container.set_name("busy").unwrap();
        let mut ring = Ring::open().unwrap();
        let place = ring.add(&container).unwrap();
        ring.bind(place).unwrap();
        loop {
            std::hint::spin_loop();
        }
    }
    let installation = Installation::with(&Setup::default());
    let process = installation.start(Some(&installation.cgroup()), NAME, "busy");
    // SAFETY: no other thread of this process reads the environment meanwhile.
    unsafe { std::env::set_var("FIEF_SCOPE", installation.scope()) };
    wait_until(SOON, || cpu_ns_of("unit/busy") > 50_000_000).unwrap();
    let clock = nix::time::clock_getcpuclockid(nix::unistd::Pid::from_raw(process.pid().cast_signed())).unwrap();
    let of_thread = || Duration::from(clock_gettime(clock).unwrap());
    // of some pairs of lookups the best: between the two clocks of each others may have this CPU
    let lookups: Vec<_> = (0..30)
        .map(|_| {
            std::thread::sleep(ms(3));
            (of_thread(), Duration::from_nanos(cpu_ns_of("unit/busy")))
        })
        .collect();
    let (early, late) = lookups.split_at(10);
    let pairs = early.iter().flat_map(|early| late.iter().map(move |late| (early, late)));
    let behind = pairs.map(|(early, late)| (late.0 - early.0).abs_diff(late.1 - early.1)).min().unwrap();
    assert!(behind < Duration::from_micros(500), "{behind:?}");
}
