// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What a refused client sees, what it costs it later, and what a guard that only watches does: nothing.

use std::io::{Read, Write};
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use fief_bpf::abi;
use fief_testkit::{Client, Family, Feature, PlainServer, pattern, require, wait_until};
use fief_tests_netns::front::{Door, Front, anywhere, plain, ready};
use fief_tests_netns::{SOON, connect_from, one_installation};
use nix::errno::Errno;

const POLICY: &str = r#"
[container.web]
[container."web/slow"]
[listener.plain]
address = "[::]:80"
queue = false
[[listener.plain.client]]
from = ["10.77.3.0/24"]
container = "web/slow"
syn = { rate = 1, burst = 3, per = "rule" }
[[listener.plain.client]]
from = ["any"]
container = "web"
[[listener.plain.request]]
path = "/unavailable"
refuse = "503"
retry-after = "7s"
[[listener.plain.request]]
path = "/too-many"
refuse = "429"
retry-after = "7s"
[[listener.plain.request]]
path = "/reset"
refuse = "reset"
[[listener.plain.request]]
path = "/drop"
refuse = "drop"
[[listener.plain.request]]
path = "/punished"
refuse = "503"
penalty = "2s"
[[listener.plain.request]]
path = "/limited/*"
rate = { per-second = 5, burst = 5 }
refuse = "503"
retry-after = "1s"
"#;

struct Rig {
    front: Front,
    server: PlainServer,
}

impl Rig {
    fn new(door: Door) -> Self {
        Self::with(door, POLICY)
    }

    fn with(door: Door, policy: &str) -> Self {
        let front = Front::new(door, policy);
        let server = front.plain_server();
        Self { front, server }
    }

    fn connect(&self, from: IpAddr) -> nix::Result<TcpStream> {
        let family = if from.is_ipv4() { Family::V4 } else { Family::V6 };
        connect_from(&self.front.topology.clients, (from, 0).into(), plain(family))
    }

    /// Status of one request on a connection of its own, 0 without an answer.
    fn status(&self, from: IpAddr, path: &str) -> u16 {
        self.connect(from).map_or(0, |mut stream| status(&mut stream, path))
    }

    fn count(&self, reason: abi::fief_reason) -> u64 {
        self.front.verdicts().count(reason)
    }

    /// Requests were refused so often, and counted.
    #[track_caller]
    fn has_refused(&self, asked: u64) {
        let verdicts = self.front.verdicts();
        let refused = verdicts.count(abi::FIEF_REQUEST_REFUSED);
        assert!(self.front.is_counted(refused, asked), "{:?}, {asked}: {verdicts:?}", self.front.door);
    }
}

/// Status of one request on this connection, 0 without an answer.
fn status(stream: &mut TcpStream, path: &str) -> u16 {
    let text = ask(stream, path).unwrap_or_default();
    text.split(' ').nth(1).and_then(|word| word.parse().ok()).unwrap_or(0)
}

/// The head of the answer; its body is read too.
fn ask(stream: &mut TcpStream, path: &str) -> std::io::Result<String> {
    stream.write_all(format!("GET {path} HTTP/1.1\r\nHost: server\r\n\r\n").as_bytes())?;
    answer(stream)
}

/// The head of the next answer; its body is read too.
fn answer(stream: &mut TcpStream) -> std::io::Result<String> {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        let mut byte = [0];
        stream.read_exact(&mut byte)?;
        head.push(byte[0]);
    }
    let head = String::from_utf8_lossy(&head).into_owned();
    let field = |name: &str| head.lines().find_map(|line| line.strip_prefix(name));
    let length = field("Content-Length: ").or_else(|| field("content-length: "));
    let mut body = vec![0; length.and_then(|text| text.trim().parse().ok()).unwrap_or(0)];
    stream.read_exact(&mut body)?;
    Ok(head)
}

fn high(n: u8) -> IpAddr {
    Client::High.address(Family::V4, n)
}

/// curl's exit status, and the head and body that it got.
fn curl(rig: &Rig, family: Family, path: &str, words: &[&str]) -> (i32, String) {
    let url = match family {
        Family::V4 => format!("http://10.77.0.1{path}"),
        Family::V6 => format!("http://[fd77::1]{path}"),
    };
    let output = rig.front.topology.clients.command("curl").args(["-si"]).args(words).arg(url).output().unwrap();
    (output.status.code().unwrap(), String::from_utf8_lossy(&output.stdout).into_owned())
}

