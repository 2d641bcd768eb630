// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A class of one server, of one thread, gets no more of the CPU than its limit, and the other class waits for nobody, however small
//! the limit is.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use fief_bpf::abi;
use fief_testkit::{Client, Family, Feature, Process, Topology, require, wait_until};
use fief_tests_netns::{
    Installation, SOON, Setup, connect_once_served, role, serve_in_turn, spin, steady_snapshot, two_classes,
};
use nix::sys::socket::{setsockopt, sockopt};

const REQUEST: &[u8] = b"GET / HTTP/1.1\r\nHost: server\r\n\r\n";
/// The server does not answer before the test is over.
const SLEEPS: &[u8] = b"GET /sleeps HTTP/1.1\r\nHost: server\r\n\r\n";
const RESPONSE: &[u8] = b"HTTP/1.1 204 No Content\r\n\r\n";
const WORK: Duration = Duration::from_millis(5);
const RUN: Duration = Duration::from_secs(4);

fn serve() {
    serve_in_turn(([0, 0, 0, 0], 80).into(), |connection| {
        let mut request = [0; 4096];
        let asks = matches!(connection.read(&mut request), Ok(1..));
        if asks {
            if request.starts_with(SLEEPS) {
                std::thread::sleep(SOON);
            }
            spin(WORK);
            connection.write_all(RESPONSE).unwrap();
        }
        asks
    });
}

/// Asks again and again, until it is over.
fn ask(mut stream: TcpStream, over: &AtomicBool) {
    while !over.load(Ordering::Relaxed) {
        stream.write_all(REQUEST).unwrap();
        stream.read_exact(&mut [0; RESPONSE.len()]).unwrap();
    }
}

/// A server of one thread behind a queue. The low class has the priority 100 and a limit.
struct Limited {
    // ends before its policy
    _server: Process,
    installation: Installation,
    topology: Topology,
}

impl Limited {
    /// `priority`: the high class's.
    fn new(name: &str, queue: &str, priority: u32, limit: &str) -> Self {
        let topology = Topology::new().unwrap();
        let policy = two_classes(&format!("address = \"0.0.0.0:80\"\nqueue = {queue}"))
            .replace("cpu.priority = 100", &format!("cpu.priority = 100\ncpu.limit = \"{limit}\""))
            .replace("cpu.priority = 200", &format!("cpu.priority = {priority}"));
        let setup = Setup { policy: &policy, home: "shop", follow: true, ..Setup::default() };
        let installation = topology.server.run(|| Installation::with(&setup)).unwrap();
        let mut part = installation.part(Some(&installation.cgroup()), name, "server");
        topology.server.enter(&mut part);
        Self { _server: Process::start(part).unwrap(), installation, topology }
    }

    fn connect(&self, client: Client, n: u8) -> TcpStream {
        let from = (client.address(Family::V4, n), 0).into();
        connect_once_served(&self.topology.clients, from, Topology::server_address(Family::V4, 80))
    }

    /// Status of the answer to a request on a connection of its own.
    fn status(&self, client: Client) -> String {
        let mut stream = self.connect(client, 9);
        stream.set_read_timeout(Some(SOON)).unwrap();
        stream.write_all(REQUEST).unwrap();
        let mut head = [0; 12];
        stream.read_exact(&mut head).unwrap();
        String::from_utf8_lossy(&head[9..]).into_owned()
    }

    fn queue(&self) -> abi::fief_queue {
        fief_bpf::queue::all(self.installation.fief().pins()).unwrap().pop().expect("a queue").1
    }

    /// What the low class was charged.
    fn usage(&self) -> fief::Usage {
        let snapshot = self.installation.fief().snapshot().unwrap();
        snapshot.containers.into_iter().find(|c| c.path == "shop/low").unwrap().usage
    }
}

