// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What a server without privilege learns about connections that it never saw, and which queue overflowed.

#[path = "steer/rig.rs"]
mod rig;

use std::cell::RefCell;
use std::io::Write;
use std::net::{IpAddr, SocketAddr, TcpListener};
use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use fief::{Container, Filter, Reason, bind_filtered, drops};
use fief_control::Notice;
use fief_testkit::segment::{ACK, SYN, Segment};
use fief_testkit::{Family, ORDINARY_OPTIONS, RawClients, RawConnection, Topology, wait_until};
use fief_tests_netns::{NOBODY, SOON, become_user};
use rig::{Rig, Server, low, ready};

const PLAN: &str = "FIEF_TEST_DROPS";
const OPEN: u16 = 9000;
const LIMITED: u16 = 8080;

const POLICY: &str = r#"
version = 1
[container.unit]
[container.high]
[listener.web]
address = "0.0.0.0:8080"
classes = "shared"
[[listener.web.client]]
from = ["10.77.1.0/24"]
container = "high"
[[listener.web.client]]
from = ["any"]
container = "unit"
syn = { rate = 1, burst = 4 }
"#;

/// Runs inside the unit as nobody: listens, accepts nothing, and says each notice.
#[test]
fn inner_server() {
    let Ok(plan) = std::env::var(PLAN) else { return };
    become_user(NOBODY);
    let container = Container::create().unwrap();
    let listener = match plan.as_str() {
        "filtered" => bind_filtered(([0, 0, 0, 0], OPEN).into(), Filter::any(), &container).unwrap(),
        _ => TcpListener::bind(("0.0.0.0", LIMITED)).unwrap(),
    };
    // SAFETY: no pointers are passed. A second listen only changes the length of the queue.
    assert_eq!(unsafe { libc::listen(listener.as_raw_fd(), 1) }, 0);
    println!("\nlistening");
    let mut told = None;
    loop {
        let drops = drops(&listener).unwrap();
        if let Some(last) = drops.last.filter(|last| told != Some(last.time)) {
            told = Some(last.time);
            let nanoseconds = last.time.as_nanos();
            println!(
                "{nanoseconds} {} {} {} {} {}",
                drops.overflowed, drops.refused, last.reason, last.source, last.count
            );
            std::io::stdout().flush().unwrap();
        }
        std::thread::yield_now();
    }
}

/// A line of the inner server.
#[derive(Debug)]
struct Told {
    time: Duration,
    overflowed: u64,
    refused: u64,
    reason: String,
    source: IpAddr,
    count: u32,
}

fn start(rig: &Rig, plan: &str) -> Server {
    let mut command = rig.command(&std::env::current_exe().unwrap().to_string_lossy());
    command.args(["inner_server", "--exact", "--nocapture", "--test-threads=1"]).env(PLAN, plan);
    Server::start(command)
}

fn told(server: &mut Server) -> Told {
    let line = server.line();
    let words: Vec<_> = line.trim().split(' ').collect();
    let [time, overflowed, refused, reason, source, count] = words[..] else { panic!("the server said {line:?}") };
    Told {
        time: Duration::from_nanos(time.parse().unwrap()),
        overflowed: overflowed.parse().unwrap(),
        refused: refused.parse().unwrap(),
        reason: reason.to_owned(),
        source: source.parse().unwrap(),
        count: count.parse().unwrap(),
    }
}

/// So many SYNs from one raw client each.
fn flood(clients: &RawClients, port: u16, from: u16, count: u16) {
    let server = Topology::server_address(Family::V4, port);
    for n in 0..count {
        let source = SocketAddr::new(RawClients::address(Family::V4, from), 1024 + n);
        let mut syn = Segment::new(source, server, SYN);
        syn.options = ORDINARY_OPTIONS.to_vec();
        clients.send(&syn).unwrap();
    }
}

