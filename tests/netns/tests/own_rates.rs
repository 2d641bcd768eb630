// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The rates of single sources: SYNs that others forge in a proven source's name cost it nothing, its own connections do.

use std::io::Read;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener};
use std::time::{Duration, Instant};

use fief_bpf::abi;
use fief_testkit::segment::{ACK, PSH, RST, SYN, URG};
use fief_testkit::{Client, Family, ORDINARY_OPTIONS, RawClients, RawConnection, Topology, wait_until};
use fief_tests_netns::front::{Door, Front, plain, ready};
use fief_tests_netns::queued::Queued;
use fief_tests_netns::rig::{Rig, whole};
use fief_tests_netns::{SOON, connect_from, one_installation};

const REQUEST: &[u8] = b"GET /10 HTTP/1.1\r\nConnection: close\r\n\r\n";
const CLIENT: Ipv4Addr = Ipv4Addr::new(10, 89, 1, 1);
const BURST: u16 = 3;
/// So often a client returns one cookie: more often than it may have connections.
const COMES_BACK: u16 = 4 * BURST;

/// A rate of single sources as a listener, or a rule for clients, has it, and why it refuses.
const RATES: [(&str, &str, u32); 2] = [
    ("proven = { rate = 1, burst = 3 }", "", abi::FIEF_SYN_ISOLATED),
    ("", "syn = { rate = 1, burst = 3, per = \"source\" }", abi::FIEF_SYN_RATE),
];

fn policy(listener: &str, client: &str) -> String {
    format!(
        "[container.web]\n[listener.plain]\naddress = \"[::]:80\"\nadmit = true\n{listener}\n\
         [[listener.plain.client]]\nfrom = [\"any\"]\ncontainer = \"web\"\n{client}\n"
    )
}

fn open(rig: &Rig, port: u16) -> RawConnection<'_> {
    rig.open_from((CLIENT, port).into())
}

fn is_served(connection: &mut RawConnection<'_>) -> bool {
    connection.converse(REQUEST, &whole(REQUEST), SOON).unwrap().0.starts_with(b"HTTP/1.1 200")
}

/// The client returns a cookie, and makes no connection of it.
fn prove(rig: &Rig) {
    open(rig, 1999).acknowledge().unwrap();
    wait_until(SOON, || rig.front.proven_sources() == 1).unwrap();
}

#[test]
fn forged_requests_for_connections_cost_a_proven_source_nothing() {
    if !ready() {
        return;
    }
    let _one = one_installation();
    for door in Door::GUARDS {
        for (listener, client, _) in RATES {
            let rig = Rig::new(door, &policy(listener, client));
            prove(&rig);
            for port in 2000..2003 {
                let before = rig.verdicts();
                (10_000..10_100).for_each(|port| rig.syn(SocketAddr::new(CLIENT.into(), port)));
                rig.verdicts_on(&before, 100);
                assert!(is_served(&mut open(&rig, port)), "{door:?}, {listener}{client}");
            }
        }
    }
}

#[test]
fn connections_above_the_own_rate_of_a_source_wait_for_their_turn() {
    if !ready() {
        return;
    }
    let _one = one_installation();
    for door in Door::GUARDS {
        for (listener, client, reason) in RATES {
            let rig = Rig::new(door, &policy(listener, client));
            prove(&rig);
            let began = Instant::now();
            let mut connections: Vec<_> = (0..2 * BURST).map(|n| open(&rig, 2000 + n)).collect();
            for connection in &connections {
                rig.clients.send(&connection.segment(ACK, 0, REQUEST)).unwrap();
            }
            let refused = || rig.verdicts().count(reason);
            wait_until(SOON, || rig.server.accepted() + refused() >= u64::from(2 * BURST)).unwrap();
            let brought = began.elapsed().as_secs() + 1;
            let accepted = rig.server.accepted();
            assert!((3..=3 + brought).contains(&accepted), "{door:?}, {listener}{client}: {accepted}");
            // A client that sends its bytes again is served in its turn.
            let mut last = connections.pop().unwrap();
            let time = Duration::from_millis(300);
            wait_until(SOON, || last.converse(REQUEST, &whole(REQUEST), time).unwrap().0.starts_with(b"HTTP/1.1 200"))
                .unwrap_or_else(|_| panic!("{door:?}, {listener}{client}: {:?}", rig.verdicts()));
        }
    }
}

