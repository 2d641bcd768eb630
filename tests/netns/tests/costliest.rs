// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Which clients cost most, against who really did.

use std::io::{Read, Write};
use std::mem::offset_of;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpStream};
use std::os::unix::net::UnixStream;
use std::process::Command;
use std::time::Duration;

use fief_bpf::abi;
use fief_bpf::costs::Costs;
use fief_bpf::map::{MapCore, MapFlags};
use fief_control::{CostView, Fief, Ranking};
use fief_testkit::segment::{SYN, Segment};
use fief_testkit::{Client, Family, Feature, ORDINARY_OPTIONS, Process, RawClients, Topology, require, wait_until};
use fief_tests_netns::{
    Installation, SOON, Setup, connect_from, connect_once_served, in_unit, python_server, role, serve_in_turn, spin,
    two_classes,
};
use nix::time::{ClockId, clock_gettime};

const PORT: u16 = 8080;

const CLASSES: [&str; 2] = ["shop/high", "shop/low"];
const ALL: [&str; 3] = ["shop", "shop/high", "shop/low"];

fn charged(fief: &Fief, paths: &[&str]) -> u64 {
    let views = fief.snapshot().unwrap().containers;
    views.iter().filter(|view| paths.contains(&view.path.as_str())).map(|view| view.usage.cpu_ns()).sum()
}

fn of(ranking: &Ranking, prefix: &str) -> u64 {
    ranking.costly.iter().find(|one| one.from.to_string() == prefix).map_or(0, |one| one.ns)
}

fn first(ranking: &Ranking) -> String {
    ranking.costly.first().map(|one| one.from.to_string()).unwrap_or_default()
}

/// Clients and networks are read one after the other: what is charged in between is in one of them alone.
fn costs_at_rest(fief: &Fief) -> CostView {
    let mut last = fief.costs(SOON).unwrap();
    let rests = || {
        let now = fief.costs(SOON).unwrap();
        let all = |view: &CostView| (view.clients.clone(), view.networks.clone(), view.unplaced_ns);
        let rests = all(&now) == all(&last);
        last = now;
        rests
    };
    wait_until(SOON, rests).unwrap();
    last
}

/// A topology with a server namespace in which such a policy is in force.
fn installed(listener: &str) -> (Topology, Installation) {
    let topology = Topology::new().unwrap();
    let policy = two_classes(listener);
    let setup = Setup { policy: &policy, home: "shop", follow: true, ..Setup::default() };
    let installation = topology.server.run(|| Installation::with(&setup)).unwrap();
    (topology, installation)
}

/// From here on a request is worked for behind a UNIX connection, and from the other on by a program.
const BEHIND: u8 = 100;
const PROGRAM: u8 = 200;

/// A request is how many milliseconds to work.
fn serve() {
    let (mut front, mut behind) = UnixStream::pair().unwrap();
    std::thread::spawn(move || {
        let mut cost = [0];
        while matches!(behind.read(&mut cost), Ok(1)) {
            spin(Duration::from_millis((cost[0] - BEHIND).into()));
            behind.write_all(&cost).unwrap();
        }
    });
    serve_in_turn(([0, 0, 0, 0], PORT).into(), |connection| {
        let mut cost = [0];
        let asks = matches!(connection.read(&mut cost), Ok(1));
        if asks {
            match cost[0] {
                ..BEHIND => spin(Duration::from_millis(cost[0].into())),
                BEHIND..PROGRAM => {
                    front.write_all(&cost).unwrap();
                    front.read_exact(&mut [0]).unwrap();
                }
                PROGRAM.. => {
                    let loops = "i=0; while [ $i -lt 100000 ]; do i=$((i+1)); done";
                    assert!(Command::new("sh").args(["-c", loops]).status().unwrap().success());
                }
            }
            connection.write_all(&cost).unwrap();
        }
        asks
    });
}