/// Fills the queue of a server that accepts nothing.
fn fill(rig: &Rig, port: u16) -> Vec<rig::Connection> {
    let server = Topology::server_address(Family::V4, port);
    let queue = || rig.topology.server.command("ss").args(["-Hltn", "sport", &format!("= {port}")]).output().unwrap();
    let full: Vec<_> = (1..=2).map(|n| rig.connect_silently(low(n), server)).collect();
    let waits = || String::from_utf8(queue().stdout).unwrap().split_whitespace().nth(1) == Some("2");
    wait_until(SOON, waits).expect("two wait in the queue");
    full
}

#[test]
fn a_filtered_listener_is_told_which_source_met_its_full_queue() {
    if !ready() {
        return;
    }
    let rig = Rig::with_home(POLICY, "unit");
    rig.topology.server.sysctl("net.ipv4.tcp_syncookies", "0").unwrap();
    let mut server = start(&rig, "filtered");
    let _full = fill(&rig, OPEN);
    let clients = RawClients::new(&rig.topology).unwrap();
    let mut before = Duration::ZERO;
    for (round, from) in (1..).zip([7, 8]) {
        let flooding = RawClients::address(Family::V4, from);
        flood(&clients, OPEN, from, 100);
        loop {
            let told = told(&mut server);
            assert_eq!((told.reason.as_str(), told.refused), (Reason::SynQueue.as_str(), 0), "{told:?}");
            if told.source != flooding {
                assert_eq!((round, told.overflowed), (2, 100), "only the rest of the first: {told:?}");
                continue;
            }
            assert!(told.count > 0 && told.time - before >= Duration::from_millis(10), "{before:?}, {told:?}");
            before = told.time;
            if told.overflowed == 100 * round {
                break;
            }
        }
    }
}

/// What the socket counts is put down to the SYNs by whoever looks, so that the receiving CPU and the server's meet.
#[test]
fn each_drop_is_counted_once_while_the_server_asks_without_a_pause() {
    if !ready() {
        return;
    }
    const SYNS: u16 = 50_000;
    let rig = Rig::with_home(POLICY, "unit");
    rig.topology.server.sysctl("net.ipv4.tcp_syncookies", "0").unwrap();
    let _server = start(&rig, "filtered");
    let _full = fill(&rig, OPEN);
    let (clients, sources) = (RawClients::new(&rig.topology).unwrap(), 7..11);
    sources.clone().for_each(|from| flood(&clients, OPEN, from, SYNS));
    let sent = u64::from(SYNS) * sources.len() as u64;
    let dropped = || -> u64 {
        let containers = rig.installation.fief().snapshot().unwrap().containers;
        containers.iter().map(|container| container.usage.syns_dropped).sum()
    };
    wait_until(SOON, || dropped() == sent).unwrap_or_else(|_| panic!("{} of {sent}", dropped()));
}

#[test]
fn a_server_is_told_what_the_policy_refused_before_it() {
    if !ready() {
        return;
    }
    let rig = Rig::with_home(POLICY, "unit");
    let mut server = start(&rig, "limited");
    let clients = RawClients::new(&rig.topology).unwrap();
    flood(&clients, LIMITED, 7, 100);
    let first = told(&mut server);
    assert_eq!((first.reason.as_str(), first.source), ("syn-rate", RawClients::address(Family::V4, 7)), "{first:?}");
    assert!(first.refused >= 1 && first.overflowed == 0, "{first:?}");
}

/// The rig's policy, with a guard before its listener.
fn admitting() -> String {
    let front = "version = 1\n[front]\nhandshake = \"own\"";
    rig::POLICY.replace("version = 1", front).replace("\"0.0.0.0:8080\"", "\"0.0.0.0:8080\"\nadmit = true")
}

/// How often a listen queue of a class was full.
fn overflows(rig: &Rig, container: &str) -> u64 {
    let view = rig.topology.server.run(|| rig.installation.fief().front().unwrap()).unwrap();
    let is_it = |verdict: &&fief_control::VerdictView| {
        (verdict.listener.as_str(), verdict.container.as_str(), verdict.reason) == ("web", container, Reason::SynQueue)
    };
    view.verdicts.iter().filter(is_it).map(|verdict| verdict.count).sum()
}

