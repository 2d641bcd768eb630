// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A client on a persistent connection to a guarded server that tells what it saw. TCP drops its segments behind the door when
//! the test says so: they have a wrong checksum, or an old timestamp.

#![allow(dead_code, reason = "not every test uses all of it")]

use fief_testkit::segment::{ACK, Segment};
use fief_testkit::{Family, RawConnection, digest, wait_until};
use fief_tests_netns::SOON;
use fief_tests_netns::rig::Rig;

pub const POLICY: &str = r#"
[container.web]
[container."web/images"]
[listener.plain]
address = "[::]:80"
queue = false
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

/// A connection to the guarded server; offsets count from behind its first request.
pub struct Client<'a> {
    rig: &'a Rig,
    pub connection: RawConnection<'a>,
    /// Requests that the server had seen before.
    seen: usize,
}

impl<'a> Client<'a> {
    /// A connection whose first request is served.
    pub fn open(rig: &'a Rig, family: Family) -> Self {
        let seen = rig.server.seen().len();
        let client = Client { rig, connection: rig.open(family), seen };
        client.connection.acknowledge().unwrap();
        rig.clients.send(&client.connection.segment(ACK, 0, FIRST)).unwrap();
        client.wait_for(&[FIRST]);
        client
    }

    fn segment(&self, offset: usize, bytes: &[u8]) -> Segment {
        self.connection.segment(ACK, (FIRST.len() + offset) as u32, bytes)
    }

    pub fn send(&self, offset: usize, bytes: &[u8]) {
        self.rig.clients.send(&self.segment(offset, bytes)).unwrap();
    }

    /// Sends what reaches the door and not TCP.
    pub fn send_in_vain(&self, flaw: Flaw, offset: usize, bytes: &[u8]) {
        self.rig.clients.send_packet(&[], &flaw.packet(self.segment(offset, bytes))).unwrap();
    }

    /// Sends a segment that the test has changed.
    pub fn send_changed(&self, offset: usize, bytes: &[u8], change: impl Fn(&mut Segment)) {
        let mut segment = self.segment(offset, bytes);
        change(&mut segment);
        self.rig.clients.send(&segment).unwrap();
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
