// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A request whose body comes behind its head keeps its place once it is whole, and takes another one if it has lost that.

use std::io::{Read, Write};
use std::net::{IpAddr, TcpListener, TcpStream};
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

use fief_testkit::segment::{ACK, PSH};
use fief_testkit::{Family, RawClients, wait_until};
use fief_tests_netns::front::{Door, Front, plain, ready};
use fief_tests_netns::queued::{POLICY, Queued, answer_on, ask_on, lasting, low, read_head, status};
use fief_tests_netns::rig::Rig;
use fief_tests_netns::{SOON, connect_from, one_installation};

/// Longer than a place lasts whose client owes bytes: three ticks of 134 ms.
const PAUSE: Duration = Duration::from_secs(1);

/// Where TCP's header has it.
const CHECKSUM: usize = 16;

/// Paths of the requests that the server has read to their ends, and how many of them it may answer.
#[derive(Debug, Default)]
struct Counter {
    got: Vec<String>,
    let_go: usize,
}

struct Uploads {
    front: Front,
    counter: Arc<(Mutex<Counter>, Condvar)>,
}

/// How a body is written.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Body {
    Counted,
    Chunked,
}

const BODIES: [Body; 2] = [Body::Counted, Body::Chunked];

impl Body {
    fn head(self, path: &str) -> String {
        let length = match self {
            Self::Counted => "Content-Length: 5",
            Self::Chunked => "Transfer-Encoding: chunked",
        };
        format!("POST {path} HTTP/1.1\r\nHost: server\r\n{length}\r\n\r\n")
    }

    /// All but its last bytes, and these.
    fn parts(self) -> [&'static str; 2] {
        match self {
            Self::Counted => ["hell", "o"],
            Self::Chunked => ["5\r\nhello\r\n", "0\r\n\r\n"],
        }
    }
}

impl Uploads {
    fn new(door: Door) -> Self {
        let front = Front::new(door, &lasting());
        let listener = front.topology.server.run(|| TcpListener::bind("[::]:80").unwrap()).unwrap();
        let counter: Arc<(Mutex<Counter>, Condvar)> = Arc::default();
        let own = Arc::clone(&counter);
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let own = Arc::clone(&own);
                std::thread::spawn(move || serve(stream, &own));
            }
        });
        Self { front, counter }
    }

    fn let_go(&self) {
        self.counter.0.lock().unwrap().let_go += 1;
        self.counter.1.notify_all();
    }

    fn got(&self) -> Vec<String> {
        self.counter.0.lock().unwrap().got.clone()
    }

    #[track_caller]
    fn got_all(&self, paths: &[&str]) {
        let all = wait_until(SOON, || self.got() == paths);
        assert!(all.is_ok(), "{:?} of {paths:?}, {} wait", self.got(), self.front.queue().waiting);
    }

    #[track_caller]
    fn wait_for(&self, waiting: u32, busy: u32) {
        let come = wait_until(SOON, || (self.front.queue().waiting, self.front.queue().busy) == (waiting, busy));
        assert!(
            come.is_ok(),
            "{} wait, {} places, {:?}",
            self.front.queue().waiting,
            self.front.queue().busy,
            self.got()
        );
    }

    fn connect(&self, from: IpAddr) -> TcpStream {
        let stream = connect_from(&self.front.topology.clients, (from, 0).into(), plain(Family::V4)).unwrap();
        stream.set_nodelay(true).unwrap();
        stream.set_read_timeout(Some(SOON)).unwrap();
        stream
    }
}

/// Answers each request once it is whole and let go.
fn serve(mut stream: TcpStream, counter: &(Mutex<Counter>, Condvar)) {
    while let Some(head) = read_head(&mut stream) {
        let path = head.split(' ').nth(1).unwrap_or_default().to_owned();
        let mut body = Vec::new();
        while !is_whole(&head, &body) {
            let mut byte = [0];
            if stream.read(&mut byte).unwrap_or(0) == 0 {
                return;
            }
            body.extend(byte);
        }
        let mut counted = counter.0.lock().unwrap();
        counted.got.push(path);
        let own = counted.got.len();
        while counted.let_go < own {
            counted = counter.1.wait(counted).unwrap();
        }
        drop(counted);
        if stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n").is_err() {
            return;
        }
    }
}

fn is_whole(head: &str, body: &[u8]) -> bool {
    if head.contains("chunked") {
        return body.ends_with(b"0\r\n\r\n");
    }
    body.len() == if head.contains("Content-Length: 5") { 5 } else { 0 }
}

