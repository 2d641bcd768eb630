// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Idle connections at a listener with a queue: they hold no place, and one that the server ends while its later request waits leaves
//! its client in no silence.

use std::io::{ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::Stdio;

use fief_testkit::{Family, Feature, Nginx, NginxConfig, require, wait_until};
use fief_tests_netns::front::{Door, Front, plain, ready};
use fief_tests_netns::queued::{Queued, answer_on, ask_on, lasting, low};
use fief_tests_netns::{SOON, connect_from, one_installation};
use nix::sys::resource::{Resource, getrlimit, setrlimit};

/// Those that were served once.
const KEPT: u8 = 100;

/// How many clients there are: each needs a descriptor.
fn connections() -> usize {
    let (_, most) = getrlimit(Resource::RLIMIT_NOFILE).unwrap();
    setrlimit(Resource::RLIMIT_NOFILE, most, most).unwrap();
    usize::try_from(most.saturating_sub(1000)).unwrap_or(usize::MAX).min(10_000)
}

#[test]
fn thousands_of_idle_connections_hold_no_place() {
    if !ready() {
        return;
    }
    for door in Door::GUARDS {
        let rig = Queued::new(door, &lasting());
        rig.let_go(KEPT.into());
        let served = |n| {
            let mut stream = rig.connect(low(n));
            ask_on(&mut stream, "/before");
            answer_on(&mut stream);
            stream
        };
        let mut kept: Vec<_> = (1..=KEPT).map(served).collect();
        let connect = |_| TcpStream::connect(plain(Family::V4)).unwrap();
        let others = connections().saturating_sub(KEPT.into()).max(2);
        let mut silent: Vec<_> = rig.front.topology.clients.run(|| (0..others).map(connect).collect()).unwrap();
        rig.wait_for_peace();
        let of_class = || rig.queue().class[1];
        let (entered, held) = (of_class().entered, of_class().held);
        let mut fresh = rig.connect(low(1));
        let (first, last) = (silent.remove(0), silent.pop().unwrap());
        let ask = |stream: &mut TcpStream| {
            rig.let_go(1);
            ask_on(stream, "/asks");
            assert!(answer_on(stream).starts_with("HTTP/1.1 200"), "{door:?}");
        };
        let mut asks = [first, last, kept.remove(0)];
        asks.iter_mut().chain([&mut fresh]).for_each(ask);
        assert_eq!((of_class().entered, of_class().held), (entered + 4, held), "{door:?}: one had to wait");
        rig.wait_for_peace();
    }
}

/// Requests below /free wait for nobody.
const RULE: &str = "[[listener.plain.request]]\npath = \"/free/*\"\nqueue = false\n";

/// nginx with a timer of its own for idle connections, that asks for /slow elsewhere.
fn nginx(front: &Front) -> (Nginx, TcpListener) {
    let behind = front.topology.server.run(|| TcpListener::bind("127.0.0.1:81").unwrap()).unwrap();
    behind.set_nonblocking(true).unwrap();
    let words =
        "keepalive_timeout 4s;\nlocation /free { return 204; }\nlocation /slow { proxy_pass http://127.0.0.1:81; }";
    let config = NginxConfig::new(80, 1, words).unwrap();
    let mut command = front.server_command("nginx");
    command.args(config.arguments()).stderr(Stdio::null());
    (Nginx::start_command(&front.topology.server, command, config).unwrap(), behind)
}

#[test]
fn who_waits_on_a_connection_that_was_idle_for_too_long_is_not_left_in_silence() {
    if !(ready() && require(Feature::Nginx)) {
        return;
    }
    let _one = one_installation();
    for door in Door::GUARDS {
        let front = Front::new(door, &format!("{}{RULE}", lasting()));
        let (_nginx, behind) = nginx(&front);
        let connect = |n| connect_from(&front.topology.clients, (low(n), 0).into(), plain(Family::V4)).unwrap();
        let left = || (front.queue().waiting, front.queue().busy, front.queue().kept);
        let mut slow = connect(1);
        ask_on(&mut slow, "/slow");
        let mut asked = None;
        wait_until(SOON, || {
            asked = behind.accept().ok();
            asked.is_some()
        })
        .unwrap();
        let mut idle = connect(2);
        ask_on(&mut idle, "/free/1");
        assert!(answer_on(&mut idle).starts_with("HTTP/1.1 204"), "{door:?}");
        ask_on(&mut idle, "/1k");
        wait_until(SOON, || front.queue().waiting == 1).unwrap_or_else(|_| panic!("{door:?}: {:?}", left()));
        // it is ended without an answer
        idle.set_read_timeout(Some(SOON)).unwrap();
        let mut byte = [0];
        let end = idle.read(&mut byte).map_err(|error| error.kind());
        assert!(matches!(end, Ok(0) | Err(ErrorKind::ConnectionReset)), "{door:?}: {end:?}");
        // and whoever goes on with it is reset
        let reset = wait_until(SOON, || idle.write_all(b"\r\n").is_err());
        assert!(reset.is_ok(), "{door:?}");
        // nobody else has to do with that
        let (mut answers, _) = asked.expect("nginx has asked");
        answers.set_nonblocking(false).unwrap();
        assert!(answers.read(&mut [0; 4096]).unwrap() > 0);
        answers.write_all(b"HTTP/1.0 200 OK\r\nContent-Length: 0\r\n\r\n").unwrap();
        drop(answers);
        assert!(answer_on(&mut slow).starts_with("HTTP/1.1 200"), "{door:?}");
        let mut fresh = connect(3);
        ask_on(&mut fresh, "/1k");
        assert!(answer_on(&mut fresh).starts_with("HTTP/1.1 200"), "{door:?}");
        wait_until(SOON, || left() == (0, 0, 0)).unwrap_or_else(|_| panic!("{door:?}: {:?}", left()));
    }
}
