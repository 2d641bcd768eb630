// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Ways round the rules by a later request, behind a harmless first one. The servers say what they served.

use std::io::Write;
use std::net::{Shutdown, TcpStream};
use std::process::Stdio;

use fief_bpf::abi;
use fief_testkit::{Family, Feature, Process, read_until, require, wait_until};
use fief_tests_netns::front::{Door, Front, anywhere, plain, ready};
use fief_tests_netns::refusing;
use fief_tests_netns::{SOON, connect_from, one_installation, python_server};

const POLICY: &str = refusing!("/secret/*", "reset");

const FIRST: &str = "GET /first HTTP/1.1\r\nHost: server\r\n\r\n";
const PUBLIC: &str = "GET /public/1 HTTP/1.1\r\nHost: server\r\n\r\n";
const SECRET: &str = "GET /secret/1 HTTP/1.1\r\nHost: server\r\n\r\n";

/// Tells on its output which paths it serves.
const NODE: &str = r#"
const http = require("http");
http.createServer((request, response) => {
    request.resume();
    request.on("end", () => { console.log(request.url); response.end("served " + request.url + "\n"); });
}).listen(80, "::");
"#;

struct Judge {
    front: Front,
    _server: Process,
}

impl Judge {
    fn start(door: Door, program: &str, arguments: &[&str]) -> Self {
        let front = Front::new(door, POLICY);
        let mut command = front.server_command(program);
        command.args(arguments).stdout(Stdio::null()).stderr(Stdio::null());
        let judge = Self { _server: Process::start(command).unwrap(), front };
        wait_until(SOON, || judge.connect().is_some()).unwrap();
        judge
    }

    fn node(door: Door) -> Self {
        Self::start(door, "node", &["-e", NODE])
    }

    /// Of the standard library's kind: it serves a head that ends with the stream.
    fn python(door: Door) -> Self {
        Self::start(door, "python3", &["-c", &python_server("    do_GET = answer")])
    }

    fn connect(&self) -> Option<TcpStream> {
        let stream = connect_from(&self.front.topology.clients, anywhere(Family::V4), plain(Family::V4)).ok()?;
        stream.set_read_timeout(Some(SOON)).unwrap();
        Some(stream)
    }

    /// A connection whose first request is served.
    fn open(&self) -> TcpStream {
        let mut stream = self.connect().expect("a connection");
        stream.set_nodelay(true).unwrap();
        stream.write_all(FIRST.as_bytes()).unwrap();
        read_until(&mut stream, "served /first\n");
        stream
    }

    /// Sends these on one connection; what it served of them until it ends, or the marker is served.
    fn served(&self, pieces: &[&[u8]], end: bool) -> String {
        let mut stream = self.open();
        for piece in pieces {
            if stream.write_all(piece).is_err() {
                break;
            }
            std::thread::yield_now();
        }
        if end {
            let _ = stream.shutdown(Shutdown::Write);
        }
        read_until(&mut stream, "served /secret/1\n")
    }
}

fn chunked(body: &str) -> Vec<u8> {
    let mut bytes = b"POST /public/2 HTTP/1.1\r\nHost: server\r\nTransfer-Encoding: chunked\r\n\r\n".to_vec();
    bytes.extend(body.as_bytes());
    bytes
}

#[test]
fn a_request_behind_many_others_in_one_packet_is_ruled() {
    if !(ready() && require(Feature::Python)) {
        return;
    }
    let _one = one_installation();
    for door in Door::GUARDS {
        let judge = Judge::python(door);
        let honest = PUBLIC.repeat(40);
        let mut stream = judge.open();
        stream.write_all(honest.as_bytes()).unwrap();
        // an answer may come in two pieces
        let mut words = String::new();
        while words.matches("served /public/1\n").count() < 40 {
            let more = read_until(&mut stream, "\n");
            assert!(!more.is_empty(), "{door:?}: not all 40: {words}");
            words += &more;
        }
        for before in [33, 40, 64, 70] {
            let hostile = PUBLIC.repeat(before) + SECRET;
            let words = judge.served(&[hostile.as_bytes()], false);
            assert!(!words.contains("served /secret"), "{door:?}, {before}");
        }
    }
}

