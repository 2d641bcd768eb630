// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Servers that want no connection without bytes (TCP_DEFER_ACCEPT), where the kernel keeps the handshake.

use std::io::Write;
use std::time::Duration;

use fief_testkit::wait_until;
use fief_tests_netns::front::{self, Door};
use fief_tests_netns::queued::{POLICY, Queued, high, low, read_head, status};
use fief_tests_netns::{SOON, one_installation, unacknowledged};

/// The kernel makes the connections, and one path is refused.
fn below() -> String {
    let calm = "\n[overload]\nbusy = { drops = 900000 }\noverloaded = { drops = 1000000 }\n";
    let queue = "queue = { in-service = 1, length = 200, wait = \"1m\" }";
    let rule = "\n[[listener.plain.request]]\npath = \"/secret\"\nrefuse = \"503\"\n";
    assert!(POLICY.contains(queue));
    calm.to_owned() + &POLICY.replace(queue, "admit-from = \"overloaded\"") + rule
}

/// A head that comes in two packets, as one with long cookies does; it ends the handshake.
fn ask_in_halves(rig: &Queued, path: &str) -> std::net::TcpStream {
    let mut stream = rig.connect(low(2));
    stream.set_nodelay(true).unwrap();
    let cookie = "c".repeat(2400);
    let head = format!("GET {path} HTTP/1.1\r\nCookie: {cookie}\r\nHost: server\r\nConnection: close\r\n\r\n");
    for half in [&head[..1300], &head[1300..]] {
        stream.write_all(half.as_bytes()).unwrap();
        wait_until(SOON, || unacknowledged(&stream) == 0).unwrap();
    }
    stream
}

#[test]
fn a_head_in_two_packets_is_ruled_and_served() {
    if !front::ready() {
        return;
    }
    let _one = one_installation();
    for door in Door::GUARDS {
        // on a busy machine a client may send again for reasons of its own
        let nobody_asks_twice = (0..3).any(|_| rules_and_serves_halves(door) == 0);
        assert!(nobody_asks_twice, "{door:?}");
    }
}

/// How many segments the clients sent again.
fn rules_and_serves_halves(door: Door) -> u64 {
    let rig = Queued::deferred(door, false, &below());
    rig.let_go(2);
    assert_eq!(status(ask_in_halves(&rig, "/public")), 200, "{door:?}");
    let mut refused = ask_in_halves(&rig, "/secret");
    refused.set_read_timeout(Some(SOON)).unwrap();
    let head = read_head(&mut refused).unwrap_or_default();
    assert!(!head.starts_with("HTTP/1.1 200"), "{door:?}: {head}");
    assert_eq!(rig.got(), ["/public"], "{door:?}");
    rig.front.sent_again()
}

/// What is ruled at once is less than what one packet can bring.
#[test]
fn a_head_longer_than_is_read_at_once_is_ruled_too() {
    if !front::ready() {
        return;
    }
    let _one = one_installation();
    let filler = |length| "f".repeat(length);
    let head = format!(
        "GET /secret HTTP/1.1\r\nA: {}\r\nB: {}\r\nC: {}\r\nHost: server\r\nConnection: close\r\n\r\n",
        filler(7000),
        filler(7000),
        filler(4000)
    );
    for door in Door::GUARDS {
        let rig = Queued::deferred(door, false, &below());
        // one packet, of the size that the client's window of congestion begins with
        let wide = "route change 10.77.0.0/16 dev cv proto kernel scope link src 10.77.0.2 initcwnd 40";
        fief_testkit::run(rig.front.topology.clients.command("ip").args(wide.split(' '))).unwrap();
        rig.let_go(10);
        for _ in 0..5 {
            let mut client = rig.connect(low(3));
            client.write_all(head.as_bytes()).unwrap();
            client.set_read_timeout(Some(Duration::from_secs(1))).unwrap();
            let _ = read_head(&mut client);
        }
        assert_eq!(rig.got(), [""; 0], "{door:?}: {:?}", rig.front.verdicts());
    }
}

/// The kernel makes no socket without the bytes, so that nothing of it could be in line.
#[test]
fn requests_pass_while_no_place_is_free() {
    if !front::ready() {
        return;
    }
    let _one = one_installation();
    for door in Door::GUARDS {
        let rig = Queued::deferred(door, true, POLICY);
        let first = rig.ask(low(1), "/first");
        rig.got_all(1);
        let others: Vec<_> = [low(2), high(1)].into_iter().map(|from| rig.ask(from, "/other")).collect();
        rig.let_go(3);
        assert!(others.into_iter().chain([first]).all(|stream| status(stream) == 200), "{door:?}");
        rig.wait_for_peace();
    }
}
