// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Containers as file descriptors: their life, rights and tree, as an application sees them.

use std::mem::offset_of;
use std::net::TcpListener;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::time::Duration;

use fief::{Container, ErrorKind, Rights, State};
use fief_bpf::abi;
use fief_testkit::wait_until;
use fief_tests_netns::{SOON, get_option, in_unit, in_unit_with, record, set_option, spin};
use nix::errno::Errno;
use nix::sys::socket::{AddressFamily, SockFlag, SockType, socket};
use nix::time::{ClockId, clock_gettime};

fn thread_clock() -> u64 {
    let now = clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID).unwrap();
    now.tv_sec() as u64 * 1_000_000_000 + now.tv_nsec() as u64
}

#[test]
fn charges_a_thread_to_the_container_it_is_bound_to() {
    in_unit("charges_a_thread_to_the_container_it_is_bound_to", || {
        let busy = Container::create().unwrap();
        let quiet = Container::create().unwrap();
        let own = {
            let _bound = busy.bind().unwrap();
            let before = thread_clock();
            spin(Duration::from_millis(50));
            thread_clock() - before
        };
        spin(Duration::from_millis(20));
        let used = busy.usage().unwrap().thread_ns;
        // the thread's own clock has softirqs on top of it, the container has not
        assert!(used < own + own / 10 + 1_000_000 && used >= 45_000_000, "{used} of {own}");
        assert_eq!(quiet.usage().unwrap().cpu_ns(), 0);
    });
}

#[test]
fn a_guard_restores_what_was_bound_before() {
    in_unit("a_guard_restores_what_was_bound_before", || {
        let outer = Container::create().unwrap();
        let home = fief::current(&outer).unwrap();
        let outside = outer.bind().unwrap();
        let inner = {
            let inner = Container::create();
            // the guard's binding carries the rights of `outer`
            inner.unwrap()
        };
        let before = fief::current(&outer).unwrap();
        {
            let _inside = inner.bind().unwrap();
            assert_ne!(fief::current(&outer).unwrap(), before);
        }
        assert_eq!(fief::current(&outer).unwrap(), before);
        drop(outside);
        assert_eq!(fief::current(&outer).unwrap(), home);
    });
}

#[test]
fn an_open_stint_is_read_without_a_context_switch() {
    in_unit("an_open_stint_is_read_without_a_context_switch", || {
        let hog = Container::create().unwrap();
        let _bound = hog.bind().unwrap();
        let before = hog.usage().unwrap().cpu_ns();
        spin(Duration::from_millis(3));
        let after = hog.usage().unwrap().cpu_ns();
        assert!(after >= before + 1_000_000, "{before} {after}");
    });
}

#[test]
fn a_container_ends_with_its_last_descriptor() {
    in_unit_with(
        "a_container_ends_with_its_last_descriptor",
        || {
            for _ in 0..1000 {
                drop(Container::create().unwrap());
            }
        },
        |installation| {
            let is_empty = || {
                let snapshot = installation.fief().snapshot().unwrap();
                snapshot.containers.iter().all(|c| !c.path.contains('#'))
            };
            wait_until(SOON, is_empty).unwrap();
        },
    );
}

#[test]
fn a_binding_keeps_a_container_alive_after_its_last_close() {
    in_unit("a_binding_keeps_a_container_alive_after_its_last_close", || {
        let watch = Container::create().unwrap();
        let kept = Container::create().unwrap();
        kept.bind_thread().unwrap();
        let bound = fief::current(&watch).unwrap();
        drop(kept);
        assert_eq!(fief::current(&watch).unwrap(), bound);
        let again = fief::open_current().unwrap();
        let info = again.info().unwrap();
        assert_eq!((info.id, info.generation, info.state), (bound.0, bound.1, State::Alive));
    });
}

#[test]
fn children_of_an_ended_parent_have_no_parent() {
    in_unit("children_of_an_ended_parent_have_no_parent", || {
        let parent = Container::create().unwrap();
        let child = parent.child().unwrap();
        assert_eq!(child.info().unwrap().parent, Some(parent.info().unwrap().id));
        drop(parent);
        let info = child.info().unwrap();
        assert_eq!((info.parent, info.state), (None, State::Orphan));
    });
}

#[test]
fn rights_can_be_dropped_and_do_not_come_back() {
    in_unit("rights_can_be_dropped_and_do_not_come_back", || {
        let container = Container::create().unwrap();
        container.keep_rights(Rights::USE | Rights::READ).unwrap();
        assert_eq!(container.set_weight(7).unwrap_err().kind(), ErrorKind::Denied);
        container.keep_rights(Rights::ALL).unwrap();
        assert_eq!(container.set_weight(7).unwrap_err().kind(), ErrorKind::Denied);
        assert_eq!(container.child().unwrap_err().kind(), ErrorKind::Denied);
        let copy = container.duplicate().unwrap();
        assert_eq!(copy.info().unwrap().rights, Rights::USE | Rights::READ);
    });
}

