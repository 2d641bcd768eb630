// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Packets of unusual shape at a guarded port: dropped and counted, or read; none is let round the door.

#[path = "shapes/rig.rs"]
mod rig;
#[path = "shapes/wrapping.rs"]
mod wrapping;

use fief_testkit::segment::{ACK, PSH, SYN, Segment, URG};
use fief_testkit::{Family, ORDINARY_OPTIONS, PlainServer, RawClients, wait_until};
use fief_tests_netns::front::{Door, plain, ready};
use fief_tests_netns::{SOON, one_installation};
use rig::{Rig, SECRET, client, shapes_of};
use wrapping::{BLIND, FOREIGN, broken, urgent, wrapped};

/// The server keeps the connection.
const KEPT: &[u8] = b"GET /10 HTTP/1.1\r\nHost: server\r\n\r\n";

/// What the kernel does not take either.
const NOT_TAKEN: [&str; 1] = [FOREIGN];

#[test]
fn a_handshake_of_unusual_shape_is_read_or_dropped_and_counted() {
    if !ready() {
        return;
    }
    let _one = one_installation();
    for door in Door::GUARDS {
        let rig = Rig::new(door);
        let mut n = 0;
        for family in [Family::V4, Family::V6] {
            let names = {
                let mut syn = Segment::new(client(family, 0), plain(family), SYN);
                syn.options = ORDINARY_OPTIONS.to_vec();
                wrapped(&syn).into_iter().chain(broken(&syn)).map(|(name, _)| name).collect::<Vec<_>>()
            };
            for (index, name) in names.into_iter().enumerate() {
                n += 1;
                let mut syn = Segment::new(client(family, n), plain(family), SYN);
                syn.options = ORDINARY_OPTIONS.to_vec();
                let packets = wrapped(&syn).into_iter().chain(broken(&syn)).nth(index).unwrap().1;
                let before = rig.front.verdicts();
                rig.send(&packets);
                let marker = (RawClients::address(Family::V4, 999), 3000 + n as u16).into();
                let _marker = rig.open(marker);
                let (answered, counted) = (rig.answered(syn.source), shapes_of(&rig, &before));
                assert!(
                    answered || counted > 0 || name == FOREIGN,
                    "{door:?}, {family:?}, {name}: neither read nor counted"
                );
                let sockets = rig.front.sockets(syn.source.port());
                assert!(sockets.is_empty(), "{door:?}, {family:?}, {name}: let round the door, {sockets:?}");
            }
        }
        assert_eq!(rig.server.accepted(), 0, "{door:?}");
    }
}

#[test]
fn a_refused_request_of_unusual_shape_never_reaches_the_server() {
    if !ready() {
        return;
    }
    let _one = one_installation();
    for door in Door::GUARDS {
        let rig = Rig::new(door);
        let mut n = 0;
        for family in [Family::V4, Family::V6] {
            let count = wrapped(&Segment::new(client(family, 0), plain(family), ACK)).len();
            for index in 0..count {
                n += 1;
                let connection = rig.open(client(family, n));
                connection.acknowledge().unwrap();
                let (_, packets) = wrapped(&connection.segment(PSH | ACK, 0, SECRET)).swap_remove(index);
                rig.send(&packets);
                // And the other way round: an odd ACK that ends the handshake, then the words.
                let connection = rig.open(client(family, 500 + n));
                let (_, packets) = wrapped(&connection.segment(ACK, 0, &[])).swap_remove(index);
                rig.send(&packets);
                rig.clients.send(&connection.segment(PSH | ACK, 0, SECRET)).unwrap();
                // And as the second request of a connection.
                let mut connection = rig.open(client(family, 1000 + n));
                rig.clients.send(&connection.segment(PSH | ACK, 0, KEPT)).unwrap();
                wait_until(SOON, || {
                    connection.hear(std::time::Duration::from_millis(20)).unwrap();
                    connection.received().starts_with(b"HTTP/1.1 200")
                })
                .unwrap();
                let (_, packets) =
                    wrapped(&connection.segment(PSH | ACK, KEPT.len() as u32, SECRET)).swap_remove(index);
                rig.send(&packets);
                rig.pass_through(3000 + n as u16);
            }
        }
        let seen = rig.server.seen();
        assert!(seen.iter().all(|seen| !seen.line.contains("secret")), "{door:?}: {seen:?}");
    }
}

