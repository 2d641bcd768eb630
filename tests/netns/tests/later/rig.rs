// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A guarded server that tells what it saw, and a client on a persistent connection whose segments TCP drops behind the door
//! when the test says so: with a wrong checksum, or an old timestamp.

#![allow(dead_code, reason = "not every test uses all of it")]

use std::cell::Cell;

use fief_testkit::segment::{ACK, Segment};
use fief_testkit::{Family, ORDINARY_OPTIONS, PlainServer, RawClients, RawConnection, Topology, digest, wait_until};
use fief_tests_netns::SOON;
use fief_tests_netns::front::{Door, Front, Verdicts, plain};

pub const POLICY: &str = r#"
[container.web]
[container."web/images"]
[listener.plain]
address = "[::]:80"
[[listener.plain.client]]
from = ["any"]
container = "web"
[[listener.plain.request]]
path = "/secret/*"
refuse = "drop"
[[listener.plain.request]]
path = "/limited/*"
rate = { per-second = 1, burst = 3 }
refuse = "drop"
[[listener.plain.request]]
path = "*.png"
container = "web/images"
"#;

pub const FIRST: &[u8] = b"GET /10 HTTP/1.1\r\n\r\n";
pub const PUBLIC: &[u8] = b"GET /public/10 HTTP/1.1\r\nX: 1\r\n\r\n";
pub const SECRET: &[u8] = b"GET /secret/10 HTTP/1.1\r\nX: 1\r\n\r\n";

/// Why TCP drops a segment that the door has ruled.
#[derive(Clone, Copy, Debug)]
pub enum Flaw {
    Checksum,
    Timestamp,
}

impl Flaw {
    /// Those that the door does not see.
    pub const HIDDEN: [Flaw; 1] = [Flaw::Checksum];

    pub fn packet(self, mut segment: Segment) -> Vec<u8> {
        match self {
            Flaw::Checksum => {
                let mut tcp = segment.tcp();
                tcp[16] ^= 0x55;
                segment.packet_of(&tcp)
            }
            Flaw::Timestamp => {
                // The connection's begin at 0x1000.
                segment.options[4..8].copy_from_slice(&1u32.to_be_bytes());
                segment.packet()
            }
        }
    }
}

pub struct Rig {
    pub front: Front,
    server: PlainServer,
    clients: RawClients,
    next: Cell<u16>,
}

impl Rig {
    pub fn new(door: Door, policy: &str) -> Self {
        let front = Front::new(door, policy);
        let server = front.plain_server();
        let clients = RawClients::new(&front.topology).unwrap();
        Self { front, server, clients, next: 2000.into() }
    }

    /// Packets arrive in the order in which they are sent. (GRO keeps good ones for a moment, which broken ones overtake.)
    pub fn in_order(door: Door, policy: &str) -> Self {
        let rig = Self::new(door, policy);
        let ethtool = ["-K", Topology::SERVER, "gro", "off"];
        fief_testkit::run(rig.front.topology.server.command("ethtool").args(ethtool)).unwrap();
        rig
    }

    /// A connection whose first request is served.
    pub fn open(&self, family: Family) -> Client<'_> {
        let port = self.next.replace(self.next.get() + 1);
        let addresses = [(RawClients::address(family, 5), port).into(), plain(family)];
        // The stream passes the end of the sequence numbers in every third connection.
        let first = if port.is_multiple_of(3) { u32::MAX - 50 } else { u32::from(port) << 8 };
        let open = RawConnection::open(&self.clients, addresses, first, &ORDINARY_OPTIONS, SOON);
        let seen = self.server.seen().len();
        let client = Client { rig: self, connection: open.unwrap().expect("a SYN-ACK"), seen };
        client.connection.acknowledge().unwrap();
        client.clients().send(&client.connection.segment(ACK, 0, FIRST)).unwrap();
        client.wait_for(&[FIRST]);
        client
    }

    pub fn verdicts(&self) -> Verdicts {
        self.front.verdicts()
    }
}

/// A connection to the guarded server; offsets count from behind its first request.
pub struct Client<'a> {
    rig: &'a Rig,
    pub connection: RawConnection<'a>,
    /// Requests that the server had seen before.
    seen: usize,
}

impl Client<'_> {
    fn clients(&self) -> &RawClients {
        &self.rig.clients
    }

    fn segment(&self, offset: usize, bytes: &[u8]) -> Segment {
        self.connection.segment(ACK, (FIRST.len() + offset) as u32, bytes)
    }

    pub fn send(&self, offset: usize, bytes: &[u8]) {
        self.clients().send(&self.segment(offset, bytes)).unwrap();
    }

    /// Sends what reaches the door and not TCP.
    pub fn send_in_vain(&self, flaw: Flaw, offset: usize, bytes: &[u8]) {
        self.clients().send_packet(&[], &flaw.packet(self.segment(offset, bytes))).unwrap();
    }

    /// Sends a segment that the test has changed.
    pub fn send_changed(&self, offset: usize, bytes: &[u8], change: impl Fn(&mut Segment)) {
        let mut segment = self.segment(offset, bytes);
        change(&mut segment);
        self.clients().send(&segment).unwrap();
    }

    /// What the server saw on this connection.
    pub fn served(&self) -> Vec<(String, u64)> {
        self.rig.server.seen()[self.seen..].iter().map(|seen| (seen.line.clone(), seen.digest)).collect()
    }

    /// Waits until the server has seen these requests, and no others.
    pub fn wait_for(&self, requests: &[&[u8]]) {
        let _ = wait_until(SOON, || self.served().len() >= requests.len());
        let expected: Vec<_> = requests.iter().map(|request| (line(request), digest(request))).collect();
        assert_eq!(self.served(), expected, "{:?}", self.rig.verdicts());
    }

    /// How much of the stream behind the first request the server has acknowledged.
    pub fn acknowledged(&self) -> usize {
        let all = self.connection.acknowledged.wrapping_sub(self.connection.first).wrapping_sub(1) as usize;
        all.saturating_sub(FIRST.len())
    }
}

fn line(request: &[u8]) -> String {
    String::from_utf8_lossy(request).lines().next().unwrap().to_owned()
}
