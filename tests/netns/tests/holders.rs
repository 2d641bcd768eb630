// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Who holds a container: each copy of a descriptor and each labelled socket, in whatever process, and until it ends by
//! whatever end.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::net::{UnixDatagram, UnixStream};
use std::process::{Command, Stdio};
use std::time::Duration;

use fief::Container;
use fief_control::Fief;
use fief_testkit::wait_until;
use fief_tests_netns::{
    Door, Installation, SOON, Setup, all_end, fork, in_unit, in_unit_of, inside, receive, record, role, send, spin,
    unnamed,
};
use nix::fcntl::{FcntlArg, FdFlag, fcntl};
use nix::sys::socket::{AddressFamily, SockFlag, SockType, SockaddrIn, bind, connect, getsockname, socket};

#[test]
fn a_forked_child_holds_what_it_inherited_until_it_is_killed() {
    in_unit("a_forked_child_holds_what_it_inherited_until_it_is_killed", || {
        let container = Container::create().unwrap();
        let id = container.info().unwrap().id;
        let child = fork(|| {
            nix::unistd::pause();
        });
        drop(container);
        assert_eq!(record(id).unwrap().state, fief::abi::FIEF_ALIVE);
        child.kill();
        all_end();
    });
}

#[test]
fn an_exec_keeps_what_is_not_closed_on_exec() {
    in_unit("an_exec_keeps_what_is_not_closed_on_exec", || {
        let closed = Container::create().unwrap();
        let kept = Container::create().unwrap();
        fcntl(kept.as_fd(), FcntlArg::F_SETFD(FdFlag::empty())).unwrap();
        let mut child = Command::new("cat").stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let (closed_id, kept_id) = (closed.info().unwrap().id, kept.info().unwrap().id);
        drop(closed);
        drop(kept);
        wait_until(SOON, || record(closed_id).is_none()).unwrap();
        assert_eq!(record(kept_id).unwrap().state, fief::abi::FIEF_ALIVE);
        child.kill().unwrap();
        child.wait().unwrap();
        all_end();
    });
}

#[test]
fn every_duplicate_must_be_closed() {
    in_unit("every_duplicate_must_be_closed", || {
        let container = Container::create().unwrap();
        let id = container.info().unwrap().id;
        let same_file = container.as_fd().try_clone_to_owned().unwrap();
        let second = container.duplicate().unwrap();
        drop(container);
        assert!(record(id).is_some());
        drop(same_file);
        assert!(record(id).is_some());
        assert_eq!(second.info().unwrap().handles, 1);
        drop(second);
        all_end();
    });
}

#[test]
fn a_passed_descriptor_serves_and_holds() {
    in_unit("a_passed_descriptor_serves_and_holds", || {
        let (near, far) = UnixStream::pair().unwrap();
        let done = Door::new();
        let child = fork(|| {
            let container = Container::from_fd(receive(&far)).unwrap();
            {
                let _bound = container.bind().unwrap();
                spin(Duration::from_millis(20));
            }
            assert!(container.usage().unwrap().cpu_ns() > 10_000_000);
            done.pass();
        });
        let container = Container::create().unwrap();
        let id = container.info().unwrap().id;
        send(&near, &container);
        drop(container);
        assert!(record(id).is_some());
        done.open();
        child.finish();
        all_end();
    });
}

#[test]
fn a_descriptor_in_flight_holds_until_both_ends_are_closed() {
    in_unit("a_descriptor_in_flight_holds_until_both_ends_are_closed", || {
        let (near, far) = UnixDatagram::pair().unwrap();
        let container = Container::create().unwrap();
        let id = container.info().unwrap().id;
        send(&near, &container);
        drop(container);
        drop(near);
        assert!(record(id).is_some());
        drop(far);
        all_end();
    });
}

#[test]
fn a_descriptor_in_a_circle_of_sockets_is_found() {
    in_unit("a_descriptor_in_a_circle_of_sockets_is_found", || {
        let (near, far) = UnixStream::pair().unwrap();
        let container = Container::create().unwrap();
        send(&near, &container);
        send(&near, &far);
        drop((container, near, far));
        // the kernel looks for circles when a socket is passed or closed
        wait_until(SOON, || {
            let (near, far) = UnixStream::pair().unwrap();
            send(&near, &far);
            drop((near, far));
            unnamed() == 0
        })
        .unwrap();
    });
}

