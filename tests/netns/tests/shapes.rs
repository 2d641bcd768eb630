// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Packets of unusual shape at a guarded port: dropped and counted, or read; none is let round the gate.
//!
//! The packets are sent past the clients' kernel. An ordinary connection afterwards says when all of them are through,
//! since the link keeps their order.

use std::net::{IpAddr, SocketAddr};
use std::process::Stdio;
use std::time::Duration;

use fief_bpf::abi;
use fief_testkit::segment::{ACK, ECE, FIN, PSH, RST, SYN, Segment, TCP, URG, ipv4, ipv6, set_checksum};
use fief_testkit::{
    Ending, Family, Feature, ORDINARY_OPTIONS, PlainServer, Process, RawClients, RawConnection, require, wait_until,
};
use fief_tests_netns::SOON;
use fief_tests_netns::front::{Front, Gate, Verdicts, anywhere, connect_from, plain, ready};

/// Nobody may have what is below /secret.
const POLICY: &str = r#"
[container.web]
[listener.plain]
address = "[::]:80"
[[listener.plain.client]]
from = ["any"]
container = "web"
[[listener.plain.request]]
path = "/secret/*"
refuse = "drop"
"#;

const SECRET: &[u8] = b"GET /secret/10 HTTP/1.1\r\nHost: server\r\n\r\n";
const OPEN: &[u8] = b"GET /close/10 HTTP/1.1\r\nHost: server\r\n\r\n";

