// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Where requests cannot be read, the queue orders the turns of clients: what one says after the server's last byte.

use std::io::{ErrorKind, Read, Write};
use std::net::{IpAddr, TcpStream};
use std::time::{Duration, Instant};

use fief_bpf::abi;
use fief_testkit::segment::{ACK, PSH};
use fief_testkit::{Family, ORDINARY_OPTIONS, RawClients, RawConnection, wait_until};
use fief_tests_netns::front::{self, Door, plain};
use fief_tests_netns::queued::{POLICY, Queued, answer_on, high, lasting, low, status};
use fief_tests_netns::{SOON, one_installation};

/// A turn in a protocol that nobody but the server knows.
fn say(stream: &mut TcpStream, word: &str) {
    stream.write_all(format!("\u{1} {word} \r\n\r\n").as_bytes()).unwrap();
}

fn is_answered(stream: &mut TcpStream) -> bool {
    answer_on(stream).starts_with("HTTP/1.1 200")
}

/// A connection that was answered once.
fn open(rig: &Queued, from: IpAddr) -> TcpStream {
    let mut stream = rig.connect(from);
    rig.let_go(1);
    say(&mut stream, "/before");
    assert!(is_answered(&mut stream));
    stream
}

/// Two of a lower class and one of a higher one, which were all answered once, and another one that has the only place.
fn four(rig: &Queued) -> [TcpStream; 4] {
    let three = [low(1), low(2), high(1)].map(|from| open(rig, from));
    let mut first = rig.connect(low(9));
    say(&mut first, "/first");
    rig.got_all(4);
    let [one, two, better] = three;
    [first, one, two, better]
}

#[test]
fn each_turn_of_another_protocol_waits_in_the_order_of_the_classes() {
    if !front::ready() {
        return;
    }
    let _one = one_installation();
    for door in Door::GUARDS {
        let rig = Queued::new(door, &lasting());
        let mut all = four(&rig);
        for (waiting, (at, word)) in (1..).zip([(1, "/one"), (2, "/two"), (3, "/high")]) {
            say(&mut all[at], word);
            rig.wait_for(waiting);
        }
        rig.let_go(4);
        assert_eq!(rig.got_all(7)[3..], ["/first", "/high", "/one", "/two"], "{door:?}");
        assert!(all.iter_mut().all(is_answered), "{door:?}");
        rig.wait_for_peace();
    }
}

/// A request for another protocol that the server ignores, and one behind it that cannot be read.
#[test]
fn an_upgrade_that_nobody_confirms_leaves_its_connection_in_the_queue() {
    if !front::ready() {
        return;
    }
    let ask = "GET /ask HTTP/1.1\r\nHost: server\r\nConnection: Upgrade\r\nUpgrade: echo\r\n\r\n";
    let _one = one_installation();
    for door in Door::GUARDS {
        let rig = Queued::new(door, &lasting());
        let mut one = rig.connect(low(1));
        rig.let_go(2);
        one.write_all(ask.as_bytes()).unwrap();
        assert!(is_answered(&mut one), "{door:?}");
        say(&mut one, "/odd");
        assert!(is_answered(&mut one), "{door:?}");
        let mut first = rig.connect(low(9));
        say(&mut first, "/first");
        rig.got_all(3);
        say(&mut one, "/one");
        rig.wait_for(1);
        rig.let_go(2);
        assert!(is_answered(&mut first) && is_answered(&mut one), "{door:?}");
    }
}

