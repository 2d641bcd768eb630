// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A lane goes on: who has entered and who has left agree whatever device a packet came from, and what was lost or came
//! from elsewhere ends no lane. Nor does a policy that fails, or what somebody does to its interfaces.

#[path = "lrp/stage.rs"]
mod stage;

use std::io::Read;
use std::net::{Ipv4Addr, Shutdown, SocketAddr};

use fief_testkit::segment::{ACK, SYN, Segment, frame};
use fief_testkit::{Client, Family, Feature, Mac, NetNs, Tap, Topology, require, wait_until};
use fief_tests_netns::{Away, SOON, role, watch_steps};
use stage::{PORT, Stage, policy, scheduling, send_all, serve};

/// A peer behind a tap device in the server's namespace; its packets are received as those of a virtual machine's.
struct Peer {
    tap: Tap,
    own: SocketAddr,
    server: SocketAddr,
    macs: [[u8; 6]; 2],
}

impl Peer {
    fn of(stage: &Stage, policy: &str) -> Self {
        let server = &stage.topology.server;
        stage.upload(Family::V4, Client::High, PORT, 1); // it listens
        let tap = Tap::new(server, "tap0").unwrap();
        let own = [2, 0, 0, 0, 0, 2];
        server.ip("addr add 10.78.0.1/24 dev tap0").unwrap();
        server.ip("link set tap0 up").unwrap();
        server.ip("neigh replace 10.78.0.2 lladdr 02:00:00:00:00:02 dev tap0 nud permanent").unwrap();
        server.run(|| stage.installation.apply(policy).unwrap()).unwrap();
        let address: Mac = server.read_device("tap0/address").unwrap().parse().unwrap();
        let client = (Ipv4Addr::new(10, 78, 0, 2), 5000).into();
        Self { tap, own: client, server: Topology::server_address(Family::V4, PORT), macs: [address.octets(), own] }
    }

    fn frame(&self, segment: &Segment) -> Vec<u8> {
        frame(self.macs[0], self.macs[1], &[], &segment.packet())
    }

    fn segment(&self, flags: u8, sequence: u32, acknowledgment: u32) -> Segment {
        Segment { sequence, acknowledgment, ..Segment::new(self.own, self.server, flags) }
    }

    /// A connection from a port: the numbers that the server expects next and will send next.
    fn open(&mut self, port: u16) -> (u32, u32) {
        self.own.set_port(port);
        let mut syn = self.segment(SYN, 999, 0);
        syn.options = vec![2, 4, 5, 0xb4];
        self.tap.send(&self.frame(&syn)).unwrap();
        let greeting = loop {
            let segment = self.tap.receive(SOON).expect("a SYN-ACK");
            if segment.has(SYN | ACK) {
                break segment;
            }
        };
        let numbers = (1000, greeting.sequence.wrapping_add(1));
        self.tap.send(&self.frame(&self.segment(ACK, numbers.0, numbers.1))).unwrap();
        numbers
    }

    /// Whether the server acknowledges all before this number.
    fn is_acknowledged(&self, end: u32) -> bool {
        loop {
            match self.tap.receive(SOON) {
                Some(segment) if segment.acknowledgment == end => return true,
                Some(_) => {}
                None => return false,
            }
        }
    }
}

#[test]
fn frames_that_a_device_merged_without_counting_end_no_lane() {
    let name = "frames_that_a_device_merged_without_counting_end_no_lane";
    if role().is_some() {
        return serve();
    }
    if !require(Feature::ThreadedNapi) {
        return;
    }
    let stage = Stage::new(name, "always");
    let mut peer = Peer::of(&stage, &policy("always"));
    let (mut at, server) = peer.open(5000);
    let mut segments = 2;
    for (size, length) in [(1400u16, 20_000u32), (1460, 2920), (536, 20_000), (1400, 1401), (100, 20_000), (1460, 1460)]
    {
        for _ in 0..3 {
            let mut data = peer.segment(ACK, at, server);
            data.payload = vec![7; length as usize];
            peer.tap.send_merged(&peer.frame(&data), size).unwrap();
            at += length;
            segments += u64::from(length.div_ceil(size.into()));
            assert!(peer.is_acknowledged(at), "{length} bytes in segments of {size}: {:?}", stage.lane("shop/low"));
        }
    }
    let lane = stage.settled("shop/low");
    assert_eq!((lane.entered, lane.discarded), (segments, 0));
    // more segments than a lane holds: one packet that is dropped, and counted
    let mut data = peer.segment(ACK, at, server);
    data.payload = vec![7; 20_000];
    peer.tap.send_merged(&peer.frame(&data), 10).unwrap();
    wait_until(SOON, || stage.lane("shop/low").discarded == 2000).unwrap();
    peer.tap.send_merged(&peer.frame(&data), 1000).unwrap();
    assert!(peer.is_acknowledged(at + 20_000));
}