/// A packet with its VLAN tags.
type Packet = (Vec<u16>, Vec<u8>);
type Shape = (&'static str, Vec<Packet>);

/// Every way to wrap a segment that leaves the segment itself as it is.
fn wrapped(segment: &Segment) -> Vec<Shape> {
    let tcp = segment.tcp();
    // IPv6 wants the whole header in the first piece; pieces have multiples of eight bytes.
    let cut = if tcp.len() > 24 { 24 } else { 16 };
    let mut shapes = tagged(&segment.packet());
    shapes.extend(match (segment.source.ip(), segment.destination.ip()) {
        (IpAddr::V4(from), IpAddr::V4(to)) => {
            let options = |bytes: &[u8]| vec![(vec![], ipv4(from, to, bytes, 0x4000, TCP, &tcp))];
            let pieces = |at: usize| {
                let rest = (at / 8) as u16;
                vec![
                    (vec![], ipv4(from, to, &[], 0x2000, TCP, &tcp[..at])),
                    (vec![], ipv4(from, to, &[], rest, TCP, &tcp[at..])),
                ]
            };
            vec![
                ("no-operation options", options(&[1; 4])),
                ("the most options that there can be", options(&[1; 40])),
                ("record route", options(&[7, 7, 4, 0, 0, 0, 0, 1])),
                ("a timestamp option", options(&[68, 12, 5, 0, 0, 0, 0, 0, 0, 0, 0, 0])),
                ("router alert", options(&[148, 4, 0, 0])),
                ("fragments, the first as short as can be", pieces(8)),
                ("fragments, the first with another header behind its end", {
                    // The kernel cuts off what a frame holds behind the packet.
                    let mut pieces = pieces(8);
                    pieces[0].1.extend([0, 0, 0, 0, 0x50, RST, 0, 0, 0, 0, 0, 0]);
                    pieces
                }),
                ("fragments", pieces(cut)),
                ("fragments, the last first", pieces(cut).into_iter().rev().collect()),
            ]
        }
        (IpAddr::V6(from), IpAddr::V6(to)) => {
            let headers = |first: u8, bytes: &[u8]| vec![(vec![], ipv6(from, to, first, &[bytes, &tcp].concat()))];
            let pad = |next: u8| [next, 0, 1, 4, 0, 0, 0, 0];
            let piece = |at: std::ops::Range<usize>, more: u16| {
                let offset = (at.start as u16 & !7) | more;
                let header = [&[TCP, 0][..], &offset.to_be_bytes(), &[0, 0, 47, 11]].concat();
                (vec![], ipv6(from, to, 44, &[&header, &tcp[at]].concat()))
            };
            vec![
                ("hop-by-hop options", headers(0, &pad(TCP))),
                ("destination options", headers(60, &pad(TCP))),
                ("a routing header", headers(43, &[TCP, 0, 0, 0, 0, 0, 0, 0])),
                ("a lone fragment", headers(44, &[TCP, 0, 0, 0, 0, 0, 47, 11])),
                (
                    "one header after the other",
                    headers(0, &[pad(60), pad(43), [44, 0, 0, 0, 0, 0, 0, 0], [TCP, 0, 0, 0, 0, 0, 0, 9]].concat()),
                ),
                ("more headers than anybody needs", headers(60, &[pad(60).repeat(20), pad(TCP).to_vec()].concat())),
                ("fragments", vec![piece(0..cut, 1), piece(cut..tcp.len(), 0)]),
            ]
        }
        _ => unreachable!("one family"),
    });
    shapes
}

fn tagged(packet: &[u8]) -> Vec<Shape> {
    vec![
        ("a priority tag", vec![(vec![0], packet.to_vec())]),
        ("two priority tags", vec![(vec![0, 0], packet.to_vec())]),
        ("three priority tags", vec![(vec![0, 0, 0], packet.to_vec())]),
        ("more priority tags than anybody needs", vec![(vec![0; 30], packet.to_vec())]),
        (FOREIGN, vec![(vec![5], packet.to_vec())]),
        (FOREIGN, vec![(vec![0, 5], packet.to_vec())]),
    ]
}

/// What the kernel does not take either.
const NOT_TAKEN: [&str; 1] = [FOREIGN];

/// No device is there for it, so the kernel drops it behind the gate.
const FOREIGN: &str = "a tag of a VLAN";

/// SYNs whose lengths or options do not fit.
fn broken(syn: &Segment) -> Vec<Shape> {
    let of = |tcp: Vec<u8>| -> Vec<u8> {
        match (syn.source.ip(), syn.destination.ip()) {
            (IpAddr::V4(from), IpAddr::V4(to)) => ipv4(from, to, &[], 0x4000, TCP, &tcp),
            (IpAddr::V6(from), IpAddr::V6(to)) => ipv6(from, to, TCP, &tcp),
            _ => unreachable!("one family"),
        }
    };
    let words = |count: u8| {
        let mut tcp = syn.tcp();
        tcp[12] = count << 4;
        set_checksum(&mut tcp, syn.source.ip(), syn.destination.ip());
        of(tcp)
    };
    let options = |bytes: &[u8]| of(Segment { options: bytes.to_vec(), ..syn.clone() }.tcp());
    let one = |packet| vec![(vec![], packet)];
    let length = |change: i32| {
        let mut packet = syn.packet();
        let at = if syn.source.is_ipv4() { 2 } else { 4 };
        let told = i32::from(u16::from_be_bytes([packet[at], packet[at + 1]])) + change;
        packet[at..at + 2].copy_from_slice(&u16::try_from(told).unwrap().to_be_bytes());
        one(packet)
    };
    vec![
        ("a header of four words", one(words(4))),
        ("a header of no words", one(words(0))),
        ("a header longer than the packet", one(words(15))),
        ("an option of no length", one(options(&[2, 0, 5, 0xb4]))),
        ("an option that ends behind the header", one(options(&[1, 1, 2, 40]))),
        ("an option without a length", one(options(&[1, 1, 1, 8]))),
        ("a maximum segment size of three bytes", one(options(&[2, 3, 5, 1]))),
        ("a maximum segment size of zero", one(options(&[2, 4, 0, 0]))),
        ("a window scale beyond the most", one(options(&[3, 3, 200, 1]))),
        ("forty unknown options", one(options(&[253, 2].repeat(20)))),
        ("a packet that says it is longer", length(100)),
        ("a packet that says it is shorter than its header", length(-30)),
        ("half a header", one(of(syn.tcp()[..10].to_vec()))),
    ]
}

struct Rig {
    front: Front,
    server: PlainServer,
    clients: RawClients,
}

impl Rig {
    fn new(gate: Gate) -> Self {
        let front = Front::new(gate, POLICY);
        let server = PlainServer::start(&front.topology.server, "[::]:80".parse().unwrap()).unwrap();
        let clients = RawClients::new(&front.topology).unwrap();
        Self { front, server, clients }
    }

    fn open(&self, client: SocketAddr) -> RawConnection<'_> {
        let server = plain(if client.is_ipv4() { Family::V4 } else { Family::V6 });
        let open = RawConnection::open(&self.clients, [client, server], 4711, &ORDINARY_OPTIONS, SOON);
        open.unwrap().unwrap_or_else(|| panic!("no SYN-ACK for {client}"))
    }

    fn send(&self, packets: &[Packet]) {
        for (tags, packet) in packets {
            self.clients.send_packet(tags, packet).unwrap();
        }
    }

    /// Returns when the server has answered an ordinary request, and so everything that was sent before is through.
    fn pass_through(&self, n: u16) {
        let mut connection = self.open((RawClients::address(Family::V4, 999), n).into());
        let (words, _) = connection.converse(OPEN, std::slice::from_ref(&(0..OPEN.len())), SOON).unwrap();
        assert!(words.starts_with(b"HTTP/1.1 200"), "{:?}", String::from_utf8_lossy(&words));
    }

    fn sockets(&self, port: u16) -> Vec<String> {
        sockets(&self.front, port)
    }

    fn answered(&self, client: SocketAddr) -> bool {
        let mut found = false;
        while let Some(segment) = self.clients.receive(client, Duration::from_millis(1)) {
            found |= segment.has(SYN | ACK);
        }
        found
    }
}

