// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Others who have a say about packets: nftables, connection tracking, programs at the same interface. Their verdicts
//! hold beside a guard, and what passes the guard passes them too.

use std::io::{Read, Write};
use std::net::{IpAddr, TcpStream};
use std::process::Output;
use std::time::Duration;

use fief_bpf::abi;
use fief_testkit::segment::{ACK, Segment};
use fief_testkit::{Client, Family, Feature, PlainServer, RawClients, Topology, digest, pattern, require, run};
use fief_tests_netns::front::{Door, Front, GUARDED, plain, ready};
use fief_tests_netns::{Foreign, connect_from, one_installation};

/// The guard of the other tests, and a rule that refuses.
fn policy() -> String {
    format!("{GUARDED}[[listener.plain.request]]\npath = \"/refused\"\nrefuse = \"503\"\n")
}

struct Rig {
    front: Front,
    server: PlainServer,
}

impl Rig {
    fn new(door: Door) -> Self {
        let front = Front::new(door, &policy());
        let server = front.plain_server();
        Self { front, server }
    }

    fn nft(&self, rules: &str) {
        run(self.front.topology.server.command("nft").arg(rules)).unwrap();
    }

    fn curl(&self, from: IpAddr, words: &[&str]) -> Output {
        let mut command = self.front.topology.clients.command("curl");
        command.args(["-s", "--max-time", "20", "--interface"]).arg(from.to_string()).args(words);
        command.output().unwrap()
    }

    fn connect(&self, from: IpAddr) -> TcpStream {
        connect_from(&self.front.topology.clients, (from, 0).into(), plain(Family::V4)).unwrap()
    }
}

fn high() -> IpAddr {
    Client::High.address(Family::V4, 1)
}

fn low() -> IpAddr {
    Client::Low.address(Family::V4, 9)
}

/// `GET /<n>` has n bytes of pattern for an answer.
fn download(stream: &mut TcpStream, length: usize) -> u64 {
    stream.write_all(format!("GET /{length} HTTP/1.1\r\nHost: server\r\n\r\n").as_bytes()).unwrap();
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        let mut byte = [0];
        stream.read_exact(&mut byte).unwrap();
        head.push(byte[0]);
    }
    let mut body = vec![0; length];
    stream.read_exact(&mut body).unwrap();
    digest(&body)
}

#[test]
fn what_a_packet_filter_drops_never_reaches_the_server() {
    if !(ready() && require(Feature::Curl)) {
        return;
    }
    let _one = one_installation();
    for door in Door::GUARDS {
        let rig = Rig::new(door);
        rig.nft("table inet t { chain in { type filter hook input priority 0; ip saddr 10.77.2.0/24 tcp dport 80 drop; }; }");
        let dropped = rig.curl(low(), &["--max-time", "2", "http://10.77.0.1/10"]);
        assert_eq!(dropped.status.code(), Some(28), "{door:?}: silence");
        assert_eq!(rig.server.accepted(), 0, "{door:?}");
        let passed = rig.curl(high(), &["http://10.77.0.1/10"]);
        assert_eq!((passed.status.code(), passed.stdout.len()), (Some(0), 10), "{door:?}");
        assert_eq!(rig.server.accepted(), 1, "{door:?}");
    }
}