#[test]
fn half_a_request_that_ends_with_the_stream_is_ruled() {
    if !(ready() && require(Feature::Python)) {
        return;
    }
    let _one = one_installation();
    for door in Door::GUARDS {
        let judge = Judge::python(door);
        let half = b"GET /secret/1 HTTP/1.0\r\n";
        let words = judge.served(&[half], true);
        assert!(!words.contains("served /secret"), "{door:?}: {words}");
        let words = judge.served(&[&half[..9], &half[9..]], true);
        assert!(!words.contains("served /secret"), "{door:?}: {words}");
        let words = judge.served(&[[PUBLIC.as_bytes(), half].concat().as_slice()], true);
        assert!(!words.contains("served /secret"), "{door:?}: {words}");
        // A client that ends its side behind a whole request is served.
        assert!(judge.served(&[PUBLIC.as_bytes()], true).contains("served /public/1\n"), "{door:?}");
    }
}

#[test]
fn half_a_request_that_others_displace_is_not_forgotten() {
    if !(ready() && require(Feature::Python)) {
        return;
    }
    for door in Door::GUARDS {
        let judge = Judge::python(door);
        let mut stream = judge.open();
        stream.write_all(&SECRET.as_bytes()[..8]).unwrap();
        let others: Vec<_> = (0..700)
            .map(|_| {
                let mut other = judge.connect().expect("a connection");
                other.write_all(b"GET /pub").unwrap();
                other
            })
            .collect();
        let _ = stream.write_all(&SECRET.as_bytes()[8..]);
        let words = read_until(&mut stream, "served /secret/1\n");
        assert!(!words.contains("served /secret"), "{door:?}: {words}");
        drop(others);
    }
}

#[test]
fn a_request_behind_a_body_in_chunks_is_ruled() {
    if !(ready() && require(Feature::Node)) {
        return;
    }
    let bodies = [
        "5\r\nhello\r\n0\r\n\r\n",
        "5;name=\"va;lue\"\r\nhello\r\n00000A\r\n0123456789\r\n0\r\nTrailer: 1\r\nOther: 2\r\n\r\n",
        "2d\r\nGET /secret/9 HTTP/1.1\r\nHost: in the body\r\n\r\n\r\n0\r\n\r\n",
    ];
    let _one = one_installation();
    for door in Door::GUARDS {
        let judge = Judge::node(door);
        for body in bodies {
            let post = chunked(body);
            let whole = [&post, PUBLIC.as_bytes()].concat();
            let hostile = [&post, SECRET.as_bytes()].concat();
            for size in [1, 7, 1 << 16] {
                let pieces: Vec<_> = whole.chunks(size).collect();
                let mut stream = judge.open();
                pieces.iter().for_each(|piece| stream.write_all(piece).unwrap());
                let words = read_until(&mut stream, "served /public/1\n");
                assert!(words.contains("served /public/2\n"), "{door:?}, {size}, {body:?}: {words}");
                assert!(words.contains("served /public/1\n"), "{door:?}, {size}, {body:?}: {words}");
                let words = judge.served(&hostile.chunks(size).collect::<Vec<_>>(), false);
                assert!(!words.contains("served /secret"), "{door:?}, {size}, {body:?}: {words}");
            }
        }
    }
}