fn ask(connection: &mut TcpStream, milliseconds: u8) {
    connection.write_all(&[milliseconds]).unwrap();
    connection.read_exact(&mut [0]).unwrap();
}

/// The server, and so many clients of one class, so that the class tells nothing.
struct Served {
    clients: Vec<TcpStream>,
    installation: Installation,
    _server: Process,
    _topology: Topology,
}

impl Served {
    /// `None`: this process is the server, which never ends, or there can be none.
    fn start(name: &str, count: u8) -> Option<Self> {
        if role().is_some() {
            serve();
            return None;
        }
        if !require(Feature::NetNs) {
            return None;
        }
        let (topology, installation) = installed("address = \"0.0.0.0:8080\"\nclasses = \"shared\"");
        let mut part = installation.part(Some(&installation.cgroup()), name, "server");
        topology.server.enter(&mut part);
        let server = Process::start(part).unwrap();
        let client = |n| {
            let from = (Client::Low.address(Family::V4, n), 0).into();
            connect_once_served(&topology.clients, from, Topology::server_address(Family::V4, PORT))
        };
        let clients = (1..=count).map(client).collect();
        Some(Self { clients, installation, _server: server, _topology: topology })
    }

    /// The n-th asks again and again, between requests of the others that cost nothing.
    fn ask(&mut self, costly: usize, cost: u8, times: u32) {
        for _ in 0..times {
            self.clients.iter_mut().for_each(|other| ask(other, 0));
            ask(&mut self.clients[costly], cost);
        }
    }
}

#[test]
fn one_client_with_few_requests_that_cost_much_comes_before_many_with_many() {
    let name = "one_client_with_few_requests_that_cost_much_comes_before_many_with_many";
    let Some(mut served) = Served::start(name, 12) else { return };
    // the server may still be taking up the last of them, and what that costs would be in one of two sums
    let before = costs_at_rest(served.installation.fief());
    let account = charged(served.installation.fief(), &CLASSES);
    for round in 0..40 {
        for (n, client) in served.clients.iter_mut().enumerate() {
            match n {
                6 if round % 8 == 0 => ask(client, 60),
                6 => {}
                _ => ask(client, 0),
            }
        }
    }
    let fief = served.installation.fief();
    let after = costs_at_rest(fief);
    let account = charged(fief, &CLASSES) - account;
    let costliest = after.since(&before);
    let costly = Client::Low.address(Family::V4, 7);
    assert_eq!(first(&costliest.clients), format!("{costly}/32"), "{costliest:#?}");
    let its = &costliest.clients.costly[0];
    // what the hypervisor stole meanwhile is nobody's
    assert!((150_000_000..400_000_000).contains(&its.ns), "5 requests of 60 ms: {costliest:#?}");
    assert!(its.receive_ns > 0 && its.receive_ns < its.ns / 4, "{its:?}");
    let asked = costliest.clients.costly.iter().filter(|one| one.ns > 0 && one.receive_ns > 0).count();
    assert_eq!(asked, 12, "{costliest:#?}");
    // what each CPU has gathered is told after a millisecond; connections that wait are the classes' and nobody's
    let error = account.abs_diff(costliest.clients.ns);
    assert!(error < 4_000_000 + account / 20, "{} of {account}: {costliest:#?}", costliest.clients.ns);
    assert_eq!(costliest.clients.left_out_all_ns, 0, "all of them have a place");
    let networks: u64 = costliest.networks.costly.iter().map(|one| one.ns).sum();
    assert_eq!(networks, costliest.clients.ns, "{costliest:#?}");
    assert_eq!(costliest.networks.costly.len(), 1, "{costliest:#?}");
}

#[test]
fn a_back_end_works_for_the_client_that_it_is_asked_for() {
    let Some(mut served) = Served::start("a_back_end_works_for_the_client_that_it_is_asked_for", 4) else { return };
    let before = served.installation.fief().costs(SOON).unwrap();
    served.ask(2, BEHIND + 60, 5);
    let costliest = served.installation.fief().costs(SOON).unwrap().since(&before).clients;
    let costly = Client::Low.address(Family::V4, 3);
    assert!(of(&costliest, &format!("{costly}/32")) > 150_000_000, "5 requests of 60 ms: {costliest:#?}");
    assert!(costliest.costly[1].ns < 50_000_000, "{costliest:#?}");
}

