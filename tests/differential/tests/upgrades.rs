// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Bytes that begin no request of RFC 9112, behind a request for another protocol of which real servers took no notice. Not
//! every server ends a connection upon them, so Fief goes by the server's confirmation and not by a first byte.

use std::io::Write;
use std::net::TcpStream;
use std::time::Duration;

use fief_testkit::{NetNs, read_until};
use fief_tests_differential::server::{MARKER, PLAIN};
use fief_tests_differential::{Kind, Port, Stage};

/// First bytes of a WebSocket's frame, of TLS, of other protocols; then a line, so that a server has something to read.
const FOREIGN: [&[u8]; 6] = [b"\x81\x85\x01\x02", b"\x16\x03\x01", b"\x00", b"\x1b", b"\x82\n", b"\xff\r\n"];

/// For what must come, and for what must not.
const SOON: Duration = Duration::from_secs(20);
const SILENCE: Duration = Duration::from_secs(2);

fn ask(clients: &NetNs, kind: Kind, port: Port, pieces: [&[u8]; 2], patience: Duration) -> String {
    let address = Stage::address(kind, port);
    let mut stream = clients.run(|| TcpStream::connect(address)).unwrap().unwrap();
    stream.set_read_timeout(Some(SOON)).unwrap();
    stream.write_all(pieces[0]).unwrap();
    let words = read_until(&mut stream, PLAIN);
    assert!(words.contains(PLAIN), "{}: {words}", kind.name());
    stream.set_read_timeout(Some(patience)).unwrap();
    let _ = stream.write_all(pieces[1]);
    read_until(&mut stream, MARKER)
}

#[test]
fn nothing_is_served_behind_foreign_bytes_that_follow_an_upgrade_which_the_server_ignores() {
    let Some(stage) = Stage::new(Kind::present()) else { return };
    let upgrade = "GET /plain HTTP/1.1\r\nHost: plain.example\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\
                   Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n";
    let marker = "GET /marker HTTP/1.1\r\nHost: plain.example\r\n\r\n".repeat(2);
    let clients = &stage.topology.clients;
    let served = |kind, port, bytes: &[u8], patience| {
        let words = ask(clients, kind, port, [upgrade.as_bytes(), bytes], patience);
        words.contains(MARKER)
    };
    let holds = |kind: Kind| {
        for port in [Port::Open, Port::Reset] {
            assert!(served(kind, port, marker.as_bytes(), SOON), "{} keeps the connection", kind.name());
        }
        for foreign in FOREIGN {
            for between in ["", "\r\n", "\r\n\r\n"] {
                let bytes = [foreign, between.as_bytes(), marker.as_bytes()].concat();
                if served(kind, Port::Open, &bytes, SILENCE) {
                    println!("{} without Fief serves what follows {foreign:?} {between:?}", kind.name());
                }
                assert!(!served(kind, Port::Reset, &bytes, SILENCE), "{}: {foreign:?} {between:?}", kind.name());
            }
        }
    };
    // most of the time is silence, which servers keep side by side
    std::thread::scope(|scope| {
        for &kind in &stage.kinds {
            scope.spawn(move || holds(kind));
        }
    });
}
