// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Over whatever link, and however many come one after the other: a TCP client is served through admission as without it.
//!
//! Each test does the same without a guard, with our own handshake and with the kernel's; outcomes must be equal.

#[path = "transparency/stream.rs"]
mod stream;

use std::io::{self, Read, Write};
use std::net::SocketAddr;

use fief_bpf::abi;
use fief_testkit::{Client, Family, Impairment, NetNs, Topology, digest, pattern, require_if, wait_until};
use fief_tests_netns::front::{Door, GUARDED, at_every_door, plain, ready, through_every_door};
use fief_tests_netns::{SOON, connect_from, one_installation};
use nix::errno::Errno;
use stream::{FAMILIES, both_ways, connect, in_sequence, response, server};

#[test]
fn every_size_of_packet_will_do() {
    if !ready() {
        return;
    }
    let _one = one_installation();
    through_every_door(GUARDED, |front| {
        for mtu in [9000, 1500, 1280] {
            front.topology.set_mtu(mtu).unwrap();
            for family in FAMILIES {
                assert!(both_ways(front, family, 200_000), "{family:?} with {mtu}");
            }
        }
        front.topology.set_mtu(576).unwrap();
        assert!(both_ways(front, Family::V4, 200_000));
        front.assert_ruled(7);
    });
}

#[test]
fn a_server_with_another_mtu_than_its_client_is_reached() {
    if !ready() {
        return;
    }
    let _one = one_installation();
    through_every_door(GUARDED, |front| {
        for (server, clients) in [(1500, 9000), (9000, 1500)] {
            front.topology.set_mtu(9000).unwrap();
            // The links stay wide; the routes say what each may send.
            for (namespace, mtu) in [(&front.topology.server, server), (&front.topology.clients, clients)] {
                let device = if mtu == server { "sv" } else { "cv" };
                namespace.ip(&format!("route replace 10.77.0.0/16 dev {device} mtu {mtu}")).unwrap();
            }
            assert!(both_ways(front, Family::V4, 200_000), "{server} and {clients}");
        }
    });
}

/// One request on a connection of its own that the server closes; from a chosen port.
fn fetch(clients: &NetNs, from: SocketAddr, server: SocketAddr) -> io::Result<usize> {
    let mut made = Err(Errno::EADDRNOTAVAIL);
    // Its own end of the last connection may still wait for the last ACK.
    wait_until(SOON, || {
        made = connect_from(clients, from, server);
        !matches!(made, Err(Errno::EADDRNOTAVAIL))
    })
    .map_err(io::Error::other)?;
    let mut stream = made?;
    stream.write_all(b"GET /close/100 HTTP/1.1\r\n\r\n")?;
    let mut all = Vec::new();
    stream.read_to_end(&mut all)
}

/// Its packets come in at the port and then at the bridge itself.
fn behind_a_bridge() -> Option<Topology> {
    let topology = Topology::new().unwrap();
    require_if("bridge", topology.server.ip("link add br0 type bridge").is_ok(), false).then_some(())?;
    for line in [
        "addr flush dev sv",
        "link set sv master br0",
        "link set br0 up",
        "addr add 10.77.0.1/16 dev br0",
        "route add 10.77.1.0/24 via 10.77.0.2 dev br0",
    ] {
        topology.server.ip(line).unwrap();
    }
    Some(topology)
}

#[test]
fn behind_a_bridge_each_connection_is_ruled_once() {
    if !ready() {
        return;
    }
    let _one = one_installation();
    let Some(topology) = behind_a_bridge() else { return };
    let policy = GUARDED.replace("container = \"web/rest\"\n", "container = \"web/rest\"\nsyn = { rate = 1000000 }\n");
    at_every_door(&policy, topology, |front| {
        assert_eq!(in_sequence(front, 20), 20);
        front.assert_ruled(20);
        if front.door != Door::Stock {
            let verdicts = front.verdicts().since(front.before());
            let counts = [verdicts.count(abi::FIEF_SYN_TAKEN), verdicts.requests()];
            assert!(counts.into_iter().all(|count| front.is_counted(count, 20)), "{verdicts:?}");
        }
    });
}