#[test]
fn a_labelled_socket_holds_its_container() {
    in_unit("a_labelled_socket_holds_its_container", || {
        let socket = TcpListener::bind("127.0.0.1:0").unwrap();
        let container = Container::create().unwrap();
        let id = container.info().unwrap().id;
        container.assign(&socket).unwrap();
        drop(container);
        assert_eq!(record(id).unwrap().sockets, 1);
        drop(socket);
        all_end();
    });
}

/// The kernel tells the end of its handshake as that of a socket that it accepted.
#[test]
fn a_labelled_socket_that_connects_to_itself_lets_go() {
    in_unit("a_labelled_socket_that_connects_to_itself_lets_go", || {
        let container = Container::create().unwrap();
        let id = container.info().unwrap().id;
        let socket = socket(AddressFamily::Inet, SockType::Stream, SockFlag::SOCK_CLOEXEC, None).unwrap();
        bind(socket.as_raw_fd(), &SockaddrIn::new(127, 0, 0, 1, 0)).unwrap();
        let own: SockaddrIn = getsockname(socket.as_raw_fd()).unwrap();
        container.assign(&socket).unwrap();
        connect(socket.as_raw_fd(), &own).unwrap();
        let mut stream = TcpStream::from(socket);
        stream.write_all(b"x").unwrap();
        stream.read_exact(&mut [0]).unwrap();
        assert_eq!(record(id).unwrap().sockets, 1);
        assert!(container.usage().unwrap().packets_in > 0);
        drop(stream);
        assert_eq!(record(id).unwrap().sockets, 0);
        drop(container);
        all_end();
    });
}

#[test]
fn a_socket_of_multipath_tcp_is_not_labelled() {
    in_unit("a_socket_of_multipath_tcp_is_not_labelled", || {
        let Ok(socket) = fief_tests_netns::multipath_socket(libc::AF_INET) else {
            return; // the kernel has none
        };
        let container = Container::create().unwrap();
        assert_eq!(container.assign(&socket).unwrap_err().kind(), fief::ErrorKind::Invalid);
    });
}

#[test]
fn what_is_left_of_an_ended_container_is_nobody_elses_when_its_slot_is_used_again() {
    let name = "what_is_left_of_an_ended_container_is_nobody_elses_when_its_slot_is_used_again";
    let setup = Setup { containers: 64, follow: true, ..Setup::default() };
    let body = || {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let first = Container::create().unwrap();
        let id = first.info().unwrap().id;
        first.assign(&listener).unwrap();
        let mut client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (mut accepted, _) = listener.accept().unwrap();
        drop(listener);
        drop(first);
        // free slots are used in their order
        let second = std::iter::repeat_with(|| Container::create().unwrap())
            .take(200)
            .find(|other| other.info().unwrap().id == id);
        let second = second.expect("the slot is used again");
        let used = || second.usage().map(|usage| (usage.packets_in, usage.packets_out, usage.thread_ns)).unwrap();
        let before = used();
        for _ in 0..100 {
            client.write_all(b"x").unwrap();
            accepted.read_exact(&mut [0]).unwrap();
            spin(Duration::from_micros(200));
        }
        assert_eq!(used(), before, "the second is charged for the first one's connection");
    };
    in_unit_of(name, &setup, body, |_| ());
}

#[test]
fn a_socket_that_is_never_accepted_is_not_counted_for_ever() {
    in_unit("a_socket_that_is_never_accepted_is_not_counted_for_ever", || {
        let container = Container::create().unwrap();
        let id = container.info().unwrap().id;
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        container.assign(&listener).unwrap();
        let address = listener.local_addr().unwrap();
        let mut connections: Vec<_> = (0..20).map(|_| TcpStream::connect(address).unwrap()).collect();
        let (mut accepted, _) = listener.accept().unwrap();
        // it counts once somebody receives from it
        connections.iter_mut().for_each(|connection| connection.write_all(b"x").unwrap());
        accepted.read_exact(&mut [0]).unwrap();
        assert_eq!(record(id).unwrap().sockets, 2);
        drop(listener);
        drop(connections);
        drop(accepted);
        wait_until(SOON, || record(id).unwrap().sockets == 0)
            .unwrap_or_else(|_| panic!("{} sockets", record(id).unwrap().sockets));
    });
}

