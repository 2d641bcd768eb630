// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What nobody told of is found by the next apply, and what is held stays.

use fief::Container;
use fief_control::Fief;
use fief_testkit::{Cgroup, wait_until};
use fief_tests_netns::{Installation, PLAIN_POLICY, SOON, fork, in_unit, left, record, unnamed};

/// The notes of applying the policy that is in force once more.
fn apply_again(fief: &Fief) -> Vec<String> {
    let parsed = fief_policy::parse(PLAIN_POLICY, "test.toml").unwrap();
    fief.apply(&parsed, PLAIN_POLICY, &Default::default()).unwrap().notes
}

/// Takes the hook that tells of closed sockets away from every managed cgroup, as an operator's slip would.
fn unhook(fief: &Fief) {
    for unit in std::fs::read_dir(fief.pins().units()).unwrap() {
        std::fs::remove_file(unit.unwrap().path().join("release_puts")).unwrap();
    }
}

#[test]
fn frees_containers_whose_descriptors_closed_while_no_hook_was_there() {
    in_unit("frees_containers_whose_descriptors_closed_while_no_hook_was_there", || {
        let fief = Fief::from_env().unwrap();
        let held = Container::create().unwrap();
        let bound = Container::create().unwrap();
        let guard = bound.bind().unwrap();
        let inside = bound.child().unwrap();
        // it has this thread's binding, and descriptors of what was made up to here
        let child = fork(std::thread::park);
        let assigned = Container::create().unwrap();
        let lost: Vec<_> = (0..20).map(|_| Container::create().unwrap()).collect();
        let socket = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
        {
            let _bound = assigned.bind().unwrap();
            fief::assign(&socket).unwrap();
        }
        unhook(&fief);
        // The kernel takes a hook away some time after its last reference: once a container outlives its descriptor.
        wait_until(SOON, || {
            let one = Container::create().unwrap();
            let id = one.info().unwrap().id;
            drop(one);
            record(id).is_some()
        })
        .expect("the hook goes");
        drop(lost);
        drop(assigned);
        assert_eq!(unnamed(), 25, "{}", left());
        let notes = apply_again(&fief);
        assert!(notes.iter().any(|note| note.starts_with("22 references")), "{notes:?}");
        wait_until(SOON, || unnamed() == 4).unwrap_or_else(|_| panic!("left: {}", left()));
        // what has a descriptor, a thread, a labelled socket or a child is there as before
        held.set_weight(7).unwrap();
        inside.set_weight(7).unwrap();
        assert_eq!(bound.info().unwrap().threads, 2, "this thread and the child's");
        drop(child);
        drop(guard);
        assert!(apply_again(&fief).iter().all(|note| !note.contains("references")), "nothing else is lost");
    });
}

#[test]
fn forgets_a_managed_cgroup_that_was_removed() {
    let installation = Installation::new(PLAIN_POLICY, "unit");
    let gone = Cgroup::new("swept").unwrap();
    installation.manage(gone.path(), Some("unit"), false);
    let units = || std::fs::read_dir(installation.fief().pins().units()).unwrap().count();
    assert_eq!(units(), 2);
    drop(gone);
    let notes = apply_again(installation.fief());
    assert!(notes.iter().any(|note| note.contains("was removed")), "{notes:?}");
    assert_eq!(units(), 1);
}

#[test]
fn a_thread_that_binds_and_leaves_all_the_time_loses_nothing() {
    in_unit("a_thread_that_binds_and_leaves_all_the_time_loses_nothing", || {
        let fief = Fief::from_env().unwrap();
        let container = Container::create().unwrap();
        let ended = std::sync::atomic::AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !ended.load(std::sync::atomic::Ordering::Relaxed) {
                    container.bind_thread().unwrap();
                    fief::unbind(&container).unwrap();
                }
            });
            let notes: Vec<String> = (0..60).flat_map(|_| apply_again(&fief)).collect();
            ended.store(true, std::sync::atomic::Ordering::Relaxed);
            assert!(notes.iter().all(|note| !note.contains("references")), "{notes:?}");
        });
        assert_eq!(unnamed(), 1);
        drop(container);
        assert_eq!(unnamed(), 0, "{}", left());
    });
}