/// The body of a request comes a moment after its head: the server gets no other request while it works on this one.
#[test]
fn a_whole_request_keeps_its_place() {
    if !ready() {
        return;
    }
    let _one = one_installation();
    for (door, body) in Door::GUARDS.into_iter().flat_map(|door| BODIES.map(|body| (door, body))) {
        let rig = Uploads::new(door);
        let mut upload = rig.connect(low(1));
        upload.write_all(body.head("/upload").as_bytes()).unwrap();
        rig.wait_for(0, 1);
        for part in body.parts() {
            upload.write_all(part.as_bytes()).unwrap();
        }
        rig.got_all(&["/upload"]);
        std::thread::sleep(PAUSE);
        let mut other = rig.connect(low(2));
        ask_on(&mut other, "/other");
        rig.wait_for(1, 1);
        rig.let_go();
        assert!(read_head(&mut upload).is_some(), "{door:?}, {body:?}");
        rig.got_all(&["/upload", "/other"]);
        rig.let_go();
        assert!(read_head(&mut other).is_some(), "{door:?}, {body:?}");
        rig.wait_for(0, 0);
    }
}

/// The client keeps the end of its body back until its place has run out: of its first request, and of a later one. The server may wait
/// for it, so it goes there at once, and nobody else does until both are done.
#[test]
fn a_body_that_comes_late_has_a_place_again() {
    if !ready() {
        return;
    }
    let _one = one_installation();
    for (door, body) in Door::GUARDS.into_iter().flat_map(|door| BODIES.map(|body| (door, body))) {
        let rig = Uploads::new(door);
        let mut upload = rig.connect(low(1));
        let mut got = Vec::new();
        for path in ["/first", "/later"] {
            upload.write_all(format!("{}{}", body.head(path), body.parts()[0]).as_bytes()).unwrap();
            rig.wait_for(0, 1);
            std::thread::sleep(PAUSE);
            let mut other = rig.connect(low(2));
            ask_on(&mut other, "/other");
            got.push("/other");
            rig.got_all(&got);
            upload.write_all(body.parts()[1].as_bytes()).unwrap();
            got.push(path);
            rig.got_all(&got);
            rig.wait_for(0, 2);
            let mut third = rig.connect(low(3));
            ask_on(&mut third, "/third");
            rig.wait_for(1, 2);
            rig.let_go();
            assert!(read_head(&mut other).is_some(), "{door:?}, {body:?}, {path}");
            rig.wait_for(1, 1);
            rig.let_go();
            assert!(read_head(&mut upload).is_some(), "{door:?}, {body:?}, {path}");
            got.push("/third");
            rig.got_all(&got);
            rig.let_go();
            assert!(read_head(&mut third).is_some(), "{door:?}, {body:?}, {path}");
            rig.wait_for(0, 0);
        }
    }
}

/// The server says 100 Continue before the body comes, which is no answer yet.
#[test]
fn a_body_that_comes_late_behind_an_interim_answer_has_a_place_again() {
    if !ready() {
        return;
    }
    let _one = one_installation();
    for door in Door::GUARDS {
        let rig = Queued::new(door, &lasting());
        let mut upload = rig.connect(low(1));
        for n in [1, 3] {
            let head = "POST /upload HTTP/1.1\r\nHost: server\r\nContent-Length: 5\r\nExpect: 100-continue\r\n\r\n";
            upload.write_all(head.as_bytes()).unwrap();
            assert!(answer_on(&mut upload).starts_with("HTTP/1.1 100"), "{door:?}");
            std::thread::sleep(PAUSE);
            upload.write_all(b"hello").unwrap();
            wait_until(SOON, || rig.bodies().len() == usize::midpoint(n, 1)).unwrap();
            let other = rig.ask(low(2), "/other");
            wait_until(SOON, || rig.queue().waiting == 1 || rig.got().len() > n).unwrap();
            assert_eq!(rig.got().len(), n, "{door:?}");
            rig.let_go(2);
            assert!(answer_on(&mut upload).starts_with("HTTP/1.1 200"), "{door:?}");
            assert_eq!(status(other), 200);
        }
        rig.wait_for_peace();
    }
}

