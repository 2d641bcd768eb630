// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A server with the listen shim under a policy of three classes, and its clients.

#![allow(dead_code, reason = "each test program uses its part")]

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::path::PathBuf;
use std::process::{ChildStdin, ChildStdout, Command, Stdio};

use fief_control::steer::{self, ClassListener, Shim};
use fief_control::{ApplyOptions, ManageOptions, Target};
use fief_testkit::{Cgroup, Client, Family, Feature, Process, Topology, require, wait_until};
use fief_tests_netns::{Installation, SOON, connect_from, unacknowledged};
use libbpf_rs::MapHandle;

pub const PORT: u16 = 8080;
/// Of both families.
pub const PORT6: u16 = 8081;

/// High before middle, middle before the rest; robots (10.77.3/24) only when nobody else wants.
pub const POLICY: &str = r#"
version = 1
[container.shop]
[container."shop/high"]
cpu.priority = 200
[container."shop/low"]
cpu.priority = 100
[container."shop/robots"]
cpu.priority = 0
[listener.web]
address = "0.0.0.0:8080"
classes = "listeners"
[[listener.web.client]]
from = ["10.77.1.0/24"]
container = "shop/high"
[[listener.web.client]]
from = ["10.77.3.0/24"]
container = "shop/robots"
[[listener.web.client]]
from = ["any"]
container = "shop/low"
[listener.both]
address = "[::]:8081"
classes = "listeners"
[[listener.both.client]]
from = ["10.77.1.0/24", "fd77::1:0/112"]
container = "shop/high"
[[listener.both.client]]
from = ["any"]
container = "shop/low"
"#;

/// Whether the machine has what these tests need.
pub fn ready() -> bool {
    require(Feature::NetNs) && require(Feature::Cgroup2) && require(Feature::Bpf) && require(Feature::Python)
}

pub struct Rig {
    // Dropped first: what it attached must not outlive the namespace.
    pub installation: Installation,
    pub topology: Topology,
    shim: Shim,
    folder: tempfile::TempDir,
}

impl Rig {
    pub fn new(policy: &str) -> Self {
        Self::with_home(policy, "shop")
    }

    pub fn with_home(policy: &str, home: &str) -> Self {
        let topology = Topology::new().unwrap();
        let installation = topology.server.run(|| Installation::new(policy, home)).unwrap();
        let folder = tempfile::Builder::new().prefix("ff-steer-").tempdir().unwrap();
        // Servers that gave up root must reach the shim.
        let open = std::os::unix::fs::PermissionsExt::from_mode(0o755);
        std::fs::set_permissions(folder.path(), open).unwrap();
        let shim = Shim::write(folder.path()).unwrap();
        Self { installation, topology, shim, folder }
    }

    /// Replaces the policy.
    pub fn apply(&self, policy: &str) {
        let parsed = fief_policy::parse(policy, "test.toml").unwrap_or_else(|e| panic!("{e}"));
        let fief = self.installation.fief();
        self.topology.server.run(|| fief.apply(&parsed, policy, &ApplyOptions::default())).unwrap().unwrap();
    }

    /// A command inside the managed cgroup and the server's namespace.
    pub fn command(&self, program: &str) -> Command {
        let mut command = self.installation.command(program);
        self.topology.server.enter(&mut command);
        command
    }

    /// Another managed cgroup, with a home of its own.
    pub fn unit(&self, home: &str) -> Cgroup {
        let cgroup = Cgroup::new(&home.replace('/', "-")).unwrap();
        let options = ManageOptions { container: Some(home.to_owned()), follow: false };
        self.installation.fief().manage(&Target::Cgroup(cgroup.path().to_owned()), &options).unwrap();
        cgroup
    }

    /// As [`Rig::command`], inside another unit.
    pub fn command_in(&self, unit: &Cgroup, program: &str) -> Command {
        let mut command = Command::new("/bin/sh");
        command.args(["-c", "echo $$ > \"$0/cgroup.procs\" && exec \"$@\""]).arg(unit.path()).arg(program);
        self.topology.server.enter(&mut command);
        command
    }

    /// As [`Rig::command`], with the shim.
    pub fn command_with_shim(&self, program: &str) -> Command {
        // By env, so that the shell that enters the cgroup is not interposed.
        let mut command = self.command("env");
        let (name, value) = self.shim.environment();
        let mut setting = std::ffi::OsString::from(format!("{name}="));
        setting.push(value);
        command.arg(setting).arg(program);
        command
    }