#[test]
fn urgent_bytes_make_no_other_request_of_what_was_ruled() {
    if !ready() {
        return;
    }
    let _one = one_installation();
    // The kernel takes the urgent byte out of what the server reads.
    let words = b"GET /sXecret/10 HTTP/1.1\r\nHost: server\r\n\r\n";
    let at = 6;
    for door in Door::ALL {
        let rig = Rig::new(door);
        for (n, family) in [Family::V4, Family::V6].into_iter().enumerate() {
            let before = (door != Door::Stock).then(|| rig.front.verdicts());
            let connection = rig.open(client(family, n));
            connection.acknowledge().unwrap();
            rig.send(&[urgent(&connection.segment(PSH | ACK | URG, 0, words), at)]);
            // Said beforehand, with the end of the handshake.
            let announced = rig.open(client(family, 10 + n));
            rig.send(&[urgent(&announced.segment(ACK | URG, 0, &[]), at)]);
            rig.clients.send(&announced.segment(PSH | ACK, 0, words)).unwrap();
            rig.pass_through(3000 + n as u16);
            let secrets = || rig.server.seen().iter().filter(|seen| seen.line.contains("/secret/")).count();
            match before {
                // Or the rest would prove nothing.
                None => wait_until(SOON, || secrets() == 2 * (n + 1)).expect("the server reads another request"),
                Some(before) => {
                    assert_eq!(secrets(), 0, "{door:?}, {family:?}");
                    assert_eq!(shapes_of(&rig, &before), 2, "{door:?}, {family:?}");
                }
            }
        }
    }
}

#[test]
fn the_same_shapes_reach_the_server_where_nothing_guards_it() {
    if !ready() {
        return;
    }
    let _one = one_installation();
    // Or the tests above would prove nothing.
    let rig = Rig::new(Door::Stock);
    let mut n = 0;
    for family in [Family::V4, Family::V6] {
        let count = wrapped(&Segment::new(client(family, 0), plain(family), SYN)).len();
        for index in 0..count {
            n += 1;
            let mut syn = Segment::new(client(family, n), plain(family), SYN);
            syn.options = ORDINARY_OPTIONS.to_vec();
            let (name, packets) = wrapped(&syn).swap_remove(index);
            rig.send(&packets);
            rig.pass_through(3000 + n as u16);
            let reached = !rig.front.sockets(2000 + n as u16).is_empty();
            assert_eq!(reached, !NOT_TAKEN.contains(&name), "{family:?}, {name}");
        }
    }
}

/// On the wire such an address is a forgery (RFC 4291, 2.5.5.2), and the kernel takes no SYN from it.
#[test]
fn a_packet_of_ipv6_with_an_address_of_ipv4_passes_for_no_client() {
    if !ready() {
        return;
    }
    let _one = one_installation();
    for door in Door::GUARDS {
        let rig = Rig::new(door);
        for (n, (from, to)) in
            [("::ffff:10.89.0.5", None), ("fd89::5", Some("::ffff:10.77.0.1"))].into_iter().enumerate()
        {
            let before = rig.front.verdicts();
            let client = (from.parse::<std::net::IpAddr>().unwrap(), 2000 + n as u16).into();
            let mut server = plain(Family::V6);
            if let Some(to) = to {
                server.set_ip(to.parse().unwrap());
            }
            let mut syn = Segment::new(client, server, SYN);
            syn.options = ORDINARY_OPTIONS.to_vec();
            rig.clients.send(&syn).unwrap();
            rig.pass_through(3000 + n as u16);
            assert!(!rig.answered(client), "{door:?}, {from}");
            assert_eq!(shapes_of(&rig, &before), 1, "{door:?}, {from}");
        }
    }
}

#[test]
fn shapes_at_other_ports_are_nobodys_business() {
    if !ready() {
        return;
    }
    let _one = one_installation();
    let reached = [Door::Stock, Door::Own, Door::Kernel].map(|door| {
        let rig = Rig::new(door);
        let _other = PlainServer::start(&rig.front.topology.server, "[::]:81".parse().unwrap()).unwrap();
        let mut n = 0;
        let mut reached = Vec::new();
        for family in [Family::V4, Family::V6] {
            let mut other = plain(family);
            other.set_port(81);
            for index in 0..wrapped(&Segment::new(client(family, 0), other, SYN)).len() {
                n += 1;
                let (name, packets) = wrapped(&Segment::new(client(family, n), other, SYN)).swap_remove(index);
                if name == BLIND {
                    continue;
                }
                rig.send(&packets);
                rig.pass_through(3000 + n as u16);
                reached.push((name, rig.answered(client(family, n)) || !rig.front.sockets(2000 + n as u16).is_empty()));
            }
        }
        reached
    });
    let [stock, own, kernel] = reached;
    assert!(own == stock && kernel == stock, "{stock:?}\n{own:?}\n{kernel:?}");
}
