// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What the door answers goes where the machine's routes say, and not where the request came from: behind a balancer that
//! rewrites link addresses only, over two links, and by rules.

use std::io::{Read, Write};
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use fief_bpf::abi;
use fief_testkit::segment::{SYN, Segment};
use fief_testkit::{Client, Family, NetNs, ORDINARY_OPTIONS, PlainServer, RawClients, Topology, Veth, wait_until};
use fief_tests_netns::front::{Door, Front, at_every_door, ready};
use fief_tests_netns::rig::Rig;
use fief_tests_netns::{SOON, connect_from, unacknowledged};
use nix::errno::Errno;

const FAMILIES: [Family; 2] = [Family::V4, Family::V6];

const POLICY: &str = r#"
[container.web]
[container."web/other"]
[listener.plain]
address = "[::]:80"
[[listener.plain.client]]
from = ["any"]
container = "web"
[[listener.plain.request]]
path = "/refused"
refuse = "503"
[[listener.plain.request]]
path = "/reset"
refuse = "reset"
"#;

/// The address that balancers hand on; the server has it on its loopback.
fn virtual_address(family: Family) -> SocketAddr {
    match family {
        Family::V4 => "10.66.0.1:80".parse().unwrap(),
        Family::V6 => "[fd66::1]:80".parse().unwrap(),
    }
}

/// A topology whose server has the virtual addresses too.
fn with_virtual_addresses() -> Topology {
    let topology = Topology::new().unwrap();
    topology.server.ip("addr add 10.66.0.1/32 dev lo").unwrap();
    topology.server.ip("addr add fd66::1/128 dev lo").unwrap();
    topology
}

/// A balancer's namespace with a link to the clients, over which they send what is for the virtual addresses. It hands packets
/// on as they are, with its own link address, and knows no way back.
fn balancer(topology: &Topology) -> NetNs {
    let balancer = NetNs::new("balancer").unwrap();
    let _link = Veth::between((&topology.clients, "cb"), (&balancer, "bc")).unwrap();
    for (namespace, device) in [(&topology.clients, "cb"), (&balancer, "bc")] {
        namespace.sysctl(&format!("net/ipv4/conf/{device}/rp_filter"), "0").unwrap();
    }
    topology.clients.sysctl("net.ipv4.tcp_syn_retries", "2").unwrap();
    balancer.sysctl("net.ipv4.conf.all.rp_filter", "0").unwrap();
    balancer.sysctl("net.ipv4.ip_forward", "1").unwrap();
    balancer.sysctl("net.ipv4.conf.all.send_redirects", "0").unwrap();
    balancer.sysctl("net.ipv6.conf.all.forwarding", "1").unwrap();
    for line in ["addr add 10.66.1.1/30 dev cb", "addr add fd66:0:0:1::1/64 dev cb nodad", "link set cb up"] {
        topology.clients.ip(line).unwrap();
    }
    for line in ["addr add 10.66.1.2/30 dev bc", "addr add fd66:0:0:1::2/64 dev bc nodad", "link set bc up"] {
        balancer.ip(line).unwrap();
    }
    topology.clients.ip("route add 10.66.0.0/24 via 10.66.1.2 dev cb").unwrap();
    topology.clients.ip("-6 route add fd66::/64 via fd66:0:0:1::2 dev cb").unwrap();
    balancer
}

/// The balancer and the server share the server's only link: requests come from the balancer's link address, the router's is
/// another.
fn on_one_link() -> (Topology, NetNs) {
    let topology = with_virtual_addresses();
    let balancer = balancer(&topology);
    let name = balancer.name();
    topology.clients.ip(&format!("link add mb link cv netns {name} type macvlan mode bridge")).unwrap();
    for line in [
        "link set mb up",
        "addr add 10.66.2.2/32 dev mb",
        "route add 10.77.0.1/32 dev mb",
        "route add 10.66.0.1/32 via 10.77.0.1 dev mb",
        "addr add fd66:0:0:2::2/128 dev mb nodad",
        "-6 route add fd77::1/128 dev mb",
        "-6 route add fd66::1/128 via fd77::1 dev mb",
    ] {
        balancer.ip(line).unwrap();
    }
    let mac = &topology.link.near_mac;
    balancer.ip(&format!("neigh replace 10.77.0.1 lladdr {mac} dev mb nud permanent")).unwrap();
    balancer.ip(&format!("neigh replace fd77::1 lladdr {mac} dev mb nud permanent")).unwrap();
    (topology, balancer)
}

/// The balancer has a link of its own to the server.
fn on_two_links() -> (Topology, NetNs) {
    let topology = with_virtual_addresses();
    let balancer = balancer(&topology);
    let _link = Veth::between((&balancer, "bs"), (&topology.server, "sb")).unwrap();
    topology.server.sysctl("net/ipv4/conf/sb/rp_filter", "0").unwrap();
    for line in ["addr add 10.66.3.1/30 dev sb", "addr add fd66:0:0:3::1/64 dev sb nodad", "link set sb up"] {
        topology.server.ip(line).unwrap();
    }
    for line in [
        "addr add 10.66.3.2/30 dev bs",
        "addr add fd66:0:0:3::2/64 dev bs nodad",
        "link set bs up",
        "route add 10.66.0.1/32 via 10.66.3.1",
        "-6 route add fd66::1/128 via fd66:0:0:3::1",
    ] {
        balancer.ip(line).unwrap();
    }
    (topology, balancer)
}

