// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A guarded listener is reached through the door only: what comes in at an interface of later, through a redirected port or
//! past another program is refused, or counted where the policy says so.

use std::io::{Read, Write};
use std::net::SocketAddr;

use fief_bpf::abi;
use fief_testkit::{Client, Family, Feature, NetNs, PlainServer, Topology, Veth, Wire, pattern, require, wait_until};
use fief_tests_netns::front::{Door, plain, ready};
use fief_tests_netns::queued::{length_of, read_head};
use fief_tests_netns::refusing;
use fief_tests_netns::rig::Rig;
use fief_tests_netns::{Foreign, SOON, connect_from, connect_once_served, one_installation, second_link, second_up};
use nix::errno::Errno;

const POLICY: &str = refusing!("/refused", "503");

/// The server's address at a second link, and the client's.
const SECOND: &str = "10.66.3.1:80";
const AT_SECOND: &str = "10.66.3.2";

fn over_the_first(rig: &Rig, path: &str) -> Result<u16, Errno> {
    rig.front.status_from(Client::High.address(Family::V4, 1), plain(Family::V4), path)
}

fn over_the_second(rig: &Rig, path: &str) -> Result<u16, Errno> {
    rig.front.status_from(AT_SECOND.parse().unwrap(), SECOND.parse().unwrap(), path)
}

/// Connections that came past the door: refused, and counted only.
fn unguarded(rig: &Rig) -> (u64, u64) {
    let verdicts = rig.verdicts().since(rig.front.before());
    (verdicts.count(abi::FIEF_SYN_UNGUARDED), verdicts.monitored(abi::FIEF_SYN_UNGUARDED))
}

/// So many connections that came past the door were refused, and each was counted.
#[track_caller]
fn has_refused(rig: &Rig, asked: u64) {
    let (refused, passed) = unguarded(rig);
    assert!(passed == 0 && rig.front.is_counted(refused, asked), "{:?}: {:?}", rig.front.door, rig.verdicts());
}

#[test]
fn what_comes_in_at_an_interface_of_later_is_refused_until_the_policy_is_applied_again() {
    if !ready() {
        return;
    }
    for door in Door::GUARDS {
        let rig = Rig::new(door, POLICY);
        second_link(&rig.front.topology);
        assert_eq!(over_the_second(&rig, "/refused"), Err(Errno::ECONNREFUSED), "{door:?}");
        assert_eq!(over_the_second(&rig, "/close/10"), Err(Errno::ECONNREFUSED), "{door:?}");
        has_refused(&rig, 2);
        let before = unguarded(&rig);
        let said = rig.front.topology.server.run(|| rig.front.installation().fief().front().unwrap().notes).unwrap();
        assert!(
            said.iter().any(|text| text.contains("s2 is not guarded, so connections to plain are refused")),
            "{said:?}"
        );
        // the door that is there goes on
        assert_eq!(
            (over_the_first(&rig, "/refused"), over_the_first(&rig, "/close/10")),
            (Ok(503), Ok(200)),
            "{door:?}"
        );
        rig.front.apply(POLICY).unwrap();
        assert_eq!(
            (over_the_second(&rig, "/refused"), over_the_second(&rig, "/close/10")),
            (Ok(503), Ok(200)),
            "{door:?}"
        );
        assert_eq!(unguarded(&rig), before, "{door:?}");
    }
}

#[test]
fn a_policy_can_let_pass_what_came_in_unguarded_and_counts_it() {
    if !ready() {
        return;
    }
    for door in Door::GUARDS {
        let rig = Rig::new(door, &format!("unguarded = \"pass\"\n{POLICY}"));
        second_link(&rig.front.topology);
        assert_eq!(over_the_second(&rig, "/refused"), Ok(200), "{door:?}");
        let (refused, passed) = unguarded(&rig);
        assert!(refused == 0 && passed >= 1, "{door:?}: {refused}, {passed}");
    }
}

#[test]
fn where_the_interfaces_are_named_others_are_none_of_its_business() {
    if !ready() {
        return;
    }
    let rig = Rig::new(Door::Own, &format!("interfaces = [\"sv\"]\n{POLICY}"));
    second_link(&rig.front.topology);
    assert_eq!(over_the_second(&rig, "/refused"), Ok(200));
    assert_eq!((over_the_first(&rig, "/refused"), unguarded(&rig)), (Ok(503), (0, 0)));
}

