// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A gateway before two nginx: what passes through it is policed at its first packet, what ends at a proxy on it is
//! ruled by its request.

use std::io::Read;
use std::net::{IpAddr, SocketAddr};

use fief_bpf::abi;
use fief_testkit::segment::{ACK, SYN, Segment, TCP, ipv4};
use fief_testkit::{
    Client, Family, Feature, NetNs, Nginx, NginxConfig, ORDINARY_OPTIONS, PlainServer, Process, RawClients, Topology,
    Veth, get, require, wait_until,
};
use fief_tests_netns::front::{Door, Front, plain};
use fief_tests_netns::{SOON, connect_from};

const EXAMPLE: &str = include_str!("../../../examples/gateway.toml");
const PROXY: &str = include_str!("../../../examples/gateway/haproxy.cfg");
const TRANSLATION: &str = include_str!("../../../examples/gateway/farm.nft");
/// The addresses of the servers, which the example names too.
const FARM: [&str; 2] = ["10.9.0.2", "10.9.0.3"];
const FARM6: [&str; 2] = ["fd09::2", "fd09::3"];

/// What passes to every address at port 80 is limited like this.
fn passing(limits: &str, client: &str) -> String {
    format!(
        "[container.farm]\n[listener.farm]\naddress = \"[::]:80\"\nforward = true\n{limits}\n\
         [[listener.farm.client]]\nfrom = [\"10.77.1.0/24\", \"fd77::1:0/112\"]\ncontainer = \"farm\"\n\
         [[listener.farm.client]]\nfrom = [\"any\"]\ncontainer = \"farm\"\n{client}\n"
    )
}

/// The server's namespace of the topology is the gateway.
struct Gateway {
    front: Front,
    farm: Vec<Nginx>,
    _machines: Vec<NetNs>,
}

impl Gateway {
    fn new(policy: &str) -> Option<Self> {
        Self::through(Door::Own, policy)
    }

    fn through(door: Door, policy: &str) -> Option<Self> {
        if ![Feature::Root, Feature::NetNs, Feature::Bpf, Feature::Cgroup2, Feature::Nginx].into_iter().all(require) {
            return None;
        }
        let topology = Topology::new().unwrap();
        let (gateway, clients) = (&topology.server, &topology.clients);
        gateway.sysctl("net.ipv4.ip_forward", "1").unwrap();
        gateway.sysctl("net.ipv6.conf.all.forwarding", "1").unwrap();
        clients.ip("route add 10.9.0.0/24 via 10.77.0.1").unwrap();
        clients.ip("-6 route add fd09::/64 via fd77::1").unwrap();
        let mut machines = Vec::new();
        let mut farm = Vec::new();
        for (n, (address, address6)) in FARM.into_iter().zip(FARM6).enumerate() {
            let machine = NetNs::new("farm").unwrap();
            let inside = format!("f{n}");
            let _link = Veth::between((gateway, &inside), (&machine, "eth")).unwrap();
            gateway.ip(&format!("addr add 10.9.0.1/32 dev {inside}")).unwrap();
            gateway.ip(&format!("link set {inside} up")).unwrap();
            gateway.ip(&format!("route add {address}/32 dev {inside}")).unwrap();
            machine.ip(&format!("addr add {address}/24 dev eth")).unwrap();
            machine.ip("link set eth up").unwrap();
            machine.ip("route add default via 10.9.0.1").unwrap();
            gateway.ip(&format!("addr add fd09:0:0:{0}::1/64 dev {inside} nodad", n + 1)).unwrap();
            gateway.ip(&format!("-6 route add {address6}/128 dev {inside}")).unwrap();
            machine.ip(&format!("addr add {address6}/128 dev eth nodad")).unwrap();
            machine.ip(&format!("addr add fd09:0:0:{0}::2/64 dev eth nodad", n + 1)).unwrap();
            machine.ip(&format!("-6 route add default via fd09:0:0:{0}::1", n + 1)).unwrap();
            let config = NginxConfig::new(80, 1, &format!("add_header X-From {address};")).unwrap();
            farm.push(Nginx::start_with(&machine, config).unwrap());
            machines.push(machine);
        }
        // what runs on the gateway itself has a home
        let policy = policy.replace("version = 1\n", "") + "\n[container.web]\n";
        Some(Self { front: Front::at(door, &policy, topology), farm, _machines: machines })
    }

