// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What an unprivileged holder of containers may not do: reach other people's, have more than its quota, be charged
//! elsewhere than below its home, or guarantee itself more than its home has.

use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::time::Duration;

use fief::{Container, ErrorKind, Rights, abi};
use fief_bpf::table::Table;
use fief_control::Fief;
use fief_testkit::{Cgroup, Dice, Process, cgroup2_mount, wait_until};
use fief_tests_netns::{
    Gate, Installation, Ring, SOON, Setup, fork, in_unit, in_unit_of, receive, record, role, send, spin, unnamed,
};
use nix::unistd::{Gid, Uid, setgroups, setresgid, setresuid};

const NOBODY: u32 = 65534;

/// The process goes on as another user, without capabilities.
fn become_user(uid: u32) {
    setgroups(&[]).unwrap();
    setresgid(Gid::from_raw(uid), Gid::from_raw(uid), Gid::from_raw(uid)).unwrap();
    setresuid(Uid::from_raw(uid), Uid::from_raw(uid), Uid::from_raw(uid)).unwrap();
}

fn set_option(fd: impl AsFd, option: u32, value: &[u8]) -> Result<(), i32> {
    let (level, length) = (abi::FIEF_SOL as i32, value.len() as u32);
    // SAFETY: value and length describe memory that is borrowed for the call.
    let err = unsafe { libc::setsockopt(fd.as_fd().as_raw_fd(), level, option as i32, value.as_ptr().cast(), length) };
    if err == 0 { Ok(()) } else { Err(nix::errno::Errno::last_raw()) }
}

fn fresh_socket() -> OwnedFd {
    let (family, kind) = (nix::sys::socket::AddressFamily::Inet, nix::sys::socket::SockType::Datagram);
    nix::sys::socket::socket(family, kind, nix::sys::socket::SockFlag::SOCK_CLOEXEC, None).unwrap()
}

/// Where the parts of a test meet.
fn meeting() -> PathBuf {
    std::env::temp_dir().join(format!("{}.meeting", Fief::from_env().pins().scope()))
}

fn host() -> UnixStream {
    let listener = UnixListener::bind(meeting()).unwrap();
    let (stream, _) = listener.accept().unwrap();
    std::fs::remove_file(meeting()).unwrap();
    stream
}

fn guest() -> UnixStream {
    let mut stream = None;
    wait_until(SOON, || {
        stream = UnixStream::connect(meeting()).ok();
        stream.is_some()
    })
    .unwrap();
    stream.unwrap()
}

/// Runs a test of two parts: `host` in the managed cgroup, `guest` in another one with the home `home`, or a stranger.
fn play_two(name: &str, setup: &Setup<'_>, home: Option<&str>) {
    let installation = Installation::with(setup);
    let other = home.map(|home| {
        let cgroup = Cgroup::new("guest").unwrap();
        installation.manage(cgroup.path(), Some(home), false);
        cgroup
    });
    let host = installation.start(Some(&installation.cgroup()), name, "host");
    let guest = installation.start(other.as_ref().map(Cgroup::path), name, "guest");
    let done = |process: Process| process.finish(Duration::from_secs(60)).unwrap().status.success();
    assert!(done(guest), "the guest failed");
    assert!(done(host), "the host failed");
}

fn wait_for(stream: &UnixStream) {
    let mut byte = [0];
    std::io::Read::read_exact(&mut &*stream, &mut byte).unwrap();
}

fn tell(stream: &UnixStream) {
    std::io::Write::write_all(&mut &*stream, b".").unwrap();
}

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
        wait_until(SOON, || unnamed() == 0).unwrap();
        // each user has its own, and several processes of one share it
        let most = Gate::new();
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
        wait_until(SOON, || unnamed() == 0).unwrap();
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
    };
    let name = "shares_of_descendants_that_outlive_their_parent_stay_reserved";
    in_unit_of(name, &setup, body, |_| ());
}

