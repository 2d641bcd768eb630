// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Servers as they are shipped, started by `fief run` as users do: clients are answered by class, and counted.

#[path = "run_servers/server.rs"]
mod server;

use std::fs::{File, OpenOptions, Permissions};
use std::io::{Read, Write};
use std::net::{IpAddr, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::process::Command;
use std::time::Duration;

use fief_control::{Classes, Fief, Status};
use fief_testkit::{Client, Family, Feature, Process, Topology, require, wait_ready, wait_until};
use fief_tests_netns::{SOON, connect_from, fief_binary, two_classes, unacknowledged, while_it_stands};
use server::{Server, Start};

const PORT: u16 = 8080;
/// How long the kernel may take to verify all programs.
const LOADED: Duration = Duration::from_secs(120);
const WAITING: u8 = 30;
const ADDRESS: &str = "address = \"0.0.0.0:8080\"";
const LISTENERS: &str = "address = \"0.0.0.0:8080\"\nclasses = \"listeners\"";
const CLASSES: [&str; 2] = ["shop/high", "shop/low"];

/// A server under `fief run`, and where it writes whom it answered.
struct Rig {
    process: Process,
    topology: Topology,
    fief: Fief,
    folder: tempfile::TempDir,
    _start: Start,
}

impl Rig {
    /// `None`: the machine has no such server. `listener` are the lines of the policy's listener.
    fn new(server: Server, listener: &str) -> Option<Self> {
        Self::started(server, listener, false)
    }

    /// `is_applied`: by `fief exec`, after the policy was put in force.
    fn started(server: Server, listener: &str, is_applied: bool) -> Option<Self> {
        let needed = [Feature::NetNs, Feature::Cgroup2, Feature::Bpf, server.feature()];
        if !needed.into_iter().all(require) {
            return None;
        }
        let topology = Topology::new().unwrap();
        let folder = tempfile::Builder::new().prefix("ff-server-").tempdir().unwrap();
        // a server that gave up root reads it
        std::fs::set_permissions(folder.path(), Permissions::from_mode(0o755)).unwrap();
        let fief = Fief::with_scope(folder.path().file_name().unwrap().to_str().unwrap());
        let policy = folder.path().join("policy.toml");
        std::fs::write(&policy, two_classes(listener)).unwrap();
        let start = server.start(folder.path());
        let fief_at_server = || {
            let mut command = Command::new(fief_binary());
            command.env("FIEF_SCOPE", fief.pins().scope());
            topology.server.enter(&mut command);
            command
        };
        let mut command = fief_at_server();
        if is_applied {
            assert!(fief_at_server().arg("apply").arg(&policy).status().unwrap().success());
            command.arg("exec");
        } else {
            command.arg("run").arg(&policy);
        }
        command.arg("--").args(&start.words);
        let answered = OpenOptions::new().append(true).create(true).open(folder.path().join("answered")).unwrap();
        let said = folder.path().join("said");
        command.stdout(answered).stderr(File::create(&said).unwrap());
        let mut process = Process::start(command).unwrap();
        process.ask_first(SOON);
        // a busy machine takes its time to verify the programs
        wait_until(LOADED, || fief.installed() || process.try_wait().is_some()).unwrap_or_else(|e| panic!("{e}"));
        wait_ready(&topology.server, &mut process, PORT, Some(&said)).unwrap();
        Some(Self { process, topology, fief, folder, _start: start })
    }

    /// A request that waits for its answer; all of it has come to the server's machine.
    fn ask(&self, from: IpAddr) -> TcpStream {
        let server = Topology::server_address(Family::V4, PORT);
        let mut stream = connect_from(&self.topology.clients, (from, 0).into(), server).unwrap();
        stream.set_read_timeout(Some(SOON)).unwrap();
        stream.write_all(b"GET /1k HTTP/1.0\r\nHost: server\r\n\r\n").unwrap();
        // one byte may stay unacknowledged, so that the client sends it again
        wait_until(SOON, || unacknowledged(&stream) <= 1).unwrap();
        stream
    }

    /// Connections that the classes were given so far.
    fn accepts(&self) -> [u64; 2] {
        let snapshot = self.fief.snapshot().unwrap();
        let of = |path| snapshot.containers.iter().find(|view| view.path == path).map_or(0, |view| view.usage.accepts);
        CLASSES.map(of)
    }

    fn status(&self) -> Status {
        self.topology.server.run(|| self.fief.status().unwrap()).unwrap()
    }

    /// The containers of the class listeners that are there.
    fn class_listeners(&self) -> Vec<String> {
        let snapshot = self.fief.snapshot().unwrap();
        let mut containers: Vec<_> = snapshot.class_listeners.into_iter().map(|listener| listener.container).collect();
        containers.sort();
        containers
    }

    /// Whom it answered, by which process.
    fn answered(&self) -> Vec<(IpAddr, u32)> {
        let text = std::fs::read_to_string(self.folder.path().join("answered")).unwrap();
        let pair = |line: &str| {
            let (client, pid) = line.split_once(' ').unwrap();
            (client.parse().unwrap(), pid.parse().unwrap())
        };
        text.lines().map(pair).collect()
    }

    /// Many clients of the low class and then one of the high class wait, and are answered and counted. The place of the
    /// high one among them.
    fn place_of_high(&self) -> usize {
        let (before, seen) = (self.accepts(), self.answered().len());
        let high = Client::High.address(Family::V4, 1);
        let clients = (1..=WAITING).map(|n| Client::Low.address(Family::V4, n)).chain([high]);
        let waiting: Vec<_> =
            while_it_stands(&self.topology.server, || clients.map(|client| self.ask(client)).collect());
        waiting.into_iter().for_each(is_answered);
        wait_until(SOON, || self.answered().len() == seen + usize::from(WAITING) + 1).unwrap();
        let after = self.accepts();
        assert_eq!([after[0] - before[0], after[1] - before[1]], [1, u64::from(WAITING)]);
        self.answered()[seen..].iter().position(|(client, _)| *client == high).expect("it was answered")
    }

    fn stop(self) {
        self.process.stop(SOON).expect("it ends when it is asked to");
        assert!(!self.fief.installed());
    }
}

fn is_answered(mut stream: TcpStream) {
    let mut response = String::new();
    stream.read_to_string(&mut response).unwrap();
    assert_eq!(response.split(' ').nth(1), Some("200"), "{response}");
}

fn the_high_class_goes_first_at(server: Server) {
    let Some(rig) = Rig::new(server, LISTENERS) else { return };
    assert_eq!(rig.class_listeners(), CLASSES);
    let status = rig.status();
    assert_eq!(status.listeners[0].classes, Classes { count: 2, with_socket: 2, shim: true, queue: None });
    assert!(status.listeners[0].servers.iter().all(|server| server.class.is_none()), "{status:?}");
    let place = rig.place_of_high();
    assert!(place < 8, "answered as number {place}: {:?}", rig.answered());
    rig.stop();
}

#[test]
fn nginx_answers_the_high_class_first_and_counts_both() {
    the_high_class_goes_first_at(Server::Nginx);
}

#[test]
fn nginx_under_a_policy_in_force_answers_the_high_class_first_and_leaves_the_policy() {
    let Some(rig) = Rig::started(Server::Nginx, LISTENERS, true) else { return };
    assert_eq!(rig.class_listeners(), CLASSES);
    let place = rig.place_of_high();
    assert!(place < 8, "answered as number {place}: {:?}", rig.answered());
    let Rig { process, fief, .. } = rig;
    process.stop(SOON).expect("it ends when it is asked to");
    assert!(fief.snapshot().unwrap().units.is_empty(), "its cgroup is gone");
    fief.down().unwrap();
}

#[test]
fn haproxy_answers_the_high_class_first_and_counts_both() {
    the_high_class_goes_first_at(Server::Haproxy);
}

/// Its class listeners were made for the program before it, which executes it with another environment.
#[test]
fn gunicorn_that_a_socket_activates_answers_the_high_class_first_and_counts_both() {
    if !require(Feature::Systemd) {
        return;
    }
    the_high_class_goes_first_at(Server::Gunicorn);
}

/// Its listening thread accepts in order, and its worker threads answer in whichever they are scheduled.
#[test]
fn apache_answers_both_classes_and_counts_them() {
    let Some(rig) = Rig::new(Server::Apache, LISTENERS) else { return };
    assert_eq!(rig.class_listeners(), CLASSES);
    rig.place_of_high();
    rig.stop();
}

/// The shim does not see it, so its clients are of their classes in what is counted, not in their order.
#[test]
fn go_answers_both_classes_and_counts_them() {
    let Some(rig) = Rig::new(Server::Go, LISTENERS) else { return };
    assert_eq!(rig.class_listeners(), [""; 0]);
    rig.place_of_high();
    let status = rig.status();
    assert_eq!(status.listeners[0].classes, Classes { count: 2, with_socket: 0, shim: false, queue: None });
    let said = status.problems;
    assert!(said.iter().any(|problem| problem.contains("one socket for all 2 classes")), "{said:?}");
    rig.stop();
}

/// A policy that says nothing of it has a queue, before servers of all kinds.
fn requests_wait_in_order_at(server: Server) {
    let Some(rig) = Rig::new(server, ADDRESS) else { return };
    let asks_for_a_queue = Classes { count: 2, with_socket: 0, shim: false, queue: Some(true) };
    assert_eq!(rig.status().listeners[0].classes, asks_for_a_queue);
    // of Go it is not known before it listens that it does so with multipath TCP, and the kernel is to answer
    wait_until(SOON, || rig.status().problems.is_empty()).unwrap_or_else(|_| panic!("{:?}", rig.status().problems));
    let entered = || -> Vec<u64> {
        let front = rig.fief.front().unwrap();
        front.queues[0].classes.iter().map(|class| class.entered + class.released).collect()
    };
    let before = entered();
    rig.place_of_high();
    assert_eq!(entered().iter().sum::<u64>() - before.iter().sum::<u64>(), u64::from(WAITING) + 1);
    rig.stop();
}

#[test]
fn go_has_a_queue_before_it_by_default() {
    requests_wait_in_order_at(Server::Go);
}

#[test]
fn nginx_has_a_queue_before_it_by_default() {
    requests_wait_in_order_at(Server::Nginx);
}

/// Each copy answers its class, in the class's cgroup, and does its work.
fn a_copy_for_each_class_of(server: Server) {
    let Some(rig) = Rig::new(server, &format!("{ADDRESS}\ncopies = \"per-class\"")) else { return };
    wait_until(SOON, || rig.class_listeners() == CLASSES).unwrap();
    let Status { listeners, problems, .. } = rig.status();
    assert_eq!(problems, [""; 0], "nobody has the address itself, and all clients are served");
    assert_eq!(listeners[0].classes, Classes { count: 2, with_socket: 2, shim: false, queue: None });
    let mut copies: Vec<_> = listeners[0].servers.iter().filter_map(|server| server.class.as_deref()).collect();
    copies.sort_unstable();
    copies.dedup();
    assert_eq!(copies, CLASSES, "{listeners:?}");
    let (before, seen) = (rig.accepts(), rig.answered().len());
    for n in 1..=5 {
        for class in [Client::High, Client::Low] {
            is_answered(rig.ask(class.address(Family::V4, n)));
        }
    }
    wait_until(SOON, || rig.answered().len() == seen + 10).unwrap();
    let after = rig.accepts();
    assert_eq!([after[0] - before[0], after[1] - before[1]], [5, 5]);
    for (client, pid) in &rig.answered()[seen..] {
        let class = if *client < Client::Low.address(Family::V4, 0) { "shop-high" } else { "shop-low" };
        let cgroup = std::fs::read_to_string(format!("/proc/{pid}/cgroup")).unwrap();
        assert!(cgroup.trim().ends_with(class), "{client} by a process of {cgroup}");
    }
    let spent = |path: &str| {
        let snapshot = rig.fief.snapshot().unwrap();
        snapshot.containers.iter().find(|view| view.path == path).unwrap().usage.thread_ns
    };
    assert!(CLASSES.into_iter().all(|path| spent(path) > 0));
    rig.stop();
}

#[test]
fn a_copy_of_nginx_for_each_class_serves_its_clients() {
    a_copy_for_each_class_of(Server::Nginx);
}

#[test]
fn a_copy_of_haproxy_for_each_class_serves_its_clients() {
    a_copy_for_each_class_of(Server::Haproxy);
}

#[test]
fn a_copy_of_apache_for_each_class_serves_its_clients() {
    a_copy_for_each_class_of(Server::Apache);
}

/// It asks for multipath TCP first, and is content with plain TCP.
#[test]
fn a_copy_of_a_go_server_for_each_class_serves_its_clients() {
    a_copy_for_each_class_of(Server::Go);
}
