// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A client whose requests pass need not send anything twice.

#[path = "later/client.rs"]
mod client;

use client::{Client, FIRST, POLICY, PUBLIC};
use fief_testkit::{Family, wait_until};
use fief_tests_netns::front::{Door, ready};
use fief_tests_netns::rig::Rig;
use fief_tests_netns::{SOON, one_installation};

/// Whether the server comes to acknowledge as much, without any repetition.
fn is_taken(client: &mut Client<'_>, length: usize) -> bool {
    wait_until(SOON, || {
        let _ = client.connection.hear(std::time::Duration::from_millis(10));
        client.acknowledged() >= length
    })
    .is_ok()
}

#[test]
fn many_small_requests_in_one_segment_pass_at_once() {
    if !ready() {
        return;
    }
    let _one = one_installation();
    let request = b"GET /1 HTTP/1.1\r\n\r\n";
    for door in Door::GUARDS {
        let rig = Rig::in_order(door, POLICY);
        for family in [Family::V4, Family::V6] {
            let mut client = Client::open(&rig, family);
            let all = request.repeat(140);
            for at in (0..all.len()).step_by(1330) {
                client.send(at, &all[at..all.len().min(at + 1330)]);
            }
            assert!(is_taken(&mut client, all.len()), "{door:?}: {} of {}", client.acknowledged(), all.len());
            let mut expected = vec![FIRST];
            expected.extend(vec![&request[..]; 140]);
            client.wait_for(&expected);
        }
    }
}

/// A guard that watches takes no segment away, also none that comes before the begin of its request.
#[test]
fn a_guard_that_watches_lets_segments_overtake_each_other() {
    if !ready() {
        return;
    }
    let _one = one_installation();
    let policy = POLICY.replace("[[listener.plain.client]]", "mode = \"monitor\"\n[[listener.plain.client]]");
    for door in Door::GUARDS {
        let rig = Rig::in_order(door, &policy);
        let mut client = Client::open(&rig, Family::V4);
        client.send(9, &PUBLIC[9..]);
        client.send(0, &PUBLIC[..9]);
        assert!(is_taken(&mut client, PUBLIC.len()), "{door:?}: {}", client.acknowledged());
        client.wait_for(&[FIRST, PUBLIC]);
    }
}