#[test]
fn an_accomplice_outside_does_not_lift_a_container_out_of_its_limits() {
    let name = "an_accomplice_outside_does_not_lift_a_container_out_of_its_limits";
    match role().as_deref() {
        Some("guest") => {
            let over = guest();
            become_user(NOBODY);
            let container = Container::from_fd(receive(&over)).unwrap();
            container.adopt().unwrap();
            let parent = container.info().unwrap().parent.unwrap();
            assert_ne!(parent, abi::FIEF_ROOT, "it stands beside the policy's containers");
            assert_eq!(container.set_share(1).unwrap_err().kind(), ErrorKind::Conflict);
            // what the machine's own work is charged to is not given away
            let fresh = receive(&over);
            set_option(&fresh, abi::FIEF_OPEN_BINDING, &[]).unwrap();
            send(&over, fresh);
            wait_for(&over);
        }
        Some(_) => {
            let over = host();
            send(&over, Container::create().unwrap());
            send(&over, fresh_socket());
            let root = Container::from_fd(receive(&over)).unwrap();
            assert_eq!(root.info().unwrap().id, abi::FIEF_ROOT);
            assert_eq!(root.bind_thread().unwrap_err().kind(), ErrorKind::Denied);
            tell(&over);
        }
        None => play_two(name, &Setup::default(), None),
    }
}

#[test]
fn a_passed_descriptor_allows_what_its_rights_say() {
    let policy = "version = 1\n[container.unit]\n[container.other]\n";
    let name = "a_passed_descriptor_allows_what_its_rights_say";
    match role().as_deref() {
        Some("guest") => {
            let over = guest();
            become_user(NOBODY);
            let readable = Container::from_fd(receive(&over)).unwrap();
            assert_eq!(readable.bind_thread().unwrap_err().kind(), ErrorKind::Denied);
            assert_eq!(readable.adopt().unwrap_err().kind(), ErrorKind::Denied);
            let usable = Container::from_fd(receive(&over)).unwrap_err();
            assert_eq!(usable.kind(), ErrorKind::Denied, "without the right to read it is not even shown");
            let usable = Container::from_fd(receive(&over)).unwrap();
            let home = fief::current(&usable).unwrap();
            {
                let _bound = usable.bind().unwrap();
                assert_eq!(Container::create().unwrap_err().kind(), ErrorKind::Denied);
                // the binding can be opened, with no more rights
                let again = fief::open_current().unwrap();
                assert!(!again.info().unwrap().rights.contains(Rights::CHILDREN));
                assert!(!again.info().unwrap().rights.contains(Rights::ADMINISTER));
                let copy = again.duplicate().unwrap();
                assert_eq!(copy.set_weight(9).unwrap_err().kind(), ErrorKind::Denied);
            }
            fief::unbind(&usable).unwrap();
            assert_eq!(fief::current(&usable).unwrap(), home);
            tell(&over);
        }
        Some(_) => {
            let over = host();
            let container = Container::create().unwrap();
            for rights in [Rights::READ, Rights::USE, Rights::USE | Rights::READ] {
                let copy = container.duplicate().unwrap();
                copy.keep_rights(rights).unwrap();
                send(&over, copy);
            }
            wait_for(&over);
        }
        None => play_two(name, &Setup { policy, ..Setup::default() }, Some("other")),
    }
}