#[test]
fn curl_is_told_when_to_come_again() {
    if !(ready() && require(Feature::Curl)) {
        return;
    }
    let _one = one_installation();
    for door in Door::GUARDS {
        let rig = Rig::new(door);
        for family in [Family::V4, Family::V6] {
            for (path, begin) in [("/unavailable", "http/1.1 503 "), ("/too-many", "http/1.1 429 ")] {
                let (status, text) = curl(&rig, family, path, &["--max-time", "20"]);
                assert_eq!(status, 0, "{door:?}, {family:?}: {text}");
                let text = text.to_lowercase();
                assert!(text.starts_with(begin) && text.contains("\r\nretry-after: 7\r\n"), "{door:?}: {text}");
            }
        }
        rig.has_refused(4);
        assert_eq!(rig.server.accepted(), 0, "{door:?}");
    }
}

#[test]
fn curl_sees_a_reset_as_a_reset() {
    if !(ready() && require(Feature::Curl)) {
        return;
    }
    let _one = one_installation();
    for door in Door::GUARDS {
        let rig = Rig::new(door);
        for family in [Family::V4, Family::V6] {
            // 56: failure in receiving data
            assert_eq!(curl(&rig, family, "/reset", &["--max-time", "20"]).0, 56, "{door:?}, {family:?}");
        }
        rig.has_refused(2);
        assert_eq!(rig.server.accepted(), 0, "{door:?}");
    }
}

#[test]
fn curl_sees_a_drop_as_silence() {
    if !(ready() && require(Feature::Curl)) {
        return;
    }
    let _one = one_installation();
    for door in Door::GUARDS {
        let rig = Rig::new(door);
        // 28: timed out
        assert_eq!(curl(&rig, Family::V4, "/drop", &["--max-time", "3"]).0, 28, "{door:?}");
        assert!(rig.count(abi::FIEF_REQUEST_REFUSED) >= 1, "{door:?}");
        assert_eq!(rig.server.accepted(), 0, "{door:?}");
    }
}

#[test]
fn other_requests_are_served_beside_the_refused_ones() {
    if !ready() {
        return;
    }
    let _one = one_installation();
    for door in Door::GUARDS {
        let rig = Rig::new(door);
        for _ in 0..50 {
            assert_eq!((rig.status(high(1), "/unavailable"), rig.status(high(1), "/10")), (503, 200), "{door:?}");
        }
        assert_eq!(rig.server.accepted(), 50, "{door:?}");
    }
}

/// Whether a SYN of this client is answered within the time.
fn gets_in(rig: &Rig, from: IpAddr, time: Duration) -> bool {
    let connected = rig.front.topology.clients.run(|| {
        let family = nix::sys::socket::AddressFamily::Inet;
        let kind = nix::sys::socket::SockType::Stream;
        let fd = nix::sys::socket::socket(family, kind, nix::sys::socket::SockFlag::SOCK_NONBLOCK, None).unwrap();
        let raw = std::os::fd::AsRawFd::as_raw_fd(&fd);
        let address = |address: SocketAddr| nix::sys::socket::SockaddrStorage::from(address);
        nix::sys::socket::bind(raw, &address((from, 0).into())).unwrap();
        let begun = nix::sys::socket::connect(raw, &address(plain(Family::V4)));
        assert_eq!(begun, Err(Errno::EINPROGRESS));
        let mut ready = [nix::poll::PollFd::new(std::os::fd::AsFd::as_fd(&fd), nix::poll::PollFlags::POLLOUT)];
        nix::poll::poll(&mut ready, nix::poll::PollTimeout::try_from(time).unwrap()).unwrap() == 1
    });
    connected.unwrap()
}

#[test]
fn a_refused_client_is_kept_out_for_its_penalty_and_nobody_else_is() {
    if !ready() {
        return;
    }
    let _one = one_installation();
    for door in Door::GUARDS {
        let rig = Rig::new(door);
        let begin = Instant::now();
        assert_eq!(rig.status(high(1), "/punished"), 503, "{door:?}");
        // on a busy machine the penalty may be over when it asks
        let is_out = !gets_in(&rig, high(1), Duration::from_millis(300));
        assert!(is_out || begin.elapsed() > Duration::from_millis(1900), "{door:?}");
        assert!(gets_in(&rig, high(2), SOON), "{door:?}: a neighbour was punished");
        assert!(!is_out || rig.count(abi::FIEF_SYN_PENALTY) >= 1, "{door:?}: {:?}", rig.front.verdicts());
        // Its SYN is sent again until it is answered.
        assert!(gets_in(&rig, high(1), SOON), "{door:?}");
        assert!(begin.elapsed() >= Duration::from_millis(1900), "{door:?}: after {:?}", begin.elapsed());
        assert_eq!(rig.status(high(1), "/10"), 200, "{door:?}");
    }
}

