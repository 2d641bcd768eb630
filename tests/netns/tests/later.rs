// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A verdict upon a later request of a connection counts only for bytes that TCP takes: nobody has one request ruled and
//! another one served.

#[path = "later/client.rs"]
mod client;

use client::{Client, FIRST, Flaw, POLICY, PUBLIC, SECRET};
use std::time::Duration;

use fief_bpf::abi;
use fief_testkit::segment::ACK;
use fief_testkit::{
    Ending, Family, Feature, Nginx, NginxConfig, ORDINARY_OPTIONS, RawClients, RawConnection, require, wait_until,
};
use fief_tests_netns::front::{Door, Front, plain, ready};
use fief_tests_netns::rig::Rig;
use fief_tests_netns::{SOON, one_installation};

/// Does the same on a fresh connection for every door, family and flaw; how many replacements were counted at each.
fn for_each_flaw(policy: &str, action: impl Fn(&Client<'_>, Flaw)) {
    let _one = one_installation();
    for door in Door::GUARDS {
        let rig = Rig::in_order(door, policy);
        for family in [Family::V4, Family::V6] {
            for flaw in Flaw::HIDDEN {
                eprintln!("{family:?}, {flaw:?}");
                let before = rig.verdicts();
                action(&Client::open(&rig, family), flaw);
                let new = rig.verdicts().since(&before);
                assert_eq!(new.unread(), 0, "{new:?}");
            }
        }
        let all = rig.verdicts();
        assert!(all.count(abi::FIEF_REQUEST_REPLACED) >= 2, "{door:?}: {all:?}");
        let ruled = "a replacement was ruled, not held against what it would replace";
        assert_eq!(all.count(abi::FIEF_REQUEST_REFUSED), 0, "{door:?}: {ruled}: {all:?}");
    }
}

#[test]
fn a_request_that_tcp_dropped_cannot_be_replaced() {
    if !ready() {
        return;
    }
    let [shorter, longer] =
        [&b"GET /secret/1 HTTP/1.1\r\n\r\n"[..], &b"GET /secret/1 HTTP/1.1\r\nXX: 11111\r\n\r\n"[..]];
    for_each_flaw(POLICY, |client, flaw| {
        client.send_in_vain(flaw, 0, PUBLIC);
        for other in [SECRET, shorter, longer] {
            client.send(0, other);
        }
        client.send(0, PUBLIC);
        client.wait_for(&[FIRST, PUBLIC]);
        // And so on with the next.
        client.send_in_vain(flaw, PUBLIC.len(), PUBLIC);
        client.send(PUBLIC.len(), SECRET);
        client.send(PUBLIC.len(), PUBLIC);
        client.wait_for(&[FIRST, PUBLIC, PUBLIC]);
    });
}

#[test]
fn a_body_does_not_become_a_request_by_another_head_before_it() {
    if !ready() {
        return;
    }
    let head = format!("POST /10 HTTP/1.1\r\nContent-Length: {}\r\n\r\n", SECRET.len());
    let other = format!("GET /1 HTTP/1.1\r\nX: {}\r\n\r\n", "x".repeat(head.len() - 24));
    assert_eq!(head.len(), other.len());
    let whole = [head.as_bytes(), SECRET].concat();
    for_each_flaw(POLICY, |client, flaw| {
        client.send_in_vain(flaw, 0, head.as_bytes());
        client.send(head.len(), SECRET);
        client.send(0, other.as_bytes());
        client.send(0, head.as_bytes());
        client.wait_for(&[FIRST, &whole]);
    });
}

#[test]
fn pieces_of_a_head_cannot_be_replaced() {
    if !ready() {
        return;
    }
    let (begin, rest) = (0..12, 12..PUBLIC.len());
    for_each_flaw(POLICY, |client, flaw| {
        // the begin, before the rest is there, and after it
        client.send_in_vain(flaw, 0, &PUBLIC[begin.clone()]);
        client.send(0, &SECRET[begin.clone()]);
        client.send(rest.start, &PUBLIC[rest.clone()]);
        client.send(0, &SECRET[begin.clone()]);
        client.send(0, PUBLIC);
        client.wait_for(&[FIRST, PUBLIC]);
        // the begin and a little more, so that it is another cut
        let at = PUBLIC.len();
        client.send_in_vain(flaw, at, &PUBLIC[begin.clone()]);
        client.send(at, &SECRET[..begin.end + 2]);
        client.send(at, PUBLIC);
        client.wait_for(&[FIRST, PUBLIC, PUBLIC]);
    });
}

#[test]
fn the_begin_of_a_head_cannot_be_replaced_while_tcp_keeps_it_out_of_order() {
    if !ready() {
        return;
    }
    let post = b"POST /10 HTTP/1.1\r\nContent-Length: 5\r\n\r\nhello";
    let (head, last) = (post.len() - 5, post.len() - 1);
    for_each_flaw(POLICY, |client, flaw| {
        client.send(0, &post[..head]);
        client.send(head, &post[head..last]);
        // the body's last byte is missing: TCP keeps this head, or has dropped it
        client.send(post.len(), PUBLIC);
        client.send_in_vain(flaw, post.len() + PUBLIC.len(), PUBLIC);
        client.send(last, &[&post[last..], &SECRET[..12]].concat());
        client.send(last, &[&post[last..], SECRET].concat());
        client.send(last, &[&post[last..], PUBLIC, SECRET].concat());
        client.send(post.len() + PUBLIC.len(), PUBLIC);
        client.wait_for(&[FIRST, post, PUBLIC, PUBLIC]);
    });
}

#[test]
fn requests_behind_each_other_cannot_be_replaced() {
    if !ready() {
        return;
    }
    let size = PUBLIC.len();
    for_each_flaw(POLICY, |client, flaw| {
        client.send_in_vain(flaw, 0, &[PUBLIC, PUBLIC].concat());
        client.send(0, &[SECRET, PUBLIC].concat());
        client.send(0, &[PUBLIC, SECRET].concat());
        client.send(size, SECRET);
        client.send(0, &[PUBLIC, PUBLIC, PUBLIC].concat());
        client.wait_for(&[FIRST, PUBLIC, PUBLIC, PUBLIC]);
        // the second of several segments
        client.send(3 * size, PUBLIC);
        client.send_in_vain(flaw, 4 * size, PUBLIC);
        client.send(5 * size, PUBLIC);
        client.send(4 * size, SECRET);
        client.send(4 * size, PUBLIC);
        client.wait_for(&[FIRST; 1].into_iter().chain([PUBLIC; 6]).collect::<Vec<_>>());
    });
}

#[test]
fn what_stands_before_a_refused_request_cannot_be_replaced() {
    if !ready() {
        return;
    }
    let (other, size) = (b"GET /secret/11 HTTP/1.1\r\nX: 1\r\n\r\n", PUBLIC.len());
    assert_eq!(other.len(), size);
    let _one = one_installation();
    for door in Door::GUARDS {
        let rig = Rig::in_order(door, POLICY);
        let client = Client::open(&rig, Family::V4);
        client.send(0, &[PUBLIC, SECRET].concat());
        client.send(0, other);
        client.send(0, PUBLIC);
        client.wait_for(&[FIRST, PUBLIC]);
        let all = rig.verdicts();
        assert_eq!(all.count(abi::FIEF_REQUEST_REFUSED), 1, "{door:?}: {all:?}");
        assert_eq!(all.count(abi::FIEF_REQUEST_REPLACED), 1, "{door:?}: {all:?}");
    }
}

#[test]
fn a_guard_that_only_watches_counts_replacements_and_lets_them_pass() {
    if !ready() {
        return;
    }
    let policy = format!("mode = \"monitor\"\n{POLICY}");
    let _one = one_installation();
    for door in Door::GUARDS {
        let rig = Rig::in_order(door, &policy);
        let client = Client::open(&rig, Family::V4);
        client.send_in_vain(Flaw::Checksum, 0, PUBLIC);
        client.send(0, SECRET);
        client.wait_for(&[FIRST, SECRET]);
        let all = rig.verdicts();
        assert_eq!(all.monitored(abi::FIEF_REQUEST_REPLACED), 1, "{door:?}: {all:?}");
        assert_eq!(all.count(abi::FIEF_REQUEST_REPLACED), 0, "{door:?}: {all:?}");
    }
}

#[test]
fn a_server_in_a_managed_unit_sees_no_replacement_either() {
    if !(ready() && require(Feature::Nginx)) {
        return;
    }
    let request = |path: &str| format!("GET /{path}/10 HTTP/1.1\r\nHost: server\r\nConnection: close\r\n\r\n");
    let first = "GET /1k HTTP/1.1\r\nHost: server\r\n\r\n";
    let stream = [first, &request("public")].concat().into_bytes();
    for door in Door::GUARDS {
        let front = Front::new(door, POLICY);
        let config = NginxConfig::new(80, 1, "location /public/ { return 202; } location /secret/ { return 201; }");
        let config = config.unwrap();
        let mut command = front.server_command("nginx");
        command.args(config.arguments()).stderr(std::process::Stdio::null());
        let _nginx = Nginx::start_command(&front.topology.server, command, config).unwrap();
        let clients = RawClients::new(&front.topology).unwrap();
        let addresses = [(RawClients::address(Family::V4, 5), 2000).into(), plain(Family::V4)];
        let open = RawConnection::open(&clients, addresses, 1, &ORDINARY_OPTIONS, SOON).unwrap();
        let mut connection = open.expect("a SYN-ACK");
        connection.acknowledge().unwrap();
        clients.send(&connection.segment(ACK, 0, first.as_bytes())).unwrap();
        wait_until(SOON, || {
            connection.hear(Duration::from_millis(10)).unwrap();
            connection.acknowledged == 2 + first.len() as u32
        })
        .unwrap();
        let at = first.len() as u32;
        let rest = first.len()..stream.len();
        let ruled = connection.segment(ACK, at, request("public").as_bytes());
        clients.send_packet(&[], &Flaw::Checksum.packet(ruled)).unwrap();
        clients.send(&connection.segment(ACK, at, request("secret").as_bytes())).unwrap();
        let (words, ending) = connection.converse(&stream, std::slice::from_ref(&rest), SOON).unwrap();
        let words = String::from_utf8_lossy(&words).into_owned();
        assert!(words.contains("HTTP/1.1 202") && !words.contains("HTTP/1.1 201"), "{door:?}: {words}");
        assert_eq!(ending, Ending::Closed, "{door:?}: {words}");
        assert_eq!(front.verdicts().count(abi::FIEF_REQUEST_REPLACED), 1, "{door:?}");
    }
}

/// nginx and Apache part words at spaces alone: to them such a line has no version (HTTP/0.9), and they answer it at its end.
#[test]
fn a_line_that_some_servers_answer_at_its_end_is_refused_there() {
    if !ready() {
        return;
    }
    let _one = one_installation();
    for door in Door::GUARDS {
        let rig = Rig::in_order(door, POLICY);
        for gap in [0xa0, 0x85, b'\t', 0x1c] {
            let line = [&b"GET /public/10"[..], &[gap], b"HTTP/1.1\r\n"].concat();
            let (mut client, last) = (Client::open(&rig, Family::V4), line.len() - 1);
            let before = rig.verdicts();
            client.send(0, &line[..last]);
            client.send(last, &[&line[last..], b"Ho"].concat());
            let ending = client.connection.hear(SOON).unwrap();
            let new = rig.verdicts().since(&before);
            assert_eq!(ending, Some(Ending::Reset), "{door:?}: {gap:#x}: {new:?}");
            assert_eq!(new.count(abi::FIEF_REFUSED_MALFORMED), 1, "{door:?}: {gap:#x}: {new:?}");
        }
    }
}

#[test]
fn such_a_line_behind_the_first_request_of_its_packet_is_refused_too() {
    if !ready() {
        return;
    }
    let _one = one_installation();
    for door in Door::GUARDS {
        let rig = Rig::in_order(door, POLICY);
        let mut connection = rig.open(Family::V4);
        connection.acknowledge().unwrap();
        let stream = [FIRST, b"GET /public/10\xa0HTTP/1.1\r\n"].concat();
        rig.clients.send(&connection.segment(ACK, 0, &stream)).unwrap();
        assert_eq!(connection.hear(SOON).unwrap(), Some(Ending::Reset), "{door:?}: {:?}", rig.verdicts());
        assert_eq!(rig.server.seen().len(), 0, "{door:?}");
    }
}
