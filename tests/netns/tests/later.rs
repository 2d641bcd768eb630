// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A verdict upon a later request of a connection counts only for bytes that TCP takes: nobody has one request ruled and
//! another one served, and who honestly repeats what was lost is served, and counted once, however he cuts it.
//!
//! What the gate rules and TCP drops behind it is made with a wrong checksum or an old timestamp.

use std::cell::Cell;
use std::ops::Range;
use std::time::{Duration, Instant};

use fief_bpf::abi;
use fief_testkit::segment::{ACK, Segment, TCP, ipv4, ipv6};
use fief_testkit::{
    Ending, Family, Feature, Nginx, NginxConfig, ORDINARY_OPTIONS, PlainServer, RawClients, RawConnection, Topology,
    digest, require, wait_until,
};
use fief_tests_netns::SOON;
use fief_tests_netns::front::{Front, Gate, Verdicts, plain, ready};
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};

const POLICY: &str = r#"
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

const FIRST: &[u8] = b"GET /10 HTTP/1.1\r\n\r\n";
const PUBLIC: &[u8] = b"GET /public/10 HTTP/1.1\r\nX: 1\r\n\r\n";
const SECRET: &[u8] = b"GET /secret/10 HTTP/1.1\r\nX: 1\r\n\r\n";

/// Why TCP drops a segment that the gate has ruled.
#[derive(Clone, Copy, Debug)]
enum Flaw {
    Checksum,
    Timestamp,
}

impl Flaw {
    const ALL: [Flaw; 2] = [Flaw::Checksum, Flaw::Timestamp];

    fn packet(self, mut segment: Segment) -> Vec<u8> {
        match self {
            Flaw::Checksum => {
                let mut tcp = segment.tcp();
                tcp[16] ^= 0x55;
                match (segment.source.ip(), segment.destination.ip()) {
                    (std::net::IpAddr::V4(from), std::net::IpAddr::V4(to)) => ipv4(from, to, &[], 0x4000, TCP, &tcp),
                    (std::net::IpAddr::V6(from), std::net::IpAddr::V6(to)) => ipv6(from, to, TCP, &tcp),
                    _ => unreachable!("one family"),
                }
            }
            Flaw::Timestamp => {
                // The connection's begin at 0x1000.
                segment.options[4..8].copy_from_slice(&1u32.to_be_bytes());
                segment.packet()
            }
        }
    }
}

struct Rig {
    front: Front,
    server: PlainServer,
    clients: RawClients,
    next: Cell<u16>,
}

impl Rig {
    fn new(gate: Gate, policy: &str) -> Self {
        let front = Front::new(gate, policy);
        let server = PlainServer::start(&front.topology.server, "[::]:80".parse().unwrap()).unwrap();
        let clients = RawClients::new(&front.topology).unwrap();
        Self { front, server, clients, next: 2000.into() }
    }

    /// Packets arrive in the order in which they are sent. (GRO keeps good ones for a moment, which broken ones overtake.)
    fn in_order(gate: Gate, policy: &str) -> Self {
        let rig = Self::new(gate, policy);
        let ethtool = ["-K", Topology::SERVER, "gro", "off"];
        fief_testkit::run(rig.front.topology.server.command("ethtool").args(ethtool)).unwrap();
        rig
    }

    /// A connection whose first request is served.
    fn open(&self, family: Family) -> Client<'_> {
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

    fn verdicts(&self) -> Verdicts {
        self.front.verdicts()
    }
}

