// SPDX-License-Identifier: Apache-2.0 OR MIT
//! By whom a container is charged, against who really worked for it.

use std::mem::offset_of;
use std::net::UdpSocket;
use std::time::Duration;

use fief::Container;
use fief_bpf::abi;
use fief_bpf::map::{MapCore, MapFlags};
use fief_bpf::watch;
use fief_control::{Charges, ErrorKind, Fief, Why};
use fief_testkit::wait_until;
use fief_tests_netns::{SOON, Setup, in_unit, in_unit_of, spin};
use nix::time::{ClockId, clock_gettime};
use nix::unistd::gettid;

/// The container of the unit in the policy of these tests.
const UNIT: &str = "unit";

fn by_this_thread(charges: &Charges, why: Why) -> u64 {
    let tid = gettid().as_raw();
    let own = |source: &&fief_control::ChargeSource| {
        source.why == why && source.thread.as_ref().is_some_and(|thread| thread.id == tid)
    };
    charges.sources.iter().filter(own).map(|source| source.ns).sum()
}

fn cpu_ns_below(fief: &Fief, path: &str) -> u64 {
    let inside = format!("{path}/");
    let views = fief.snapshot().unwrap().containers;
    views.iter().filter(|c| c.path == path || c.path.starts_with(&inside)).map(|c| c.usage.cpu_ns()).sum()
}

#[test]
fn a_thread_is_told_by_the_way_that_it_came_to_the_container() {
    in_unit("a_thread_is_told_by_the_way_that_it_came_to_the_container", || {
        let fief = Fief::from_env().unwrap();
        let container = Container::create().unwrap();
        let mut watch = fief.watch(UNIT, SOON).unwrap();
        let before = cpu_ns_below(&fief, UNIT);
        spin(Duration::from_millis(100));
        let bound = container.bind().unwrap();
        spin(Duration::from_millis(300));
        drop(bound);
        let least = cpu_ns_below(&fief, UNIT) - before;
        let charges = watch.look(SOON).unwrap();
        let most = cpu_ns_below(&fief, UNIT) - before;

        let (home, call) = (by_this_thread(&charges, Why::Home), by_this_thread(&charges, Why::Call));
        // the reads of the account are made at home too; what the hypervisor stole meanwhile is nobody's, unless the kernel learns of it too
        // late, and then it is in the container's account too
        assert!(home >= 40_000_000, "{charges:#?}");
        let used = container.usage().unwrap().cpu_ns();
        assert!(call >= 120_000_000 && call.abs_diff(used) < 40_000_000, "{used}: {charges:#?}");
        let thread =
            charges.sources.iter().find_map(|source| source.thread.as_ref().filter(|one| one.id == gettid().as_raw()));
        let thread = thread.expect("it worked");
        assert_eq!(thread.process, Some(std::process::id() as i32));
        let name = std::fs::read_to_string("/proc/thread-self/comm").unwrap();
        assert_eq!(thread.name, name.trim_end());
        // what is open at either end is in another turn
        let error = least.saturating_sub(charges.ns()).max(charges.ns().saturating_sub(most));
        assert!(error < 40_000_000 + most / 20, "{error} of {least} to {most}: {charges:#?}");

        let idle = watch.look(SOON).unwrap();
        assert_eq!(by_this_thread(&idle, Why::Call), 0, "a turn that is over does not come again: {idle:#?}");
        assert!(idle.from_ns == charges.to_ns && idle.to_ns > idle.from_ns);
    });
}

#[test]
fn a_thread_that_follows_its_sockets_is_told_so() {
    let setup = Setup { follow: true, ..Setup::default() };
    let body = || {
        let fief = Fief::from_env().unwrap();
        let client = Container::create().unwrap();
        let receiver = UdpSocket::bind("127.0.0.1:0").unwrap();
        client.assign(&receiver).unwrap();
        let sender = UdpSocket::bind("127.0.0.1:0").unwrap();
        let mut watch = fief.watch(UNIT, SOON).unwrap();
        sender.send_to(&[1], receiver.local_addr().unwrap()).unwrap();
        receiver.recv(&mut [0; 1]).unwrap();
        spin(Duration::from_millis(100));
        let charges = watch.look(SOON).unwrap();
        // what the hypervisor stole meanwhile is nobody's, and was more than a quarter once
        let (follow, home) = (by_this_thread(&charges, Why::Follow), by_this_thread(&charges, Why::Home));
        assert!(follow >= 40_000_000 && home < follow / 8, "{charges:#?}");
    };
    in_unit_of("a_thread_that_follows_its_sockets_is_told_so", &setup, body, |_| ());
}

#[test]
fn packets_are_told_by_the_port_that_they_came_to() {
    in_unit("packets_are_told_by_the_port_that_they_came_to", || {
        let fief = Fief::from_env().unwrap();
        let (first, second) = (Container::create().unwrap(), Container::create().unwrap());
        let receiver = |container: &Container| {
            let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
            container.assign(&socket).unwrap();
            socket
        };
        // two of one container, so that its packets follow each other
        let (one, other, third) = (receiver(&first), receiver(&first), receiver(&second));
        let sender = UdpSocket::bind("127.0.0.1:0").unwrap();
        let mut watch = fief.watch(UNIT, SOON).unwrap();
        let mut room = [0; 100];
        for (socket, count) in [(&one, 300), (&other, 100), (&third, 200)] {
            for _ in 0..count {
                sender.send_to(&[1; 50], socket.local_addr().unwrap()).unwrap();
                socket.recv(&mut room).unwrap();
            }
        }
        let charges = watch.look(SOON).unwrap();
        let received = |socket: &UdpSocket| {
            let port = socket.local_addr().unwrap().port();
            let own = |source: &&fief_control::ChargeSource| source.why == Why::Packet && source.port == Some(port);
            charges
                .sources
                .iter()
                .filter(own)
                .map(|source| (source.ns, source.charges))
                .fold((0, 0), |a, b| (a.0 + b.0, a.1 + b.1))
        };
        for (socket, least) in [(&one, 300), (&other, 100), (&third, 200)] {
            let (ns, count) = received(socket);
            assert!(ns > 0 && count >= least, "{ns} ns in {count} charges of {least} packets: {charges:#?}");
        }
    });
}

