// SPDX-License-Identifier: Apache-2.0 OR MIT
//! How much an application may have: containers of a user and below a unit, and shares of the CPU, however it makes, moves
//! and closes them.

use std::io::{BufRead, BufReader};
use std::os::fd::OwnedFd;
use std::process::Stdio;

use fief::{Container, ErrorKind, abi};
use fief_testkit::wait_until;
use fief_tests_netns::{
    Door, Installation, NOBODY, SOON, Setup, all_end, become_user, drop_capabilities, fork, in_unit, in_unit_of,
    set_option, unnamed,
};
use libbpf_rs::{MapCore, MapFlags};
use nix::errno::Errno;
use nix::sys::resource::{Resource, setrlimit};
use nix::sys::socket::{AddressFamily, SockFlag, SockType, socket};
use nix::unistd::{Uid, setresuid};

#[test]
fn a_user_has_no_more_containers_than_the_quota() {
    let setup = Setup { user_quota: Some(10), ..Setup::default() };
    let name = "a_user_has_no_more_containers_than_the_quota";
    let body = || {
        fork(|| {
            become_user(NOBODY);
            let mut held: Vec<_> = (0..10).map(|_| Container::create().unwrap()).collect();
            assert_eq!(Container::create().unwrap_err().kind(), ErrorKind::Quota);
            assert_eq!(held[3].child().unwrap_err().kind(), ErrorKind::Quota);
            // a namespace where it is root does not make it another user
            nix::sched::unshare(nix::sched::CloneFlags::CLONE_NEWUSER).unwrap();
            assert_eq!(Container::create().unwrap_err().kind(), ErrorKind::Quota);
            held.pop();
            Container::create().unwrap();
        })
        .finish();
        all_end();
        // each user has its own, and several processes of one share it
        let most = Door::new();
        let users: Vec<_> = (0..4)
            .map(|n| {
                let most = &most;
                fork(move || {
                    become_user(2000 + n / 2);
                    let mut held = Vec::new();
                    for _ in 0..3000 {
                        match Container::create() {
                            Ok(container) => held.push(container),
                            Err(e) => {
                                assert_eq!(e.kind(), ErrorKind::Quota);
                                held.pop();
                            }
                        }
                    }
                    most.pass();
                })
            })
            .collect();
        let mut seen = 0;
        wait_until(SOON, || {
            seen = seen.max(fief_tests_netns::unnamed_at_once());
            unnamed() >= 18
        })
        .unwrap();
        for _ in 0..2000 {
            seen = seen.max(fief_tests_netns::unnamed_at_once());
        }
        (0..4).for_each(|_| most.open());
        users.into_iter().for_each(fief_tests_netns::Child::finish);
        assert!(seen <= 20, "{seen} containers of two users");
        all_end();
    };
    in_unit_of(name, &setup, body, |_| ());
}

#[test]
fn a_unit_has_no_more_descendants_than_it_may() {
    let policy = "version = 1\n[container.unit]\ndescendants.max = 5\n";
    let setup = Setup { policy, ..Setup::default() };
    let body = || {
        let top = Container::create().unwrap();
        let mut below: Vec<_> = (0..4).map(|_| top.child().unwrap()).collect();
        assert_eq!(Container::create().unwrap_err().kind(), ErrorKind::Quota);
        assert_eq!(below[0].child().unwrap_err().kind(), ErrorKind::Quota);
        // moved within the unit it stays within the limit
        {
            let _bound = below[0].bind().unwrap();
            below[1].adopt().unwrap();
            assert_eq!(below[1].info().unwrap().depth, 4);
            assert_eq!(Container::create().unwrap_err().kind(), ErrorKind::Quota);
        }
        below[3].adopt().unwrap();
        assert_eq!(below[3].info().unwrap().depth, 2);
        below.pop();
        drop(Container::create().unwrap());
    };
    in_unit_of("a_unit_has_no_more_descendants_than_it_may", &setup, body, |_| ());
}

#[test]
fn programs_that_have_all_a_unit_may_keep_no_policy_from_being_applied() {
    let policy = "version = 1\n[container.unit]\ndescendants.max = 5\n";
    let setup = Setup { policy, ..Setup::default() };
    let body = || {
        let top = Container::create().unwrap();
        let below: Vec<_> = (0..4).map(|_| top.child().unwrap()).collect();
        assert_eq!(Container::create().unwrap_err().kind(), ErrorKind::Quota);
        let more = format!("{policy}[container.\"unit/new\"]\n");
        let parsed = fief_policy::parse(&more, "more").unwrap();
        fief_control::Fief::from_env().unwrap().apply(&parsed, &more, &fief_control::ApplyOptions::default()).unwrap();
        drop(below);
    };
    in_unit_of("programs_that_have_all_a_unit_may_keep_no_policy_from_being_applied", &setup, body, |_| ());
}

