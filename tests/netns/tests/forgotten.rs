// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A client of a connection that its server has forgotten is told so, as by the stock kernel: otherwise it sends its end
//! again and again.

use std::time::{Duration, Instant};

use fief_testkit::segment::{ACK, FIN, PSH, RST, Segment};
use fief_testkit::{
    Ending, Family, Feature, Nginx, NginxConfig, ORDINARY_OPTIONS, RawClients, RawConnection, require, wait_until,
};
use fief_tests_netns::front::{Door, Front, GUARDED, plain, ready};
use fief_tests_netns::{SOON, one_installation};

const REQUEST: &[u8] = b"GET /1k HTTP/1.0\r\nHost: server\r\n\r\n";

/// A segment size, and no timestamps: those of a later connection would have to be newer.
const SIZE: [u8; 4] = [2, 4, 5, 0xb4];

/// Longer than the door waits for the socket of a verdict.
const DOOR_WAITS: Duration = Duration::from_millis(5);

struct Rig {
    clients: RawClients,
    _server: Nginx,
    front: Front,
}

impl Rig {
    fn new(door: Door) -> Self {
        let front = Front::new(door, GUARDED);
        let config = NginxConfig::new(80, 1, "").unwrap();
        let server = Nginx::start_with(&front.topology.server, config).unwrap();
        Self { clients: RawClients::new(&front.topology).unwrap(), _server: server, front }
    }

    /// How many connections that it closed first the server has room to remember.
    fn remembers(&self, connections: u32) {
        self.front.topology.server.sysctl("net.ipv4.tcp_max_tw_buckets", &connections.to_string()).unwrap();
    }

    fn open(&self, family: Family, port: u16, first: u32, options: &[u8]) -> RawConnection<'_> {
        let ends = [(RawClients::address(family, 1), port).into(), plain(family)];
        RawConnection::open(&self.clients, ends, first, options, SOON).unwrap().expect("a SYN-ACK")
    }

    /// A connection that the server has closed, answered to the last byte.
    fn closed(&self, family: Family, port: u16, first: u32) -> RawConnection<'_> {
        let mut connection = self.open(family, port, first, &SIZE);
        connection.acknowledge().unwrap();
        is_served(&mut connection);
        connection
    }

    /// The same once the server knows nothing of it any more, and the door does not wait for its socket either.
    fn forgotten(&self, family: Family, port: u16, first: u32) -> RawConnection<'_> {
        let connection = self.closed(family, port, first);
        let closed = Instant::now();
        wait_until(SOON, || closed.elapsed() > DOOR_WAITS && self.front.sockets(port).is_empty()).unwrap();
        connection
    }

    fn is_reset(&self, segment: &Segment) -> bool {
        // what the kernel sent again before
        while self.clients.receive(segment.source, Duration::from_millis(1)).is_some() {}
        self.clients.send(segment).unwrap();
        let Some(answer) = self.clients.receive(segment.source, SOON) else { return false };
        assert!(answer.has(RST) && answer.sequence == segment.acknowledgment, "{answer:?}");
        true
    }
}

/// To its end.
fn is_served(connection: &mut RawConnection<'_>) {
    let (words, ending) = connection.converse(REQUEST, std::slice::from_ref(&(0..REQUEST.len())), SOON).unwrap();
    assert!(words.starts_with(b"HTTP/1.1 200") && ending == Ending::Closed, "{ending:?}");
}

#[test]
fn whatever_it_sends_is_answered_with_a_reset() {
    if !ready() || !require(Feature::Nginx) {
        return;
    }
    let _one = one_installation();
    for door in Door::ALL {
        let rig = Rig::new(door);
        rig.remembers(0);
        for family in [Family::V4, Family::V6] {
            let end = REQUEST.len() as u32;
            let what: [(u8, &[u8]); 3] = [(FIN | ACK, b""), (ACK, b""), (PSH | ACK, REQUEST)];
            for (port, (flags, payload)) in (1024..).zip(what) {
                let connection = rig.forgotten(family, port, 4711);
                assert!(rig.is_reset(&connection.segment(flags, end, payload)), "{door:?}, {family:?}, {flags:#x}");
            }
        }
    }
}

#[test]
fn one_that_the_kernel_made_by_itself_is_no_other() {
    if !ready() || !require(Feature::Nginx) {
        return;
    }
    let _one = one_installation();
    for door in Door::ALL {
        let rig = Rig::new(door);
        rig.remembers(1000);
        let former = rig.closed(Family::V4, 1024, 4711);
        let end = REQUEST.len() as u32;
        rig.clients.send(&former.segment(FIN | ACK, end, b"")).unwrap();
        rig.clients.receive(former.client, SOON).expect("the server remembers it");
        std::mem::forget(former); // a reset would make it forget
        rig.remembers(0);
        let connection = rig.forgotten(Family::V4, 1024, 4711 + (1 << 25));
        assert!(rig.is_reset(&connection.segment(FIN | ACK, end, b"")), "{door:?}");
    }
}

#[test]
fn whose_first_bytes_were_lost_is_not() {
    if !ready() || !require(Feature::Nginx) {
        return;
    }
    let _one = one_installation();
    for door in Door::GUARDS {
        let rig = Rig::new(door);
        rig.remembers(0);
        // the ports of a connection that is forgotten, and those of none
        for (port, before) in [(1024, true), (1025, false)] {
            if before {
                rig.forgotten(Family::V4, port, 4711);
            }
            let mut connection = rig.open(Family::V4, port, 4711 + (1 << 25), &ORDINARY_OPTIONS);
            let (head, rest) = REQUEST.split_at(9);
            rig.clients.send(&connection.segment(PSH | ACK, head.len() as u32, rest)).unwrap();
            is_served(&mut connection);
        }
    }
}