/// The kernel keeps the handshakes as long as it has room (1), or answers with cookies of its own (2).
fn without_admission(listener: &str, client: &str, cookies: &str) -> Rig {
    let rig = Rig::new(Door::Own, &policy(listener, client));
    prove(&rig);
    let policy = policy(listener, client).replace("admit = true\n", "");
    rig.front.apply(&policy).unwrap();
    rig.front.topology.server.sysctl("net.ipv4.tcp_syncookies", cookies).unwrap();
    rig
}

#[test]
fn a_handshake_that_the_kernel_keeps_proves_its_source_and_a_guess_does_not() {
    if !ready() {
        return;
    }
    let _one = one_installation();
    for cookies in ["1", "2"] {
        for (listener, client, _) in RATES {
            let policy = policy(listener, client).replace("admit = true\n", "");
            let rig = Rig::new(Door::Own, &policy);
            rig.front.topology.server.sysctl("net.ipv4.tcp_syncookies", cookies).unwrap();
            let made = open(&rig, 1999);
            let mut guess = made.segment(ACK, 0, b"");
            guess.acknowledgment = guess.acknowledgment.wrapping_add(1 << 20);
            rig.clients.send(&guess).unwrap();
            // once a later packet has been counted, the guess has been here
            let before = rig.verdicts();
            rig.syn(SocketAddr::new(Ipv4Addr::new(10, 89, 2, 2).into(), 2000));
            rig.verdicts_on(&before, 1);
            assert_eq!(rig.front.proven_sources(), 0, "{cookies}, {listener}{client}");
            made.acknowledge().unwrap();
            wait_until(SOON, || rig.front.proven_sources() == 1)
                .unwrap_or_else(|e| panic!("{cookies}, {listener}{client}: {e}"));
        }
    }
}

/// As a busy proxy's: the server ends each connection, and remembers its port for a minute.
#[test]
fn a_source_whose_ports_the_server_remembers_is_proven_too() {
    if !ready() {
        return;
    }
    let _one = one_installation();
    let topology = Topology::new().unwrap();
    let server = topology.server.run(|| TcpListener::bind("0.0.0.0:80").unwrap()).unwrap();
    let from = SocketAddr::new(Client::High.address(Family::V4, 1), 5555);
    let connect = |topology: &Topology| {
        let mut made = Err(nix::errno::Errno::EADDRNOTAVAIL);
        wait_until(SOON, || {
            made = connect_from(&topology.clients, from, plain(Family::V4));
            made.is_ok()
        })
        .unwrap();
        drop(server.accept().unwrap()); // the server closes first
        assert_eq!(made.unwrap().read(&mut [0]).unwrap(), 0);
    };
    connect(&topology);
    let front = Front::at(Door::Own, &policy(RATES[0].0, ""), topology);
    let remembers = wait_until(SOON, || front.sockets(from.port()) == ["06"]);
    assert!(remembers.is_ok(), "the server remembers the port: {:?}", front.sockets(from.port()));
    connect(&front.topology);
    wait_until(SOON, || front.proven_sources() == 1).unwrap();
}

#[test]
fn without_admission_too_forged_requests_for_connections_cost_nothing() {
    if !ready() {
        return;
    }
    let _one = one_installation();
    for cookies in ["1", "2"] {
        for (listener, client, _) in RATES {
            let rig = without_admission(listener, client, cookies);
            for port in 2000..2003 {
                let before = rig.verdicts();
                // Not those for which the kernel has a socket already.
                let first = 100 * (port - 1900);
                (first..first + 100).for_each(|port| rig.syn(SocketAddr::new(CLIENT.into(), port)));
                rig.verdicts_on(&before, 100);
                assert!(is_served(&mut open(&rig, port)), "{cookies}, {listener}{client}: {:?}", rig.verdicts());
            }
        }
    }
}