/// States of the server's sockets that belong to a client's port, as /proc writes them (01 established, 03 request).
fn sockets(front: &Front, port: u16) -> Vec<String> {
    let read = |file: &str| std::fs::read_to_string(format!("/proc/thread-self/net/{file}")).unwrap();
    let text = front.topology.server.run(|| read("tcp") + &read("tcp6")).unwrap();
    let fields = text.lines().filter_map(|line| {
        let words: Vec<_> = line.split_whitespace().collect();
        let remote = words.get(2)?.rsplit(':').next()?;
        (u16::from_str_radix(remote, 16) == Ok(port)).then(|| (*words.get(3).unwrap()).to_owned())
    });
    fields.collect()
}

fn client(family: Family, n: usize) -> SocketAddr {
    (RawClients::address(family, 100 + n as u16), 2000 + n as u16).into()
}

fn shapes_of(rig: &Rig, before: &Verdicts) -> u64 {
    rig.front.verdicts().since(before).count(abi::FIEF_SHAPE)
}

#[test]
fn a_handshake_of_unusual_shape_is_read_or_dropped_and_counted() {
    if !ready() {
        return;
    }
    for gate in Gate::GUARDS {
        let rig = Rig::new(gate);
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
                    "{gate:?}, {family:?}, {name}: neither read nor counted"
                );
                let sockets = rig.sockets(syn.source.port());
                assert!(sockets.is_empty(), "{gate:?}, {family:?}, {name}: let round the gate, {sockets:?}");
            }
        }
        assert_eq!(rig.server.accepted(), 0, "{gate:?}");
    }
}

#[test]
fn a_refused_request_of_unusual_shape_never_reaches_the_server() {
    if !ready() {
        return;
    }
    for gate in Gate::GUARDS {
        let rig = Rig::new(gate);
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
                rig.pass_through(3000 + n as u16);
            }
        }
        let seen = rig.server.seen();
        assert!(seen.iter().all(|seen| !seen.line.contains("secret")), "{gate:?}: {seen:?}");
    }
}

#[test]
fn a_cookie_makes_one_connection() {
    if !ready() || !require(Feature::Python) {
        return;
    }
    for gate in Gate::GUARDS {
        let front = Front::new(gate, POLICY);
        let mut server = front.server_command("python3");
        server.args(["-m", "http.server", "80", "--bind", "::"]).stdout(Stdio::null()).stderr(Stdio::null());
        let _server = Process::start(server).unwrap();
        let clients = RawClients::new(&front.topology).unwrap();
        for (n, family) in [Family::V4, Family::V6].into_iter().enumerate() {
            wait_until(SOON, || connect_from(&front.topology.clients, anywhere(family), plain(family)).is_ok())
                .unwrap();
            let ends = [client(family, n), plain(family)];
            let open = || RawConnection::open(&clients, ends, 4711, &ORDINARY_OPTIONS, SOON).unwrap().unwrap();
            let mut connection = open();
            let copy = connection.segment(PSH | ACK, 0, OPEN);
            let (words, ending) = connection.converse(OPEN, std::slice::from_ref(&(0..OPEN.len())), SOON).unwrap();
            assert!(words.starts_with(b"HTTP/1.0 404") && ending == Ending::Closed, "{gate:?}: {ending:?}");
            drop(connection);
            wait_until(SOON, || sockets(&front, copy.source.port()).is_empty()).unwrap();
            let before = front.verdicts();
            for _ in 0..3 {
                clients.send(&copy).unwrap();
            }
            wait_until(SOON, || front.verdicts().since(&before).count(abi::FIEF_ACK_BAD) == 3)
                .unwrap_or_else(|_| panic!("{gate:?}, {family:?}: {:?}", front.verdicts().since(&before)));
            assert_eq!(front.verdicts().since(&before).requests(), 0, "{gate:?}, {family:?}");
            assert!(sockets(&front, copy.source.port()).is_empty(), "{gate:?}, {family:?}");
        }
    }
}

