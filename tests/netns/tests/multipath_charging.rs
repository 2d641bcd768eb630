// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What is charged for clients of multipath TCP at a server that listens with it, as Go's net/http does: the server's threads
//! work on a socket above the one that the packets reach.

use std::process::Stdio;

use fief::Usage;
use fief_testkit::{Client, Family, Feature, Process, Topology, require, wait_until};
use fief_tests_netns::front::ready;
use fief_tests_netns::{Installation, SOON, Setup, two_classes};

/// Milliseconds of work that a byte asks for; the answer comes when they are spent.
const SERVER: &str = r#"
import select, socket, sys, time
protocol = 262 if sys.argv[1] == "mptcp" else 0
s = socket.socket(socket.AF_INET6, socket.SOCK_STREAM, protocol)
s.setsockopt(1, 2, 1)
s.bind(("::", 80))
s.listen(64)
connections = {s.fileno(): s}
while True:
    for fd in select.select(list(connections), [], [])[0]:
        if fd == s.fileno():
            c, _ = s.accept()
            connections[c.fileno()] = c
            continue
        ask = connections[fd].recv(1)
        if not ask:
            connections.pop(fd).close()
            continue
        end = time.thread_time() + ask[0] / 1000
        while time.thread_time() < end:
            pass
        connections[fd].sendall(ask)
"#;

/// Asks so often, from an address, for so many milliseconds; then waits until it is told to close.
const CLIENT: &str = r#"
import socket, sys
protocol, source, server, times, cost = sys.argv[1:]
s = socket.socket(socket.AF_INET, socket.SOCK_STREAM, 262 if protocol == "mptcp" else 0)
s.settimeout(60)
s.bind((source, 0))
s.connect((server, 80))
for _ in range(int(times)):
    s.sendall(bytes([int(cost)]))
    assert s.recv(1)
print("done", flush=True)
sys.stdin.read()
"#;

struct Rig {
    topology: Topology,
    installation: Installation,
    _server: Process,
}

impl Rig {
    fn new(server: &str) -> Self {
        let topology = Topology::new().unwrap();
        let policy = two_classes("address = \"[::]:80\"\nclasses = \"shared\"");
        let setup = Setup { policy: &policy, home: "shop", follow: true, ..Setup::default() };
        let installation = topology.server.run(|| Installation::with(&setup)).unwrap();
        let mut command = installation.command("python3");
        topology.server.enter(&mut command);
        command.args(["-c", SERVER, server]);
        let server = Process::start(command).unwrap();
        let listens = || topology.server.run(|| std::net::TcpStream::connect("[::1]:80").is_ok()).unwrap();
        wait_until(SOON, listens).unwrap();
        Self { topology, installation, _server: server }
    }

    /// A client that has been served and keeps its connection.
    fn serve(&self, protocol: &str, class: Client, times: u32, cost: u32) -> std::process::Child {
        let address = |ip: std::net::IpAddr| ip.to_string();
        let mut command = self.topology.clients.command("python3");
        command.args(["-c", CLIENT, protocol, &address(class.address(Family::V4, 1))]);
        command.arg(address(Topology::server_address(Family::V4, 80).ip()));
        command.args([times.to_string(), cost.to_string()]);
        let mut client = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        let mut said = std::io::BufReader::new(client.stdout.take().unwrap());
        std::io::BufRead::read_line(&mut said, &mut line).unwrap();
        assert_eq!(line, "done\n");
        client
    }

    fn usage(&self, path: &str) -> (Usage, u32) {
        let snapshot = self.installation.fief().snapshot().unwrap();
        let view = snapshot.containers.iter().find(|view| view.path == path).unwrap();
        (view.usage, view.sockets)
    }
}

#[test]
fn work_for_multipath_clients_is_their_classes() {
    if !(ready() && require(Feature::Python)) {
        return;
    }
    for (server, client) in [("mptcp", "mptcp"), ("mptcp", "tcp")] {
        let rig = Rig::new(server);
        // who asked whether it listens
        wait_until(SOON, || rig.usage("shop/low").0.accepts == 1).unwrap();
        let before = rig.usage("shop/low").0.accepts;
        let mut high = rig.serve(client, Client::High, 30, 10);
        let mut low = rig.serve(client, Client::Low, 30, 4);
        for (path, least, most, before) in [("shop/high", 300, 400, 0), ("shop/low", 120, 240, before)] {
            let (usage, sockets) = rig.usage(path);
            let spent = usage.thread_ns / 1_000_000;
            // the server's own clock has interrupts on top of it, and what the hypervisor stole, which is nobody's
            let least = least / 2;
            assert!((least..most).contains(&spent), "{client} at {server}, {path}: {spent} ms");
            assert_eq!((usage.accepts - before, sockets), (1, 1), "{client} at {server}, {path}");
        }
        for client in [&mut high, &mut low] {
            drop(client.stdin.take());
            client.wait().unwrap();
        }
        wait_until(SOON, || ["shop/high", "shop/low"].iter().all(|path| rig.usage(path).1 == 0)).unwrap();
    }
}
