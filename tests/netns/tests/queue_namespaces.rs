// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A queue is of one network namespace: others have interfaces with the same numbers, and while a policy moves its door stands in both.

use std::io::Write;
use std::net::TcpStream;

use fief_bpf::ingress::{self, Part, Stand};
use fief_testkit::{Family, NetNs, PlainServer, Topology};
use fief_tests_netns::front::{Door, plain, ready};
use fief_tests_netns::queued::{Queued, lasting, low, status};
use fief_tests_netns::{connect_from, netns_number};

fn index(namespace: &NetNs, interface: &str) -> u32 {
    namespace.run(|| nix::net::if_::if_nametoindex(interface).unwrap()).unwrap()
}

/// The door stands there too, as it does before a policy moves there, or where its interface was moved to.
fn guard(rig: &Queued, other: &Topology) {
    let [own, interface] = [&rig.front.topology, other].map(|topology| index(&topology.server, Topology::SERVER));
    assert_eq!(own, interface);
    let stands = [Part::Guards, Part::Clocks].map(|part| Stand { netns: netns_number(&other.server), interface, part });
    let pins = rig.front.installation().fief().pins();
    other.server.run(|| ingress::attach(pins, &stands)).unwrap().unwrap();
}

/// An interface that has the number of the queue's clock, and sends nothing by itself.
fn clock_of(rig: &Queued, other: &Topology) {
    let (number, far) = (rig.queue().clock, other.clients.name());
    assert_ne!(number, 0);
    other.server.sysctl("net.ipv6.conf.default.disable_ipv6", "1").unwrap();
    other.server.ip(&format!("link add m0 index {number} type veth peer name m1 netns {far}")).unwrap();
    other.server.ip("link set m0 up").unwrap();
    other.clients.ip("link set m1 up").unwrap();
}

fn ask(other: &Topology) -> TcpStream {
    let mut stream = connect_from(&other.clients, (low(3), 0).into(), plain(Family::V4)).unwrap();
    stream.write_all(b"GET /10 HTTP/1.1\r\nHost: server\r\nConnection: close\r\n\r\n").unwrap();
    stream
}

#[test]
fn a_request_in_another_namespace_waits_in_no_queue_and_moves_none() {
    if !ready() {
        return;
    }
    for door in Door::GUARDS {
        let other = Topology::new().unwrap();
        let rig = Queued::new(door, &lasting());
        let server = PlainServer::start(&other.server, "0.0.0.0:80".parse().unwrap()).unwrap();
        guard(&rig, &other);
        clock_of(&rig, &other);
        let first = rig.ask(low(1), "/first");
        rig.got_all(1);
        // no place is free
        assert_eq!(status(ask(&other)), 200, "{door:?}: {:?}", rig.queue());
        let second = rig.ask(low(2), "/second");
        rig.wait_for(1);
        assert_eq!(status(ask(&other)), 200, "{door:?}: {:?}", rig.queue());
        rig.let_go(2);
        assert_eq!([first, second].map(status), [200; 2], "{door:?}");
        assert_eq!((rig.got(), server.accepted()), (vec!["/first".to_owned(), "/second".to_owned()], 2), "{door:?}");
        assert_eq!(other.server.read_device("m0/statistics/tx_packets").unwrap().trim(), "0", "{door:?}");
    }
}

/// They were acknowledged in the name of the server there.
#[test]
fn what_waits_is_let_go_to_its_own_server_when_the_policy_moves() {
    if !ready() {
        return;
    }
    for door in Door::GUARDS {
        let other = Topology::new().unwrap();
        let rig = Queued::new(door, &lasting());
        let first = rig.ask(low(1), "/first");
        rig.got_all(1);
        let second = rig.ask(low(2), "/second");
        rig.wait_for(1);
        let text = format!("version = 1\n{}", lasting());
        let applied = other.server.run(|| rig.front.installation().apply(&text)).unwrap().unwrap();
        assert_eq!(rig.got_all(2), ["/first", "/second"], "{door:?}: {:?}", applied.notes);
        rig.let_go(2);
        assert_eq!([first, second].map(status), [200; 2], "{door:?}");
        assert_eq!(rig.queue().netns.inode, netns_number(&other.server), "{door:?}");
    }
}
