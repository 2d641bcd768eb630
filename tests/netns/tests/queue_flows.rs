// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What waits in the queue goes to the connection that it was ruled for, whole, and is not lost there.

use std::time::Duration;

use fief_testkit::segment::{ACK, PSH, RST};
use fief_testkit::{Ending, Family, RawClients, RawConnection, wait_until};
use fief_tests_netns::front::{Door, plain, ready};
use fief_tests_netns::queued::{Queued, answer_on, ask_on, lasting, low, status};
use fief_tests_netns::rig::Rig;
use fief_tests_netns::{SOON, one_installation};

const RULES: &str = r#"
[[listener.plain.request]]
path = "/secret/*"
refuse = "reset"
[[listener.plain.request]]
path = "/free/*"
queue = false
"#;

const SECRET: &[u8] = b"GET /secret/10 HTTP/1.1\r\nHost: server\r\n\r\n";
/// Bytes of one request that the queue keeps.
const KEPT: usize = 15_360;
const HEARD: Duration = Duration::from_millis(50);
const MUTE: &str = "/mute/10";

/// A place lasts longer than any test here.
fn rig(door: Door) -> Rig {
    Rig::in_order(door, &format!("{}{RULES}", lasting()))
}

/// Takes the only place of a server that does not answer.
fn take_place(rig: &Rig) -> RawConnection<'_> {
    ask(rig, MUTE, 60_000)
}

fn request(path: &str) -> String {
    format!("GET {path} HTTP/1.1\r\nHost: server\r\n\r\n")
}

fn ask<'a>(rig: &'a Rig, path: &str, window: u16) -> RawConnection<'a> {
    let before = rig.server.seen().len();
    let connection = rig.open(Family::V4);
    let mut first = connection.segment(PSH | ACK, 0, request(path).as_bytes());
    first.window = window;
    rig.clients.send(&first).unwrap();
    wait_until(SOON, || rig.server.seen().len() > before).unwrap();
    connection
}

/// Bytes of the client's that it was told have come.
fn acknowledged(client: &RawConnection) -> usize {
    client.acknowledged.wrapping_sub(client.first) as usize - 1
}

fn waiting(rig: &Rig) -> u32 {
    rig.front.queue().waiting
}

/// The client that has the only place goes. Waits until all who waited are served, which somebody behind them shows.
fn move_on(rig: &Rig, place: &RawConnection) {
    // just what TCP expects
    rig.clients.send(&place.segment(RST, request(MUTE).len() as u32, &[])).unwrap();
    let behind = rig.front.status_from([10, 77, 2, 9].into(), plain(Family::V4), "/10");
    assert_eq!(behind, Ok(200), "{:?}", rig.front.queue());
}

/// Two handshakes of one client with one port, and how many bytes the second begins before the first. The server's number in
/// the first is a little above that in the second.
fn twins<'a>(rig: &'a Rig, kept: &mut Vec<RawConnection<'a>>) -> (usize, usize, u32, u32) {
    let client = (RawClients::address(Family::V4, 6), 4000).into();
    let first: u32 = 1 << 20;
    if rig.front.door == Door::Kernel {
        // its cookie grows with the client's number, and with a clock that goes on once a minute: at most between the first two
        kept.extend([0, 16, 32].map(|below| rig.open_with(client, first - below, &[2, 4, 5, 0xb4])));
    } else {
        // one for each size of segments, window scale, and SACK
        for size in [600u16, 1220, 1300, 1360, 1400, 1440, 1460, 8900] {
            for more in 0..30u8 {
                let [high, low] = size.to_be_bytes();
                let mut options = vec![2, 4, high, low, 1, 3, 3, more % 15];
                options.extend(if more < 15 { [1, 1, 1, 1] } else { [1, 1, 4, 2] });
                kept.push(rig.open_with(client, first, &options));
            }
        }
    }
    let above = |a: &RawConnection, b: &RawConnection| a.expected.wrapping_sub(b.expected);
    let pairs = (0..kept.len()).flat_map(|a| (0..kept.len()).map(move |b| (a, b))).filter(|(a, b)| a != b);
    let (one, other) = pairs.min_by_key(|(a, b)| above(&kept[*a], &kept[*b])).unwrap();
    (one, other, kept[one].first - kept[other].first, above(&kept[one], &kept[other]))
}

