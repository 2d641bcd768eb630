// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What the tests of streams share: a client's connection, and what came back over it.

#![allow(dead_code, reason = "each test program uses its part")]

use std::io::{self, Read, Write};
use std::net::TcpStream;

use fief_testkit::{Family, PlainServer, digest, pattern};
use fief_tests_netns::front::{Front, anywhere, plain};
use fief_tests_netns::{SOON, connect_from};

pub const FAMILIES: [Family; 2] = [Family::V4, Family::V6];

pub fn server(front: &Front, family: Family) -> PlainServer {
    PlainServer::start(&front.topology.server, plain(family)).unwrap()
}

pub fn connect(front: &Front, family: Family) -> TcpStream {
    let stream = connect_from(&front.topology.clients, anywhere(family), plain(family)).unwrap();
    stream.set_read_timeout(Some(SOON)).unwrap();
    stream
}

/// The body of one response of known length, as the stream stands.
pub fn response(stream: &mut TcpStream) -> io::Result<Vec<u8>> {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        let mut byte = [0];
        stream.read_exact(&mut byte)?;
        head.push(byte[0]);
    }
    let head = String::from_utf8_lossy(&head).into_owned();
    assert!(head.starts_with("HTTP/1.1 200"), "{head}");
    let length = head.lines().find_map(|line| line.strip_prefix("Content-Length: ")).expect("a length");
    let mut body = vec![0; length.parse().expect("a number")];
    stream.read_exact(&mut body)?;
    Ok(body)
}

/// Uploads and downloads `length` bytes; whether they came as they were.
pub fn both_ways(front: &Front, family: Family, length: usize) -> bool {
    let server = server(front, family);
    let mut stream = connect(front, family);
    let body = pattern(length);
    let head = format!("POST /{length} HTTP/1.1\r\nContent-Length: {length}\r\n\r\n");
    stream.write_all(head.as_bytes()).unwrap();
    let mut writing = stream.try_clone().unwrap();
    let sent = body.clone();
    let writer = std::thread::spawn(move || writing.write_all(&sent).unwrap());
    let back = response(&mut stream).unwrap();
    writer.join().unwrap();
    let seen = &server.seen()[0];
    back == body && seen.body == length && seen.digest == digest(&[head.as_bytes(), &body].concat())
}

/// `count` connections one after the other, up to the first that is not answered in full; how many were.
pub fn in_sequence(front: &Front, count: u64) -> u64 {
    let _server = server(front, Family::V4);
    let fetch = || {
        let mut stream = TcpStream::connect(plain(Family::V4))?;
        stream.set_read_timeout(Some(SOON))?;
        stream.write_all(b"GET /close/100 HTTP/1.1\r\n\r\n")?;
        let mut all = Vec::new();
        stream.read_to_end(&mut all)
    };
    let answered = |_: &u64| fetch().is_ok_and(|length: usize| length > 100);
    front.topology.clients.run(|| (0..count).take_while(answered).count() as u64).unwrap()
}
