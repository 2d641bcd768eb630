// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What the end of a container leaves: its slot to its descendants and then to others, its usage to its parent, and to
//! those who still name it nothing.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::time::Duration;

use fief::{Container, ErrorKind, Options, State};
use fief_control::Fief;
use fief_testkit::wait_until;
use fief_tests_netns::{
    SOON, Setup, all_end, cpu_ns_of, fork, fresh_socket, in_unit, in_unit_of, record, set_option, spin, unnamed,
};
use nix::errno::Errno;

#[test]
fn an_ended_parent_keeps_its_slot_until_its_last_descendant_ends() {
    in_unit("an_ended_parent_keeps_its_slot_until_its_last_descendant_ends", || {
        let top = Container::create().unwrap();
        let middle = top.child().unwrap();
        let leaf = middle.child().unwrap();
        let ids = [&top, &middle, &leaf].map(|container| container.info().unwrap().id);
        let states = || ids.map(|id| record(id).map(|record| record.state));
        let (alive, ended) = (Some(fief::abi::FIEF_ALIVE), Some(fief::abi::FIEF_ENDED));
        drop(middle);
        assert_eq!(states(), [alive, ended, alive]);
        assert_eq!(leaf.info().unwrap().state, State::Orphan);
        drop(top);
        assert_eq!(states(), [ended, ended, alive]);
        drop(leaf);
        assert_eq!(states(), [None, None, None]);
    });
}

#[test]
fn an_ended_sibling_frees_its_slot_while_the_others_live() {
    in_unit("an_ended_sibling_frees_its_slot_while_the_others_live", || {
        let parent = Container::create().unwrap();
        let first = parent.child().unwrap();
        let second = parent.child().unwrap();
        drop(parent);
        drop(first);
        assert_eq!(unnamed(), 2);
        drop(second);
        all_end();
    });
}

#[test]
fn usage_goes_up_to_the_parent_if_so_flagged() {
    in_unit("usage_goes_up_to_the_parent_if_so_flagged", || {
        let parent = Container::create().unwrap();
        let child = {
            let _bound = parent.bind().unwrap();
            Options::new().pass_up(true).create().unwrap()
        };
        let before = parent.usage().unwrap().cpu_ns();
        let retired = cpu_ns_of("retired");
        {
            let _bound = child.bind().unwrap();
            spin(Duration::from_millis(30));
        }
        let used = child.usage().unwrap().cpu_ns();
        assert!(used > 20_000_000);
        drop(child);
        let now = parent.usage().unwrap().cpu_ns();
        assert!((before + used..before + used + 5_000_000).contains(&now), "{before} + {used} != {now}");
        assert_eq!(cpu_ns_of("retired"), retired);
    });
}

#[test]
fn usage_passes_an_ended_parent_to_the_nearest_living_one() {
    in_unit("usage_passes_an_ended_parent_to_the_nearest_living_one", || {
        let top = Container::create().unwrap();
        let middle = top.child().unwrap();
        let leaf = middle.child().unwrap();
        for container in [&middle, &leaf] {
            container.set_pass_up(true).unwrap();
        }
        {
            let _bound = leaf.bind().unwrap();
            spin(Duration::from_millis(30));
        }
        let used = leaf.usage().unwrap().cpu_ns();
        drop(middle);
        drop(leaf);
        assert!(top.usage().unwrap().cpu_ns() >= used);
    });
}

#[test]
fn usage_stops_at_a_parent_that_passes_nothing_up_whichever_ended_first() {
    in_unit("usage_stops_at_a_parent_that_passes_nothing_up_whichever_ended_first", || {
        for parent_first in [true, false] {
            let top = Container::create().unwrap();
            let middle = top.child().unwrap();
            let leaf = middle.child().unwrap();
            leaf.set_pass_up(true).unwrap();
            {
                let _bound = leaf.bind().unwrap();
                spin(Duration::from_millis(30));
            }
            let used = leaf.usage().unwrap().cpu_ns();
            let before = cpu_ns_of("retired");
            let [first, last] = if parent_first { [middle, leaf] } else { [leaf, middle] };
            drop(first);
            drop(last);
            // what a CPU still cached comes when its line is wanted
            wait_until(SOON, || cpu_ns_of("retired") >= before + used).unwrap();
            // calls by its descriptor are its own work
            let own = top.usage().unwrap().cpu_ns();
            assert!(own < used / 10, "the parent first: {parent_first}: {own} of {used}");
        }
    });
}

#[test]
fn usage_that_is_not_passed_up_is_retired() {
    in_unit("usage_that_is_not_passed_up_is_retired", || {
        let before = cpu_ns_of("retired");
        let container = Container::create().unwrap();
        {
            let _bound = container.bind().unwrap();
            spin(Duration::from_millis(30));
        }
        let used = container.usage().unwrap().cpu_ns();
        drop(container);
        // what a CPU still cached comes when its line is wanted
        wait_until(SOON, || cpu_ns_of("retired") >= before + used).unwrap();
    });
}

