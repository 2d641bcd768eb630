// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Long bodies through the queue: what a client sends behind a head that waits comes whole.

use std::io::Write;
use std::net::TcpStream;
use std::time::{Duration, Instant};

use fief_testkit::{Topology, digest, pattern, wait_until};
use fief_tests_netns::SOON;
use fief_tests_netns::front::{self, Door};
use fief_tests_netns::queued::{Queued, answer_on, lasting, low, status};

/// A body that waits with its head.
const KEPT: usize = 15_000;
const LONG: usize = 10_000_000;
/// Longer than the timeout of a client that waits for an acknowledgment.
const HELD: Duration = Duration::from_secs(1);

/// How often a client in this namespace waited for an acknowledgment in vain (TcpExt TCPTimeouts).
fn timeouts(topology: &Topology) -> u64 {
    let text = topology.clients.run(|| std::fs::read_to_string("/proc/thread-self/net/netstat").unwrap()).unwrap();
    let mut lines = text.lines().filter_map(|line| line.strip_prefix("TcpExt: ")).map(|line| line.split(' '));
    let (names, mut values) = (lines.next().unwrap(), lines.next().unwrap());
    let at = names.take_while(|name| *name != "TCPTimeouts").count();
    values.nth(at).expect("the kernel counts it").parse().unwrap()
}

/// Sends all of an upload, on a thread of its own.
fn upload(stream: &TcpStream, path: &str, length: usize) -> std::thread::JoinHandle<()> {
    let mut stream = stream.try_clone().unwrap();
    let head = format!("POST {path} HTTP/1.1\r\nHost: server\r\nContent-Length: {length}\r\n\r\n");
    std::thread::spawn(move || stream.write_all(&[head.as_bytes(), &pattern(length)].concat()).unwrap())
}

/// Uploads so much behind a head that waits for longer than a timeout; how many timeouts that cost, while it waited and in all.
fn timeouts_of(rig: &Queued, is_new: bool, length: usize) -> [u64; 2] {
    let mut stream = rig.connect(low(2));
    if !is_new {
        // after this one the client may send more at once
        rig.let_go(1);
        upload(&stream, "/before", LONG).join().unwrap();
        assert!(answer_on(&mut stream).starts_with("HTTP/1.1 200"));
    }
    let (seen, before) = (rig.got().len(), timeouts(&rig.front.topology));
    let first = rig.ask(low(1), "/first");
    rig.got_all(seen + 1);
    let sending = upload(&stream, "/upload", length);
    rig.wait_for(1);
    let begin = Instant::now();
    wait_until(SOON, || begin.elapsed() > HELD).unwrap();
    let held = timeouts(&rig.front.topology) - before;
    rig.let_go(2);
    assert_eq!(status(first), 200);
    sending.join().unwrap();
    assert!(answer_on(&mut stream).starts_with("HTTP/1.1 200"));
    assert_eq!(rig.got()[seen..], ["/first", "/upload"]);
    assert_eq!(rig.bodies().pop(), Some(digest(&pattern(length))));
    rig.wait_for_peace();
    [held, timeouts(&rig.front.topology) - before]
}

#[test]
fn an_upload_behind_a_head_that_waits_comes_whole() {
    if !front::ready() {
        return;
    }
    for door in Door::GUARDS {
        let rig = Queued::new(door, &lasting());
        for is_new in [true, false] {
            // what is kept of it costs no timeout
            assert_eq!(timeouts_of(&rig, is_new, KEPT), [0; 2], "{door:?}, new {is_new}");
            let [held, _] = timeouts_of(&rig, is_new, LONG);
            // a client that was offered no more than what is kept stops there
            assert!(held == 0 || !is_new || door != Door::Own, "{door:?}: {held}");
        }
    }
}