/// What the classes used of the machine, high and low, while these clients asked. `priority`: the high one's; the other has 100.
fn used(name: &str, clients: &[Client], priority: u32) -> [f64; 2] {
    let rig = Limited::new(name, "{ in-service = 1, wait = \"1m\" }", priority, "10%");
    let look = || {
        let snapshot = steady_snapshot(rig.installation.fief());
        let ns = |path: &str| snapshot.containers.iter().find(|c| c.path == path).unwrap().usage.cpu_ns();
        (snapshot.taken_ns, [ns("shop/high"), ns("shop/low")], snapshot.cpus)
    };
    let streams: Vec<_> = (1..).zip(clients).map(|(n, client)| rig.connect(*client, n)).collect();
    let over = AtomicBool::new(false);
    let (all, before, after) = std::thread::scope(|scope| {
        streams.into_iter().for_each(|stream| drop(scope.spawn(|| ask(stream, &over))));
        std::thread::sleep(RUN / 4); // what was saved up is used up
        let (begin, before, cpus) = look();
        std::thread::sleep(RUN);
        let (end, after, _) = look();
        over.store(true, Ordering::Relaxed);
        ((end - begin) as f64 * f64::from(cpus), before, after)
    });
    // what the hypervisor has just then is told as the server's until it is known; not once that has nothing to do, a few requests later
    let (_, last, _) = look();
    [0, 1].map(|n| (after[n].min(last[n]) - before[n]) as f64 / all)
}

#[test]
fn a_class_gets_no_more_than_its_limit() {
    let name = "a_class_gets_no_more_than_its_limit";
    if role().is_some() {
        return serve();
    }
    if !require(Feature::NetNs) {
        return;
    }
    let [_, alone] = used(name, &[Client::Low; 3], 200);
    // a busy machine may not give it that much
    assert!((0.05..0.11).contains(&alone), "alone: {alone}");
    let both = [Client::High, Client::High, Client::Low, Client::Low, Client::Low];
    let [high, low] = used(name, &both, 200);
    assert!(low < 0.11 && high > low / 2.0, "high {high}, low {low}");
    // and no less, beside another one of its priority: a fifth of the server is below its half, unless others keep that from the CPUs
    let [high, low] = used(name, &both, 100);
    assert!(low < 0.11 && high > low * 0.8 && (low > 0.05 || low > high * 0.8), "high {high}, low {low}");
}

/// It takes minutes until one of its requests is paid off.
#[test]
fn a_class_with_the_smallest_limit_is_refused_and_the_other_one_served() {
    let name = "a_class_with_the_smallest_limit_is_refused_and_the_other_one_served";
    if role().is_some() {
        return serve();
    }
    if !require(Feature::NetNs) {
        return;
    }
    let rig = Limited::new(name, "{ in-service = 1, wait = \"500ms\" }", 200, "0.0001%");
    // what it uses may be charged a moment after the answer
    let refused = wait_until(SOON, || rig.status(Client::Low) == "429");
    assert!(refused.is_ok(), "{:?}", rig.queue().class[1]);
    for _ in 0..3 {
        let waits = std::thread::scope(|scope| {
            let low = scope.spawn(|| rig.status(Client::Low));
            wait_until(SOON, || rig.queue().waiting == 1 || low.is_finished()).unwrap();
            (0..10).for_each(|_| assert_eq!(rig.status(Client::High), "204"));
            low.join().unwrap()
        });
        assert_eq!(waits, "429", "{:?}", rig.queue().class[1]);
    }
    let queue = rig.queue();
    assert!(queue.class[1].refused_wait >= 4, "{:?}", queue.class[1]);
    assert_eq!(queue.class[0].refused_full + queue.class[0].refused_wait, 0, "{:?}", queue.class[0]);
    wait_until(SOON, || (rig.queue().waiting, rig.queue().busy, rig.queue().kept) == (0, 0, 0)).unwrap();
}

/// The door's work on it, before any server has spent anything: nothing else is received for the class meanwhile.
#[test]
fn a_request_that_waits_is_charged_to_its_class() {
    let name = "a_request_that_waits_is_charged_to_its_class";
    if role().is_some() {
        return serve();
    }
    if !require(Feature::NetNs) {
        return;
    }
    const WAIT: u32 = 50;
    let rig = Limited::new(name, "{ in-service = 1, stale = \"30s\", wait = \"1m\", length = 100 }", 200, "90%");
    assert_eq!(rig.status(Client::Low), "204"); // a server that is managed
    let mut first = rig.connect(Client::Low, 1);
    first.write_all(SLEEPS).unwrap();
    wait_until(SOON, || rig.queue().busy == 1).unwrap();
    let mut streams: Vec<_> = (0..WAIT).map(|_| rig.connect(Client::Low, 2)).collect();
    // the ends of the handshakes may still be under way
    let mut before = rig.usage();
    wait_until(SOON, || {
        let last = std::mem::replace(&mut before, rig.usage());
        before.packets_in == last.packets_in
    })
    .unwrap();
    streams.iter_mut().for_each(|stream| stream.write_all(REQUEST).unwrap());
    wait_until(SOON, || rig.queue().waiting == WAIT).unwrap();
    let after = rig.usage();
    assert_eq!(after.packets_in, before.packets_in, "they wait");
    let each = (after.receive_ns - before.receive_ns) / u64::from(WAIT);
    assert!(each > 500, "{each} ns of receive work a request");
}