#[test]
fn an_admitted_connection_takes_its_lane_however_its_first_bytes_were_merged() {
    let name = "an_admitted_connection_takes_its_lane_however_its_first_bytes_were_merged";
    if role().is_some() {
        return serve();
    }
    if !require(Feature::ThreadedNapi) {
        return;
    }
    let stage = Stage::new(name, "always");
    let admitting = policy("always").replace("version = 1\n", "version = 1\n[front]\nhandshake = \"own\"\n")
        + "[[listener.four.request]]\npath = \"/high/*\"\ncontainer = \"shop/high\"\n";
    let mut peer = Peer::of(&stage, &admitting);
    for (port, length) in (6000..).zip([100, 1400, 1401, 2800, 9000]) {
        let (mut at, server) = peer.open(port);
        let head = "POST /high/1 HTTP/1.1\r\nHost: a\r\nContent-Length: 2000\r\nX: ";
        let mut data = peer.segment(ACK, at, server);
        data.payload = format!("{head}{}\r\n\r\n", "x".repeat(length - head.len() - 4)).into_bytes();
        peer.tap.send_merged(&peer.frame(&data), 1400).unwrap();
        at += length as u32;
        assert!(peer.is_acknowledged(at), "a head of {length} bytes");
        // what follows is of the class that the request named
        let before = stage.settled("shop/high").entered;
        let more = Segment { sequence: at, payload: vec![7; 2000], ..data };
        peer.tap.send_merged(&peer.frame(&more), 1000).unwrap();
        assert!(peer.is_acknowledged(at + 2000), "behind a head of {length} bytes");
        assert_eq!(stage.settled("shop/high").entered, before + 2);
    }
}

#[test]
fn a_lane_whose_packets_were_lost_goes_on() {
    let name = "a_lane_whose_packets_were_lost_goes_on";
    if role().is_some() {
        return serve();
    }
    if !require(Feature::ThreadedNapi) {
        return;
    }
    let stage = Stage::new(name, "always");
    let server = &stage.topology.server;
    let lost = stage.syns(Family::V4, Client::Low, 400);
    let lane = stage.lane("shop/low").interface;
    server.ip(&format!("link set {lane} down")).unwrap();
    stage.flood(&lost);
    wait_until(SOON, || stage.lane("shop/low").entered > 0).unwrap();
    server.ip(&format!("link set {lane} up")).unwrap();
    for _ in 0..2 {
        stage.upload(Family::V4, Client::Low, PORT, 1 << 20);
    }
}

#[test]
fn packets_that_others_send_into_a_lane_end_it_not() {
    let name = "packets_that_others_send_into_a_lane_end_it_not";
    if role().is_some() {
        return serve();
    }
    if !require(Feature::ThreadedNapi) {
        return;
    }
    let stage = Stage::new(name, "always");
    let end = stage.lane("shop/low").interface.replace('r', "s");
    let strange = stage.syns(Family::V4, Client::Low, 50);
    let before = stage.settled("shop/low");
    let sender = stage.topology.server.run(|| fief_testkit::PacketSender::open(&end)).unwrap().unwrap();
    let mut rest = &strange[..];
    while !rest.is_empty() {
        rest = &rest[sender.send(rest).unwrap()..];
    }
    wait_until(SOON, || stage.lane("shop/low").left > before.left).unwrap();
    stage.upload(Family::V4, Client::Low, PORT, 1 << 20);
}

/// Between two looks at the lanes while a policy is applied.
const STEPS: usize = 25;

