// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Clients of a network that floods, where they are served last and not shut out.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use fief_bpf::abi;
use fief_bpf::record::Record;
use fief_testkit::segment::{SYN, Segment};
use fief_testkit::{
    Client, Family, Feature, ORDINARY_OPTIONS, PlainServer, Process, RawClients, RawConnection, require, wait_until,
};
use fief_tests_netns::front::{Door, Front, Verdict, Verdicts, plain, ready};
use fief_tests_netns::{SOON, connect_from, connect_once_served, connect_with_bytes, now_ns, one_installation};
use libbpf_rs::{MapCore, MapFlags, MapHandle};
use nix::errno::Errno;

fn policy(isolate: &str, unproven: &str) -> String {
    format!(
        "[container.web]\n[container.\"web/dear\"]\n[container.\"web/last\"]\ncpu.priority = 0\n\
         [listener.plain]\naddress = \"[::]:80\"\nadmit = true\nqueue = false\nunproven = {{ {unproven} }}\n\
         isolate = {{ above = 20, for = \"1m\"{isolate} }}\n\
         [[listener.plain.client]]\nfrom = [\"any\"]\ncontainer = \"web\"\n\
         [[listener.plain.request]]\npath = \"/dear\"\ncontainer = \"web/dear\"\n\
         [[listener.plain.request]]\npath = \"/secret\"\nrefuse = \"reset\"\n"
    )
}

const INTO: &str = ", into = \"web/last\"";

/// How long nothing comes to a SYN that is not answered.
const SILENCE: Duration = Duration::from_millis(300);

struct Rig {
    front: Front,
    clients: RawClients,
    port: u16,
    _server: Server,
}