#[test]
fn later_requests_of_a_connection_are_ruled_too() {
    if !ready() {
        return;
    }
    let _one = one_installation();
    for door in Door::GUARDS {
        let rig = Rig::new(door);
        for family in [Family::V4, Family::V6] {
            let from = Client::High.address(family, 1);
            let mut stream = rig.connect(from).unwrap();
            for _ in 0..3 {
                assert_eq!(status(&mut stream, "/10"), 200, "{door:?}");
            }
            assert_eq!(status(&mut stream, "/unavailable"), 503, "{door:?}, {family:?}");
            // After a body of known length too.
            let mut stream = rig.connect(from).unwrap();
            let body = pattern(5000);
            let head = format!("POST /0 HTTP/1.1\r\nContent-Length: {}\r\n\r\n", body.len());
            stream.write_all(&[head.as_bytes(), &body].concat()).unwrap();
            let mut answer = [0; 15];
            stream.read_exact(&mut answer).unwrap();
            assert_eq!(&answer, b"HTTP/1.1 200 OK", "{door:?}");
            let mut stream = rig.connect(from).unwrap();
            assert_eq!((status(&mut stream, "/10"), status(&mut stream, "/reset")), (200, 0), "{door:?}, {family:?}");
        }
        assert!(
            rig.server.seen().iter().all(|seen| !seen.line.contains("/unavailable") && !seen.line.contains("/reset"))
        );
        rig.has_refused(4);
    }
}

#[test]
fn no_request_gets_past_behind_another_one() {
    if !ready() {
        return;
    }
    let good = "GET /10 HTTP/1.1\r\n\r\n";
    let refused = "GET /unavailable HTTP/1.1\r\n\r\n";
    // What is written at once, and how many answers are read before the next.
    let whole = [(format!("{good}{good}{refused}"), 0)];
    let first_in_pieces = [(good[..7].to_owned(), 0), (format!("{}{refused}", &good[7..]), 0)];
    let second_in_pieces = [(format!("{good}{}", &refused[..9]), 1), (refused[9..].to_owned(), 0)];
    let ways: [&[(String, usize)]; 3] = [&whole, &first_in_pieces, &second_in_pieces];
    let _one = one_installation();
    for door in Door::GUARDS {
        let rig = Rig::new(door);
        for (family, way) in [Family::V4, Family::V6].into_iter().flat_map(|family| ways.map(|way| (family, way))) {
            let mut stream = rig.connect(Client::High.address(family, 1)).unwrap();
            stream.set_nodelay(true).unwrap();
            for (text, answers) in way {
                stream.write_all(text.as_bytes()).unwrap();
                for _ in 0..*answers {
                    assert!(answer(&mut stream).unwrap().starts_with("HTTP/1.1 200 "), "{door:?}, {way:?}");
                }
            }
            let said = answer(&mut stream).unwrap();
            assert!(said.starts_with("HTTP/1.1 503 "), "{door:?}, {family:?}, {way:?}: {said}");
        }
        assert!(rig.server.seen().iter().all(|seen| !seen.line.contains("/unavailable")), "{door:?}");
        rig.has_refused(6);
    }
}

#[test]
fn a_port_that_is_used_again_gets_no_request_past() {
    if !ready() {
        return;
    }
    let _one = one_installation();
    for door in Door::GUARDS {
        let rig = Rig::new(door);
        let from = SocketAddr::from((high(1), 5555));
        for path in ["/close/10", "/unavailable", "/close/10", "/close/10", "/unavailable"] {
            let mut made = Err(Errno::EADDRNOTAVAIL);
            // Its own end of the last connection may still wait for the last ACK.
            wait_until(SOON, || {
                made = connect_from(&rig.front.topology.clients, from, plain(Family::V4));
                made.is_ok()
            })
            .unwrap();
            let expected = if path == "/unavailable" { 503 } else { 200 };
            let mut stream = made.unwrap();
            assert_eq!(status(&mut stream, path), expected, "{door:?}, {path}");
            // The server closes first: its end stays in TIME_WAIT.
            assert_eq!(stream.read(&mut [0]).unwrap(), 0, "{door:?}, {path}");
        }
        let seen = rig.server.seen();
        assert!(seen.len() == 3 && seen.iter().all(|seen| !seen.line.contains("/unavailable")), "{door:?}: {seen:?}");
        // A request that its client sent twice, since nobody had run for the first, has a verdict each time.
        let (refused, passed) = (rig.count(abi::FIEF_REQUEST_REFUSED), rig.count(abi::FIEF_REQUEST_CLIENT));
        assert!(refused >= 2 && passed >= 3, "{door:?}: {refused} refused, {passed} passed");
    }
}

