// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A client that sends two versions of the same bytes: one is ruled, the other is for the server. Whatever becomes of the
//! packets, the server sees what was ruled.

#[path = "later/client.rs"]
mod client;

use std::time::Duration;

use client::Flaw;
use fief_bpf::abi;
use fief_testkit::segment::{ACK, FIN};
use fief_testkit::{Family, RawClients, RawConnection, digest, wait_until};
use fief_tests_netns::front::{Door, ready};
use fief_tests_netns::refusing;
use fief_tests_netns::rig::Rig;
use fief_tests_netns::{NEVER_OVERLOADED, SOON, one_installation, with_rival};

const POLICY: &str = refusing!("/secret/*", "reset");

/// The kernel makes connections by itself: the listener is never overloaded, however busy the machine is.
fn below() -> String {
    let admits = "admit-from = \"overloaded\"\n[[listener.plain.client]]";
    NEVER_OVERLOADED.to_owned() + &POLICY.replace("[[listener.plain.client]]", admits)
}

const PUBLIC: &[u8] = b"GET /public/10 HTTP/1.1\r\nX: 1\r\n\r\n";
const SECRET: &[u8] = b"GET /secret/10 HTTP/1.1\r\nX: 1\r\n\r\n";
const HEARD: Duration = Duration::from_millis(20);

fn assert_no_secret(rig: &Rig, what: &str) {
    let seen = rig.server.seen();
    assert!(!seen.iter().any(|seen| seen.line.contains("secret")), "{what}: {seen:?}, {:?}", rig.verdicts());
}

fn send(rig: &Rig, connection: &RawConnection, flags: u8, at: usize, bytes: &[u8]) {
    rig.clients.send(&connection.segment(flags, at as u32, bytes)).unwrap();
}

fn acknowledged(connection: &RawConnection) -> usize {
    connection.acknowledged.wrapping_sub(connection.first).wrapping_sub(1) as usize
}

/// Sends again what the server has not acknowledged, until it has all.
fn insist(rig: &Rig, connection: &mut RawConnection, stream: &[u8]) {
    let done = wait_until(SOON, || {
        let at = acknowledged(connection);
        if at < stream.len() {
            send(rig, connection, ACK, at, &stream[at..stream.len().min(at + 1300)]);
        }
        let _ = connection.hear(HEARD);
        at >= stream.len()
    });
    assert!(done.is_ok(), "{} of {}: {:?}", acknowledged(connection), stream.len(), rig.verdicts());
}

/// A head of `length` bytes that harmlessly ends.
fn head(length: usize) -> Vec<u8> {
    let begin = "GET /public/10 HTTP/1.1\r\nHost: server\r\nCookie: ";
    let filler = (0..length - begin.len() - 4).map(|n| b'a' + (n * 7 % 26) as u8);
    begin.bytes().chain(filler).chain(*b"\r\n\r\n").collect()
}

/// As much as a packet can grow to.
const GROWN: usize = abi::FIEF_HEADER_MAX as usize - 512;

#[test]
fn the_end_of_a_long_head_is_what_was_ruled() {
    if !ready() {
        return;
    }
    let _one = one_installation();
    for door in Door::GUARDS {
        let rig = Rig::in_order(door, POLICY);
        for (family, length) in [(Family::V4, 16_380), (Family::V6, 16_380), (Family::V4, GROWN + 60)] {
            let head = head(length);
            let mut other = [b"\r\n\r\n", SECRET].concat();
            other.resize(length - GROWN, b'x');
            // alone, and as a part of a longer segment
            for from in [GROWN, GROWN - 700] {
                let seen = rig.server.seen().len();
                let mut connection = rig.open(family);
                connection.acknowledge().unwrap();
                for at in (0..length).step_by(1300) {
                    send(&rig, &connection, ACK, at, &head[at..length.min(at + 1300)]);
                    let _ = connection.hear(Duration::from_millis(1));
                }
                wait_until(SOON, || {
                    let _ = connection.hear(HEARD);
                    acknowledged(&connection) == GROWN
                })
                .unwrap_or_else(|_| panic!("{door:?}: {}", acknowledged(&connection)));
                let replaced = [&head[from..GROWN], &other].concat();
                for _ in 0..3 {
                    send(&rig, &connection, ACK, from, &replaced);
                    let _ = connection.hear(HEARD);
                }
                assert_no_secret(&rig, &format!("{door:?}, {family:?}, {length}, {from}"));
                assert_eq!(acknowledged(&connection), GROWN, "{door:?}");
                // An honest client is served, and a request behind it is ruled.
                let all = [&head[..], PUBLIC].concat();
                insist(&rig, &mut connection, &all);
                wait_until(SOON, || rig.server.seen().len() >= seen + 2).unwrap();
                let served: Vec<_> = rig.server.seen()[seen..].iter().map(|seen| seen.digest).collect();
                assert_eq!(served, [digest(&head), digest(PUBLIC)], "{door:?}");
                send(&rig, &connection, ACK, all.len(), SECRET);
                let _ = connection.hear(HEARD);
                assert_no_secret(&rig, &format!("{door:?}, behind it"));
            }
        }
    }
}