#[test]
fn a_descriptor_outlives_the_cgroup_that_it_was_made_in() {
    let name = "a_descriptor_outlives_the_cgroup_that_it_was_made_in";
    let path = |scope: &str| std::env::temp_dir().join(format!("{scope}.socket"));
    match role().as_deref() {
        Some("maker") => {
            let place = path(Fief::from_env().unwrap().pins().scope());
            let mut over = None;
            // once the other one listens
            wait_until(SOON, || {
                over = UnixStream::connect(&place).ok();
                over.is_some()
            })
            .unwrap();
            send(over.unwrap(), Container::create().unwrap());
        }
        Some(_) => {
            let socket = path(Fief::from_env().unwrap().pins().scope());
            let listener = std::os::unix::net::UnixListener::bind(&socket).unwrap();
            let (over, _) = listener.accept().unwrap();
            fs::remove_file(&socket).unwrap();
            let container = Container::from_fd(receive(&over)).unwrap();
            let id = container.info().unwrap().id;
            let other =
                fief_testkit::cgroup2_mount().unwrap().join(format!("ff-{}", std::env::var("FF_OTHER").unwrap()));
            // its maker has ended
            wait_until(SOON, || fs::remove_dir(&other).is_ok()).unwrap();
            {
                let _bound = container.bind().unwrap();
                spin(Duration::from_millis(10));
            }
            assert!(container.usage().unwrap().cpu_ns() > 5_000_000);
            drop(container);
            wait_until(SOON, || record(id).is_none()).unwrap();
        }
        None => {
            assert!(!inside());
            let installation = fief_tests_netns::Installation::with(&Setup::default());
            let other = format!("{}-other", installation.scope().trim_start_matches("ff-"));
            let folder = fief_testkit::cgroup2_mount().unwrap().join(format!("ff-{other}"));
            fs::create_dir(&folder).unwrap();
            installation.manage(&folder, Some("unit"), false);
            let mut keeper = installation.part(Some(&installation.cgroup()), name, "keeper");
            let keeper = fief_testkit::Process::start({
                keeper.env("FF_OTHER", &other);
                keeper
            })
            .unwrap();
            wait_until(SOON, || path(installation.scope()).exists()).unwrap();
            let maker = installation.start(Some(&folder), name, "maker");
            assert!(maker.finish(SOON).unwrap().status.success());
            assert!(keeper.finish(SOON).unwrap().status.success());
        }
    }
}

#[test]
fn managing_again_keeps_what_an_application_assigned() {
    let name = "managing_again_keeps_what_an_application_assigned";
    if role().is_some() {
        let listener = TcpListener::bind("127.0.0.1:8080").unwrap();
        let container = Container::create().unwrap();
        container.set_name("assigned").unwrap();
        container.assign(&listener).unwrap();
        drop(container);
        println!("ready");
        std::io::stdin().read_line(&mut String::new()).unwrap();
        drop(listener);
        return;
    }
    nix::sched::unshare(nix::sched::CloneFlags::CLONE_NEWNET).unwrap();
    fief_testkit::run(std::process::Command::new("ip").args(["link", "set", "lo", "up"])).unwrap();
    let policy = "version = 1\n[container.unit]\n[listener.web]\naddress = \"127.0.0.1:8080\"\nclasses = \"shared\"\n\
        [[listener.web.client]]\nfrom = [\"any\"]\ncontainer = \"unit\"\n";
    let installation = Installation::new(policy, "unit");
    let mut part = installation.part(Some(&installation.cgroup()), name, "server");
    let mut server = part.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let mut told = BufReader::new(server.stdout.take().unwrap()).lines().map(Result::unwrap);
    told.find(|line| line.ends_with("ready")).unwrap();
    installation.manage(&installation.cgroup(), Some("unit"), false);
    let there =
        || installation.fief().snapshot().unwrap().containers.iter().any(|view| view.path.ends_with("assigned"));
    assert!(there());
    drop(server.stdin.take());
    assert!(server.wait().unwrap().success());
    wait_until(SOON, || !there()).unwrap();
}
