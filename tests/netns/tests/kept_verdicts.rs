// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A head that came in pieces has one verdict and makes one connection, however often its client repeats the last piece.

use std::time::Duration;

use fief_bpf::abi;
use fief_testkit::segment::{ACK, FIN, PSH, RST, Segment};
use fief_testkit::{Ending, Family, RawConnection, wait_until};
use fief_tests_netns::front::{Door, ready};
use fief_tests_netns::refusing;
use fief_tests_netns::rig::{Rig, whole};
use fief_tests_netns::{SOON, one_installation};

const REPEATS: usize = 20;

const OPEN: &[u8] = b"GET /10 HTTP/1.1\r\nHost: server\r\n\r\n";
const CLOSES: &[u8] = b"GET /close/10 HTTP/1.1\r\nHost: server\r\n\r\n";
const SECRET: &[u8] = b"GET /secret/10 HTTP/1.1\r\nHost: server\r\n\r\n";

/// The next segment that is no double of the SYN-ACK, if `wanted` takes it.
fn heard(rig: &Rig, connection: &RawConnection, wanted: impl Fn(&Segment) -> bool) -> Segment {
    let mut last = None;
    wait_until(SOON, || {
        last = rig.clients.receive(connection.client, Duration::from_millis(100));
        last.as_ref().is_some_and(&wanted)
    })
    .unwrap_or_else(|_| panic!("{last:?}, {:?}", rig.verdicts()));
    last.unwrap()
}

/// Sends the bytes in pieces, each of which is acknowledged before the next.
fn keep(rig: &Rig, connection: &RawConnection, bytes: &[u8]) {
    for (n, piece) in bytes.chunks(1000).enumerate() {
        let at = n * 1000;
        rig.clients.send(&connection.segment(PSH | ACK, at as u32, piece)).unwrap();
        let end = connection.first.wrapping_add(1 + (at + piece.len()) as u32);
        heard(rig, connection, |segment| segment.acknowledgment == end);
    }
}

#[test]
fn half_a_head_that_ends_is_refused_once() {
    if !ready() {
        return;
    }
    let _one = one_installation();
    let head = [b"GET /10 HTTP/1.1\r\nHost: server\r\n", &*b"a:\r\n".repeat(2000)].concat();
    for door in Door::GUARDS {
        let rig = Rig::in_order(door, refusing!("/secret/*", "reset"));
        for family in [Family::V4, Family::V6] {
            let before = rig.verdicts();
            let connection = rig.open(family);
            keep(&rig, &connection, &head);
            for _ in 0..REPEATS {
                rig.clients.send(&connection.segment(FIN | ACK, head.len() as u32, &[])).unwrap();
                heard(&rig, &connection, |segment| segment.has(RST));
            }
            let new = rig.verdicts().since(&before);
            assert_eq!(new.count(abi::FIEF_REFUSED_MALFORMED), 1, "{door:?}, {family:?}: {new:?}");
        }
    }
}

#[test]
fn a_refused_request_in_pieces_is_answered_again_and_counted_once() {
    if !ready() {
        return;
    }
    let _one = one_installation();
    for door in Door::GUARDS {
        for (refusal, answers) in [("503", true), ("reset", true), ("drop", false)] {
            let policy = refusing!("/secret/*", "503").replace("\"503\"", &format!("\"{refusal}\""));
            let rig = Rig::in_order(door, &policy);
            let connection = rig.open(Family::V4);
            keep(&rig, &connection, &SECRET[..20]);
            for turn in 0..REPEATS {
                rig.clients.send(&connection.segment(PSH | ACK, 20, &SECRET[20..])).unwrap();
                if answers {
                    let answer = heard(&rig, &connection, |segment| {
                        segment.has(RST) || segment.payload.starts_with(b"HTTP/1.1 503")
                    });
                    assert_eq!(answer.has(RST), refusal == "reset", "{door:?}, {refusal}, {turn}");
                }
            }
            // all of it is through once another is answered
            let mut marker = rig.open(Family::V4);
            let end = marker.converse(CLOSES, &whole(CLOSES), SOON).unwrap();
            assert!(end.0.starts_with(b"HTTP/1.1 200"), "{door:?}, {refusal}");
            let verdicts = rig.verdicts();
            // one that is dropped is asked about again, but not with each repetition
            let most = if answers { 1 } else { REPEATS as u64 / 2 };
            let refused = verdicts.count(abi::FIEF_REQUEST_REFUSED);
            assert!((1..=most).contains(&refused), "{door:?}, {refusal}: {verdicts:?}");
        }
    }
}