#[test]
fn a_port_is_used_again_while_its_last_connection_is_remembered() {
    if !ready() {
        return;
    }
    let _one = one_installation();
    through_every_door(GUARDED, |front| {
        for family in FAMILIES {
            let server = server(front, family);
            let from = (Client::High.address(family, 1), 5555).into();
            // The server closes first, so it is the one that stays in TIME_WAIT.
            for n in 0..30 {
                let length = fetch(&front.topology.clients, from, plain(family));
                assert!(length.as_ref().is_ok_and(|length| *length > 100), "{n}: {length:?}");
            }
            assert_eq!(server.accepted(), 30);
        }
        front.assert_ruled(60);
    });
}

#[test]
fn a_port_is_used_again_without_timestamps_too() {
    if !ready() {
        return;
    }
    let _one = one_installation();
    through_every_door(GUARDED, |front| {
        front.topology.clients.sysctl("net.ipv4.tcp_timestamps", "0").unwrap();
        let server = server(front, Family::V4);
        let from = (Client::High.address(Family::V4, 1), 5555).into();
        for n in 0..30 {
            let length = fetch(&front.topology.clients, from, plain(Family::V4));
            assert!(length.as_ref().is_ok_and(|length| *length > 100), "{n}: {length:?}");
        }
        assert_eq!(server.accepted(), 30);
    });
}

#[test]
fn thousands_of_connections_one_after_the_other_are_all_served() {
    if !ready() {
        return;
    }
    let _one = one_installation();
    through_every_door(GUARDED, |front| {
        let answered = in_sequence(front, 3000);
        front.assert_ruled(3000);
        answered
    });
}

#[test]
fn connections_are_all_served_however_often_the_ports_of_a_client_come_round() {
    if !ready() {
        return;
    }
    let _one = one_installation();
    through_every_door(GUARDED, |front| {
        // as many rounds as a client with all its ports makes in half a million connections
        front.topology.clients.sysctl("net.ipv4.ip_local_port_range", "40000 40099").unwrap();
        let answered = in_sequence(front, 2000);
        assert_eq!(answered, 2000);
        front.assert_ruled(2000);
    });
}

#[test]
fn a_link_that_loses_doubles_and_reorders_packets_changes_nothing_but_the_time() {
    if !ready() {
        return;
    }
    let _one = one_installation();
    let impairment = Impairment { seed: 11, lost: 15, doubled: 30, reordered: 60 };
    at_every_door(GUARDED, Topology::impaired(impairment).unwrap(), |front| {
        for family in FAMILIES {
            assert!(both_ways(front, family, 400_000), "{family:?}");
        }
        // Many handshakes and first segments, some of which are lost, doubled or overtaken.
        let answered = in_sequence(front, 150);
        let done = front.topology.impairer.as_ref().unwrap().so_far();
        assert!(done.lost > 5 && done.doubled > 5 && done.reordered > 5, "{done:?}");
        answered
    });
}

#[test]
fn a_long_header_survives_a_bad_link() {
    if !ready() {
        return;
    }
    let _one = one_installation();
    let impairment = Impairment { seed: 12, lost: 50, doubled: 50, reordered: 150 };
    at_every_door(GUARDED, Topology::impaired(impairment).unwrap(), |front| {
        let server = server(front, Family::V4);
        for n in 0..10 {
            let mut header = b"GET /10 HTTP/1.1\r\nCookie: ".to_vec();
            header.extend(pattern(12_000 + n).iter().map(|byte| b'a' + byte % 26));
            header.extend(b"\r\n\r\n");
            let mut stream = connect(front, Family::V4);
            stream.write_all(&header).unwrap();
            assert_eq!(response(&mut stream).unwrap(), pattern(10));
            assert_eq!(server.seen().pop().unwrap().digest, digest(&header));
        }
    });
}