/// Ends that the server does not get: behind a gap, and with a wrong checksum. Neither lets a client hold its place.
#[test]
fn an_end_that_tcp_does_not_take_holds_no_place() {
    if !ready() {
        return;
    }
    let _one = one_installation();
    for door in Door::GUARDS {
        let rig = Rig::in_order(door, &POLICY.replace("wait = \"1m\"", "wait = \"1m\", stale = \"5s\""));
        let head = Body::Counted.head("/mute/10");
        let at = |n: usize| (head.len() + n) as u32;
        for n in 0..2 {
            let upload = rig.open(Family::V4);
            rig.clients.send(&upload.segment(PSH | ACK, 0, head.as_bytes())).unwrap();
            wait_until(SOON, || rig.front.queue().class[1].entered == 2 * n + 1).unwrap();
            let end = upload.segment(PSH | ACK, at(3), b"lo");
            let mut bytes = end.tcp();
            if n == 1 {
                rig.clients.send(&upload.segment(ACK, at(0), b"hel")).unwrap();
                bytes[CHECKSUM] ^= 0xff;
            }
            rig.clients.send_packet(&[], &end.packet_of(&bytes)).unwrap();
            std::thread::sleep(PAUSE);
            let other = rig.open_from((RawClients::address(Family::V4, 6), 4000 + n as u16).into());
            rig.clients.send(&other.segment(PSH | ACK, 0, b"GET /10 HTTP/1.1\r\nHost: server\r\n\r\n")).unwrap();
            let entered = wait_until(SOON, || rig.front.queue().class[1].entered == 2 * n + 2);
            assert!(entered.is_ok(), "{door:?}, {n}: {} wait", rig.front.queue().waiting);
            wait_until(SOON, || rig.front.queue().busy == 0).unwrap();
        }
    }
}

/// TCP sends no part of a segment at once: with the end of its body the client's window is below one.
#[test]
fn an_end_of_a_client_that_takes_no_answer_holds_no_place() {
    if !ready() {
        return;
    }
    let _one = one_installation();
    // in units of 128 bytes; segments have 1448
    for (door, window, holds) in Door::GUARDS.into_iter().flat_map(|door| [(door, 24, true), (door, 8, false)]) {
        let rig = Rig::in_order(door, &lasting());
        let head = Body::Counted.head("/mute/10");
        let upload = rig.open(Family::V4);
        rig.clients.send(&upload.segment(PSH | ACK, 0, head.as_bytes())).unwrap();
        wait_until(SOON, || rig.front.queue().class[1].entered == 1).unwrap();
        let mut end = upload.segment(PSH | ACK, head.len() as u32, b"hello");
        end.window = window;
        rig.clients.send(&end).unwrap();
        wait_until(SOON, || rig.server.seen().len() == 1).unwrap_or_else(|_| panic!("{door:?}, {window}"));
        let other = rig.open(Family::V4);
        rig.clients.send(&other.segment(PSH | ACK, 0, NEXT)).unwrap();
        if holds {
            wait_until(SOON, || rig.front.queue().waiting == 1).unwrap_or_else(|_| panic!("{door:?}, {window}"));
            std::thread::sleep(PAUSE);
            assert_eq!(rig.server.seen().len(), 1, "{door:?}, {window}");
        } else {
            // long before it would run out by itself
            wait_until(SOON, || rig.server.seen().len() == 2).unwrap_or_else(|_| panic!("{door:?}, {window}"));
        }
    }
}

const NEXT: &[u8] = b"GET /10 HTTP/1.1\r\nHost: server\r\n\r\n";

/// TCP hands a request on to nobody as long as a byte before it is missing.
#[test]
fn a_request_behind_a_gap_holds_no_place() {
    if !ready() {
        return;
    }
    let _one = one_installation();
    for door in Door::GUARDS {
        let rig = Rig::in_order(door, &POLICY.replace("wait = \"1m\"", "wait = \"1m\", stale = \"5s\""));
        let entered = |n: u64| {
            let come = wait_until(SOON, || rig.front.queue().class[1].entered == n);
            assert!(come.is_ok(), "{door:?}, {n}: {} wait", rig.front.queue().waiting);
        };
        let head = Body::Counted.head("/mute/10");
        let upload = rig.open(Family::V4);
        rig.clients.send(&upload.segment(PSH | ACK, 0, head.as_bytes())).unwrap();
        entered(1);
        std::thread::sleep(PAUSE);
        rig.clients.send(&upload.segment(PSH | ACK, (head.len() + 5) as u32, NEXT)).unwrap();
        entered(2);
        std::thread::sleep(PAUSE);
        let other = rig.open(Family::V4);
        rig.clients.send(&other.segment(PSH | ACK, 0, NEXT)).unwrap();
        entered(3);
        wait_until(SOON, || rig.front.queue().busy == 0).unwrap();
    }
}

