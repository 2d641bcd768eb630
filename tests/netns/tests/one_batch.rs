// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A kernel's cookie that comes again in one batch of packets with what ends its connection: the door has seen all of them before TCP
//! sees the first. It is a connection like any other: counted, and its bytes ruled.

use std::time::{Duration, Instant};

use fief_bpf::abi;
use fief_testkit::segment::{ACK, FIN, PSH, RST, Segment};
use fief_testkit::{
    Family, ORDINARY_OPTIONS, RawClients, RawConnection, Topology, pin, set_fifo, set_other, wait_until,
};
use fief_tests_netns::front::{Door, plain, ready};
use fief_tests_netns::queued::{Queued, lasting, low};
use fief_tests_netns::rig::{Rig, whole};
use fief_tests_netns::{Foreign, NEVER_OVERLOADED, SOON, one_installation};
use nix::sched::{sched_getaffinity, sched_setaffinity};
use nix::unistd::Pid;

const REQUEST: &[u8] = b"GET /10 HTTP/1.1\r\nConnection: close\r\n\r\n";
/// Refuses what `SECRET` asks for.
const RULES: &str = "[[listener.plain.request]]\npath = \"/secret\"\nrefuse = \"reset\"";
const SECRET: &[u8] = b"GET /secret HTTP/1.1\r\nHost: server\r\n\r\n";
const PORT: u16 = 2000;
const BURST: u64 = 3;
/// More often than a source may have connections.
const COMES_BACK: u64 = 8 * BURST;

/// Of single sources, with `BURST`.
const RATE: &str = "syn = { rate = 1, burst = 3, per = \"source\" }";
/// Longer than the door takes two ends of a handshake for one (front/ends).
const APART: Duration = Duration::from_millis(5);
/// As a client waits before it sends once more.
const AGAIN: Duration = Duration::from_millis(300);
const HEARD: Duration = Duration::from_millis(50);

/// `client`: more of the rule for all clients, and what follows it.
fn policy(listener: &str, client: &str) -> String {
    format!(
        "[container.web]\n[listener.plain]\naddress = \"[::]:80\"\n{listener}\n[[listener.plain.client]]\nfrom = [\"any\"]\n\
         container = \"web\"\n{client}\n"
    )
}

/// The thread that receives at the server's side stands still until all are sent.
fn in_one_batch(clients: &RawClients, segments: &[Segment]) {
    let own = sched_getaffinity(Pid::from_raw(0)).unwrap();
    pin(0, Topology::server_cpu()).unwrap();
    set_fifo(0, 60).unwrap();
    let sent: Result<Vec<_>, _> = segments.iter().map(|segment| clients.send(segment)).collect();
    set_other(0).unwrap();
    sched_setaffinity(Pid::from_raw(0), &own).unwrap();
    sent.unwrap();
}

/// Of the n-th port; `first`: its number before the first byte.
fn open(clients: &RawClients, n: u16, first: u32) -> RawConnection<'_> {
    let flow = [(RawClients::address(Family::V4, 7), PORT + n).into(), plain(Family::V4)];
    RawConnection::open(clients, flow, first, &ORDINARY_OPTIONS, SOON).unwrap().expect("a SYN-ACK")
}

/// Connections that the server got, and how many the rate allows.
fn assert_counted(rig: &Rig, began: Instant, why: &str) {
    let mut other = rig.open(Family::V4);
    assert!(other.converse(REQUEST, &whole(REQUEST), SOON).unwrap().0.starts_with(b"HTTP/1.1 200"), "{why}");
    let accepted = rig.server.accepted() - 1;
    let most = 2 * BURST + began.elapsed().as_secs() + 1;
    assert!((1..=most).contains(&accepted), "{why}: {accepted}, {:?}", rig.verdicts());
}