    /// Starts server.py; it listens when this returns.
    pub fn server(&self, way: &str, host: &str, port: u16) -> Server {
        let program = self.script();
        let mut command = self.command_with_shim("python3");
        command.arg(program).args([way, host, &port.to_string()]);
        Server::start(command)
    }

    pub fn script(&self) -> PathBuf {
        let program = self.folder.path().join("server.py");
        std::fs::write(&program, include_str!("server.py")).unwrap();
        program
    }

    /// The class listeners that are registered now.
    pub fn registered(&self) -> Vec<ClassListener> {
        let pin = self.installation.fief().pins().map("class_listeners");
        steer::registered(&MapHandle::from_pinned_path(pin).unwrap()).unwrap()
    }

    /// Connections that a container's clients have had accepted.
    pub fn accepts(&self, path: &str) -> u64 {
        let snapshot = self.installation.fief().snapshot().unwrap();
        snapshot.containers.iter().find(|container| container.path == path).unwrap().usage.accepts
    }

    /// Connects, and leaves the server waiting for a word.
    pub fn connect_silently(&self, from: IpAddr, server: SocketAddr) -> Connection {
        let stream = connect_from(&self.topology.clients, (from, 0).into(), server);
        let stream = stream.unwrap_or_else(|error| panic!("connect from {from} to {server}: {error}"));
        stream.set_read_timeout(Some(SOON)).unwrap();
        Connection { stream }
    }

    /// Connects from each address in turn, and waits until each connection waits for the server's accept.
    pub fn connect(&self, from: &[IpAddr], server: SocketAddr) -> Vec<Connection> {
        let mut connections: Vec<_> = from.iter().map(|&from| self.connect_silently(from, server)).collect();
        for connection in &mut connections {
            connection.say();
        }
        // The client's side is established before the server's: only what its kernel has acknowledged is in a queue.
        for connection in &connections {
            wait_until(SOON, || unacknowledged(&connection.stream) == 0).unwrap();
        }
        connections
    }
}

/// The server's answer: which process, and its own address as it saw it.
#[derive(Clone, Debug)]
pub struct Answer {
    pub pid: u32,
    pub address: SocketAddr,
}

pub struct Connection {
    pub stream: TcpStream,
}

impl Connection {
    pub fn say(&mut self) {
        self.stream.write_all(b"x").unwrap();
    }

    pub fn answer(mut self) -> Answer {
        let mut text = String::new();
        self.stream.read_to_string(&mut text).unwrap();
        let words: Vec<_> = text.split(' ').collect();
        let [pid, ip, port] = words[..] else { panic!("the server said {text:?}") };
        Answer { pid: pid.parse().unwrap(), address: (ip.parse::<IpAddr>().unwrap(), port.parse().unwrap()).into() }
    }
}

/// Every one of them gets its answer.
pub fn answered(connections: Vec<Connection>) {
    for connection in connections {
        connection.answer();
    }
}

/// A server that says whom it serves, in the order in which it does.
pub struct Server {
    process: Process,
    stdin: ChildStdin,
    lines: std::io::Lines<BufReader<ChildStdout>>,
}

impl Server {
    pub fn start(command: Command) -> Self {
        Self::start_after(command).0
    }

    /// Also what it says before it listens.
    pub fn start_after(mut command: Command) -> (Self, Vec<String>) {
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut process = Process::start(command).unwrap();
        let stdin = process.child().stdin.take().unwrap();
        let stdout = process.child().stdout.take().unwrap();
        let mut server = Self { process, stdin, lines: BufReader::new(stdout).lines() };
        let mut before = Vec::new();
        loop {
            match server.line() {
                line if line == "listening" => return (server, before),
                line => before.push(line),
            }
        }
    }

    pub fn pid(&self) -> u32 {
        self.process.pid()
    }

    /// Lets it accept.
    pub fn go(&mut self) {
        writeln!(self.stdin).unwrap();
    }

    /// What it says next.
    pub fn line(&mut self) -> String {
        self.lines.next().expect("the server lives").unwrap()
    }

    /// The next `count` clients that it serves.
    pub fn served(&mut self, count: usize) -> Vec<IpAddr> {
        (0..count).map(|_| self.line().parse().unwrap()).collect()
    }
}

pub fn high(n: u8) -> IpAddr {
    Client::High.address(Family::V4, n)
}

pub fn low(n: u8) -> IpAddr {
    Client::Low.address(Family::V4, n)
}

pub fn robot(n: u8) -> IpAddr {
    Client::Middle.address(Family::V4, n)
}
