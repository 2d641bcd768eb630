// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The part `application`: a program without privilege, inside a managed cgroup, that uses containers by descriptors.

use std::os::fd::AsFd;

use fief::{Container, ErrorKind, Options, Ring, State};
use nix::unistd::{Uid, gettid, setuid};

use crate::report::{Found, Report, same_time, same_time_and_start, text};
use crate::work::{SPELL, in_a_child, spin};

/// All checks, as a user.
pub fn check(report: &mut Report) {
    report.check("an application gives up root", || {
        setuid(Uid::from_raw(1000)).map_err(text)?;
        Ok(format!("user {}", Uid::current()))
    });
    report.check("a container is made, named and read", makes);
    report.check("the work of a bound thread is its container's", binds);
    report.check("the work of an unbound thread is not", leaves);
    report.check("a child inherits the binding", inherits);
    report.check("a ring is refused to who is not the operator", has_no_ring);
    report.check("a descriptor passes to another program", passes);
    report.check("another thread is bound, or the kernel's refusal told", binds_another);
    report.check("a socket belongs to a container", assigns);
    report.check("the last close ends the container", ends);
}

fn makes() -> Found {
    let made = Container::create().map_err(text)?;
    made.set_name("made").map_err(text)?;
    // a thread that follows sockets has been waiting for its first container since the start of the program
    drop(made.bind().map_err(text)?);
    let info = made.info().map_err(text)?;
    if info.name == "made" && info.state == State::Alive && info.handles == 1 {
        Ok(format!("slot {}", info.id))
    } else {
        Err(format!("{info:?}"))
    }
}

fn binds() -> Found {
    let made = Container::create().map_err(text)?;
    let bound = made.bind().map_err(text)?;
    let worked = spin(SPELL);
    drop(bound);
    same_time(made.usage().map_err(text)?.thread_ns, worked)
}

fn leaves() -> Found {
    let made = Container::create().map_err(text)?;
    drop(made.bind().map_err(text)?);
    let before = made.usage().map_err(text)?.thread_ns;
    spin(SPELL);
    let after = made.usage().map_err(text)?.thread_ns;
    if after == before { Ok(format!("{after} ns")) } else { Err(format!("{before} ns became {after} ns")) }
}

fn has_no_ring() -> Found {
    match Ring::open() {
        Err(e) if e.kind() == ErrorKind::Denied => Ok(e.to_string()),
        other => Err(format!("{other:?}")),
    }
}

fn inherits() -> Found {
    let made = Container::create().map_err(text)?;
    let bound = made.bind().map_err(text)?;
    let before = made.usage().map_err(text)?.thread_ns;
    let worked = in_a_child(None)?;
    drop(bound);
    same_time_and_start(made.usage().map_err(text)?.thread_ns - before, worked)
}

fn passes() -> Found {
    let made = Container::create().map_err(text)?;
    let worked = in_a_child(Some(made.as_fd().try_clone_to_owned().map_err(text)?))?;
    same_time_and_start(made.usage().map_err(text)?.thread_ns, worked)
}

fn binds_another() -> Found {
    let made = Container::create().map_err(text)?;
    let me = gettid().as_raw();
    let asked = std::thread::scope(|scope| scope.spawn(|| made.bind_other(me)).join().expect("it does not panic"));
    match asked {
        Ok(()) => {
            let worked = spin(SPELL);
            let charged = made.usage().map_err(text)?.thread_ns;
            fief::unbind(&made).map_err(text)?;
            same_time(charged, worked)
        }
        Err(e) if e.kind() == ErrorKind::NoThread => Ok(format!("not on this kernel: {e}")),
        Err(e) => Err(e.to_string()),
    }
}

fn assigns() -> Found {
    let made = Container::create().map_err(text)?;
    let receiver = std::net::UdpSocket::bind("127.0.0.1:0").map_err(text)?;
    let sender = std::net::UdpSocket::bind("127.0.0.1:0").map_err(text)?;
    made.assign(&receiver).map_err(text)?;
    for _ in 0..10 {
        sender.send_to(b"for the container", receiver.local_addr().map_err(text)?).map_err(text)?;
    }
    let usage = made.usage().map_err(text)?;
    if usage.packets_in == 10 && usage.receive_ns > 0 {
        Ok(format!("10 packets, {} ns of receive work", usage.receive_ns))
    } else {
        Err(format!("{usage:?}"))
    }
}

fn ends() -> Found {
    let parent = Container::create().map_err(text)?;
    let bound = parent.bind().map_err(text)?;
    let child = Options::new().pass_up(true).create().map_err(text)?;
    let second = child.duplicate().map_err(text)?;
    drop(bound);
    child.bind_thread().map_err(text)?;
    let worked = spin(SPELL);
    fief::unbind(&child).map_err(text)?;
    drop(child);
    let own = second.usage().map_err(text)?.thread_ns;
    drop(second);
    let children = parent.info().map_err(text)?.children;
    let inherited = parent.usage().map_err(text)?.thread_ns;
    if children == 0 && inherited >= own {
        same_time(inherited, worked)
    } else {
        Err(format!("{children} children; {inherited} of {own} ns"))
    }
}