    fn nft(&self, text: &str) {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("rules");
        std::fs::write(&file, text).unwrap();
        let done = self.front.topology.server.command("nft").arg("-f").arg(file).status().unwrap();
        assert!(done.success(), "nft refuses {text}");
    }

    /// The example's proxy on the gateway.
    fn proxy(&self) -> Process {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("haproxy.cfg");
        std::fs::write(&file, PROXY).unwrap();
        let mut command = self.front.server_command("haproxy");
        let proxy = Process::start({
            command.arg("-db").arg("-f").arg(&file);
            command
        });
        let here = SocketAddr::from(([127, 0, 0, 1], 8080));
        wait_until(SOON, || get(&self.front.topology.server, here, "/1k").is_ok()).expect("the proxy answers");
        proxy.unwrap()
    }

    /// Which server answers a client, by the address that it calls.
    fn answers(&self, from: IpAddr, to: SocketAddr) -> String {
        let mut stream = connect_from(&self.front.topology.clients, (from, 0).into(), to).unwrap();
        std::io::Write::write_all(&mut stream, b"GET /1k HTTP/1.0\r\nHost: farm\r\n\r\n").unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        let line =
            answer.lines().map(str::to_lowercase).find_map(|line| line.strip_prefix("x-from: ").map(str::to_owned));
        line.unwrap_or_else(|| panic!("{answer}"))
    }

    fn count(&self, reason: abi::fief_reason) -> u64 {
        self.front.verdicts().count(reason)
    }

    /// That many verdicts were asked for.
    #[track_caller]
    fn has_counted(&self, reason: abi::fief_reason, asked: u64) {
        let counted = self.count(reason);
        assert!(self.front.is_counted(counted, asked), "{counted}, {asked}: {:?}", self.front.verdicts());
    }

    /// A SYN of each raw client to an address, in one burst; done when all have their verdict.
    fn syns(&self, clients: &RawClients, from: &[IpAddr], to: SocketAddr) {
        let syns = || (abi::FIEF_SYN_TAKEN..=abi::FIEF_SYN_QUEUE).map(|reason| self.count(reason)).sum::<u64>();
        let before = syns();
        for (&address, port) in from.iter().zip(1024..) {
            let mut syn = Segment::new(SocketAddr::new(address, port), to, SYN);
            syn.options = ORDINARY_OPTIONS.to_vec();
            clients.send(&syn).unwrap();
        }
        let all = from.len() as u64;
        wait_until(SOON, || syns() == before + all)
            .unwrap_or_else(|_| panic!("{all} SYNs, before {before}, now {}: {:?}", syns(), self.front.verdicts()));
    }
}

fn high() -> IpAddr {
    Client::High.address(Family::V4, 1)
}

fn server(n: usize) -> SocketAddr {
    SocketAddr::new(FARM[n].parse().unwrap(), 80)
}

/// One burst for both servers, and clients who have a rule of their own.
fn polices_what_is_routed(family: Family, farm: [&str; 2]) {
    let Some(gateway) = Gateway::new(&passing("", "syn = { rate = 1, burst = 5 }")) else { return };
    let clients = RawClients::new(&gateway.front.topology).unwrap();
    let server = |n: usize| SocketAddr::new(farm[n].parse().unwrap(), 80);
    for n in [0, 1] {
        gateway.syns(&clients, &[RawClients::address(family, 1); 50], server(n));
    }
    let (taken, refused) = (gateway.count(abi::FIEF_SYN_TAKEN), gateway.count(abi::FIEF_SYN_RATE));
    assert_eq!(taken + refused, 100);
    assert!((5..20).contains(&taken), "{taken}: one burst for both, and what time brings");
    for (n, address) in FARM.into_iter().enumerate() {
        let answers = gateway.answers(Client::High.address(family, 1), server(n));
        assert_eq!(answers, address, "the rule of others is not theirs");
    }
}

#[test]
fn routed_connections_are_policed_as_they_pass() {
    polices_what_is_routed(Family::V4, FARM);
}

#[test]
fn routed_ipv6_connections_are_policed_as_they_pass() {
    polices_what_is_routed(Family::V6, FARM6);
}