/// The segment with its urgent pointer at one byte of its payload, or behind it.
fn urgent(segment: &Segment, byte: u16) -> Packet {
    let (from, to) = (segment.source.ip(), segment.destination.ip());
    let mut tcp = segment.tcp();
    tcp[18..20].copy_from_slice(&(byte + 1).to_be_bytes());
    set_checksum(&mut tcp, from, to);
    let packet = match (from, to) {
        (IpAddr::V4(from), IpAddr::V4(to)) => ipv4(from, to, &[], 0x4000, TCP, &tcp),
        (IpAddr::V6(from), IpAddr::V6(to)) => ipv6(from, to, TCP, &tcp),
        _ => unreachable!("one family"),
    };
    (vec![], packet)
}

#[test]
fn urgent_bytes_make_no_other_request_of_what_was_ruled() {
    if !ready() {
        return;
    }
    // The kernel takes the urgent byte out of what the server reads.
    let words = b"GET /sXecret/10 HTTP/1.1\r\nHost: server\r\n\r\n";
    let at = 6;
    for gate in Gate::ALL {
        let rig = Rig::new(gate);
        for (n, family) in [Family::V4, Family::V6].into_iter().enumerate() {
            let before = (gate != Gate::Stock).then(|| rig.front.verdicts());
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
                    assert_eq!(secrets(), 0, "{gate:?}, {family:?}");
                    assert_eq!(shapes_of(&rig, &before), 2, "{gate:?}, {family:?}");
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
    // Or the tests above would prove nothing.
    let rig = Rig::new(Gate::Stock);
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
            let reached = !rig.sockets(2000 + n as u16).is_empty();
            assert_eq!(reached, !NOT_TAKEN.contains(&name), "{family:?}, {name}");
        }
    }
}

#[test]
fn shapes_at_other_ports_are_nobodys_business() {
    if !ready() {
        return;
    }
    let reached = [Gate::Stock, Gate::Own, Gate::Kernel].map(|gate| {
        let rig = Rig::new(gate);
        let _other = PlainServer::start(&rig.front.topology.server, "[::]:81".parse().unwrap()).unwrap();
        let mut n = 0;
        let mut reached = Vec::new();
        for family in [Family::V4, Family::V6] {
            let mut other = plain(family);
            other.set_port(81);
            for index in 0..wrapped(&Segment::new(client(family, 0), other, SYN)).len() {
                n += 1;
                let (name, packets) = wrapped(&Segment::new(client(family, n), other, SYN)).swap_remove(index);
                rig.send(&packets);
                rig.pass_through(3000 + n as u16);
                reached.push((name, rig.answered(client(family, n)) || !rig.sockets(2000 + n as u16).is_empty()));
            }
        }
        reached
    });
    let [stock, own, kernel] = reached;
    assert!(own == stock && kernel == stock, "{stock:?}\n{own:?}\n{kernel:?}");
}

#[test]
fn words_in_a_syn_are_not_acknowledged() {
    if !ready() {
        return;
    }
    for gate in Gate::ALL {
        let rig = Rig::new(gate);
        for (n, family) in [Family::V4, Family::V6].into_iter().enumerate() {
            let mut syn = Segment::new(client(family, n), plain(family), SYN);
            (syn.sequence, syn.payload) = (77, SECRET.to_vec());
            rig.clients.send(&syn).unwrap();
            let answer = rig.clients.receive(syn.source, SOON).unwrap();
            assert!(answer.has(SYN | ACK), "{gate:?}: {answer:?}");
            assert_eq!(answer.acknowledgment, 78, "{gate:?}");
        }
        rig.pass_through(3000);
        assert!(rig.server.seen().iter().all(|seen| !seen.line.contains("secret")));
    }
}

