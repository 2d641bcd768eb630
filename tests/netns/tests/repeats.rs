// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A queue of connection requests that filled at once is not answered again at once.

use std::collections::HashSet;
use std::net::SocketAddr;
use std::os::fd::AsRawFd;
use std::time::{Duration, Instant};

use fief_testkit::segment::{ACK, SYN, Segment, frame};
use fief_testkit::{Client, Family, Feature, ORDINARY_OPTIONS, Process, RawClients, Topology, Wire, require};
use fief_tests_netns::{Installation, PLAIN_POLICY, SOON, connect_once_served, role};

const PORT: u16 = 8080;
const REQUESTS: usize = 2000;
/// So many of them are not repeated at once.
const FEW: usize = REQUESTS / 6;

/// A server that accepts nobody.
fn serve() {
    use nix::sys::socket::{AddressFamily, Backlog, SockFlag, SockType, SockaddrStorage, bind, listen, socket};
    let address = Topology::server_address(Family::V4, PORT);
    let listener = socket(AddressFamily::Inet, SockType::Stream, SockFlag::empty(), None).unwrap();
    bind(listener.as_raw_fd(), &SockaddrStorage::from(address)).unwrap();
    listen(&listener, Backlog::new(4096).unwrap()).unwrap();
    loop {
        std::thread::park();
    }
}

/// How many answers at most are repeated within 20 ms, of those to one flood.
fn most_at_once(name: &str) -> usize {
    let topology = Topology::new().unwrap();
    // timestamps of one clock
    topology.server.sysctl("net.ipv4.tcp_timestamps", "2").unwrap();
    let installation = topology.server.run(|| Installation::new(PLAIN_POLICY, "unit")).unwrap();
    let mut part = installation.part(Some(&installation.cgroup()), name, "server");
    topology.server.enter(&mut part);
    let _server = Process::start(part).unwrap();
    let destination = Topology::server_address(Family::V4, PORT);
    drop(connect_once_served(&topology.clients, (Client::High.address(Family::V4, 1), 0).into(), destination));
    let _routes = RawClients::new(&topology).unwrap(); // nobody answers at their addresses
    let wire = Wire::open(&topology.clients, Topology::CLIENTS).unwrap();
    let [server, own] = [topology.link.near_mac, topology.link.far_mac].map(fief_testkit::Mac::octets);
    for n in 0..REQUESTS {
        let source = SocketAddr::new(RawClients::address(Family::V4, (n % 200 + 1) as u16), 2000 + (n / 200) as u16);
        let mut syn = Segment::new(source, destination, SYN);
        syn.options = ORDINARY_OPTIONS.to_vec();
        wire.send(&frame(server, own, &[], &syn.packet())).unwrap();
    }
    let (mut answered, mut repeated): (_, Vec<u32>) = (HashSet::new(), Vec::new());
    let mut buffer = vec![0; 1 << 16];
    let begin = Instant::now();
    while repeated.len() < REQUESTS / 3 {
        assert!(begin.elapsed() < SOON, "{} answers, {} repeated", answered.len(), repeated.len());
        let length = wire.receive(&mut buffer, Duration::from_millis(100)).unwrap_or(0);
        let answer = Segment::parse(&buffer[..length]).filter(|segment| segment.has(SYN | ACK));
        if let Some(answer) = answer
            && !answered.insert(answer.destination)
        {
            // when the server sent it, in ms
            let stamp = answer.option(8).expect("a timestamp");
            repeated.push(u32::from_be_bytes(stamp[..4].try_into().unwrap()));
        }
    }
    // the kernel's own timers are coarse: a quarter of a second for those of some seconds
    let first = repeated[0];
    repeated.sort_by_key(|at| at.wrapping_sub(first).cast_signed());
    let together = |from: usize| repeated[from..].partition_point(|at| at.wrapping_sub(repeated[from]) < 20);
    (0..repeated.len()).map(together).max().unwrap()
}

#[test]
fn the_answers_of_a_queue_that_filled_at_once_are_repeated_one_after_the_other() {
    let name = "the_answers_of_a_queue_that_filled_at_once_are_repeated_one_after_the_other";
    if role().is_some() {
        return serve();
    }
    if !(require(Feature::NetNs) && require(Feature::Cgroup2) && require(Feature::Bpf)) {
        return;
    }
    // what is due while a virtual CPU stands still is repeated at once behind that, and not in each of them
    let mut most = Vec::new();
    while most.len() < 3 && most.last().is_none_or(|most: &usize| *most >= FEW) {
        most.push(most_at_once(name));
    }
    assert!(most.iter().any(|most| *most < FEW), "{most:?} of {REQUESTS} within 20 ms");
}