#[test]
fn without_forward_nobody_minds_what_passes() {
    let policy = passing("", "syn = { rate = 1, burst = 1 }").replace("forward = true\n", "admit = true\n");
    let Some(gateway) = Gateway::new(&policy) else { return };
    for n in [0, 1, 0, 1] {
        assert_eq!(gateway.answers(Client::Low.address(Family::V4, 1), server(n)), FARM[n]);
    }
    assert_eq!(gateway.front.verdicts().all(), [], "nothing was decided");
}

#[test]
fn translated_connections_are_left_alone_beside_a_guarded_listener() {
    let policy = "[container.farm]\n[listener.own]\naddress = \"0.0.0.0:80\"\n\
                  [[listener.own.client]]\nfrom = [\"any\"]\ncontainer = \"farm\"\n\
                  [[listener.own.request]]\npath = \"/*\"\nrefuse = \"reset\"\n";
    let Some(gateway) = Gateway::through(Door::Kernel, policy) else { return };
    let own = PlainServer::start(&gateway.front.topology.server, plain(Family::V4)).unwrap();
    let chain = "type nat hook prerouting priority dstnat; ip saddr 10.77.1.0/24 tcp dport 80 dnat to 10.9.0.2;";
    gateway.nft(&format!("table ip t {{ chain c {{ {chain} }}; }}"));
    for _ in 0..3 {
        assert_eq!(gateway.answers(high(), plain(Family::V4)), FARM[0]);
    }
    assert_eq!(gateway.front.verdicts().requests(), 0, "{:?}", gateway.front.verdicts());
    assert!(get(&gateway.front.topology.clients, plain(Family::V4), "/1k").is_err(), "others are ruled");
    gateway.has_counted(abi::FIEF_REQUEST_REFUSED, 1);
    assert_eq!(own.accepted(), 0);
}

#[test]
fn a_flood_isolates_nobody_whose_handshake_was_tracked() {
    let Some(gateway) = Gateway::new(&passing("isolate = { above = 20, for = \"1m\" }", "")) else { return };
    gateway.nft("table ip t { chain c { type filter hook forward priority 0; ct state invalid drop; }; }");
    let low = |n| Client::Low.address(Family::V4, n);
    assert_eq!(gateway.answers(low(1), server(0)), FARM[0]);
    wait_until(SOON, || gateway.front.proven_sources() == 1).expect("who has been answered is proven");
    let clients = RawClients::new(&gateway.front.topology).unwrap();
    // whose addresses these are answers with a reset, as anybody does who is being spoofed
    gateway.syns(&clients, &(2..=101).map(low).collect::<Vec<_>>(), server(1));
    let isolated = gateway.count(abi::FIEF_SYN_ISOLATED);
    assert!(isolated >= 60, "{isolated} of 100");
    assert_eq!(gateway.answers(low(1), server(1)), FARM[1], "the proven neighbour");
    assert_eq!(gateway.count(abi::FIEF_SYN_ISOLATED), isolated);
    gateway.syns(&clients, &[low(200)], server(1));
    assert_eq!(gateway.count(abi::FIEF_SYN_ISOLATED), isolated + 1, "another neighbour");
}

#[test]
fn who_only_pretends_a_handshake_is_not_proven() {
    let Some(gateway) = Gateway::new(&passing("isolate = { above = 20, for = \"1m\" }", "")) else { return };
    gateway.nft("table ip t { chain c { type filter hook forward priority 0; ct state established accept; }; }");
    let clients = RawClients::new(&gateway.front.topology).unwrap();
    let sends = |n: u16, sequence: u32, acknowledgment: u32, payload: &[u8]| {
        let mut segment = Segment::new((RawClients::address(Family::V4, n), 1024).into(), server(0), ACK);
        (segment.sequence, segment.acknowledgment) = (sequence, acknowledgment);
        segment.payload = payload.to_vec();
        clients.send(&segment).unwrap();
    };
    const WORDS: &[u8] = b"GET / HTTP/1.1\r\n\r\n";
    let words = |n, acknowledgment| sends(n, 8, acknowledgment, WORDS);
    // in the midst of a connection that is none, which tracking takes up
    words(1, 9);
    words(1, 9);
    // with a SYN before, but without having seen the answer to it
    let mut syn = Segment::new((RawClients::address(Family::V4, 2), 1024).into(), server(0), SYN);
    syn.sequence = 7;
    clients.send(&syn).unwrap();
    let answer = clients.receive(syn.source, SOON).expect("a SYN-ACK of the server");
    for _ in 0..3 {
        words(2, answer.sequence.wrapping_add(0x4000_0000));
    }
    // and as it should be, also if its words are the handshake's end, and it has no others
    assert_eq!(gateway.front.proven_sources(), 0);
    let seen = answer.sequence.wrapping_add(1);
    words(2, seen);
    wait_until(SOON, || {
        sends(2, 8 + WORDS.len() as u32, seen, &[]);
        gateway.front.proven_sources() == 1
    })
    .expect("who has seen the answer is proven");
}

