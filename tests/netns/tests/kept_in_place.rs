// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What comes in segments of a byte is kept where it is and scanned, and read at its end: behind a PROXY head, as a line of
//! chunks or of trailers, and as a body that may be a request. Its verdicts are those that it has in one piece.

use fief_bpf::abi;
use fief_testkit::{Ending, Family};
use fief_tests_netns::front::{Door, ready};
use fief_tests_netns::rig::{Rig, pieces};
use fief_tests_netns::{SOON, one_installation};

const POLICY: &str = r#"
[container.web]
[listener.plain]
address = "[::]:80"
queue = false
proxy = { from = ["10.89.0.0/16"] }
[[listener.plain.client]]
from = ["any"]
container = "web"
[[listener.plain.request]]
path = "/secret/*"
refuse = "reset"
"#;

const SECRET: &str = "GET /secret/1 HTTP/1.1\r\nHost: server\r\n\r\n";
const LAST: &str = "GET /public/1 HTTP/1.1\r\nConnection: close\r\n\r\n";
const POST: &str = "POST /public/2 HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n";

/// Longer than what is read with each byte, and than what is copied at once.
fn long() -> String {
    "a".repeat(700)
}

fn get(body: &str) -> String {
    format!("GET /public/3 HTTP/1.1\r\nContent-Length: {}\r\n\r\n{body}", body.len())
}

/// Head lines that a body may have as well.
fn lines() -> String {
    "X: y\r\n".repeat(100)
}

/// Rules and reasons, in their order, and how the connection ended. What a client sent before it heard of its reset belongs to no connection
/// any more, and is told so.
type Outcome = (Vec<(Option<u32>, abi::fief_reason)>, Ending);

fn outcome(rig: &Rig, stream: &[u8], size: usize) -> Outcome {
    let mut connection = rig.open(Family::V4);
    let before = rig.verdicts(); // by now all that the connection before has sent has its verdict
    connection.acknowledge().unwrap();
    let (_, ending) = connection.converse(stream, &pieces(stream, size), SOON).unwrap();
    let new = rig.verdicts().since(&before);
    let is_late = |reason| ending == Ending::Reset && reason == abi::FIEF_REFUSED_NO_ROOM;
    let ruled = new.all().iter().filter(|verdict| verdict.reason >= abi::FIEF_REQUEST_RULE && verdict.count > 0);
    let ruled = ruled.filter(|verdict| !is_late(verdict.reason));
    let mut verdicts: Vec<_> = ruled.map(|verdict| (verdict.rule, verdict.reason)).collect();
    verdicts.sort_unstable();
    (verdicts, ending)
}

#[test]
fn what_is_kept_where_it_is_has_the_verdicts_that_it_has_in_one_piece() {
    if !ready() {
        return;
    }
    let (long, lines) = (long(), lines());
    let body = format!("5;name={long}\r\nhello\r\n0;name={long}\r\nTrailer: {long}\r\nOther: {long}\r\n\r\n");
    let inside = format!("\r\nGET /public/{long} HTTP/1.1\r\n{lines}\r\n");
    let one = "PROXY TCP4 192.0.2.1 198.51.100.1 56324 80\r\n";
    let two = "\r\n\r\n\0\r\nQUIT\n\x21\x11\x02\x0c".to_owned() + &"x".repeat(0x20c);
    let served = (vec![(None, abi::FIEF_REQUEST_CLIENT)], Ending::Closed);
    let refused = (vec![(Some(0), abi::FIEF_REQUEST_REFUSED)], Ending::Reset);
    let behind = (vec![(None, abi::FIEF_REQUEST_CLIENT), (Some(0), abi::FIEF_REQUEST_REFUSED)], Ending::Reset);
    let malformed = (vec![(None, abi::FIEF_REQUEST_CLIENT), (None, abi::FIEF_REFUSED_MALFORMED)], Ending::Reset);
    let head = |path: &str| format!("GET {path} HTTP/1.1\r\nConnection: close\r\n{lines}\r\n");
    let cases = [
        ("a body in chunks", format!("{POST}{body}{LAST}"), &served),
        ("a request behind it", format!("{POST}{body}{SECRET}"), &behind),
        ("a line of chunks with a control character", format!("{POST}5;{long}\x01{long}\r\n"), &malformed),
        ("one that ends as a request's does", format!("{POST}0;{long} /secret HTTP/1.1\r\n\r\n"), &malformed),
        ("a trailer with a bare CR", format!("{POST}0\r\nTrailer: {long}\r{long}\r\n"), &malformed),
        ("a body that is a request", get(&inside) + LAST, &served),
        ("a request behind that", get(&inside) + SECRET, &behind),
        ("a refused one", get(SECRET) + LAST, &behind),
        ("a refused one with many lines", get(&SECRET.replace("\r\n\r\n", &format!("\r\n{lines}\r\n"))), &behind),
        ("one whose body ends before its head does", get(&format!("GET /x HTTP/1.1\r\n{lines}")) + SECRET, &malformed),
        ("a body of words", get(&format!("GET {long} is no request {long}")) + LAST, &served),
        ("a body of one word", get(&format!("{long}=1&{long}")) + LAST, &served),
        ("a head behind a PROXY head", format!("{one}{}", head("/public/4")), &served),
        ("a refused one", format!("{one}{}", head("/secret/4")), &refused),
        ("a head behind a PROXY head of version 2", format!("{two}{}", head("/public/4")), &served),
        ("a refused one", format!("{two}{}", head("/secret/4")), &refused),
    ];
    let _one = one_installation();
    for door in Door::GUARDS {
        // segments of a byte would become larger ones
        let rig = Rig::in_order(door, POLICY);
        for (what, stream, expected) in &cases {
            for size in [1400, 1, 3] {
                let found = outcome(&rig, stream.as_bytes(), size);
                assert_eq!(found, **expected, "{door:?}, {what}, in pieces of {size}");
            }
        }
    }
}
