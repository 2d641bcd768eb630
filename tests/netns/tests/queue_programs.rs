// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Real servers behind the queue, unmodified: the better class is served first, and no request is lost, doubled or answered
//! with the answer of another. By `fief run`, and by `fief apply` and `manage` with either handshake.

#[path = "queue_programs/server.rs"]
mod server;

use std::collections::HashMap;
use std::fs::{File, Permissions};
use std::io::{Read, Write};
use std::net::{IpAddr, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use fief_control::Fief;
use fief_testkit::{Client, Family, Feature, Process, Topology, require, wait_ready, wait_until};
use fief_tests_netns::front::{Door, Front, ready};
use fief_tests_netns::{SOON, connect_from, fief_binary, unacknowledged};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use server::{PORT, Server, Start, go};

/// How long the kernel may take to verify all programs.
const LOADED: Duration = Duration::from_secs(120);
/// Of the low class.
const WAITING: u8 = 30;

/// Without its version, which a door brings. `queue` is what the listener says of its queue.
fn policy(queue: &str) -> String {
    format!(
        r#"
[container.web]
[container."web/high"]
cpu.priority = 200
[container."web/low"]
[listener.web]
address = "0.0.0.0:80"
queue = {queue}
[[listener.web.client]]
from = ["10.77.1.0/24"]
container = "web/high"
[[listener.web.client]]
from = ["any"]
container = "web/low"
"#
    )
}

/// Who puts the policy into force.
#[derive(Clone, Copy, Debug)]
enum By {
    /// `fief run`.
    Run,
    /// `fief apply`, and the server's cgroup managed, with this handshake.
    Apply(Door),
}

const EVERYWAY: [By; 3] = [By::Run, By::Apply(Door::Own), By::Apply(Door::Kernel)];

/// A server under a policy.
struct Rig {
    // ends before its policy
    process: Process,
    policy: Policy,
    folder: tempfile::TempDir,
    _start: Start,
}

enum Policy {
    Run { topology: Topology, fief: Fief },
    Apply(Front),
}

impl Rig {
    /// `None`: the machine has no such server.
    fn new(server: Server, by: By, queue: &str) -> Option<Self> {
        if !(ready() && require(server.feature())) {
            return None;
        }
        eprintln!("{server:?} by {by:?}"); // a failed test shows it
        let folder = tempfile::Builder::new().prefix("ff-server-").tempdir().unwrap();
        // a server that gave up root reads it, and writes what it answered
        std::fs::set_permissions(folder.path(), Permissions::from_mode(0o777)).unwrap();
        let start = server.prepare(folder.path());
        let topology = Topology::new().unwrap();
        let (mut command, policy) = match by {
            By::Run => run(topology, &start, folder.path(), queue),
            By::Apply(door) => {
                let front = Front::at(door, &policy(queue), topology);
                let mut command = front.server_command(start.words[0].to_str().unwrap());
                command.args(&start.words[1..]);
                (command, Policy::Apply(front))
            }
        };
        let said = folder.path().join("said");
        let said_too = File::create(&said).unwrap();
        command.stdout(said_too.try_clone().unwrap()).stderr(said_too);
        let mut process = Process::start(command).unwrap();
        process.ask_first(SOON);
        if let Policy::Run { fief, .. } = &policy {
            // a busy machine takes its time to verify the programs
            let is_up = || fief.installed() || process.try_wait().is_some();
            wait_until(LOADED, is_up).unwrap_or_else(|e| panic!("fief run: {e}"));
        }
        wait_ready(&policy.topology().server, &mut process, PORT, Some(&said)).unwrap();
        Some(Self { process, policy, folder, _start: start })
    }

    fn topology(&self) -> &Topology {
        self.policy.topology()
    }

    /// A request that waits for its answer; all of it has come to the server's machine.
    fn ask(&self, from: IpAddr, path: &str) -> TcpStream {
        let server = Topology::server_address(Family::V4, PORT);
        let mut stream = connect_from(&self.topology().clients, (from, 0).into(), server).unwrap();
        stream.set_read_timeout(Some(SOON)).unwrap();
        stream.write_all(format!("GET {path} HTTP/1.0\r\nHost: server\r\n\r\n").as_bytes()).unwrap();
        // one byte may stay unacknowledged, so that the client sends it again
        wait_until(SOON, || unacknowledged(&stream) <= 1).unwrap();
        stream
    }

    /// The paths that the server answered, in their order, but for the requests that found out whether it is there.
    fn answered(&self) -> Vec<String> {
        let text = std::fs::read_to_string(self.folder.path().join("answered")).unwrap();
        text.lines().filter(|path| *path != "/1k").map(str::to_owned).collect()
    }

    /// The server stands still while clients come.
    fn while_it_stands<T>(&self, come: impl FnOnce() -> T) -> T {
        let word = |pid: &u32, file: &str| std::fs::read_to_string(format!("/proc/{pid}/{file}")).unwrap_or_default();
        let pids = self.topology().server.pids().into_iter();
        let pids: Vec<u32> = pids.filter(|pid| word(pid, "comm").trim() != "fief").collect();
        let all = |signal| pids.iter().for_each(|pid| kill(Pid::from_raw(pid.cast_signed()), signal).unwrap());
        all(Signal::SIGSTOP);
        wait_until(SOON, || pids.iter().all(|pid| word(pid, "stat").contains(") T "))).unwrap();
        let come = come();
        all(Signal::SIGCONT);
        come
    }

    /// Clients of one of the libraries, whose every request has a path of its own. None is lost or answered with the answer
    /// of another, and the server got each of them once.
    fn is_asked_by(&self, client: &Library, mode: &str) {
        const CLIENTS: usize = 12;
        const REQUESTS: usize = 100;
        let before = self.answered().len();
        let host = Topology::server_address(Family::V4, PORT).ip().to_string();
        let mut command = client.command(self.topology());
        command.args([&host, &PORT.to_string(), mode, &CLIENTS.to_string(), &REQUESTS.to_string()]);
        let output = command.output().unwrap();
        let said = [&output.stdout, &output.stderr].map(|bytes| String::from_utf8_lossy(bytes).into_owned()).concat();
        assert!(output.status.success(), "{client:?}, {mode}: {said}");
        wait_until(SOON, || self.answered().len() >= before + CLIENTS * REQUESTS).unwrap();
        let mut times: HashMap<String, usize> = HashMap::new();
        self.answered().into_iter().skip(before).for_each(|path| *times.entry(path).or_default() += 1);
        let doubled: Vec<_> = times.iter().filter(|(_, count)| **count != 1).collect();
        assert!(doubled.is_empty() && times.len() == CLIENTS * REQUESTS, "{client:?}, {mode}: {doubled:?}");
    }

    fn stop(self) {
        self.process.stop(SOON).expect("it ends when it is asked to");
        if let Policy::Run { fief, .. } = &self.policy {
            assert!(!fief.installed());
        }
    }
}

/// The command that starts a server by `fief run`.
fn run(topology: Topology, start: &Start, folder: &Path, queue: &str) -> (Command, Policy) {
    let fief = Fief::with_scope(folder.file_name().unwrap().to_str().unwrap());
    let file = folder.join("policy.toml");
    std::fs::write(&file, format!("version = 1\n{}", policy(queue))).unwrap();
    let mut command = Command::new(fief_binary());
    command.arg("run").arg(&file).arg("--").args(&start.words).env("FIEF_SCOPE", fief.pins().scope());
    topology.server.enter(&mut command);
    (command, Policy::Run { topology, fief })
}

impl Policy {
    fn topology(&self) -> &Topology {
        match self {
            Policy::Run { topology, .. } => topology,
            Policy::Apply(front) => &front.topology,
        }
    }
}

#[derive(Debug)]
enum Library {
    Python,
    Go,
}

impl Library {
    fn command(&self, topology: &Topology) -> Command {
        match self {
            Library::Go => topology.clients.command(go("client")),
            Library::Python => {
                let mut command = topology.clients.command("python3");
                command.arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/queue_programs/client.py"));
                command
            }
        }
    }
}

fn is_answered_with(path: &str, mut stream: TcpStream) {
    let mut response = String::new();
    stream.read_to_string(&mut response).unwrap();
    assert!(response.starts_with("HTTP/1.") && response.ends_with(&format!("\r\n\r\n{path}")), "{path}: {response}");
}

/// The first request has begun when the high one comes, and all others wait.
fn the_better_class_goes_first_at(server: Server) {
    for by in EVERYWAY {
        // the place of the first lasts until all have come
        let Some(rig) = Rig::new(server, by, "{ in-service = 1, stale = \"30s\" }") else { return };
        let high = Client::High.address(Family::V4, 1);
        let low = (1..=WAITING).map(|n| (Client::Low.address(Family::V4, n), format!("/low-{n}")));
        let all: Vec<_> = low.chain([(high, "/high".to_owned())]).collect();
        let waiting: Vec<_> = rig.while_it_stands(|| all.iter().map(|(from, path)| rig.ask(*from, path)).collect());
        all.iter().zip(waiting).for_each(|((_, path), stream)| is_answered_with(path, stream));
        wait_until(SOON, || rig.answered().len() == all.len()).unwrap();
        let expected =
            ["/low-1", "/high"].into_iter().map(str::to_owned).chain((2..=WAITING).map(|n| format!("/low-{n}")));
        assert_eq!(rig.answered(), expected.collect::<Vec<_>>());
        rig.stop();
    }
}

fn none_is_lost_or_doubled_at(server: Server) {
    if !(require(Feature::Python) && require(Feature::Go)) {
        return;
    }
    for (by, queue) in [(By::Run, "{ in-service = 1 }"), (By::Run, "true"), (By::Apply(Door::Kernel), "true")] {
        let Some(rig) = Rig::new(server, by, queue) else { return };
        for client in [Library::Python, Library::Go] {
            for mode in ["each", "persistent"] {
                rig.is_asked_by(&client, mode);
            }
        }
        rig.stop();
    }
}

#[test]
fn nginx_serves_the_better_class_first() {
    the_better_class_goes_first_at(Server::Nginx);
}

#[test]
fn go_serves_the_better_class_first() {
    the_better_class_goes_first_at(Server::Go);
}

#[test]
fn node_serves_the_better_class_first() {
    the_better_class_goes_first_at(Server::Node);
}

#[test]
fn gunicorn_serves_the_better_class_first() {
    the_better_class_goes_first_at(Server::Gunicorn);
}

#[test]
fn nginx_gets_every_request_once() {
    none_is_lost_or_doubled_at(Server::Nginx);
}

#[test]
fn go_gets_every_request_once() {
    none_is_lost_or_doubled_at(Server::Go);
}

#[test]
fn node_gets_every_request_once() {
    none_is_lost_or_doubled_at(Server::Node);
}

#[test]
fn gunicorn_gets_every_request_once() {
    none_is_lost_or_doubled_at(Server::Gunicorn);
}