/// And behind a first request with such a body, in the packet that makes the connection and after it.
#[test]
fn a_request_behind_a_first_body_in_chunks_is_ruled() {
    if !(ready() && require(Feature::Node)) {
        return;
    }
    let _one = one_installation();
    for door in Door::GUARDS {
        let judge = Judge::node(door);
        let post = chunked("5\r\nhello\r\n3\r\nyou\r\n0\r\nTrailer: 1\r\n\r\n");
        for (last, marker) in [(PUBLIC, "served /public/1\n"), (SECRET, "served /secret/1\n")] {
            let stream = [&post, last.as_bytes()].concat();
            for size in [1 << 16, 80, 75, 79, 3] {
                let mut connection = judge.connect().expect("a connection");
                connection.set_nodelay(true).unwrap();
                for piece in stream.chunks(size) {
                    let _ = connection.write_all(piece);
                }
                let words = read_until(&mut connection, marker);
                let verdicts = judge.front.verdicts();
                assert_eq!(words.contains(marker), last == PUBLIC, "{door:?}, {size}: {words}: {verdicts:?}");
            }
        }
    }
}

#[test]
fn a_size_of_a_chunk_may_have_zeros_before_it() {
    if !(ready() && require(Feature::Node)) {
        return;
    }
    let _one = one_installation();
    for door in Door::GUARDS {
        let judge = Judge::node(door);
        for (size, last) in [("000000005", "0"), ("000000000000005", "000000000000000"), ("5", "000000000")] {
            let body = chunked(&format!("{size}\r\nhello\r\n{last}\r\n\r\n"));
            let mut stream = judge.open();
            stream.write_all(&[&body, PUBLIC.as_bytes()].concat()).unwrap();
            let words = read_until(&mut stream, "served /public/1\n");
            assert!(words.contains("served /public/1\n"), "{door:?}, {size}, {last}: {words}");
            let words = judge.served(&[&body, SECRET.as_bytes()], false);
            assert!(!words.contains("served /secret"), "{door:?}, {size}, {last}");
        }
    }
}

#[test]
fn what_is_no_chunk_is_refused() {
    if !(ready() && require(Feature::Node)) {
        return;
    }
    let bodies = [
        "0x5\r\nhello\r\n",
        "5 \r\nhello\r\n",
        "5\nhello\n",
        "5\r\nhelloX",
        "\r\n5\r\nhello",
        "100000000\r\n",
        "-1\r\n",
    ];
    let _one = one_installation();
    for door in Door::GUARDS {
        let judge = Judge::node(door);
        for body in bodies {
            let before = judge.front.verdicts();
            judge.served(&[&chunked(body), SECRET.as_bytes()], false);
            let new = judge.front.verdicts().since(&before);
            assert!(judge.front.is_counted(new.count(abi::FIEF_REFUSED_MALFORMED), 1), "{door:?}, {body:?}: {new:?}");
        }
    }
}

/// A GET with a body, to a server that does not read it and takes it for the next request.
#[test]
fn a_body_that_its_server_ignores_is_no_request() {
    if !(ready() && require(Feature::Python)) {
        return;
    }
    let get =
        |body: &str| format!("GET /public/2 HTTP/1.1\r\nHost: server\r\nContent-Length: {}\r\n\r\n{body}", body.len());
    let _one = one_installation();
    for door in Door::GUARDS {
        let judge = Judge::python(door);
        for before in ["", "\r\n", "\n"] {
            let hostile = get(&format!("{before}{SECRET}"));
            for size in [1 << 16, 90, 1] {
                let words = judge.served(&hostile.as_bytes().chunks(size).collect::<Vec<_>>(), false);
                assert!(!words.contains("served /secret"), "{door:?}, {before:?}, {size}: {words}");
            }
        }
        // The begin of a word, which what follows ends.
        let words = judge.served(&[(get("GET") + &SECRET[3..]).as_bytes()], false);
        assert!(!words.contains("served /secret"), "{door:?}: {words}");
        // What cannot become a request is a body.
        let mut stream = judge.open();
        stream.write_all(get("{\"query\": 1}").as_bytes()).unwrap();
        assert!(read_until(&mut stream, "served /public/2\n").contains("served /public/2\n"), "{door:?}");
    }
}