#[test]
fn connections_over_the_loopback_are_the_machines_own() {
    if !ready() {
        return;
    }
    for door in Door::GUARDS {
        let rig = Rig::new(door, POLICY);
        let server = &rig.front.topology.server;
        for to in ["127.0.0.1:80", "10.77.0.1:80", "[::1]:80"] {
            let to: SocketAddr = to.parse().unwrap();
            let from = if to.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" };
            connect_from(server, from.parse().unwrap(), to).unwrap_or_else(|e| panic!("{door:?}: {to}: {e}"));
        }
        assert_eq!(unguarded(&rig), (0, 0), "{door:?}");
    }
}

/// From another address of its own to one of the loopback, as balanced servers bear them.
#[test]
fn the_machine_reaches_its_addresses_of_the_loopback() {
    if !ready() {
        return;
    }
    for door in Door::GUARDS {
        let rig = Rig::new(door, POLICY);
        let server = &rig.front.topology.server;
        server.ip("addr add 10.66.9.9/32 dev lo").unwrap();
        server.ip("addr add fd66::9/128 dev lo").unwrap();
        for (from, to) in [("10.77.0.1:0", "10.66.9.9:80"), ("[fd77::1]:0", "[fd66::9]:80")] {
            connect_from(server, from.parse().unwrap(), to.parse().unwrap())
                .unwrap_or_else(|e| panic!("{door:?}: {from} to {to}: {e}"));
        }
        assert_eq!(unguarded(&rig), (0, 0), "{door:?}");
    }
}

#[test]
fn an_interface_is_guarded_under_another_name_and_back_from_another_namespace() {
    if !ready() {
        return;
    }
    for door in Door::GUARDS {
        let topology = Topology::new().unwrap();
        second_link(&topology);
        let rig = Rig::at(door, POLICY, topology);
        let server = &rig.front.topology.server;
        assert_eq!(over_the_second(&rig, "/refused"), Ok(503), "{door:?}");
        server.ip("link set s2 down").unwrap();
        server.ip("link set s2 name s3").unwrap();
        server.ip("link set s3 up").unwrap();
        assert_eq!(over_the_second(&rig, "/refused"), Ok(503), "{door:?}");
        let elsewhere = NetNs::new("elsewhere").unwrap();
        server.ip(&format!("link set s3 netns {} name s2", elsewhere.name())).unwrap();
        elsewhere.ip(&format!("link set s2 netns {}", server.name())).unwrap();
        second_up(server, "s2", 1);
        let passed = over_the_second(&rig, "/refused");
        assert!(matches!(passed, Ok(503) | Err(Errno::ECONNREFUSED)), "{door:?}: {passed:?}");
        eprintln!("after the move: {passed:?}");
        rig.front.apply(POLICY).unwrap();
        assert_eq!(over_the_second(&rig, "/refused"), Ok(503), "{door:?}");
    }
}

fn nft(namespace: &NetNs, text: &str) {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("rules");
    std::fs::write(&file, text).unwrap();
    let done = namespace.command("nft").arg("-f").arg(file).status().unwrap();
    assert!(done.success(), "nft refuses {text}");
}

/// Rules for whom packets are for, before the server's machine takes them as its own or sends them on.
fn translate(topology: &Topology, rules: &str) {
    let chain = format!("type nat hook prerouting priority dstnat; {rules}");
    nft(&topology.server, &format!("table ip nat {{ chain PREROUTING {{ {chain} }}\n}}"));
}

#[test]
fn a_port_that_is_redirected_to_the_listener_is_no_way_round() {
    if !ready() {
        return;
    }
    for door in Door::GUARDS {
        let rig = Rig::new(door, POLICY);
        translate(&rig.front.topology, "tcp dport 8080 redirect to :80;");
        let other: SocketAddr = "10.77.0.1:8080".parse().unwrap();
        let from = Client::High.address(Family::V4, 1);
        assert_eq!(rig.front.status_from(from, other, "/refused"), Err(Errno::ECONNREFUSED), "{door:?}");
        has_refused(&rig, 1);
        if door == Door::Kernel {
            assert_eq!((over_the_first(&rig, "/refused"), over_the_first(&rig, "/close/10")), (Ok(503), Ok(200)));
        }
    }
}

