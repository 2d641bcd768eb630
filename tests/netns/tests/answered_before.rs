// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Clients whose SYN the kernel answered with a cookie before the door did, as a policy came into force. What they send first
//! is ruled like everybody's.

use std::net::SocketAddr;
use std::time::Duration;

use fief_bpf::abi;
use fief_testkit::segment::{ACK, RST};
use fief_testkit::{Ending, Family, ORDINARY_OPTIONS, RawClients, RawConnection, wait_until};
use fief_tests_netns::front::{Door, ready};
use fief_tests_netns::rig::{Rig, pieces, whole};
use fief_tests_netns::{SOON, one_installation};

/// The kernel answers: nothing is asked of a request.
const BEFORE: &str = r#"
[container.web]
[container."web/images"]
[listener.plain]
address = "[::]:80"
queue = false
[[listener.plain.client]]
from = ["any"]
container = "web"
"#;

const RULES: &str = r#"
[[listener.plain.request]]
path = "/secret/*"
refuse = "reset"
[[listener.plain.request]]
path = "/punished"
refuse = "reset"
penalty = "1h"
[[listener.plain.request]]
path = "*.png"
container = "web/images"
"#;

const SIZE: [u8; 4] = [2, 4, 5, 0xb4];
const FAMILIES: [Family; 2] = [Family::V4, Family::V6];

fn request(path: &str) -> Vec<u8> {
    format!("GET {path} HTTP/1.1\r\nHost: server\r\nConnection: close\r\n\r\n").into_bytes()
}

/// A server whose kernel answers every SYN with a cookie, and a policy without rules.
fn before() -> Rig {
    let rig = Rig::new(Door::Own, BEFORE);
    rig.front.topology.server.sysctl("net.ipv4.tcp_syncookies", "2").unwrap();
    rig
}

/// From now on the door answers.
fn rules_come(rig: &Rig) {
    rig.front.apply(&format!("{BEFORE}{RULES}")).unwrap();
}

/// Connections of one client each, of both families, with timestamps and without, that have their SYN-ACK.
fn greeted(rig: &Rig, first: u16) -> Vec<RawConnection<'_>> {
    let mut open = Vec::new();
    for (n, family) in (first..).zip(FAMILIES) {
        for (port, options) in [(2000, &ORDINARY_OPTIONS[..]), (2001, &SIZE)] {
            let client: SocketAddr = (RawClients::address(family, 512 * n + port), port).into();
            open.push(rig.open_with(client, u32::from(n) << 16 | u32::from(port), options));
        }
    }
    open
}

#[test]
fn their_first_bytes_are_ruled_and_served() {
    if !ready() {
        return;
    }
    let _one = one_installation();
    let rig = before();
    let (mut plain, mut cut, mut hostile) = (greeted(&rig, 1), greeted(&rig, 3), greeted(&rig, 5));
    rules_come(&rig);
    let (wanted, secret) = (request("/10.png"), request("/secret/10"));
    for connection in &mut plain {
        let (words, ending) = connection.converse(&wanted, &whole(&wanted), SOON).unwrap();
        assert!(words.starts_with(b"HTTP/1.1 200") && ending == Ending::Closed, "{:?}", rig.verdicts());
    }
    for connection in &mut cut {
        let (words, _) = connection.converse(&wanted, &pieces(&wanted, 11), SOON).unwrap();
        assert!(words.starts_with(b"HTTP/1.1 200"), "{:?}", rig.verdicts());
    }
    let images = rig.verdicts();
    let images = images.all().iter().filter(|verdict| verdict.container == "web/images");
    assert!(rig.is_counted(images.map(|verdict| verdict.count).sum(), 8), "{:?}", rig.verdicts());
    for connection in &mut hostile {
        let (_, ending) = connection.converse(&secret, &whole(&secret), SOON).unwrap();
        assert_eq!(ending, Ending::Reset, "{:?}", rig.verdicts());
    }
    assert!(rig.is_counted(rig.verdicts().count(abi::FIEF_REQUEST_REFUSED), 4), "{:?}", rig.verdicts());
    assert_eq!(rig.server.accepted(), 8, "no socket was made for what was refused");
}

#[test]
fn a_bare_ack_makes_their_connection_and_the_request_is_ruled_as_it_passes() {
    if !ready() {
        return;
    }
    let _one = one_installation();
    let rig = before();
    let (mut honest, mut hostile) = (greeted(&rig, 1), greeted(&rig, 3));
    rules_come(&rig);
    let (wanted, secret) = (request("/10.png"), request("/secret/10"));
    for (connection, stream) in
        honest.iter_mut().map(|one| (one, &wanted)).chain(hostile.iter_mut().map(|one| (one, &secret)))
    {
        connection.acknowledge().unwrap();
        let (words, ending) = connection.converse(stream, &whole(stream), SOON).unwrap();
        let served = words.starts_with(b"HTTP/1.1 200");
        assert_eq!((served, ending == Ending::Reset), (stream == &wanted, stream == &secret), "{:?}", rig.verdicts());
    }
    assert!(rig.server.seen().iter().all(|seen| !seen.line.contains("secret")));
}

#[test]
fn a_penalty_holds_for_what_they_have_gathered() {
    if !ready() {
        return;
    }
    let _one = one_installation();
    let rig = before();
    let client = |port: u16| SocketAddr::from((RawClients::address(Family::V4, 5), port));
    let mut gathered: Vec<_> = (3000..3004).map(|port| rig.open_from(client(port))).collect();
    rules_come(&rig);
    let (wanted, punished) = (request("/10"), request("/punished"));
    let (_, ending) = rig.open_from(client(2999)).converse(&punished, &whole(&punished), SOON).unwrap();
    assert_eq!(ending, Ending::Reset);
    gathered[0].acknowledge().unwrap();
    rig.clients.send(&gathered[1].segment(ACK, 0, &wanted[..9])).unwrap();
    for connection in &mut gathered {
        let (words, _) = connection.converse(&wanted, &whole(&wanted), Duration::from_millis(200)).unwrap();
        assert!(words.is_empty(), "served within the penalty: {:?}", rig.verdicts());
    }
    assert_eq!(rig.server.seen(), []);
}

#[test]
fn their_cookie_makes_one_connection() {
    if !ready() {
        return;
    }
    let _one = one_installation();
    let rig = before();
    let mut open = greeted(&rig, 1);
    rules_come(&rig);
    let wanted = request("/10.png");
    for connection in &mut open {
        let first = connection.segment(ACK, 0, &wanted);
        let (words, _) = connection.converse(&wanted, &whole(&wanted), SOON).unwrap();
        assert!(words.starts_with(b"HTTP/1.1 200"), "{:?}", rig.verdicts());
        rig.clients.send(&connection.segment(RST | ACK, wanted.len() as u32, &[])).unwrap();
        let port = connection.client.port();
        let _ = wait_until(Duration::from_secs(1), || rig.front.sockets(port).is_empty());
        (0..5).for_each(|_| rig.clients.send(&first).unwrap());
    }
    let mut last = rig.open(Family::V4);
    assert!(last.converse(&wanted, &whole(&wanted), SOON).unwrap().0.starts_with(b"HTTP/1.1 200"));
    assert_eq!(rig.server.accepted(), 5, "{:?}", rig.verdicts());
}