/// An upload in small pieces, which are held and acknowledged before there is a socket; how it was answered.
fn in_pieces(front: &Front, from: IpAddr, to: SocketAddr) -> Option<String> {
    let mut stream = connect_from(&front.topology.clients, (from, 0).into(), to).ok()?;
    stream.set_nodelay(true).unwrap();
    stream.set_read_timeout(Some(SOON)).unwrap();
    for piece in ["GET /cl", "ose/10", "0 HTT", "P/1.1\r\nHost: x\r\n", "\r\n"] {
        stream.write_all(piece.as_bytes()).ok()?;
        // Nagle is off, but the next piece shall go out after the acknowledgment of this one.
        wait_until(SOON, || unacknowledged(&stream) == 0).ok()?;
    }
    let mut text = String::new();
    stream.read_to_string(&mut text).ok()?;
    Some(text.lines().next()?.to_owned())
}

/// All that a client can get of the door: admission, refusals, and acknowledgments of what is held.
fn is_served(front: &Front, to: SocketAddr, family: Family) {
    let server = PlainServer::start(&front.topology.server, "[::]:80".parse().unwrap()).unwrap();
    let from = Client::High.address(family, 7);
    assert_eq!(front.status_from(from, to, "/close/100"), Ok(200), "{family:?}");
    assert_eq!(in_pieces(front, from, to).as_deref(), Some("HTTP/1.1 200 OK"), "{family:?}");
    let (refused, reset) =
        if front.door == Door::Stock { (Ok(200), Ok(200)) } else { (Ok(503), Err(Errno::ECONNRESET)) };
    assert_eq!(front.status_from(from, to, "/refused"), refused, "{family:?}");
    assert_eq!(front.status_from(from, to, "/reset"), reset, "{family:?}");
    drop(server);
}

#[test]
fn behind_a_balancer_on_the_same_link_answers_go_to_the_router() {
    if !ready() {
        return;
    }
    let (topology, _balancer) = on_one_link();
    at_every_door(POLICY, topology, |front| {
        for family in FAMILIES {
            is_served(front, virtual_address(family), family);
        }
    });
}

#[test]
fn behind_a_balancer_on_a_link_of_its_own_answers_go_out_by_the_other_link() {
    if !ready() {
        return;
    }
    let (topology, _balancer) = on_two_links();
    at_every_door(POLICY, topology, |front| {
        for family in FAMILIES {
            is_served(front, virtual_address(family), family);
        }
    });
}

/// Two links to the clients; what leaves with the virtual address has to take the second one, by a rule, and the clients take
/// nothing of it on the first.
fn with_a_rule() -> Topology {
    let topology = with_virtual_addresses();
    let (server, clients) = (&topology.server, &topology.clients);
    let _link = Veth::between((server, "sw"), (clients, "cw")).unwrap();
    for line in [
        "addr add 10.66.4.1/30 dev sw",
        "addr add fd66:0:0:4::1/64 dev sw nodad",
        "link set sw up",
        "rule add from 10.66.0.1 lookup 100",
        "-6 rule add from fd66::1 lookup 100",
        "route add default via 10.66.4.2 dev sw table 100",
        "-6 route add default via fd66:0:0:4::2 dev sw table 100",
    ] {
        server.ip(line).unwrap();
    }
    for line in [
        "addr add 10.66.4.2/30 dev cw",
        "addr add fd66:0:0:4::2/64 dev cw nodad",
        "link set cw up",
        "route add 10.66.0.1/32 via 10.77.0.1 dev cv",
        "-6 route add fd66::1/128 via fd77::1 dev cv",
    ] {
        clients.ip(line).unwrap();
    }
    let rules = "table inet t { chain c { type filter hook prerouting priority 0; \
                 iifname cv ip saddr 10.66.0.1 drop; iifname cv ip6 saddr fd66::1 drop; }\n}";
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("rules"), rules).unwrap();
    let done = clients.command("nft").arg("-f").arg(folder.path().join("rules")).status().unwrap();
    assert!(done.success());
    clients.sysctl("net.ipv4.tcp_syn_retries", "2").unwrap();
    topology
}

#[test]
fn a_rule_for_what_the_server_sends_is_obeyed() {
    if !ready() {
        return;
    }
    at_every_door(POLICY, with_a_rule(), |front| {
        for family in FAMILIES {
            is_served(front, virtual_address(family), family);
        }
    });
}

#[test]
fn without_the_kernels_answer_clients_on_the_same_way_are_served() {
    if !ready() {
        return;
    }
    let front = Front::new(Door::Own, POLICY);
    front.topology.server.sysctl("net.ipv4.conf.lo.forwarding", "0").unwrap();
    front.topology.server.sysctl("net.ipv6.conf.lo.forwarding", "0").unwrap();
    for family in FAMILIES {
        is_served(&front, Topology::server_address(family, 80), family);
    }
}

