// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Answers that end otherwise than their heads let expect, and those that come before the request is whole, give their places back.

use std::io::Write;

use fief_tests_netns::front::{Door, ready};
use fief_tests_netns::one_installation;
use fief_tests_netns::queued::{POLICY, Queued, answer_on, ask_on, lasting, low, status};

/// Requests that the server got, in turn or at once.
fn counted(rig: &Queued) -> u64 {
    assert_eq!(rig.queue().uncounted, 0);
    rig.queue().class.iter().map(|class| class.entered + class.released).sum()
}

/// The answer of 304 names the length that another one would have.
#[test]
fn an_answer_of_304_gives_its_place_back() {
    if !ready() {
        return;
    }
    const ROUNDS: usize = 5;
    let _one = one_installation();
    for (door, until) in Door::GUARDS.into_iter().flat_map(|door| [(door, "first-byte"), (door, "response")]) {
        let policy = POLICY.replace("in-service = 1", &format!("in-service = 1, until = \"{until}\""));
        assert_ne!(policy, POLICY);
        let rig = Queued::new(door, &policy);
        rig.let_go(2 * ROUNDS);
        let mut two = [rig.connect(low(1)), rig.connect(low(2))];
        for _ in 0..ROUNDS {
            for stream in &mut two {
                stream.write_all(b"GET /5000 HTTP/1.1\r\nHost: server\r\nAnswer: 304 Not Modified\r\n\r\n").unwrap();
                assert!(answer_on(stream).starts_with("HTTP/1.1 304 "), "{door:?}, {until}");
            }
        }
        // a place until all of an answer has left runs out soon after that, which the next request notices
        rig.let_go(1);
        assert_eq!(status(rig.ask(low(3), "/next")), 200, "{door:?}, {until}");
        assert_eq!(rig.queue().class.iter().map(|class| class.refused_full + class.refused_wait).sum::<u64>(), 0);
        assert_eq!(counted(&rig), 2 * ROUNDS as u64 + 1, "{door:?}, {until}");
    }
}

/// The server has had enough of a body that has hardly begun, and ends the connection.
#[test]
fn an_answer_before_the_body_gives_its_place_back() {
    if !ready() {
        return;
    }
    let head = "PUT /upload HTTP/1.1\r\nHost: server\r\nContent-Length: 1000000\r\n\
                Connection: close\r\nAnswer: 413 Content Too Large\r\n\r\n";
    let upload = [head.as_bytes(), &[b'x'; 5000]].concat();
    let _one = one_installation();
    for (door, is_first, waits) in Door::GUARDS
        .into_iter()
        .flat_map(|door| [(door, true, true), (door, true, false), (door, false, true), (door, false, false)])
    {
        let at = format!("{door:?}, first {is_first}, waits {waits}");
        let rig = Queued::new(door, &lasting());
        let mut client = rig.connect(low(2));
        if !is_first {
            rig.let_go(1);
            ask_on(&mut client, "/before");
            answer_on(&mut client);
        }
        let first = waits.then(|| {
            let seen = rig.got().len();
            let first = rig.ask(low(1), "/first");
            rig.got_all(seen + 1);
            first
        });
        client.write_all(&upload).unwrap();
        if waits {
            rig.wait_for(1);
        }
        rig.let_go(3);
        assert!(answer_on(&mut client).starts_with("HTTP/1.1 413 "), "{at}");
        assert_eq!(status(rig.ask(low(3), "/other")), 200, "{at}");
        assert!(first.is_none_or(|first| status(first) == 200), "{at}");
        rig.wait_for_peace();
        assert_eq!(counted(&rig), rig.got().len() as u64, "{at}");
        assert_eq!(rig.got().last().unwrap(), "/other", "{at}");
    }
}
