// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A kernel's cookie that comes again in one batch of packets with what ends its connection: the door has seen all of them before TCP
//! sees the first. It is a connection like any other: counted, and its bytes ruled.

use std::time::{Duration, Instant};

use fief_bpf::abi;
use fief_testkit::segment::{ACK, FIN, RST, Segment};
use fief_testkit::{
    Family, ORDINARY_OPTIONS, RawClients, RawConnection, Topology, pin, set_fifo, set_other, wait_until,
};
use fief_tests_netns::SOON;
use fief_tests_netns::front::{Door, plain, ready};
use fief_tests_netns::queued::{Queued, low};
use fief_tests_netns::rig::{Rig, whole};
use nix::sched::{sched_getaffinity, sched_setaffinity};
use nix::unistd::Pid;

const REQUEST: &[u8] = b"GET /10 HTTP/1.1\r\nConnection: close\r\n\r\n";
const SECRET: &[u8] = b"GET /secret HTTP/1.1\r\nHost: server\r\n\r\n";
const PORT: u16 = 2000;
const BURST: u64 = 3;
/// More often than a source may have connections.
const COMES_BACK: u64 = 8 * BURST;

/// Of single sources, with `BURST`.
const RATE: &str = "syn = { rate = 1, burst = 3, per = \"source\" }";
/// Longer than the door takes two ends of a handshake for one (front/ends).
const APART: Duration = Duration::from_millis(5);

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
    let resets: [&[u8]; 4] = [&[RST | ACK], &[RST | ACK, RST | ACK], &[FIN | ACK, RST | ACK], &[RST]];
    for ends in resets {
        for bytes in [b"".as_slice(), REQUEST] {
            let rig = Rig::new(Door::Own, &policy("", RATE));
            rig.front.topology.server.sysctl("net.ipv4.tcp_syncookies", "2").unwrap();
            let connection = rig.open_from((RawClients::address(Family::V4, 7), PORT).into());
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
            let why = format!("{ends:?}, {} bytes", bytes.len());
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
        // it is the server's turn to end, and it waits for the acknowledgement of that
        let waits = || rig.front.sockets(PORT).iter().any(|state| state == "09");
        if wait_until(Duration::from_millis(500), waits).is_err() {
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
    let rig = Rig::new(Door::Own, &policy("", RATE));
    let cookies = |value: &str| rig.front.topology.server.sysctl("net.ipv4.tcp_syncookies", value).unwrap();
    let began = Instant::now();
    for port in PORT..PORT + 8 {
        let flow = [(RawClients::address(Family::V4, 7), port).into(), plain(Family::V4)];
        let open = |first: u32| {
            RawConnection::open(&rig.clients, flow, first, &ORDINARY_OPTIONS, Duration::from_millis(300)).unwrap()
        };
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
    let rules = "[[listener.plain.request]]\npath = \"/secret\"\nrefuse = \"reset\"";
    let server = Queued::multipath(Door::Own, &policy("admit = true", rules));
    server.front.topology.server.sysctl("net.ipv4.tcp_syncookies", "2").unwrap();
    let clients = RawClients::new(&server.front.topology).unwrap();
    for n in 0..10 {
        let flow = [(RawClients::address(Family::V4, 7), PORT + n).into(), plain(Family::V4)];
        let connection =
            RawConnection::open(&clients, flow, 1000, &ORDINARY_OPTIONS, SOON).unwrap().expect("a SYN-ACK");
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
