// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A server that tells which requests it got, in their order, and answers each once it is let: without a body, or, where the path
//! ends with a number, with so many bytes of [`pattern`]. It reads the bodies of POST and no others. A request may say the status
//! of its answer (`Answer: 413 Content Too Large`); that of 304 has no body, whatever its head says.

use std::io::{Read, Write};
use std::net::{IpAddr, Ipv6Addr, Shutdown, SocketAddr, SocketAddrV6, TcpListener, TcpStream};
use std::os::fd::AsRawFd;
use std::sync::{Arc, Condvar, Mutex, Weak};
use std::time::Duration;

use fief_bpf::abi;
use fief_testkit::{Family, Topology, digest, pattern, wait_until};
use libbpf_rs::{MapCore, MapFlags, MapHandle};
use nix::sys::socket::{Backlog, SockaddrIn6, bind, listen};

use crate::front::{Door, Front, plain};
use crate::rig::status_of;
use crate::{SOON, connect_from, multipath_socket};

/// A server that does not answer keeps a place for less than this.
pub const PLACE: Duration = Duration::from_millis(2300);

/// One place, and three classes: high (10.77.1/24), robots (10.77.3/24), which may starve, and the rest.
pub const POLICY: &str = r#"
[container.high]
cpu.priority = 200
[container.low]
[container.robots]
cpu.priority = 0
[container.web]
[listener.plain]
address = "[::]:80"
queue = { in-service = 1, length = 200, wait = "1m" }
[[listener.plain.client]]
from = ["10.77.1.0/24", "fd77::1:0/112"]
container = "high"
[[listener.plain.client]]
from = ["10.77.3.0/24"]
container = "robots"
[[listener.plain.client]]
from = ["any"]
container = "low"
"#;

/// The same where a place does not run out while all the others come, also on a busy machine.
pub fn lasting() -> String {
    let policy = POLICY.replace("wait = \"1m\"", "wait = \"1m\", stale = \"30s\"");
    assert_ne!(policy, POLICY);
    policy
}

/// Tables of what is kept of requests that wait.
pub const OF_WAITING: [&str; 3] = ["queue_holds", "queue_waits", "queue_pieces"];