/// A client that asks, and resets its connection while its request waits, again and again: it uses up what a few hundred requests do, and
/// then nothing more.
#[test]
fn requests_that_are_reset_while_they_wait_use_little_of_their_classs_limit() {
    let name = "requests_that_are_reset_while_they_wait_use_little_of_their_classs_limit";
    if role().is_some() {
        return serve();
    }
    if !require(Feature::NetNs) {
        return;
    }
    const RESETS: u64 = 400;
    let rig = Limited::new(name, "{ in-service = 1, stale = \"30s\", wait = \"1m\", length = 1000 }", 200, "90%");
    assert_eq!(rig.status(Client::Low), "204"); // a server that is managed
    let mut first = rig.connect(Client::Low, 1);
    first.write_all(SLEEPS).unwrap();
    wait_until(SOON, || rig.queue().busy == 1).unwrap();
    let used = [1, 2].map(|round| {
        let before = rig.usage().receive_ns;
        for _ in 0..RESETS {
            let mut stream = rig.connect(Client::Low, 2);
            stream.write_all(REQUEST).unwrap();
            setsockopt(&stream, sockopt::Linger, &libc::linger { l_onoff: 1, l_linger: 0 }).unwrap();
        }
        let gone = wait_until(SOON, || rig.queue().class[1].gone == round * RESETS);
        assert!(gone.is_ok(), "{:?}", rig.queue().class[1]);
        rig.usage().receive_ns - before
    });
    let [some, more] = used.map(|ns| ns / RESETS);
    assert!(some > 300 && more < 100, "{some} ns each, and then {more}");
}

/// All at once, and others are served meanwhile.
#[test]
fn a_line_of_a_class_without_budget_is_told_that_it_has_waited_too_long() {
    let name = "a_line_of_a_class_without_budget_is_told_that_it_has_waited_too_long";
    if role().is_some() {
        return serve();
    }
    if !require(Feature::NetNs) {
        return;
    }
    const LINE: u32 = 400; // more than may follow each other at once
    let rig = Limited::new(name, "{ in-service = 1, wait = \"3s\", length = 1000 }", 200, "0.0001%");
    // each is told once: while the CPU of the clients' NAPI thread stands still, its ring, which takes 256 packets, would lose some
    let no_gro = ["-K", Topology::CLIENTS, "gro", "off"];
    fief_testkit::run(rig.topology.clients.command("ethtool").args(no_gro)).unwrap();
    wait_until(SOON, || rig.status(Client::Low) == "429").unwrap();
    let before = rig.queue().class[1].refused_wait;
    let mut line: Vec<_> = (0..LINE).map(|_| rig.connect(Client::Low, 2)).collect();
    line.iter_mut().for_each(|stream| stream.write_all(REQUEST).unwrap());
    let comes = wait_until(SOON, || rig.queue().waiting == LINE);
    assert!(comes.is_ok(), "{:?}", rig.queue().class[1]);
    while rig.queue().waiting + rig.queue().refused > 0 {
        assert_eq!(rig.status(Client::High), "204");
    }
    for mut stream in line {
        let mut head = [0; 12];
        stream.set_read_timeout(Some(SOON)).unwrap();
        stream.read_exact(&mut head).unwrap();
        assert_eq!(&head, b"HTTP/1.1 429");
    }
    let queue = rig.queue();
    assert_eq!(queue.class[1].refused_wait - before, u64::from(LINE), "{:?}", queue.class[1]);
    assert_eq!(queue.class[0].refused_full + queue.class[0].refused_wait, 0, "{:?}", queue.class[0]);
}