#[test]
fn a_program_that_takes_packets_past_the_door_is_seen() {
    if !ready() {
        return;
    }
    for door in Door::GUARDS {
        let rig = Rig::new(door, POLICY);
        let server = &rig.front.topology.server;
        let index = server.run(|| nix::net::if_::if_nametoindex("sv").unwrap()).unwrap();
        let before = server.run(|| Foreign::attach_ingress_before(index)).unwrap();
        assert_eq!(over_the_first(&rig, "/close/10"), Err(Errno::ECONNREFUSED), "{door:?}");
        assert!(before.calls() > 0, "{door:?}");
        has_refused(&rig, 1);
        drop(before);
        // The kernel detaches it a moment later.
        wait_until(SOON, || over_the_first(&rig, "/close/10") == Ok(200)).unwrap_or_else(|e| panic!("{door:?}: {e}"));
        assert_eq!(over_the_first(&rig, "/refused"), Ok(503), "{door:?}");
    }
}

#[test]
fn a_program_behind_the_door_sees_what_the_door_lets_pass() {
    if !ready() {
        return;
    }
    for door in Door::GUARDS {
        let rig = Rig::new(door, POLICY);
        let server = &rig.front.topology.server;
        let index = server.run(|| nix::net::if_::if_nametoindex("sv").unwrap()).unwrap();
        let behind = server.run(|| Foreign::attach_ingress(index)).unwrap();
        let last = server.run(|| Foreign::attach_ingress_by_tc(index)).unwrap();
        assert_eq!(
            (over_the_first(&rig, "/refused"), over_the_first(&rig, "/close/10")),
            (Ok(503), Ok(200)),
            "{door:?}"
        );
        assert!(behind.calls() > 0 && last.calls() > 0 && unguarded(&rig) == (0, 0), "{door:?}");
    }
}

/// On a connection whose first request is served, the status of a later one for `path`.
fn later_status(rig: &Rig, path: &str) -> Option<u16> {
    let from = (Client::High.address(Family::V4, 3), 0).into();
    let mut stream = connect_from(&rig.front.topology.clients, from, plain(Family::V4)).unwrap();
    stream.set_read_timeout(Some(SOON)).unwrap();
    let mut ask = |path: &str| {
        stream.write_all(format!("GET {path} HTTP/1.1\r\nHost: server\r\n\r\n").as_bytes()).unwrap();
        let head = read_head(&mut stream)?;
        // the next request has to acknowledge all of the answer
        stream.read_exact(&mut vec![0; length_of(&head)]).ok()?;
        head.split(' ').nth(1)?.parse::<u16>().ok()
    };
    assert_eq!(ask("/10"), Some(200), "{:?}", rig.verdicts());
    ask(path)
}

/// Programs of container networks end the chain so, and the kernel then takes the door's marks off (docs/limits.md). What does not come
/// in one batch with the end of its connection is ruled all the same; for what does, see `one_batch`.
#[test]
fn a_program_behind_the_door_that_ends_the_chain_changes_no_verdict() {
    if !ready() {
        return;
    }
    let _one = one_installation();
    for (door, (kind, attach)) in Door::GUARDS.into_iter().flat_map(|door| Foreign::ENDING.map(|one| (door, one))) {
        let rig = Rig::new(door, POLICY);
        let attach = || attach(nix::net::if_::if_nametoindex(Topology::SERVER).unwrap());
        let behind = rig.front.topology.server.run(attach).unwrap();
        let first = (over_the_first(&rig, "/refused"), over_the_first(&rig, "/close/10"));
        assert_eq!(first, (Ok(503), Ok(200)), "{door:?}, {kind}: {:?}", rig.verdicts());
        for (path, status) in [("/10", 200), ("/refused", 503)] {
            assert_eq!(later_status(&rig, path), Some(status), "{door:?}, {kind}: {:?}", rig.verdicts());
        }
        let refused = rig.verdicts().since(rig.front.before()).count(abi::FIEF_REQUEST_REFUSED);
        assert!(rig.front.is_counted(refused, 2), "{door:?}, {kind}: {:?}", rig.verdicts());
        assert!(behind.calls() > 0 && unguarded(&rig) == (0, 0), "{door:?}, {kind}: {:?}", rig.verdicts());
    }
}

