// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Over a link that loses, doubles and reorders packets in both directions each request that waits in the queue is answered once,
//! with its own answer.
//!
//! `FIEF_TEST_REQUESTS=100000` asks for more than the usual number.

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::atomic::{AtomicUsize, Ordering};

use fief_testkit::{Client, Dice, Family, Impairment, Seen, Topology, digest, pattern, wait_until};
use fief_tests_netns::front::{self, Door, Front, plain};
use fief_tests_netns::queued::{POLICY, answer_on, length_of};
use fief_tests_netns::{SOON, connect_from, requests};

const IMPAIRMENT: Impairment = Impairment { seed: 17, lost: 10, doubled: 30, reordered: 60 };
const CLIENTS: u8 = 48;
/// Requests in one piece.
const AT_ONCE: usize = 3;

/// What one client asks for, and the body of the answer to it.
struct Asked {
    line: String,
    text: Vec<u8>,
    answer: Vec<u8>,
}

/// A request that no other one is equal to: a short one, one with a body, or one for a long answer.
fn make(number: usize, dice: &mut Dice) -> Asked {
    let line = match dice.roll(4) {
        0 => format!("POST /upload/n{number} HTTP/1.1"),
        1 => format!("GET /n{number}/{} HTTP/1.1", 1 + dice.roll(40_000)),
        _ => format!("GET /short/n{number} HTTP/1.1"),
    };
    let body = if line.starts_with("POST") { pattern(1 + dice.roll(6000)) } else { Vec::new() };
    let header = format!("{line}\r\nHost: server\r\nContent-Length: {}\r\n\r\n", body.len());
    let text = [header.as_bytes(), &body].concat();
    let length = line.split(' ').nth(1).and_then(|path| path.rsplit('/').next()?.parse().ok());
    let seen = Seen { line: line.clone(), header: header.len(), body: body.len(), digest: digest(&text) };
    let answer = length.map_or_else(|| format!("{seen:?}").into_bytes(), pattern);
    Asked { line, text, answer }
}

/// Reads one answer, which must be that to `asked`.
fn check(stream: &mut TcpStream, asked: &Asked) {
    let head = answer_on(stream);
    assert!(head.starts_with("HTTP/1.1 200 "), "{}: {head}", asked.line);
    let mut body = vec![0; length_of(&head)];
    stream.read_exact(&mut body).unwrap_or_else(|e| panic!("{}: {e}", asked.line));
    assert!(body == asked.answer, "{}: another answer", asked.line);
}

/// A client asks until so many requests have been made by all; what it asked for. A third of the clients has a connection for each
/// request, a third asks on one, and the rest sends several at once there.
fn ask(front: &Front, n: u8, next: &AtomicUsize, last: usize) -> Vec<String> {
    let family = if n.is_multiple_of(2) { Family::V4 } else { Family::V6 };
    let class = if n.is_multiple_of(5) { Client::High } else { Client::Low };
    let connect = || {
        let from = (class.address(family, n + 1), 0).into();
        let mut made = connect_from(&front.topology.clients, from, plain(family));
        // a connection whose packets are lost too often is tried again
        wait_until(SOON, || {
            if made.is_err() {
                made = connect_from(&front.topology.clients, from, plain(family));
            }
            made.is_ok()
        })
        .unwrap();
        made.unwrap()
    };
    let mut dice = Dice::new(IMPAIRMENT.seed + u64::from(n));
    let (mut lines, mut stream) = (Vec::new(), connect());
    let is_persistent = !n.is_multiple_of(3);
    let piece = if n % 3 == 2 { AT_ONCE } else { 1 };
    loop {
        let begin = next.fetch_add(piece, Ordering::Relaxed);
        if begin >= last {
            return lines;
        }
        let asked: Vec<_> = (begin..begin + piece).map(|number| make(number, &mut dice)).collect();
        let text: Vec<u8> = asked.iter().flat_map(|one| one.text.clone()).collect();
        stream.write_all(&text).unwrap();
        asked.iter().for_each(|one| check(&mut stream, one));
        lines.extend(asked.into_iter().map(|one| one.line));
        if !is_persistent {
            stream = connect();
        }
    }
}

fn no_request_is_lost_or_doubled_on_a_link_that_loses_doubles_and_reorders_packets(door: Door) {
    if !front::ready() {
        return;
    }
    let front = Front::at(door, POLICY, Topology::impaired(IMPAIRMENT).unwrap());
    let server = front.plain_server();
    let next = AtomicUsize::new(0);
    let last = requests(2000) / Door::GUARDS.len();
    let mut asked: Vec<String> = std::thread::scope(|scope| {
        let (front, next) = (&front, &next);
        let clients: Vec<_> = (0..CLIENTS).map(|n| scope.spawn(move || ask(front, n, next, last))).collect();
        clients.into_iter().flat_map(|client| client.join().expect("whole answers")).collect()
    });
    let mut got: Vec<String> = server.seen().into_iter().map(|seen| seen.line).collect();
    let mut times = BTreeMap::new();
    got.iter().for_each(|line| *times.entry(line).or_insert(0) += 1);
    times.retain(|_, times| *times != 1);
    assert!(times.is_empty(), "{door:?}: the server got these so often: {times:?}");
    asked.sort();
    got.sort();
    assert!(asked == got, "{door:?}: {} asked, {} got", asked.len(), got.len());
    let left = || {
        let queue = front.queue();
        (queue.busy, queue.waiting, queue.kept)
    };
    wait_until(SOON, || left() == (0, 0, 0)).unwrap_or_else(|_| panic!("{door:?}: {:?}", left()));
    let sum = |of: fn(&fief_bpf::abi::fief_queue_class) -> u64| front.queue().class.iter().map(of).sum::<u64>();
    let waited = sum(|class| class.released);
    assert!(waited > last as u64 / 10, "{door:?}: {waited} waited");
    let done = front.topology.impairer.as_ref().unwrap().so_far();
    assert!(done.lost > 5 && done.doubled > 5 && done.reordered > 5, "{done:?}");
}

#[test]
fn no_request_is_lost_or_doubled_on_a_link_that_loses_doubles_and_reorders_packets_where_fief_answers() {
    no_request_is_lost_or_doubled_on_a_link_that_loses_doubles_and_reorders_packets(Door::Own);
}

#[test]
fn no_request_is_lost_or_doubled_on_a_link_that_loses_doubles_and_reorders_packets_where_the_kernel_answers() {
    no_request_is_lost_or_doubled_on_a_link_that_loses_doubles_and_reorders_packets(Door::Kernel);
}
