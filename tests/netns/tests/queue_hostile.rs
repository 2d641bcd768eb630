// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Segments with the addresses of a client whose request waits, by somebody who does not see its connection. The request stays in
//! its line, and its client is served as if nobody had sent any.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use fief_testkit::segment::{ACK, FIN, RST, Segment};
use fief_testkit::{RawClients, pattern, wait_until};
use fief_tests_netns::front::{Door, ready};
use fief_tests_netns::queued::{Queued, answer_on, ask_on, high, lasting, length_of, low, status};
use fief_tests_netns::{SOON, one_installation, unacknowledged};

const HEARD: Duration = Duration::from_millis(50);
const ANSWER: usize = 30_000;
const FAR: u32 = 1 << 28;
const LONG_AGO: u32 = 1 << 20;

type Change = fn(&mut Segment);

/// What the forger did not know, beside a bare segment that the client could send next.
const FORGED: [(&str, Change); 14] = [
    ("an ack of what was not sent", |segment| segment.acknowledgment = segment.acknowledgment.wrapping_add(1)),
    ("an ack far ahead", |segment| segment.acknowledgment = segment.acknowledgment.wrapping_add(1 << 30)),
    ("an ack at random", |segment| segment.acknowledgment ^= 0x8000_0000),
    ("an ack behind the window", |segment| further(segment, FAR)),
    ("an ack of long ago", |segment| further(segment, LONG_AGO.wrapping_neg())),
    ("an ack with an old timestamp", |segment| {
        let stamp = u32::from_be_bytes(segment.options[4..8].try_into().unwrap());
        segment.options[4..8].copy_from_slice(&stamp.wrapping_sub(1 << 20).to_be_bytes());
    }),
    ("a FIN behind a gap", |segment| with(segment, FIN | ACK, 100)),
    ("a FIN behind the window", |segment| with(segment, FIN | ACK, FAR)),
    ("a FIN of long ago", |segment| with(segment, FIN | ACK, LONG_AGO.wrapping_neg())),
    ("a RST that is not just the next", |segment| with(segment, RST | ACK, 100)),
    ("a RST behind the window", |segment| with(segment, RST | ACK, FAR)),
    ("a RST of long ago", |segment| with(segment, RST | ACK, LONG_AGO.wrapping_neg())),
    ("a RST without an ack behind the window", |segment| with(segment, RST, FAR)),
    ("a RST without an ack of long ago", |segment| with(segment, RST, LONG_AGO.wrapping_neg())),
];

fn further(segment: &mut Segment, bytes: u32) {
    segment.sequence = segment.sequence.wrapping_add(bytes);
}

fn with(segment: &mut Segment, flags: u8, bytes: u32) {
    segment.flags = flags;
    further(segment, bytes);
}

/// The segment that the client could send next, by what the server's side has sent to it.
fn next_of(client: &TcpStream, seen: &RawClients) -> Segment {
    wait_until(SOON, || unacknowledged(client) <= 1).unwrap();
    let (own, server) = (client.local_addr().unwrap(), client.peer_addr().unwrap());
    let last = std::iter::from_fn(|| seen.receive(own, HEARD)).last().expect("its request was acknowledged");
    let mut next = Segment::new(own, server, ACK);
    next.sequence = last.acknowledgment.wrapping_add(unacknowledged(client).cast_unsigned());
    next.acknowledgment = last.sequence.wrapping_add(last.length());
    let stamps = last.option(8).expect("both have timestamps");
    next.options = [&[1, 1, 8, 10], &stamps[4..8], &stamps[..4]].concat();
    next
}

/// A request waits, the first of its connection or not, and these segments are sent in its client's name. It goes in its turn, its
/// client has the whole answer, and the connection goes on.
fn is_served_all_the_same(forged: &[(&str, Change)]) {
    for (door, is_first) in Door::GUARDS.into_iter().flat_map(|door| [(door, true), (door, false)]) {
        let rig = Queued::new(door, &lasting());
        let forger = RawClients::new(&rig.front.topology).unwrap();
        let mut client = rig.connect(low(2));
        if !is_first {
            rig.let_go(1);
            ask_on(&mut client, "/before");
            answer_on(&mut client);
        }
        let seen = rig.got().len();
        let first = rig.ask(low(1), "/first");
        rig.got_all(seen + 1);
        let (path, long) = (format!("/held/{ANSWER}"), "x".repeat(3000));
        write!(client, "GET {path} HTTP/1.1\r\nHost: server\r\nX: {long}\r\n\r\n").unwrap();
        rig.wait_for(1);
        let next = next_of(&client, &forger);
        for (name, change) in forged {
            eprintln!("{name}, first {is_first}, {} waits", rig.queue().waiting); // a failed test shows it
            let mut segment = next.clone();
            change(&mut segment);
            (0..3).for_each(|_| forger.send(&segment).unwrap());
        }
        // what comes behind all of them
        let better = rig.ask(high(1), "/better");
        rig.wait_for(2);
        rig.let_go(4);
        assert_eq!(rig.got_all(seen + 3)[seen..], ["/first", "/better", &path], "{door:?}, first {is_first}");
        let mut body = vec![0; length_of(&answer_on(&mut client))];
        client.read_exact(&mut body).unwrap();
        assert!(body == pattern(ANSWER), "{door:?}, first {is_first}: another answer of {} bytes", body.len());
        assert!([first, better].into_iter().all(|stream| status(stream) == 200), "{door:?}, first {is_first}");
        ask_on(&mut client, "/again");
        assert!(answer_on(&mut client).starts_with("HTTP/1.1 200"), "{door:?}, first {is_first}");
        rig.wait_for_peace();
        assert_eq!(rig.queue().class[1].gone, 0, "{door:?}, first {is_first}");
    }
}

#[test]
fn what_tcp_throws_away_takes_no_request_out_of_its_line() {
    let _one = one_installation();
    if ready() {
        is_served_all_the_same(&FORGED);
    }
}

/// It is where the client's own would be, so that only its ack tells that it is another one's.
#[test]
fn an_end_that_tcp_throws_away_does_not_go_with_a_request_that_waits() {
    let _one = one_installation();
    if ready() {
        let end: Change = |segment| {
            segment.flags |= FIN;
            segment.acknowledgment = segment.acknowledgment.wrapping_add(1);
        };
        is_served_all_the_same(&[("a FIN with an ack of what was not sent", end)]);
    }
}
