// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A verdict upon a first request gives way to those of tens of thousands of others: who was silent meanwhile is ruled as
//! before, also over a link-local address, and where the server has ended its side. And whoever it gives way to is ruled by the
//! listener that it came to.

#[path = "known_heads/stage.rs"]
#[allow(dead_code, reason = "not every test uses all of it")]
mod stage;

use std::io::{Read, Write};
use std::net::{Ipv6Addr, SocketAddr, SocketAddrV6, TcpListener, TcpStream};

use fief_bpf::abi;
use fief_testkit::{Family, Topology, wait_until};
use fief_tests_netns::front::{Door, plain, ready};
use fief_tests_netns::rig::Rig;
use fief_tests_netns::{SOON, refusing, second_link};
use nix::net::if_::if_nametoindex;
use stage::{Stage, get};

const POLICY: &str = refusing!("/secret/*", "503");

/// Another listener, under the same rule.
const OTHERS_POLICY: &str = r#"
[listener.others]
address = "[::]:81"
[[listener.others.client]]
from = ["any"]
container = "web"
[[listener.others.request]]
path = "/secret/*"
refuse = "503"
"#;

/// Of each kind. Of a hundred verdicts the others displace thirty: each goes into one of 32,768 pairs, and takes the place of
/// the older one there.
const KEPT: u32 = 24;

const OTHERS: u32 = 40_000;
const AT_A_TIME: u32 = 4;

const SERVER: Ipv6Addr = Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 0x66);

/// A connection that has its first answer.
struct Kept {
    kind: &'static str,
    path: String,
    stream: TcpStream,
}

impl Kept {
    fn open(topology: &Topology, kind: &'static str, n: u32, to: SocketAddr) -> Self {
        let stream = topology.clients.run(|| TcpStream::connect(to)).unwrap().unwrap();
        stream.set_read_timeout(Some(SOON)).unwrap();
        let mut kept = Self { kind, path: format!("/{kind}/{n}/10"), stream };
        let path = kept.path.clone();
        kept.send(&path);
        let words = kept.hear();
        assert!(words.starts_with("HTTP/1.1 200"), "{path}: {words}");
        if kept.is_half() {
            assert_eq!(kept.hear(), "", "{path}: the server ends its side");
        }
        kept
    }

    fn is_half(&self) -> bool {
        self.kind == "half"
    }

    fn send(&mut self, path: &str) {
        self.stream.write_all(format!("GET {path} HTTP/1.1\r\n\r\n").as_bytes()).unwrap();
    }

    fn hear(&mut self) -> String {
        let mut buffer = [0; 4096];
        let length = self.stream.read(&mut buffer).unwrap_or_else(|e| panic!("{}: {e}", self.path));
        String::from_utf8_lossy(&buffer[..length]).into_owned()
    }
}

/// Their verdicts fill the table. They come over the second link.
fn others_come(topology: &Topology) {
    let listener = topology.server.run(|| TcpListener::bind("[::]:81").unwrap()).unwrap();
    // what is closed with a request unread is reset, so nobody remembers it
    std::thread::spawn(move || listener.incoming().for_each(drop));
    visit(topology, OTHERS, "10.66.3.1:81".parse().unwrap());
}

/// So many connections, whose server ends them.
fn visit(topology: &Topology, visits: u32, to: SocketAddr) {
    std::thread::scope(|scope| {
        for _ in 0..AT_A_TIME {
            scope.spawn(|| topology.clients.run(|| (0..visits / AT_A_TIME).for_each(|_| visit_once(to))).unwrap());
        }
    });
}

fn visit_once(to: SocketAddr) {
    let mut stream = TcpStream::connect(to).unwrap();
    stream.set_read_timeout(Some(SOON)).unwrap();
    let _ = stream.write_all(b"GET / HTTP/1.1\r\n\r\n");
    let _ = stream.read(&mut [0]);
}