/// Requests that have places, by class.
fn in_service(front: &Front) -> Vec<u32> {
    let view = front.topology.server.run(|| front.installation().fief().front().unwrap()).unwrap();
    view.queues.first().expect("a queue").classes.iter().map(|class| class.in_service).collect()
}

/// It is not of the class of the request that waits behind it.
#[test]
fn the_end_of_a_body_has_its_place_in_the_class_of_its_request() {
    if !ready() {
        return;
    }
    let _one = one_installation();
    let rule =
        |path, container| format!("[[listener.plain.request]]\npath = \"/{path}/*\"\ncontainer = \"{container}\"\n");
    let two = lasting().replace("in-service = 1", "in-service = 2");
    let policy = format!("{two}{}{}", rule("mute/high", "high"), rule("robots", "robots"));
    let [mute, robots] = ["mute", "robots"].map(|path| format!("GET /{path}/10 HTTP/1.1\r\nHost: server\r\n\r\n"));
    for door in Door::GUARDS {
        let rig = Rig::in_order(door, &policy);
        let [first, second, upload] = [0; 3].map(|_| rig.open(Family::V4));
        rig.clients.send(&first.segment(PSH | ACK, 0, mute.as_bytes())).unwrap();
        wait_until(SOON, || rig.server.seen().len() == 1).unwrap();
        let head = Body::Counted.head("/mute/high/10");
        // within the time for which a place lasts whose client owes bytes; the second gets that place, and the third waits on
        rig.clients.send(&upload.segment(PSH | ACK, 0, head.as_bytes())).unwrap();
        wait_until(SOON, || rig.front.queue().class[0].entered == 1).unwrap();
        rig.clients.send(&second.segment(PSH | ACK, 0, mute.as_bytes())).unwrap();
        rig.clients.send(&upload.segment(PSH | ACK, (head.len() + 5) as u32, robots.as_bytes())).unwrap();
        wait_until(SOON, || rig.server.seen().len() == 2 && rig.front.queue().waiting == 1)
            .unwrap_or_else(|_| panic!("{door:?}: {:?}, {:?}", rig.server.seen(), rig.front.queue()));
        assert_eq!(in_service(&rig.front), [0, 2, 0], "{door:?}");
        rig.clients.send(&upload.segment(PSH | ACK, head.len() as u32, b"hello")).unwrap();
        wait_until(SOON, || in_service(&rig.front).iter().sum::<u32>() == 3).unwrap_or_else(|_| panic!("{door:?}"));
        assert_eq!(in_service(&rig.front), [1, 2, 0], "{door:?}");
    }
}

/// The next request of its connection waits meanwhile for a place that others have.
#[test]
fn the_end_of_a_body_comes_while_the_next_request_waits() {
    if !ready() {
        return;
    }
    let _one = one_installation();
    for door in Door::GUARDS {
        let rig = Rig::in_order(door, &lasting());
        let head = Body::Counted.head("/upload/10");
        let mut upload = rig.open(Family::V4);
        rig.clients.send(&upload.segment(PSH | ACK, 0, head.as_bytes())).unwrap();
        wait_until(SOON, || rig.front.queue().class[1].entered == 1).unwrap();
        std::thread::sleep(PAUSE);
        let place = rig.open(Family::V4);
        rig.clients.send(&place.segment(PSH | ACK, 0, b"GET /mute/10 HTTP/1.1\r\nHost: server\r\n\r\n")).unwrap();
        wait_until(SOON, || rig.server.seen().len() == 1).unwrap();
        rig.clients.send(&upload.segment(PSH | ACK, (head.len() + 5) as u32, NEXT)).unwrap();
        wait_until(SOON, || rig.front.queue().waiting == 1).unwrap();
        rig.clients.send(&upload.segment(PSH | ACK, head.len() as u32, b"hello")).unwrap();
        wait_until(SOON, || {
            upload.hear(Duration::from_millis(50)).unwrap();
            upload.received().starts_with(b"HTTP/1.1 200")
        })
        .unwrap_or_else(|_| panic!("{door:?}: {:?}, {} wait", rig.server.seen(), rig.front.queue().waiting));
        let seen = rig.server.seen();
        assert!(seen[1].line.starts_with("POST /upload") && seen.len() == 2, "{door:?}: {seen:?}");
        assert_eq!(rig.front.queue().waiting, 1, "{door:?}");
    }
}