#[test]
fn what_waits_does_not_reach_another_connection_of_its_ports() {
    if !ready() {
        return;
    }
    for door in Door::GUARDS {
        let rig = rig(door);
        let mut kept = Vec::new();
        let (one, other, before, above) = twins(&rig, &mut kept);
        let place = take_place(&rig);
        let length = SECRET.len();
        let head = format!(
            "POST /public/10 HTTP/1.1\r\nHost: server\r\nA: {}\r\nContent-Length: {length}\r\n\r\n",
            "a".repeat(99)
        );
        // this one waits: to the door its body is a body
        rig.clients.send(&kept[one].segment(PSH | ACK, 0, &[head.as_bytes(), SECRET].concat())).unwrap();
        wait_until(SOON, || waiting(&rig) == 1).unwrap_or_else(|_| panic!("{door:?}: {:?}", rig.verdicts()));
        // this one does not, and makes the connection
        let mut free = format!("GET /free/{} HTTP/1.1\r\nHost: server\r\nA: \r\n\r\n", above + 1000);
        let filler = "a".repeat(head.len() + before as usize - free.len());
        free.insert_str(free.len() - 4, &filler);
        let begin = kept[other].segment(PSH | ACK, 0, free.as_bytes());
        wait_until(SOON, || {
            // sent again, as a client does: the first bytes of both are claimed for a moment
            if kept[other].received().is_empty() {
                rig.clients.send(&begin).unwrap();
            }
            kept[other].hear(HEARD).unwrap();
            kept[other].received().len() > above as usize
        })
        .unwrap_or_else(|_| panic!("{door:?}: {above}, {}, {:?}", kept[other].received().len(), rig.verdicts()));
        move_on(&rig, &place);
        kept[other].hear(HEARD).unwrap();
        let seen = rig.server.seen();
        assert!(!seen.iter().any(|seen| seen.line.contains("secret")), "{door:?}: {seen:?}, {:?}", rig.verdicts());
    }
}

/// A body that goes on while its begin waits draws no reset, whoever else sends half heads meanwhile.
#[test]
fn an_upload_that_waits_is_not_reset() {
    if !ready() {
        return;
    }
    let _one = one_installation();
    for door in Door::GUARDS {
        let rig = rig(door);
        let _place = take_place(&rig);
        let mut upload = rig.open(Family::V4);
        let head = b"PUT /public/10 HTTP/1.1\r\nHost: server\r\nContent-Length: 20000\r\n\r\n";
        let stream = [&head[..], &[b'a'; 20_000]].concat();
        rig.clients.send(&upload.segment(ACK, 0, &stream[..20])).unwrap();
        wait_until(SOON, || {
            upload.hear(HEARD).unwrap();
            acknowledged(&upload) == 20
        })
        .unwrap();
        rig.clients.send(&upload.segment(ACK, 20, &stream[20..1400])).unwrap();
        wait_until(SOON, || waiting(&rig) == 1).unwrap();
        let other = rig.open(Family::V4);
        rig.clients.send(&other.segment(ACK, 0, &stream[..20])).unwrap();
        for at in (1400..stream.len()).step_by(1400) {
            let piece = &stream[at..stream.len().min(at + 1400)];
            rig.clients.send(&upload.segment(ACK, at as u32, piece)).unwrap();
            assert_ne!(upload.hear(HEARD).unwrap(), Some(Ending::Reset), "{door:?}: at {at}, {:?}", rig.verdicts());
        }
    }
}

/// A body that comes behind a head that waits is kept with it, and acknowledged; the request behind it has not been ruled yet.
#[test]
fn what_follows_of_a_body_waits_with_its_head() {
    if !ready() {
        return;
    }
    let _one = one_installation();
    for door in Door::GUARDS {
        let rig = rig(door);
        let place = take_place(&rig);
        let mut upload = rig.open(Family::V4);
        let head = b"POST /public/10 HTTP/1.1\r\nHost: server\r\nContent-Length: 3000\r\n\r\n";
        let stream = [&head[..], &[b'a'; 3000], SECRET].concat();
        let mut at = 0;
        for end in [head.len(), head.len() + 900, head.len() + 1800, head.len() + 3000] {
            rig.clients.send(&upload.segment(PSH | ACK, at as u32, &stream[at..end])).unwrap();
            wait_until(SOON, || {
                upload.hear(HEARD).unwrap();
                acknowledged(&upload) == end
            })
            .unwrap_or_else(|_| panic!("{door:?}: {} of {end}, {:?}", acknowledged(&upload), rig.front.queue()));
            at = end;
        }
        assert_eq!(waiting(&rig), 1);
        rig.clients.send(&upload.segment(PSH | ACK, at as u32, &stream[at..])).unwrap();
        upload.hear(HEARD).unwrap();
        assert_eq!((acknowledged(&upload), waiting(&rig)), (at, 1), "{door:?}");
        move_on(&rig, &place);
        wait_until(SOON, || {
            upload.hear(HEARD).unwrap();
            !upload.received().is_empty()
        })
        .unwrap_or_else(|_| panic!("{door:?}: {:?}", rig.server.seen()));
        // it is kept until TCP is seen to have it
        wait_until(SOON, || rig.front.queue().kept == 0)
            .unwrap_or_else(|_| panic!("{door:?}: {:?}", rig.front.queue()));
    }
}

