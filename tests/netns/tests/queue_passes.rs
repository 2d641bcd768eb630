// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Clients that want to pass those that wait, or to hold them up.

use std::time::Duration;

use fief_testkit::segment::{ACK, FIN, PSH, RST, Segment};
use fief_testkit::{Family, RawConnection, wait_until};
use fief_tests_netns::front::{Door, plain, ready};
use fief_tests_netns::queued::{PLACE, POLICY, lasting, status};
use fief_tests_netns::rig::Rig;
use fief_tests_netns::{SOON, one_installation};
use libbpf_rs::{MapCore, MapFlags, MapHandle};

const MUTE: &[u8] = b"GET /mute/10 HTTP/1.1\r\nHost: server\r\n\r\n";
const BEFORE: &[u8] = b"GET /10 HTTP/1.1\r\nHost: server\r\n\r\n";
const PAST: &[u8] = b"GET /past/10 HTTP/1.1\r\nHost: server\r\n\r\n";
/// Where TCP's header has it.
const CHECKSUM: usize = 16;
const HEARD: Duration = Duration::from_millis(50);

/// Places taken, requests that wait, that entered at once, were let go later, and that were found gone.
fn counts(rig: &Rig) -> (u32, u32, u64, u64, u64) {
    let queue = rig.front.queue();
    let class = &queue.class[1];
    (queue.busy, queue.waiting, class.entered, class.released, class.gone)
}

#[track_caller]
fn waits(rig: &Rig, waiting: u32) {
    let come = wait_until(SOON, || rig.front.queue().waiting == waiting);
    assert!(come.is_ok(), "{:?}, passed {}", counts(rig), past(rig));
}