#[test]
fn the_systems_work_is_told_by_its_threads_and_softirqs() {
    in_unit("the_systems_work_is_told_by_its_threads_and_softirqs", || {
        let fief = Fief::from_env().unwrap();
        let mut watch = fief.watch("system", SOON).unwrap();
        let (mut threads, mut softirqs) = (false, false);
        wait_until(SOON, || {
            // timers come and workers work meanwhile
            spin(Duration::from_millis(50));
            let charges = watch.look(SOON).unwrap();
            let is_by = |why, source: &fief_control::ChargeSource| source.why == why && source.ns > 0;
            threads |= charges.sources.iter().any(|one| is_by(Why::KernelThread, one) && one.thread.is_some());
            softirqs |= charges.sources.iter().any(|one| is_by(Why::Kernel, one) && one.kind.is_some());
            threads && softirqs
        })
        .unwrap_or_else(|_| panic!("kernel threads {threads}, softirqs {softirqs}"));
    });
}

#[test]
fn what_is_beside_the_container_is_not_told() {
    in_unit("what_is_beside_the_container_is_not_told", || {
        let fief = Fief::from_env().unwrap();
        let beside = Container::create().unwrap();
        let path = format!("{UNIT}/#{}", beside.info().unwrap().id);
        let mut watch = fief.watch(&path, SOON).unwrap();
        spin(Duration::from_millis(50));
        assert_eq!(watch.look(SOON).unwrap().sources, [], "it did not work for that one");
        let bound = beside.bind().unwrap();
        spin(Duration::from_millis(50));
        drop(bound);
        assert!(by_this_thread(&watch.look(SOON).unwrap(), Why::Call) >= 20_000_000);
        drop(beside);
        let gone = wait_until(SOON, || watch.look(SOON).is_err_and(|error| error.kind() == ErrorKind::NotFound));
        gone.expect("its container has ended");
    });
}

#[test]
fn one_watches_at_a_time() {
    in_unit("one_watches_at_a_time", || {
        let fief = Fief::from_env().unwrap();
        let watch = fief.watch(UNIT, SOON).unwrap();
        assert_eq!(fief.watch("root", SOON).unwrap_err().kind(), ErrorKind::Exists);
        drop(watch);
        assert!(fief.watch("root", SOON).is_ok());
        let nothing = fief.watch("idle", SOON).unwrap_err();
        assert!(nothing.to_string().contains("nothing is charged to idle"), "{nothing}");
        assert_eq!(fief.watch("unti", SOON).unwrap_err().kind(), ErrorKind::NotFound);
    });
}

/// Whether any CPU looks at the watch.
fn is_watched(fief: &Fief) -> bool {
    let cpus = fief.pins().open_map("cpus").unwrap();
    let watched = |cpu: u32| {
        let record = cpus.lookup(&cpu.to_ne_bytes(), MapFlags::ANY).unwrap().expect("an array");
        record[offset_of!(abi::fief_cpu, watched)] != 0
    };
    (0..cpus.max_entries()).any(watched)
}

#[test]
fn a_watch_whose_reader_was_killed_ends_by_itself() {
    in_unit("a_watch_whose_reader_was_killed_ends_by_itself", || {
        let fief = Fief::from_env().unwrap();
        let now = clock_gettime(ClockId::CLOCK_MONOTONIC).unwrap();
        let now_ns = now.tv_sec() as u64 * 1_000_000_000 + now.tv_nsec() as u64;
        let root = abi::fief_ref { id: abi::FIEF_ROOT, generation: 0 };
        let watch = watch::Watch::open(fief.pins()).unwrap();
        let end_ns = now_ns + 200_000_000;
        watch.place(root, false, 1, end_ns).unwrap();
        assert!(is_watched(&fief) || fief_tests_netns::now_ns() > end_ns);
        wait_until(SOON, || !is_watched(&fief)).expect("every CPU has seen that it is over");
        watch.place(root, false, 0, u64::MAX).unwrap();
        assert!(is_watched(&fief));
        watch.end().unwrap();
        assert!(!is_watched(&fief));
    });
}

/// More sources than have room are one, and nothing of their time is lost.
#[test]
fn what_has_no_room_is_told_together() {
    in_unit("what_has_no_room_is_told_together", || {
        let fief = Fief::from_env().unwrap();
        let sums = fief.pins().open_map("watch_sums").unwrap();
        let mut watch = fief.watch(UNIT, SOON).unwrap();
        let fill = |number: u32| {
            use fief_bpf::record::Record;
            let source = abi::fief_charge_source { turn: 2, why: abi::FIEF_WHY_REST, number };
            sums.update(source.bytes(), abi::fief_charge_sum::default().bytes(), MapFlags::ANY).is_err()
        };
        assert!((0..2 * abi::FIEF_WATCH_SOURCES).any(fill), "it is full");
        let container = Container::create().unwrap();
        let bound = container.bind().unwrap();
        spin(Duration::from_millis(50));
        drop(bound);
        let charges = watch.look(SOON).unwrap();
        let rest = charges.sources.iter().find(|source| source.why == Why::Rest).expect("it is told");
        assert!(rest.ns >= 20_000_000 && rest.thread.is_none(), "{charges:#?}");
    });
}
