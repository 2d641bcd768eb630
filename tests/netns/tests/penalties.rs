// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A penalty holds however its source prepared for it, and a cookie opens one connection.

use fief_bpf::abi;
use fief_testkit::segment::{ACK, RST, Segment};
use fief_testkit::{Ending, Family, ORDINARY_OPTIONS, RawClients, RawConnection, wait_until};
use fief_tests_netns::front::{Door, plain, ready};
use fief_tests_netns::rig::{Rig, whole};
use fief_tests_netns::{NEVER_OVERLOADED, SOON, one_installation};
use std::time::{Duration, Instant};

const POLICY: &str = r#"
[container.web]
[listener.plain]
address = "[::]:80"
[[listener.plain.client]]
from = ["any"]
container = "web"
[[listener.plain.request]]
path = "/refused"
refuse = "reset"
penalty = "1h"
[[listener.plain.request]]
path = "/short"
refuse = "drop"
penalty = "2s"
"#;

const GOOD: &[u8] = b"GET /10 HTTP/1.1\r\nHost: a\r\n\r\n";
const REFUSED: &[u8] = b"GET /refused HTTP/1.1\r\n\r\n";

fn open(rig: &Rig, n: u16, port: u16) -> RawConnection<'_> {
    rig.open_from((RawClients::address(Family::V4, n), port).into())
}

#[test]
fn a_cookie_that_was_gathered_before_the_penalty_is_worth_nothing_within_it() {
    if !ready() {
        return;
    }
    let _one = one_installation();
    for door in Door::GUARDS {
        let rig = Rig::new(door, POLICY);
        let mut gathered: Vec<_> = (0..5).map(|n| open(&rig, 1, 3000 + n)).collect();
        gathered.iter().for_each(|connection| connection.acknowledge().unwrap());
        // One of them has begun its head already.
        rig.clients.send(&gathered[4].segment(ACK, 0, &GOOD[..9])).unwrap();
        let (_, ending) = open(&rig, 1, 2999).converse(REFUSED, &whole(REFUSED), SOON).unwrap();
        assert_eq!(ending, Ending::Reset, "{door:?}");
        let before = rig.front.verdicts();
        for connection in &mut gathered {
            let (words, _) = connection.converse(GOOD, &whole(GOOD), Duration::from_millis(100)).unwrap();
            assert!(words.is_empty(), "{door:?}: served within the penalty");
        }
        wait_until(SOON, || rig.front.verdicts().since(&before).count(abi::FIEF_SYN_PENALTY) >= 5).unwrap();
        assert_eq!(rig.server.accepted(), 0, "{door:?}");
        // A neighbour is served.
        let (words, _) =
            open(&rig, 2, 3000).converse_until(GOOD, &whole(GOOD), SOON, |words| !words.is_empty()).unwrap();
        assert!(words.starts_with(b"HTTP/1.1 200"), "{door:?}");
    }
}

#[test]
fn a_running_penalty_is_not_renewed() {
    if !ready() {
        return;
    }
    let _one = one_installation();
    let rig = Rig::new(Door::Own, POLICY);
    let connection = open(&rig, 1, 2000);
    let begin = Instant::now();
    let refused =
        || rig.front.verdicts().count(abi::FIEF_SYN_PENALTY) + rig.front.verdicts().count(abi::FIEF_REQUEST_REFUSED);
    let again = connection.segment(ACK, 0, b"GET /short HTTP/1.1\r\n\r\n");
    rig.clients.send(&again).unwrap();
    wait_until(SOON, || refused() == 1).unwrap();
    // It sends the refused request again, as TCP does with what is dropped. Not until the penalty's end: behind that it would get a new one.
    let last = loop {
        let (before, last) = (refused(), Instant::now());
        rig.clients.send(&again).unwrap();
        wait_until(SOON, || refused() > before).unwrap();
        if begin.elapsed() >= Duration::from_secs(1) {
            break last;
        }
    };
    let mut other = open_when_answered(&rig);
    let (at, since) = (begin.elapsed(), last.elapsed());
    let (words, _) = other.converse_until(GOOD, &whole(GOOD), SOON, |words| !words.is_empty()).unwrap();
    assert!(words.starts_with(b"HTTP/1.1 200"));
    assert!(since < Duration::from_secs(2), "the penalty ended after {at:?}, {since:?} after the last repetition");
}