/// Takes the only place of a server that does not answer.
fn take_place(rig: &Rig) -> RawConnection<'_> {
    let connection = rig.open(Family::V4);
    let before = rig.server.seen().len();
    rig.clients.send(&connection.segment(PSH | ACK, 0, MUTE)).unwrap();
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
    let _one = one_installation();
    for door in Door::GUARDS {
        let rig = Rig::in_order(door, &lasting());
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
        rig.clients.send(&place.segment(RST, MUTE.len() as u32, &[])).unwrap();
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
    let _one = one_installation();
    for door in Door::GUARDS {
        let rig = Rig::in_order(door, &lasting());
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

/// That many requests had their turn.
#[track_caller]
fn turns(rig: &Rig, most: u64) {
    let had = || rig.front.queue().class[1].entered + rig.front.queue().class[1].released;
    let come = wait_until(SOON, || had() == most);
    assert!(come.is_ok(), "{:?}", counts(rig));
}

/// Waits until the place of whoever asked last has run out, which the next one finds. A tick that comes late has found it already.
fn place_runs_out(rig: &Rig) {
    assert!(rig.front.queue().busy <= 1, "{:?}", counts(rig));
    std::thread::sleep(PLACE);
}

/// The client's request, which waits, and then no longer, since the door takes a reset for the client's that TCP does not take.
fn waits_no_longer(rig: &Rig, client: &RawConnection<'_>, at: u32) -> Segment {
    let request = client.segment(PSH | ACK, at, PAST);
    rig.clients.send(&request).unwrap();
    waits(rig, 1);
    send_unseen(rig, &client.segment(RST, at, &[]));
    waits(rig, 0);
    request
}

/// One whose request waits resets it with a number that TCP does not take, and sends it again.
#[test]
fn who_takes_back_what_waits_has_no_turn() {
    if !ready() {
        return;
    }
    let _one = one_installation();
    for door in Door::GUARDS {
        let rig = Rig::in_order(door, &lasting());
        let client = answered(&rig);
        let _place = take_place(&rig);
        let request = client.segment(PSH | ACK, BEFORE.len() as u32, PAST);
        rig.clients.send(&request).unwrap();
        waits(&rig, 1);
        rig.clients.send(&client.segment(RST, (BEFORE.len() + PAST.len()) as u32, &[])).unwrap();
        waits(&rig, 0);
        sends_until_it_waits(&rig, &request);
    }
}

/// The segment with a wrong checksum: the door sees it, and TCP does not.
fn send_unseen(rig: &Rig, segment: &Segment) {
    let mut wrong = segment.tcp();
    wrong[CHECKSUM] ^= 0xff;
    rig.clients.send_packet(&[], &segment.packet_of(&wrong)).unwrap();
}

/// Sends it until it waits, or the server has it.
fn sends_until_it_waits(rig: &Rig, request: &Segment) {
    wait_until(SOON, || {
        rig.clients.send(request).unwrap();
        rig.front.queue().waiting == 1 || past(rig)
    })
    .unwrap();
    assert!(!past(rig), "{:?}", counts(rig));
}

/// A bare end that TCP does not take gets no place, which the request before it could go by.
#[test]
fn the_end_of_a_connection_takes_no_place() {
    if !ready() {
        return;
    }
    let _one = one_installation();
    for door in Door::GUARDS {
        let rig = Rig::in_order(door, &lasting());
        let client = answered(&rig);
        let _place = take_place(&rig);
        let at = BEFORE.len() as u32;
        let request = waits_no_longer(&rig, &client, at);
        let before = counts(&rig);
        for _ in 0..3 {
            send_unseen(&rig, &client.segment(FIN | ACK, at, &[]));
        }
        assert_eq!(counts(&rig), before, "{door:?}");
        sends_until_it_waits(&rig, &request);
    }
}

/// The place of one request is not that of the next one of its connection.
#[test]
fn who_has_a_place_has_it_for_one_request() {
    if !ready() {
        return;
    }
    let _one = one_installation();
    for door in Door::GUARDS {
        let rig = Rig::in_order(door, &lasting());
        let client = take_place(&rig);
        let request = waits_no_longer(&rig, &client, MUTE.len() as u32);
        sends_until_it_waits(&rig, &request);
    }
}

/// A request with a wrong checksum, which TCP does not take, has no turn and takes no place; nor does it save one a turn.
#[test]
fn what_tcp_does_not_take_has_no_turn() {
    if !ready() {
        return;
    }
    let _one = one_installation();
    for door in Door::GUARDS {
        let rig = Rig::in_order(door, &lasting());
        let mut client = answered(&rig);
        let request = client.segment(PSH | ACK, BEFORE.len() as u32, PAST);
        send_unseen(&rig, &request);
        client.hear(HEARD).unwrap();
        assert_eq!(counts(&rig), (0, 0, 1, 0, 0), "{door:?}");
        let _place = take_place(&rig);
        rig.clients.send(&request).unwrap();
        waits(&rig, 1);
        assert!(!past(&rig), "{door:?}: {:?}", counts(&rig));
    }
}

/// Two requests that were ruled and that TCP did not take; the first comes again, and waits. What comes behind it is not the second.
#[test]
fn nothing_joins_what_waits_in_place_of_a_request_that_was_ruled() {
    if !ready() {
        return;
    }
    let rules = "[[listener.plain.request]]\npath = \"/secret/*\"\nrefuse = \"reset\"\n";
    let [public, secret] = ["public", "secret"].map(|word| format!("GET /{word}/10 HTTP/1.1\r\nHost: server\r\n\r\n"));
    let _one = one_installation();
    for door in Door::GUARDS {
        let rig = Rig::in_order(door, &format!("{}{rules}", lasting()));
        let mut client = answered(&rig);
        let at = BEFORE.len() as u32;
        send_unseen(&rig, &client.segment(PSH | ACK, at, &[PAST, public.as_bytes()].concat()));
        client.hear(HEARD).unwrap();
        let place = take_place(&rig);
        rig.clients.send(&client.segment(PSH | ACK, at, PAST)).unwrap();
        waits(&rig, 1);
        rig.clients.send(&client.segment(PSH | ACK, at + PAST.len() as u32, secret.as_bytes())).unwrap();
        client.hear(HEARD).unwrap();
        rig.clients.send(&place.segment(RST, MUTE.len() as u32, &[])).unwrap();
        wait_until(SOON, || past(&rig)).unwrap_or_else(|_| panic!("{door:?}: {:?}", counts(&rig)));
        for _ in 0..4 {
            client.hear(HEARD).unwrap();
        }
        let seen = rig.server.seen();
        assert!(!seen.iter().any(|seen| seen.line.contains("secret")), "{door:?}: {seen:?}");
    }
}

/// TCP sends no part of a segment at once: the client's window is below one, though it was larger before.
#[test]
fn who_takes_no_segment_of_the_answer_holds_no_place() {
    if !ready() {
        return;
    }
    let _one = one_installation();
    // in units of 128 bytes; segments have 1448
    for (door, window, holds) in Door::GUARDS.into_iter().flat_map(|door| [(door, 24, true), (door, 8, false)]) {
        let rig = Rig::in_order(door, &lasting());
        let client = answered(&rig);
        let before = rig.server.seen().len();
        let mut mute = client.segment(PSH | ACK, BEFORE.len() as u32, MUTE);
        mute.window = window;
        rig.clients.send(&mute).unwrap();
        wait_until(SOON, || rig.server.seen().len() > before).unwrap_or_else(|_| panic!("{:?}", counts(&rig)));
        next_waits(&rig, holds);
    }
}

/// Whether somebody who asks now waits for the only place, or gets it long before that would run out by itself.
#[track_caller]
fn next_waits(rig: &Rig, it_does: bool) {
    let next = rig.open(Family::V4);
    rig.clients.send(&next.segment(PSH | ACK, 0, PAST)).unwrap();
    if it_does {
        waits(rig, 1);
        std::thread::sleep(PLACE);
        assert!(!past(rig), "{:?}", counts(rig));
    } else {
        let passes = wait_until(5 * PLACE, || past(rig));
        assert!(passes.is_ok(), "{:?}", counts(rig));
    }
}

/// Its answer is longer than TCP's congestion window at first, of 10 segments.
const LONG: &[u8] = b"GET /20000 HTTP/1.1\r\nHost: server\r\n\r\n";
const FULL: usize = 10 * 1448;

/// A client that has so much of the answer to its first request, and acknowledges none of it.
#[track_caller]
fn silent<'a>(rig: &'a Rig, before: &[u8], answer: usize) -> RawConnection<'a> {
    let client = rig.open(Family::V4);
    rig.clients.send(&client.segment(PSH | ACK, 0, before)).unwrap();
    let mut heard = 0;
    while heard < answer {
        let segment = rig.clients.receive(client.client, SOON);
        heard += segment.unwrap_or_else(|| panic!("{heard}, {:?}", counts(rig))).payload.len();
    }
    wait_until(SOON, || counts(rig).0 == 0).unwrap_or_else(|_| panic!("{:?}", counts(rig)));
    client
}

