// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What the control plane does for a user that asks, without the files of `fief mount` in between: for whom, where, and at once.

use std::error::Error as _;
use std::sync::Barrier;
use std::sync::atomic::{AtomicUsize, Ordering};

use fief::Container;
use fief_bpf::abi;
use fief_bpf::admin::Admin;
use fief_bpf::map::MapCore;
use fief_control::{Asker, Attribute, Fief, Holder, Node, Reference};
use fief_testkit::wait_until;
use fief_tests_netns::{
    Child, Door, Installation, NOBODY, PLAIN_POLICY, SOON, Setup, become_user, drop_capabilities, fork, in_unit_of,
};
use nix::errno::Errno;

/// A process of a user, which waits as one that asks for something does.
struct Waits {
    child: Child,
    end: Door,
    uid: u32,
}

impl Waits {
    fn new(uid: u32) -> Self {
        Self::after(uid, || become_user(uid), || ())
    }

    /// `then`: once it may end.
    fn after(uid: u32, begin: impl FnOnce(), then: impl FnOnce()) -> Self {
        let (end, ready) = (Door::new(), Door::new());
        let child = fork(|| {
            begin();
            ready.open();
            end.pass();
            then();
        });
        ready.pass();
        Self { child, end, uid }
    }

    fn asks(&self) -> Asker {
        Asker { thread: self.child.pid(), uid: self.uid }
    }

    fn ends(self) {
        self.end.open();
        self.child.finish();
    }
}

fn node(fief: &Fief, is_it: impl Fn(&Node) -> bool) -> Reference {
    fief.nodes().unwrap().into_iter().find(is_it).expect("it is there").container
}

fn named(fief: &Fief, name: &str) -> Reference {
    node(fief, |node| node.name == name)
}

fn errno_of<T>(result: &fief_control::Result<T>) -> Option<Errno> {
    let below = result.as_ref().err()?.source()?.downcast_ref::<std::io::Error>()?;
    below.raw_os_error().map(Errno::from_raw)
}

fn errno<T: std::fmt::Debug>(result: fief_control::Result<T>) -> Errno {
    errno_of(&result).unwrap_or_else(|| panic!("{result:?}"))
}

/// The kernel side's own count of what a user has; one that has nothing has no entry.
fn counted(fief: &Fief, user: u32) -> u32 {
    let users = fief.pins().open_map("users").unwrap();
    let entry = users.lookup(&user.to_ne_bytes(), fief_bpf::map::MapFlags::ANY).unwrap();
    entry.map_or(0, |entry| u32::from_ne_bytes(entry[..4].try_into().unwrap()))
}

fn in_unit(name: &str, body: impl FnOnce(&Fief, Reference)) {
    let setup = Setup { user_quota: Some(10), ..Setup::default() };
    let body = || {
        let fief = Fief::from_env().unwrap();
        let unit = named(&fief, "unit");
        body(&fief, unit);
    };
    in_unit_of(name, &setup, body, |_| ());
}

#[test]
fn what_is_asked_for_is_done_for_the_thread_that_asks_and_nobody_else() {
    in_unit("what_is_asked_for_is_done_for_the_thread_that_asks_and_nobody_else", |fief, unit| {
        let user = Waits::new(NOBODY);
        let made = fief.make_asked(user.asks(), unit, "made").unwrap();
        let nodes = fief.nodes().unwrap();
        let made_node = nodes.iter().find(|node| node.container == made).expect("it is there");
        assert_eq!((made_node.parent, made_node.holder), (Some(unit.id), Holder::Folder(NOBODY)));
        // not of the user that the kernel has named: the number is another thread's by now
        let as_other = Asker { uid: 4711, ..user.asks() };
        assert_eq!(errno(fief.make_asked(as_other, unit, "x")), Errno::EACCES);
        assert_eq!(errno(fief.end_asked(as_other, made)), Errno::EACCES);
        // operators have ways of their own
        let root = Asker { thread: nix::unistd::gettid().as_raw(), uid: 0 };
        assert_eq!(errno(fief.make_asked(root, unit, "x")), Errno::EACCES);
        assert_eq!(errno(fief.end_asked(root, made)), Errno::EACCES);
        // root without its rights is a user
        let weak = Waits::after(0, drop_capabilities, || ());
        let weaks = fief.make_asked(weak.asks(), unit, "weak").unwrap();
        assert_eq!(errno(fief.end_asked(weak.asks(), made)), Errno::EACCES);
        assert_eq!(errno(fief.end_asked(user.asks(), weaks)), Errno::EACCES);
        fief.end_asked(weak.asks(), weaks).unwrap();
        // two users in one: a set-user-ID program
        let of_two = || {
            nix::unistd::setresgid(NOBODY.into(), NOBODY.into(), NOBODY.into()).unwrap();
            nix::unistd::setresuid(4711.into(), NOBODY.into(), NOBODY.into()).unwrap();
        };
        let of_two = Waits::after(NOBODY, of_two, || ());
        assert_eq!(errno(fief.make_asked(of_two.asks(), unit, "x")), Errno::EACCES);
        assert_eq!(errno(fief.end_asked(of_two.asks(), made)), Errno::EACCES);
        // kthreadd, nobody, and who has ended
        let ended = user.asks();
        for thread in [2, 0, -1, 4_194_305] {
            for uid in [0, NOBODY] {
                assert_eq!(errno(fief.make_asked(Asker { thread, uid }, unit, "x")), Errno::EACCES);
            }
        }
        user.ends();
        assert_eq!(errno(fief.make_asked(ended, unit, "x")), Errno::EACCES);
        let again = Waits::new(NOBODY);
        fief.end_asked(again.asks(), made).unwrap();
        assert_eq!(errno(fief.end_asked(again.asks(), made)), Errno::ESTALE);
        assert_eq!(errno(fief.make_asked(again.asks(), made, "x")), Errno::ESTALE);
        assert!(!fief.nodes().unwrap().iter().any(|node| node.name == "x"));
    });
}

