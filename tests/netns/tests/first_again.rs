// SPDX-License-Identifier: Apache-2.0 OR MIT
//! First requests that come again, since the queue had no place for them, or since their client missed the answer: the rates of the former
//! are charged once, and the latter are answered anew.

use std::time::Duration;

use fief_bpf::abi;
use fief_testkit::segment::{ACK, PSH, RST};
use fief_testkit::{Family, ORDINARY_OPTIONS, RawClients, RawConnection, wait_until};
use fief_tests_netns::SOON;
use fief_tests_netns::front::{Door, plain, ready};
use fief_tests_netns::queued::{Queued, lasting, low, status};
use fief_tests_netns::refusing;
use fief_tests_netns::rig::Rig;

/// As a client waits before it sends once more: longer than first bytes that have passed keep others back.
const AGAIN: Duration = Duration::from_millis(300);
const TIMES: u64 = 3;
const TRIES: usize = 5;

const ASKS: &[u8] = b"GET /limited HTTP/1.1\r\nHost: server\r\n\r\n";
const LIMITED: &str = "[[listener.plain.request]]\npath = \"/limited\"\nrate = { per-second = 1, burst = 1 }\n";

/// Kind 30 (RFC 8684). Only the packet that bears it can make its connection, so that its request cannot wait.
const MULTIPATH: [u8; 4] = [30, 4, 0x01, 0x01];

fn open(clients: &RawClients) -> RawConnection<'_> {
    let ends = [(RawClients::address(Family::V4, 5), 3000).into(), plain(Family::V4)];
    RawConnection::open(clients, ends, 77, &ORDINARY_OPTIONS, SOON).unwrap().expect("a SYN-ACK")
}

#[test]
fn a_rate_is_charged_once_for_a_first_request_that_has_no_place_to_wait() {
    if !ready() {
        return;
    }
    let rig = Queued::multipath(Door::Kernel, &(lasting() + LIMITED));
    let clients = RawClients::new(&rig.front.topology).unwrap();
    let first = rig.ask(low(1), "/first");
    rig.got_all(1);
    let mut connection = open(&clients);
    let mut asks = connection.segment(PSH | ACK, 0, ASKS);
    asks.options.extend(MULTIPATH);
    let counts = || [abi::FIEF_REQUEST_RULE, abi::FIEF_REQUEST_RATE].map(|reason| rig.front.verdicts().count(reason));
    for times in 1..=TIMES {
        clients.send(&asks).unwrap();
        wait_until(SOON, || counts().iter().sum::<u64>() >= times)
            .unwrap_or_else(|_| panic!("{times}: {:?}", rig.front.verdicts()));
        connection.hear(AGAIN).unwrap();
    }
    assert_eq!(counts(), [TIMES, 0], "{:?}", rig.front.verdicts());
    rig.let_go(2);
    assert_eq!(status(first), 200);
    clients.send(&asks).unwrap();
    wait_until(SOON, || {
        connection.hear(AGAIN).unwrap();
        connection.received().starts_with(b"HTTP/1.1 200")
    })
    .unwrap_or_else(|_| panic!("{:?}, {:?}", rig.queue(), rig.front.verdicts()));
    assert_eq!(counts()[1], 0, "{:?}", rig.front.verdicts());
}

/// Sends the request again and again, so long after it is refused.
fn is_refused_again_and_again(clients: &RawClients, connection: &RawConnection, request: &[u8], after: Duration) {
    let asks = connection.segment(PSH | ACK, 0, request);
    for times in 1..=TIMES {
        clients.send(&asks).unwrap();
        let told = wait_until(SOON, || {
            let answer = clients.receive(connection.client, AGAIN);
            answer.is_some_and(|segment| segment.has(RST) || segment.payload.starts_with(b"HTTP/1.1 503"))
        });
        assert!(told.is_ok(), "no answer to the {times}. time");
        std::thread::sleep(after);
    }
}

/// A doubled packet is not: it could find a place that is free by then, though its client reads that it is refused.
#[test]
fn what_the_queue_refuses_is_answered_as_often_as_it_comes() {
    if !ready() {
        return;
    }
    for door in Door::GUARDS {
        let rig = Queued::new(door, &lasting().replace("length = 200", "length = 1"));
        let clients = RawClients::new(&rig.front.topology).unwrap();
        let _first = rig.ask(low(1), "/first");
        rig.got_all(1);
        let _second = rig.ask(low(2), "/second");
        rig.wait_for(1);
        let refused = || rig.front.verdicts().count(abi::FIEF_REFUSED_QUEUE_FULL);
        let connection = open(&clients);
        is_refused_again_and_again(&clients, &connection, ASKS, AGAIN);
        assert_eq!(refused(), TIMES, "{door:?}");
        let asks = connection.segment(PSH | ACK, 0, ASKS);
        // where the machine stands still between the two, the second is one that comes again
        let is_refused_once = (0..TRIES).any(|_| {
            let before = refused();
            (0..2).for_each(|_| clients.send(&asks).unwrap());
            wait_until(SOON, || refused() > before).unwrap_or_else(|_| panic!("{door:?}: {:?}", rig.front.verdicts()));
            std::thread::sleep(AGAIN);
            refused() == before + 1
        });
        assert!(is_refused_once, "{door:?}: {:?}", rig.front.verdicts());
    }
}

#[test]
fn what_a_rule_refuses_behind_another_request_is_answered_as_often_as_it_comes() {
    if !ready() {
        return;
    }
    let two = b"GET /10 HTTP/1.1\r\nHost: server\r\n\r\nGET /secret/10 HTTP/1.1\r\nHost: server\r\n\r\n";
    for door in Door::GUARDS {
        let rig = Rig::new(door, refusing!("/secret/*", "503"));
        is_refused_again_and_again(&rig.clients, &open(&rig.clients), two, Duration::ZERO);
        assert_eq!(rig.verdicts().count(abi::FIEF_REQUEST_REFUSED), TIMES, "{door:?}");
        assert_eq!(rig.server.accepted(), 0, "{door:?}");
    }
}