/// A connection to the guarded server; offsets count from behind its first request.
struct Client<'a> {
    rig: &'a Rig,
    connection: RawConnection<'a>,
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

    fn send(&self, offset: usize, bytes: &[u8]) {
        self.clients().send(&self.segment(offset, bytes)).unwrap();
    }

    /// Sends what reaches the gate and not TCP.
    fn send_in_vain(&self, flaw: Flaw, offset: usize, bytes: &[u8]) {
        self.clients().send_packet(&[], &flaw.packet(self.segment(offset, bytes))).unwrap();
    }

    /// What the server saw on this connection.
    fn served(&self) -> Vec<(String, u64)> {
        self.rig.server.seen()[self.seen..].iter().map(|seen| (seen.line.clone(), seen.digest)).collect()
    }

    /// Waits until the server has seen these requests, and no others.
    fn wait_for(&self, requests: &[&[u8]]) {
        let _ = wait_until(SOON, || self.served().len() >= requests.len());
        let expected: Vec<_> = requests.iter().map(|request| (line(request), digest(request))).collect();
        assert_eq!(self.served(), expected, "{:?}", self.rig.verdicts());
    }

    /// How much of the stream behind the first request the server has acknowledged.
    fn acknowledged(&self) -> usize {
        let all = self.connection.acknowledged.wrapping_sub(self.connection.first).wrapping_sub(1) as usize;
        all.saturating_sub(FIRST.len())
    }
}

fn line(request: &[u8]) -> String {
    String::from_utf8_lossy(request).lines().next().unwrap().to_owned()
}

