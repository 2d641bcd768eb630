// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Over links of small and large packets and over a VLAN, requests of several packets wait and go in the order of their classes, and
//! their answers come whole, also by another link. Those that wait while the link is down are served once it is up, unless their queue has
//! ended by then.

use std::io::{Read, Write};
use std::net::{IpAddr, TcpStream};
use std::time::{Duration, Instant};

use fief_testkit::{Client, Family, Topology, pattern, require_if};
use fief_tests_netns::front::{self, Door};
use fief_tests_netns::queued::{OF_WAITING, Queued, answer_on, ask_on, entries, lasting, length_of, low, status};
use fief_tests_netns::{one_installation, second_link};
use nix::sys::socket::{setsockopt, sockopt};

const ANSWER: usize = 150_000;

/// A head of some packets of this size, and of no more than a queue keeps.
fn head(mtu: u32, path: &str) -> String {
    let more = (3 * mtu as usize).min(12_000);
    format!("GET {path}/{ANSWER} HTTP/1.1\r\nHost: server\r\nX: {}\r\n\r\n", "x".repeat(more))
}

fn client(class: Client, family: Family, n: u8) -> IpAddr {
    class.address(family, n)
}

/// First requests and later ones of two classes wait behind another, each of several packets.
fn goes_in_order(rig: &Queued, family: Family, mtu: u32) {
    let at = format!("{:?}, {family:?}, {mtu}", rig.front.door);
    let connect = |class, n| rig.connect(client(class, family, n));
    let mut later = [connect(Client::Low, 1), connect(Client::High, 1)];
    for stream in &mut later {
        rig.let_go(1);
        ask_on(stream, "/before");
        answer_on(stream);
    }
    let seen = rig.got().len();
    let mut first = connect(Client::Low, 2);
    ask_on(&mut first, "/first/10");
    rig.got_all(seen + 1);
    let [low, high] = later;
    let waits = [
        (low, "/low-later"),
        (connect(Client::Low, 3), "/low"),
        (high, "/high-later"),
        (connect(Client::High, 3), "/high"),
    ];
    let ask = |(waiting, (mut stream, path)): (u32, (TcpStream, &'static str))| {
        stream.write_all(head(mtu, path).as_bytes()).unwrap();
        rig.wait_for(waiting);
        stream
    };
    let asked: Vec<_> = (1..).zip(waits).map(ask).collect();
    assert_eq!(rig.got().len(), seen + 1, "{at}");
    rig.let_go(5);
    let got = rig.got_all(seen + 5)[seen + 1..].join(" ");
    let order = ["/high-later", "/high", "/low-later", "/low"].map(|path| format!("{path}/{ANSWER}"));
    assert_eq!(got, order.join(" "), "{at}");
    for mut stream in asked {
        let mut body = vec![0; length_of(&answer_on(&mut stream))];
        stream.read_exact(&mut body).unwrap();
        assert!(body == pattern(ANSWER), "{at}: another answer of {} bytes", body.len());
    }
    rig.wait_for_peace();
    assert_eq!(rig.queue().too_long, 0, "{at}");
}

#[test]
fn classes_go_in_their_order_whatever_the_size_of_packets() {
    if !front::ready() {
        return;
    }
    let _one = one_installation();
    for door in Door::GUARDS {
        let rig = Queued::new(door, &lasting());
        for (mtu, families) in
            [(576, &[Family::V4][..]), (1280, &[Family::V4, Family::V6]), (9000, &[Family::V4, Family::V6])]
        {
            rig.front.topology.set_mtu(mtu).unwrap();
            families.iter().for_each(|family| goes_in_order(&rig, *family, mtu));
        }
    }
}

/// The addresses of both ends are those of devices for the VLAN 7.
fn over_a_vlan() -> Option<Topology> {
    let topology = Topology::new().unwrap();
    let ends = [
        (&topology.server, Topology::SERVER, "10.77.0.1", "10.77.0.2", topology.link.far_mac),
        (&topology.clients, Topology::CLIENTS, "10.77.0.2", "10.77.0.1", topology.link.near_mac),
    ];
    for (namespace, device, own, peer, mac) in ends {
        let made = namespace.ip(&format!("link add link {device} name {device}.7 type vlan id 7"));
        require_if("vlan", made.is_ok(), false).then_some(())?;
        for line in [
            format!("addr flush dev {device}"),
            format!("link set {device}.7 up"),
            format!("addr add {own}/16 dev {device}.7"),
            format!("neigh replace {peer} lladdr {mac} dev {device}.7 nud permanent"),
        ] {
            namespace.ip(&line).unwrap();
        }
    }
    for class in [Client::High, Client::Low] {
        let prefix = class.prefix(Family::V4);
        topology.server.ip(&format!("route replace {prefix} via 10.77.0.2 dev sv.7")).unwrap();
    }
    Some(topology)
}

#[test]
fn classes_go_in_their_order_over_a_vlan() {
    if !front::ready() {
        return;
    }
    let _one = one_installation();
    for door in Door::GUARDS {
        let Some(topology) = over_a_vlan() else { return };
        let rig = Queued::at(door, &lasting(), topology);
        goes_in_order(&rig, Family::V4, 1500);
    }
}

/// Requests come by the one link, and all answers leave by another.
fn answered_by_another() -> Topology {
    let topology = Topology::new().unwrap();
    let (link, server) = (second_link(&topology), &topology.server);
    // else the kernel takes no packet of a client that its routes have elsewhere
    server.sysctl("net/ipv4/conf/sv/rp_filter", "0").unwrap();
    for (family, peer) in [(Family::V4, "10.66.3.2"), (Family::V6, "fd66:3::2")] {
        server.ip(&format!("neigh replace {peer} lladdr {} dev s2 nud permanent", link.far_mac)).unwrap();
        let word = if family == Family::V6 { "-6 " } else { "" };
        for class in [Client::High, Client::Low] {
            server.ip(&format!("{word}route replace {} via {peer} dev s2", class.prefix(family))).unwrap();
        }
    }
    topology
}

/// Bytes that have left by a device of the server's.
fn sent_by(topology: &Topology, device: &str) -> usize {
    let text = topology.server.run(|| std::fs::read_to_string("/proc/thread-self/net/dev").unwrap()).unwrap();
    let line = text.lines().find_map(|line| line.trim_start().strip_prefix(&format!("{device}:"))).expect("its line");
    line.split_whitespace().nth(8).and_then(|word| word.parse().ok()).expect("behind what it has received")
}

/// So long a place lasts whose answer is not seen to begin, by `lasting()`: for longer than all of these requests take.
const UNSEEN: Duration = Duration::from_secs(30);

#[test]
fn classes_go_in_their_order_where_answers_leave_by_another_interface() {
    if !front::ready() {
        return;
    }
    let _one = one_installation();
    for door in Door::GUARDS {
        let rig = Queued::at(door, &lasting(), answered_by_another());
        let begin = Instant::now();
        for (answers, family) in (4..).step_by(4).zip([Family::V4, Family::V6]) {
            goes_in_order(&rig, family, 1500);
            assert!(sent_by(&rig.front.topology, "s2") > answers * ANSWER, "{door:?}, {family:?}");
        }
        assert!(sent_by(&rig.front.topology, Topology::SERVER) < ANSWER, "{door:?}");
        assert!(begin.elapsed() < UNSEEN, "{door:?}: places ran out");
    }
}

/// Nothing of Fief's is at the interface that the answers leave by: a place comes free with the end of its connection, or its next request.
#[test]
fn places_come_free_where_answers_leave_unseen() {
    if !front::ready() {
        return;
    }
    let _one = one_installation();
    for door in Door::GUARDS {
        let rig = Queued::at(door, &format!("interfaces = [\"sv\"]\n{}", lasting()), answered_by_another());
        let begin = Instant::now();
        let first = rig.ask(low(1), "/first");
        rig.got_all(1);
        let waits = rig.ask(low(2), "/waits");
        rig.wait_for(1);
        rig.let_go(2);
        assert_eq!((status(first), status(waits)), (200, 200), "{door:?}");
        rig.wait_for_peace();
        let mut one = rig.connect(low(3));
        rig.let_go(3);
        ask_on(&mut one, "/one");
        answer_on(&mut one);
        assert_eq!(rig.queue().busy, 1, "{door:?}: it was seen");
        ask_on(&mut one, "/two");
        answer_on(&mut one);
        assert_eq!((rig.queue().busy, rig.queue().class[1].held), (1, 1), "{door:?}: it waited for itself");
        let waits = rig.ask(low(4), "/waits");
        rig.wait_for(1);
        drop(one);
        assert_eq!(status(waits), 200, "{door:?}");
        rig.wait_for_peace();
        assert!(begin.elapsed() < UNSEEN, "{door:?}: places ran out");
    }
}

/// Longer than the first timeout of TCP, and many turns of the queue's clock.
const DOWN: Duration = Duration::from_millis(300);

/// Takes one end of the link down and up. The routes and neighbours of that end go with it, and are put back.
fn down_and_up(topology: &Topology, end: &str, meanwhile: impl FnOnce()) {
    let [server, clients] = [(&topology.server, Topology::SERVER), (&topology.clients, Topology::CLIENTS)];
    let (namespace, _) = if end == Topology::SERVER { server } else { clients };
    namespace.ip(&format!("link set {end} down")).unwrap();
    meanwhile();
    namespace.ip(&format!("link set {end} up")).unwrap();
    let peers = [(server, "10.77.0.2", topology.link.far_mac), (clients, "10.77.0.1", topology.link.near_mac)];
    for ((namespace, device), peer, mac) in peers {
        namespace.ip(&format!("neigh replace {peer} lladdr {mac} dev {device} nud permanent")).unwrap();
    }
    for class in [Client::High, Client::Low] {
        let prefix = class.prefix(Family::V4);
        topology.server.ip(&format!("route replace {prefix} via 10.77.0.2 dev sv")).unwrap();
    }
}

/// The server answers one of them while the link is down, so that the next one is let go then.
#[test]
fn who_waits_while_the_link_is_down_is_served_once_it_is_up() {
    if !front::ready() {
        return;
    }
    let _one = one_installation();
    for (door, end) in Door::GUARDS.into_iter().flat_map(|door| [(door, Topology::SERVER), (door, Topology::CLIENTS)]) {
        let rig = Queued::new(door, &lasting());
        let mut later = rig.connect(low(1));
        rig.let_go(1);
        ask_on(&mut later, "/before");
        answer_on(&mut later);
        let mut asked = vec![rig.ask(low(2), "/first")];
        rig.got_all(2);
        ask_on(&mut later, "/later");
        rig.wait_for(1);
        for (waiting, n) in (2..).zip(3..6) {
            asked.push(rig.ask(low(n), "/waits"));
            rig.wait_for(waiting);
        }
        down_and_up(&rig.front.topology, end, || {
            std::thread::sleep(DOWN);
            rig.let_go(1);
            std::thread::sleep(DOWN);
        });
        rig.let_go(4);
        assert!(answer_on(&mut later).starts_with("HTTP/1.1 200"), "{door:?}, {end}");
        assert!(asked.into_iter().all(|stream| status(stream) == 200), "{door:?}, {end}");
        assert_eq!(rig.got().len(), 6, "{door:?}, {end}");
        rig.wait_for_peace();
    }
}

const LOST: u8 = 10;

/// Nothing can be told them. The queue that they waited in is removed, and when they leave another one has its number.
#[test]
fn who_waits_while_the_link_is_down_and_the_policy_changes_is_in_no_later_queue() {
    if !front::ready() {
        return;
    }
    let _one = one_installation();
    let policy = format!("interfaces = [\"{}\"]\n{}", Topology::SERVER, lasting());
    let rig = Queued::new(Door::Own, &policy);
    let apply = |length: &str| rig.front.apply(&policy.replace("length = 200", length)).unwrap().notes;
    let mut asked = vec![rig.ask(low(1), "/first")];
    rig.got_all(1);
    let lost: Vec<_> = (0..LOST).map(|n| rig.ask(low(10 + n), "/lost")).collect();
    rig.wait_for(LOST.into());
    down_and_up(&rig.front.topology, Topology::SERVER, || {
        let notes = apply("length = 201");
        let told = format!("{LOST} requests that waited are lost");
        assert!(notes.iter().any(|note| note.starts_with(&told)), "{notes:?}");
    });
    let left = entries(&rig.front, &OF_WAITING);
    assert!(left.iter().all(|(_, count)| *count == 0), "{left:?}");
    apply("length = 202");
    // what the server has is the former queue's
    asked.push(rig.ask(low(2), "/second"));
    rig.got_all(2);
    for n in 0..LOST {
        asked.push(rig.ask(low(50 + n), "/waits"));
    }
    rig.wait_for(LOST.into());
    for stream in lost {
        // a reset instead of a FIN
        setsockopt(&stream, sockopt::Linger, &libc::linger { l_onoff: 1, l_linger: 0 }).unwrap();
    }
    // comes behind them
    asked.push(rig.ask(low(100), "/waits"));
    rig.wait_for(u32::from(LOST) + 1);
    rig.let_go(asked.len());
    assert!(asked.into_iter().all(|stream| status(stream) == 200));
    assert!(!rig.got().contains(&"/lost".to_owned()));
    rig.wait_for_peace();
    let left = entries(&rig.front, &OF_WAITING);
    assert!(left.iter().all(|(_, count)| *count == 0), "{left:?}");
}