/// Such a client asks again. Whether it holds its place.
#[track_caller]
fn asks_without_acknowledging(door: Door, before: &[u8], answer: usize, holds: bool) {
    let rig = Rig::in_order(door, &lasting());
    let client = silent(&rig, before, answer);
    rig.clients.send(&client.segment(PSH | ACK, before.len() as u32, MUTE)).unwrap();
    wait_until(SOON, || rig.server.seen().len() == 2).unwrap_or_else(|_| panic!("{door:?}: {:?}", counts(&rig)));
    next_waits(&rig, holds);
}

/// TCP begins no answer behind one that fills its congestion window.
#[test]
fn who_does_not_acknowledge_the_answer_before_holds_no_place() {
    if !ready() {
        return;
    }
    let _one = one_installation();
    for door in Door::GUARDS {
        asks_without_acknowledging(door, LONG, FULL, false);
    }
}

/// As a client does that asks before its acknowledgement of the answer has come: nothing holds the next one back.
#[test]
fn who_has_not_acknowledged_a_short_answer_yet_holds_its_place() {
    if !ready() {
        return;
    }
    let _one = one_installation();
    for door in Door::GUARDS {
        asks_without_acknowledging(door, BEFORE, 1, true);
    }
}

#[test]
fn who_acknowledges_the_answer_before_while_it_waits_holds_its_place() {
    if !ready() {
        return;
    }
    let _one = one_installation();
    for door in Door::GUARDS {
        let rig = Rig::in_order(door, &lasting());
        let mut client = silent(&rig, LONG, FULL);
        let place = take_place(&rig);
        rig.clients.send(&client.segment(PSH | ACK, LONG.len() as u32, MUTE)).unwrap();
        waits(&rig, 1);
        wait_until(SOON, || {
            client.hear(HEARD).unwrap();
            client.received().len() > 20_000
        })
        .unwrap_or_else(|_| panic!("{door:?}: {}", client.received().len()));
        rig.clients.send(&place.segment(RST, MUTE.len() as u32, &[])).unwrap();
        wait_until(SOON, || rig.server.seen().len() == 3).unwrap_or_else(|_| panic!("{door:?}: {:?}", counts(&rig)));
        next_waits(&rig, true);
    }
}

