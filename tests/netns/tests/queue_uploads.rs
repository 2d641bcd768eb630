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
/// The shortest such timeout, but for a tick of the kernel's.
const TIMEOUT: Duration = Duration::from_millis(190);
/// Uploads of a kind that are made at most.
const TRIES: usize = 3;

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

/// How often at most a client waits in vain in such a time, as long as nothing is acknowledged that it has sent: each time twice as long.
fn most_in(time: Duration) -> u64 {
    (1..).take_while(|times| TIMEOUT * (2u32.pow(*times) - 1) <= time).count() as u64
}

/// Timeouts that an upload cost whose head waited, and how long it did.
#[derive(Debug)]
struct Cost {
    held: u64,
    in_all: u64,
    /// From its first byte until the server had the head.
    waited: Duration,
}

/// Uploads so much behind a head that waits for longer than a timeout.
fn cost_of(rig: &Queued, is_new: bool, length: usize) -> Cost {
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
    let sent = Instant::now();
    let sending = upload(&stream, "/upload", length);
    rig.wait_for(1);
    let begin = Instant::now();
    wait_until(SOON, || begin.elapsed() > HELD).unwrap();
    let held = timeouts(&rig.front.topology) - before;
    rig.let_go(2);
    rig.got_all(seen + 2);
    let waited = sent.elapsed();
    assert_eq!(status(first), 200);
    sending.join().unwrap();
    assert!(answer_on(&mut stream).starts_with("HTTP/1.1 200"));
    assert_eq!(rig.got()[seen..], ["/first", "/upload"]);
    assert_eq!(rig.bodies().pop(), Some(digest(&pattern(length))));
    rig.wait_for_peace();
    Cost { held, in_all: timeouts(&rig.front.topology) - before, waited }
}

/// Of some such uploads the first one whose cost `is_right`, else the last: each costs what the door makes it cost. While a virtual CPU
/// stands still a client waits in vain, too.
fn some_cost_of(rig: &Queued, is_new: bool, length: usize, is_right: impl Fn(&Cost) -> bool) -> Cost {
    let mut cost = cost_of(rig, is_new, length);
    for _ in 1..TRIES {
        if is_right(&cost) {
            break;
        }
        cost = cost_of(rig, is_new, length);
    }
    cost
}

fn is_nothing(cost: &Cost) -> bool {
    (cost.held, cost.in_all) == (0, 0)
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
            let cost = some_cost_of(&rig, is_new, KEPT, is_nothing);
            assert!(is_nothing(&cost), "{door:?}, new {is_new}: {cost:?}");
            if is_new && door == Door::Own {
                // it was offered no more than what is kept, stops there, and goes on once the server offers more
                let cost = some_cost_of(&rig, is_new, LONG, is_nothing);
                assert!(is_nothing(&cost), "{cost:?}");
                continue;
            }
            // It was offered more, by the kernel or by the server before. What is not kept is dropped, and the last byte that is kept stays
            // unacknowledged, so that its client goes on trying, more and more seldom. Once the server has the request, that byte is
            // acknowledged. It may lie within a segment of the client's, which then waits for its next timeout all the same. So may the
            // one that the client probed with (tail loss probe), which it sends again behind all others, or by a timeout of its own.
            let is_bounded = |cost: &Cost| {
                let most = most_in(cost.waited);
                cost.held <= most && cost.in_all <= most + 2
            };
            let cost = some_cost_of(&rig, is_new, LONG, is_bounded);
            assert!(is_bounded(&cost), "{door:?}, new {is_new}: {cost:?}, not {}", most_in(cost.waited));
        }
    }
}
