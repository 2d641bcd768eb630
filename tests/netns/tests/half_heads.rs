// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Who sends half of a head and waits takes room from nobody but from clients of the same network.

#[path = "shapes/rig.rs"]
#[allow(unused_imports, reason = "not every test uses all of it")]
mod rig;

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Duration;

use fief_bpf::abi;
use fief_testkit::segment::{ACK, PSH, RST, Segment};
use fief_testkit::{Ending, Family, ORDINARY_OPTIONS, RawClients, RawConnection, wait_until};
use fief_tests_netns::front::{Door, plain, ready};
use fief_tests_netns::{SOON, one_installation};
use rig::{OPEN, Rig};

/// Of one /24, or of one /48.
fn attacker(family: Family, n: usize) -> SocketAddr {
    let address: IpAddr = match family {
        Family::V4 => Ipv4Addr::new(10, 89, 77, (n % 250) as u8).into(),
        Family::V6 => Ipv6Addr::new(0xfd89, 0, 0, 0, 0, 0, 77, n as u16).into(),
    };
    (address, 2000 + n as u16).into()
}

/// Not of the attacker's /24; where there is one /48 only, it is the other family that attacks.
fn honest(n: u16) -> SocketAddr {
    (RawClients::address(Family::V4, 5), 3000 + n).into()
}

/// Half heads for which there is room, and clients that are more.
const PLACES: u16 = 1024;
const CLIENTS: u16 = 1100;

fn open(rig: &Rig, client: SocketAddr) -> RawConnection<'_> {
    let server = plain(if client.is_ipv4() { Family::V4 } else { Family::V6 });
    RawConnection::open(&rig.clients, [client, server], 4711, &ORDINARY_OPTIONS, SOON).unwrap().expect("a SYN-ACK")
}

/// The next segment that is no double of the SYN-ACK.
fn answer(rig: &Rig, client: SocketAddr, acknowledges: u32) -> Option<Segment> {
    let mut last = None;
    wait_until(SOON, || {
        last = rig.clients.receive(client, Duration::from_millis(100));
        last.as_ref().is_some_and(|segment| segment.has(RST) || segment.acknowledgment == acknowledges)
    })
    .ok()?;
    last
}

/// Sends bytes of the stream, and waits until they are acknowledged; false: it is reset.
fn send(rig: &Rig, connection: &RawConnection, stream: &[u8], from: usize, to: usize) -> bool {
    let segment = connection.segment(PSH | ACK, from as u32, &stream[from..to]);
    rig.clients.send(&segment).unwrap();
    let answer = answer(rig, connection.client, connection.first.wrapping_add(1 + to as u32));
    !answer.unwrap_or_else(|| panic!("no answer to bytes {from} to {to}")).has(RST)
}

fn half_head(rig: &Rig, client: SocketAddr) {
    let connection = open(rig, client);
    rig.clients.send(&connection.segment(PSH | ACK, 0, &OPEN[..20])).unwrap();
}

#[test]
fn a_network_with_half_heads_displaces_nobody_elses() {
    if !ready() {
        return;
    }
    let _one = one_installation();
    for door in Door::GUARDS {
        let rig = Rig::new(door);
        for (n, family) in [Family::V4, Family::V6].into_iter().enumerate() {
            let client = honest(n as u16);
            let mut connection = open(&rig, client);
            let cuts = [0, 5, 12, 20, 30];
            for (piece, pair) in cuts.windows(2).enumerate() {
                assert!(send(&rig, &connection, OPEN, pair[0], pair[1]), "{door:?}, {family:?}: reset at {piece}");
                (0..500).for_each(|at| half_head(&rig, attacker(family, piece * 500 + at)));
            }
            let last = 30..OPEN.len();
            rig.clients.send(&connection.segment(PSH | ACK, 30, &OPEN[last])).unwrap();
            let ending = connection.hear(SOON).unwrap();
            let words = String::from_utf8_lossy(connection.received()).into_owned();
            assert!(
                words.starts_with("HTTP/1.1 200") && ending == Some(Ending::Closed),
                "{door:?}, {family:?}: {words}"
            );
        }
    }
}

#[test]
fn who_had_to_give_way_is_reset() {
    if !ready() {
        return;
    }
    let _one = one_installation();
    for door in Door::GUARDS {
        let rig = Rig::new(door);
        let mut connections: Vec<_> = (0..CLIENTS).map(|n| open(&rig, networks(n))).collect();
        let mut ends = [0, 0];
        // who finds no room is told at once
        connections.retain(|connection| send(&rig, connection, OPEN, 0, 20));
        ends[1] += CLIENTS - connections.len() as u16;
        for connection in &mut connections {
            rig.clients.send(&connection.segment(PSH | ACK, 20, &OPEN[20..])).unwrap();
            match connection.hear(SOON).unwrap() {
                Some(Ending::Closed) => ends[0] += 1,
                Some(Ending::Reset) => ends[1] += 1,
                other => panic!("{door:?}: {other:?} after {ends:?}"),
            }
        }
        assert!(ends[0] >= 600 && ends[1] >= CLIENTS - PLACES, "{door:?}: {ends:?} served and reset");
        let verdicts = rig.front.verdicts();
        assert!(verdicts.count(abi::FIEF_REFUSED_NO_ROOM) > 0, "{door:?}: {verdicts:?}");
    }
}

#[test]
fn hundreds_of_clients_of_few_networks_find_room_at_a_time() {
    if !ready() {
        return;
    }
    let _one = one_installation();
    for door in Door::GUARDS {
        let rig = Rig::new(door);
        let client = |n: u16| (Ipv4Addr::new(10, 89, (n % 3) as u8, (n / 3 % 250) as u8), 4000 + n).into();
        let mut connections: Vec<_> = (0..480).map(|n| open(&rig, client(n))).collect();
        let mut reset = 0;
        connections.retain(|connection| {
            let room = send(&rig, connection, OPEN, 0, 20);
            reset += u32::from(!room);
            room
        });
        // In one of forty such sets one client in a thousand has the rows of the three networks, which are full, and no others.
        assert!(reset <= 4, "{door:?}: no room for {reset}");
        for connection in &mut connections {
            rig.clients.send(&connection.segment(PSH | ACK, 20, &OPEN[20..])).unwrap();
            assert_eq!(connection.hear(SOON).unwrap(), Some(Ending::Closed), "{door:?}");
        }
    }
}

#[test]
fn a_client_that_resets_its_connection_leaves_its_place() {
    if !ready() {
        return;
    }
    let _one = one_installation();
    for door in Door::GUARDS {
        let rig = Rig::new(door);
        for n in 0..usize::from(CLIENTS) {
            let connection = open(&rig, attacker(Family::V4, n));
            assert!(send(&rig, &connection, OPEN, 0, 20), "{door:?}: no room for half a head after {n} resets");
            rig.clients.send(&connection.segment(RST | ACK, 20, &[])).unwrap();
        }
    }
}

/// The n-th of many clients, of 200 networks.
fn networks(n: u16) -> SocketAddr {
    (Ipv4Addr::new(10, 89, (n % 200) as u8, 9), 4000 + n).into()
}
