// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A machine that calls a guarded listener of its own is no stranger, whatever addresses it uses; who only bears one of its
//! addresses is one.

use std::io::{Read, Write};
use std::net::SocketAddr;

use fief_bpf::abi;
use fief_testkit::segment::{SYN, Segment, frame};
use fief_testkit::{NetNs, Wire, wait_until};
use fief_tests_netns::front::{Door, Front, ready};
use fief_tests_netns::refusing;
use fief_tests_netns::{SOON, connect_from, second_link};

const POLICY: &str = refusing!("/refused", "503");

/// Addresses of two devices of the server: the first one has a door, the second one comes up later.
const V4: [&str; 2] = ["10.77.0.1", "10.66.3.1"];
const V6: [&str; 2] = ["fd77::1", "fd66:3::1"];

fn at(address: &str, port: u16) -> SocketAddr {
    SocketAddr::new(address.parse().unwrap(), port)
}

fn status(namespace: &NetNs, from: &str, to: &str) -> Option<String> {
    let mut stream = connect_from(namespace, at(from, 0), at(to, 80)).ok()?;
    stream.write_all(b"GET /close/10 HTTP/1.1\r\nHost: server\r\nConnection: close\r\n\r\n").ok()?;
    let mut text = String::new();
    stream.read_to_string(&mut text).ok()?;
    text.split(' ').nth(1).map(str::to_owned)
}

fn unguarded(front: &Front) -> u64 {
    front.verdicts().since(front.before()).count(abi::FIEF_SYN_UNGUARDED)
}

#[test]
fn the_machine_calls_between_its_own_addresses_of_any_devices() {
    if !ready() {
        return;
    }
    for door in Door::GUARDS {
        let front = Front::new(door, POLICY);
        let _server = front.plain_server();
        let _link = second_link(&front.topology);
        for [one, other] in [V4, V6] {
            for (from, to) in [(one, other), (other, one), (one, one), (other, other)] {
                // No door is on this way, so nothing is ruled.
                let served = status(&front.topology.server, from, to);
                assert_eq!(served.as_deref(), Some("200"), "{door:?}: {from} to {to}");
            }
        }
        assert_eq!(unguarded(&front), 0, "{door:?}");
        // Still, after another apply.
        front.apply(POLICY).unwrap();
        assert_eq!(status(&front.topology.server, V4[0], V4[1]).as_deref(), Some("200"), "{door:?}");
    }
}

/// The kernel drops what comes from outside with an address of its own, over IPv4 and unless told otherwise; for Fief it is a
/// stranger's in any case.
#[test]
fn an_own_address_that_comes_from_outside_is_a_strangers() {
    if !ready() {
        return;
    }
    for door in Door::GUARDS {
        let front = Front::new(door, POLICY);
        let server = front.plain_server();
        let link = second_link(&front.topology);
        let wire = Wire::open(&front.topology.clients, "c2").unwrap();
        let (to, from) = (link.near_mac.octets(), link.far_mac.octets());
        let knock = |[source, destination]: [&str; 2], port| {
            let segment = Segment::new(at(source, port), at(destination, 80), SYN);
            wire.send(&frame(to, from, &[], &segment.packet())).unwrap();
        };
        // The machine itself calls meanwhile.
        assert!(status(&front.topology.server, V4[0], V4[1]).is_some(), "{door:?}");
        knock(V4, 2001);
        knock(["10.66.3.2", V4[1]], 2002);
        wait_until(SOON, || unguarded(&front) > 0).unwrap();
        assert_eq!(unguarded(&front), 1, "{door:?}: the kernel looked for the socket of a martian");
        for device in ["all", "s2"] {
            front.topology.server.sysctl(&format!("net/ipv4/conf/{device}/accept_local"), "1").unwrap();
        }
        knock(V4, 2003);
        wait_until(SOON, || unguarded(&front) == 2).unwrap_or_else(|e| panic!("{door:?}, IPv4: {e}"));
        knock(V6, 2004);
        wait_until(SOON, || unguarded(&front) == 3).unwrap_or_else(|e| panic!("{door:?}, IPv6: {e}"));
        assert_eq!(server.accepted(), 1, "{door:?}");
    }
}