/// How many entries these tables have, and how many places in lines are taken.
pub fn entries(front: &Front, tables: &[&'static str]) -> Vec<(&'static str, usize)> {
    let open = |name| MapHandle::from_pinned_path(front.installation().fief().pins().map(name)).unwrap();
    let count = |name: &&'static str| (*name, open(*name).keys().count());
    tables.iter().map(count).chain([("queue_lines", links_taken(&open("queue_lines")))]).collect()
}

/// Names of the interfaces that the clock of queues is made of.
pub fn clocks(front: &Front) -> Vec<String> {
    front
        .topology
        .server
        .run(|| {
            let interfaces = nix::net::if_::if_nameindex().unwrap();
            let names = interfaces.iter().map(|interface| interface.name().to_str().unwrap().to_owned());
            names.filter(|name| name.starts_with("fief-")).collect()
        })
        .unwrap()
}

/// As `struct queue_links` says (bpf/include/maps/queues.bpf.h): behind its lock it has the first free link, and how many links were ever
/// taken. A free link begins with the number of the next one.
fn links_taken(lines: &MapHandle) -> usize {
    const HEAD: usize = 16;
    let links = lines.lookup(&0u32.to_ne_bytes(), MapFlags::ANY).unwrap().expect("an array has its element");
    let word = |at: usize| u32::from_ne_bytes(links[at..at + 4].try_into().unwrap()) as usize;
    let next = |link: usize| {
        let at = HEAD + link * (links.len() - HEAD) / abi::FIEF_QUEUE_SLOTS as usize;
        usize::from(u16::from_ne_bytes(links[at..at + 2].try_into().unwrap()))
    };
    let (mut free, mut taken) = (word(4), word(8));
    // read while it changes, the list may lead in a circle
    while free != 0 && taken > 0 {
        (free, taken) = (next(free), taken - 1);
    }
    taken
}

/// A client of each class of `POLICY`.
pub fn high(n: u8) -> IpAddr {
    IpAddr::from([10, 77, 1, n])
}

pub fn low(n: u8) -> IpAddr {
    IpAddr::from([10, 77, 2, n])
}

pub fn robot(n: u8) -> IpAddr {
    IpAddr::from([10, 77, 3, n])
}

#[derive(Debug, Default)]
struct Counter {
    /// Paths of the requests that the server has read.
    got: Vec<String>,
    /// Digests of the bodies that it has read.
    bodies: Vec<u64>,
    /// How many of them may be answered.
    let_go: usize,
    /// Its connections.
    open: Vec<Weak<TcpStream>>,
}

/// The front with such a server at port 80 of both families.
pub struct Queued {
    pub front: Front,
    counter: Arc<(Mutex<Counter>, Condvar)>,
}

impl Queued {
    pub fn new(door: Door, policy: &str) -> Self {
        Self::at(door, policy, Topology::new().unwrap())
    }

    /// The same in a topology of one's own making.
    pub fn at(door: Door, policy: &str, topology: Topology) -> Self {
        Self::listening(Front::at(door, policy, topology), || TcpListener::bind("[::]:80").unwrap())
    }

    /// A server that listens with multipath TCP, as Go's does.
    pub fn multipath(door: Door, policy: &str) -> Self {
        Self::listening(Front::new(door, policy), listen_multipath)
    }

    /// A server that wants no connection without bytes, as Apache.
    pub fn deferred(door: Door, multipath: bool, policy: &str) -> Self {
        Self::listening(Front::new(door, policy), || {
            let listener = if multipath { listen_multipath() } else { TcpListener::bind("[::]:80").unwrap() };
            defer(&listener);
            listener
        })
    }

    /// A server that takes no packets from afar (GTSM, RFC 5082).
    pub fn near(door: Door, policy: &str) -> Self {
        Self::listening(Front::new(door, policy), || {
            let listener = TcpListener::bind("[::]:80").unwrap();
            set_int(&listener, (libc::IPPROTO_IP, libc::IP_MINTTL), 255);
            set_int(&listener, (libc::IPPROTO_IPV6, libc::IPV6_MINHOPCOUNT), 255);
            listener
        })
    }

    fn listening(front: Front, listen: impl FnOnce() -> TcpListener + Send) -> Self {
        let listener = front.topology.server.run(listen).unwrap();
        let counter: Arc<(Mutex<Counter>, Condvar)> = Arc::default();
        let own = Arc::clone(&counter);
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let (own, stream) = (Arc::clone(&own), Arc::new(stream));
                own.0.lock().unwrap().open.push(Arc::downgrade(&stream));
                std::thread::spawn(move || serve(&stream, &own));
            }
        });
        Self { front, counter }
    }

    /// Lets the server answer so many requests more.
    pub fn let_go(&self, requests: usize) {
        self.counter.0.lock().unwrap().let_go += requests;
        self.counter.1.notify_all();
    }

    /// Lets the server answer all requests that it has read, and no other one.
    pub fn let_go_what_is_read(&self) {
        let mut own = self.counter.0.lock().unwrap();
        let read = own.got.len();
        own.let_go = read;
        drop(own);
        self.counter.1.notify_all();
    }

    /// The server ends the connections that it still has.
    pub fn hang_up(&self) {
        for stream in self.counter.0.lock().unwrap().open.drain(..).filter_map(|stream| stream.upgrade()) {
            // one that its client has reset is at its end
            let _ = stream.shutdown(Shutdown::Both);
        }
    }

    /// Paths of the requests that the server has read so far.
    pub fn got(&self) -> Vec<String> {
        self.counter.0.lock().unwrap().got.clone()
    }

    /// Digests of the bodies that it has read so far.
    pub fn bodies(&self) -> Vec<u64> {
        self.counter.0.lock().unwrap().bodies.clone()
    }

    /// Waits until the server has read so many; their paths.
    pub fn got_all(&self, requests: usize) -> Vec<String> {
        wait_until(SOON, || self.got().len() >= requests)
            .unwrap_or_else(|_| panic!("{:?}, {:?}", self.got(), self.queue()));
        self.got()
    }

    /// Its queue.
    pub fn queue(&self) -> abi::fief_queue {
        self.front.queue()
    }

    /// Waits until so many requests wait.
    pub fn wait_for(&self, waiting: u32) {
        wait_until(SOON, || self.has_waiting(waiting)).unwrap_or_else(|_| panic!("{:?}", self.queue()));
    }

    /// Whether so many requests wait. One is counted a moment before it is in its line, where it can be next.
    pub fn has_waiting(&self, waiting: u32) -> bool {
        let queue = self.queue();
        let in_line: u32 = queue.class.iter().map(|class| class.list.linked).sum();
        (queue.waiting, in_line) == (waiting, waiting)
    }

    /// Waits until nobody waits and no place is taken.
    pub fn wait_for_peace(&self) {
        let quiet = |queue: abi::fief_queue| (queue.waiting, queue.busy, queue.kept) == (0, 0, 0);
        wait_until(SOON, || quiet(self.queue())).unwrap_or_else(|_| panic!("{:?}", self.queue()));
    }

    /// A request on a connection of its own.
    pub fn ask(&self, from: IpAddr, path: &str) -> TcpStream {
        let family = if from.is_ipv4() { Family::V4 } else { Family::V6 };
        self.front.ask_from(from, plain(family), path).unwrap()
    }

    /// A connection on which many requests can be made.
    pub fn connect(&self, from: IpAddr) -> TcpStream {
        let server: SocketAddr = plain(if from.is_ipv4() { Family::V4 } else { Family::V6 });
        connect_from(&self.front.topology.clients, (from, 0).into(), server).unwrap()
    }
}