/// The client's side does not end within a head that was ruled as a whole.
#[test]
fn a_long_head_does_not_end_before_its_end() {
    if !ready() {
        return;
    }
    let _one = one_installation();
    for door in Door::GUARDS {
        let rig = Rig::in_order(door, POLICY);
        let head = head(16_380);
        for part in [0, 20] {
            let mut connection = rig.open(Family::V4);
            connection.acknowledge().unwrap();
            for at in (0..head.len()).step_by(1300) {
                send(&rig, &connection, ACK, at, &head[at..head.len().min(at + 1300)]);
            }
            wait_until(SOON, || {
                let _ = connection.hear(HEARD);
                acknowledged(&connection) == GROWN
            })
            .unwrap();
            send(&rig, &connection, ACK | FIN, GROWN, &head[GROWN..GROWN + part]);
            let _ = connection.hear(HEARD);
            assert!(acknowledged(&connection) <= GROWN, "{door:?}, {part}: the end is taken");
        }
    }
}

/// The door rules a packet that TCP drops, and the client sends another request in its place, from its second piece on.
#[test]
fn a_verdict_upon_what_tcp_dropped_lets_nothing_pass() {
    if !ready() {
        return;
    }
    let _one = one_installation();
    // A ClientHello is followed by nothing that is ruled, where no rule is about names.
    let hello = [&[22, 3, 1, 0, 45, 1, 0, 0, 41, 3, 3][..], &[9; 32], &[0, 0, 2, 0x13, 1, 1, 0]].concat();
    for door in Door::GUARDS {
        let rig = Rig::in_order(door, &below());
        for family in [Family::V4, Family::V6] {
            for (ruled, flaw) in [(PUBLIC, Flaw::Checksum), (PUBLIC, Flaw::Timestamp), (&hello, Flaw::Checksum)] {
                if door == Door::Kernel && matches!(flaw, Flaw::Timestamp) {
                    continue; // to a cookie it is the first timestamp
                }
                let mut connection = rig.open(family);
                rig.clients.send_packet(&[], &flaw.packet(connection.segment(ACK, 0, ruled))).unwrap();
                connection.acknowledge().unwrap();
                wait_until(SOON, || {
                    connection.acknowledge().unwrap();
                    rig.front.sockets(connection.client.port()).iter().any(|state| state == "01")
                })
                .unwrap_or_else(|_| {
                    let sockets = rig.front.sockets(connection.client.port());
                    panic!("{door:?}, {family:?}, {flaw:?}: {sockets:?}, {:?}", rig.verdicts())
                });
                let _ = connection.hear(HEARD);
                // until the first bytes that passed the door keep no others back
                std::thread::sleep(Duration::from_millis(160));
                send(&rig, &connection, ACK, 5, &SECRET[5..]);
                send(&rig, &connection, ACK, 0, &SECRET[..5]);
                let _ = connection.hear(HEARD);
                send(&rig, &connection, ACK, 0, &SECRET[..5]);
                let _ = connection.hear(HEARD);
                assert_no_secret(&rig, &format!("{door:?}, {family:?}, {flaw:?}"));
                assert!(acknowledged(&connection) <= 5, "{door:?}, {family:?}, {flaw:?}");
                // who sends something harmless is served
                let mut connection = rig.open(family);
                rig.clients.send_packet(&[], &flaw.packet(connection.segment(ACK, 0, ruled))).unwrap();
                connection.acknowledge().unwrap();
                insist(&rig, &mut connection, PUBLIC);
            }
        }
    }
}

