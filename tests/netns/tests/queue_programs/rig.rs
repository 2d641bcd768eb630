// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A real server under a policy with a queue, by `fief run`, or by `fief apply` and its cgroup managed.

#![allow(dead_code, reason = "not every test uses all of it")]

#[path = "server.rs"]
pub mod server;

use std::ffi::OsString;
use std::fs::{File, Permissions};
use std::io::Write;
use std::net::{IpAddr, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use fief_bpf::abi;
use fief_control::Fief;
use fief_testkit::{Family, Process, Result, Topology, require, wait_ready, wait_until};
use fief_tests_netns::front::{Door, Front, ready};
use fief_tests_netns::{SOON, connect_from, fief_binary, unacknowledged};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use server::{Server, Start};

/// How long the kernel may take to verify all programs.
const LOADED: Duration = Duration::from_secs(120);

/// Without its version, which a door brings. `queue` is what the listener says of its queue.
pub fn policy(port: u16, queue: &str) -> String {
    format!(
        r#"
[container.web]
[container."web/high"]
cpu.priority = 200
[container."web/low"]
[listener.web]
address = "0.0.0.0:{port}"
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
pub enum By {
    /// `fief run`.
    Run,
    /// `fief apply`, and the server's cgroup managed, with this handshake.
    Apply(Door),
}

pub const EVERYWAY: [By; 3] = [By::Run, By::Apply(Door::Own), By::Apply(Door::Kernel)];

/// A server under a policy.
pub struct Rig {
    // ends before its policy
    process: Process,
    policy: Policy,
    server: Server,
    folder: tempfile::TempDir,
    _start: Start,
}

/// A policy before a server.
pub enum Policy {
    Run { topology: Topology, fief: Fief },
    Apply(Front),
}

impl Rig {
    /// `None`: the machine has no such server.
    pub fn new(server: Server, by: By, queue: &str) -> Option<Self> {
        Self::at(server, by, queue, Topology::new)
    }

    /// The same in a topology of one's own making.
    pub fn at(server: Server, by: By, queue: &str, make: impl FnOnce() -> Result<Topology>) -> Option<Self> {
        if !(ready() && server.features().iter().copied().all(require)) {
            return None;
        }
        eprintln!("{server:?} by {by:?}"); // a failed test shows it
        let folder = tempfile::Builder::new().prefix("ff-server-").tempdir().unwrap();
        // a server that gave up root reads it, and writes what it answered
        std::fs::set_permissions(folder.path(), Permissions::from_mode(0o777)).unwrap();
        let start = server.prepare(folder.path());
        let text = policy(server.port(), queue);
        let (mut command, policy) = Policy::begin(by, &text, &start.words, folder.path(), make().unwrap());
        let said = folder.path().join("said");
        let said_too = File::create(&said).unwrap();
        command.stdout(said_too.try_clone().unwrap()).stderr(said_too);
        let mut process = Process::start(command).unwrap();
        process.ask_first(SOON);
        policy.wait_in_force(&mut process);
        wait_ready(&policy.topology().server, &mut process, server.plain_port(), Some(&said)).unwrap();
        Some(Self { process, policy, server, folder, _start: start })
    }

    pub fn topology(&self) -> &Topology {
        self.policy.topology()
    }

    /// A request that waits for its answer; all of it has come to the server's machine.
    pub fn ask(&self, from: IpAddr, path: &str) -> TcpStream {
        let server = Topology::server_address(Family::V4, self.server.port());
        let mut stream = connect_from(&self.topology().clients, (from, 0).into(), server).unwrap();
        stream.set_read_timeout(Some(SOON)).unwrap();
        stream.write_all(format!("GET {path} HTTP/1.0\r\nHost: server\r\n\r\n").as_bytes()).unwrap();
        // one byte may stay unacknowledged, so that the client sends it again
        wait_until(SOON, || unacknowledged(&stream) <= 1).unwrap();
        stream
    }

    /// The paths that the server answered, in their order, but for the requests that found out whether it is there.
    pub fn answered(&self) -> Vec<String> {
        if self.server == Server::Lighttpd {
            self.have_log_written();
        }
        let text = std::fs::read_to_string(self.folder.path().join("answered")).unwrap();
        // of a log of whole request lines the target
        let paths = text.lines().filter_map(|line| line.split(' ').find(|word| word.starts_with('/')));
        paths.filter(|path| *path != "/1k").map(str::to_owned).collect()
    }

    /// lighttpd writes its log every four seconds, and when it is to begin a new one.
    fn have_log_written(&self) {
        let name = |pid: &u32| std::fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
        for pid in self.topology().server.pids().into_iter().filter(|pid| name(pid).trim() == "lighttpd") {
            // it may have ended
            let _ = kill(Pid::from_raw(pid.cast_signed()), Signal::SIGHUP);
        }
    }

    /// Its queue.
    pub fn queue(&self) -> abi::fief_queue {
        self.policy.queue()
    }

    /// The port that the policy names.
    pub fn port(&self) -> u16 {
        self.server.port()
    }

    pub fn stop(self) {
        self.process.stop(SOON).expect("it ends when it is asked to");
        self.policy.ends();
    }
}

impl Policy {
    /// The command that starts these words under a policy, which by `fief run` comes into force with them. `folder`: for its file.
    pub fn begin(by: By, policy: &str, words: &[OsString], folder: &Path, topology: Topology) -> (Command, Self) {
        match by {
            By::Run => run(topology, words, folder, policy),
            By::Apply(door) => {
                let front = Front::at(door, policy, topology);
                let mut command = front.server_command(words[0].to_str().unwrap());
                command.args(&words[1..]);
                (command, Policy::Apply(front))
            }
        }
    }

    /// Waits until it is in force, unless the process that puts it there has ended.
    pub fn wait_in_force(&self, process: &mut Process) {
        if let Policy::Run { fief, .. } = self {
            // a busy machine takes its time to verify the programs
            let is_up = || fief.installed() || process.try_wait().is_some();
            wait_until(LOADED, is_up).unwrap_or_else(|e| panic!("fief run: {e}"));
        }
    }

    /// Its queue.
    pub fn queue(&self) -> abi::fief_queue {
        let pins = match self {
            Policy::Run { fief, .. } => fief.pins(),
            Policy::Apply(front) => front.installation().fief().pins(),
        };
        fief_bpf::queue::all(pins).unwrap().pop().expect("a queue").1
    }

    pub fn topology(&self) -> &Topology {
        match self {
            Policy::Run { topology, .. } => topology,
            Policy::Apply(front) => &front.topology,
        }
    }

    /// The server has ended: what came into force with it is in force no longer.
    pub fn ends(&self) {
        if let Policy::Run { fief, .. } = self {
            assert!(!fief.installed());
        }
    }
}

/// The command that starts a server by `fief run`.
fn run(topology: Topology, words: &[OsString], folder: &Path, policy: &str) -> (Command, Policy) {
    let fief = Fief::with_scope(folder.file_name().unwrap().to_str().unwrap());
    let file = folder.join("policy.toml");
    std::fs::write(&file, format!("version = 1\n{policy}")).unwrap();
    let mut command = Command::new(fief_binary());
    command.arg("run").arg(&file).arg("--").args(words).env("FIEF_SCOPE", fief.pins().scope());
    topology.server.enter(&mut command);
    (command, Policy::Run { topology, fief })
}