#[test]
fn a_rate_of_requests_holds() {
    if !ready() {
        return;
    }
    let _one = one_installation();
    for door in Door::GUARDS {
        let rig = Rig::new(door);
        let begin = Instant::now();
        let mut served = 0;
        let mut refused = 0;
        while begin.elapsed() < Duration::from_secs(2) || (refused <= 20 && begin.elapsed() < SOON) {
            match rig.status(high(1), "/limited/10") {
                200 => served += 1,
                503 => refused += 1,
                other => panic!("{door:?}: {other}"),
            }
        }
        // 5 at once, and 5 a second.
        let most = 5.0 + 5.0 * begin.elapsed().as_secs_f64() + 1.0;
        assert!(
            f64::from(served) <= most && served >= 13 && refused > 20,
            "{door:?}: {served} served, {refused} refused"
        );
        let counted = rig.count(abi::FIEF_REQUEST_RATE);
        assert!(rig.front.is_counted(counted, refused), "{door:?}: {counted} of {refused}");
    }
}

#[test]
fn a_rate_of_connections_holds() {
    if !ready() {
        return;
    }
    let _one = one_installation();
    for door in Door::GUARDS {
        let rig = Rig::new(door);
        let slow = |n| Client::Middle.address(Family::V4, n);
        let begin = Instant::now();
        for n in 1..=3 {
            assert!(gets_in(&rig, slow(n), SOON), "{door:?}: {n} is within the burst");
        }
        // the rate is one a second
        let is_out = !gets_in(&rig, slow(4), Duration::from_millis(300));
        assert!(is_out || begin.elapsed() >= Duration::from_secs(1), "{door:?}");
        assert!(gets_in(&rig, high(1), SOON), "{door:?}");
        let is_late = begin.elapsed() >= Duration::from_secs(1);
        assert!(!is_out || is_late || rig.count(abi::FIEF_SYN_RATE) >= 1, "{door:?}");
        assert!(gets_in(&rig, slow(5), SOON), "{door:?}");
    }
}

#[test]
fn a_guard_that_watches_counts_and_does_nothing() {
    if !ready() {
        return;
    }
    let whole = format!("mode = \"monitor\"\n{POLICY}");
    let listener = POLICY.replace("address =", "mode = \"monitor\"\naddress =");
    let rules = POLICY.replace("refuse =", "mode = \"monitor\"\nrefuse =");
    let _one = one_installation();
    for door in Door::GUARDS {
        for (policy, watched) in [(&whole, true), (&listener, true), (&rules, false)] {
            let rig = Rig::with(door, policy);
            for path in ["/unavailable", "/reset", "/drop", "/punished", "/limited/1"] {
                let mut stream = rig.connect(high(1)).unwrap();
                let said = ask(&mut stream, path).unwrap();
                assert!(said.starts_with("HTTP/1.1 200"), "{door:?}, {path}: {said}");
                let said = ask(&mut stream, path).unwrap();
                assert!(said.starts_with("HTTP/1.1 200"), "{door:?}, {path} again: {said}");
            }
            assert_eq!(rig.server.accepted(), 5, "{door:?}");
            let verdicts = rig.front.verdicts();
            let monitored = verdicts.monitored(abi::FIEF_REQUEST_REFUSED);
            assert!(
                monitored >= 4 && verdicts.count(abi::FIEF_REQUEST_REFUSED) == 0,
                "{door:?}, {watched}: {verdicts:?}"
            );
        }
    }
}

#[test]
fn a_policy_swapped_between_handshake_and_request_rules_by_the_new_one() {
    if !ready() {
        return;
    }
    let _one = one_installation();
    for door in Door::GUARDS {
        let rig = Rig::new(door);
        for family in [Family::V4, Family::V6] {
            let mut stream = connect_from(&rig.front.topology.clients, anywhere(family), plain(family)).unwrap();
            rig.front.apply(&POLICY.replace("/unavailable", "/elsewhere")).unwrap();
            assert_eq!(status(&mut stream, "/unavailable"), 200, "{door:?}, {family:?}");
            let mut stream = connect_from(&rig.front.topology.clients, anywhere(family), plain(family)).unwrap();
            rig.front.apply(POLICY).unwrap();
            assert_eq!(status(&mut stream, "/unavailable"), 503, "{door:?}, {family:?}");
        }
    }
}

#[test]
fn a_connection_outlives_the_guard() {
    if !ready() {
        return;
    }
    for door in Door::GUARDS {
        let rig = Rig::new(door);
        let mut stream = rig.connect(high(1)).unwrap();
        assert_eq!(status(&mut stream, "/10"), 200, "{door:?}");
        let unguarded = POLICY.split("[[listener.plain.request]]").next().unwrap();
        rig.front.apply(unguarded).unwrap();
        assert_eq!(status(&mut stream, "/unavailable"), 200, "{door:?}");
        rig.front.apply(POLICY).unwrap();
        wait_until(SOON, || rig.status(high(2), "/unavailable") == 503).unwrap();
        rig.front.installation().fief().down().unwrap();
        assert_eq!(status(&mut stream, "/10"), 200, "{door:?}");
        assert_eq!(rig.status(high(3), "/10"), 200, "{door:?}");
    }
}