#[test]
fn an_end_that_comes_before_its_bytes_ends_no_half_head() {
    if !ready() {
        return;
    }
    let _one = one_installation();
    let half = &SECRET[..25];
    // this end may be that of the handshake too
    for (door, is_made) in Door::GUARDS.into_iter().flat_map(|door| [(door, true), (door, false)]) {
        let rig = Rig::in_order(door, &below());
        let mut connection = rig.open(Family::V4);
        if is_made {
            wait_until(SOON, || {
                connection.acknowledge().unwrap();
                rig.front.sockets(connection.client.port()).iter().any(|state| state == "01")
            })
            .unwrap();
        }
        send(&rig, &connection, ACK | FIN, half.len(), &[]);
        send(&rig, &connection, ACK, 0, half);
        let _ = connection.hear(HEARD);
        send(&rig, &connection, ACK, 0, half);
        let _ = connection.hear(HEARD);
        assert!(acknowledged(&connection) <= half.len(), "{door:?}, {is_made}: the end is taken");
    }
}

/// Two segments for one place, on two CPUs at once, again and again. `first`: they begin the connection.
fn race(rig: &Rig, cpus: &[usize], first: bool, [harmless, other]: [&[u8]; 2], end: &[u8], turns: usize) {
    let wire = RawClients::new(&rig.front.topology).unwrap();
    with_rival(cpus, wire, turns, std::hint::spin_loop, |rival| {
        for turn in 1..=turns {
            let mut connection = rig.open(Family::V4);
            let mut at = 0;
            if !first {
                connection.acknowledge().unwrap();
                send(rig, &connection, ACK, 0, PUBLIC);
                at = PUBLIC.len();
                wait_until(SOON, || {
                    let _ = connection.hear(Duration::from_millis(1));
                    acknowledged(&connection) >= at
                })
                .unwrap();
            }
            let own = connection.segment(ACK, at as u32, harmless).packet();
            let other_packet = connection.segment(ACK, at as u32, other).packet();
            rival.race(turn, other_packet, turn * 37 % 2000, || rig.clients.send_packet(&[], &own).unwrap());
            let _ = connection.hear(Duration::from_millis(2));
            send(rig, &connection, ACK, at + other.len(), end);
            let _ = connection.hear(Duration::from_millis(5));
            let seen = rig.server.seen();
            let secret = seen.iter().find(|seen| seen.line.contains("secret"));
            assert!(secret.is_none(), "{:?}, first {first}, turn {turn}: {secret:?}", rig.front.door);
        }
    });
}

#[test]
fn two_cpus_do_not_rule_one_connection_at_once() {
    let cpus = fief_testkit::cpus();
    if !ready() || cpus.len() < 2 {
        return;
    }
    let _one = one_installation();
    let half = &[&SECRET[..SECRET.len() - 7], b"X: 22"].concat()[..];
    assert_eq!(PUBLIC.len(), half.len() + 2);
    let half = &[half, b"33"].concat();
    for door in Door::GUARDS {
        let rig = Rig::in_order(door, POLICY);
        race(&rig, &cpus, false, [PUBLIC, half], b"\r\n\r\n", 150);
    }
}

/// One of them is a whole request, the other a longer one that has a request in its body.
#[test]
fn two_begins_of_one_connection_do_not_pass_at_once() {
    let cpus = fief_testkit::cpus();
    if !ready() || cpus.len() < 2 {
        return;
    }
    let _one = one_installation();
    let begin =
        format!("POST /public/10 HTTP/1.1\r\nA: {}\r\nContent-Length: {}\r\n\r\n", "a".repeat(60), 2 * SECRET.len());
    let harmless = head(begin.len());
    let other = [begin.as_bytes(), SECRET].concat();
    for door in Door::GUARDS {
        for policy in [POLICY.to_owned(), below()] {
            let rig = Rig::in_order(door, &policy);
            race(&rig, &cpus, true, [&harmless, &other], SECRET, 150);
        }
    }
}