fn whoever_was_silent_while_others_filled_the_table_is_ruled_as_before(door: Door) {
    if !ready() {
        return;
    }
    let topology = Topology::new().unwrap();
    second_link(&topology);
    topology.server.ip(&format!("addr add {SERVER}/64 dev {} nodad", Topology::SERVER)).unwrap();
    topology.clients.ip(&format!("addr add fe80::67/64 dev {} nodad", Topology::CLIENTS)).unwrap();
    let link = topology.clients.run(|| if_nametoindex(Topology::CLIENTS).unwrap()).unwrap();
    let rig = Rig::at(door, &format!("{POLICY}{OTHERS_POLICY}"), topology);
    let topology = &rig.front.topology;
    let kinds: [(_, SocketAddr); 3] = [
        ("ordinary", plain(Family::V4)),
        ("link-local", SocketAddrV6::new(SERVER, 80, 0, link).into()),
        ("half", plain(Family::V4)),
    ];
    let all = kinds.iter().flat_map(|kind| (0..KEPT).map(move |n| (kind, n)));
    let mut kept: Vec<_> = all.map(|((kind, to), n)| Kept::open(topology, kind, n, *to)).collect();
    let before = rig.verdicts();
    others_come(topology);
    for kept in &mut kept {
        let path = format!("/public{}", kept.path);
        kept.send(&path);
        let seen = || rig.server.seen().iter().any(|seen| seen.line.contains(&path));
        wait_until(SOON, seen).unwrap_or_else(|_| panic!("{door:?}: {path}: {:?}", rig.verdicts()));
        if !kept.is_half() {
            let words = kept.hear();
            assert!(words.starts_with("HTTP/1.1 200"), "{door:?}: {path}: {words}");
        }
    }
    let refused = || rig.verdicts().since(&before).count(abi::FIEF_REQUEST_REFUSED);
    for (kept, count) in kept.iter_mut().zip(1..) {
        let path = format!("/secret{}", kept.path);
        kept.send(&path);
        if !kept.is_half() {
            let words = kept.hear();
            assert!(words.starts_with("HTTP/1.1 503"), "{door:?}: {path}: {words}");
        }
        wait_until(SOON, || refused() >= count).unwrap_or_else(|_| panic!("{door:?}: {path}"));
    }
    let seen = rig.server.seen();
    assert!(seen.iter().all(|seen| !seen.line.contains("/secret")), "{door:?}: {seen:?}");
}

#[test]
fn whoever_was_silent_while_others_filled_the_table_is_ruled_as_before_where_fief_answers() {
    whoever_was_silent_while_others_filled_the_table_is_ruled_as_before(Door::Own);
}

#[test]
fn whoever_was_silent_while_others_filled_the_table_is_ruled_as_before_where_the_kernel_answers() {
    whoever_was_silent_while_others_filled_the_table_is_ruled_as_before(Door::Kernel);
}

/// The kernel makes the connections of one listener, and the verdicts of the other one give way to theirs. By their ports both have the
/// same place among the listeners that a CPU has found last (`include/found`).
const SHUT_AND_OPEN: &str = r#"
[overload]
busy = { drops = 900000 }
overloaded = { drops = 1000000 }
[container.web]
[container."web/ten"]
[listener.shut]
address = "[::]:80"
queue = false
admit-from = "overloaded"
[[listener.shut.client]]
from = ["any"]
container = "web"
[[listener.shut.request]]
path = "/10"
refuse = "503"
[listener.open]
address = "[::]:8080"
queue = false
[[listener.open.client]]
from = ["any"]
container = "web"
[[listener.open.request]]
path = "/10"
container = "web/ten"
"#;
const OPEN: u16 = 8080;

/// As many as fill the table so far that each fifth verdict displaces another one.
const VISITS: u32 = 30_000;
const ASKED: u64 = 300;

/// Answers requests for /10 at the open port; all others are reset, so that nobody sees the end of their connections.
fn serve_open(topology: &Topology) {
    let listener = topology.server.run(|| TcpListener::bind(("::", OPEN)).unwrap()).unwrap();
    std::thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            let mut bytes = [0; 4096];
            if stream.peek(&mut bytes).is_ok() && bytes.starts_with(b"GET /10 ") {
                let _ = stream.read(&mut bytes);
                let _ = stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: close\r\n\r\n");
            }
        }
    });
}

fn a_request_is_ruled_by_its_own_listener_whosever_verdict_gives_way_to_it(door: Door) {
    if !ready() {
        return;
    }
    let stage = Stage::new(door, SHUT_AND_OPEN);
    serve_open(&stage.front.topology);
    visit(&stage.front.topology, VISITS, Topology::server_address(Family::V4, OPEN));
    // what was found of it is kept for the open listener alone
    let head = get("/10", "");
    wait_until(SOON, || {
        assert_eq!(stage.ask_at(OPEN, &head), Ok(200), "{:?}", stage.front.verdicts());
        stage.knows(&head)
    })
    .unwrap();
    let ten = stage.front.verdicts().since(stage.front.before());
    let open = ten.all().iter().find(|verdict| verdict.container == "web/ten").expect("its verdicts").listener;
    let before = stage.front.verdicts();
    for turn in 0..ASKED {
        assert_ne!(stage.ask(&head), Ok(200), "turn {turn}: {:?}", stage.front.verdicts().since(&before));
    }
    let new = stage.front.verdicts().since(&before);
    assert!(stage.front.is_counted(new.count(abi::FIEF_REQUEST_REFUSED), ASKED), "{new:?}");
    assert!(new.all().iter().all(|verdict| verdict.listener != open), "{open}: {new:?}");
    assert!(stage.server.seen().is_empty(), "{new:?}");
}

#[test]
fn a_request_is_ruled_by_its_own_listener_whosever_verdict_gives_way_to_it_where_fief_answers() {
    a_request_is_ruled_by_its_own_listener_whosever_verdict_gives_way_to_it(Door::Own);
}

#[test]
fn a_request_is_ruled_by_its_own_listener_whosever_verdict_gives_way_to_it_where_the_kernel_answers() {
    a_request_is_ruled_by_its_own_listener_whosever_verdict_gives_way_to_it(Door::Kernel);
}
