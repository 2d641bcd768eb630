// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A server behind a door, and clients who write their packets by hand.
//!
//! The packets are sent past the clients' kernel. An ordinary connection afterwards says when all of them are through,
//! since the link keeps their order.

#![allow(dead_code, reason = "not every test uses all of it")]

use std::net::SocketAddr;
use std::time::Duration;

use fief_bpf::abi;
use fief_testkit::segment::{ACK, SYN};
use fief_testkit::{Family, ORDINARY_OPTIONS, PlainServer, RawClients, RawConnection};
use fief_tests_netns::SOON;
use fief_tests_netns::front::{Door, Front, Verdicts, plain};
use fief_tests_netns::refusing;

/// Nobody may have what is below /secret.
pub const POLICY: &str = refusing!("/secret/*", "drop");

pub const SECRET: &[u8] = b"GET /secret/10 HTTP/1.1\r\nHost: server\r\n\r\n";

pub const OPEN: &[u8] = b"GET /close/10 HTTP/1.1\r\nHost: server\r\n\r\n";

/// A packet with its VLAN tags.
pub type Packet = (Vec<u16>, Vec<u8>);

pub struct Rig {
    pub front: Front,
    pub server: PlainServer,
    pub clients: RawClients,
}

impl Rig {
    pub fn new(door: Door) -> Self {
        let front = Front::new(door, POLICY);
        let server = front.plain_server();
        let clients = RawClients::new(&front.topology).unwrap();
        Self { front, server, clients }
    }

    pub fn open(&self, client: SocketAddr) -> RawConnection<'_> {
        let server = plain(if client.is_ipv4() { Family::V4 } else { Family::V6 });
        let open = RawConnection::open(&self.clients, [client, server], 4711, &ORDINARY_OPTIONS, SOON);
        open.unwrap().unwrap_or_else(|| panic!("no SYN-ACK for {client}"))
    }

    pub fn send(&self, packets: &[Packet]) {
        for (tags, packet) in packets {
            self.clients.send_packet(tags, packet).unwrap();
        }
    }

    /// Returns when the server has answered an ordinary request, and so everything that was sent before is through.
    pub fn pass_through(&self, n: u16) {
        let mut connection = self.open((RawClients::address(Family::V4, 999), n).into());
        let (words, _) = connection.converse(OPEN, std::slice::from_ref(&(0..OPEN.len())), SOON).unwrap();
        assert!(words.starts_with(b"HTTP/1.1 200"), "{:?}", String::from_utf8_lossy(&words));
    }

    pub fn answered(&self, client: SocketAddr) -> bool {
        let mut found = false;
        while let Some(segment) = self.clients.receive(client, Duration::from_millis(1)) {
            found |= segment.has(SYN | ACK);
        }
        found
    }
}

pub fn client(family: Family, n: usize) -> SocketAddr {
    (RawClients::address(family, 100 + n as u16), 2000 + n as u16).into()
}

pub fn shapes_of(rig: &Rig, before: &Verdicts) -> u64 {
    rig.front.verdicts().since(before).count(abi::FIEF_SHAPE)
}
