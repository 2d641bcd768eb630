// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What cannot be read as a request is refused or passes as the policy says, and is never a way round a rule that refuses.

use std::time::Duration;

use fief_bpf::abi;
use fief_testkit::segment::{ACK, FIN};
use fief_testkit::{Ending, Family, wait_until};
use fief_tests_netns::front::{Door, Verdicts, ready};
use fief_tests_netns::rig::{Rig, pieces};
use fief_tests_netns::{SOON, one_installation};

/// One rule refuses a path; `listener` are keys of the listener, `rules` stand behind the first.
fn policy(listener: &str, rules: &str) -> String {
    format!(
        "[container.web]\n[listener.plain]\naddress = \"[::]:80\"\n{listener}\n\
         [[listener.plain.client]]\nfrom = [\"any\"]\ncontainer = \"web\"\n\
         [[listener.plain.request]]\npath = \"/cgi-bin/*\"\nrefuse = \"reset\"\npenalty = \"1h\"\n{rules}"
    )
}

/// A last rule that refuses whatever no rule before it lets pass.
const DENY: &str = "[[listener.plain.request]]\npath = \"/10\"\n[[listener.plain.request]]\nrefuse = \"503\"\n";

/// Beginnings of a connection that are no request, or that Fief does not read as one; and of which kind they are.
fn beginnings() -> Vec<(&'static str, Vec<u8>, abi::fief_unread)> {
    let long = [&b"GET /"[..], &[b'a'; 17_000], b" HTTP/1.1\r\n\r\n"].concat();
    vec![
        ("a binary protocol", b"\x00\x00\x00\x08\x04\xd2\x16\x2f".to_vec(), abi::FIEF_UNREAD_OTHER),
        ("another text protocol", b"SSH-2.0-x\r\n".to_vec(), abi::FIEF_UNREAD_OTHER),
        ("a method with a delimiter", b"G(T /11 HTTP/1.1\r\n\r\n".to_vec(), abi::FIEF_UNREAD_MALFORMED),
        ("HTTP/2 without TLS", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec(), abi::FIEF_UNREAD_HTTP2),
        ("a path that does not end", long, abi::FIEF_UNREAD_TOO_LONG),
        (
            "a record that is no ClientHello",
            b"\x16\x03\x01\x00\x05\x02\x00\x00\x01\x00".to_vec(),
            abi::FIEF_UNREAD_MALFORMED,
        ),
        (
            "a PROXY head",
            b"PROXY TCP4 192.0.2.1 198.51.100.1 56324 80\r\nGET /10 HTTP/1.1\r\n\r\n".to_vec(),
            abi::FIEF_UNREAD_PROXY,
        ),
    ]
}

/// How a connection with this stream ends, and which verdicts it had.
fn outcome(rig: &Rig, stream: &[u8], silence: Duration) -> (Ending, Verdicts) {
    let mut connection = rig.open(Family::V4);
    // what the connection before sent again has been counted by now
    let before = rig.verdicts();
    let (_, ending) = connection.converse(stream, &pieces(stream, 1400), silence).unwrap();
    drop(connection);
    wait_until(SOON, || rig.verdicts().since(&before).requests() > 0).unwrap();
    (ending, rig.verdicts().since(&before))
}

/// The verdicts on a connection that is served, and may stay open then; the stream comes in pieces of this size.
fn served(rig: &Rig, stream: &[u8], size: usize) -> Verdicts {
    let is_served = |words: &[u8]| words.starts_with(b"HTTP/1.1 200");
    let mut connection = rig.open(Family::V4);
    let before = rig.verdicts();
    let (words, _) = connection.converse_until(stream, &pieces(stream, size), SOON, is_served).unwrap();
    assert!(is_served(&words), "{:?}", rig.verdicts().since(&before));
    rig.verdicts().since(&before)
}

fn refused(verdicts: &Verdicts) -> u64 {
    (abi::FIEF_REFUSED_MALFORMED..abi::FIEF_REASONS).map(|reason| verdicts.count(reason)).sum()
}

#[test]
fn what_cannot_be_read_is_reset_without_a_penalty_where_a_rule_refuses() {
    if !ready() {
        return;
    }
    let _one = one_installation();
    for door in Door::GUARDS {
        let rig = Rig::new(door, &policy("", ""));
        for (what, stream, kind) in beginnings() {
            let (ending, verdicts) = outcome(&rig, &stream, SOON);
            assert_eq!(ending, Ending::Reset, "{door:?}: {what}: {verdicts:?}");
            let of_kind = verdicts.count(abi::FIEF_REFUSED_MALFORMED + kind);
            assert!(rig.is_counted(of_kind, 1), "{door:?}: {what}: {verdicts:?}");
            assert_eq!(refused(&verdicts), of_kind, "{door:?}: {what}: {verdicts:?}");
        }
        assert_eq!(rig.server.accepted(), 0, "{door:?}");
        let (ending, _) = outcome(&rig, b"GET /10 HTTP/1.1\r\nConnection: close\r\n\r\n", SOON);
        assert_eq!(ending, Ending::Closed, "{door:?}: a penalty for what could not be read");
    }
}

