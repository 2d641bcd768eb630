// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Segments with a connection's addresses by somebody who does not see it. The kernel says what TCP makes of them, and the
//! door adds nothing to that: no answer, no reset, no penalty, nothing noted.

#[path = "later/client.rs"]
mod client;

use client::{Client, FIRST, PUBLIC, SECRET};
use std::time::Duration;

use fief_bpf::abi;
use fief_testkit::segment::{ACK, FIN, RST, Segment};
use fief_testkit::{Ending, Family, wait_until};
use fief_tests_netns::front::{Door, ready};
use fief_tests_netns::rig::Rig;
use fief_tests_netns::{SOON, one_installation};

/// Whoever asks for a secret is told so, reset, and kept out for a while.
const POLICY: &str = r#"
[container.web]
[listener.plain]
address = "[::]:80"
[[listener.plain.client]]
from = ["any"]
container = "web"
[[listener.plain.request]]
path = "/secret/*"
refuse = "503"
penalty = "10s"
"#;

type Change = fn(&mut Segment);

/// Which segments the kernel throws away, and what the forger did not know.
const FORGED: [(&str, Change); 11] = [
    ("an ack of what was not sent", |segment| segment.acknowledgment = segment.acknowledgment.wrapping_add(1)),
    ("an ack far ahead", |segment| segment.acknowledgment = segment.acknowledgment.wrapping_add(1 << 30)),
    ("an ack at random", |segment| segment.acknowledgment ^= 0x8000_0000),
    ("an old timestamp", |segment| segment.options[4..8].copy_from_slice(&1u32.to_be_bytes())),
    ("behind the window", |segment| segment.sequence = segment.sequence.wrapping_add(1 << 28)),
    ("a FIN behind the window", |segment| {
        segment.flags |= FIN;
        segment.sequence = segment.sequence.wrapping_add(1 << 28);
    }),
    ("taken long ago", |segment| segment.sequence = segment.sequence.wrapping_sub(1 << 20)),
    ("a FIN with an ack of what was not sent", |segment| {
        segment.flags |= FIN;
        segment.acknowledgment = segment.acknowledgment.wrapping_add(1);
    }),
    ("a RST that is not just the next", |segment| {
        segment.flags = RST | ACK;
        segment.sequence = segment.sequence.wrapping_add(1);
    }),
    ("a RST without an ack that is not just the next", |segment| {
        segment.flags = RST;
        segment.sequence = segment.sequence.wrapping_add(1);
    }),
    ("a RST behind the window", |segment| {
        segment.flags = RST;
        segment.sequence = segment.sequence.wrapping_add(1 << 28);
    }),
];

/// What came to the client, and what the server saw of it.
fn outcome(client: &mut Client<'_>) -> (Option<Ending>, Vec<u8>, Vec<(String, u64)>) {
    let mut ending = None;
    // the answer to the first request may still be on its way
    wait_until(SOON, || {
        ending = client.connection.hear(Duration::from_millis(30)).unwrap();
        !client.connection.received().is_empty()
    })
    .unwrap();
    (ending, client.connection.received().to_vec(), client.served())
}

/// Sends forged segments with these bytes, or none, then an honest request; the same connection must serve it, and a new one
/// too.
fn forge(rig: &Rig, bytes: &[u8]) {
    for family in [Family::V4, Family::V6] {
        for (name, change) in FORGED {
            eprintln!("{family:?}, {name}");
            let mut client = Client::open(rig, family);
            let before = outcome(&mut client);
            for _ in 0..3 {
                client.send_changed(0, bytes, change);
            }
            assert_eq!(outcome(&mut client), before, "{name}");
            client.send(0, PUBLIC);
            client.wait_for(&[FIRST, PUBLIC]);
            Client::open(rig, family);
        }
    }
}

fn what_tcp_throws_away_has_no_verdict(door: Door) {
    if !ready() {
        return;
    }
    let rig = Rig::in_order(door, POLICY);
    for bytes in
        [SECRET, &SECRET[..12], b"\x01\x02\r\n\r\n", b"GET /other/1 HTTP/1.1\r\nContent-Length: 99\r\n\r\n", b""]
    {
        forge(&rig, bytes);
    }
    if door != Door::Stock {
        let all = rig.verdicts();
        assert_eq!(all.count(abi::FIEF_REQUEST_REFUSED), 0, "{door:?}: {all:?}");
        assert_eq!(all.count(abi::FIEF_REQUEST_REPLACED), 0, "{door:?}: {all:?}");
        assert_eq!(all.unread(), 0, "{door:?}: {all:?}");
    }
}

#[test]
fn what_tcp_throws_away_changes_nothing_without_fief() {
    let _one = one_installation();
    what_tcp_throws_away_has_no_verdict(Door::Stock);
}

#[test]
fn what_tcp_throws_away_has_no_verdict_where_fief_answers() {
    let _one = one_installation();
    what_tcp_throws_away_has_no_verdict(Door::Own);
}

#[test]
fn what_tcp_throws_away_has_no_verdict_where_the_kernel_answers() {
    let _one = one_installation();
    what_tcp_throws_away_has_no_verdict(Door::Kernel);
}

/// The kernel takes it where it is just the next segment, and does not where it is another: the door is the stricter one.
#[test]
fn an_acknowledgement_from_long_ago_has_no_verdict() {
    if !ready() {
        return;
    }
    let _one = one_installation();
    for door in Door::GUARDS {
        let rig = Rig::in_order(door, POLICY);
        for family in [Family::V4, Family::V6] {
            let mut client = Client::open(&rig, family);
            let before = outcome(&mut client);
            for back in [1 << 10, 1 << 24, 1 << 30] {
                client.send_changed(0, SECRET, |segment| {
                    segment.acknowledgment = segment.acknowledgment.wrapping_sub(back);
                });
            }
            assert_eq!(outcome(&mut client), before);
            client.send(0, PUBLIC);
            client.wait_for(&[FIRST, PUBLIC]);
        }
    }
}

/// What a reordered network brings is no forgery.
#[test]
fn an_acknowledgement_of_a_moment_ago_is_ruled() {
    if !ready() {
        return;
    }
    let _one = one_installation();
    for door in Door::GUARDS {
        let rig = Rig::in_order(door, POLICY);
        let mut client = Client::open(&rig, Family::V4);
        outcome(&mut client);
        let answered = client.connection.received().len() as u32;
        client
            .send_changed(0, PUBLIC, |segment| segment.acknowledgment = segment.acknowledgment.wrapping_sub(answered));
        client.wait_for(&[FIRST, PUBLIC]);
        client.send_changed(PUBLIC.len(), SECRET, |segment| {
            segment.acknowledgment = segment.acknowledgment.wrapping_sub(answered);
        });
        let ending = client.connection.hear(SOON).unwrap();
        assert!(ending.is_some(), "{door:?}: {:?}", rig.verdicts());
        assert_eq!(rig.verdicts().count(abi::FIEF_REQUEST_REFUSED), 1, "{door:?}");
    }
}