#[test]
fn behind_resets_a_cookie_is_one_connection_more() {
    if !ready() {
        return;
    }
    let _one = one_installation();
    let resets: [&[u8]; 4] = [&[RST | ACK], &[RST | ACK, RST | ACK], &[FIN | ACK, RST | ACK], &[RST]];
    for ends in resets {
        for (family, bytes) in [(Family::V4, b"".as_slice()), (Family::V4, REQUEST), (Family::V6, REQUEST)] {
            let rig = Rig::new(Door::Own, &policy("", RATE));
            rig.front.topology.server.sysctl("net.ipv4.tcp_syncookies", "2").unwrap();
            let connection = rig.open_from((RawClients::address(family, 7), PORT).into());
            let again = connection.segment(ACK, 0, bytes);
            let began = Instant::now();
            rig.clients.send(&again).unwrap();
            for _ in 0..COMES_BACK {
                let ended = ends.iter().map(|flags| connection.segment(*flags, bytes.len() as u32, b""));
                let batch: Vec<_> = ended.chain([again.clone()]).collect();
                in_one_batch(&rig.clients, &batch);
                std::thread::sleep(APART);
            }
            connection.vanish();
            let why = format!("{family:?}, {ends:?}, {} bytes", bytes.len());
            assert_counted(&rig, began, &why);
            assert!(rig.verdicts().count(abi::FIEF_ACK_BAD) > 0, "{why}: they came one by one, {:?}", rig.verdicts());
        }
    }
}

#[test]
fn behind_the_last_acknowledgement_a_cookie_is_one_connection_more() {
    if !ready() {
        return;
    }
    let _one = one_installation();
    let rig = Rig::new(Door::Own, &policy("", RATE));
    rig.front.topology.server.sysctl("net.ipv4.tcp_syncookies", "2").unwrap();
    let connection = rig.open_from((RawClients::address(Family::V4, 7), PORT).into());
    let [bare, fin, mut last] =
        [(ACK, 0), (FIN | ACK, 0), (ACK, 1)].map(|(flags, at)| connection.segment(flags, at, b""));
    last.acknowledgment = last.acknowledgment.wrapping_add(1);
    let began = Instant::now();
    rig.clients.send(&bare).unwrap();
    for n in 0..COMES_BACK {
        rig.clients.send(&fin).unwrap();
        // it is the server's turn to end, and it waits for the acknowledgement of that; of the first one, however long that takes
        let waits = || rig.front.sockets(PORT).iter().any(|state| state == "09");
        let time = if n == 0 { SOON } else { Duration::from_millis(500) };
        if wait_until(time, waits).is_err() {
            assert_ne!(n, 0, "{:?}", rig.front.sockets(PORT));
            break; // the cookie made no connection any more
        }
        in_one_batch(&rig.clients, &[last.clone(), bare.clone()]);
        std::thread::sleep(APART);
    }
    connection.vanish();
    assert_counted(&rig, began, "the last acknowledgement");
}

/// A client that has one cookie knows how the cookie and its own number belong together: so it can make one for each number of the kernel's.
#[test]
fn beside_a_request_socket_a_cookie_is_one_connection_more() {
    if !ready() {
        return;
    }
    let _one = one_installation();
    let rig = Rig::new(Door::Own, &policy("", RATE));
    let cookies = |value: &str| rig.front.topology.server.sysctl("net.ipv4.tcp_syncookies", value).unwrap();
    let began = Instant::now();
    for port in PORT..PORT + 8 {
        let flow = [(RawClients::address(Family::V4, 7), port).into(), plain(Family::V4)];
        // the first ones are answered, however long that takes
        let time = if port == PORT { SOON } else { Duration::from_millis(300) };
        let open = |first: u32| RawConnection::open(&rig.clients, flow, first, &ORDINARY_OPTIONS, time).unwrap();
        cookies("2");
        let Some(known) = open(1000) else { break };
        let apart = known.greeting.sequence.wrapping_sub(known.segment(ACK, 0, b"").sequence);
        cookies("1");
        let Some(requested) = open(7_000_000) else { break };
        assert_eq!(rig.front.sockets(port), ["03"]);
        let end = requested.segment(ACK, 0, b"");
        let crafted = |flags: u8| {
            let mut segment = known.segment(flags, 0, b"");
            segment.acknowledgment = end.acknowledgment;
            segment.sequence = end.acknowledgment.wrapping_sub(1).wrapping_sub(apart);
            segment
        };
        // as many as the kernel hands on together (gro_normal_batch)
        let mut batch = vec![end.clone(), requested.segment(RST | ACK, 0, b"")];
        batch.extend((0..3).flat_map(|_| [crafted(ACK), crafted(RST | ACK)]));
        in_one_batch(&rig.clients, &batch);
        known.vanish();
        requested.vanish();
    }
    assert_counted(&rig, began, "beside a request socket");
}

