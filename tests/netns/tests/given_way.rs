// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The begin of a later request that TCP has, and whose place among the half heads another one has got: nobody may send it anew,
//! with other bytes that TCP does not take. The server would put what follows behind the first ones.

#[path = "later/client.rs"]
mod client;

use std::net::{IpAddr, Ipv4Addr};
use std::time::Duration;

use client::{Client, FIRST, Flaw, POLICY, SECRET};
use fief_bpf::abi;
use fief_testkit::segment::{ACK, RST};
use fief_testkit::{Ending, Family, RawConnection, wait_until};
use fief_tests_netns::SOON;
use fief_tests_netns::front::{Door, ready};
use fief_tests_netns::rig::Rig;

/// The begin of a request that is refused, and one that stands in its place.
const BEGIN: &[u8] = b"GET /sec";
const OTHER: &[u8] = b"GET /pla";

/// Half heads of one network that have room in its row.
const ROW: usize = 16;

/// More networks than half heads have room, by so many that those of any row displace others there.
const NETWORKS: u32 = 3000;

/// The kernel makes the connections.
fn below() -> String {
    let calm = "[overload]\nbusy = { drops = 900000 }\noverloaded = { drops = 1000000 }\n";
    calm.to_owned() + &POLICY.replace("queue = false", "queue = false\nadmit-from = \"overloaded\"")
}

/// Sends the begin at this offset of the stream, and waits until the server has it.
fn begin(rig: &Rig, connection: &mut RawConnection<'_>, at: usize) {
    rig.clients.send(&connection.segment(ACK, at as u32, BEGIN)).unwrap();
    let end = connection.first.wrapping_add(1 + (at + BEGIN.len()) as u32);
    wait_until(SOON, || {
        connection.hear(Duration::from_millis(10)).unwrap();
        connection.acknowledged == end
    })
    .unwrap_or_else(|_| panic!("{:?}", rig.verdicts()));
}

/// A reset right behind the begin, that the door sees and TCP drops.
fn reset_in_vain(rig: &Rig, connection: &RawConnection<'_>, at: usize) {
    let reset = connection.segment(RST | ACK, (at + BEGIN.len()) as u32, &[]);
    rig.clients.send_packet(&[], &Flaw::Checksum.packet(reset)).unwrap();
}

/// As many connections of the same network as there is room for in its row, whose first requests are served.
fn others(rig: &Rig, family: Family) -> Vec<RawConnection<'_>> {
    (0..ROW).map(|_| Client::open(rig, family).connection).collect()
}

/// Half a head on each.
fn fill_row(rig: &Rig, others: &mut [RawConnection<'_>]) {
    others.iter_mut().for_each(|other| begin(rig, other, FIRST.len()));
}

/// Another begin, with what makes the first one the refused request: neither is served.
fn is_not_sent_anew(rig: &Rig, connection: &mut RawConnection<'_>, at: usize) {
    let before = rig.verdicts();
    let bytes = [OTHER, &SECRET[BEGIN.len()..]].concat();
    rig.clients.send(&connection.segment(ACK, at as u32, &bytes)).unwrap();
    let ending = connection.hear(SOON).unwrap();
    let seen: Vec<_> = rig.server.seen().into_iter().map(|seen| seen.line).collect();
    let new = rig.verdicts().since(&before);
    assert!(!seen.iter().any(|line| line.contains("/secret") || line.contains("/pla")), "{seen:?}: {new:?}");
    assert_eq!((ending, new.count(abi::FIEF_REFUSED_NO_ROOM)), (Some(Ending::Reset), 1), "{new:?}");
}

#[test]
fn a_begin_whose_place_a_forged_reset_has_freed_is_not_sent_anew() {
    if !ready() {
        return;
    }
    for door in Door::GUARDS {
        let rig = Rig::in_order(door, POLICY);
        for family in [Family::V4, Family::V6] {
            eprintln!("{family:?}");
            let mut client = Client::open(&rig, family);
            let mut others = others(&rig, family);
            begin(&rig, &mut client.connection, FIRST.len());
            reset_in_vain(&rig, &client.connection, FIRST.len());
            fill_row(&rig, &mut others);
            is_not_sent_anew(&rig, &mut client.connection, FIRST.len());
        }
    }
}

/// The first bytes of a connection that the kernel made are ruled as later ones are. Once connections are held, resets are read.
#[test]
fn nor_is_that_of_a_first_request_where_the_kernel_has_made_the_connection() {
    if !ready() {
        return;
    }
    for door in Door::GUARDS {
        let rig = Rig::in_order(door, &below());
        let mut connection = rig.open(Family::V4);
        connection.acknowledge().unwrap();
        begin(&rig, &mut connection, 0);
        rig.front.apply(POLICY).unwrap();
        let mut others = others(&rig, Family::V4);
        reset_in_vain(&rig, &connection, 0);
        fill_row(&rig, &mut others);
        is_not_sent_anew(&rig, &mut connection, 0);
    }
}

/// The n-th of addresses from everywhere, each of another network.
fn scattered(n: u32) -> IpAddr {
    Ipv4Addr::from(0x1000_0001 + (n << 8)).into()
}

#[test]
fn a_begin_that_other_networks_have_displaced_is_not_sent_anew() {
    if !ready() {
        return;
    }
    for door in Door::GUARDS {
        let rig = Rig::in_order(door, POLICY);
        let server = &rig.front.topology.server;
        server.sysctl("net.ipv4.conf.sv.rp_filter", "0").unwrap();
        server.ip("route replace default via 10.77.0.2 dev sv").unwrap();
        let mut client = Client::open(&rig, Family::V4);
        begin(&rig, &mut client.connection, FIRST.len());
        rig.begin(&(0..NETWORKS).map(scattered).collect::<Vec<_>>(), BEGIN);
        is_not_sent_anew(&rig, &mut client.connection, FIRST.len());
    }
}
