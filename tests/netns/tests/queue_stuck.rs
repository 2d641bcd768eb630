// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A server that accepts nothing more, or is not there: what is next cannot reach it. Who has waited for too long is told so all the same,
//! who has a connection goes on, and nobody is left in silence by a link that loses packets meanwhile.

use std::io::{ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::AsRawFd;
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

use fief_testkit::{Family, Topology, wait_until};
use fief_tests_netns::front::{Door, Front, plain, ready};
use fief_tests_netns::queued::{OF_WAITING, POLICY, answer_on, ask_on, entries, lasting, low, read_head, status};
use fief_tests_netns::{SOON, connect_from, one_installation};

/// So many connections the kernel keeps for a server that accepts none, with a backlog of 6; as many places.
const KEPT: u8 = 7;

/// Where the kernel answers it takes no connection while the server accepts none.
#[test]
fn who_waits_too_long_is_told_beside_one_that_cannot_go() {
    if !ready() {
        return;
    }
    let _one = one_installation();
    let queue = format!("in-service = {KEPT}, length = 200, wait = \"500ms\", stale = \"1s\"");
    let policy = POLICY.replace("in-service = 1, length = 200, wait = \"1m\"", &queue).replace("[::]:80", "0.0.0.0:80");
    let front = Front::new(Door::Own, &policy);
    let let_it = front.server_with_queue(i32::from(KEPT) - 1);
    let ask = |n: u8| front.ask_from(low(n), plain(Family::V4), "/low").unwrap();
    let kept: Vec<_> = (1..=KEPT).map(ask).collect();
    // they begin to wait while the places are taken, and half of them come once these have run out, to one that cannot go; the next one
    // always has time left: each comes soon after the one before
    let asked: Vec<_> = (1..=40)
        .map(|n| {
            std::thread::sleep(Duration::from_millis(50));
            ask(KEPT + n)
        })
        .collect();
    let queue = front.queue();
    assert!(queue.refused <= 4, "{} are not told, {} wait", queue.refused, queue.waiting);
    assert!(queue.class[1].refused_wait >= 20, "{:?}", queue.class[1]);
    assert!(asked.into_iter().take(20).all(|stream| status(stream) == 503));
    let_it.send(()).unwrap();
    assert!(kept.into_iter().all(|stream| status(stream) == 200));
}

/// The queue that they wait in is removed then, and its number is that of a later one.
#[test]
fn who_waits_at_a_server_that_accepts_none_is_told_when_the_policy_changes() {
    if !ready() {
        return;
    }
    let _one = one_installation();
    let queue = format!("in-service = {KEPT}, length = 200, wait = \"1m\", stale = \"30s\"");
    let policy = POLICY.replace("in-service = 1, length = 200, wait = \"1m\"", &queue).replace("[::]:80", "0.0.0.0:80");
    let front = Front::new(Door::Own, &policy);
    let let_it = front.server_with_queue(i32::from(KEPT) - 1);
    let ask = |n: u8| front.ask_from(low(n), plain(Family::V4), "/low").unwrap();
    let kept: Vec<_> = (1..=KEPT).map(ask).collect();
    let asked: Vec<_> = (1..=40).map(|n| ask(KEPT + n)).collect();
    wait_until(SOON, || front.queue().waiting == 40).unwrap_or_else(|_| panic!("{:?}", front.queue()));
    let notes = front.apply(&policy.replace("length = 200", "length = 201")).unwrap().notes;
    // a carrier may have one in hand as they are counted
    let told = |note: &String| {
        ["39", "40"].iter().any(|n| note.starts_with(&format!("{n} requests that waited were refused")))
    };
    assert!(notes.iter().any(told), "{notes:?}");
    let left = entries(&front, &OF_WAITING);
    assert!(left.iter().all(|(_, count)| *count == 0), "{left:?}");
    assert!(asked.into_iter().all(|stream| status(stream) == 503));
    front.apply(&policy.replace("length = 200", "length = 202")).unwrap();
    let_it.send(()).unwrap();
    assert!(kept.into_iter().all(|stream| status(stream) == 200));
    assert_eq!(status(ask(100)), 200);
}

/// Answers whatever comes.
fn answer_all(mut stream: TcpStream) {
    while let Some(head) = read_head(&mut stream) {
        let answered = stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n");
        if answered.is_err() || head.contains("Connection: close") {
            return;
        }
    }
}

fn accept_all(listener: &TcpListener) {
    for stream in listener.incoming().flatten() {
        std::thread::spawn(move || answer_all(stream));
    }
}

/// What the server does not accept holds nobody up whose connection it has.
#[test]
fn who_has_a_connection_passes_one_that_is_not_accepted() {
    if !ready() {
        return;
    }
    let _one = one_installation();
    let queue = format!("in-service = {KEPT}, length = 200, wait = \"1m\", stale = \"1s\"");
    let policy = POLICY.replace("in-service = 1, length = 200, wait = \"1m\"", &queue).replace("[::]:80", "0.0.0.0:80");
    let front = Front::new(Door::Own, &policy);
    let listener = front.topology.server.run(|| TcpListener::bind("0.0.0.0:80").unwrap()).unwrap();
    // SAFETY: no pointers are passed. A second listen only changes the length of the queue.
    assert_eq!(unsafe { libc::listen(listener.as_raw_fd(), i32::from(KEPT) - 1) }, 0);
    let (let_it, go) = channel::<()>();
    std::thread::spawn(move || {
        let (stream, _) = listener.accept().unwrap();
        std::thread::spawn(move || answer_all(stream));
        if go.recv().is_ok() {
            accept_all(&listener);
        }
    });
    let mut has = connect_from(&front.topology.clients, (low(100), 0).into(), plain(Family::V4)).unwrap();
    ask_on(&mut has, "/before");
    answer_on(&mut has);
    let ask = |n: u8| front.ask_from(low(n), plain(Family::V4), "/low").unwrap();
    // one more than the kernel keeps for the server, and than there are places
    let asked: Vec<_> = (1..=KEPT + 1).map(ask).collect();
    wait_until(SOON, || front.queue().waiting == 1).unwrap_or_else(|_| panic!("{:?}", front.queue()));
    ask_on(&mut has, "/later");
    assert!(answer_on(&mut has).starts_with("HTTP/1.1 200 "));
    // now and then it is on its way to the server
    wait_until(SOON, || front.queue().waiting == 1).unwrap();
    let_it.send(()).unwrap();
    assert!(asked.into_iter().all(|stream| status(stream) == 200));
}

fn restarting() -> Front {
    Front::new(Door::Own, &lasting().replace("[::]:80\"", "[::]:80\"\nrestart = \"20s\""))
}

/// The server ends while it has one request, and two wait. Its place is free then, and the next one has found nobody.
fn two_wait_as_it_ends(front: &Front, listener: TcpListener) -> (TcpStream, [TcpStream; 2]) {
    let ask = |n: u8| front.ask_from(low(n), plain(Family::V4), "/low").unwrap();
    let first = ask(1);
    let (served, _) = listener.accept().unwrap();
    let waits = [ask(2), ask(3)];
    wait_until(SOON, || front.queue().waiting == 2).unwrap_or_else(|_| panic!("{:?}", front.queue()));
    drop((listener, served));
    wait_until(SOON, || front.queue().stuck_ns > 0).unwrap_or_else(|_| panic!("{:?}", front.queue()));
    (first, waits)
}

/// With `restart` those that wait have the server that starts.
#[test]
fn who_waits_while_the_server_is_started_anew_is_served_by_the_next_one() {
    if !ready() {
        return;
    }
    let _one = one_installation();
    let front = restarting();
    let listen = || front.topology.server.run(|| TcpListener::bind("[::]:80").unwrap()).unwrap();
    let (_first, waits) = two_wait_as_it_ends(&front, listen());
    assert_eq!(front.queue().class[1].released, 0);
    let listener = listen();
    std::thread::spawn(move || accept_all(&listener));
    assert_eq!(waits.map(status), [200; 2]);
}

/// Nor do they hold up, until it is there, who has a connection of the former one.
#[test]
fn who_has_a_connection_passes_one_that_finds_no_server() {
    if !ready() {
        return;
    }
    let _one = one_installation();
    let front = restarting();
    let listen = || front.topology.server.run(|| TcpListener::bind("[::]:80").unwrap()).unwrap();
    let listener = listen();
    let mut has = connect_from(&front.topology.clients, (low(100), 0).into(), plain(Family::V4)).unwrap();
    ask_on(&mut has, "/before");
    let (stream, _) = listener.accept().unwrap();
    std::thread::spawn(move || answer_all(stream));
    answer_on(&mut has);
    let (_first, waits) = two_wait_as_it_ends(&front, listener);
    ask_on(&mut has, "/later");
    assert!(answer_on(&mut has).starts_with("HTTP/1.1 200 "));
    // now and then one is on its way to the server
    wait_until(SOON, || front.queue().waiting == 2).unwrap_or_else(|_| panic!("{:?}", front.queue()));
    let listener = listen();
    std::thread::spawn(move || accept_all(&listener));
    assert_eq!(waits.map(status), [200; 2]);
}

/// The server closes its socket, and the link loses what says so: TCP says it again, as long as the request that waited does not end it.
#[test]
fn who_waits_at_a_closed_socket_hears_of_its_end_however_late() {
    if !ready() {
        return;
    }
    let _one = one_installation();
    let front = Front::new(Door::Own, &lasting());
    let listener = front.topology.server.run(|| TcpListener::bind("[::]:80").unwrap()).unwrap();
    let mut has = connect_from(&front.topology.clients, (low(100), 0).into(), plain(Family::V4)).unwrap();
    ask_on(&mut has, "/before");
    let (mut closed, _) = listener.accept().unwrap();
    read_head(&mut closed).unwrap();
    closed.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n").unwrap();
    answer_on(&mut has);
    let _first = front.ask_from(low(1), plain(Family::V4), "/low").unwrap();
    let (mut served, _) = listener.accept().unwrap();
    read_head(&mut served).unwrap();
    ask_on(&mut has, "/later");
    wait_until(SOON, || front.queue().waiting == 1).unwrap_or_else(|_| panic!("{:?}", front.queue()));
    let tc = |does: &str, how: &str| {
        let words = format!("qdisc {does} dev {} root {how}", Topology::SERVER);
        fief_testkit::run(front.topology.server.command("tc").args(words.split_whitespace())).unwrap();
    };
    // a bucket that has no room for any packet
    tc("add", "tbf rate 1kbit burst 1 limit 1");
    drop(closed);
    drop(served); // its place is the next one's
    wait_until(SOON, || (front.queue().waiting, front.queue().busy) == (0, 0))
        .unwrap_or_else(|_| panic!("{:?}", front.queue()));
    tc("del", "");
    has.set_read_timeout(Some(SOON)).unwrap();
    match has.read(&mut [0; 100]) {
        Ok(0) => {}
        Err(error) if error.kind() == ErrorKind::ConnectionReset => {}
        other => panic!("{other:?}"),
    }
}

const MANY: u32 = 600;

/// Nobody listens any more: so many resets at once no link needs to have room for.
#[test]
fn those_who_wait_for_a_server_that_is_gone_are_reset_one_after_the_other() {
    if !ready() {
        return;
    }
    let _one = one_installation();
    let policy = lasting().replace("length = 200", "length = 2000");
    assert_ne!(policy, lasting());
    let topology = Topology::new().unwrap();
    // a reset is sent once: while the CPU of the clients' NAPI thread stands still, its ring, which takes 256 packets, would lose some
    let no_gro = ["-K", Topology::CLIENTS, "gro", "off"];
    fief_testkit::run(topology.clients.command("ethtool").args(no_gro)).unwrap();
    let front = Front::at(Door::Own, &policy, topology);
    let listener = front.topology.server.run(|| TcpListener::bind("[::]:80").unwrap()).unwrap();
    let ask = |n: u32| front.ask_from(low(1 + (n % 200) as u8), plain(Family::V4), "/low").unwrap();
    let _first = ask(0);
    let (mut served, _) = listener.accept().unwrap();
    read_head(&mut served).unwrap();
    let waits: Vec<_> = (0..MANY).map(ask).collect();
    wait_until(SOON, || front.queue().waiting == MANY).unwrap_or_else(|_| panic!("{:?}", front.queue()));
    let since = Instant::now();
    drop((listener, served));
    let released = front.queue().class[1].released;
    // as many as fit into what a virtual link keeps, and so many more in each ms
    let most = 128 + 8 * (since.elapsed().as_millis() as u64 + 2);
    assert!(released <= most, "{released} of at most {most} are told");
    for mut stream in waits {
        stream.set_read_timeout(Some(SOON)).unwrap();
        let error = stream.read(&mut [0; 100]).expect_err("no server");
        assert_eq!(error.kind(), ErrorKind::ConnectionReset);
    }
}
