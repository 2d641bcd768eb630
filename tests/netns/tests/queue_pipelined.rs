// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Several requests in one packet, and requests in bodies, before a server that has a queue.

use std::fmt::Write as _;
use std::io::{Read, Write};
use std::net::TcpStream;

use fief_bpf::abi;
use fief_testkit::wait_until;
use fief_tests_netns::front::{self, Door};
use fief_tests_netns::queued::{POLICY, Queued, answer_on, ask_on, lasting, low, status};
use fief_tests_netns::{SOON, one_installation};

/// The path tells the class.
fn by_path() -> String {
    let rule =
        |path, container| format!("[[listener.plain.request]]\npath = \"/{path}\"\ncontainer = \"{container}\"\n");
    format!("{}{}{}", lasting(), rule("high", "high"), rule("robots", "robots"))
}

fn requests(paths: &[&str]) -> String {
    let mut all = String::new();
    for path in paths {
        write!(all, "GET /{path} HTTP/1.1\r\nHost: server\r\n\r\n").unwrap();
    }
    all
}

/// A connection on which nothing was asked yet, or one request was answered.
fn a_client(rig: &Queued, is_new: bool) -> TcpStream {
    let mut client = rig.connect(low(2));
    if !is_new {
        rig.let_go(1);
        ask_on(&mut client, "/high");
        answer_on(&mut client);
    }
    client
}

#[test]
fn a_request_of_a_better_class_takes_none_of_a_worse_one_along() {
    if !front::ready() {
        return;
    }
    let orders = [["high", "robots"], ["robots", "high"]];
    let _one = one_installation();
    for (door, paths, is_new) in Door::GUARDS
        .into_iter()
        .flat_map(|door| orders.map(|paths| [(door, paths, true), (door, paths, false)]))
        .flatten()
    {
        let rig = Queued::new(door, &by_path());
        let mut client = a_client(&rig, is_new);
        let before = rig.got().len();
        let first = rig.ask(low(1), "/first");
        rig.got_all(before + 1);
        client.write_all(requests(&paths).as_bytes()).unwrap();
        rig.wait_for(1);
        let other = rig.ask(low(3), "/low");
        rig.wait_for(2);
        rig.let_go(4);
        let got = rig.got_all(before + 4);
        assert_eq!(got[before..before + 2], ["/first", "/low"], "{door:?}, {paths:?}, new {is_new}");
        assert!([first, other].into_iter().all(|stream| status(stream) == 200));
        (0..2).for_each(|_| drop(answer_on(&mut client)));
        rig.wait_for_peace();
    }
}

/// What the server does for the first would be charged to the class of the second, and held against the limits of that.
#[test]
fn a_request_behind_an_unanswered_one_of_a_worse_class_is_of_that() {
    if !front::ready() {
        return;
    }
    let _one = one_installation();
    for (door, is_new) in Door::GUARDS.into_iter().flat_map(|door| [true, false].map(|is_new| (door, is_new))) {
        let rig = Queued::new(door, &by_path());
        let mut client = a_client(&rig, is_new);
        let before = rig.got().len();
        ask_on(&mut client, "/robots");
        rig.got_all(before + 1);
        ask_on(&mut client, "/high");
        rig.wait_for(1);
        let other = rig.ask(low(3), "/low");
        rig.wait_for(2);
        rig.let_go(1);
        answer_on(&mut client);
        assert_eq!(rig.got_all(before + 2)[before..], ["/robots", "/low"], "{door:?}, new {is_new}");
        rig.let_go(2);
        answer_on(&mut client);
        assert_eq!(status(other), 200);
        // which of several requests the server has answered is not read
        assert_eq!(order_behind(&rig, &mut client), ["/first", "/low", "/high"], "{door:?}, new {is_new}");
        rig.wait_for_peace();
    }
}