#[test]
fn without_admission_too_connections_above_the_own_rate_wait_for_their_turn() {
    if !ready() {
        return;
    }
    let _one = one_installation();
    for cookies in ["1", "2"] {
        for (listener, client, reason) in RATES {
            let rig = without_admission(listener, client, cookies);
            let began = Instant::now();
            let mut connections: Vec<_> = (0..2 * BURST).map(|n| open(&rig, 2000 + n)).collect();
            for connection in &connections {
                connection.acknowledge().unwrap();
                rig.clients.send(&connection.segment(ACK, 0, REQUEST)).unwrap();
            }
            let refused = || rig.verdicts().count(reason);
            // The bare end and the bytes of a connection are refused one by one.
            let all = || rig.server.accepted() >= u64::from(BURST) && refused() >= u64::from(BURST);
            wait_until(SOON, all).unwrap_or_else(|_| panic!("{cookies}, {listener}{client}: {:?}", rig.verdicts()));
            let brought = began.elapsed().as_secs() + 1;
            let accepted = rig.server.accepted();
            assert!((3..=3 + brought).contains(&accepted), "{cookies}, {listener}{client}: {accepted}");
            let mut last = connections.pop().unwrap();
            let time = Duration::from_millis(300);
            wait_until(SOON, || last.converse(REQUEST, &whole(REQUEST), time).unwrap().0.starts_with(b"HTTP/1.1 200"))
                .unwrap_or_else(|_| panic!("{cookies}, {listener}{client}: {:?}", rig.verdicts()));
        }
    }
}

/// The end of a handshake with the flag for urgent bytes, and a second SYN-ACK of which the kernel makes a socket that a bare
/// ACK completes.
#[test]
fn without_admission_too_no_other_end_of_a_handshake_makes_more_connections() {
    if !ready() {
        return;
    }
    let _one = one_installation();
    for cookies in ["1", "2"] {
        for (listener, client, _) in RATES {
            for way in [ACK | URG, SYN | ACK | PSH] {
                let rig = without_admission(listener, client, cookies);
                let began = Instant::now();
                let before = rig.server.accepted();
                let connections: Vec<_> = (0..4 * BURST).map(|n| open(&rig, 2000 + n)).collect();
                for connection in &connections {
                    let mut end = connection.segment(way, 0, b"");
                    if way & SYN != 0 {
                        (end.sequence, end.payload) = (connection.first, b"x".to_vec());
                    }
                    rig.clients.send(&end).unwrap();
                    if way & SYN != 0 {
                        connection.acknowledge().unwrap();
                    }
                }
                // the link keeps the order, and the server accepts in it
                assert!(is_served(&mut rig.open(Family::V4)), "{cookies}, {listener}{client}");
                let brought = began.elapsed().as_secs() + 1;
                let accepted = rig.server.accepted() - before - 1;
                let most = u64::from(BURST) + brought;
                assert!(accepted <= most, "{cookies}, {listener}{client}, {way:#x}: {accepted}, {:?}", rig.verdicts());
            }
        }
    }
}

/// A client ends each connection and returns its cookie again, bare and with a request that is ruled.
#[test]
fn without_admission_too_a_cookie_that_comes_back_is_one_connection_more() {
    if !ready() {
        return;
    }
    let _one = one_installation();
    let ruled = "[[listener.plain.request]]\npath = \"/secret\"\nrefuse = \"reset\"";
    for (listener, client, _) in RATES {
        for (rules, bytes) in [("", &b""[..]), (ruled, REQUEST)] {
            let rig = without_admission(listener, &format!("{client}\n{rules}"), "2");
            let began = Instant::now();
            let connection = open(&rig, 2000);
            for _ in 0..COMES_BACK {
                rig.clients.send(&connection.segment(ACK, 0, bytes)).unwrap();
                rig.clients.send(&connection.segment(RST | ACK, bytes.len() as u32, b"")).unwrap();
                // what meets a socket that is about to end is another matter (docs/limits.md)
                std::thread::sleep(Duration::from_millis(5));
            }
            connection.vanish();
            // the link keeps the order, and the server accepts in it
            assert!(is_served(&mut rig.open(Family::V4)), "{listener}{client}{rules}");
            let accepted = rig.server.accepted() - 1;
            let most = u64::from(2 * BURST) + began.elapsed().as_secs() + 1;
            assert!((1..=most).contains(&accepted), "{listener}{client}{rules}: {accepted}, {:?}", rig.verdicts());
        }
    }
}