/// Neither side waits for the other there. Two connections, since the server reads none on while it does not answer.
#[test]
fn what_follows_an_upgrade_that_the_server_confirms_takes_no_place() {
    if !front::ready() {
        return;
    }
    let ask = "GET /ask HTTP/1.1\r\nHost: server\r\nConnection: Upgrade\r\nUpgrade: echo\r\n\
               Answer: 101 Switching Protocols\r\n\r\n";
    // with and without a rule that refuses something
    let rule = "[[listener.plain.request]]\npath = \"/refused\"\nrefuse = \"503\"\n";
    let policies = [lasting(), lasting() + rule];
    let _one = one_installation();
    for (door, policy) in Door::GUARDS.into_iter().flat_map(|door| policies.each_ref().map(|policy| (door, policy))) {
        let rig = Queued::new(door, policy);
        rig.let_go(2);
        let mut two = [low(1), low(2)].map(|from| {
            let mut stream = rig.connect(from);
            stream.write_all(ask.as_bytes()).unwrap();
            assert!(answer_on(&mut stream).starts_with("HTTP/1.1 101 "), "{door:?}");
            stream
        });
        rig.wait_for_peace();
        let asked = || {
            let queue = rig.queue();
            let sum = |of: fn(&abi::fief_queue_class) -> u64| queue.class.iter().map(of).sum::<u64>();
            (sum(|class| class.entered), sum(|class| class.held), queue.busy)
        };
        say(&mut two[0], "/frame");
        rig.got_all(3);
        assert_eq!(asked(), (2, 0, 0), "{door:?}: a frame that is not answered");
        let first = rig.ask(low(9), "/first");
        rig.got_all(4);
        say(&mut two[1], "/frame");
        assert_eq!(rig.got_all(5)[3..], ["/first", "/frame"], "{door:?}");
        assert_eq!(asked(), (3, 0, 1), "{door:?}: a frame while the only place is taken");
        rig.let_go(3);
        assert!(two.iter_mut().all(is_answered) && status(first) == 200, "{door:?}");
        rig.wait_for_peace();
        // nor does one behind another
        say(&mut two[0], "/frame");
        rig.got_all(6);
        assert_eq!(asked(), (3, 0, 0), "{door:?}: another frame");
        rig.let_go(1);
        assert!(is_answered(&mut two[0]), "{door:?}");
    }
}

#[test]
fn without_turns_a_connection_waits_once() {
    if !front::ready() {
        return;
    }
    let policy = lasting().replace("in-service = 1", "turns = false, in-service = 1");
    assert_ne!(policy, lasting());
    let _one = one_installation();
    for door in Door::GUARDS {
        let rig = Queued::new(door, &policy);
        let mut all = four(&rig);
        say(&mut all[1], "/one");
        assert_eq!(rig.got_all(5)[4], "/one", "{door:?}");
        let mut new = rig.connect(low(8));
        say(&mut new, "/new");
        rig.wait_for(1);
        rig.let_go(3);
        assert!([0, 1].into_iter().all(|at| is_answered(&mut all[at])) && is_answered(&mut new), "{door:?}");
    }
}

/// Data bears an old acknowledgement for as long as its sender likes, which the server's TCP has seen a newer one of.
#[test]
fn who_has_acknowledged_an_answer_begins_another_turn_whatever_its_data_say() {
    if !front::ready() {
        return;
    }
    let policy = lasting().replace("in-service = 1", "until = \"response\", in-service = 1");
    assert_ne!(policy, lasting());
    let _one = one_installation();
    // the same number at the same port would be the same connection
    for (port, door) in (3000..).zip(Door::GUARDS) {
        let rig = Queued::new(door, &policy);
        let clients = RawClients::new(&rig.front.topology).unwrap();
        let ends = [(RawClients::address(Family::V4, 5), port).into(), plain(Family::V4)];
        let open = RawConnection::open(&clients, ends, 77, &ORDINARY_OPTIONS, SOON).unwrap();
        let mut one = open.expect("a SYN-ACK");
        let turn = |one: &RawConnection, at: u32, word: &str| {
            one.segment(PSH | ACK, at, format!("\u{1} {word} \r\n\r\n").as_bytes())
        };
        let first = turn(&one, 0, "/one");
        let second = turn(&one, first.payload.len() as u32, "/two");
        clients.send(&first).unwrap();
        rig.got_all(1);
        let other = rig.ask(low(2), "/other");
        rig.wait_for(1);
        rig.let_go(1);
        wait_until(SOON, || {
            one.hear(Duration::from_millis(20)).unwrap();
            !one.received().is_empty()
        })
        .unwrap();
        // before the place of the first has run out
        clients.send(&second).unwrap();
        rig.let_go(2);
        assert_eq!(rig.got_all(3), ["/one", "/other", "/two"], "{door:?}");
        assert_eq!(status(other), 200, "{door:?}");
    }
}