enum Server {
    Plain(#[expect(dead_code, reason = "it serves until it is dropped")] PlainServer),
    Managed(#[expect(dead_code, reason = "it serves until it is dropped")] Process),
}

/// Answers once, and closes first.
const CLOSES_FIRST: &str = "
import socket
listening = socket.create_server(('::', 80), family=socket.AF_INET6, dualstack_ipv6=True)
while True:
    with listening.accept()[0] as client:
        client.recv(1000)
        client.sendall(b'served')
";

impl Rig {
    fn new(door: Door, isolate: &str, unproven: &str) -> Option<Self> {
        if !ready() {
            return None;
        }
        Some(Self::at(door, &policy(isolate, unproven), |front| Server::Plain(front.plain_server())))
    }

    fn at(door: Door, policy: &str, serve: impl Fn(&Front) -> Server) -> Self {
        let front = Front::new(door, policy);
        let server = serve(&front);
        let clients = RawClients::new(&front.topology).unwrap();
        front.no_cpu_idle();
        Self { front, clients, port: 3000, _server: server }
    }

    /// SYNs of ever new addresses of a network, spoofed.
    fn flood(&self, [a, b]: [u8; 2], network: u8, count: u32) {
        for n in 0..count {
            let source = Ipv4Addr::new(a, b, network, 100 + (n % 100) as u8);
            let mut syn = Segment::new((source, 1000 + (n / 100) as u16).into(), plain(Family::V4), SYN);
            syn.options = ORDINARY_OPTIONS.to_vec();
            syn.sequence = n;
            self.clients.send(&syn).unwrap();
        }
    }

    /// Opens a connection; none if nothing is answered within the time.
    fn open(&mut self, client: Ipv4Addr, time: Duration) -> Option<RawConnection<'_>> {
        self.port += 1;
        let ends = [SocketAddr::new(client.into(), self.port), plain(Family::V4)];
        RawConnection::open(&self.clients, ends, 7, &ORDINARY_OPTIONS, time).unwrap()
    }

    /// The container of the verdict upon a request for each of these, one after the other on one connection.
    fn asks(&mut self, client: Ipv4Addr, paths: &[&str]) -> Vec<String> {
        let requests: Vec<String> =
            paths.iter().map(|path| format!("GET {path} HTTP/1.1\r\nHost: a\r\n\r\n")).collect();
        let before = self.front.verdicts();
        let mut connection = self.open(client, SOON).expect("an answer");
        connection.acknowledge().unwrap();
        let stream = requests.concat();
        let mut ends = Vec::new();
        for request in &requests {
            let begin = ends.last().map_or(0, |range: &std::ops::Range<usize>| range.end);
            ends.push(begin..begin + request.len());
        }
        let are_answered =
            |words: &[u8]| words.windows(12).filter(|part| part == b"HTTP/1.1 200").count() == paths.len();
        connection.converse_until(stream.as_bytes(), &ends, SOON, are_answered).unwrap();
        drop(connection);
        let new = || self.front.verdicts().since(&before);
        wait_until(SOON, || new().requests() >= paths.len() as u64).unwrap_or_else(|_| panic!("{:?}", new()));
        containers(&new())
    }

    fn isolate(&self, wide: [u8; 2], network: u8) {
        self.flood(wide, network, 200);
        let front = &self.front;
        wait_until(SOON, || {
            let view = front.topology.server.run(|| front.installation().fief().front().unwrap()).unwrap();
            view.shut_out.iter().any(|shut_out| shut_out.source == format!("{}.{}.{network}.0/24", wide[0], wide[1]))
        })
        .expect("isolated");
    }
}

/// Of the verdicts upon requests.
fn containers(verdicts: &Verdicts) -> Vec<String> {
    let of_requests = |verdict: &&Verdict| (abi::FIEF_REQUEST_RULE..=abi::FIEF_REQUEST_CPU).contains(&verdict.reason);
    verdicts.all().iter().filter(of_requests).map(|verdict| verdict.container.clone()).collect()
}

fn client(network: u8, n: u8) -> Ipv4Addr {
    Ipv4Addr::new(10, 89, network, n)
}

/// Connects from a port that was used before: the client's own end of the last connection may still wait for the last ACK.
fn connect_again(connect: impl Fn() -> nix::Result<TcpStream>) -> TcpStream {
    let mut made = Err(Errno::EADDRNOTAVAIL);
    wait_until(SOON, || {
        made = connect();
        !made.as_ref().is_err_and(|error| *error == Errno::EADDRNOTAVAIL)
    })
    .expect("the port is free again");
    made.unwrap()
}

#[test]
fn who_proves_itself_while_its_network_is_isolated_is_of_the_last_class_for_good() {
    let _one = one_installation();
    for door in Door::GUARDS {
        let Some(mut rig) = Rig::new(door, INTO, "rate = 100000") else { return };
        assert_eq!(rig.asks(client(1, 1), &["/10"]), ["web"]);
        rig.isolate([10, 89], 1);
        assert_eq!(rig.asks(client(1, 2), &["/10"]), ["web/last"], "a new one");
        assert_eq!(rig.asks(client(1, 1), &["/10"]), ["web"], "who was proven before");
        assert_eq!(rig.asks(client(2, 2), &["/10"]), ["web"], "of another network");
        assert_eq!(rig.asks(client(1, 2), &["/10"]), ["web/last"], "once more while it lasts");
    }
}

#[test]
fn no_rule_gives_an_isolated_client_a_better_class_and_each_still_refuses_it() {
    let _one = one_installation();
    for door in Door::GUARDS {
        let Some(mut rig) = Rig::new(door, INTO, "rate = 100000") else { return };
        assert_eq!(rig.asks(client(2, 2), &["/dear"]), ["web/dear"]);
        rig.isolate([10, 89], 1);
        assert_eq!(rig.asks(client(1, 2), &["/dear"]), ["web/last"]);
        assert_eq!(rig.asks(client(1, 3), &["/10", "/dear"]), ["web/last", "web/last"], "a later request");
        assert_eq!(rig.asks(client(1, 4), &["/secret"]), ["web/last"]);
        let refused = rig.front.verdicts().count(abi::FIEF_REQUEST_REFUSED);
        assert!((1..=1 + rig.clients.sent_again()).contains(&refused), "{refused}");
    }
}

/// The server remembers the port of the connection before, so that the kernel makes the next one.
#[test]
fn who_uses_a_port_again_stays_in_the_last_class() {
    let _one = one_installation();
    for door in Door::GUARDS {
        let Some(rig) = Rig::new(door, INTO, "rate = 100000") else { return };
        rig.isolate([10, 77], 1);
        let from = SocketAddr::new(Client::High.address(Family::V4, 1), 5555);
        for (time, begin) in [("first", ""), ("second", ""), ("third", "G"), ("fourth", "")] {
            let before = rig.front.verdicts();
            let (clients, to) = (&rig.front.topology.clients, plain(Family::V4));
            let mut stream = connect_again(|| match begin {
                "" => connect_from(clients, from, to),
                _ => connect_with_bytes(clients, from, to, begin.as_bytes()),
            });
            // the handshake's end has been here before the request
            if time != "first" {
                wait_until(SOON, || rig.front.sockets(from.port()) == ["01"]).expect("the kernel makes it");
            }
            let request = "GET /dear HTTP/1.1\r\nConnection: close\r\n\r\n";
            stream.write_all(&request.as_bytes()[begin.len()..]).unwrap();
            stream.read_to_end(&mut Vec::new()).unwrap();
            drop(stream);
            wait_until(SOON, || rig.front.sockets(from.port()) == ["06"]).expect("the server remembers the port");
            let new = rig.front.verdicts().since(&before);
            assert_eq!(containers(&new), ["web/last"], "{door:?}, {time}: {new:?}");
        }
    }
}

/// Of a managed server whose kernel keeps the handshake, and where no request is ruled.
#[test]
fn who_ends_its_handshake_with_bytes_is_of_the_last_class() {
    if !ready() || !require(Feature::Python) {
        return;
    }
    let _one = one_installation();
    let ruled = policy(INTO, "rate = 100000");
    let unruled = ruled.split("[[listener.plain.request]]").next().unwrap();
    for door in Door::GUARDS {
        let rig = Rig::at(door, unruled, |front| {
            let mut command = front.server_command("python3");
            command.args(["-c", CLOSES_FIRST]);
            Server::Managed(Process::start(command).unwrap())
        });
        let from = |n: u8| SocketAddr::new(Client::High.address(Family::V4, n), 5555 + u16::from(n));
        let clients = &rig.front.topology.clients;
        let mut first = connect_once_served(clients, from(2), plain(Family::V4));
        first.write_all(b"x").unwrap();
        first.read_to_end(&mut Vec::new()).unwrap();
        rig.isolate([10, 77], 1);
        let accepts = || {
            let snapshot = rig.front.installation().fief().snapshot().unwrap();
            let of = |path| snapshot.containers.iter().find(|view| view.path == path).unwrap().usage.accepts;
            ["web", "web/last"].map(of)
        };
        let before = accepts();
        for time in 1..=3 {
            let mut stream = connect_again(|| connect_with_bytes(clients, from(1), plain(Family::V4), b"x"));
            stream.read_to_end(&mut Vec::new()).unwrap();
            drop(stream);
            wait_until(SOON, || rig.front.sockets(from(1).port()) == ["06"]).expect("the port is remembered");
            assert_eq!(accepts(), [before[0], before[1] + time], "{door:?}");
        }
    }
}

/// A spoofer has had a network isolated for each place, and has gone on.
#[test]
fn isolated_networks_that_are_silent_keep_nobody_from_being_isolated() {
    let _one = one_installation();
    let Some(rig) = Rig::new(Door::Own, INTO, "rate = 100000") else { return };
    let meters = MapHandle::from_pinned_path(rig.front.installation().fief().pins().map("meters")).unwrap();
    let now = now_ns();
    for at in 0..abi::FIEF_METERS {
        let mut meter = abi::fief_meter {
            window_ns: now - 2_000_000_000,
            isolated_since_ns: now - 3_000_000_000,
            isolated_until_ns: now + 3_600_000_000_000,
            held: 21,
            length: 24,
            ..Default::default()
        };
        meter.prefix[10..].copy_from_slice(&[0xff, 0xff, 172, (at >> 8) as u8, at as u8, 0]);
        meters.update(&at.to_ne_bytes(), meter.bytes(), MapFlags::ANY).unwrap();
    }
    rig.flood([10, 89], 1, 1000);
    rig.isolate([10, 89], 1);
}

#[test]
fn an_isolated_network_is_answered_from_what_others_leave() {
    let _one = one_installation();
    for door in Door::GUARDS {
        let Some(mut rig) = Rig::new(door, INTO, "rate = 20, burst = 20") else { return };
        rig.isolate([10, 89], 1);
        wait_until(SOON, || rig.open(client(1, 2), SILENCE).is_some()).expect("answered while nobody else asks");
        // 18 from as many networks: less than half of the burst, so that all are answered
        for network in 2..8 {
            rig.flood([10, 89], network, 1);
        }
        assert!(rig.open(client(9, 1), SOON).is_some(), "somebody else");
        let (before, begin) = (rig.front.verdicts(), Instant::now());
        for network in 10..30 {
            rig.flood([10, 89], network, 1);
            rig.flood([10, 89], 1, 5);
        }
        let new = || rig.front.verdicts().since(&before);
        wait_until(SOON, || new().syns() >= 120).unwrap_or_else(|_| panic!("{:?}", new()));
        // what the time since then brings may be left for them
        let left = 5 + 20 * begin.elapsed().as_millis() as u64 / 1000;
        assert!(new().count(abi::FIEF_SYN_ISOLATED) + left >= 100, "{:?}", new());
        assert!(new().count(abi::FIEF_SYN_TAKEN) >= 5, "{:?}", new());
    }
}

#[test]
fn without_a_class_isolated_clients_are_shut_out() {
    let _one = one_installation();
    for door in Door::GUARDS {
        let Some(mut rig) = Rig::new(door, "", "rate = 100000") else { return };
        rig.isolate([10, 89], 1);
        assert!(rig.open(client(1, 2), SILENCE).is_none());
        assert!(rig.open(client(2, 2), SOON).is_some());
    }
}
