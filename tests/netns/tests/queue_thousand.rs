// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A thousand requests wait while the policy changes or goes, the server is started anew, or all processes of Fief are killed: each
//! client is answered or told that its connection has ended, none is left in silence, and nothing remains.

use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::net::TcpStream;
use std::process::Stdio;

use fief_testkit::{Client, Family, Process, Topology, run, wait_until};
use fief_tests_netns::front::{Door, Front, plain, ready};
use fief_tests_netns::queued::{OF_WAITING, POLICY, answer_on, ask_on, entries};
use fief_tests_netns::{SOON, connect_from, fief_binary, kill_before, role, serve_in_turn, watch_steps};
use libbpf_rs::{MapCore, MapHandle};
use nix::sched::{CloneFlags, setns};

const NAME: &str = "none_of_a_thousand_that_wait_is_left_in_silence";
/// Half of them make their connection with their request.
const CLIENTS: usize = 1000;

/// A place lasts as long as its client, and all have room.
fn policy(length: usize) -> String {
    let policy =
        POLICY.replace("length = 200, wait = \"1m\"", &format!("length = {length}, wait = \"10m\", stale = \"30s\""));
    assert_ne!(policy, POLICY);
    policy
}

/// How so many clients fared.
#[derive(Debug, Default, PartialEq, Eq)]
struct Fared {
    answered: usize,
    refused: usize,
    reset: usize,
    /// Its connection was closed without a word.
    closed: usize,
}

impl Fared {
    fn count(&mut self, mut stream: TcpStream, what: &str) {
        stream.set_read_timeout(Some(SOON)).unwrap();
        let mut words = [0; 12];
        match stream.read_exact(&mut words).map(|()| &words) {
            Ok(b"HTTP/1.1 200") => self.answered += 1,
            Ok(b"HTTP/1.1 503") => self.refused += 1,
            Ok(words) => panic!("{what}: {words:?}"),
            Err(error) if error.kind() == ErrorKind::ConnectionReset => self.reset += 1,
            Err(error) if error.kind() == ErrorKind::UnexpectedEof => self.closed += 1,
            Err(error) => panic!("{what}: left in silence: {error}"),
        }
    }
}

/// Answers at once, and /mute never.
fn serve() {
    serve_in_turn("[::]:80".parse().unwrap(), |stream| {
        let mut buffer = [0; 4096];
        let Ok(length @ 1..) = stream.read(&mut buffer) else { return false };
        let text = String::from_utf8_lossy(&buffer[..length]).into_owned();
        let answers = text.matches("\r\n\r\n").count() - text.matches("/mute").count();
        stream.write_all("HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n".repeat(answers).as_bytes()).is_ok()
    });
}

struct Rig {
    server: Option<Process>,
    front: Front,
}

/// Those that wait, and the one for whom they do.
struct Held {
    mute: TcpStream,
    first: Vec<TcpStream>,
    later: Vec<TcpStream>,
}

impl Rig {
    fn new(door: Door) -> Self {
        let topology = Topology::new().unwrap();
        // a reset is sent once: among 500 ends of a killed server's connections NAPI's ring, which takes 256 packets, would lose some
        run(topology.clients.command("ethtool").args(["-K", Topology::CLIENTS, "gro", "off"])).unwrap();
        let mut rig = Self { server: None, front: Front::at(door, &policy(2000), topology) };
        rig.start();
        rig
    }

    /// Starts the server, where another one may have been killed.
    fn start(&mut self) {
        drop(self.server.take());
        let installation = self.front.installation();
        let mut part = installation.part(Some(&installation.cgroup()), NAME, "server");
        self.front.topology.server.enter(&mut part);
        part.stdout(Stdio::null()).stderr(Stdio::null());
        self.server = Some(Process::start(part).unwrap());
        let listens = || self.front.topology.server.run(|| TcpStream::connect("127.0.0.1:80").is_ok()).unwrap();
        wait_until(SOON, listens).unwrap();
    }

    fn connect(&self, n: usize) -> TcpStream {
        let family = [Family::V4, Family::V6][n % 2];
        let class = if n.is_multiple_of(7) { Client::High } else { Client::Low };
        let from = (class.address(family, 1 + (n % 200) as u8), 0).into();
        connect_from(&self.front.topology.clients, from, plain(family)).unwrap()
    }

    /// A thousand requests wait.
    fn hold(&self) -> Held {
        let mut later: Vec<_> = (0..CLIENTS / 2).map(|n| self.connect(n)).collect();
        for stream in &mut later {
            ask_on(stream, "/before");
            assert!(answer_on(stream).starts_with("HTTP/1.1 200"));
        }
        wait_until(SOON, || self.left() == (0, 0)).unwrap();
        let mut mute = self.connect(0);
        ask_on(&mut mute, "/mute");
        wait_until(SOON, || self.left() == (0, 1)).unwrap();
        later.iter_mut().for_each(|stream| ask_on(stream, "/later"));
        let mut first: Vec<_> = (0..CLIENTS / 2).map(|n| self.connect(n)).collect();
        first.iter_mut().for_each(|stream| ask_on(stream, "/first"));
        wait_until(SOON, || self.left() == (CLIENTS as u32, 1)).unwrap_or_else(|_| panic!("{:?}", self.left()));
        Held { mute, first, later }
    }

    /// Requests that wait, and those that the server has.
    fn left(&self) -> (u32, u32) {
        let queue = self.front.queue();
        (queue.waiting, queue.busy)
    }

    fn serves(&self) -> bool {
        let mut fresh = self.connect(1);
        ask_on(&mut fresh, "/fresh");
        answer_on(&mut fresh).starts_with("HTTP/1.1 200")
    }

