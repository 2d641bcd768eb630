// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What leaves without bytes says nothing of a place, unless it ends its connection; what leaves with bytes does, however long it is.

use std::io::Write;
use std::net::{Shutdown, TcpListener};

use fief_testkit::segment::{ACK, PSH};
use fief_testkit::{Client, Family, wait_until};
use fief_tests_netns::front::{Door, Front, plain, ready};
use fief_tests_netns::queued::{Queued, lasting, low, read_head, status};
use fief_tests_netns::rig::Rig;
use fief_tests_netns::{SOON, one_installation};
use libbpf_rs::{MapCore, MapHandle};
use nix::sys::socket::{setsockopt, sockopt};

/// Of some packets, which leave as one, and less than a client's window.
const LONG: usize = 20_000;
/// More than a client sends byte by byte within a test.
const ENDLESS: usize = 10_000_000;

/// Does as the path says, and ends no connection for another reason.
fn serve(listener: &TcpListener) {
    let mut open = Vec::new();
    for mut stream in listener.incoming().flatten() {
        let head = read_head(&mut stream).unwrap_or_default();
        match head.split(' ').nth(1) {
            Some("/ends") => stream.shutdown(Shutdown::Write).unwrap(),
            Some("/resets") => {
                setsockopt(&stream, sockopt::Linger, &libc::linger { l_onoff: 1, l_linger: 0 }).unwrap();
                continue;
            }
            _ => {
                let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {LONG}\r\n\r\n");
                stream.write_all(&[head.as_bytes(), &[b'x'; LONG]].concat()).unwrap();
            }
        }
        open.push(stream);
    }
}

/// Requests that the server got, and places that are taken.
fn counts(front: &Front) -> (u64, u32) {
    let queue = front.queue();
    (queue.class.iter().map(|class| class.entered + class.released).sum(), queue.busy)
}

/// Nobody waits, so that no time passes for the queue: what leaves is all that gives a place back.
fn gives_its_place_back(path: &str) {
    if !ready() {
        return;
    }
    let _one = one_installation();
    for door in Door::GUARDS {
        let front = Front::new(door, &lasting());
        let listener = front.topology.server.run(|| TcpListener::bind("[::]:80").unwrap()).unwrap();
        std::thread::spawn(move || serve(&listener));
        let ask = |(n, family)| {
            let asked = front.ask_from(Client::Low.address(family, 1), plain(family), path).unwrap();
            wait_until(SOON, || counts(&front) == (n, 0))
                .unwrap_or_else(|_| panic!("{door:?}, {family:?}: {:?}", counts(&front)));
            asked
        };
        // these clients read nothing, and do not end their sides
        let _asked: Vec<_> = (1..).zip([Family::V4, Family::V6]).map(ask).collect();
    }
}

#[test]
fn a_server_that_ends_its_side_instead_of_an_answer_gives_the_place_back() {
    gives_its_place_back("/ends");
}

#[test]
fn a_server_that_resets_instead_of_an_answer_gives_the_place_back() {
    gives_its_place_back("/resets");
}

#[test]
fn an_answer_whose_first_packet_is_a_long_one_gives_the_place_back() {
    gives_its_place_back("/long");
}

/// Connections whose requests the server has, as the queue knows them.
fn served(front: &Front) -> usize {
    MapHandle::from_pinned_path(front.installation().fief().pins().map("queue_serves")).unwrap().keys().count()
}

/// The server acknowledges byte after byte of a body, and says nothing else. Its place runs out: another one gets it, and many such
/// clients fill no table.
#[test]
fn a_body_that_comes_slowly_keeps_nothing() {
    if !ready() {
        return;
    }
    let _one = one_installation();
    for door in Door::GUARDS {
        let rig = Queued::new(door, &lasting());
        let mut upload = rig.connect(low(1));
        upload.set_nodelay(true).unwrap();
        let head = format!("POST /upload HTTP/1.1\r\nHost: server\r\nContent-Length: {ENDLESS}\r\n\r\n");
        upload.write_all(head.as_bytes()).unwrap();
        rig.got_all(1);
        let other = rig.ask(low(2), "/other");
        // the other one's is left
        let moves_on = wait_until(SOON, || {
            upload.write_all(b"x").unwrap();
            (rig.got().len(), served(&rig.front)) == (2, 1)
        });
        assert!(moves_on.is_ok(), "{door:?}: {:?}, {} are known", rig.got(), served(&rig.front));
        rig.let_go(2);
        assert_eq!(status(other), 200, "{door:?}");
        drop(upload);
        rig.wait_for_peace();
        assert_eq!(served(&rig.front), 0, "{door:?}");
    }
}

/// The server has answered, and asks its client again and again whether it takes some of that.
#[test]
fn a_client_that_takes_nothing_keeps_nothing() {
    if !ready() {
        return;
    }
    let _one = one_installation();
    for door in Door::GUARDS {
        let rig = Rig::in_order(door, &lasting());
        let client = rig.open(Family::V4);
        let mut asks = client.segment(PSH | ACK, 0, b"GET /10 HTTP/1.1\r\nHost: server\r\n\r\n");
        asks.window = 0;
        rig.clients.send(&asks).unwrap();
        wait_until(SOON, || rig.server.seen().len() == 1).unwrap();
        wait_until(SOON, || counts(&rig.front).0 == 1 && served(&rig.front) == 0)
            .unwrap_or_else(|_| panic!("{door:?}: {:?}, {} are known", counts(&rig.front), served(&rig.front)));
    }
}