#[test]
fn flags_that_open_nothing_are_answered_as_ever() {
    if !ready() {
        return;
    }
    // A bare ACK apart: where cookies are in use it draws no answer, lest a lost first segment kill its connection.
    let flags = [0, FIN, RST, RST | ACK, SYN | RST, SYN | FIN, FIN | PSH | URG, SYN | ACK, SYN | ECE];
    let answers = Gate::ALL.map(|gate| {
        let rig = Rig::new(gate);
        let mut answers = Vec::new();
        for family in [Family::V4, Family::V6] {
            for (n, &flags) in flags.iter().enumerate() {
                rig.clients.send(&Segment::new(client(family, n), plain(family), flags)).unwrap();
                // All of them went the same way as this one.
                rig.pass_through(3000 + answers.len() as u16);
                let answer = rig.clients.receive(client(family, n), Duration::from_millis(1));
                answers.push((flags, answer.map(|answer| answer.flags & (SYN | RST | FIN))));
            }
        }
        answers
    });
    let [stock, own, kernel] = answers;
    assert!(own == stock && kernel == stock, "{stock:?}\n{own:?}\n{kernel:?}");
}

#[test]
fn forged_acks_are_dropped_and_counted() {
    if !ready() {
        return;
    }
    for gate in Gate::GUARDS {
        let rig = Rig::new(gate);
        for family in [Family::V4, Family::V6] {
            let before = rig.front.verdicts();
            for n in 0..50 {
                let mut forged = Segment::new(client(family, n), plain(family), PSH | ACK);
                (forged.sequence, forged.acknowledgment) = (1000, 0x1234_5678 + n as u32);
                forged.payload = OPEN.to_vec();
                rig.clients.send(&forged).unwrap();
            }
            rig.pass_through(3000 + u16::from(family == Family::V6));
            let new = rig.front.verdicts().since(&before);
            let counted = new.count(abi::FIEF_ACK_BAD) + new.count(abi::FIEF_ACK_LIMIT);
            assert_eq!(counted, 50, "{gate:?}, {family:?}: {new:?}");
        }
        assert_eq!(rig.server.accepted(), 2, "only the two ordinary ones");
    }
}

#[test]
fn a_cookie_is_good_for_its_own_connection_only() {
    if !ready() {
        return;
    }
    for gate in Gate::GUARDS {
        let rig = Rig::new(gate);
        for (n, family) in [Family::V4, Family::V6].into_iter().enumerate() {
            let mut connection = rig.open(client(family, n));
            let good = connection.segment(PSH | ACK, 0, OPEN);
            let other = |change: &dyn Fn(&mut Segment)| {
                let mut segment = good.clone();
                change(&mut segment);
                segment
            };
            let mut forgeries = vec![
                other(&|segment| segment.source.set_port(9)),
                other(&|segment| segment.source.set_ip(RawClients::address(family, 77))),
                other(&|segment| segment.acknowledgment ^= 0x8000_0000),
            ];
            // The kernel's cookie has the segment size in its lowest bits and is taken less the sequence number: a
            // neighbouring number is another size to it.
            if gate == Gate::Own {
                forgeries.push(other(&|segment| segment.sequence = segment.sequence.wrapping_add(1)));
                forgeries.push(other(&|segment| segment.acknowledgment = segment.acknowledgment.wrapping_add(1)));
            }
            let before = rig.front.verdicts();
            let accepted = rig.server.accepted();
            for forgery in &forgeries {
                rig.clients.send(forgery).unwrap();
            }
            rig.pass_through(3000 + n as u16);
            let new = rig.front.verdicts().since(&before);
            let counted = new.count(abi::FIEF_ACK_BAD) + new.count(abi::FIEF_ACK_LIMIT);
            let expected = (forgeries.len() as u64, accepted + 1);
            assert_eq!((counted, rig.server.accepted()), expected, "{gate:?}, {family:?}: {new:?}");
            // The rightful owner was not harmed.
            let (words, ending) = connection.converse(OPEN, std::slice::from_ref(&(0..OPEN.len())), SOON).unwrap();
            assert!(words.starts_with(b"HTTP/1.1 200") && ending == Ending::Closed, "{gate:?}: {ending:?}");
        }
    }
}