#[test]
fn the_example_polices_translated_connections_at_the_address_that_clients_call() {
    let Some(gateway) = Gateway::new(EXAMPLE) else { return };
    gateway.nft(TRANSLATION);
    let mut seen: Vec<_> = (0..4).map(|_| gateway.answers(high(), plain(Family::V4))).collect();
    seen.sort();
    assert_eq!(seen, [FARM[0], FARM[0], FARM[1], FARM[1]]);
    let clients = RawClients::new(&gateway.front.topology).unwrap();
    gateway.syns(&clients, &[RawClients::address(Family::V4, 1); 400], plain(Family::V4));
    assert!(gateway.count(abi::FIEF_SYN_RATE) > 200, "{:?}", gateway.front.verdicts());
    gateway.answers(high(), plain(Family::V4));
}

#[test]
fn the_examples_proxy_gets_only_what_the_rules_let_pass() {
    if !require(Feature::Haproxy) {
        return;
    }
    let Some(mut gateway) = Gateway::new(EXAMPLE) else { return };
    let _proxy = gateway.proxy();
    let proxy = SocketAddr::new(plain(Family::V4).ip(), 8080);
    let mut seen: Vec<_> = (0..4).map(|_| gateway.answers(high(), proxy)).collect();
    seen.sort();
    assert_eq!(seen, [FARM[0], FARM[0], FARM[1], FARM[1]]);
    let clients = &gateway.front.topology.clients;
    assert!(get(clients, proxy, "/internal/users").is_err(), "reset");
    let answers: Vec<_> = (0..30).map(|_| get(clients, proxy, "/search").unwrap()).collect();
    let refused: Vec<_> = answers.iter().filter(|answer| answer.starts_with("HTTP/1.1 503")).collect();
    let seconds = |answer: &str| answer.lines().find_map(|line| line.strip_prefix("Retry-After:"))?.trim().parse().ok();
    assert!(refused.iter().all(|answer| seconds(answer) == Some(2)), "{refused:?}");
    gateway.has_counted(abi::FIEF_REQUEST_REFUSED, 1);
    gateway.has_counted(abi::FIEF_REQUEST_RATE, refused.len() as u64);
    assert!(gateway.farm.iter_mut().all(|nginx| nginx.process().try_wait().is_none()));
}

/// The flags of a SYN come in the second fragment, so the first one must not pass as a segment of some connection.
#[test]
fn a_syn_in_fragments_that_part_it_from_its_flags_does_not_pass() {
    let Some(gateway) = Gateway::new(&passing("", "syn = { rate = 1000, burst = 1000 }")) else { return };
    let clients = RawClients::new(&gateway.front.topology).unwrap();
    let from: SocketAddr = (RawClients::address(Family::V4, 9), 4000).into();
    let mut syn = Segment::new(from, server(0), SYN);
    syn.options = ORDINARY_OPTIONS.to_vec();
    let tcp = syn.tcp();
    let (IpAddr::V4(source), IpAddr::V4(to)) = (from.ip(), server(0).ip()) else { unreachable!("both are IPv4") };
    let more = 0x2000;
    clients.send_packet(&[], &ipv4(source, to, &[], more, TCP, &tcp[..8])).unwrap();
    clients.send_packet(&[], &ipv4(source, to, &[], 1, TCP, &tcp[8..])).unwrap();
    wait_until(SOON, || gateway.count(abi::FIEF_SHAPE) == 1)
        .unwrap_or_else(|_| panic!("{:?}", gateway.front.verdicts()));
    // a whole one comes through, and nothing of the parts has before
    clients.send(&syn).unwrap();
    wait_until(SOON, || gateway.count(abi::FIEF_SYN_TAKEN) == 1).expect("a verdict on the whole SYN");
}
