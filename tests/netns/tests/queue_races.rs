// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A request that goes on from the queue, while another CPU has another version of it.

use std::time::Duration;

use fief_testkit::segment::{ACK, PSH};
use fief_testkit::{Family, RawClients, wait_until};
use fief_tests_netns::front::{Door, ready};
use fief_tests_netns::queued::POLICY;
use fief_tests_netns::rig::Rig;
use fief_tests_netns::{SOON, one_installation, with_rival};

const RULES: &str = "[[listener.plain.request]]\npath = \"/secret/*\"\nrefuse = \"reset\"\n";
const SECRET: &[u8] = b"GET /secret/10 HTTP/1.1\r\nHost: server\r\n\r\n";
const TURNS: usize = 400;

#[test]
fn no_other_version_passes_while_a_request_leaves_the_queue() {
    let cpus = fief_testkit::cpus();
    if !ready() || cpus.len() < 2 {
        return;
    }
    let _one = one_installation();
    let length = SECRET.len();
    let head = format!("POST /public/10 HTTP/1.1\r\nHost: server\r\nContent-Length: {length}\r\n\r\n");
    let other = [head.as_bytes(), SECRET].concat();
    let mut public = "GET /public/10 HTTP/1.1\r\nHost: server\r\nA: \r\n\r\n".to_owned();
    public.insert_str(public.len() - 4, &"a".repeat(head.len() - public.len()));
    for door in Door::GUARDS {
        let rig = Rig::in_order(door, &format!("{POLICY}{RULES}"));
        let wire = RawClients::new(&rig.front.topology).unwrap();
        with_rival(&cpus, wire, TURNS, std::thread::yield_now, |rival| {
            let mut waited = 0;
            for turn in 1..=TURNS {
                let (place, mut connection) = (rig.open(Family::V4), rig.open(Family::V4));
                // it owes a body, and has its place for some 10 ms
                let owing = b"POST /10 HTTP/1.1\r\nHost: server\r\nContent-Length: 9\r\n\r\n";
                rig.clients.send(&place.segment(PSH | ACK, 0, owing)).unwrap();
                rig.clients.send(&connection.segment(PSH | ACK, 0, public.as_bytes())).unwrap();
                // perhaps when the place is free again
                let waits = wait_until(Duration::from_millis(8), || rig.front.queue().waiting == 1);
                waited += usize::from(waits.is_ok());
                std::thread::sleep(Duration::from_millis(25));
                // one moves the queue on, the other comes with another version
                let last = public.len() - 1;
                let moves = connection.segment(ACK, last as u32, &public.as_bytes()[last..]).packet();
                let own = connection.segment(PSH | ACK, 0, &other).packet();
                rival.race(turn, moves, turn * 53 % 4000, || rig.clients.send_packet(&[], &own).unwrap());
                let _ = connection.hear(Duration::from_millis(5));
                let seen = rig.server.seen();
                let secret = seen.iter().find(|seen| seen.line.contains("secret"));
                assert!(secret.is_none(), "{door:?}, turn {turn}, {waited} waited: {secret:?}");
            }
            assert!(waited > TURNS / 4, "{waited}");
            let _ = wait_until(SOON, || rig.front.queue().waiting == 0);
        });
    }
}