#[test]
fn another_thread_is_bound_only_by_who_may_signal_it_and_stands_above_it() {
    let policy = "version = 1\n[container.unit]\n[container.\"unit/below\"]\n[container.other]\n";
    let name = "another_thread_is_bound_only_by_who_may_signal_it_and_stands_above_it";
    match role().as_deref() {
        Some("guest") => {
            // root in a unit beside: may signal, and is not above
            let over = guest();
            let target = Container::from_fd(receive(&over)).unwrap();
            let pid = std::fs::read_to_string(meeting().with_extension("pid")).unwrap().parse().unwrap();
            let mine = Container::create().unwrap();
            assert_eq!(mine.bind_other(pid).unwrap_err().kind(), ErrorKind::Denied);
            assert_eq!(target.bind_other(pid).unwrap_err().kind(), ErrorKind::Denied);
            tell(&over);
        }
        Some(_) => {
            std::fs::write(meeting().with_extension("pid"), std::process::id().to_string()).unwrap();
            let over = host();
            let container = Container::create().unwrap();
            send(&over, &container);
            wait_for(&over);
            std::fs::remove_file(meeting().with_extension("pid")).unwrap();

            let id = container.info().unwrap().id;
            let roots = fork(|| {
                loop {
                    spin(Duration::from_millis(1));
                }
            });
            let users = fork(|| {
                become_user(NOBODY);
                loop {
                    spin(Duration::from_millis(1));
                }
            });
            fork(|| {
                become_user(NOBODY);
                assert_eq!(container.bind_other(roots.pid()).unwrap_err().kind(), ErrorKind::Denied);
                wait_until(SOON, || container.bind_other(users.pid()).is_ok()).unwrap();
                assert_eq!(container.bind_other(i32::MAX).unwrap_err().kind(), ErrorKind::NoThread);
                // all capabilities in a namespace of its own are none here
                nix::sched::unshare(nix::sched::CloneFlags::CLONE_NEWUSER).unwrap();
                assert_eq!(container.bind_other(roots.pid()).unwrap_err().kind(), ErrorKind::Denied);
            })
            .finish();
            wait_until(SOON, || record(id).unwrap().members / abi::FIEF_MEMBER_PROCESS == 1).unwrap();
            // root may, CAP_KILL
            container.bind_other(roots.pid()).unwrap();
            wait_until(SOON, || record(id).unwrap().members / abi::FIEF_MEMBER_PROCESS == 2).unwrap();
        }
        None => play_two(name, &Setup { policy, ..Setup::default() }, Some("other")),
    }
}

#[test]
fn descriptors_of_others_cannot_be_taken() {
    in_unit("descriptors_of_others_cannot_be_taken", || {
        let container = Container::create().unwrap();
        let (pid, fd) = (std::process::id() as i32, container.as_fd().as_raw_fd());
        fork(|| {
            drop(container);
            become_user(NOBODY);
            assert!(std::fs::File::open(format!("/proc/{pid}/fd/{fd}")).is_err());
            let process = fief_bpf::process::open(pid).unwrap();
            let taken = fief_bpf::process::take_fd(process.as_fd(), fd);
            assert_eq!(taken.unwrap_err().raw_os_error(), Some(libc::EPERM));
        })
        .finish();
    });
}

#[test]
fn a_worker_of_io_uring_does_its_creators_work() {
    in_unit("a_worker_of_io_uring_does_its_creators_work", || {
        let Some(mut ring) = Ring::new() else {
            eprintln!("skipped: no io_uring here");
            return;
        };
        let container = Container::create().unwrap();
        let other = Container::create().unwrap();
        let mut file = tempfile::tempfile().unwrap();
        {
            let _bound = container.bind().unwrap();
            assert_eq!(ring.write(file.as_fd(), &[7; 4096]), 4096);
            let threads = container.info().unwrap().threads;
            assert!(threads >= 2, "its worker is not bound to it: {threads}");
            // a socket option by the worker binds the worker, never its creator
            let mine = fief::current(&container).unwrap();
            ring.set_option(other.as_fd(), abi::FIEF_SOL as i32, abi::FIEF_BIND as i32);
            assert_eq!(fief::current(&container).unwrap(), mine);
            ring.set_option(container.as_fd(), abi::FIEF_SOL as i32, abi::FIEF_UNBIND as i32);
            assert_eq!(fief::current(&container).unwrap(), mine);
        }
        // what the worker makes lies below the unit
        let fresh = fresh_socket();
        if ring.set_option(fresh.as_fd(), abi::FIEF_SOL as i32, abi::FIEF_CREATE as i32) == 0 {
            let made = Container::from_fd(fresh).unwrap();
            assert!(made.info().unwrap().depth >= 2);
        }
        std::io::Seek::rewind(&mut file).unwrap();
        drop(ring);
        drop((container, other));
        wait_until(SOON, || unnamed() == 0).unwrap();
    });
}