/// Bytes that the connection before has had already, by their numbers, pass as a repetition.
#[test]
fn behind_a_reset_the_bytes_beside_a_cookie_are_ruled() {
    if !ready() {
        return;
    }
    let _one = one_installation();
    let server = Queued::multipath(Door::Own, &policy("admit = true", RULES));
    server.front.topology.server.sysctl("net.ipv4.tcp_syncookies", "2").unwrap();
    let clients = RawClients::new(&server.front.topology).unwrap();
    for n in 0..10 {
        let connection = open(&clients, n, 1000);
        let request = b"GET /allowed HTTP/1.1\r\nHost: server\r\n\r\n";
        clients.send(&connection.segment(ACK, 0, request)).unwrap();
        server.got_all(usize::from(n) + 1);
        let end = connection.segment(RST | ACK, request.len() as u32, b"");
        in_one_batch(&clients, &[end, connection.segment(ACK, 0, SECRET)]);
        connection.vanish();
    }
    let last = server.ask(low(1), "/last");
    server.got_all(11);
    assert!(server.got().iter().all(|path| path != "/secret"), "{:?}", server.got());
    drop(last);
}

/// docs/limits.md says so: where a program behind the door ends the chain with OK, the kernel takes the marks off, and the same bytes reach
/// the server. How many do is printed. A change that leaves none takes the limit from that page, and this test with it.
#[test]
fn behind_a_program_that_ends_the_chain_the_bytes_beside_a_cookie_are_not_ruled() {
    if !ready() {
        return;
    }
    let _one = one_installation();
    for (kind, attach) in Foreign::ENDING {
        let server = Queued::multipath(Door::Own, &policy("admit = true", RULES));
        let namespace = &server.front.topology.server;
        namespace.sysctl("net.ipv4.tcp_syncookies", "2").unwrap();
        let attach = || attach(nix::net::if_::if_nametoindex(Topology::SERVER).unwrap());
        let behind = namespace.run(attach).unwrap();
        let clients = RawClients::new(&server.front.topology).unwrap();
        let got = |wanted: &str| server.got().iter().filter(|path| *path == wanted).count();
        for n in 0..2 * TIMES {
            let connection = open(&clients, n, 1000);
            let request = b"GET /allowed HTTP/1.1\r\nHost: server\r\n\r\n";
            clients.send(&connection.segment(ACK, 0, request)).unwrap();
            wait_until(SOON, || got("/allowed") > usize::from(n))
                .unwrap_or_else(|_| panic!("{kind}, {n}: {:?}, {:?}", server.got(), server.front.verdicts()));
            let end = connection.segment(RST | ACK, request.len() as u32, b"");
            in_one_batch(&clients, &[end, connection.segment(ACK, 0, SECRET)]);
            connection.vanish();
        }
        let last = server.ask(low(1), "/last");
        wait_until(SOON, || got("/last") == 1).unwrap_or_else(|_| panic!("{kind}: {:?}", server.got()));
        drop(last);
        let unruled = got("/secret");
        eprintln!("{kind}: {unruled} of {} requests reached the server unruled", 2 * TIMES);
        assert!(unruled > 0, "{kind}: docs/limits.md says more than is so: {:?}", server.front.verdicts());
        assert!(behind.calls() > 0, "{kind}");
    }
}

/// A request without a body, of so many bytes.
fn padded(path: &str, length: usize) -> Vec<u8> {
    let [begin, end] = [format!("GET {path} HTTP/1.1\r\nHost: server\r\nPadding: "), "\r\n\r\n".to_owned()];
    let padding = "x".repeat(length - begin.len() - end.len());
    [begin, padding, end].concat().into_bytes()
}

/// A request whose body is to be as long as `SECRET`, and another one that ends one byte behind this head.
fn overlapping() -> (Vec<u8>, Vec<u8>) {
    let (padding, length) = ("x".repeat(100), SECRET.len());
    let head =
        format!("POST /other HTTP/1.1\r\nHost: server\r\nPadding: {padding}\r\nContent-Length: {length}\r\n\r\n");
    let before = padded("/before", head.len() + 1);
    (head.into_bytes(), before)
}

/// The server has read these requests, and none that the rule refuses.
fn assert_got(server: &Queued, paths: &[&str], why: &str) {
    let last = server.ask(low(1), "/last");
    let is_last = || server.got().last().is_some_and(|path| path == "/last");
    wait_until(SOON, is_last).unwrap_or_else(|_| panic!("{why}: {:?}", server.got()));
    assert_eq!(server.got(), [paths, &["/last"]].concat(), "{why}, {:?}", server.front.verdicts());
    drop(last);
}