    fn ends_in_peace(&self, what: &str) {
        assert!(self.serves(), "{what}");
        let left = || (self.left(), self.front.queue().kept);
        wait_until(SOON, || left() == ((0, 0), 0)).unwrap_or_else(|_| panic!("{what}: {:?}", left()));
        let kept = || entries(&self.front, &OF_WAITING);
        let is_empty = || kept().iter().all(|(_, count)| *count == 0);
        wait_until(SOON, is_empty).unwrap_or_else(|_| panic!("{what}: {:?}", kept()));
    }
}

fn fared(streams: impl IntoIterator<Item = TcpStream>, what: &str) -> Fared {
    let mut all = Fared::default();
    streams.into_iter().for_each(|stream| all.count(stream, what));
    all
}

/// Another policy lets go of all that wait, although the server still has the request before them.
fn swap_policy(rig: &Rig) {
    for (what, next) in [("another queue", policy(2001)), ("no queue", "[container.web]\n".to_owned())] {
        let held = rig.hold();
        rig.front.apply(&next).unwrap();
        let all = fared([held.first, held.later].into_iter().flatten(), what);
        assert_eq!(all, Fared { answered: CLIENTS, ..Fared::default() }, "{what}");
        rig.front.apply(&policy(2000)).unwrap();
        drop(held.mute);
        rig.ends_in_peace(what);
    }
}

/// A killed apply has let go of them or not; who waits on is served in turn.
fn kill_apply(rig: &Rig) {
    let swaps = [policy(2001), policy(2000)];
    let server = std::fs::File::open(rig.front.topology.server.path()).unwrap();
    // in the child itself: a thread that it makes may get the stack of one that it has not, with what lies there
    let apply = || {
        setns(&server, CloneFlags::CLONE_NEWNET).unwrap();
        drop(rig.front.installation().apply(&format!("version = 1\n{}", swaps[0])).unwrap());
    };
    let all = watch_steps(apply, || ()).len();
    rig.front.apply(&swaps[1]).unwrap();
    for part in 1..4 {
        let held = rig.hold();
        let step = all * part / 4;
        assert!(kill_before(step, apply));
        drop(held.mute);
        let what = format!("apply killed before step {step} of {all}");
        let all = fared([held.first, held.later].into_iter().flatten(), &what);
        assert_eq!(all, Fared { answered: CLIENTS, ..Fared::default() }, "{what}");
        rig.front.apply(&swaps[1]).unwrap();
        rig.ends_in_peace(&what);
    }
}

/// No process of Fief's is needed.
fn kill_processes(rig: &Rig) {
    let start = |arguments: &[&str]| {
        let mut command = rig.front.topology.server.command(fief_binary());
        command.args(arguments).env("FIEF_SCOPE", rig.front.installation().scope()).stdout(Stdio::piped());
        Process::start(command).unwrap()
    };
    let mut processes = [start(&["agent"]), start(&["top", "--plain"])];
    for process in &mut processes {
        let mut told = String::new();
        BufReader::new(process.child().stdout.take().unwrap()).read_line(&mut told).unwrap();
        assert!(!told.is_empty());
    }
    let held = rig.hold();
    drop(processes); // SIGKILL
    assert_eq!(rig.left(), (CLIENTS as u32, 1));
    drop(held.mute);
    let all = fared([held.first, held.later].into_iter().flatten(), "killed processes");
    assert_eq!(all, Fared { answered: CLIENTS, ..Fared::default() });
    rig.ends_in_peace("killed processes");
}

/// The kernel ends the connections of the server that was killed. Who had none yet is served by the next one, or reset.
fn restart_server(rig: &mut Rig) {
    let held = rig.hold();
    rig.start();
    let later = fared(held.later.into_iter().chain([held.mute]), "later requests, server restarted");
    assert_eq!(later.closed + later.reset, CLIENTS / 2 + 1, "{later:?}");
    let first = fared(held.first, "first requests, server restarted");
    assert_eq!(first.answered + first.reset, CLIENTS / 2, "{first:?}");
    rig.ends_in_peace("server restarted");
}

/// All that wait go to the server, and the kernel forgets the queue.
fn take_down(rig: &Rig) {
    let held = rig.hold();
    let pins = rig.front.installation().fief().pins();
    let id = |name| MapHandle::from_pinned_path(pins.map(name)).unwrap().info().unwrap().info.id;
    let maps = [&OF_WAITING[..], &["queues", "queue_lines", "queue_serves", "queue_lasts"]].concat();
    let maps: Vec<u32> = maps.into_iter().map(id).collect();
    rig.front.topology.server.run(|| rig.front.installation().fief().down().unwrap()).unwrap();
    let all = fared([held.first, held.later].into_iter().flatten(), "down");
    assert_eq!(all.answered + all.reset, CLIENTS, "{all:?}");
    assert!(!rig.front.installation().fief().installed());
    let is_there = |id: &u32| MapHandle::from_map_id(*id).is_ok();
    wait_until(SOON, || !maps.iter().any(is_there)).expect("nobody holds them any more");
    let links = rig.front.topology.server.ip("-o link show").unwrap();
    assert!(!links.contains("fief-"), "{links}");
    assert!(rig.serves());
}

#[test]
fn none_of_a_thousand_that_wait_is_left_in_silence() {
    if role().is_some() {
        return serve();
    }
    if !ready() {
        return;
    }
    for door in Door::GUARDS {
        let mut rig = Rig::new(door);
        kill_processes(&rig);
        restart_server(&mut rig);
        swap_policy(&rig);
        kill_apply(&rig);
        take_down(&rig);
    }
}
