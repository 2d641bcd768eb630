// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A server that reads no bodies of most methods, and whose program takes every first word of a line for a method.

use std::io::{Read, Write};
use std::net::TcpStream;

use fief_bpf::abi;
use fief_testkit::{Family, Feature, Process, require, wait_until};
use fief_tests_netns::front::{Door, Front, anywhere, plain, ready};
use fief_tests_netns::refusing;
use fief_tests_netns::{SOON, connect_from, one_installation, python_server};

fn start(front: &Front) -> Process {
    let any = r#"
    def __getattr__(self, name):
        if name.startswith("do_"):
            return self.answer
        raise AttributeError(name)
"#;
    let server = front.python(&python_server(any));
    wait_until(SOON, || dial(front).is_some()).unwrap();
    server
}

fn dial(front: &Front) -> Option<TcpStream> {
    connect_from(&front.topology.clients, anywhere(Family::V4), plain(Family::V4)).ok()
}

/// What the server answers to a GET with this behind its first lines, and then to another request.
fn served(front: &Front, rest: &[u8]) -> String {
    let mut stream = dial(front).unwrap();
    stream.set_read_timeout(Some(SOON)).unwrap();
    let _ = stream.write_all(&[b"GET /public/1 HTTP/1.1\r\nHost: server\r\n", rest].concat());
    let _ = stream.write_all(b"GET /public/2 HTTP/1.1\r\nHost: server\r\nConnection: close\r\n\r\n");
    let mut words = Vec::new();
    let _ = stream.read_to_end(&mut words);
    String::from_utf8_lossy(&words).into_owned()
}

fn with_length(body: &[u8]) -> Vec<u8> {
    [format!("Content-Length: {}\r\n\r\n", body.len()).as_bytes(), body].concat()
}

fn in_chunks(body: &[u8]) -> Vec<u8> {
    [b"Transfer-Encoding: chunked\r\n\r\n", body].concat()
}

#[test]
fn no_chunk_is_a_refused_request_to_a_server_that_takes_any_method() {
    if !(ready() && require(Feature::Python)) {
        return;
    }
    let mut rests = Vec::new();
    for chunks in [
        &b"0;a /secret/1 HTTP/1.1\r\n\r\n"[..],
        b"5;a /secret/1 HTTP/1.1\r\nhello\r\n0\r\n\r\n",
        b"5;a\t/secret/1\xa0HTTP/1.1 \r\nhello\r\n0\r\n\r\n",
    ] {
        rests.push(in_chunks(chunks));
    }
    let _one = one_installation();
    for door in Door::GUARDS {
        let front = Front::new(door, refusing!("/secret/*", "reset"));
        let _server = start(&front);
        for rest in &rests {
            let words = served(&front, rest);
            assert!(!words.contains("served /secret"), "{door:?}: {:?}", String::from_utf8_lossy(rest));
        }
        // bodies that no server takes for a request
        for rest in
            [with_length(b"{\"a\": 1}"), with_length(b"a=1&b=2"), in_chunks(b"5;a=\"b c\"\r\nhello\r\n0\r\n\r\n")]
        {
            let words = served(&front, &rest);
            assert!(words.contains("served /public/1\n"), "{door:?}: {:?}", String::from_utf8_lossy(&rest));
        }
    }
}

/// A ClientHello that TLS takes, with this among its random bytes.
fn hello(words: &[u8]) -> Vec<u8> {
    let mut random = words.to_vec();
    random.resize(32, b'y');
    let rest = [&[b'z'; 56][..], b"\r\n\r\n"].concat();
    let mut body = [&[3, 3][..], &random, &[0, 0, 2, 0x13, 1, 1, 0, 0, 64, 0xfa, 0xfa, 0, 60]].concat();
    body.extend(&rest);
    let length = body.len() as u16;
    let message = [&[1, 0][..], &length.to_be_bytes(), &body].concat();
    [&[0x16, 3, 1][..], &(length + 4).to_be_bytes(), &message].concat()
}

#[test]
fn a_hello_is_no_request_to_a_server_that_takes_any_method() {
    if !(ready() && require(Feature::Python)) {
        return;
    }
    let _one = one_installation();
    for door in Door::GUARDS {
        let front = Front::new(door, refusing!("/secret/*", "reset"));
        let _server = start(&front);
        for words in [&b" /secret/1 HTTP/1.1\r\nX: y"[..], b" /public/1 HTTP/1.1\r\nX: y"] {
            let mut stream = dial(&front).unwrap();
            stream.set_read_timeout(Some(SOON)).unwrap();
            let before = front.verdicts();
            let _ = stream.write_all(&hello(words));
            let mut answer = [0; 4096];
            let length = stream.read(&mut answer).unwrap_or(0);
            assert_eq!(length, 0, "{door:?}: {:?}", String::from_utf8_lossy(&answer[..length]));
            let new = front.verdicts().since(&before);
            assert!(front.is_counted(new.count(abi::FIEF_REFUSED_OTHER), 1), "{door:?}: {new:?}");
        }
        // one of no request passes
        let before = front.verdicts();
        let mut stream = dial(&front).unwrap();
        let _ = stream.write_all(&hello(b"y"));
        wait_until(SOON, || front.verdicts().since(&before).count(abi::FIEF_REQUEST_CLIENT) > 0).unwrap();
    }
}