/// While a request waits, the edge of its client's window stays where it was, or moves on by a unit of windows at most.
#[test]
fn who_waits_is_offered_no_more_and_no_less_than_before() {
    if !ready() {
        return;
    }
    let head = b"POST /public/10 HTTP/1.1\r\nHost: server\r\nContent-Length: 20000\r\n\r\n";
    let stream = [&head[..], &[b'a'; 20_000]].concat();
    let _one = one_installation();
    for door in Door::GUARDS {
        let rig = rig(door);
        let mut later = rig.open(Family::V4);
        let first = b"GET /10 HTTP/1.1\r\nHost: server\r\n\r\n";
        rig.clients.send(&later.segment(PSH | ACK, 0, first)).unwrap();
        wait_until(SOON, || {
            later.hear(HEARD).unwrap();
            !later.received().is_empty()
        })
        .unwrap();
        let _place = take_place(&rig);
        let fresh = rig.open(Family::V4);
        for (mut upload, before) in [(fresh, 0), (later, first.len())] {
            let unit = 1 << upload.greeting.option(3).map_or(0, |scale| scale[0]);
            // the server may have said more since
            upload.hear(HEARD).unwrap();
            let edge = upload.edge;
            for at in (0..KEPT).step_by(1280) {
                let piece = upload.segment(PSH | ACK, (before + at) as u32, &stream[at..at + 1280]);
                rig.clients.send(&piece).unwrap();
                // of a full one the last byte is left
                let end = before + at + 1280 - usize::from(at + 1280 == KEPT);
                wait_until(SOON, || {
                    upload.hear(HEARD).unwrap();
                    acknowledged(&upload) >= end
                })
                .unwrap_or_else(|_| panic!("{door:?}: {} of {end}", acknowledged(&upload)));
                assert_eq!(acknowledged(&upload), end, "{door:?}");
                // more than the kernel's SYN-ACK may have offered
                let most = if before == 0 && door == Door::Kernel { 1 << 16 } else { unit };
                assert!(upload.edge.wrapping_sub(edge) <= most, "{door:?}: {edge}, then {}", upload.edge);
            }
            if before == 0 && door == Door::Own {
                assert_eq!(upload.edge, upload.acknowledged);
            }
        }
    }
}

/// A request that waits while its client acknowledges the answer before it.
#[test]
fn a_request_that_waits_behind_a_long_answer_is_served() {
    if !ready() {
        return;
    }
    let _one = one_installation();
    for door in Door::GUARDS {
        let rig = rig(door);
        // without a scale of windows, so that the answer is longer than one
        let mut connection = rig.open_offering(Family::V4, &[2, 4, 5, 0xb4]);
        let requests =
            [&b"GET /300000 HTTP/1.1\r\nHost: server\r\n\r\n"[..], b"GET /last/77 HTTP/1.1\r\nHost: server\r\n\r\n"];
        rig.clients.send(&connection.segment(PSH | ACK, 0, requests[0])).unwrap();
        // its answer is on its way
        wait_until(SOON, || rig.front.queue().class[1].entered == 1 && rig.front.queue().busy == 0).unwrap();
        let place = take_place(&rig);
        let end = requests[0].len() + requests[1].len();
        let next = connection.segment(PSH | ACK, requests[0].len() as u32, requests[1]);
        rig.clients.send(&next).unwrap();
        wait_until(SOON, || waiting(&rig) == 1).unwrap_or_else(|_| panic!("{door:?}: {:?}", rig.verdicts()));
        wait_until(SOON, || {
            connection.hear(HEARD).unwrap();
            connection.received().len() > 300_000
        })
        .unwrap_or_else(|_| panic!("{door:?}: {}", connection.received().len()));
        let length = connection.received().len();
        // its window is another one by now
        let mut window = connection.segment(ACK, end as u32, &[]);
        window.window = 60_000;
        rig.clients.send(&window).unwrap();
        move_on(&rig, &place);
        let served = wait_until(SOON, || {
            // as a client does whose last byte is not acknowledged
            if connection.acknowledged.wrapping_sub(connection.first) as usize <= end {
                let at = connection.acknowledged.wrapping_sub(connection.first) as usize - 1;
                let all = requests.concat();
                rig.clients.send(&connection.segment(PSH | ACK, at as u32, &all[at..])).unwrap();
            }
            connection.hear(HEARD).unwrap();
            connection.received().len() > length
        });
        assert!(served.is_ok(), "{door:?}: {:?}, {:?}", rig.server.seen(), rig.verdicts());
    }
}