#[test]
fn what_else_comes_of_a_turn_goes_with_it() {
    if !front::ready() {
        return;
    }
    let _one = one_installation();
    for door in Door::GUARDS {
        let rig = Queued::new(door, &lasting());
        let [mut one, mut other] = [low(1), high(1)].map(|from| open(&rig, from));
        one.set_nodelay(true).unwrap();
        one.write_all(b"\x01 /one").unwrap();
        wait_until(SOON, || rig.queue().busy == 1).unwrap();
        say(&mut other, "/other");
        rig.wait_for(1);
        one.write_all(b" \r\n").unwrap();
        one.write_all(b"\r\n").unwrap();
        assert_eq!(rig.got_all(3)[2], "/one", "{door:?}");
        rig.let_go(2);
        assert!(is_answered(&mut one) && is_answered(&mut other), "{door:?}");
        rig.wait_for_peace();
    }
}

#[test]
fn who_finds_no_room_in_the_midst_of_another_protocol_is_reset() {
    if !front::ready() {
        return;
    }
    let policy = lasting().replace("length = 200", "length = 1");
    assert_ne!(policy, lasting());
    let _one = one_installation();
    for door in Door::GUARDS {
        let rig = Queued::new(door, &policy);
        let mut all = four(&rig);
        say(&mut all[1], "/one");
        rig.wait_for(1);
        say(&mut all[2], "/two");
        let mut heard = Vec::new();
        all[2].set_read_timeout(Some(SOON)).unwrap();
        let end = all[2].read_to_end(&mut heard).map_err(|error| error.kind());
        assert_eq!((end, heard), (Err(ErrorKind::ConnectionReset), Vec::new()), "{door:?}");
        // a better one displaces the one that waits, which is told as little
        say(&mut all[3], "/high");
        let end = all[1].read_to_end(&mut Vec::new()).map_err(|error| error.kind());
        assert_eq!(end, Err(ErrorKind::ConnectionReset), "{door:?}");
        rig.let_go(2);
        assert!(is_answered(&mut all[0]) && is_answered(&mut all[3]), "{door:?}");
        rig.wait_for_peace();
    }
}

/// Bytes that nobody answers take places, but not for ever, and those of a better class go first all the same.
#[test]
fn who_says_what_is_not_answered_holds_a_place_for_a_while() {
    if !front::ready() {
        return;
    }
    let _one = one_installation();
    let policy = POLICY.replace("wait = \"1m\"", "wait = \"1m\", stale = \"100ms\"");
    assert_ne!(policy, POLICY);
    let rig = Queued::new(Door::Own, &policy);
    let [mut mute, mut other] = [low(1), high(1)].map(|from| open(&rig, from));
    mute.write_all(b"\x01").unwrap();
    for _ in 0..3 {
        rig.let_go(1);
        say(&mut other, "/other");
        assert!(is_answered(&mut other));
        mute.write_all(b"\x01").unwrap();
    }
}

/// For longer a place lasts, by `lasting()`, whose request is not answered, and not for as long as a client waits for an answer.
const HELD: Duration = Duration::from_secs(20);

/// Frames of control of HTTP/2, in the clear and in records of TLS: no server answers them.
#[test]
fn short_frames_that_nobody_answers_hold_no_place_for_long() {
    if !front::ready() {
        return;
    }
    let _one = one_installation();
    let window_update = [0, 0, 4, 8, 0, 0, 0, 0, 0, 0, 1, 0, 0];
    let record = [&[0x17, 3, 3, 0, 30][..], &[7; 30]].concat();
    let rig = Queued::new(Door::Own, &lasting());
    let [mut mute, mut other] = [low(1), high(1)].map(|from| open(&rig, from));
    for frame in [&window_update[..], &record] {
        let begin = Instant::now();
        mute.write_all(frame).unwrap();
        wait_until(SOON, || rig.queue().busy == 1).unwrap();
        rig.let_go(1);
        say(&mut other, "/other");
        assert!(is_answered(&mut other), "{frame:?}");
        assert!(begin.elapsed() < HELD, "{frame:?}: it was answered once the frame's place had run out");
    }
}