/// Where the kernel's cookie makes the connection.
const BY_COOKIES: [&str; 2] = ["multipath", "below the level of admission"];

fn by_cookies(place: &str) -> Queued {
    let server = if place == BY_COOKIES[0] {
        Queued::multipath(Door::Own, &policy("admit = true", RULES))
    } else {
        let below = policy("admit = true\nadmit-from = \"overloaded\"", RULES);
        Queued::new(Door::Own, &format!("{NEVER_OVERLOADED}{below}"))
    };
    server.front.topology.server.sysctl("net.ipv4.tcp_syncookies", "2").unwrap();
    server.let_go(1000);
    server
}

const TIMES: u16 = 5;

/// The kernel's cookie is good for some numbers, and each may be that of the first byte: what one packet calls its body is a request to TCP
/// that has the first bytes of another one.
#[test]
fn two_begins_of_one_cookie_are_no_request_together() {
    if !ready() {
        return;
    }
    let _one = one_installation();
    let (head, before) = overlapping();
    for name in BY_COOKIES {
        let server = by_cookies(name);
        let clients = RawClients::new(&server.front.topology).unwrap();
        for n in 0..2 * TIMES {
            let connection = open(&clients, n, 1000);
            let begin = connection.segment(ACK, 0, &before);
            // in one packet, or the body as a packet of its own
            let other = if n < TIMES {
                vec![connection.segment(ACK, 1, &[&head[..], SECRET].concat())]
            } else {
                vec![connection.segment(PSH | ACK, 1, &head), connection.segment(ACK, before.len() as u32, SECRET)]
            };
            in_one_batch(&clients, &[vec![begin], other].concat());
            server.got_all(usize::from(n) + 1);
            connection.vanish();
        }
        assert_got(&server, &["/before"; 2 * TIMES as usize], name);
    }
}

/// The bare end of the handshake makes the connection, and leaves the other begin behind a gap.
#[test]
fn a_begin_behind_the_end_of_its_handshake_is_its_very_next_byte() {
    if !ready() {
        return;
    }
    let _one = one_installation();
    let (head, before) = overlapping();
    for name in BY_COOKIES {
        let server = by_cookies(name);
        let clients = RawClients::new(&server.front.topology).unwrap();
        for n in 0..TIMES {
            let connection = open(&clients, n, 1000);
            let other = connection.segment(ACK, 1, &[&head[..], SECRET].concat());
            in_one_batch(&clients, &[connection.segment(ACK, 0, b""), other]);
            let begin = connection.segment(ACK, 0, &before);
            wait_until(SOON, || {
                clients.send(&begin).unwrap();
                server.got().len() > usize::from(n)
            })
            .unwrap_or_else(|_| panic!("{name}: {:?}", server.front.verdicts()));
            connection.vanish();
        }
        // where the door answers SYNs the bytes of such a segment wait for the socket
        let refused = server.front.verdicts().count(abi::FIEF_ACK_BAD) > 0;
        assert_eq!(refused, name == BY_COOKIES[1], "{name}: they came one by one");
        // an honest one need not come again
        let connection = open(&clients, TIMES, 1000);
        in_one_batch(&clients, &[connection.segment(ACK, 0, b""), connection.segment(ACK, 0, &before)]);
        server.got_all(usize::from(TIMES) + 1);
        connection.vanish();
        assert_got(&server, &["/before"; 1 + TIMES as usize], name);
    }
}

/// A client that asks for two connections of the same ports has two cookies that are good.
#[test]
fn what_follows_a_begin_is_ruled_by_no_other_one() {
    if !ready() {
        return;
    }
    let _one = one_installation();
    let (head, before) = overlapping();
    for door in Door::GUARDS {
        let server = Queued::new(door, &policy("admit = true", RULES));
        server.let_go(1000);
        let clients = RawClients::new(&server.front.topology).unwrap();
        for n in 0..TIMES {
            let [one, other] = [1000, 1001].map(|first| open(&clients, n, first));
            let batch = [
                one.segment(ACK, 0, &before),
                other.segment(PSH | ACK, 0, &head),
                one.segment(ACK, before.len() as u32, SECRET),
            ];
            in_one_batch(&clients, &batch);
            server.got_all(usize::from(n) + 1);
            one.vanish();
            other.vanish();
        }
        assert_got(&server, &["/before"; TIMES as usize], &format!("{door:?}"));
    }
}