#[test]
fn what_no_route_leads_to_is_left_to_the_kernel_and_counted() {
    if !ready() {
        return;
    }
    let front = Front::new(Door::Own, POLICY);
    let clients = RawClients::new(&front.topology).unwrap();
    front.topology.server.ip("route add unreachable 10.89.5.0/24").unwrap();
    front.topology.server.ip("-6 route add unreachable fd89::5:0/112").unwrap();
    for (n, client) in ["10.89.5.1:4000", "[fd89::5:1]:4000"].into_iter().enumerate() {
        let client: SocketAddr = client.parse().unwrap();
        let family = if client.is_ipv4() { Family::V4 } else { Family::V6 };
        let server = front.plain_server();
        let mut syn = Segment::new(client, Topology::server_address(family, 80), SYN);
        syn.options = ORDINARY_OPTIONS.to_vec();
        clients.send(&syn).unwrap();
        let count = || front.verdicts().count(abi::FIEF_ANSWER_UNROUTED);
        wait_until(SOON, || count() == 1 + n as u64).unwrap_or_else(|_| panic!("{:?}", front.verdicts()));
        drop(server);
        is_served(&front, Topology::server_address(family, 80), family);
    }
}

/// How answers to a client leave is remembered, but not for long.
#[test]
fn a_client_that_no_route_leads_to_any_more_is_answered_for_a_moment_only() {
    if !ready() {
        return;
    }
    let front = Front::new(Door::Own, POLICY);
    let clients = RawClients::new(&front.topology).unwrap();
    let _server = front.plain_server();
    let mut port = 4000;
    let mut knock = || {
        port += 1;
        let client = SocketAddr::from(([10, 77, 1, 77], port));
        let mut syn = Segment::new(client, Topology::server_address(Family::V4, 80), SYN);
        syn.options = ORDINARY_OPTIONS.to_vec();
        clients.send(&syn).unwrap();
        client
    };
    let client = knock();
    assert!(clients.receive(client, SOON).is_some(), "{:?}", front.verdicts());
    front.topology.server.ip("route add unreachable 10.77.1.77/32").unwrap();
    let unrouted = || front.verdicts().count(abi::FIEF_ANSWER_UNROUTED);
    wait_until(SOON, || {
        knock();
        unrouted() > 0
    })
    .unwrap_or_else(|_| panic!("{:?}", front.verdicts()));
}

/// More neighbours that are not known than are asked for within a second: 201 at once, and one each 5 ms.
const STRANGERS: u16 = 400;
/// A machine that stands still takes longer to send from all of them.
const TRIES: u16 = 5;

/// Nobody has these addresses: who sends from them bears the names of others on the link.
#[test]
fn who_bears_the_name_of_a_neighbour_gets_none_of_its_answers() {
    if !ready() {
        return;
    }
    let topology = Topology::new().unwrap();
    topology.server.ip("addr add 10.90.0.1/16 dev sv").unwrap();
    let rig = Rig::at(Door::Own, POLICY, topology);
    let before = rig.verdicts();
    let are_not_all_asked_for = |turn: u16| {
        let own = (turn * STRANGERS..(turn + 1) * STRANGERS).map(|n| [10, 90, 1 + (n >> 8) as u8, n as u8]);
        let strangers = own.map(|address| SocketAddr::from((address, 2000)));
        strangers.clone().for_each(|stranger| rig.syn(stranger));
        let sent = u64::from(turn + 1) * u64::from(STRANGERS);
        let verdicts = rig.verdicts_on(&before, sent);
        let answered = strangers.filter(|stranger| rig.clients.receive(*stranger, Duration::from_millis(1)).is_some());
        assert_eq!(answered.count(), 0);
        let unrouted = verdicts.count(abi::FIEF_ANSWER_UNROUTED);
        assert!(unrouted <= sent - 100, "{unrouted} of {sent} were not asked for");
        unrouted > 0
    };
    assert!((0..TRIES).any(are_not_all_asked_for), "all were asked for: {:?}", rig.verdicts());
    assert_eq!(rig.front.sockets(2000), Vec::<String>::new(), "the kernel keeps none of them either");
}

#[test]
fn the_switch_on_the_loopback_is_given_back() {
    if !ready() {
        return;
    }
    let topology = Topology::new().unwrap();
    let read = |topology: &Topology| {
        let read = |family: &str| {
            std::fs::read_to_string(format!("/proc/sys/net/{family}/conf/lo/forwarding")).unwrap().trim().to_owned()
        };
        topology.server.run(|| (read("ipv4"), read("ipv6"))).unwrap()
    };
    assert_eq!(read(&topology), ("0".to_owned(), "0".to_owned()));
    let front = Front::at(Door::Own, POLICY, topology);
    assert_eq!(read(&front.topology), ("1".to_owned(), "1".to_owned()));
    front.apply("[container.web]\n").unwrap();
    assert_eq!(read(&front.topology), ("0".to_owned(), "0".to_owned()));
}