/// A container's namespace behind a bridge, as Docker makes it, with a server at port 80.
fn container(topology: &Topology) -> (NetNs, PlainServer) {
    let container = NetNs::new("container").unwrap();
    let _link = Veth::between((&topology.server, "vc"), (&container, "eth0")).unwrap();
    for line in [
        "link add docker0 type bridge",
        "addr add 172.30.0.1/16 dev docker0",
        "link set vc master docker0",
        "link set docker0 up",
        "link set vc up",
    ] {
        topology.server.ip(line).unwrap();
    }
    for line in ["addr add 172.30.0.2/16 dev eth0", "link set eth0 up", "route add default via 172.30.0.1"] {
        container.ip(line).unwrap();
    }
    topology.server.sysctl("net.ipv4.ip_forward", "1").unwrap();
    let server = PlainServer::start(&container, "0.0.0.0:80".parse().unwrap()).unwrap();
    (container, server)
}

/// `-p 8080:80`, and `-p 80:80` beside a proxy that listens there, as Docker has one.
#[test]
fn published_ports_of_containers_are_reached_as_ever() {
    if !ready() {
        return;
    }
    let topology = Topology::new().unwrap();
    let (container, inside) = container(&topology);
    let publish = "ip daddr 10.77.0.1 tcp dport 8080 dnat to 172.30.0.2:80; \
                   ip daddr 10.77.0.1 tcp dport 80 dnat to 172.30.0.2:80;";
    translate(&topology, publish);
    let rig = Rig::at(Door::Kernel, POLICY, topology);
    let from = Client::High.address(Family::V4, 1);
    assert_eq!(rig.front.status_from(from, "10.77.0.1:8080".parse().unwrap(), "/close/10"), Ok(200));
    assert_eq!(over_the_first(&rig, "/close/10"), Ok(200));
    assert_eq!(inside.accepted(), 2);
    // a container calls the machine's own listener, over a bridge that has a door
    let to = SocketAddr::from(([172, 30, 0, 1], 80));
    let stream = connect_once_served(&container, SocketAddr::from(([172, 30, 0, 2], 0)), to);
    drop(stream);
    assert_eq!(unguarded(&rig), (0, 0));
}

/// The front door's own answers come before the firewall translates anything: the port is the guarded listener's (docs/limits.md).
#[test]
fn where_the_front_door_answers_a_published_port_of_a_guarded_server_is_not_reached() {
    if !ready() {
        return;
    }
    let topology = Topology::new().unwrap();
    let (_container, inside) = container(&topology);
    translate(&topology, "ip daddr 10.77.0.1 tcp dport 80 dnat to 172.30.0.2:80;");
    let rig = Rig::at(Door::Own, POLICY, topology);
    assert_eq!(over_the_first(&rig, "/refused"), Ok(503));
    // What may pass is translated, and the kernel forwards nothing that has a socket.
    assert_eq!(over_the_first(&rig, "/close/10"), Err(Errno::EAGAIN), "{:?}", rig.verdicts());
    assert_eq!((inside.accepted(), rig.server.accepted()), (0, 0));
    // What begins with a request is none of the connections that are translated now. Of those before a client may still send.
    rig.front.topology.server.sysctl("net.netfilter.nf_conntrack_tcp_loose", "0").unwrap();
    assert_eq!(over_the_first(&rig, "/close/10"), Ok(200), "{:?}", rig.verdicts());
    assert!(inside.accepted() == 0 && rig.server.accepted() >= 1);
}

/// A host whose container network moves packets by programs of its own, between the clients' link and that of the server's
/// namespace, past the host's network layer.
struct Redirecting {
    _host: NetNs,
    programs: [Foreign; 2],
}

impl Redirecting {
    fn new(topology: &Topology) -> Self {
        let host = NetNs::new("host").unwrap();
        let outer = Veth::between((&topology.clients, "c2"), (&host, "h0")).unwrap();
        Veth::between((&topology.server, "s2"), (&host, "lxc")).unwrap();
        second_up(&topology.clients, "c2", 2);
        second_up(&topology.server, "s2", 1);
        for device in ["h0", "lxc"] {
            host.ip(&format!("link set {device} up")).unwrap();
        }
        // The packet goes on in the pod with the address of the host's own link.
        topology.clients.ip(&format!("neigh replace 10.66.3.1 lladdr {} dev c2 nud permanent", outer.far_mac)).unwrap();
        topology.server.ip(&format!("neigh replace 10.66.3.2 lladdr {} dev s2 nud permanent", outer.near_mac)).unwrap();
        let programs = host.run(|| {
            let [outer, inner] = ["h0", "lxc"].map(|name| nix::net::if_::if_nametoindex(name).unwrap());
            [Foreign::attach_redirect(outer, inner, true), Foreign::attach_redirect(inner, outer, false)]
        });
        Self { _host: host, programs: programs.unwrap() }
    }
}