#[test]
fn adoption_counts_everybody_that_comes_along() {
    in_unit("adoption_counts_everybody_that_comes_along", || {
        let small = Container::create().unwrap();
        small.set_descendants_max(Some(3)).unwrap();
        let family = Container::create().unwrap();
        let nest = family.child().unwrap();
        let _children: Vec<_> = (0..3).map(|_| nest.child().unwrap()).collect();
        let _bound = small.bind().unwrap();
        assert_eq!(nest.adopt().unwrap_err().kind(), ErrorKind::Quota);
    });
}

#[test]
fn shares_of_descendants_that_outlive_their_parent_stay_reserved() {
    let policy = "version = 1\n[container.unit]\ncpu.share = \"60%\"\n";
    let setup = Setup { policy, ..Setup::default() };
    let body = || {
        let first = Container::create().unwrap();
        first.set_share(500_000).unwrap();
        let kept = first.child().unwrap();
        kept.set_share(500_000).unwrap();
        drop(first);
        let second = Container::create().unwrap();
        assert_eq!(second.set_share(500_000).unwrap_err().kind(), ErrorKind::Conflict);
        second.set_share(100_000).unwrap();
        // nor by moving out from below the ended one
        kept.adopt().unwrap_err();
        kept.set_share(0).unwrap();
        kept.adopt().unwrap();
        second.set_share(600_000).unwrap();
        assert_eq!(kept.set_share(1).unwrap_err().kind(), ErrorKind::Conflict);
        // nor what its own limit takes away
        assert_eq!(second.set_limit(Some(599_999)).unwrap_err().kind(), ErrorKind::Conflict);
        second.set_limit(Some(600_000)).unwrap();
        second.set_share(100_000).unwrap();
        second.set_limit(Some(100_000)).unwrap();
        assert_eq!(second.set_share(100_001).unwrap_err().kind(), ErrorKind::Conflict);
        second.set_limit(None).unwrap();
        second.set_share(100_001).unwrap();
    };
    let name = "shares_of_descendants_that_outlive_their_parent_stay_reserved";
    in_unit_of(name, &setup, body, |_| ());
}

#[test]
fn a_policy_that_leaves_less_than_applications_were_promised_is_in_force_and_says_so() {
    let policy = "version = 1\n[container.unit]\ncpu.share = \"60%\"\n";
    let setup = Setup { policy, ..Setup::default() };
    let body = || {
        let held = Container::create().unwrap();
        held.set_share(500_000).unwrap();
        let fief = fief_control::Fief::from_env().unwrap();
        let is_told = |share: &str| {
            let text = policy.replace("60%", share);
            let parsed = fief_policy::parse(&text, "less").unwrap();
            let notes = fief.apply(&parsed, &text, &fief_control::ApplyOptions::default()).unwrap().notes;
            notes.iter().any(|note| note.starts_with("unit: applications were promised 50% below it, and it has "))
        };
        assert!(is_told("20%"));
        assert!(!is_told("50%"));
        // what was granted stays, and nothing more is
        assert!(is_told("20%"));
        assert_eq!(held.set_share(500_001).unwrap_err().kind(), ErrorKind::Conflict);
        held.set_share(200_000).unwrap();
        assert!(!is_told("20%"));
    };
    let name = "a_policy_that_leaves_less_than_applications_were_promised_is_in_force_and_says_so";
    in_unit_of(name, &setup, body, |_| ());
}

/// Containers until the first error, which must be `last`.
fn held_until(last: ErrorKind) -> Vec<Container> {
    let mut held = Vec::new();
    loop {
        match Container::create() {
            Ok(container) => held.push(container),
            Err(e) => {
                assert_eq!(e.kind(), last, "{e}");
                return held;
            }
        }
    }
}

#[test]
fn users_that_fill_the_table_leave_room_for_a_policy() {
    let name = "users_that_fill_the_table_leave_room_for_a_policy";
    if fief_tests_netns::inside() {
        become_user(NOBODY);
        let held = held_until(ErrorKind::Full);
        assert!(held.len() >= 48, "{} of 64", held.len());
        println!("filled");
        std::io::stdin().read_line(&mut String::new()).unwrap();
        return;
    }
    let installation = Installation::with(&Setup { containers: 64, ..Setup::default() });
    let mut command = installation.part(Some(&installation.cgroup()), name, "user");
    let mut user = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(user.stdout.take().unwrap()).lines();
    assert!(lines.any(|line| line.unwrap().ends_with("filled")));
    installation.apply("version = 1\n[container.unit]\n[container.a]\n[container.b]\n[container.\"b/c\"]\n").unwrap();
    drop(user.stdin.take());
    assert!(user.wait().unwrap().success());
}