/// A user's first bind makes the first record of a thread, without the lock of the state.
#[test]
fn what_a_user_binds_is_charged_though_nothing_else_is() {
    let installation = Installation::with(&Setup::default());
    let fief = installation.fief();
    let charges = || fief.snapshot().unwrap().charged;
    std::fs::remove_dir(installation.cgroup()).unwrap();
    installation.apply(PLAIN_POLICY).unwrap();
    let user = Waits::new(NOBODY);
    let place = fief.place_asked(user.asks()).unwrap();
    let made = fief.make_asked(user.asks(), place, "made").unwrap();
    assert_eq!(errno(fief.bind_asked(user.asks(), 1, made)), Errno::ESRCH);
    assert!(!charges(), "no thread has a container");
    fief.bind_asked(user.asks(), user.child.pid(), made).unwrap();
    assert!(charges());
    installation.apply(PLAIN_POLICY).unwrap();
    assert!(charges());
    user.ends();
    installation.apply(PLAIN_POLICY).unwrap();
    assert!(!charges());
}

#[test]
fn what_somebody_holds_by_a_descriptor_does_not_end() {
    in_unit("what_somebody_holds_by_a_descriptor_does_not_end", |fief, unit| {
        let (bound, opened) = (Door::new(), Door::new());
        let user = Waits::new(NOBODY);
        let made = fief.make_asked(user.asks(), unit, "made").unwrap();
        // another user's process, which an operator binds there
        let other = Waits::after(
            4711,
            || become_user(4711),
            || {
                bound.pass();
                let held = fief::open_current().unwrap();
                fief::unbind(&held).unwrap();
                opened.open();
                bound.pass();
                drop(held);
            },
        );
        fief.bind_to(other.child.pid(), made).unwrap();
        wait_until(SOON, || fief.container(made).unwrap().unwrap().0.threads == 1).unwrap();
        assert_eq!(errno(fief.end_asked(user.asks(), made)), Errno::EBUSY);
        // that process is not the user's to bind elsewhere
        assert_eq!(errno(fief.bind_asked(user.asks(), other.child.pid(), unit)), Errno::EPERM);
        other.end.open();
        bound.open();
        opened.pass();
        wait_until(SOON, || fief.container(made).unwrap().unwrap().0.threads == 0).unwrap();
        assert_eq!(errno(fief.end_asked(user.asks(), made)), Errno::EBUSY);
        bound.open();
        other.child.finish();
        fief.end_asked(user.asks(), made).unwrap();
        // what an application made is its descriptor's, also for the same user
        let application = Waits::after(
            NOBODY,
            || become_user(NOBODY),
            || {
                let own = Container::create().unwrap();
                own.set_name("own").unwrap();
                opened.open();
                bound.pass();
                drop(own);
            },
        );
        application.end.open();
        opened.pass();
        let own = named(fief, "own");
        assert_eq!(errno(fief.end_asked(user.asks(), own)), Errno::EACCES);
        assert_eq!(errno(fief.set_asked(user.asks(), own, Attribute::CpuWeight(7))), Errno::EACCES);
        assert_eq!(errno(fief.make_asked(user.asks(), own, "x")), Errno::EACCES);
        bound.open();
        application.child.finish();
    });
}