/// Its containers have lanes in both network namespaces meanwhile, whose interfaces have numbers in common.
#[test]
fn a_lane_goes_on_while_a_policy_moves_elsewhere_and_fails() {
    let name = "a_lane_goes_on_while_a_policy_moves_elsewhere_and_fails";
    if role().is_some() {
        return serve();
    }
    if !require(Feature::ThreadedNapi) {
        return;
    }
    let stage = Stage::new(name, "always");
    let elsewhere = NetNs::new("elsewhere").unwrap();
    for words in ["add e0 type veth peer name e1", "set e0 up", "set e1 up"] {
        elsewhere.ip(&format!("link {words}")).unwrap();
    }
    let apply = || stage.installation.apply(&policy("always"));
    let goes_on = || {
        let before = stage.settled("shop/low");
        stage.upload(Family::V4, Client::Low, PORT, 1 << 20);
        let after = stage.settled("shop/low");
        assert!(after.entered > before.entered && after.thread == before.thread, "{before:?} {after:?}");
    };
    goes_on();
    let away = Away::flip(stage.installation.fief());
    let mut step = 0;
    let look = || {
        step += 1;
        if step % STEPS == 0 {
            goes_on();
        }
    };
    elsewhere.run(|| watch_steps(|| drop(apply().unwrap_err()), look)).unwrap();
    goes_on();
    assert!(step > 2 * STEPS, "{step} steps");
    drop(away);
    elsewhere.run(|| apply().unwrap()).unwrap();
    stage.topology.server.run(|| apply().unwrap()).unwrap();
    goes_on();
}

#[test]
fn a_lane_keeps_its_priority_when_a_policy_fails() {
    let name = "a_lane_keeps_its_priority_when_a_policy_fails";
    if role().is_some() {
        return serve();
    }
    if !require(Feature::ThreadedNapi) {
        return;
    }
    let stage = Stage::new(name, "always");
    let server = &stage.topology.server;
    let changed = policy("always").replace("cpu.priority = 50", "cpu.priority = 150");
    let apply = || server.run(|| stage.installation.apply(&changed)).unwrap();
    let nice = || scheduling(stage.thread("shop/low")).0;
    let (before, away) = (nice(), Away::flip(stage.installation.fief()));
    apply().unwrap_err();
    assert_eq!(nice(), before);
    drop(away);
    apply().unwrap();
    assert!(nice() < before, "{} {before}", nice());
}

#[test]
fn a_lane_that_somebody_took_down_is_mended_by_the_next_apply() {
    let name = "a_lane_that_somebody_took_down_is_mended_by_the_next_apply";
    if role().is_some() {
        return serve();
    }
    if !require(Feature::ThreadedNapi) {
        return;
    }
    let stage = Stage::new(name, "always");
    let server = &stage.topology.server;
    let (lane, before) = (stage.lane("shop/low").interface, scheduling(stage.thread("shop/low")));
    server.ip(&format!("link set {lane} down")).unwrap();
    server.run(|| stage.installation.apply(&policy("always")).unwrap()).unwrap();
    stage.upload(Family::V4, Client::Low, PORT, 1 << 20);
    // the kernel has made another thread for it
    assert_eq!(scheduling(stage.thread("shop/low")), before);
}

#[test]
fn a_lane_that_somebody_removed_loses_no_packet_until_the_next_apply_makes_it_anew() {
    let name = "a_lane_that_somebody_removed_loses_no_packet_until_the_next_apply_makes_it_anew";
    if role().is_some() {
        return serve();
    }
    if !require(Feature::ThreadedNapi) {
        return;
    }
    let stage = Stage::new(name, "always");
    let server = &stage.topology.server;
    let mut stream = stage.connect(Family::V4, Client::Low.address(Family::V4, 1), PORT);
    stream.set_write_timeout(Some(SOON)).unwrap();
    stream.set_read_timeout(Some(SOON)).unwrap();
    send_all(&mut stream, 1 << 20);
    let before = stage.settled("shop/low");
    assert!(before.entered > 0);
    server.ip(&format!("link del {}", before.interface)).unwrap();
    send_all(&mut stream, 16 << 20);
    stream.shutdown(Shutdown::Write).unwrap();
    assert_eq!(stream.read(&mut [0; 2]).unwrap(), 1);
    stage.upload(Family::V4, Client::Low, PORT, 1 << 20);

    let told = || stage.installation.fief().status().unwrap().problems;
    let gone = "the lane of shop/low is gone";
    assert!(told().iter().any(|problem| problem.starts_with(gone)), "{:?}", told());
    server.run(|| stage.installation.apply(&policy("always")).unwrap()).unwrap();
    assert!(!told().iter().any(|problem| problem.starts_with(gone)), "{:?}", told());
    let before = stage.settled("shop/low").entered;
    stage.upload(Family::V4, Client::Low, PORT, 1 << 20);
    assert!(stage.settled("shop/low").entered > before);
}