/// How many containers each user in the table has.
fn users(installation: &Installation) -> Vec<u32> {
    let users = installation.fief().pins().open_map("users").unwrap();
    let count = |uid: Vec<u8>| {
        let entry = users.lookup(&uid, MapFlags::ANY).unwrap()?;
        Some(u32::from_ne_bytes(entry[..4].try_into().unwrap()))
    };
    users.keys().filter_map(count).collect()
}

#[test]
fn more_users_in_turn_than_have_room_at_once_find_room() {
    let name = "more_users_in_turn_than_have_room_at_once_find_room";
    let body = || {
        fork(|| {
            let root = Uid::from_raw(0);
            for uid in (100_000..100_000 + 17_000).map(Uid::from_raw) {
                setresuid(uid, uid, root).unwrap();
                let made = Container::create();
                // the next user is root's to become
                setresuid(root, root, root).unwrap();
                made.unwrap_or_else(|error| panic!("{uid}: {error}"));
            }
        })
        .finish();
        all_end();
    };
    in_unit_of(name, &Setup::default(), body, |installation| assert_eq!(users(installation), [0u32; 0]));
}

#[test]
fn users_that_come_and_go_on_several_cpus_are_counted_to_the_end() {
    let name = "users_that_come_and_go_on_several_cpus_are_counted_to_the_end";
    let body = || {
        let come_and_go = |n: u32| {
            fork(move || {
                become_user(3000 + n / 3);
                for _ in 0..3000 {
                    // refused where the last one ends at this moment
                    drop(Container::create());
                }
            })
        };
        (0..6).map(come_and_go).collect::<Vec<_>>().into_iter().for_each(fief_tests_netns::Child::finish);
        // nobody is kept out
        for uid in [3000, 3001] {
            fork(move || {
                become_user(uid);
                Container::create().unwrap();
            })
            .finish();
        }
        all_end();
    };
    in_unit_of(name, &Setup::default(), body, |installation| {
        assert!(users(installation).iter().all(|&count| count == 0), "{:?}", users(installation));
        assert_eq!(fief_bpf::table::control(installation.fief().pins()).unwrap().user_containers, 0);
    });
}

#[test]
fn root_without_capabilities_has_a_quota_like_others() {
    let setup = Setup { user_quota: Some(10), ..Setup::default() };
    let body = || {
        assert!((0..20).map(|_| Container::create().unwrap()).collect::<Vec<_>>().len() == 20);
        all_end();
        fork(|| {
            drop_capabilities();
            assert!(nix::unistd::geteuid().is_root());
            assert_eq!(held_until(ErrorKind::Quota).len(), 10);
        })
        .finish();
        all_end();
    };
    in_unit_of("root_without_capabilities_has_a_quota_like_others", &setup, body, |_| ());
}

/// `struct fief_filter`: a prefix of 8 bits.
const FILTER: [u8; 24] = {
    let mut filter = [0; 24];
    filter[16] = 8;
    filter
};

fn tcp_socket() -> OwnedFd {
    socket(AddressFamily::Inet, SockType::Stream, SockFlag::SOCK_CLOEXEC, None).expect("a socket")
}

/// Sockets that ask for a filter each, until one is refused.
fn filtered_until(last: Errno) -> Vec<OwnedFd> {
    let mut held = Vec::new();
    loop {
        let socket = tcp_socket();
        match set_option(&socket, abi::FIEF_FILTER, &FILTER) {
            Ok(()) => held.push(socket),
            Err(errno) => {
                assert_eq!(errno, last, "after {}", held.len());
                return held;
            }
        }
    }
}

#[test]
fn users_that_have_all_filters_leave_some_for_root() {
    in_unit("users_that_have_all_filters_leave_some_for_root", || {
        setrlimit(Resource::RLIMIT_NOFILE, 2000, 2000).unwrap();
        let hold = |uid: u32, has: usize, last: Errno| {
            let (ready, go) = (Door::new(), Door::new());
            let child = {
                let (ready, go) = (&ready, &go);
                fork(move || {
                    become_user(uid);
                    let held = filtered_until(last);
                    assert_eq!(held.len(), has, "of user {uid}");
                    ready.open();
                    go.pass();
                })
            };
            ready.pass();
            (child, go)
        };
        let end = |(child, go): (fief_tests_netns::Child, Door)| {
            go.open();
            child.finish();
        };
        let mut users: Vec<_> = (0..14).map(|n| hold(3000 + n, 1024, Errno::EDQUOT)).collect();
        end(hold(3100, 0, Errno::ENFILE));
        set_option(tcp_socket(), abi::FIEF_FILTER, &FILTER).expect("root has room");
        // what one gives back is another one's
        end(users.pop().unwrap());
        end(hold(3100, 1024, Errno::EDQUOT));
        users.into_iter().for_each(end);
    });
}