#[test]
fn a_hundred_thousand_containers_leave_nothing() {
    in_unit("a_hundred_thousand_containers_leave_nothing", || {
        let before = unnamed();
        let workers: Vec<_> = (0..4)
            .map(|worker| {
                fork(move || {
                    for round in 0..1000 {
                        // chains, fans, and bound ones
                        let top = Container::create().unwrap();
                        let mut held: Vec<_> = (0..20).map(|_| top.child().unwrap()).collect();
                        let below = held[round % 20].child().unwrap();
                        let _bound = below.bind().unwrap();
                        if (round + worker) % 2 == 0 {
                            held.reverse();
                        }
                        held.push(below.duplicate().unwrap());
                        drop(top);
                        for _ in 0..3 {
                            drop(Container::create().unwrap());
                        }
                    }
                })
            })
            .collect();
        for worker in workers {
            worker.finish();
        }
        wait_until(SOON, || unnamed() == before).unwrap_or_else(|_| panic!("left: {}", fief_tests_netns::left()));
        // every slot can still be had, and once
        let size = 4096 - fief::abi::FIEF_FIRST_ID as usize - fief_tests_netns::in_use();
        let mut ids = std::collections::HashSet::new();
        let mut all = Vec::new();
        let full = loop {
            match Container::create() {
                Ok(container) => all.push(container),
                Err(e) => break e,
            }
        };
        assert_eq!(full.kind(), ErrorKind::Full);
        ids.extend(all.iter().map(|container| container.info().unwrap().id));
        assert_eq!((all.len(), ids.len()), (size, size));
    });
}

#[test]
fn what_names_a_reused_slot_by_its_old_generation_is_stale() {
    let setup = Setup { containers: 64, ..Setup::default() };
    in_unit_of(
        "what_names_a_reused_slot_by_its_old_generation_is_stale",
        &setup,
        || {
            let old = Container::create().unwrap();
            let (id, generation) = old.info().map(|info| (info.id, info.generation)).unwrap();
            // a label that does not hold: the clone of a labelled listener's
            let listener = TcpListener::bind("127.0.0.1:0").unwrap();
            old.assign(&listener).unwrap();
            let mut client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
            let (mut server, _) = listener.accept().unwrap();
            // a staged container is not held either
            set_option(&old, fief::abi::FIEF_STAGE, &[]).unwrap();
            drop(listener);
            drop(old);
            all_end();
            let new = loop {
                let container = Container::create().unwrap();
                if container.info().unwrap().id == id {
                    break container;
                }
            };
            assert_ne!(new.info().unwrap().generation, generation);

            assert_eq!(set_option(fresh_socket(), fief::abi::FIEF_DUP, &[]), Err(Errno::ESTALE));

            client.write_all(&[1; 5000]).unwrap();
            server.read_exact(&mut [0; 5000]).unwrap();
            server.write_all(b"answer").unwrap();
            let usage = new.usage().unwrap();
            assert_eq!((usage.packets_in, usage.packets_out, usage.receive_ns), (0, 0, 0), "{usage:?}");
            drop(server);
            assert_eq!(record(id).unwrap().sockets, 0);
            assert_eq!(new.info().unwrap().handles, 1);
        },
        |_| (),
    );
}

#[test]
fn a_descriptor_of_an_installation_that_is_gone_is_a_plain_socket() {
    let name = "a_descriptor_of_an_installation_that_is_gone_is_a_plain_socket";
    in_unit(name, || {
        let fief = Fief::from_env().unwrap();
        let old = Container::create().unwrap();
        old.bind_thread().unwrap();
        let cgroup = cgroup_of_this();
        fief.down().unwrap();
        assert_eq!(old.usage().unwrap_err().kind(), ErrorKind::NotManaged);
        assert_eq!(Container::create().unwrap_err().kind(), ErrorKind::NotManaged);

        let policy = fief_tests_netns::PLAIN_POLICY;
        let parsed = fief_policy::parse(policy, "test.toml").unwrap();
        fief.apply(&parsed, policy, &Default::default()).unwrap();
        let home = fief_control::ManageOptions { container: Some("unit".into()), follow: false };
        fief.manage(&fief_control::Target::Cgroup(cgroup), &home).unwrap();
        assert_eq!(old.usage().unwrap_err().kind(), ErrorKind::NotAContainer);
        assert_eq!(old.bind_thread().unwrap_err().kind(), ErrorKind::NotAContainer);
        let new = Container::create().unwrap();
        drop(old);
        assert_eq!(new.info().unwrap().handles, 1);
        drop(new);
        all_end();
    });
}

fn cgroup_of_this() -> std::path::PathBuf {
    let text = std::fs::read_to_string("/proc/self/cgroup").unwrap();
    let path = text.lines().find_map(|line| line.strip_prefix("0::")).unwrap();
    fief_testkit::cgroup2_mount().unwrap().join(path.trim_start_matches('/'))
}