/// The second one is no request more: its rate would refuse what the server answers.
#[test]
fn first_bytes_that_come_twice_are_ruled_once() {
    if !ready() {
        return;
    }
    let _one = one_installation();
    let path = |n: u16| format!("/limited/{n}/10");
    let limited =
        |n| format!("[[listener.plain.request]]\npath = \"{}\"\nrate = {{ per-second = 1, burst = 1 }}\n", path(n));
    let rules: String = (0..TIMES).map(limited).collect();
    for door in Door::GUARDS {
        let rig = Rig::new(door, &policy("admit = true\nqueue = false", &rules));
        for n in 0..TIMES {
            let mut connection = open(&rig.clients, n, 1000);
            let request = format!("GET {} HTTP/1.1\r\nHost: server\r\nConnection: close\r\n\r\n", path(n));
            let first = connection.segment(PSH | ACK, 0, request.as_bytes());
            in_one_batch(&rig.clients, &[first.clone(), first]);
            let is_served = wait_until(SOON, || {
                connection.hear(HEARD).unwrap();
                connection.received().starts_with(b"HTTP/1.1 200")
            });
            let words = String::from_utf8_lossy(connection.received()).into_owned();
            assert!(is_served.is_ok(), "{door:?}, {n}: {words:?}, {:?}", rig.verdicts());
        }
        let verdicts = rig.verdicts();
        let counts = [abi::FIEF_REQUEST_RULE, abi::FIEF_REQUEST_RATE].map(|reason| verdicts.count(reason));
        assert_eq!(counts, [u64::from(TIMES), 0], "{door:?}: {verdicts:?}");
    }
}

/// A body in the batch of its head needs no second sending.
#[test]
fn a_body_goes_on_behind_its_head() {
    if !ready() {
        return;
    }
    let _one = one_installation();
    let head = b"POST /upload HTTP/1.1\r\nHost: server\r\nContent-Length: 5\r\n\r\n";
    for door in Door::GUARDS {
        let server = Queued::new(door, &policy("admit = true", RULES));
        let clients = RawClients::new(&server.front.topology).unwrap();
        let mut again = 0;
        for n in 0..TIMES {
            let connection = open(&clients, n, 1000);
            let body = connection.segment(PSH | ACK, head.len() as u32, b"hello");
            in_one_batch(&clients, &[connection.segment(PSH | ACK, 0, head), body.clone()]);
            while wait_until(AGAIN, || server.bodies().len() > usize::from(n)).is_err() {
                clients.send(&body).unwrap();
                again += 1;
                assert!(again < 100, "{door:?}: {:?}, {:?}", server.got(), server.front.verdicts());
            }
            connection.vanish();
        }
        // on a busy machine one may have to
        assert!(again < TIMES, "{door:?}: {again}, {:?}", server.front.verdicts());
    }
}

/// The end of the handshake and the first bytes are acknowledged before TCP has seen either: it must not make a socket that never gets them.
#[test]
fn what_was_acknowledged_behind_the_end_of_its_handshake_is_served() {
    if !ready() {
        return;
    }
    let _one = one_installation();
    let request = padded("/request", 200);
    for (door, queue) in Door::GUARDS.into_iter().flat_map(|door| [true, false].map(|queue| (door, queue))) {
        let policy = if queue { lasting() } else { policy("admit = true", RULES) };
        let server = Queued::multipath(door, &policy);
        server.front.topology.server.sysctl("net.ipv4.tcp_syncookies", "2").unwrap();
        let clients = RawClients::new(&server.front.topology).unwrap();
        for n in 0..TIMES {
            let before = server.got().len();
            let first = queue.then(|| server.ask(low(1), "/first"));
            server.got_all(before + usize::from(queue));
            let connection = open(&clients, n, 1000);
            // the whole of it has to wait; a part of its head is kept
            let come = if queue { request.len() } else { request.len() / 2 };
            in_one_batch(
                &clients,
                &[connection.segment(ACK, 0, b""), connection.segment(PSH | ACK, 0, &request[..come])],
            );
            if queue {
                server.wait_for(1);
            }
            server.let_go(2);
            clients.send(&connection.segment(PSH | ACK, come as u32, &request[come..])).unwrap();
            let is_served = wait_until(SOON, || server.got().len() == before + 1 + usize::from(queue));
            assert!(is_served.is_ok(), "{door:?}, {queue}: {:?}, {:?}", server.got(), server.front.verdicts());
            assert_eq!(server.got().last().unwrap(), "/request");
            connection.vanish();
            drop(first);
        }
    }
}