/// A listener of multipath TCP makes connections of the kernel's cookies, with the first bytes too, which are ruled.
#[test]
fn a_cookie_that_comes_with_the_first_bytes_of_multipath_tcp_is_one_connection_more() {
    if !ready() {
        return;
    }
    let _one = one_installation();
    for (listener, client, _) in RATES {
        let server = Queued::multipath(Door::Own, &policy(listener, client));
        server.front.topology.server.sysctl("net.ipv4.tcp_syncookies", "2").unwrap();
        server.let_go(usize::from(COMES_BACK) + 1);
        let clients = RawClients::new(&server.front.topology).unwrap();
        let began = Instant::now();
        let from = |client: IpAddr, port: u16| {
            let flow = [(client, port).into(), plain(Family::V4)];
            RawConnection::open(&clients, flow, 1000, &ORDINARY_OPTIONS, SOON).unwrap().expect("a SYN-ACK")
        };
        let connection = from(CLIENT.into(), 2000);
        for _ in 0..COMES_BACK {
            clients.send(&connection.segment(ACK, 0, REQUEST)).unwrap();
            clients.send(&connection.segment(RST | ACK, REQUEST.len() as u32, b"")).unwrap();
            std::thread::sleep(Duration::from_millis(5));
        }
        connection.vanish();
        let mut last = from(RawClients::address(Family::V4, 5), 2000);
        assert!(is_served(&mut last), "{listener}{client}: {:?}", server.front.verdicts());
        let (got, most) = (server.got().len() as u64 - 1, u64::from(2 * BURST) + began.elapsed().as_secs() + 1);
        assert!((1..=most).contains(&got), "{listener}{client}: {got}, {:?}", server.front.verdicts());
    }
}

/// Forged requests of strangers that are not answered use up nothing of the rate that all clients share: a proven client has it.
#[test]
fn what_the_budget_of_all_refuses_uses_up_no_shared_rate() {
    if !ready() {
        return;
    }
    let _one = one_installation();
    let rig = Rig::new(Door::Own, &policy("unproven = { rate = 1, burst = 4 }", "syn = { rate = 1, burst = 50 }"));
    rig.front.no_cpu_idle();
    prove(&rig);
    let before = rig.verdicts();
    (1000..1500).for_each(|n| rig.syn((RawClients::address(Family::V4, n), 3000).into()));
    let verdicts = rig.verdicts_on(&before, 500);
    assert!(verdicts.count(abi::FIEF_SYN_UNPROVEN) > 400, "{verdicts:?}");
    for port in 2000..2020 {
        assert!(is_served(&mut open(&rig, port)), "{port}: {:?}", rig.verdicts());
    }
}

/// What is forged in a proven source's name is bounded as what is forged in a stranger's.
#[test]
fn requests_above_the_own_rate_of_a_source_are_of_the_budget_of_all() {
    if !ready() {
        return;
    }
    let _one = one_installation();
    for (listener, client, reason) in RATES {
        let rig = Rig::new(Door::Own, &policy(&format!("unproven = {{ rate = 1, burst = 10 }}\n{listener}"), client));
        rig.front.no_cpu_idle();
        prove(&rig);
        let (before, began) = (rig.verdicts(), Instant::now());
        (10_000..10_100).for_each(|port| rig.syn(SocketAddr::new(CLIENT.into(), port)));
        let verdicts = rig.verdicts_on(&before, 100);
        let (taken, brought) = (verdicts.count(abi::FIEF_SYN_TAKEN), 2 * (began.elapsed().as_secs() + 1));
        assert!((6..=14 + brought).contains(&taken), "{listener}{client}: {verdicts:?}");
        assert_eq!(verdicts.count(reason), 100 - taken, "{listener}{client}: {verdicts:?}");
    }
}