#[test]
fn many_that_make_end_and_set_at_once_lose_no_count() {
    in_unit("many_that_make_end_and_set_at_once_lose_no_count", |fief, unit| {
        let user = Waits::new(NOBODY);
        let other = Waits::new(4711);
        // less than there are at each moment: counted once it is made, and until it is to end
        let (there, most) = (AtomicUsize::new(0), AtomicUsize::new(0));
        let own = |fief: &Fief| fief.nodes().unwrap().iter().filter(|n| n.holder == Holder::Folder(NOBODY)).count();
        std::thread::scope(|scope| {
            for turn in 0..4 {
                let (user, other, there, most) = (user.asks(), other.asks(), &there, &most);
                scope.spawn(move || {
                    let fief = Fief::from_env().unwrap();
                    let mut held: Vec<Reference> = Vec::new();
                    for n in 0..300 {
                        match fief.make_asked(user, unit, &format!("{turn}-{n}")) {
                            Ok(made) => {
                                most.fetch_max(there.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
                                held.push(made);
                            }
                            refused => assert_eq!(errno(refused), Errno::EDQUOT),
                        }
                        let Some(&last) = held.last() else { continue };
                        assert_eq!(errno(fief.end_asked(other, last)), Errno::EACCES);
                        fief.set_asked(user, last, Attribute::CpuWeight(7)).unwrap();
                        if n % 3 == 2 {
                            there.fetch_sub(held.len(), Ordering::SeqCst);
                            held.drain(..).for_each(|made| fief.end_asked(user, made).unwrap());
                        }
                        // each that asks is counted before it is refused
                        assert!(counted(&fief, NOBODY) <= 10 + 4);
                    }
                    held.iter().for_each(|&made| fief.end_asked(user, made).unwrap());
                });
            }
        });
        assert!(most.load(Ordering::SeqCst) <= 10, "{most:?}");
        assert_eq!(own(fief), 0);
        // the whole quota is there again, and not more
        let made: Vec<_> = (0..10).map(|n| fief.make_asked(user.asks(), unit, &n.to_string()).unwrap()).collect();
        assert_eq!(errno(fief.make_asked(user.asks(), unit, "x")), Errno::EDQUOT);
        // the library counts the same
        let application = Waits::after(
            NOBODY,
            || become_user(NOBODY),
            || {
                assert_eq!(Container::create().unwrap_err().kind(), fief::ErrorKind::Quota);
            },
        );
        application.ends();
        made.iter().for_each(|&made| fief.end_asked(user.asks(), made).unwrap());
        assert_eq!(counted(fief, NOBODY), 0);
    });
}

#[test]
fn of_two_that_end_the_same_container_one_does() {
    in_unit("of_two_that_end_the_same_container_one_does", |fief, unit| {
        let user = Waits::new(NOBODY);
        for n in 0..300 {
            let made = fief.make_asked(user.asks(), unit, "made").unwrap();
            // the other one may find it held for a moment, so it tries until there is nothing to end
            let ends = || {
                let fief = Fief::from_env().unwrap();
                loop {
                    let ended = fief.end_asked(user.asks(), made);
                    if ended.is_ok() || errno_of(&ended) != Some(Errno::EBUSY) {
                        return ended.is_ok();
                    }
                }
            };
            let (a, b) = std::thread::scope(|scope| {
                let (a, b) = (scope.spawn(ends), scope.spawn(ends));
                (a.join().unwrap(), b.join().unwrap())
            });
            assert!(a != b, "{n}: {a} {b}");
        }
        let made: Vec<_> = (0..10).map(|n| fief.make_asked(user.asks(), unit, &n.to_string()).unwrap()).collect();
        assert_eq!(errno(fief.make_asked(user.asks(), unit, "x")), Errno::EDQUOT);
        made.iter().for_each(|&made| fief.end_asked(user.asks(), made).unwrap());
    });
}

#[test]
fn an_apply_takes_no_folder_for_lost() {
    let setup = Setup { user_quota: Some(10), ..Setup::default() };
    let name = "an_apply_takes_no_folder_for_lost";
    let body = || {
        let fief = Fief::from_env().unwrap();
        let user = Waits::new(NOBODY);
        fief.make_asked(user.asks(), named(&fief, "unit"), "kept").unwrap();
    };
    in_unit_of(name, &setup, body, |installation| {
        for _ in 0..2 {
            let applied = installation.apply(fief_tests_netns::PLAIN_POLICY).unwrap();
            assert!(!applied.notes.iter().any(|note| note.contains("lost")), "{applied:?}");
        }
        let kept = node(installation.fief(), |node| node.name == "kept");
        installation.fief().end(kept).unwrap();
        assert!(!installation.fief().nodes().unwrap().iter().any(|node| node.name == "kept"));
    });
}

#[test]
fn of_a_user_and_an_operator_that_end_the_same_folder_one_does() {
    in_unit("of_a_user_and_an_operator_that_end_the_same_folder_one_does", |fief, unit| {
        let user = Waits::new(NOBODY);
        let admin = Admin::open(fief.pins()).unwrap();
        for n in 0..300 {
            let made = fief.make_asked(user.asks(), unit, "made").unwrap();
            let start = Barrier::new(2);
            let (by_user, by_operator) = std::thread::scope(|scope| {
                let by_user = scope.spawn(|| {
                    start.wait();
                    loop {
                        let ended = fief.end_asked(user.asks(), made);
                        if errno_of(&ended) != Some(Errno::EBUSY) {
                            return ended.is_ok();
                        }
                    }
                });
                start.wait();
                let by_operator = admin.release(made.into(), abi::FIEF_CONTAINER_FOLDER, None).is_ok();
                (by_user.join().unwrap(), by_operator)
            });
            assert!(by_user != by_operator, "{n}: {by_user} {by_operator}");
        }
        assert_eq!(counted(fief, NOBODY), 0);
    });
}

#[test]
fn a_sweep_ends_no_folder_whose_parent_lives() {
    in_unit("a_sweep_ends_no_folder_whose_parent_lives", |fief, unit| {
        let user = Waits::new(NOBODY);
        let outer = fief.make_asked(user.asks(), unit, "outer").unwrap();
        let inner = fief.make_asked(user.asks(), outer, "inner").unwrap();
        let admin = Admin::open(fief.pins()).unwrap();
        assert!(!admin.release_left(inner.into()).unwrap());
        admin.release(outer.into(), abi::FIEF_CONTAINER_FOLDER, None).unwrap();
        assert!(admin.release_left(inner.into()).unwrap());
        assert!(!admin.release_left(inner.into()).unwrap());
        assert_eq!(counted(fief, NOBODY), 0);
    });
}

#[test]
fn a_process_of_many_threads_is_not_bound_at_once() {
    in_unit("a_process_of_many_threads_is_not_bound_at_once", |fief, unit| {
        let user = Waits::new(NOBODY);
        let made = fief.make_asked(user.asks(), unit, "made").unwrap();
        let with_threads = |count: usize| {
            Waits::after(
                NOBODY,
                || {
                    become_user(NOBODY);
                    for _ in 1..count {
                        std::thread::Builder::new().stack_size(16 << 10).spawn(std::thread::park).unwrap();
                    }
                },
                || (),
            )
        };
        let most = with_threads(1024);
        assert_eq!(fief.bind_asked(user.asks(), most.child.pid(), made).unwrap().threads, 1024);
        most.ends();
        let more = with_threads(1025);
        assert_eq!(errno(fief.bind_asked(user.asks(), more.child.pid(), made)), Errno::E2BIG);
        more.ends();
    });
}

#[test]
fn a_user_with_a_place_is_forgotten_at_the_next_apply() {
    let check = |installation: &Installation| {
        let fief = installation.fief();
        let users = || fief.pins().open_map("users").unwrap().keys().count();
        let user = Waits::new(NOBODY);
        let place = fief.place_asked(user.asks()).unwrap();
        let made = fief.make_asked(user.asks(), place, "made").unwrap();
        fief.end_asked(user.asks(), made).unwrap();
        assert_eq!(users(), 1);
        let has_place = || fief.nodes().unwrap().iter().any(|node| node.container == place);
        assert!(has_place());
        installation.apply(fief_tests_netns::PLAIN_POLICY).unwrap();
        assert_eq!(users(), 0);
        assert!(!has_place());
    };
    in_unit_of("a_user_with_a_place_is_forgotten_at_the_next_apply", &Setup::default(), || (), check);
}

#[test]
fn the_place_of_a_user_is_not_held_by_applications() {
    let setup = Setup { user_quota: Some(10), ..Setup::default() };
    in_unit_of(
        "the_place_of_a_user_is_not_held_by_applications",
        &setup,
        || (),
        |installation| {
            let user = Waits::new(NOBODY);
            let place = installation.fief().place_asked(user.asks()).unwrap();
            installation.fief().make_asked(user.asks(), place, "made").unwrap();
            assert_eq!(installation.fief().down().unwrap().still_held, 0);
        },
    );
}
