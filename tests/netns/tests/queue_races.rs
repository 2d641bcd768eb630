// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A request that goes on from the queue, while another CPU has another version of it.

use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use fief_testkit::segment::{ACK, PSH};
use fief_testkit::{Family, RawClients, pin, wait_until};
use fief_tests_netns::SOON;
use fief_tests_netns::front::{Door, ready};
use fief_tests_netns::queued::POLICY;
use fief_tests_netns::rig::Rig;

const RULES: &str = "[[listener.plain.request]]\npath = \"/secret/*\"\nrefuse = \"reset\"\n";
const SECRET: &[u8] = b"GET /secret/10 HTTP/1.1\r\nHost: server\r\n\r\n";
const TURNS: usize = 400;

/// Ends the other thread.
struct Ends<'a>(&'a AtomicUsize, &'a Mutex<Vec<u8>>);

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        self.1.lock().unwrap().clear();
        self.0.store(usize::MAX, Ordering::Release);
    }
}

#[test]
fn no_other_version_passes_while_a_request_leaves_the_queue() {
    let cpus = fief_testkit::cpus();
    if !ready() || cpus.len() < 2 {
        return;
    }
    let length = SECRET.len();
    let head = format!("POST /public/10 HTTP/1.1\r\nHost: server\r\nContent-Length: {length}\r\n\r\n");
    let other = [head.as_bytes(), SECRET].concat();
    let mut public = "GET /public/10 HTTP/1.1\r\nHost: server\r\nA: \r\n\r\n".to_owned();
    public.insert_str(public.len() - 4, &"a".repeat(head.len() - public.len()));
    for door in Door::GUARDS {
        let rig = Rig::in_order(door, &format!("{POLICY}{RULES}"));
        let queue = || fief_bpf::queue::all(rig.front.installation().fief().pins()).unwrap().pop().expect("a queue").1;
        let (go, done, frame) = (AtomicUsize::new(0), AtomicUsize::new(0), Mutex::new(Vec::new()));
        let wire = RawClients::new(&rig.front.topology).unwrap();
        std::thread::scope(|scope| {
            let (go, done, frame, cpu) = (&go, &done, &frame, cpus[0]);
            scope.spawn(move || {
                pin(0, cpu).unwrap();
                for turn in 1..=TURNS {
                    while go.load(Ordering::Acquire) < turn {
                        std::thread::yield_now();
                    }
                    let packet: Vec<u8> = frame.lock().unwrap().clone();
                    if packet.is_empty() {
                        return;
                    }
                    done.store(turn * 2, Ordering::Release);
                    wire.send_packet(&[], &packet).unwrap();
                    done.store(turn * 2 + 1, Ordering::Release);
                }
            });
            let _ends = Ends(go, frame);
            pin(0, cpus[1]).unwrap();
            let mut waited = 0;
            for turn in 1..=TURNS {
                let (place, mut connection) = (rig.open(Family::V4), rig.open(Family::V4));
                // it owes a body, and has its place for some 10 ms
                let owing = b"POST /10 HTTP/1.1\r\nHost: server\r\nContent-Length: 9\r\n\r\n";
                rig.clients.send(&place.segment(PSH | ACK, 0, owing)).unwrap();
                rig.clients.send(&connection.segment(PSH | ACK, 0, public.as_bytes())).unwrap();
                waited += usize::from(queue().waiting == 1);
                std::thread::sleep(Duration::from_millis(25));
                // one moves the queue on, the other comes with another version
                let last = public.len() - 1;
                *frame.lock().unwrap() = connection.segment(ACK, last as u32, &public.as_bytes()[last..]).packet();
                let own = connection.segment(PSH | ACK, 0, &other).packet();
                go.store(turn, Ordering::Release);
                while done.load(Ordering::Acquire) < turn * 2 {
                    std::hint::spin_loop();
                }
                (0..turn * 53 % 4000).for_each(|_| std::hint::spin_loop());
                rig.clients.send_packet(&[], &own).unwrap();
                while done.load(Ordering::Acquire) < turn * 2 + 1 {
                    std::hint::spin_loop();
                }
                let _ = connection.hear(Duration::from_millis(5));
                let seen = rig.server.seen();
                let secret = seen.iter().find(|seen| seen.line.contains("secret"));
                assert!(secret.is_none(), "{door:?}, turn {turn}, {waited} waited: {secret:?}");
            }
            assert!(waited > TURNS / 4, "{waited}");
            let _ = wait_until(SOON, || queue().waiting == 0);
        });
    }
}
