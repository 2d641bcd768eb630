// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A server that assigns its connections to containers of its own takes nothing from the front door by that: requests are ruled as before,
//! and wait as those of the container above.

use std::io::{Read, Write};
use std::net::{IpAddr, TcpListener, TcpStream};
use std::sync::{Arc, Condvar, Mutex};

use fief::{Container, unassign};
use fief_testkit::{Family, Process, Topology, wait_until};
use fief_tests_netns::front::{Door, Front, anywhere, plain, ready};
use fief_tests_netns::queued::{ask_on, low, read_head};
use fief_tests_netns::{SOON, connect_from, connect_once_served, record, role};

/// No listener of the policy: the test says here what the server is to do, and hears which requests it has.
const CONTROL: u16 = 8081;
const ASSIGN: u8 = b'a';
const LET_GO: u8 = b'g';
const TELL: u8 = b't';

/// Bytes of a body before the server assigns its connection, and behind that.
const HALF: usize = 1000;

/// One path is refused; `unread`: what else becomes of what nobody can read.
fn refusing(unread: &str) -> String {
    format!(
        r#"
[container.web]
[listener.plain]
address = "[::]:80"
queue = false
unread = "{unread}"
[[listener.plain.client]]
from = ["any"]
container = "web"
[[listener.plain.request]]
path = "/secret"
refuse = "429"
"#
    )
}

/// The server's own container is the best class, and what is of none is of the lowest.
const QUEUED: &str = r#"
[container.web]
cpu.priority = 200
[container.low]
[container.robots]
cpu.priority = 0
[listener.plain]
address = "[::]:80"
queue = { in-service = 1, length = 200, wait = "1m", stale = "30s" }
[[listener.plain.client]]
from = ["10.77.1.0/24"]
container = "web"
[[listener.plain.client]]
from = ["10.77.3.0/24"]
container = "robots"
[[listener.plain.client]]
from = ["any"]
container = "low"
"#;

/// What the server knows.
#[derive(Default)]
struct Served {
    /// Paths of the requests that it has read.
    got: Mutex<Vec<String>>,
    open: Mutex<Vec<Arc<TcpStream>>>,
    /// Whether a request for /held may be answered.
    let_go: Mutex<bool>,
    changed: Condvar,
}

/// The label holds the container.
fn assign_to_a_new_one(stream: &TcpStream) {
    Container::create().unwrap().assign(stream).unwrap();
}

/// Assigns a connection twice, and takes it back: each container ends as the connection leaves it.
fn assign_again(stream: &TcpStream) {
    let [first, second] = [Container::create().unwrap(), Container::create().unwrap()];
    let [was, is] = [&first, &second].map(|container| container.info().unwrap().id);
    first.assign(stream).unwrap();
    assert_eq!(record(was).unwrap().sockets, 1);
    second.assign(stream).unwrap();
    assert_eq!([was, is].map(|id| record(id).unwrap().sockets), [0, 1]);
    drop((first, second));
    wait_until(SOON, || record(was).is_none()).unwrap();
    assert_eq!(record(is).unwrap().state, fief::abi::FIEF_ALIVE);
    unassign(stream).unwrap();
    wait_until(SOON, || record(is).is_none()).unwrap();
}

fn answer(mut stream: &TcpStream, served: &Served) {
    while let Some(head) = read_head(&mut stream) {
        let path = head.split(' ').nth(1).unwrap_or_default().to_owned();
        match path.as_str() {
            "/assign" => assign_to_a_new_one(stream),
            "/again" => assign_again(stream),
            "/upload" => {
                stream.read_exact(&mut [0; HALF]).unwrap();
                assign_to_a_new_one(stream);
            }
            _ => {}
        }
        served.got.lock().unwrap().push(path.clone());
        if path == "/upload" {
            stream.read_exact(&mut [0; HALF]).unwrap();
        }
        if path == "/held" {
            drop(served.changed.wait_while(served.let_go.lock().unwrap(), |let_go| !*let_go).unwrap());
        }
        if stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n").is_err() {
            return;
        }
    }
}

/// The server's part of each test.
fn serve() {
    let served = Arc::new(Served::default());
    let listener = TcpListener::bind("[::]:80").unwrap();
    let control = TcpListener::bind(("0.0.0.0", CONTROL)).unwrap();
    let own = Arc::clone(&served);
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let (own, stream) = (Arc::clone(&own), Arc::new(stream));
            own.open.lock().unwrap().push(Arc::clone(&stream));
            std::thread::spawn(move || answer(&stream, &own));
        }
    });
    for mut stream in control.incoming().flatten() {
        let mut command = [0];
        // a client that only looks whether somebody listens says nothing
        if stream.read_exact(&mut command).is_err() {
            continue;
        }
        match command[0] {
            ASSIGN => served.open.lock().unwrap().iter().for_each(|stream| assign_to_a_new_one(stream)),
            LET_GO => {
                *served.let_go.lock().unwrap() = true;
                served.changed.notify_all();
            }
            _ => {}
        }
        let got = served.got.lock().unwrap().join(" ");
        stream.write_all(got.as_bytes()).unwrap();
    }
}

/// A door, and the server behind it, in the managed cgroup.
struct Stage {
    _server: Process,
    front: Front,
}

impl Stage {
    /// `name` is the test's, which plays the server too.
    fn new(name: &str, door: Door, policy: &str) -> Self {
        let front = Front::new(door, policy);
        let installation = front.installation();
        let mut part = installation.part(Some(&installation.cgroup()), name, "server");
        front.topology.server.enter(&mut part);
        let stage = Self { _server: Process::start(part).unwrap(), front };
        assert!(stage.say(TELL).is_empty());
        stage
    }