/// A client that takes no answer keeps the server from nobody.
#[test]
fn who_takes_no_answer_keeps_no_place() {
    if !ready() {
        return;
    }
    let _one = one_installation();
    for door in Door::GUARDS {
        // longer than anybody waits here, if it is kept
        let rig = rig(door);
        let mut silent = Vec::new();
        for n in 1..4 {
            silent.push(ask(&rig, "/10", 0));
            let status = rig.front.status_from([10, 77, 1, n].into(), plain(Family::V4), "/10");
            assert_eq!(status, Ok(200), "{door:?}");
        }
    }
}

/// What TCP lacks before it comes after it, with a later timestamp than its own.
#[test]
fn a_request_that_waits_behind_a_gap_is_not_too_old_for_tcp() {
    if !ready() {
        return;
    }
    let _one = one_installation();
    for door in Door::GUARDS {
        let rig = rig(door);
        let (head, body) = ("POST /10 HTTP/1.1\r\nHost: server\r\nContent-Length: 5\r\n\r\n", b"hello");
        let upload = rig.open(Family::V4);
        rig.clients.send(&upload.segment(PSH | ACK, 0, head.as_bytes())).unwrap();
        wait_until(SOON, || rig.front.queue().class[1].entered == 1).unwrap();
        // its place runs out soon, as it owes bytes
        let place = take_place(&rig);
        let behind = upload.segment(PSH | ACK, (head.len() + body.len()) as u32, request("/behind/10").as_bytes());
        rig.clients.send(&behind).unwrap();
        wait_until(SOON, || waiting(&rig) == 1).unwrap();
        let mut missing = upload.segment(PSH | ACK, head.len() as u32, body);
        let stamp = u32::from_be_bytes(missing.options[4..8].try_into().unwrap());
        missing.options[4..8].copy_from_slice(&(stamp + 200).to_be_bytes());
        rig.clients.send(&missing).unwrap();
        wait_until(SOON, || rig.server.seen().len() == 2)
            .unwrap_or_else(|_| panic!("{door:?}: {:?}", rig.server.seen()));
        move_on(&rig, &place);
        let seen = rig.server.seen();
        assert!(seen.iter().any(|seen| seen.line.contains("/behind/")), "{door:?}: {seen:?}");
    }
}

/// It goes there in a packet of the door's.
#[test]
fn a_server_that_takes_nothing_from_afar_gets_what_has_waited() {
    if !ready() {
        return;
    }
    let _one = one_installation();
    for door in Door::GUARDS {
        let rig = Queued::near(door, &lasting());
        rig.front.topology.clients.sysctl("net.ipv4.ip_default_ttl", "255").unwrap();
        let mut client = rig.connect(low(3));
        rig.let_go(1);
        ask_on(&mut client, "/before");
        assert!(answer_on(&mut client).starts_with("HTTP/1.1 200"), "{door:?}");
        let first = rig.ask(low(1), "/first");
        rig.got_all(2);
        let held = rig.ask(low(2), "/held");
        rig.wait_for(1);
        ask_on(&mut client, "/later");
        rig.wait_for(2);
        rig.let_go(3);
        assert_eq!([first, held].map(status), [200; 2], "{door:?}");
        assert!(answer_on(&mut client).starts_with("HTTP/1.1 200"), "{door:?}");
    }
}