#[test]
fn a_firewall_that_takes_whole_connections_only_sees_whole_ones() {
    if !(ready() && require(Feature::Curl)) {
        return;
    }
    let _one = one_installation();
    let rig = Rig::new(Door::Kernel);
    rig.nft(
        "table inet t { chain in { type filter hook input priority 0; policy drop; iifname \"lo\" accept; \
         meta l4proto ipv6-icmp accept; ct state invalid counter drop; ct state established,related accept; \
         tcp flags & (fin | syn | rst | ack) != syn ct state new counter drop; \
         tcp dport 80 ct state new accept; }; }",
    );
    rig.front.topology.server.sysctl("net.netfilter.nf_conntrack_tcp_loose", "0").unwrap();
    let mut stream = rig.connect(high());
    for length in [10, 1 << 20, 3] {
        assert_eq!(download(&mut stream, length), digest(&pattern(length)), "{length} bytes on one connection");
    }
    let refused = rig.curl(high(), &["-w", "%{http_code}", "http://10.77.0.1/refused"]);
    assert_eq!(String::from_utf8_lossy(&refused.stdout), "503");
    assert_eq!(rig.server.accepted(), 1);
    // who never shook hands is told nothing, by whichever of the two
    let clients = RawClients::new(&rig.front.topology).unwrap();
    let stray = (RawClients::address(Family::V4, 1), 1024).into();
    let mut segment = Segment::new(stray, plain(Family::V4), ACK);
    segment.payload = b"GET / HTTP/1.1\r\n\r\n".to_vec();
    clients.send(&segment).unwrap();
    assert!(clients.receive(stray, Duration::from_millis(200)).is_none());
    assert_eq!(rig.server.accepted(), 1);
    let counted = rig.front.verdicts().count(abi::FIEF_REQUEST_REFUSED);
    assert!(rig.front.is_counted(counted, 1), "{:?}", rig.front.verdicts());
}

#[test]
fn a_program_behind_the_guard_sees_what_the_guard_lets_pass() {
    if !ready() {
        return;
    }
    let _one = one_installation();
    for door in Door::GUARDS {
        let rig = Rig::new(door);
        let behind = rig.front.topology.server.run(|| {
            let interface = nix::net::if_::if_nametoindex(Topology::SERVER).unwrap();
            Foreign::attach_ingress(interface)
        });
        let behind = behind.unwrap();
        let mut stream = rig.connect(high());
        assert_eq!(download(&mut stream, 10), digest(&pattern(10)), "{door:?}");
        assert!(behind.calls() > 0, "{door:?}: at least the request");
        drop(stream);
    }
}

#[test]
fn a_classifier_behind_the_guard_has_the_last_word() {
    if !(ready() && require(Feature::Curl)) {
        return;
    }
    let _one = one_installation();
    // the source address; 10.77.2.9: drop; others: as you like
    let code = format!("4,32 0 0 26,21 0 1 {},6 0 0 2,6 0 0 {}", u32::from_be_bytes([10, 77, 2, 9]), u32::MAX);
    for door in Door::GUARDS {
        let rig = Rig::new(door);
        let server = &rig.front.topology.server;
        run(server.command("tc").args(["qdisc", "add", "dev", Topology::SERVER, "clsact"])).unwrap();
        let words = ["filter", "add", "dev", Topology::SERVER, "ingress", "bpf", "da", "bytecode", &code];
        run(server.command("tc").args(words)).unwrap();
        assert_eq!(rig.curl(low(), &["--max-time", "2", "http://10.77.0.1/10"]).status.code(), Some(28), "{door:?}");
        assert_eq!(rig.server.accepted(), 0, "{door:?}");
        assert_eq!(rig.curl(high(), &["http://10.77.0.1/10"]).stdout.len(), 10, "{door:?}");
    }
}

/// Each may end the chain with OK, and the kernel then takes the mark of the door.
#[test]
fn an_apply_names_who_stands_behind_the_guard() {
    if !ready() {
        return;
    }
    let _one = one_installation();
    let rig = Rig::new(Door::Own);
    let server = &rig.front.topology.server;
    let notes = || {
        let notes = rig.front.apply(&policy()).unwrap().notes;
        notes.into_iter().filter(|note| note.contains("behind the door")).collect::<Vec<_>>()
    };
    let interface = server.run(|| nix::net::if_::if_nametoindex(Topology::SERVER).unwrap()).unwrap();
    let before = server.run(|| Foreign::attach_ingress_before(interface)).unwrap();
    assert!(notes().is_empty());
    let by_tc = server.run(|| Foreign::attach_ingress_by_tc(interface)).unwrap();
    let behind = server.run(|| Foreign::attach_ingress(interface)).unwrap();
    let [note] = notes().try_into().unwrap();
    let first = format!("{}: behind the door stands the tcx program ", Topology::SERVER);
    assert!(note.starts_with(&first) && note.contains(", a tc filter of the kind bpf."), "{note}");
    drop((before, by_tc, behind));
}