#[test]
fn shares_of_children_fit_into_the_parents() {
    in_unit("shares_of_children_fit_into_the_parents", || {
        let parent = Container::create().unwrap();
        let child = parent.child().unwrap();
        // the unit has reserved nothing, so it has nothing to grant
        assert_eq!(parent.set_share(100_000).unwrap_err().kind(), ErrorKind::Conflict);
        assert_eq!(child.set_share(1).unwrap_err().kind(), ErrorKind::Conflict);
        assert_eq!(parent.set_weight(0).unwrap_err().kind(), ErrorKind::Invalid);
        parent.set_weight(10_000).unwrap();
        assert_eq!(parent.attributes().unwrap().weight, 10_000);
        assert_eq!(parent.set_net_weight(10_001).unwrap_err().kind(), ErrorKind::Invalid);
        parent.set_net_weight(7).unwrap();
        parent.set_net_max(Some(1_000_000)).unwrap();
        assert_eq!(
            (parent.attributes().unwrap().net_weight, parent.attributes().unwrap().net_max),
            (7, Some(1_000_000))
        );
        parent.set_net_max(None).unwrap();
        assert_eq!(parent.attributes().unwrap().net_max, None);
    });
}

#[test]
fn parents_do_not_form_a_loop() {
    in_unit("parents_do_not_form_a_loop", || {
        let top = Container::create().unwrap();
        let below = top.child().unwrap();
        let _bound = below.bind().unwrap();
        assert_eq!(top.adopt().unwrap_err().kind(), ErrorKind::Conflict);
        assert_eq!(below.adopt().unwrap_err().kind(), ErrorKind::Conflict);
    });
}

#[test]
fn a_descriptor_takes_no_address() {
    in_unit("a_descriptor_takes_no_address", || {
        let container = Container::create().unwrap();
        let socket = std::net::UdpSocket::from(OwnedFd::from(container));
        assert!(socket.connect("127.0.0.1:9").is_err());
        assert!(socket.send_to(b"x", "127.0.0.1:9").is_err());
        let name = nix::sys::socket::SockaddrIn::new(127, 0, 0, 1, 0);
        assert!(nix::sys::socket::bind(socket.as_raw_fd(), &name).is_err());
    });
}

#[test]
fn only_a_fresh_datagram_socket_becomes_a_container() {
    in_unit("only_a_fresh_datagram_socket_becomes_a_container", || {
        let bound = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
        assert_eq!(Container::from_fd(bound.into()).unwrap_err().kind(), ErrorKind::NotAContainer);
        let stream = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        assert_eq!(Container::from_fd(stream.into()).unwrap_err().kind(), ErrorKind::NotAContainer);
    });
}

#[test]
fn a_caller_of_another_version_gets_the_words_of_a_record_that_it_has_room_for() {
    in_unit("a_caller_of_another_version_gets_the_words_of_a_record_that_it_has_room_for", || {
        let container = Container::create().unwrap();
        container.set_weight(70).unwrap();
        container.set_period(Duration::from_millis(5), Duration::from_millis(1)).unwrap();
        let (whole, first) = (size_of::<abi::fief_attributes>(), offset_of!(abi::fief_attributes, named));
        let all = get_option(&container, abi::FIEF_ATTRIBUTES, whole).unwrap();
        let words = [(first, first), (first + 7, first), (first + 8, first + 8), (whole - 1, whole - 8), (4096, whole)];
        for (room, told) in words {
            let said = get_option(&container, abi::FIEF_ATTRIBUTES, room).unwrap();
            assert_eq!(said, all[..told], "{room}");
        }
        // the others have had no other version yet
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let container = container.as_fd();
        for (of, option, first) in [
            (container, abi::FIEF_ATTRIBUTES, first),
            (container, abi::FIEF_USAGE, size_of::<abi::fief_usage>()),
            (container, abi::FIEF_INFO, size_of::<abi::fief_info>()),
            (listener.as_fd(), abi::FIEF_DROPS, size_of::<abi::fief_drops>()),
        ] {
            let of_room = |room: usize| get_option(of, option, room).map(|said| said.len());
            assert_eq!([first - 1, first].map(of_room), [Err(Errno::EINVAL), Ok(first)], "{option}");
        }
    });
}

#[test]
fn a_renewed_descriptor_is_a_new_container_and_ends_the_former() {
    in_unit("a_renewed_descriptor_is_a_new_container_and_ends_the_former", || {
        let mut request = Container::create().unwrap();
        let first = request.info().unwrap();
        {
            let _bound = request.bind().unwrap();
            spin(Duration::from_millis(2));
        }
        assert!(request.usage().unwrap().cpu_ns() > 0);
        request.renew().unwrap();
        let second = request.info().unwrap();
        assert_ne!((first.id, first.generation), (second.id, second.generation));
        assert_eq!((request.usage().unwrap().cpu_ns(), second.parent), (0, first.parent));
        wait_until(SOON, || record(first.id).is_none_or(|row| row.generation != first.generation)).unwrap();
        request.keep_rights(Rights::USE | Rights::READ).unwrap();
        assert_eq!(request.renew().unwrap_err().kind(), ErrorKind::Denied);
    });
}

/// The door knows nothing of it, so that it may listen for a class, or be registered as it begins to listen.
#[test]
fn a_socket_that_is_taken_back_before_it_listens_is_as_a_new_one() {
    in_unit("a_socket_that_is_taken_back_before_it_listens_is_as_a_new_one", || {
        let stream = socket(AddressFamily::Inet, SockType::Stream, SockFlag::empty(), None).unwrap();
        let container = Container::create().unwrap();
        {
            let _bound = container.bind().unwrap();
            fief::assign(&stream).unwrap();
        }
        assert_eq!(set_option(&stream, abi::FIEF_CLASS, &0_u32.to_ne_bytes()), Err(Errno::EBUSY));
        fief::unassign(&stream).unwrap();
        assert_eq!(set_option(&stream, abi::FIEF_CLASS, &0_u32.to_ne_bytes()), Ok(()));
    });
}
