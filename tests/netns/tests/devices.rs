// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Rules hold for what comes in from a virtual machine's tap device and from a tunnel without link addresses, one segment at a
//! time and in frames that stand for many; and while an interface comes and goes.

use std::io::Write;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use fief_bpf::abi;
use fief_testkit::segment::{ACK, RST, SYN, Segment, frame};
use fief_testkit::{Family, Mac, ORDINARY_OPTIONS, Tap, Topology, Veth, wait_until};
use fief_tests_netns::front::{Door, plain, ready};
use fief_tests_netns::refusing;
use fief_tests_netns::rig::Rig;
use fief_tests_netns::{SOON, connect_from};
use nix::errno::Errno;

const POLICY: &str = refusing!("/secret/*", "503");

const PUBLIC: &[u8] = b"GET /10 HTTP/1.1\r\nHost: server\r\n\r\n";
const SECRET: &[u8] = b"GET /secret/10 HTTP/1.1\r\nHost: server\r\n\r\n";

#[derive(Clone, Copy, Debug)]
enum Kind {
    Tap,
    Tunnel,
}

/// The peer at the device's other side.
struct Peer {
    device: Tap,
    macs: Option<[[u8; 6]; 2]>,
}

impl Peer {
    fn new(kind: Kind, topology: &Topology) -> Self {
        let server = &topology.server;
        let device = match kind {
            Kind::Tap => Tap::new(server, "t0"),
            Kind::Tunnel => Tap::tunnel(server, "t0"),
        };
        let device = device.unwrap();
        server.ip("addr add 10.78.0.1/24 dev t0").unwrap();
        server.ip("addr add fd78::1/64 dev t0 nodad").unwrap();
        server.ip("link set t0 up").unwrap();
        if matches!(kind, Kind::Tunnel) {
            return Self { device, macs: None };
        }
        for address in ["10.78.0.2", "fd78::2"] {
            server.ip(&format!("neigh replace {address} lladdr 02:00:00:00:00:02 dev t0 nud permanent")).unwrap();
        }
        let mac: Mac = server.read_device("t0/address").unwrap().parse().unwrap();
        Self { device, macs: Some([mac.octets(), [2, 0, 0, 0, 0, 2]]) }
    }

    fn frame(&self, segment: &Segment) -> Vec<u8> {
        match self.macs {
            Some([to, from]) => frame(to, from, &[], &segment.packet()),
            None => segment.packet(),
        }
    }

    fn send(&self, segment: &Segment) {
        self.device.send(&self.frame(segment)).unwrap();
    }

    /// The next segment to this port.
    fn receive(&self, port: u16, time: Duration) -> Option<Segment> {
        loop {
            let segment = self.device.receive(time)?;
            if segment.destination.port() == port {
                return Some(segment);
            }
        }
    }

    /// A first segment without bytes.
    fn open(&self, family: Family, port: u16) -> Segment {
        let from: IpAddr = match family {
            Family::V4 => Ipv4Addr::new(10, 78, 0, 2).into(),
            Family::V6 => "fd78::2".parse().unwrap(),
        };
        let own = SocketAddr::new(from, port);
        let mut syn = Segment::new(own, plain(family), SYN);
        (syn.sequence, syn.options) = (999, ORDINARY_OPTIONS.to_vec());
        self.send(&syn);
        let greeting = self.receive(port, SOON).expect("a SYN-ACK");
        assert!(greeting.has(SYN | ACK), "{greeting:?}");
        let mut first = Segment::new(own, plain(family), ACK);
        (first.sequence, first.acknowledgment) = (1000, greeting.sequence.wrapping_add(1));
        first.options = [&[1, 1, 8, 10, 0, 0, 0x10, 1][..], &greeting.option(8).unwrap()[..4]].concat();
        first
    }

    /// The server's words, until there are so many answers or it ends.
    fn words(&self, port: u16, answers: usize) -> String {
        let (mut words, mut expected) = (String::new(), None);
        while words.matches("HTTP/1.1").count() < answers {
            let Some(segment) = self.receive(port, SOON) else { break };
            if segment.has(RST) {
                break;
            }
            // what is sent again is heard once
            if expected.is_none_or(|expected| segment.sequence == expected) && !segment.payload.is_empty() {
                expected = Some(segment.sequence.wrapping_add(segment.length()));
                words += &String::from_utf8_lossy(&segment.payload);
            }
        }
        words
    }
}

/// A head of this length.
fn long(path: &str, length: usize) -> Vec<u8> {
    let begin = format!("GET {path} HTTP/1.1\r\nHost: server\r\nX: ");
    let filler = "x".repeat(length - begin.len() - 4);
    format!("{begin}{filler}\r\n\r\n").into_bytes()
}

fn at_each(action: impl Fn(&Rig, &Peer, Kind)) {
    if !ready() {
        return;
    }
    for kind in [Kind::Tap, Kind::Tunnel] {
        for door in Door::GUARDS {
            let topology = Topology::new().unwrap();
            let peer = Peer::new(kind, &topology);
            eprintln!("{kind:?}");
            action(&Rig::at(door, POLICY, topology), &peer, kind);
        }
    }
}