#[test]
fn a_move_to_another_cgroup_does_not_leave_the_home() {
    in_unit("a_move_to_another_cgroup_does_not_leave_the_home", || {
        let watch = Container::create().unwrap();
        let home = fief::current(&watch).unwrap();
        let elsewhere = Cgroup::new("elsewhere").unwrap();
        let child = fork(|| {
            elsewhere.add(std::process::id()).unwrap();
            assert_eq!(fief::current(&watch).unwrap(), home);
            fork(|| assert_eq!(fief::current(&watch).unwrap(), home)).finish();
            std::thread::scope(|scope| {
                scope.spawn(|| assert_eq!(fief::current(&watch).unwrap(), home)).join().unwrap();
            });
            // sockets made there have no hooks: nothing can be made, so nothing can escape
            assert_eq!(Container::create().unwrap_err().kind(), ErrorKind::NotManaged);
        });
        child.finish();
        let born = clone_into(elsewhere.path(), || assert_eq!(fief::current(&watch).unwrap(), home));
        born.finish();
        assert!(cgroup2_mount().unwrap().exists());
    });
}

#[test]
fn a_child_that_a_stranger_clones_into_a_unit_has_the_units_home() {
    let name = "a_child_that_a_stranger_clones_into_a_unit_has_the_units_home";
    match role().as_deref() {
        Some(_) => {
            let unit = PathBuf::from(std::env::var("FF_UNIT").unwrap());
            clone_into(&unit, || {
                let container = Container::create().unwrap();
                assert_eq!(container.info().unwrap().depth, 2);
                assert_ne!(fief::current(&container).unwrap().0, abi::FIEF_ROOT);
            })
            .finish();
        }
        None => {
            let installation = Installation::with(&Setup::default());
            let mut part = installation.part(None, name, "stranger");
            part.env("FF_UNIT", installation.cgroup());
            let done = Process::start(part).unwrap().finish(SOON).unwrap();
            assert!(done.status.success());
        }
    }
}

/// A child born in a cgroup.
fn clone_into(cgroup: &std::path::Path, body: impl FnOnce()) -> fief_tests_netns::Child {
    fief_tests_netns::clone_into(std::fs::File::open(cgroup).unwrap(), body)
}

#[test]
fn values_that_are_too_short_or_out_of_range_are_refused() {
    in_unit("values_that_are_too_short_or_out_of_range_are_refused", || {
        let container = Container::create().unwrap();
        let id = container.info().unwrap().id;
        for option in 0..64u32 {
            for length in [1usize, 3, 4, 7, 8, 15, 31, 32, 100] {
                for fill in [0u8, 1, 255] {
                    // a name is any bytes; the rest must not be taken by accident
                    let _ = set_option(&container, option, &vec![fill; length]);
                }
            }
        }
        let after = record(id).unwrap();
        assert_eq!(after.attributes[0].share_ppm, 0);
        assert!((1..=10_000).contains(&after.attributes[0].weight));
        for option in [abi::FIEF_CREATE, abi::FIEF_DUP, abi::FIEF_OPEN_BINDING] {
            assert!(set_option(&container, option, &[]).is_err(), "a descriptor became another container's");
        }
        assert_eq!(set_option(std::net::TcpListener::bind("127.0.0.1:0").unwrap(), abi::FIEF_CREATE, &[]), Err(22));
    });
}