/// A queue for one request at a time, whose place lasts. `/10` has a rule.
fn queued(says: &str) -> String {
    format!(
        "[container.web]\n[listener.plain]\naddress = \"[::]:80\"\n\
         queue = {{ in-service = 1, stale = \"30s\", {says} }}\n\
         [[listener.plain.client]]\nfrom = [\"any\"]\ncontainer = \"web\"\n\
         [[listener.plain.request]]\npath = \"/10\"\nrate = {{ per-second = 1000, burst = 1000 }}\n"
    )
}

/// At once, since there is no room to wait in, or after it has waited.
#[test]
fn a_head_in_pieces_that_the_queue_refuses_is_read_once() {
    if !ready() {
        return;
    }
    let _one = one_installation();
    let head = format!("GET /10 HTTP/1.1\r\nHost: server\r\nX: {}\r\n\r\n", "x".repeat(15_000));
    let (kept, last) = head.as_bytes().split_at(head.len() - 100);
    let other = b"GET /20 HTTP/1.1\r\nHost: server\r\n\r\n";
    let queues = [("length = 1, wait = \"1m\"", 1), ("wait = \"200ms\"", 0)];
    for (door, (says, waiting)) in Door::GUARDS.into_iter().flat_map(|door| queues.map(|queue| (door, queue))) {
        let rig = Rig::in_order(door, &queued(says));
        let ask = |request: &[u8]| {
            let connection = rig.open(Family::V4);
            rig.clients.send(&connection.segment(PSH | ACK, 0, request)).unwrap();
            connection
        };
        let _first = ask(b"GET /mute/20 HTTP/1.1\r\nHost: server\r\n\r\n");
        wait_until(SOON, || rig.front.queue().busy == 1).unwrap();
        let _waits: Vec<_> = (0..waiting).map(|_| ask(other)).collect();
        wait_until(SOON, || rig.front.queue().waiting == waiting).unwrap();
        let before = rig.verdicts();
        let connection = rig.open(Family::V4);
        keep(&rig, &connection, kept);
        let last = connection.segment(PSH | ACK, kept.len() as u32, last);
        rig.clients.send(&last).unwrap();
        heard(&rig, &connection, |segment| segment.payload.starts_with(b"HTTP/1.1 503"));
        (0..REPEATS).for_each(|_| rig.clients.send(&last).unwrap());
        // all of it is through once another is answered
        let (words, _) = rig.open(Family::V4).converse(other, &whole(other), SOON).unwrap();
        assert!(words.starts_with(b"HTTP/1.1 503"), "{door:?}, {says}: {}", String::from_utf8_lossy(&words));
        let new = rig.verdicts().since(&before);
        assert_eq!(new.count(abi::FIEF_REQUEST_RULE), 1, "{door:?}, {says}: {new:?}");
    }
}

#[test]
fn a_head_in_pieces_makes_one_connection() {
    if !ready() {
        return;
    }
    let _one = one_installation();
    for door in Door::GUARDS {
        let rig = Rig::in_order(door, refusing!("/secret/*", "reset"));
        let mut connection = rig.open(Family::V4);
        keep(&rig, &connection, &OPEN[..20]);
        // as it was sent first: it acknowledges the cookie, and nothing of the answer
        let last = connection.segment(PSH | ACK, 20, &OPEN[20..]);
        rig.clients.send(&last).unwrap();
        wait_until(SOON, || {
            connection.hear(Duration::from_millis(20)).unwrap();
            connection.received().starts_with(b"HTTP/1.1 200")
        })
        .unwrap();
        rig.clients.send(&connection.segment(RST | ACK, OPEN.len() as u32, &[])).unwrap();
        for _ in 0..REPEATS {
            rig.clients.send(&last).unwrap();
        }
        let mut marker = rig.open(Family::V4);
        let (_, ending) = marker.converse(CLOSES, &whole(CLOSES), SOON).unwrap();
        assert_eq!(ending, Ending::Closed, "{door:?}");
        assert_eq!(rig.server.accepted(), 2, "{door:?}: {:?}", rig.verdicts());
    }
}