#[test]
fn what_a_container_network_redirects_into_the_namespace_meets_the_door() {
    if !ready() {
        return;
    }
    for door in Door::GUARDS {
        let topology = Topology::new().unwrap();
        let network = Redirecting::new(&topology);
        let rig = Rig::at(door, POLICY, topology);
        assert_eq!(
            (over_the_second(&rig, "/refused"), over_the_second(&rig, "/close/10")),
            (Ok(503), Ok(200)),
            "{door:?}: {:?}",
            rig.verdicts()
        );
        assert!(network.programs.iter().all(|program| program.calls() > 0), "{door:?}");
        assert_eq!(unguarded(&rig), (0, 0), "{door:?}");
    }
}

/// IFLA_GSO_IPV4_MAX_SIZE and IFLA_GRO_IPV4_MAX_SIZE of a device, for those `ip` that do not know them.
const BIG_IPV4: &str = r#"
import socket, struct, sys
sizes = b"".join(struct.pack("=HHI", 8, kind, 190000) for kind in (63, 64))
body = struct.pack("=BxHiII", 0, 0, socket.if_nametoindex(sys.argv[1]), 0, 0) + sizes
link = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0)
link.send(struct.pack("=IHHII", 16 + len(body), 19, 5, 1, 0) + body)
sys.exit(struct.unpack("=i", link.recv(4096)[16:20])[0] != 0)
"#;

fn take_big_frames(namespace: &NetNs, device: &str) {
    namespace.ip(&format!("link set {device} gso_max_size 190000 gro_max_size 190000")).unwrap();
    let done = namespace.command("python3").args(["-c", BIG_IPV4, device]).status().unwrap();
    assert!(done.success(), "no sizes for IPv4");
}

/// Frames above 64 kB have no length in their IP header (BIG TCP).
#[test]
fn frames_larger_than_an_ip_header_can_say_are_read() {
    if !(ready() && require(Feature::Python)) {
        return;
    }
    for (door, family) in Door::GUARDS.into_iter().flat_map(|door| [(door, Family::V4), (door, Family::V6)]) {
        let rig = Rig::new(door, POLICY);
        let (server, clients) = (&rig.front.topology.server, &rig.front.topology.clients);
        let offload = ["-K", "cv", "tx", "on", "tso", "on", "gso", "on", "sg", "on"];
        assert!(clients.command("ethtool").args(offload).status().unwrap().success());
        for (namespace, device) in [(clients, "cv"), (server, "sv")] {
            take_big_frames(namespace, device);
        }
        let wire = Wire::open(server, "sv").unwrap();
        let from = (Client::High.address(family, 3), 0).into();
        let mut stream = connect_from(clients, from, plain(family)).unwrap();
        stream.set_read_timeout(Some(SOON)).unwrap();
        let length = 16 << 20;
        let body = pattern(length);
        let mut writing = stream.try_clone().unwrap();
        let writer = std::thread::spawn(move || {
            writing.write_all(format!("POST /10 HTTP/1.1\r\nContent-Length: {length}\r\n\r\n").as_bytes())?;
            writing.write_all(&body)
        });
        let mut answer = [0; 12];
        let mut buffer = vec![0; 1 << 20];
        let big = wait_until(SOON, || wire.receive_now(&mut buffer).is_some_and(|length| length > 66_000));
        stream.read_exact(&mut answer).unwrap();
        writer.join().unwrap().unwrap();
        assert_eq!(&answer, b"HTTP/1.1 200", "{door:?}, {family:?}");
        // The next request is found behind all of them.
        stream.write_all(b"GET /refused HTTP/1.1\r\n\r\n").unwrap();
        let mut rest = String::new();
        stream.read_to_string(&mut rest).unwrap();
        assert!(rest.contains("HTTP/1.1 503"), "{door:?}, {family:?}: {rest}");
        big.unwrap_or_else(|_| panic!("{door:?}, {family:?}: no frame was that large"));
        assert_eq!(rig.verdicts().count(abi::FIEF_SHAPE), 0, "{door:?}, {family:?}");
    }
}