/// A request behind bytes that are missing has its turn in vain, and what is missing lets it go on.
#[test]
fn a_turn_is_not_kept_behind_a_gap() {
    if !ready() {
        return;
    }
    let _one = one_installation();
    for door in Door::GUARDS {
        let rig = Rig::in_order(door, POLICY);
        let client = answered(&rig);
        let head = b"POST /10 HTTP/1.1\r\nHost: server\r\nContent-Length: 2\r\n\r\n";
        let mut at = BEFORE.len() as u32;
        rig.clients.send(&client.segment(PSH | ACK, at, head)).unwrap();
        at += head.len() as u32;
        turns(&rig, 2);
        rig.clients.send(&client.segment(PSH | ACK, at + 2, PAST)).unwrap();
        turns(&rig, 3);
        place_runs_out(&rig);
        let _place = take_place(&rig);
        rig.clients.send(&client.segment(PSH | ACK, at, b"ab")).unwrap();
        waits(&rig, 1);
        assert!(!past(&rig), "{door:?}: {:?}", counts(&rig));
    }
}

/// Bodies alone pass before a request that waits of their connection: another request that was ruled and that TCP has not got does not, nor
/// what stands in its place.
#[test]
fn no_request_passes_before_the_next_one_that_waits() {
    if !ready() {
        return;
    }
    let rules = "[[listener.plain.request]]\npath = \"/secret/*\"\nrefuse = \"reset\"\n";
    let [public, secret] = ["public", "secret"].map(|word| format!("GET /{word}/10 HTTP/1.1\r\nHost: server\r\n\r\n"));
    let _one = one_installation();
    for door in Door::GUARDS {
        let rig = Rig::in_order(door, &format!("{}{rules}", lasting()));
        let mut client = answered(&rig);
        let at = BEFORE.len() as u32;
        let _place = take_place(&rig);
        send_unseen(&rig, &client.segment(PSH | ACK, at, public.as_bytes()));
        client.hear(HEARD).unwrap();
        rig.clients.send(&client.segment(PSH | ACK, at + public.len() as u32, PAST)).unwrap();
        waits(&rig, 1);
        let before = rig.server.seen().len();
        for bytes in [&secret[..], &public[..], &public[..8], &public[8..]] {
            let from = if bytes.starts_with("GET") { at } else { at + 8 };
            rig.clients.send(&client.segment(PSH | ACK, from, bytes.as_bytes())).unwrap();
            client.hear(HEARD).unwrap();
        }
        assert_eq!(rig.server.seen().len(), before, "{door:?}: {:?}", rig.server.seen());
        waits(&rig, 1);
    }
}
