// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The end of a client's side, behind a request that waits, ends no half request; and that of its connection is told.

use std::io::{Read, Write};
use std::net::{IpAddr, Shutdown, TcpStream};
use std::time::Duration;

use fief_testkit::segment::{ACK, PSH, RST};
use fief_testkit::{Family, Feature, ORDINARY_OPTIONS, RawClients, RawConnection, require, wait_until};
use fief_tests_netns::front::{Door, Front, plain, ready};
use fief_tests_netns::queued::{Queued, lasting, low, status};
use fief_tests_netns::{SOON, connect_from, python_server};

const RULES: &str = "[[listener.plain.request]]\npath = \"/secret/*\"\nrefuse = \"reset\"\n";

/// It answers /slow once there is a file of this name.
const SLOW: &str = r#"
    def do_GET(self):
        if self.path == "/slow":
            while not os.path.exists("@GATE@"): time.sleep(0.001)
        self.answer()
"#;

fn dial(front: &Front, n: u8) -> Option<TcpStream> {
    let from = (IpAddr::from([10, 77, 2, n]), 0).into();
    connect_from(&front.topology.clients, from, plain(Family::V4)).ok()
}

fn waiting(front: &Front) -> u32 {
    front.queue().waiting
}

fn the_end_behind_a_request_that_waits_ends_no_half_request(door: Door) {
    if !(ready() && require(Feature::Python)) {
        return;
    }
    let open = "GET /open HTTP/1.1\r\nHost: server\r\n\r\n";
    let half = "GET /secret/1 HTTP/1.1\r\nHost: server\r\n";
    let folder = tempfile::Builder::new().prefix("ff-queue-").tempdir().unwrap();
    let gate = folder.path().join("gate");
    let front = Front::new(door, &format!("{}{RULES}", lasting()));
    let _server = front.python(&python_server(&SLOW.replace("@GATE@", gate.to_str().unwrap())));
    wait_until(SOON, || dial(&front, 1).is_some()).unwrap();
    for waits in [false, true] {
        let mut slow = dial(&front, 2).unwrap();
        if waits {
            slow.write_all(b"GET /slow HTTP/1.1\r\nHost: server\r\n\r\n").unwrap();
        }
        let mut stream = dial(&front, 3).unwrap();
        stream.write_all(format!("{open}{half}").as_bytes()).unwrap();
        if waits {
            wait_until(SOON, || waiting(&front) == 1).unwrap();
        }
        stream.shutdown(Shutdown::Write).unwrap();
        std::fs::write(&gate, "").unwrap();
        stream.set_read_timeout(Some(SOON)).unwrap();
        let mut words = Vec::new();
        let _ = stream.read_to_end(&mut words);
        let words = String::from_utf8_lossy(&words);
        assert!(!words.contains("served /secret"), "{door:?}, {waits}: {words}");
        // the next one finds the queue empty, and the server slow
        drop((slow, stream));
        wait_until(SOON, || (front.queue().waiting, front.queue().busy) == (0, 0)).unwrap();
        std::fs::remove_file(&gate).unwrap();
    }
}

#[test]
fn the_end_behind_a_request_that_waits_ends_no_half_request_where_fief_answers() {
    the_end_behind_a_request_that_waits_ends_no_half_request(Door::Own);
}

#[test]
fn the_end_behind_a_request_that_waits_ends_no_half_request_where_the_kernel_answers() {
    the_end_behind_a_request_that_waits_ends_no_half_request(Door::Kernel);
}

/// The reset of its connection was lost. All that it has asked is acknowledged, so it sends nothing again.
#[test]
fn who_waits_on_a_connection_that_is_gone_is_reset() {
    if !ready() {
        return;
    }
    let request = b"GET /more HTTP/1.1\r\nHost: server\r\n\r\n";
    for door in Door::GUARDS {
        let rig = Queued::new(door, &lasting());
        let clients = RawClients::new(&rig.front.topology).unwrap();
        let client = (RawClients::address(Family::V4, 7), 2000).into();
        let flow = [client, plain(Family::V4)];
        let mut connection = RawConnection::open(&clients, flow, 1000, &ORDINARY_OPTIONS, SOON).unwrap().unwrap();
        rig.let_go(1);
        clients.send(&connection.segment(PSH | ACK, 0, request)).unwrap();
        let answered = |connection: &mut RawConnection| {
            connection.hear(Duration::from_millis(50)).unwrap();
            !connection.received().is_empty()
        };
        wait_until(SOON, || answered(&mut connection)).unwrap();
        let first = rig.ask(low(1), "/first");
        rig.got_all(2);
        clients.send(&connection.segment(PSH | ACK, request.len() as u32, request)).unwrap();
        rig.wait_for(1);
        let killed = rig.front.topology.server.command("ss").args(["-K", "dport", "=", ":2000"]).output().unwrap();
        assert!(killed.status.success(), "{killed:?}");
        let reset = || clients.receive(client, SOON).is_some_and(|segment| segment.flags & RST != 0);
        wait_until(SOON, reset).unwrap();
        rig.let_go(1);
        assert_eq!(status(first), 200);
        wait_until(SOON, reset).unwrap_or_else(|_| panic!("{door:?}: {:?}", rig.front.verdicts()));
        rig.wait_for_peace();
        connection.vanish();
    }
}