/// The first of the notices that says that a queue overflowed.
fn first_overflow(rig: &Rig, goes_on: &AtomicBool) -> Option<Notice> {
    let seen = RefCell::new(None);
    let follows = || goes_on.load(Ordering::Relaxed) && seen.borrow().is_none();
    let take = |told: fief_control::Told| {
        if let fief_control::Told::Notice(notice) = told
            && notice.verdict.reason == Reason::SynQueue
        {
            seen.borrow_mut().get_or_insert(notice);
        }
        Ok::<_, fief_control::Error>(())
    };
    rig.installation.fief().follow(follows, take).unwrap();
    seen.into_inner()
}

/// The server's queues have 256 places, and one more.
const PLACES: u8 = 250;
const MORE: u8 = 7;

fn a_full_low_queue_stops_no_high_client(policy: &str, knock: impl Fn(&RawClients, SocketAddr, SocketAddr)) {
    if !ready() {
        return;
    }
    let rig = Rig::new(policy);
    rig.topology.server.sysctl("net.ipv4.tcp_syncookies", "1").unwrap();
    let mut server = rig.server("blocking", "0.0.0.0", rig::PORT);
    let address = Topology::server_address(Family::V4, rig::PORT);
    let from: Vec<_> = (1..=PLACES).chain(1..=MORE).map(low).collect();
    let full = rig.connect(&from, address);
    let queue = || rig.topology.server.command("ss").args(["-Hltn"]).output().unwrap().stdout;
    let waits =
        || String::from_utf8(queue()).unwrap().lines().any(|line| line.split_whitespace().nth(1) == Some("257"));
    wait_until(SOON, waits).expect("the low queue is full");
    let clients = RawClients::new(&rig.topology).unwrap();
    let (knocking, mut port) = (AtomicBool::new(true), 1024);
    let from = RawClients::address(Family::V4, 9);
    let notice = std::thread::scope(|scope| {
        let follower = scope.spawn(|| first_overflow(&rig, &knocking));
        let turned_away = wait_until(SOON, || {
            port += 1;
            knock(&clients, SocketAddr::new(from, port), address);
            overflows(&rig, "shop/low") >= 20 && follower.is_finished()
        });
        knocking.store(false, Ordering::Relaxed);
        turned_away.expect("the low class is turned away, and that is told");
        follower.join().unwrap().expect("a notice")
    });
    assert_eq!((notice.source.ip(), notice.destination), (from, address));
    assert_eq!((notice.verdict.listener.as_str(), notice.verdict.container.as_str()), ("web", "shop/low"));
    assert_eq!(overflows(&rig, "shop/high"), 0);
    let preferred = rig.connect(&[rig::high(1), rig::high(2)], address);
    server.go();
    assert_eq!(server.served(2), [rig::high(1), rig::high(2)]);
    rig::answered(preferred);
    assert_eq!(overflows(&rig, "shop/high"), 0);
    drop(full);
}

#[test]
fn a_full_queue_of_a_low_class_stops_no_high_handshake() {
    a_full_low_queue_stops_no_high_client(rig::POLICY, |clients, from, to| {
        let mut syn = Segment::new(from, to, SYN);
        syn.options = ORDINARY_OPTIONS.to_vec();
        clients.send(&syn).unwrap();
    });
}

#[test]
fn a_full_queue_of_a_low_class_stops_no_high_client_that_is_admitted() {
    a_full_low_queue_stops_no_high_client(&admitting(), |clients, from, to| {
        let connection = RawConnection::open(clients, [from, to], 7, &ORDINARY_OPTIONS, SOON).unwrap();
        let connection = connection.expect("a SYN costs the server nothing, so it is answered");
        clients.send(&connection.segment(ACK, 0, b"x")).unwrap();
    });
}