#[test]
fn requests_of_one_segment_are_ruled() {
    at_each(|rig, peer, kind| {
        for (port, family) in (4000..).step_by(10).zip([Family::V4, Family::V6]) {
            for (port, bytes, status) in [(port, PUBLIC, "200"), (port + 1, SECRET, "503")] {
                let mut first = peer.open(family, port);
                first.payload = bytes.to_vec();
                peer.send(&first);
                let words = peer.words(port, 1);
                assert!(
                    words.starts_with(&format!("HTTP/1.1 {status}")),
                    "{kind:?}, {family:?}: {words}: {:?}",
                    rig.verdicts()
                );
            }
            // A head in pieces is held, and acknowledged over the same device.
            let mut first = peer.open(family, port + 2);
            for piece in PUBLIC.chunks(12) {
                first.payload = piece.to_vec();
                peer.send(&first);
                first.sequence += piece.len() as u32;
            }
            assert!(peer.words(port + 2, 1).starts_with("HTTP/1.1 200"), "{kind:?}, {family:?}: {:?}", rig.verdicts());
        }
        assert!(rig.server.seen().iter().all(|seen| !seen.line.contains("secret")));
    });
}

#[test]
fn frames_that_stand_for_many_segments_are_ruled() {
    at_each(|rig, peer, kind| {
        let merged = |first: &Segment, bytes: &[u8], size: u16| {
            let segment = Segment { payload: bytes.to_vec(), ..first.clone() };
            peer.device.send_merged(&peer.frame(&segment), size).unwrap();
        };
        // Heads that no single segment bears whole.
        for (port, length) in (4000..).step_by(2).zip([1401, 2800, 6000, 12_000]) {
            for (port, path, status) in [(port, "/10", "200"), (port + 1, "/secret/10", "503")] {
                merged(&peer.open(Family::V4, port), &long(path, length), 1400);
                let words = peer.words(port, 1);
                assert!(
                    words.starts_with(&format!("HTTP/1.1 {status}")),
                    "{kind:?}, {length}: {words}: {:?}",
                    rig.verdicts()
                );
            }
        }
        // Later requests, the last of which is refused wherever the cuts are. (More than 32 at once come again.)
        for (port, size) in (5000..).zip([100, 536, 1400]) {
            let mut first = peer.open(Family::V4, port);
            first.payload = PUBLIC.to_vec();
            peer.send(&first);
            assert!(peer.words(port, 1).starts_with("HTTP/1.1 200"), "{kind:?}");
            first.sequence += PUBLIC.len() as u32;
            let stream = [PUBLIC.repeat(20), SECRET.to_vec()].concat();
            let before = rig.verdicts();
            merged(&first, &stream, size);
            let refused = || rig.verdicts().since(&before).count(abi::FIEF_REQUEST_REFUSED);
            wait_until(SOON, || refused() >= 1).unwrap_or_else(|_| panic!("{kind:?}, {size}: {:?}", rig.verdicts()));
        }
        // A long body behind a request is not read as one.
        let mut first = peer.open(Family::V4, 6000);
        let head = b"POST /10 HTTP/1.1\r\nContent-Length: 30000\r\nConnection: close\r\n\r\n";
        first.payload = head.to_vec();
        peer.send(&first);
        first.sequence += head.len() as u32;
        merged(&first, &SECRET.repeat(30_000 / SECRET.len() + 1)[..30_000], 1400);
        wait_until(SOON, || rig.server.seen().iter().any(|seen| seen.body == 30_000))
            .unwrap_or_else(|_| panic!("{kind:?}: {:?}", rig.verdicts()));
        assert!(rig.server.seen().iter().all(|seen| !seen.line.contains("secret")), "{kind:?}");
    });
}

/// A second link comes, is guarded by the next apply, and goes again, while requests come over both.
#[test]
fn rules_hold_while_an_interface_comes_and_goes() {
    if !ready() {
        return;
    }
    for door in Door::GUARDS {
        let rig = Rig::new(door, POLICY);
        let front = &rig.front;
        let (server, clients) = (&front.topology.server, &front.topology.clients);
        let over_the_first = |path: &str| front.status(path);
        let over_the_second =
            |path: &str| front.status_from("10.66.3.2".parse().unwrap(), "10.66.3.1:80".parse().unwrap(), path);
        let done = AtomicBool::new(false);
        let asked = std::thread::scope(|scope| {
            let asking = scope.spawn(|| {
                let mut asked = 0;
                while !done.load(Ordering::Relaxed) {
                    assert_eq!((over_the_first("/10"), over_the_first("/secret/1")), (Ok(200), Ok(503)), "{door:?}");
                    asked += 1;
                }
                asked
            });
            for _ in 0..5 {
                let link = Veth::between((server, "s2"), (clients, "c2")).unwrap();
                clients.ip("addr add 10.66.3.2/30 dev c2").unwrap();
                clients.ip("link set c2 up").unwrap();
                server.sysctl("net/ipv4/conf/s2/rp_filter", "0").unwrap();
                server.ip("addr add 10.66.3.1/30 dev s2").unwrap();
                server.ip("link set s2 up").unwrap();
                assert_eq!(over_the_second("/secret/1"), Err(Errno::ECONNREFUSED), "{door:?}");
                front.apply(POLICY).unwrap();
                assert_eq!((over_the_second("/10"), over_the_second("/secret/1")), (Ok(200), Ok(503)), "{door:?}");
                // It goes while a connection has said half of its request.
                let from = "10.66.3.2:0".parse().unwrap();
                let mut half = connect_from(clients, from, "10.66.3.1:80".parse().unwrap()).unwrap();
                half.write_all(&PUBLIC[..9]).unwrap();
                server.ip("link del s2").unwrap();
                drop(link);
            }
            front.apply(POLICY).unwrap();
            done.store(true, Ordering::Relaxed);
            asking.join().unwrap()
        });
        assert!(asked > 0, "{door:?}");
        assert!(rig.server.seen().iter().all(|seen| !seen.line.contains("secret")), "{door:?}");
    }
}