#[test]
fn a_program_works_for_the_client_that_it_was_started_for() {
    let Some(mut served) = Served::start("a_program_works_for_the_client_that_it_was_started_for", 4) else { return };
    let before = served.installation.fief().costs(SOON).unwrap();
    let account = charged(served.installation.fief(), &ALL);
    served.ask(1, PROGRAM, 3);
    let fief = served.installation.fief();
    let account = charged(fief, &ALL) - account;
    let costliest = fief.costs(SOON).unwrap().since(&before).clients;
    let costly = Client::Low.address(Family::V4, 2);
    let its = of(&costliest, &format!("{costly}/32"));
    assert!(its > account / 2 && its > 50_000_000, "{its} of {account}: {costliest:#?}");
    assert_eq!(first(&costliest), format!("{costly}/32"), "{costliest:#?}");
}

/// Answers on every path; `/costly` takes a while.
const METHODS: &str = r#"
    def do_GET(self):
        if self.path == "/costly":
            end = time.thread_time() + 0.08
            while time.thread_time() < end:
                pass
        self.answer()
"#;

fn get(topology: &Topology, from: IpAddr, path: &str) {
    let server = Topology::server_address(if from.is_ipv4() { Family::V4 } else { Family::V6 }, 80);
    let mut stream = connect_from(&topology.clients, (from, 0).into(), server).unwrap();
    stream.set_read_timeout(Some(SOON)).unwrap();
    stream.write_all(format!("GET {path} HTTP/1.0\r\nHost: server\r\n\r\n").as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    assert!(answer.contains(" 200 "), "{answer}");
}

/// The n-th of the addresses that a flood invents, no two in one network.
fn invented(n: u32) -> SocketAddr {
    SocketAddr::from((Ipv4Addr::from(0x1000_0000 + (n << 8)), 1024 + (n % 50_000) as u16))
}

#[test]
fn a_flood_of_invented_sources_hides_nobody() {
    if !require(Feature::NetNs) {
        return;
    }
    let (topology, installation) = installed("address = \"[::]:80\"\nclasses = \"shared\"");
    let server = &topology.server;
    // invented sources get so far as the listening socket
    server.sysctl("net.ipv4.conf.all.rp_filter", "0").unwrap();
    server.sysctl("net.ipv4.conf.sv.rp_filter", "0").unwrap();
    server.ip("route replace default via 10.77.0.2 dev sv").unwrap();
    let mut python = installation.command("python3");
    python.args(["-c", &python_server(METHODS)]);
    server.enter(&mut python);
    let _server = Process::start(python).unwrap();
    let fief = installation.fief();
    let costly = [Client::Low.address(Family::V4, 9), Client::Low.address(Family::V6, 9)];
    for from in costly {
        let near = Topology::server_address(if from.is_ipv4() { Family::V4 } else { Family::V6 }, 80);
        drop(connect_once_served(&topology.clients, (from, 0).into(), near));
    }
    let clients = RawClients::new(&topology).unwrap();
    let flood = |from: u32, count: u32| {
        for n in from..from + count {
            let to = Topology::server_address(Family::V4, 80);
            let mut syn = Segment::new(invented(n), to, SYN);
            syn.options = ORDINARY_OPTIONS.to_vec();
            clients.send(&syn).unwrap();
        }
    };
    let forgotten = |view: &CostView| view.clients_forgotten_ns.iter().filter(|ns| **ns > 0).count();
    let before = fief.costs(SOON).unwrap();
    for n in 1..=10 {
        (0..3).for_each(|_| get(&topology, Client::High.address(Family::V4, n), "/cheap"));
    }
    costly.iter().for_each(|from| (0..3).for_each(|_| get(&topology, *from, "/costly")));
    let calm = fief.costs(SOON).unwrap();
    let in_calm = calm.since(&before).clients;
    let prefixes = costly.map(|from| if from.is_ipv4() { format!("{from}/32") } else { v6_prefix(from) });
    let is_costly = |ranking: &Ranking| {
        let two: Vec<_> = ranking.costly.iter().take(2).map(|one| one.from.to_string()).collect();
        prefixes.iter().all(|prefix| two.contains(prefix))
    };
    assert!(is_costly(&in_calm), "{prefixes:?} {:#?}", &in_calm.costly[..5]);

    flood(0, 60_000);
    let mut flooded = fief.costs(SOON).unwrap();
    wait_until(SOON, || {
        flooded = fief.costs(SOON).unwrap();
        forgotten(&flooded) > 900
    })
    .unwrap_or_else(|_| panic!("{} sets were filled, {} have a place", forgotten(&flooded), flooded.clients.len()));
    let all = flooded.since(&CostView { since_ns: flooded.since_ns, ..CostView::default() }).clients;
    assert!(is_costly(&all), "{prefixes:?} {:#?}", &all.costly[..5]);
    for prefix in &prefixes {
        assert!(of(&all, prefix) >= of(&in_calm, prefix), "nothing of it is forgotten: {prefix}");
    }
    assert!(of(&all, &prefixes[0]) > 10 * all.left_out_ns, "who is not shown cost far less: {}", all.left_out_ns);

    // and one whose first request comes in the midst of it
    let late = Client::High.address(Family::V4, 200);
    for part in 0..10 {
        flood(60_000 + part * 2_000, 2_000);
        get(&topology, late, "/costly");
    }
    let after = fief.costs(SOON).unwrap().since(&flooded).clients;
    assert_eq!(first(&after), format!("{late}/32"), "{:#?}", &after.costly[..5]);
    assert!(of(&after, &format!("{late}/32")) > 300_000_000, "10 requests of 80 ms: {:#?}", &after.costly[..5]);
}

fn v6_prefix(from: IpAddr) -> String {
    let IpAddr::V6(from) = from else { unreachable!("asked of IPv6 alone") };
    let net: u128 = from.to_bits() >> 64 << 64;
    format!("{}/64", std::net::Ipv6Addr::from_bits(net))
}

/// Whether any CPU counts by client.
fn is_counted(fief: &Fief) -> bool {
    let cpus = fief.pins().open_map("cpus").unwrap();
    let counts = |cpu: u32| {
        let record = cpus.lookup(&cpu.to_ne_bytes(), MapFlags::ANY).unwrap().expect("an array");
        record[offset_of!(abi::fief_cpu, by_client)] != 0
    };
    (0..cpus.max_entries()).any(counts)
}

#[test]
fn nothing_is_counted_that_nobody_asks_for() {
    in_unit("nothing_is_counted_that_nobody_asks_for", || {
        let fief = Fief::from_env().unwrap();
        assert!(!is_counted(&fief), "not before somebody asks");
        let now = clock_gettime(ClockId::CLOCK_MONOTONIC).unwrap();
        let now_ns = now.tv_sec() as u64 * 1_000_000_000 + now.tv_nsec() as u64;
        let costs = Costs::open(fief.pins()).unwrap();
        let end_ns = now_ns + 200_000_000;
        costs.begin(end_ns).unwrap();
        assert!(is_counted(&fief) || fief_tests_netns::now_ns() > end_ns);
        wait_until(SOON, || !is_counted(&fief)).expect("every CPU has seen that it is over");
        let (first, second) = (fief.costs(SOON).unwrap(), fief.costs(SOON).unwrap());
        assert!(is_counted(&fief) && first.since_ns == second.since_ns, "two readers share the count");
        assert!(first.since_ns > now_ns, "it began anew");
        assert_eq!(second.clients, [], "nobody was served");
    });
}