#[test]
fn what_cannot_be_read_passes_where_the_policy_says_so() {
    if !ready() {
        return;
    }
    let _one = one_installation();
    for door in Door::GUARDS {
        let rig = Rig::new(door, &policy("unread = \"pass\"", ""));
        for (count, (what, stream, kind)) in beginnings().into_iter().enumerate() {
            let (_, verdicts) = outcome(&rig, &stream, Duration::from_millis(200));
            assert_eq!(refused(&verdicts), 0, "{door:?}: {what}: {verdicts:?}");
            assert!(verdicts.count(abi::FIEF_PASSED_MALFORMED + kind) > 0, "{door:?}: {what}: {verdicts:?}");
            wait_until(SOON, || rig.server.accepted() == count as u64 + 1)
                .unwrap_or_else(|_| panic!("{door:?}: {what} did not reach the server"));
        }
    }
}

#[test]
fn a_rule_without_conditions_matches_what_cannot_be_read() {
    if !ready() {
        return;
    }
    let _one = one_installation();
    for door in Door::GUARDS {
        for listener in ["", "unread = \"pass\""] {
            let rig = Rig::new(door, &policy(listener, DENY));
            for (what, stream, _) in beginnings() {
                let (_, verdicts) = outcome(&rig, &stream, Duration::from_millis(200));
                let refused = verdicts.count(abi::FIEF_REQUEST_REFUSED);
                assert!(rig.is_counted(refused, 1), "{door:?}: {what}: {verdicts:?}");
            }
            let (ending, _) = outcome(&rig, b"GET /10 HTTP/1.1\r\nConnection: close\r\n\r\n", SOON);
            assert_eq!((ending, rig.server.accepted()), (Ending::Closed, 1), "{door:?}");
        }
    }
}

#[test]
fn a_guard_on_trial_counts_what_it_would_refuse() {
    if !ready() {
        return;
    }
    let _one = one_installation();
    let rig = Rig::new(Door::Own, &policy("mode = \"monitor\"", ""));
    for (what, stream, kind) in beginnings().into_iter().filter(|(_, stream, _)| stream.len() < 1400) {
        let before = rig.verdicts();
        let mut connection = rig.open(Family::V4);
        connection.converse(&stream, &pieces(&stream, 1400), Duration::from_millis(200)).unwrap();
        let counted = || rig.verdicts().since(&before).monitored(abi::FIEF_REFUSED_MALFORMED + kind);
        wait_until(SOON, || counted() > 0).unwrap_or_else(|_| panic!("{what}: {:?}", rig.verdicts()));
        assert_eq!(refused(&rig.verdicts().since(&before)), 0, "{what}");
    }
}

/// Python answers a head that its client ends by a FIN.
#[test]
fn a_head_that_its_client_ends_is_not_served() {
    if !ready() {
        return;
    }
    let _one = one_installation();
    for door in Door::GUARDS {
        let rig = Rig::new(door, &policy("", ""));
        // The last one meets the rule, and draws its penalty.
        for head in [&b"GET /x HTTP/1.0\r\nA: b\r\n"[..], b"GET /x", b"GET /cgi-bin/x HTTP/1.0\r\n"] {
            let before = rig.verdicts();
            let mut connection = rig.open(Family::V4);
            rig.clients.send(&connection.segment(ACK | FIN, 0, head)).unwrap();
            let ending = connection.hear(SOON).unwrap();
            let verdicts = rig.verdicts().since(&before);
            assert_eq!(ending, Some(Ending::Reset), "{door:?}: {verdicts:?}");
        }
        assert_eq!(rig.server.accepted(), 0, "{door:?}");
    }
}

#[test]
fn the_request_behind_a_proxy_head_of_a_named_balancer_is_ruled() {
    if !ready() {
        return;
    }
    let _one = one_installation();
    let one = b"PROXY TCP4 192.0.2.1 198.51.100.1 56324 80\r\n".to_vec();
    let two = [&b"\r\n\r\n\0\r\nQUIT\n\x21\x11\0\x0c"[..], &[192, 0, 2, 1, 198, 51, 100, 1, 0xdc, 4, 0, 80]].concat();
    for door in Door::GUARDS {
        let rig = Rig::new(door, &policy("proxy = { from = [\"10.89.0.0/16\"] }", ""));
        for head in [&one, &two] {
            let ask = |path: &str| [&head[..], format!("GET {path} HTTP/1.1\r\nHost: a\r\n\r\n").as_bytes()].concat();
            let verdicts = served(&rig, &ask("/10"), 1400);
            let ruled = verdicts.count(abi::FIEF_REQUEST_CLIENT);
            assert!(rig.is_counted(ruled, 1), "{door:?}: {verdicts:?}");
            // In small pieces, so that the PROXY head is cut too.
            let verdicts = served(&rig, &ask("/other"), 7);
            let ruled = verdicts.count(abi::FIEF_REQUEST_CLIENT);
            assert!(rig.is_counted(ruled, 1), "{door:?}: {head:?} in pieces: {verdicts:?}");
        }
        let refused = [&one[..], b"GET /cgi-bin/x HTTP/1.1\r\n\r\n"].concat();
        let (ending, verdicts) = outcome(&rig, &refused, SOON);
        let refused = verdicts.count(abi::FIEF_REQUEST_REFUSED);
        assert!(ending == Ending::Reset && rig.is_counted(refused, 1), "{door:?}: {ending:?}, {verdicts:?}");
    }
}