fn listen_multipath() -> TcpListener {
    let socket = multipath_socket(libc::AF_INET6).unwrap();
    let everywhere = SockaddrIn6::from(SocketAddrV6::new(Ipv6Addr::UNSPECIFIED, 80, 0, 0));
    bind(socket.as_raw_fd(), &everywhere).unwrap();
    listen(&socket, Backlog::new(100).unwrap()).unwrap();
    TcpListener::from(socket)
}

/// Of a listener: no connection is made without bytes; of a client: the end of its handshake waits for some.
pub fn defer(socket: &impl AsRawFd) {
    let seconds = 30;
    set_int(socket, (libc::IPPROTO_TCP, libc::TCP_DEFER_ACCEPT), seconds);
}

/// Sets an option of a level that is an int.
fn set_int(socket: &impl AsRawFd, (level, option): (i32, i32), value: i32) {
    let length = size_of::<i32>() as libc::socklen_t;
    // SAFETY: the option is an int.
    let done = unsafe { libc::setsockopt(socket.as_raw_fd(), level, option, (&raw const value).cast(), length) };
    assert_eq!(done, 0, "{level}, {option}: {}", std::io::Error::last_os_error());
}

/// Makes a request that leaves the connection open.
pub fn ask_on(stream: &mut TcpStream, path: &str) {
    stream.write_all(format!("GET {path} HTTP/1.1\r\nHost: server\r\n\r\n").as_bytes()).unwrap();
}

/// Reads the answer to one.
pub fn answer_on(stream: &mut TcpStream) -> String {
    stream.set_read_timeout(Some(SOON)).unwrap();
    read_head(stream).expect("an answer")
}

/// Status of the answer to a request of `ask`.
pub fn status(stream: TcpStream) -> u16 {
    stream.set_read_timeout(Some(SOON)).unwrap();
    status_of(stream).expect("an answer")
}

/// Up to the empty line; `None`: the connection ends before.
pub fn read_head(stream: &mut impl Read) -> Option<String> {
    let (mut head, mut byte) = (Vec::new(), [0]);
    while !head.ends_with(b"\r\n\r\n") {
        if stream.read(&mut byte).ok()? == 0 {
            return None;
        }
        head.extend(byte);
    }
    String::from_utf8(head).ok()
}

/// What a head says of the length of its body.
pub fn length_of(head: &str) -> usize {
    let field = |line: &str| line.to_ascii_lowercase().strip_prefix("content-length:")?.trim().parse().ok();
    head.lines().find_map(field).unwrap_or(0)
}

fn serve(mut stream: &TcpStream, counter: &(Mutex<Counter>, Condvar)) {
    while let Some(head) = read_head(&mut stream) {
        let mut own = counter.0.lock().unwrap();
        own.got.push(head.split(' ').nth(1).unwrap_or_default().to_owned());
        let number = own.got.len();
        let mut body =
            head.split(' ').nth(1).and_then(|path| path.rsplit('/').next()?.parse().ok()).map_or(vec![], pattern);
        if head.contains("Expect: 100-continue") && stream.write_all(b"HTTP/1.1 100 Continue\r\n\r\n").is_err() {
            return;
        }
        if head.starts_with("POST") {
            drop(own);
            let mut body = vec![0; length_of(&head)];
            if stream.read_exact(&mut body).is_err() {
                return;
            }
            own = counter.0.lock().unwrap();
            own.bodies.push(digest(&body));
        }
        drop(counter.1.wait_while(own, |own| own.let_go < number).unwrap());
        let closes = head.contains("Connection: close");
        let end = if closes { "Connection: close\r\n" } else { "" };
        let status = head.lines().find_map(|line| line.strip_prefix("Answer: ")).unwrap_or("200 OK");
        let answer = format!("HTTP/1.1 {status}\r\nContent-Length: {}\r\n{end}\r\n", body.len());
        if status.starts_with("304") {
            body.clear();
        }
        if stream.write_all(&[answer.as_bytes(), &body].concat()).is_err() || closes {
            return;
        }
    }
}
