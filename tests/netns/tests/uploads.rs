// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Bodies of more bytes than sequence numbers tell apart pass, and the request behind them is ruled.

use std::io::Write;
use std::net::TcpStream;

use fief_bpf::abi;
use fief_testkit::{Family, Feature, read_until, require, wait_until};
use fief_tests_netns::front::{Door, Front, anywhere, plain, ready};
use fief_tests_netns::refusing;
use fief_tests_netns::{SOON, connect_from};

/// Reads each body to its end, and tells what it served.
const SERVER: &str = r#"
import socket, threading
def serve(connection):
    data, room = b"", bytearray(1 << 20)
    while True:
        while b"\r\n\r\n" not in data:
            more = connection.recv(65536)
            if not more:
                return
            data += more
        head, data = data.split(b"\r\n\r\n", 1)
        left = 0
        for line in head.split(b"\r\n")[1:]:
            name, value = line.split(b":", 1)
            if name == b"Content-Length":
                left = int(value)
        taken = min(left, len(data))
        left, data = left - taken, data[taken:]
        while left:
            count = connection.recv_into(room, min(left, len(room)))
            if not count:
                return
            left -= count
        text = b"served " + head.split(b" ")[1] + b"\n"
        connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(text) + text)
listener = socket.create_server(("::", 80), family=socket.AF_INET6, dualstack_ipv6=True)
while True:
    threading.Thread(target=serve, args=(listener.accept()[0],), daemon=True).start()
"#;

/// More than the door passes by at once.
const ONCE: u64 = (1 << 30) + 12_345;
/// More than half of the sequence numbers, and more than twice as much as at once.
const TWICE: u64 = (1 << 31) + 54_321;

fn request(method: &str, path: &str, length: u64) -> Vec<u8> {
    format!("{method} {path} HTTP/1.1\r\nHost: server\r\nContent-Length: {length}\r\n\r\n").into_bytes()
}

fn upload(stream: &mut TcpStream, mut left: u64) {
    // it could be a request, were it one's begin
    let piece = b"GET /secret/1 HTTP/1.1\r\n\r\n\0\0".repeat(1 << 16);
    while left > 0 {
        let count = piece.len().min(usize::try_from(left).unwrap());
        stream.write_all(&piece[..count]).unwrap();
        left -= count as u64;
    }
}

#[test]
fn a_request_behind_a_body_above_a_gibibyte_is_ruled() {
    if !(ready() && require(Feature::Python)) {
        return;
    }
    for (door, first, method, length) in [
        (Door::Own, true, "PUT", TWICE),
        (Door::Own, false, "PUT", ONCE),
        (Door::Kernel, true, "PUT", ONCE),
        (Door::Kernel, false, "DELETE", ONCE),
    ] {
        let front = Front::new(door, refusing!("/secret/*", "reset"));
        let _server = front.python(SERVER);
        let dial = || connect_from(&front.topology.clients, anywhere(Family::V4), plain(Family::V4)).ok();
        wait_until(SOON, || dial().is_some()).unwrap();
        let mut stream = dial().unwrap();
        stream.set_read_timeout(Some(SOON)).unwrap();
        if !first {
            stream.write_all(&request("GET", "/public/0", 0)).unwrap();
            read_until(&mut stream, "served /public/0\n");
        }
        stream.write_all(&request(method, "/public/1", length)).unwrap();
        // what stands there is no request to a server that reads no bodies of DELETE
        stream.write_all(b"{}{}{}\r\n").unwrap();
        upload(&mut stream, length - 8);
        stream.write_all(&request("GET", "/public/2", 0)).unwrap();
        let words = read_until(&mut stream, "served /public/2\n");
        assert!(
            words.contains("served /public/1\n") && words.contains("served /public/2\n"),
            "{door:?}, {method}: {words}"
        );
        let (before, again) = (front.verdicts(), front.sent_again());
        let _ = stream.write_all(&request("GET", "/secret/1", 0));
        let words = read_until(&mut stream, "served /secret/1\n");
        assert!(!words.contains("served"), "{door:?}, {method}: {words}");
        let refused = front.verdicts().since(&before).count(abi::FIEF_REQUEST_REFUSED);
        let most = 1 + front.sent_again() - again;
        assert!((1..=most).contains(&refused), "{door:?}, {method}: {refused} of {most}");
    }
}