/// In which order a request of the better class on this connection is served among two of the middle one.
fn order_behind(rig: &Queued, client: &mut TcpStream) -> Vec<String> {
    let before = rig.got().len();
    let first = rig.ask(low(1), "/first");
    rig.got_all(before + 1);
    let other = rig.ask(low(3), "/low");
    rig.wait_for(1);
    ask_on(client, "/high");
    rig.wait_for(2);
    rig.let_go(3);
    let got = rig.got_all(before + 3)[before..].to_vec();
    assert!([first, other].into_iter().all(|stream| status(stream) == 200));
    answer_on(client);
    got
}

/// The first of two is answered, and the second is not.
#[test]
fn a_request_behind_two_of_a_worse_class_is_of_that() {
    if !front::ready() {
        return;
    }
    let _one = one_installation();
    for door in Door::GUARDS {
        let rig = Queued::new(door, &by_path());
        let mut client = rig.connect(low(2));
        ask_on(&mut client, "/robots");
        rig.got_all(1);
        ask_on(&mut client, "/robots");
        rig.wait_for(1);
        rig.let_go(1);
        answer_on(&mut client);
        rig.got_all(2);
        let other = rig.ask(low(3), "/low");
        rig.wait_for(1);
        ask_on(&mut client, "/high");
        rig.wait_for(2);
        rig.let_go(1);
        answer_on(&mut client);
        assert_eq!(rig.got_all(3)[2], "/low", "{door:?}");
        rig.let_go(2);
        assert_eq!(status(other), 200);
        answer_on(&mut client);
        rig.wait_for_peace();
    }
}

/// One after the other, each is of its own class.
#[test]
fn a_request_behind_an_answered_one_of_a_worse_class_is_of_its_own() {
    if !front::ready() {
        return;
    }
    let _one = one_installation();
    for door in Door::GUARDS {
        let rig = Queued::new(door, &by_path());
        let mut client = rig.connect(low(2));
        rig.let_go(2);
        for _ in 0..2 {
            ask_on(&mut client, "/robots");
            answer_on(&mut client);
        }
        assert_eq!(order_behind(&rig, &mut client), ["/first", "/high", "/low"], "{door:?}");
        rig.wait_for_peace();
    }
}

#[test]
fn a_request_in_a_body_waits_too() {
    if !front::ready() {
        return;
    }
    let _one = one_installation();
    for door in Door::GUARDS {
        let rig = Queued::new(door, &by_path());
        let mut client = rig.connect(low(2));
        let inside = requests(&["robots"]);
        rig.let_go(1);
        // this server does not read bodies
        let head = format!("GET /high HTTP/1.1\r\nHost: server\r\nContent-Length: {}\r\n\r\n", inside.len());
        client.write_all(head.as_bytes()).unwrap();
        answer_on(&mut client);
        let first = rig.ask(low(1), "/first");
        rig.got_all(2);
        client.write_all(inside.as_bytes()).unwrap();
        rig.wait_for(1);
        let other = rig.ask(low(3), "/low");
        rig.wait_for(2);
        rig.let_go(3);
        assert_eq!(rig.got_all(4), ["/high", "/first", "/low", "/robots"], "{door:?}");
        assert!([first, other].into_iter().all(|stream| status(stream) == 200));
        answer_on(&mut client);
        rig.wait_for_peace();
    }
}

/// What is kept of them would end within one that was ruled, and the rest come in other pieces.
#[test]
fn more_requests_than_can_be_kept_of_one_packet_are_refused() {
    if !front::ready() {
        return;
    }
    let _one = one_installation();
    for door in Door::GUARDS {
        let rig = Queued::new(door, &lasting());
        // how much TCP puts into one packet is its own
        let refused = (0..20).any(|_| are_refused(&rig));
        assert!(refused, "{door:?}: {:?}", rig.front.verdicts());
        rig.wait_for_peace();
    }
}