    /// Paths of the requests that the server has read by then.
    fn say(&self, command: u8) -> Vec<String> {
        let server = Topology::server_address(Family::V4, CONTROL);
        let mut stream = connect_once_served(&self.front.topology.clients, anywhere(Family::V4), server);
        stream.set_read_timeout(Some(SOON)).unwrap();
        stream.write_all(&[command]).unwrap();
        let mut got = String::new();
        stream.read_to_string(&mut got).unwrap();
        got.split_whitespace().map(str::to_owned).collect()
    }

    fn connect(&self, from: IpAddr) -> TcpStream {
        connect_from(&self.front.topology.clients, (from, 0).into(), plain(Family::V4)).unwrap()
    }

    /// Waits until the server has read so many requests.
    fn got_all(&self, requests: usize) -> Vec<String> {
        wait_until(SOON, || self.say(TELL).len() >= requests).unwrap_or_else(|_| panic!("{:?}", self.say(TELL)));
        self.say(TELL)
    }

    /// Waits until so many requests wait, each in its line.
    fn wait_for(&self, waiting: u32) {
        let waits = || {
            let queue = self.front.queue();
            let in_line: u32 = queue.class.iter().map(|class| class.list.linked).sum();
            (queue.waiting, in_line) == (waiting, waiting)
        };
        wait_until(SOON, waits).unwrap_or_else(|_| panic!("{:?}", self.front.queue()));
    }
}

/// Status of the next answer; `None`: the connection ends without one.
fn status_on(stream: &mut TcpStream) -> Option<u16> {
    stream.set_read_timeout(Some(SOON)).unwrap();
    read_head(stream)?.split(' ').nth(1)?.parse().ok()
}

/// Does the same for each door, and each word on what nobody can read.
fn refused_behind(name: &str, action: impl Fn(&Stage, &mut TcpStream)) {
    if !ready() {
        return;
    }
    for door in Door::GUARDS {
        for unread in ["refuse", "pass"] {
            eprintln!("unread: {unread}");
            let stage = Stage::new(name, door, &refusing(unread));
            let mut client = stage.connect(low(1));
            action(&stage, &mut client);
            assert_eq!(status_on(&mut client), Some(200), "{door:?}, {unread}");
            let before = stage.say(TELL);
            ask_on(&mut client, "/secret");
            assert_eq!(status_on(&mut client), Some(429), "{door:?}, {unread}");
            assert_eq!(stage.say(TELL), before, "{door:?}, {unread}");
        }
    }
}

#[test]
fn a_request_behind_the_assignment_of_its_connection_is_ruled() {
    if role().is_some() {
        return serve();
    }
    let name = "a_request_behind_the_assignment_of_its_connection_is_ruled";
    refused_behind(name, |_, client| ask_on(client, "/assign"));
}

#[test]
fn a_connection_that_is_assigned_again_and_taken_back_holds_no_container_and_is_ruled() {
    if role().is_some() {
        return serve();
    }
    let name = "a_connection_that_is_assigned_again_and_taken_back_holds_no_container_and_is_ruled";
    refused_behind(name, |_, client| ask_on(client, "/again"));
}

#[test]
fn a_connection_that_is_assigned_within_a_body_is_ruled_behind_it() {
    if role().is_some() {
        return serve();
    }
    let name = "a_connection_that_is_assigned_within_a_body_is_ruled_behind_it";
    refused_behind(name, |stage, client| {
        let head = format!("POST /upload HTTP/1.1\r\nHost: server\r\nContent-Length: {}\r\n\r\n", 2 * HALF);
        client.write_all(&[head.as_bytes(), &[b'x'; HALF]].concat()).unwrap();
        stage.got_all(1);
        client.write_all(&[b'x'; HALF]).unwrap();
    });
}

#[test]
fn a_request_that_waits_while_its_connection_is_assigned_is_served() {
    if role().is_some() {
        return serve();
    }
    let name = "a_request_that_waits_while_its_connection_is_assigned_is_served";
    if !ready() {
        return;
    }
    for door in Door::GUARDS {
        let stage = Stage::new(name, door, QUEUED);
        let [mut client, mut other] = [low(1), low(2)].map(|from| stage.connect(from));
        ask_on(&mut client, "/first");
        assert_eq!(status_on(&mut client), Some(200));
        ask_on(&mut other, "/held");
        stage.got_all(2);
        ask_on(&mut client, "/second");
        stage.wait_for(1);
        stage.say(ASSIGN);
        stage.say(LET_GO);
        assert_eq!([&mut client, &mut other].map(status_on), [Some(200); 2], "{door:?}");
        assert_eq!(stage.got_all(3), ["/first", "/held", "/second"], "{door:?}");
    }
}

#[test]
fn a_request_of_an_assigned_connection_waits_in_the_class_of_the_container_above() {
    if role().is_some() {
        return serve();
    }
    let name = "a_request_of_an_assigned_connection_waits_in_the_class_of_the_container_above";
    if !ready() {
        return;
    }
    for door in Door::GUARDS {
        let stage = Stage::new(name, door, QUEUED);
        let [mut client, mut other, mut held] = [low(1), low(2), low(3)].map(|from| stage.connect(from));
        ask_on(&mut client, "/assign");
        assert_eq!(status_on(&mut client), Some(200));
        ask_on(&mut held, "/held");
        stage.got_all(2);
        ask_on(&mut other, "/low");
        stage.wait_for(1);
        ask_on(&mut client, "/own");
        stage.wait_for(2);
        stage.say(LET_GO);
        assert_eq!([&mut held, &mut client, &mut other].map(status_on), [Some(200); 3], "{door:?}");
        assert_eq!(stage.got_all(4), ["/assign", "/held", "/own", "/low"], "{door:?}");
    }
}