/// To Python's server `close` with a blank behind it is another word: the connection stays, and the body is what follows.
#[test]
fn a_body_behind_a_connection_that_stays_is_no_request() {
    if !(ready() && require(Feature::Python)) {
        return;
    }
    let get = |close: &str, body: &str| {
        let head = "GET /public/2 HTTP/1.1\r\nHost: server\r\nConnection:";
        format!("{head}{close}\r\nContent-Length: {}\r\n\r\n{body}", body.len())
    };
    let _one = one_installation();
    for door in Door::GUARDS {
        let judge = Judge::python(door);
        for close in [" close ", " close\t", "close  \t "] {
            let words = judge.served(&[get(close, SECRET).as_bytes()], false);
            assert!(!words.contains("served /secret"), "{door:?}, {close:?}: {words}");
        }
        // Where it ends, nothing is a request.
        let words = judge.served(&[get(" close", SECRET).as_bytes()], false);
        assert!(words.contains("served /public/2\n") && !words.contains("served /secret"), "{door:?}: {words}");
    }
}

/// What spells the refused request is a body to a server that reads it, where the policy says so; what follows is ruled.
#[test]
fn a_body_that_its_server_reads_is_one_where_the_policy_says_so() {
    if !(ready() && require(Feature::Node)) {
        return;
    }
    let reads = POLICY.replace("address = ", "bodies = \"read\"\naddress = ");
    let head = "GET /public/2 HTTP/1.1\r\nHost: server\r\nContent-Length: ";
    let last = "GET /public/1 HTTP/1.1\r\nHost: server\r\nConnection: close\r\n\r\n";
    let _one = one_installation();
    for door in Door::GUARDS {
        let judge = Judge::node(door);
        for (policy, is_served) in [(POLICY, false), (&reads, true)] {
            judge.front.apply(policy).unwrap();
            for spelt in [SECRET, "GET"] {
                let words = judge.served(&[format!("{head}{}\r\n\r\n{spelt}{last}", spelt.len()).as_bytes()], false);
                assert_eq!(words.contains("served /public/2"), is_served, "{door:?}, {spelt:?}: {words}");
            }
            let behind = format!("{head}{}\r\n\r\n{SECRET}{SECRET}", SECRET.len());
            let words = judge.served(&[behind.as_bytes()], false);
            assert!(!words.contains("served /secret"), "{door:?}: {words}");
        }
    }
}

fn upgrade() -> String {
    "GET /public/2 HTTP/1.1\r\nHost: server\r\nConnection: Upgrade\r\nUpgrade: echo\r\n\r\n".to_owned()
}

#[test]
fn a_request_behind_an_upgrade_that_the_server_ignores_is_ruled() {
    if !(ready() && require(Feature::Python)) {
        return;
    }
    let _one = one_installation();
    for door in Door::GUARDS {
        let judge = Judge::python(door);
        for (last, marker) in [(PUBLIC, "served /public/1\n"), (SECRET, "served /secret/1\n")] {
            for stream in [upgrade() + last, FIRST.to_owned() + &upgrade() + last] {
                for size in [1 << 16, 40] {
                    let mut connection = judge.connect().expect("a connection");
                    connection.set_nodelay(true).unwrap();
                    for piece in stream.as_bytes().chunks(size) {
                        let _ = connection.write_all(piece);
                    }
                    let words = read_until(&mut connection, marker);
                    let verdicts = judge.front.verdicts();
                    assert_eq!(words.contains(marker), last == PUBLIC, "{door:?}, {size}: {words}: {verdicts:?}");
                }
            }
        }
        // No request begins so.
        let words = judge.served(&[upgrade().as_bytes(), b"\x81\r\n\r\n", SECRET.as_bytes()], false);
        assert!(!words.contains("served /secret"), "{door:?}: {words}");
    }
}