/// Does the same on a fresh connection for every gate, family and flaw; how many replacements were counted at each.
fn for_each_flaw(policy: &str, action: impl Fn(&Client<'_>, Flaw)) {
    for gate in Gate::GUARDS {
        let rig = Rig::in_order(gate, policy);
        for family in [Family::V4, Family::V6] {
            for flaw in Flaw::ALL {
                eprintln!("{family:?}, {flaw:?}");
                let before = rig.verdicts();
                action(&rig.open(family), flaw);
                let new = rig.verdicts().since(&before);
                assert_eq!(new.count(abi::FIEF_REQUEST_UNTRACKED), 0, "{new:?}");
            }
        }
        let all = rig.verdicts();
        assert!(all.count(abi::FIEF_REQUEST_REPLACED) >= 4, "{gate:?}: {all:?}");
        let ruled = "a replacement was ruled, not held against what it would replace";
        assert_eq!(all.count(abi::FIEF_REQUEST_REFUSED), 0, "{gate:?}: {ruled}: {all:?}");
    }
}

#[test]
fn a_request_that_tcp_dropped_cannot_be_replaced() {
    if !ready() {
        return;
    }
    let [shorter, longer] =
        [&b"GET /secret/1 HTTP/1.1\r\n\r\n"[..], &b"GET /secret/1 HTTP/1.1\r\nXX: 11111\r\n\r\n"[..]];
    for_each_flaw(POLICY, |client, flaw| {
        client.send_in_vain(flaw, 0, PUBLIC);
        for other in [SECRET, shorter, longer] {
            client.send(0, other);
        }
        client.send(0, PUBLIC);
        client.wait_for(&[FIRST, PUBLIC]);
        // And so on with the next.
        client.send_in_vain(flaw, PUBLIC.len(), PUBLIC);
        client.send(PUBLIC.len(), SECRET);
        client.send(PUBLIC.len(), PUBLIC);
        client.wait_for(&[FIRST, PUBLIC, PUBLIC]);
    });
}

#[test]
fn a_body_does_not_become_a_request_by_another_head_before_it() {
    if !ready() {
        return;
    }
    let head = format!("POST /10 HTTP/1.1\r\nContent-Length: {}\r\n\r\n", SECRET.len());
    let other = format!("GET /1 HTTP/1.1\r\nX: {}\r\n\r\n", "x".repeat(head.len() - 24));
    assert_eq!(head.len(), other.len());
    let whole = [head.as_bytes(), SECRET].concat();
    for_each_flaw(POLICY, |client, flaw| {
        client.send_in_vain(flaw, 0, head.as_bytes());
        client.send(head.len(), SECRET);
        client.send(0, other.as_bytes());
        client.send(0, head.as_bytes());
        client.wait_for(&[FIRST, &whole]);
    });
}

#[test]
fn pieces_of_a_head_cannot_be_replaced() {
    if !ready() {
        return;
    }
    let (begin, rest) = (0..12, 12..PUBLIC.len());
    for_each_flaw(POLICY, |client, flaw| {
        // the begin, before the rest is there, and after it
        client.send_in_vain(flaw, 0, &PUBLIC[begin.clone()]);
        client.send(0, &SECRET[begin.clone()]);
        client.send(rest.start, &PUBLIC[rest.clone()]);
        client.send(0, &SECRET[begin.clone()]);
        client.send(0, PUBLIC);
        client.wait_for(&[FIRST, PUBLIC]);
        // the begin and a little more, so that it is another cut
        let at = PUBLIC.len();
        client.send_in_vain(flaw, at, &PUBLIC[begin.clone()]);
        client.send(at, &SECRET[..begin.end + 2]);
        client.send(at, PUBLIC);
        client.wait_for(&[FIRST, PUBLIC, PUBLIC]);
    });
}

#[test]
fn the_begin_of_a_head_cannot_be_replaced_while_tcp_keeps_it_out_of_order() {
    if !ready() {
        return;
    }
    let post = b"POST /10 HTTP/1.1\r\nContent-Length: 5\r\n\r\nhello";
    let (head, last) = (post.len() - 5, post.len() - 1);
    for_each_flaw(POLICY, |client, flaw| {
        client.send(0, &post[..head]);
        client.send(head, &post[head..last]);
        // the body's last byte is missing: TCP keeps this head, or has dropped it
        client.send(post.len(), PUBLIC);
        client.send_in_vain(flaw, post.len() + PUBLIC.len(), PUBLIC);
        client.send(last, &[&post[last..], &SECRET[..12]].concat());
        client.send(last, &[&post[last..], SECRET].concat());
        client.send(last, &[&post[last..], PUBLIC, SECRET].concat());
        client.send(post.len() + PUBLIC.len(), PUBLIC);
        client.wait_for(&[FIRST, post, PUBLIC, PUBLIC]);
    });
}

#[test]
fn requests_behind_each_other_cannot_be_replaced() {
    if !ready() {
        return;
    }
    let size = PUBLIC.len();
    for_each_flaw(POLICY, |client, flaw| {
        client.send_in_vain(flaw, 0, &[PUBLIC, PUBLIC].concat());
        client.send(0, &[SECRET, PUBLIC].concat());
        client.send(0, &[PUBLIC, SECRET].concat());
        client.send(size, SECRET);
        client.send(0, &[PUBLIC, PUBLIC, PUBLIC].concat());
        client.wait_for(&[FIRST, PUBLIC, PUBLIC, PUBLIC]);
        // the second of several segments
        client.send(3 * size, PUBLIC);
        client.send_in_vain(flaw, 4 * size, PUBLIC);
        client.send(5 * size, PUBLIC);
        client.send(4 * size, SECRET);
        client.send(4 * size, PUBLIC);
        client.wait_for(&[FIRST; 1].into_iter().chain([PUBLIC; 6]).collect::<Vec<_>>());
    });
}

#[test]
fn what_stands_before_a_refused_request_cannot_be_replaced() {
    if !ready() {
        return;
    }
    let (other, size) = (b"GET /secret/11 HTTP/1.1\r\nX: 1\r\n\r\n", PUBLIC.len());
    assert_eq!(other.len(), size);
    for gate in Gate::GUARDS {
        let rig = Rig::in_order(gate, POLICY);
        let client = rig.open(Family::V4);
        client.send(0, &[PUBLIC, SECRET].concat());
        client.send(0, other);
        client.send(0, PUBLIC);
        client.wait_for(&[FIRST, PUBLIC]);
        let all = rig.verdicts();
        assert_eq!(all.count(abi::FIEF_REQUEST_REFUSED), 1, "{gate:?}: {all:?}");
        assert_eq!(all.count(abi::FIEF_REQUEST_REPLACED), 1, "{gate:?}: {all:?}");
    }
}

#[test]
fn a_guard_that_only_watches_counts_replacements_and_lets_them_pass() {
    if !ready() {
        return;
    }
    let policy = format!("mode = \"monitor\"\n{POLICY}");
    for gate in Gate::GUARDS {
        let rig = Rig::in_order(gate, &policy);
        let client = rig.open(Family::V4);
        client.send_in_vain(Flaw::Checksum, 0, PUBLIC);
        client.send(0, SECRET);
        client.wait_for(&[FIRST, SECRET]);
        let all = rig.verdicts();
        assert_eq!(all.monitored(abi::FIEF_REQUEST_REPLACED), 1, "{gate:?}: {all:?}");
        assert_eq!(all.count(abi::FIEF_REQUEST_REPLACED), 0, "{gate:?}: {all:?}");
    }
}

#[test]
fn a_server_in_a_managed_unit_sees_no_replacement_either() {
    if !(ready() && require(Feature::Nginx)) {
        return;
    }
    let request = |path: &str| format!("GET /{path}/10 HTTP/1.1\r\nHost: server\r\nConnection: close\r\n\r\n");
    let first = "GET /1k HTTP/1.1\r\nHost: server\r\n\r\n";
    let stream = [first, &request("public")].concat().into_bytes();
    for gate in Gate::GUARDS {
        let front = Front::new(gate, POLICY);
        let config = NginxConfig::new(80, 1, "location /public/ { return 202; } location /secret/ { return 201; }");
        let config = config.unwrap();
        let mut command = front.server_command("nginx");
        command.args(config.arguments()).stderr(std::process::Stdio::null());
        let _nginx = Nginx::start_command(&front.topology.server, command, config).unwrap();
        let clients = RawClients::new(&front.topology).unwrap();
        let addresses = [(RawClients::address(Family::V4, 5), 2000).into(), plain(Family::V4)];
        let open = RawConnection::open(&clients, addresses, 1, &ORDINARY_OPTIONS, SOON).unwrap();
        let mut connection = open.expect("a SYN-ACK");
        connection.acknowledge().unwrap();
        clients.send(&connection.segment(ACK, 0, first.as_bytes())).unwrap();
        wait_until(SOON, || {
            connection.hear(Duration::from_millis(10)).unwrap();
            connection.acknowledged == 2 + first.len() as u32
        })
        .unwrap();
        let at = first.len() as u32;
        let rest = first.len()..stream.len();
        let ruled = connection.segment(ACK, at, request("public").as_bytes());
        clients.send_packet(&[], &Flaw::Checksum.packet(ruled)).unwrap();
        clients.send(&connection.segment(ACK, at, request("secret").as_bytes())).unwrap();
        let (words, ending) = connection.converse(&stream, std::slice::from_ref(&rest), SOON).unwrap();
        let words = String::from_utf8_lossy(&words).into_owned();
        assert!(words.contains("HTTP/1.1 202") && !words.contains("HTTP/1.1 201"), "{gate:?}: {words}");
        assert_eq!(ending, Ending::Closed, "{gate:?}: {words}");
        assert_eq!(front.verdicts().count(abi::FIEF_REQUEST_REPLACED), 1, "{gate:?}");
    }
}

#[test]
fn a_rate_is_charged_once_for_a_request_that_comes_again() {
    if !ready() {
        return;
    }
    let request = b"GET /limited/10 HTTP/1.1\r\nHost: server\r\n\r\n";
    let size = request.len();
    for gate in Gate::GUARDS {
        let rig = Rig::new(gate, POLICY);
        let client = rig.open(Family::V4);
        for n in 0..3 {
            for piece in [0..size, 0..5, 5..size, 0..size] {
                client.send_in_vain(Flaw::Checksum, n * size + piece.start, &request[piece]);
            }
            client.send(n * size, request);
            client.send(n * size, request);
            client.wait_for(&[FIRST; 1].into_iter().chain(vec![&request[..]; n + 1]).collect::<Vec<_>>());
        }
        let all = rig.verdicts();
        assert_eq!((all.count(abi::FIEF_REQUEST_RULE), all.count(abi::FIEF_REQUEST_RATE)), (3, 0), "{gate:?}: {all:?}");
    }
}

/// A head that TCP dropped, as it was sent from a large buffer at once, comes again in segments.
#[test]
fn a_sender_may_cut_a_long_head_otherwise_when_it_repeats() {
    if !ready() {
        return;
    }
    let filler: String = (0..7000).map(|n| char::from(b'a' + (n * 7 % 26) as u8)).collect();
    let head = format!("POST /10 HTTP/1.1\r\nCookie: {filler}\r\nContent-Length: 600\r\n\r\n");
    let request = [head.as_bytes(), &filler.as_bytes()[..600], PUBLIC].concat();
    let post = request.len() - PUBLIC.len();
    for gate in Gate::GUARDS {
        let rig = Rig::new(gate, POLICY);
        rig.front.topology.set_mtu(9000).unwrap();
        for family in [Family::V4, Family::V6] {
            for size in [536, 1220, 1448, 4000] {
                let before = rig.verdicts();
                let mut client = rig.open(family);
                client.send_in_vain(Flaw::Checksum, 0, &request);
                let deadline = Instant::now() + SOON;
                while client.acknowledged() < request.len() {
                    assert!(Instant::now() < deadline, "{gate:?}, {size}: {} of it", client.acknowledged());
                    let at = client.acknowledged();
                    client.send(at, &request[at..request.len().min(at + size)]);
                    client.connection.hear(Duration::from_millis(5)).unwrap();
                }
                client.wait_for(&[FIRST, &request[..post], PUBLIC]);
                let new = rig.verdicts().since(&before);
                assert_eq!((new.requests(), new.count(abi::FIEF_REQUEST_CLIENT)), (3, 3), "{gate:?}, {size}: {new:?}");
            }
        }
    }
}

/// What becomes of a segment on its way.
#[derive(Clone, Copy, Debug)]
enum Fate {
    Arrives,
    Doubled,
    /// Before the gate.
    Lost,
    /// Behind it.
    Dropped(Flaw),
}

/// What a client sends, and how the first attempts go.
#[derive(Clone, Debug)]
struct Case {
    requests: Vec<Vec<u8>>,
    family: Family,
    attempts: Vec<Attempt>,
}

#[derive(Clone, Debug)]
struct Attempt {
    /// Sizes of the segments, over and over.
    sizes: Vec<usize>,
    fates: Vec<Fate>,
    shuffled: bool,
    seed: u64,
}

impl Attempt {
    /// A sender's last resort.
    fn plain() -> Self {
        Self { sizes: vec![536], fates: vec![Fate::Arrives], shuffled: false, seed: 0 }
    }

    /// Segments from `at` on, in the order in which they are sent.
    fn pieces(&self, at: usize, end: usize) -> Vec<(Range<usize>, Fate)> {
        let mut from = at;
        let mut pieces = Vec::new();
        for (size, fate) in self.sizes.iter().cycle().zip(self.fates.iter().cycle()) {
            if from == end {
                break;
            }
            pieces.push((from..end.min(from + size), *fate));
            from = end.min(from + size);
        }
        if self.shuffled {
            pieces.sort_by_key(|(piece, _)| {
                digest(&[self.seed.to_ne_bytes(), (piece.start as u64).to_ne_bytes()].concat())
            });
        }
        pieces
    }
}

fn requests() -> impl Strategy<Value = Vec<Vec<u8>>> {
    let path = prop_oneof![Just("/10"), Just("/10.png"), Just("/a/10")];
    let one = (path, 0..1500usize, prop_oneof![Just(0usize), 1..4000usize]).prop_map(|(path, filler, body)| {
        let filler: String = (0..filler).map(|n| char::from(b'a' + (n * 7 % 26) as u8)).collect();
        let head = if body > 0 {
            format!("POST {path} HTTP/1.1\r\nCookie: {filler}\r\nContent-Length: {body}\r\n\r\n")
        } else {
            format!("GET {path} HTTP/1.1\r\nCookie: {filler}\r\n\r\n")
        };
        // A body that looks like requests, if it were taken for them.
        head.bytes().chain(SECRET.iter().copied().cycle().take(body)).collect()
    });
    prop::collection::vec(one, 1..6)
}

fn attempt(smallest: usize) -> impl Strategy<Value = Attempt> {
    let fate = prop_oneof![
        3 => Just(Fate::Arrives),
        1 => Just(Fate::Doubled),
        1 => Just(Fate::Lost),
        2 => Just(Fate::Dropped(Flaw::Checksum)),
        2 => Just(Fate::Dropped(Flaw::Timestamp)),
    ];
    let sizes = prop::collection::vec(smallest..=1400, 1..12);
    (sizes, prop::collection::vec(fate, 1..12), any::<bool>(), any::<u64>())
        .prop_map(|(sizes, fates, shuffled, seed)| Attempt { sizes, fates, shuffled, seed })
}

fn cases() -> impl Strategy<Value = Case> {
    let family = prop_oneof![Just(Family::V4), Just(Family::V6)];
    let again = prop::collection::vec(attempt(536), 0..3);
    (requests(), family, attempt(1), again).prop_map(|(requests, family, first, again)| {
        let attempts = [first].into_iter().chain(again).collect();
        Case { requests, family, attempts }
    })
}

/// Container, rule and reason of each verdict that fell, with how often.
fn told(verdicts: &Verdicts) -> Vec<(String, Option<u32>, abi::fief_reason, u64)> {
    let ruled = verdicts.all().iter().filter(|verdict| verdict.reason >= abi::FIEF_REQUEST_RULE);
    let mut told: Vec<_> =
        ruled.map(|verdict| (verdict.container.clone(), verdict.rule, verdict.reason, verdict.count)).collect();
    told.sort();
    told
}

#[test]
fn honest_repetitions_are_served_and_counted_once_however_they_are_cut() {
    if !ready() {
        return;
    }
    // With GRO the gate sees long segments, and some of them out of order; without, what was sent.
    let rigs: [fn(Gate, &str) -> Rig; 2] = [Rig::new, Rig::in_order];
    for (gate, make) in Gate::GUARDS.into_iter().flat_map(|gate| rigs.map(|make| (gate, make))) {
        let rig = make(gate, POLICY);
        let play = |case: &Case, attempts: &[Attempt]| -> Result<_, TestCaseError> {
            let before = rig.verdicts();
            let mut client = rig.open(case.family);
            let stream = case.requests.concat();
            let last = Attempt::plain();
            let mut attempts = attempts.iter();
            let deadline = Instant::now() + SOON;
            while client.acknowledged() < stream.len() {
                prop_assert!(Instant::now() < deadline, "{} of {}", client.acknowledged(), stream.len());
                let pieces = attempts.next().unwrap_or(&last).pieces(client.acknowledged(), stream.len());
                for (piece, fate) in pieces {
                    let bytes = &stream[piece.clone()];
                    match fate {
                        Fate::Lost => {}
                        Fate::Dropped(flaw) => client.send_in_vain(flaw, piece.start, bytes),
                        Fate::Arrives => client.send(piece.start, bytes),
                        Fate::Doubled => {
                            client.send(piece.start, bytes);
                            client.send(piece.start, bytes);
                        }
                    }
                }
                let ending = client.connection.hear(Duration::from_millis(4)).unwrap();
                prop_assert!(!matches!(ending, Some(Ending::Reset)), "a reset");
            }
            wait_until(SOON, || client.served().len() > case.requests.len()).unwrap();
            Ok((client.served(), told(&rig.verdicts().since(&before))))
        };
        let config = Config { cases: 40, failure_persistence: None, max_shrink_iters: 60, ..Config::default() };
        let result = TestRunner::new(config).run(&cases(), |case| {
            let expected = play(&case, &[])?;
            let found = play(&case, &case.attempts)?;
            prop_assert_eq!(found, expected);
            Ok(())
        });
        if let Err(error) = result {
            panic!("{gate:?}: {error}");
        }
    }
}
