// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Whose the work is that a server does for requests without a container.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpListener};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::time::Duration;

use fief_control::Fief;
use fief_testkit::{Client, Family, Feature, Process, Topology, require, wait_until};
use fief_tests_netns::{Installation, SOON, Setup, connect_once_served, role, spin, two_classes};

/// The policy has a listener there,
const NAMED: u16 = 8080;
/// and none there.
const OTHER: u16 = 8081;
/// Where the server listens for UNIX connections.
const NAME: &str = "FIEF_TEST_SOCKET";

/// A request is how many milliseconds to work. False: there are no more.
fn answer(connection: &mut (impl Read + Write)) -> bool {
    let mut cost = [0];
    let asks = matches!(connection.read(&mut cost), Ok(1));
    if asks {
        spin(Duration::from_millis(cost[0].into()));
        connection.write_all(&cost).unwrap();
    }
    asks
}

/// One thread serves a client of each kind in turn.
fn serve() {
    let [named, other] = [NAMED, OTHER].map(|port| TcpListener::bind((Ipv4Addr::UNSPECIFIED, port)).unwrap());
    let by_name = UnixListener::bind(std::env::var(NAME).unwrap()).unwrap();
    let mut named = named.accept().unwrap().0;
    let mut other = other.accept().unwrap().0;
    let mut by_name = by_name.accept().unwrap().0;
    while answer(&mut named) && answer(&mut other) && answer(&mut by_name) {}
}

fn thread_ms(fief: &Fief, path: &str) -> f64 {
    let containers = fief.snapshot().unwrap().containers;
    let usage = containers.iter().find(|container| container.path == path).unwrap().usage;
    usage.thread_ns as f64 / 1e6
}

#[test]
fn requests_without_a_container_are_the_servers_own_and_not_the_clients_before() {
    let name = "requests_without_a_container_are_the_servers_own_and_not_the_clients_before";
    if role().is_some() {
        serve();
        return;
    }
    if !require(Feature::NetNs) {
        return;
    }
    let topology = Topology::new().unwrap();
    let policy = two_classes(&format!("address = \"0.0.0.0:{NAMED}\"\nclasses = \"shared\""));
    let setup = Setup { policy: &policy, home: "shop", follow: true, ..Setup::default() };
    let installation = topology.server.run(|| Installation::with(&setup)).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let socket: PathBuf = folder.path().join("server");
    let mut part = installation.part(Some(&installation.cgroup()), name, "server");
    part.env(NAME, &socket);
    topology.server.enter(&mut part);
    let _server = Process::start(part).unwrap();
    let [mut named, mut other] = [NAMED, OTHER].map(|port| {
        let from = (Client::Low.address(Family::V4, 1), 0).into();
        connect_once_served(&topology.clients, from, Topology::server_address(Family::V4, port))
    });
    // this process is of no unit, so what it sends over UNIX connections is nobody's
    wait_until(SOON, || socket.exists()).unwrap();
    let mut by_name = UnixStream::connect(&socket).unwrap();

    let spent = || ["shop", "shop/low"].map(|path| thread_ms(installation.fief(), path));
    let mut found = Vec::new();
    // steal that the kernel learns of too late is the work of whoever is served then (bpf/core/steal.bpf.h): one round is without
    let is_apart = (0..10).any(|_| {
        let before = spent();
        // all are there at once, so that the server sleeps between none of them
        for _ in 0..30 {
            for connection in [&mut named as &mut dyn Write, &mut other, &mut by_name] {
                connection.write_all(&[4]).unwrap();
            }
            for connection in [&mut named as &mut dyn Read, &mut other, &mut by_name] {
                connection.read_exact(&mut [0]).unwrap();
            }
        }
        let [home, low] = spent();
        let (home, low) = (home - before[0], low - before[1]);
        found.push((home, low));
        low >= 30.0 * 4.0 * 0.9 && (1.5..2.5).contains(&(home / low))
    });
    assert!(is_apart, "ms of two clients without a container, and of one that has: {found:?}");
}