/// False: they came in packets of which each can be kept, and are served.
fn are_refused(rig: &Queued) -> bool {
    const MANY: usize = 64;
    let mut client = rig.connect(low(2));
    // after these the client may send more at once
    let long = format!("GET /long HTTP/1.1\r\nHost: server\r\nX: {}\r\n\r\n", "x".repeat(9000));
    for _ in 0..4 {
        rig.let_go(1);
        client.write_all(long.as_bytes()).unwrap();
        answer_on(&mut client);
    }
    let seen = rig.got().len();
    let first = rig.ask(low(1), "/first");
    rig.got_all(seen + 1);
    let refusals = || rig.front.verdicts().count(abi::FIEF_REFUSED_QUEUE_FULL);
    let before = refusals();
    let one = format!("GET /many HTTP/1.1\r\nHost: server\r\nX: {}\r\n\r\n", "x".repeat(350));
    client.write_all(one.repeat(MANY).as_bytes()).unwrap();
    wait_until(SOON, || rig.queue().waiting == 1 || refusals() > before).unwrap();
    let refused = refusals() > before;
    if refused {
        assert!(answer_on(&mut client).starts_with("HTTP/1.1 503"));
        rig.let_go(1);
        assert_eq!(status(first), 200);
        assert_eq!(rig.got().len(), seen + 1);
    } else {
        rig.let_go(1 + MANY);
        assert_eq!(status(first), 200);
        (0..MANY).for_each(|_| drop(answer_on(&mut client)));
    }
    refused
}

/// An answer of the door's would be read as that to the request before.
#[test]
fn who_is_refused_before_the_answer_to_another_request_is_reset() {
    if !front::ready() {
        return;
    }
    let _one = one_installation();
    for door in Door::GUARDS {
        let rig = Queued::new(door, &lasting().replace("length = 200", "length = 1"));
        let mut client = rig.connect(low(2));
        ask_on(&mut client, "/first");
        rig.got_all(1);
        let other = rig.ask(low(1), "/other");
        rig.wait_for(1);
        ask_on(&mut client, "/second");
        client.set_read_timeout(Some(SOON)).unwrap();
        let mut answer = [0; 64];
        let refused = client.read(&mut answer).map(|count| String::from_utf8_lossy(&answer[..count]).into_owned());
        let kind = refused.as_ref().map_err(std::io::Error::kind);
        assert_eq!(kind, Err(std::io::ErrorKind::ConnectionReset), "{door:?}");
        rig.let_go(1000);
        assert_eq!(status(other), 200);
        rig.wait_for_peace();
    }
}

/// The same where a rule refuses it, with a queue and without; and not once it is answered.
#[test]
fn who_is_refused_by_a_rule_before_the_answer_to_another_request_is_reset() {
    if !front::ready() {
        return;
    }
    let _one = one_installation();
    let refusing = "[[listener.plain.request]]\npath = \"/refused\"\nrefuse = \"503\"\n";
    let unqueued: String = POLICY
        .lines()
        .map(|line| if line.starts_with("queue") { "queue = false\n".into() } else { format!("{line}\n") })
        .collect();
    let policies = [lasting() + refusing, unqueued + refusing];
    for (door, policy) in Door::GUARDS.into_iter().flat_map(|door| policies.each_ref().map(|policy| (door, policy))) {
        let rig = Queued::new(door, policy);
        let mut client = rig.connect(low(2));
        ask_on(&mut client, "/first");
        rig.got_all(1);
        ask_on(&mut client, "/refused");
        client.set_read_timeout(Some(SOON)).unwrap();
        let refused = client.read(&mut [0; 64]).map_err(|error| error.kind());
        assert_eq!(refused, Err(std::io::ErrorKind::ConnectionReset), "{door:?}: {policy}");
        let mut client = rig.connect(low(2));
        rig.let_go(2);
        ask_on(&mut client, "/second");
        answer_on(&mut client);
        ask_on(&mut client, "/refused");
        assert!(answer_on(&mut client).starts_with("HTTP/1.1 503"), "{door:?}: {policy}");
    }
}