/// Does what comes to its mind; every refusal is fine.
fn wander(seed: u64, peers: &[i32], over: &UnixStream, back: &UnixStream) {
    let mut dice = Dice::new(seed);
    let mut held = vec![Container::create().unwrap()];
    let _ = back.set_nonblocking(true);
    let _ = over.set_nonblocking(true);
    for _ in 0..4000 {
        let one = dice.roll(held.len());
        let other = dice.roll(held.len());
        match dice.roll(16) {
            0 | 1 => held.extend(Container::create()),
            2 => held.extend(held[one].child()),
            3 if held.len() > 1 => drop(held.swap_remove(one)),
            4 => drop(held[one].bind_thread()),
            5 => drop(fief::unbind(&held[one])),
            6 => drop(held[one].adopt()),
            7 => {
                let _bound = held[one].bind();
                let _ = held[other].adopt();
            }
            8 | 9 => drop(held[one].set_share(dice.roll(700_000) as u32)),
            10 => held.extend(held[one].duplicate()),
            11 => held.extend(fief::open_current()),
            12 => drop(held[one].bind_other(peers[dice.roll(peers.len())])),
            13 => {
                let fds = [held[one].as_fd().as_raw_fd()];
                let message = [nix::sys::socket::ControlMessage::ScmRights(&fds)];
                let bytes = [std::io::IoSlice::new(b"f")];
                let _ = nix::sys::socket::sendmsg::<()>(
                    over.as_raw_fd(),
                    &bytes,
                    &message,
                    nix::sys::socket::MsgFlags::empty(),
                    None,
                );
            }
            14 => {
                let mut room = nix::cmsg_space!(std::os::fd::RawFd);
                let mut byte = [0];
                let mut into = [std::io::IoSliceMut::new(&mut byte)];
                let flags = nix::sys::socket::MsgFlags::MSG_CMSG_CLOEXEC;
                let received = nix::sys::socket::recvmsg::<()>(back.as_raw_fd(), &mut into, Some(&mut room), flags);
                for message in received.iter().flat_map(|message| message.cmsgs().unwrap()) {
                    if let nix::sys::socket::ControlMessageOwned::ScmRights(fds) = message {
                        for fd in fds {
                            // SAFETY: the kernel made this descriptor for the message, and nobody else took it.
                            let fd = unsafe { <OwnedFd as std::os::fd::FromRawFd>::from_raw_fd(fd) };
                            held.extend(Container::from_fd(fd));
                        }
                    }
                }
            }
            _ => drop(held[one].keep_rights(Rights::USE | Rights::READ | Rights::CHILDREN)),
        }
        if held.len() > 60 {
            held.truncate(20);
        }
    }
}

#[test]
fn no_wandering_breaks_the_tree() {
    let policy = "version = 1\n[container.unit]\ncpu.share = \"60%\"\ndescendants.max = 300\n";
    let setup = Setup { policy, ..Setup::default() };
    let body = || {
        let table = Table::open(Fief::from_env().pins()).unwrap();
        let unit = {
            let probe = Container::create().unwrap();
            probe.info().unwrap().parent.unwrap()
        };
        let (over, back) = UnixStream::pair().unwrap();
        let first = fork(|| {
            become_user(NOBODY);
            loop {
                spin(Duration::from_millis(1));
            }
        });
        let peers = [first.pid(), std::process::id() as i32];
        let wanderers: Vec<_> = (1..=3)
            .map(|seed| {
                let (over, back) = (&over, &back);
                fork(move || {
                    become_user(NOBODY);
                    wander(seed, &peers, over, back);
                })
            })
            .collect();
        while !wanderers.iter().all(fief_tests_netns::Child::has_ended) {
            let descendants = table.row(unit).unwrap().record.descendants;
            assert!(descendants <= 310, "{descendants} below the unit");
            std::thread::yield_now();
        }
        wanderers.into_iter().for_each(fief_tests_netns::Child::finish);
        // held now: what is in flight, and what `first` was bound to
        let rows: Vec<_> = table.rows().filter(|row| row.container.id >= abi::FIEF_FIRST_ID).collect();
        let find = |id: u32| rows.iter().find(|row| row.container.id == id);
        for row in &rows {
            let mut at = *row;
            while at.container.id != unit {
                let parent = at.record.parent;
                at = *find(parent.id).unwrap_or_else(|| panic!("{:?} has left the unit", row.container));
                assert_eq!(at.container.generation, parent.generation);
            }
            let given: u32 = rows
                .iter()
                .filter(|child| child.record.parent == row.container && child.container.id != unit)
                .map(|child| child.record.attributes[0].share_ppm)
                .sum();
            let own = if row.container.id == unit { 600_000 } else { row.record.attributes[0].share_ppm };
            assert_eq!(given, row.record.reserved_ppm, "{:?}", row.container);
            assert!(given <= own, "{:?} has {own} and gave {given}", row.container);
        }
        drop((over, back));
        first.kill();
        wait_until(SOON, || unnamed() == 0).unwrap_or_else(|_| panic!("left: {}", fief_tests_netns::left()));
        let unit = table.row(unit).unwrap().record;
        assert_eq!((unit.descendants, unit.reserved_ppm), (0, 0));
    };
    in_unit_of("no_wandering_breaks_the_tree", &setup, body, |_| ());
}