/// Asks for a connection until it is answered.
fn open_when_answered(rig: &Rig) -> RawConnection<'_> {
    for port in 4000.. {
        let addresses = [(RawClients::address(Family::V4, 1), port).into(), plain(Family::V4)];
        let time = Duration::from_millis(100);
        if let Some(open) = RawConnection::open(&rig.clients, addresses, 9, &ORDINARY_OPTIONS, time).unwrap() {
            return open;
        }
    }
    unreachable!("ports are enough")
}

#[test]
fn a_cookie_opens_one_connection_also_of_a_server_that_is_not_managed() {
    if !ready() {
        return;
    }
    let _one = one_installation();
    for door in Door::GUARDS {
        let rig = Rig::new(door, POLICY);
        let mut connection = open(&rig, 1, 2000);
        let (words, _) = connection.converse_until(GOOD, &whole(GOOD), SOON, |words| !words.is_empty()).unwrap();
        assert!(words.starts_with(b"HTTP/1.1 200"), "{door:?}");
        let port = connection.client.port();
        let first: Segment = connection.segment(ACK, 0, GOOD);
        let expected = connection.greeting.sequence.wrapping_add(1);
        let again = Segment { acknowledgment: expected, ..first };
        for _ in 0..5 {
            rig.clients.send(&connection.segment(RST | ACK, GOOD.len() as u32, &[])).unwrap();
            wait_until(SOON, || rig.front.sockets(port).is_empty()).unwrap();
            let before = rig.front.verdicts();
            rig.clients.send(&again).unwrap();
            wait_until(SOON, || rig.front.verdicts().since(&before).count(abi::FIEF_ACK_BAD) > 0)
                .unwrap_or_else(|_| panic!("{door:?}: {:?}", rig.front.verdicts().since(&before)));
        }
        assert_eq!(rig.server.accepted(), 1, "{door:?}");
    }
}

#[test]
fn of_two_cookies_of_one_flow_each_opens_one_connection() {
    if !ready() {
        return;
    }
    let _one = one_installation();
    for door in Door::GUARDS {
        let rig = Rig::new(door, POLICY);
        let client = (RawClients::address(Family::V4, 1), 2000).into();
        let mut both = [7000, 900_000].map(|first| rig.open_with(client, first, &ORDINARY_OPTIONS));
        let copies = both.each_ref().map(|connection| Segment {
            acknowledgment: connection.greeting.sequence.wrapping_add(1),
            ..connection.segment(ACK, 0, GOOD)
        });
        for connection in &mut both {
            let (words, _) = connection.converse_until(GOOD, &whole(GOOD), SOON, |words| !words.is_empty()).unwrap();
            assert!(words.starts_with(b"HTTP/1.1 200"), "{door:?}");
            rig.clients.send(&connection.segment(RST | ACK, GOOD.len() as u32, &[])).unwrap();
            wait_until(SOON, || rig.front.sockets(2000).is_empty()).unwrap();
        }
        for copy in [&copies[0], &copies[1], &copies[0]] {
            let before = rig.front.verdicts();
            let refused = || rig.front.verdicts().since(&before).count(abi::FIEF_ACK_BAD);
            // its client's timeout: a begin passes once in 150 ms
            wait_until(SOON, || {
                rig.clients.send(copy).unwrap();
                refused() > 0
            })
            .unwrap_or_else(|_| panic!("{door:?}: {:?}", rig.front.verdicts().since(&before)));
        }
        assert_eq!(rig.server.accepted(), 2, "{door:?}");
    }
}

#[test]
fn below_admission_a_handshake_that_was_begun_before_the_penalty_ends_in_no_connection() {
    if !ready() {
        return;
    }
    let _one = one_installation();
    let admits = POLICY.replace("[listener.plain]\n", "[listener.plain]\nadmit-from = \"overloaded\"\n");
    let policy = NEVER_OVERLOADED.to_owned() + &admits;
    for door in Door::GUARDS {
        let rig = Rig::new(door, &policy);
        let mut begun: Vec<_> = (0..3).map(|n| open(&rig, 1, 3000 + n)).collect();
        let (_, ending) = open(&rig, 1, 2999).converse(REFUSED, &whole(REFUSED), SOON).unwrap();
        assert_eq!(ending, Ending::Reset, "{door:?}");
        let before = rig.front.verdicts();
        for connection in &mut begun {
            let (words, _) = connection.converse(GOOD, &whole(GOOD), Duration::from_millis(100)).unwrap();
            assert!(words.is_empty(), "{door:?}: served within the penalty");
        }
        wait_until(SOON, || rig.front.verdicts().since(&before).count(abi::FIEF_SYN_PENALTY) >= 3).unwrap();
    }
}
