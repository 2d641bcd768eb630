// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What an unprivileged holder of containers may not do: reach other people's, or be charged elsewhere than below its
//! home.

mod arguments;
mod charged;

use std::io::{Read, Write};
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::time::Duration;

use fief::{Container, ErrorKind, Rights};
use fief_bpf::abi;
use fief_control::Fief;
use fief_testkit::{Cgroup, Process, cgroup2_mount, require_if, wait_until};
use fief_tests_netns::{
    Installation, NOBODY, Ring, SOON, Setup, all_end, become_user, fork, fresh_socket, in_unit, receive, record, role,
    send, set_option, spin,
};
use nix::errno::Errno;
use nix::sched::{CloneFlags, unshare};

/// Where the parts of a test meet.
fn meeting() -> PathBuf {
    std::env::temp_dir().join(format!("{}.meeting", Fief::from_env().unwrap().pins().scope()))
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
    (&*stream).read_exact(&mut byte).unwrap();
}

fn tell(stream: &UnixStream) {
    (&*stream).write_all(b".").unwrap();
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

/// Rights of a descriptor of what the thread is bound to, where all are asked for.
fn opened_with_all_rights() -> Rights {
    let opened = fresh_socket();
    set_option(&opened, abi::FIEF_OPEN_BINDING, &abi::FIEF_RIGHTS_ALL.to_ne_bytes()).unwrap();
    Container::from_fd(opened).unwrap().info().unwrap().rights
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
                assert_eq!(opened_with_all_rights(), Rights::USE | Rights::READ);
            }
            fief::unbind(&usable).unwrap();
            assert_eq!(fief::current(&usable).unwrap(), home);
            assert!(!opened_with_all_rights().contains(Rights::ADMINISTER), "home is the policy's");
            let short = set_option(fresh_socket(), abi::FIEF_OPEN_BINDING, &[15]);
            assert_eq!(short, Err(Errno::EINVAL));
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
fn what_was_staged_gives_no_rights_back() {
    in_unit("what_was_staged_gives_no_rights_back", || {
        let again = || set_option(fresh_socket(), abi::FIEF_DUP, &[]);
        let container = Container::create().unwrap();
        let copy = container.duplicate().unwrap();
        assert_eq!(again(), Err(Errno::EINVAL), "a duplicate takes what was staged");
        set_option(&container, abi::FIEF_STAGE, &[]).unwrap();
        container.keep_rights(Rights::READ).unwrap();
        copy.keep_rights(Rights::READ).unwrap();
        assert_eq!(again(), Err(Errno::EINVAL), "nor does it outlive the rights");
    });
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
                unshare(CloneFlags::CLONE_NEWUSER).unwrap();
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
    // outside: what a body prints is seen only if it fails
    if !require_if("io_uring", Ring::new().is_some(), false) {
        return;
    }
    in_unit("a_worker_of_io_uring_does_its_creators_work", || {
        let mut ring = Ring::new().expect("there was one a moment ago");
        let container = Container::create().unwrap();
        let other = Container::create().unwrap();
        let mut file = tempfile::tempfile().unwrap();
        {
            let _bound = container.bind().unwrap();
            assert_eq!(ring.write(file.as_fd(), &[7; 4096]), 4096);
            let threads = || container.info().unwrap().threads;
            // a thread counts once it leaves its CPU
            wait_until(SOON, || threads() >= 2)
                .unwrap_or_else(|_| panic!("its worker is not bound to it: {}", threads()));
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
        all_end();
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
