// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Clients that want to pass those that wait, or to hold them up.

use std::time::Duration;

use fief_bpf::abi;
use fief_testkit::segment::{ACK, PSH, RST};
use fief_testkit::{Family, RawConnection, wait_until};
use fief_tests_netns::SOON;
use fief_tests_netns::front::{Door, plain, ready};
use fief_tests_netns::queued::{POLICY, status};
use fief_tests_netns::rig::Rig;
use libbpf_rs::{MapCore, MapFlags, MapHandle};

const BEFORE: &[u8] = b"GET /10 HTTP/1.1\r\nHost: server\r\n\r\n";
const PAST: &[u8] = b"GET /past/10 HTTP/1.1\r\nHost: server\r\n\r\n";
const HEARD: Duration = Duration::from_millis(50);

fn queue(rig: &Rig) -> abi::fief_queue {
    fief_bpf::queue::all(rig.front.installation().fief().pins()).unwrap().pop().expect("a queue").1
}

/// Places taken, requests that wait, that entered at once, were let go later, and that were found gone.
fn counts(rig: &Rig) -> (u32, u32, u64, u64, u64) {
    let queue = queue(rig);
    let class = &queue.class[1];
    (queue.busy, queue.waiting, class.entered, class.released, class.gone)
}

fn waits(rig: &Rig, waiting: u32) {
    wait_until(SOON, || queue(rig).waiting == waiting)
        .unwrap_or_else(|_| panic!("{}, {}", queue(rig).waiting, past(rig)));
}

/// Takes the only place of a server that does not answer.
fn take_place(rig: &Rig) -> RawConnection<'_> {
    let connection = rig.open(Family::V4);
    let before = rig.server.seen().len();
    let request = b"GET /mute/10 HTTP/1.1\r\nHost: server\r\n\r\n";
    rig.clients.send(&connection.segment(PSH | ACK, 0, request)).unwrap();
    wait_until(SOON, || rig.server.seen().len() > before).unwrap_or_else(|_| panic!("{:?}", counts(rig)));
    connection
}

/// A connection whose first request is answered.
fn answered(rig: &Rig) -> RawConnection<'_> {
    let mut connection = rig.open(Family::V4);
    rig.clients.send(&connection.segment(PSH | ACK, 0, BEFORE)).unwrap();
    wait_until(SOON, || {
        connection.hear(HEARD).unwrap();
        connection.received().len() > 10
    })
    .unwrap();
    connection.acknowledge().unwrap();
    connection
}

/// Whether the server got the request that wants to pass.
fn past(rig: &Rig) -> bool {
    rig.server.seen().iter().any(|seen| seen.line.contains("/past"))
}

/// Those that wait for connections that are gone.
#[test]
fn who_is_gone_holds_nobody_up() {
    if !ready() {
        return;
    }
    for door in Door::GUARDS {
        let rig = Rig::in_order(door, POLICY);
        let ghosts: Vec<_> = (0..10).map(|_| answered(&rig)).collect();
        let place = take_place(&rig);
        for (waiting, ghost) in (1..).zip(&ghosts) {
            rig.clients.send(&ghost.segment(PSH | ACK, BEFORE.len() as u32, PAST)).unwrap();
            waits(&rig, waiting);
        }
        let honest = rig.front.ask_from([10, 77, 2, 9].into(), plain(Family::V4), "/10").unwrap();
        waits(&rig, 11);
        for ghost in &ghosts {
            // just what TCP expects
            rig.clients.send(&ghost.segment(RST, BEFORE.len() as u32, &[])).unwrap();
        }
        waits(&rig, 1);
        let length = b"GET /mute/10 HTTP/1.1\r\nHost: server\r\n\r\n".len();
        rig.clients.send(&place.segment(RST, length as u32, &[])).unwrap();
        assert_eq!(status(honest), 200, "{door:?}: {:?}", counts(&rig));
        assert!(!past(&rig), "{door:?}");
    }
}

/// As many requests that are never answered as there is room for.
#[test]
fn who_asks_without_end_opens_the_queue_to_nobody() {
    if !ready() {
        return;
    }
    for door in Door::GUARDS {
        let rig = Rig::in_order(door, POLICY);
        let pins = rig.front.installation().fief().pins();
        let number = fief_bpf::queue::all(pins).unwrap().pop().expect("a queue").0;
        let map = MapHandle::from_pinned_path(pins.map("queue_serves")).unwrap();
        let (mut key, mut value) = (vec![0; map.key_size() as usize], vec![0; map.value_size() as usize]);
        value[..4].copy_from_slice(&number.to_ne_bytes());
        for n in 0..map.max_entries() {
            key[..4].copy_from_slice(&n.to_ne_bytes());
            map.update(&key, &value, MapFlags::ANY).unwrap();
        }
        let _place = take_place(&rig);
        let connection = rig.open(Family::V4);
        rig.clients.send(&connection.segment(PSH | ACK, 0, PAST)).unwrap();
        waits(&rig, 1);
        assert!(!past(&rig), "{door:?}: {:?}", counts(&rig));
    }
}
