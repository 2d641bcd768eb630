// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Who is charged for the packets and connections of a class: nobody pays for a server that listens at an address of the policy
//! without being its server, and a server beside the classes pays for its own.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::Command;
use std::time::Duration;

use fief::Usage;
use fief_bpf::abi;
use fief_control::{ContainerView, Fief};
use fief_testkit::{Cgroup, Family, Feature, NetNs, Process, read_until, require, run, wait_until};
use fief_tests_netns::front::{self, Door, Front, anywhere, plain};
use fief_tests_netns::{Installation, SOON, connect_once_served, python_server, role};
use nix::sched::{CloneFlags, unshare};

/// Clients of 10.1/16 are gold's, at every address.
const GOLDEN: &str = r#"
version = 1
[container.shop]
[container."shop/gold"]
[container.other]
[listener.web]
address = "0.0.0.0:8080"
classes = "shared"
[[listener.web.client]]
from = ["10.1.0.0/16"]
container = "shop/gold"
[[listener.web.client]]
from = ["any"]
container = "shop"
"#;
const SENT: usize = 4 << 20;

/// Listens where the policy's listener does, and is its own client, from an address of gold's. Whether it is told of clients that the
/// policy refused.
fn serve_oneself(elsewhere: bool) -> bool {
    if elsewhere {
        // root in a user namespace of its own: everybody can
        unshare(CloneFlags::CLONE_NEWNET).unwrap();
        for words in ["link set lo up", "addr add 10.1.0.1/32 dev lo"] {
            run(Command::new("ip").args(words.split(' '))).unwrap();
        }
    }
    let listener = TcpListener::bind("0.0.0.0:8080").unwrap();
    let client = std::thread::spawn(|| {
        let mut stream = TcpStream::connect("10.1.0.1:8080").unwrap();
        assert_eq!(stream.local_addr().unwrap().ip().to_string(), "10.1.0.1");
        stream.write_all(&vec![7; SENT]).unwrap();
    });
    let mut received = Vec::new();
    listener.accept().unwrap().0.read_to_end(&mut received).unwrap();
    client.join().unwrap();
    assert_eq!(received.len(), SENT);
    let drops = fief::drops(&listener).unwrap();
    drops.last.is_some()
}

fn view(fief: &Fief, path: &str) -> ContainerView {
    fief.snapshot().unwrap().containers.into_iter().find(|container| container.path == path).unwrap()
}

/// What its packets and connections make of it.
fn received(usage: Usage) -> [u64; 5] {
    [usage.bytes_in, usage.bytes_out, usage.receive_ns, usage.syns_seen, usage.accepts]
}

#[test]
fn who_listens_at_an_address_of_the_policy_makes_nobody_elses_class_pay() {
    const TOLD: &str = "FIEF_TEST_TOLD";
    let name = "charged::who_listens_at_an_address_of_the_policy_makes_nobody_elses_class_pay";
    if let Some(place) = role() {
        let told = serve_oneself(place == "elsewhere");
        assert_eq!(told, std::env::var_os(TOLD).is_some(), "told of gold's clients");
        return;
    }
    if !require(Feature::NetNs) {
        return;
    }
    let servers = NetNs::new("servers").unwrap();
    servers.ip("addr add 10.1.0.1/32 dev lo").unwrap();
    let installation = servers.run(|| Installation::new(GOLDEN, "shop")).unwrap();
    let guests = Cgroup::new("guests").unwrap();
    servers.run(|| installation.manage(guests.path(), Some("other"), false)).unwrap();
    let fief = installation.fief();
    // one of gold's clients was refused
    let gold = view(fief, "shop/gold");
    let mut refused = abi::fief_notice { time_ns: 1, count: 1, ..Default::default() };
    refused.verdict.container = abi::fief_ref { id: gold.id, generation: gold.generation };
    refused.verdict.reason = abi::FIEF_SYN_RATE as u8;
    let notices = fief.pins().open_map("last_notices").unwrap();
    for listener in 0..abi::FIEF_MAX_LISTENERS {
        fief_bpf::record::update(&notices, listener, &refused).unwrap();
    }
    let own = installation.cgroup();
    for (cgroup, place, payer, is_told) in [
        (guests.path(), "here", "other", false),
        (guests.path(), "elsewhere", "other", false),
        // a server whose home is above the classes
        (own.as_path(), "here", "shop/gold", true),
        (own.as_path(), "elsewhere", "shop/gold", false),
    ] {
        let before = ["shop/gold", "other"].map(|path| (path, view(fief, path).usage));
        let mut part = installation.part(Some(cgroup), name, place);
        servers.enter(&mut part);
        if is_told {
            part.env(TOLD, "1");
        }
        let done = Process::start(part).unwrap().finish(Duration::from_secs(60)).unwrap();
        assert!(done.status.success(), "the server failed, {place} for {payer}");
        for (path, before) in before {
            let (after, before) = (received(view(fief, path).usage), received(before));
            let more: Vec<u64> = after.iter().zip(before).map(|(after, before)| after - before).collect();
            if path == payer {
                assert!(more[0] >= SENT as u64 && more[2] > 0 && more[4] == 1, "{place} for {payer}: {more:?}");
            } else {
                assert_eq!(more, [0; 5], "{place} for {payer}: {path} pays too");
            }
        }
    }
}

/// A request for this path, which is served.
fn ask(stream: &mut TcpStream, path: &str) {
    stream.write_all(format!("GET {path} HTTP/1.1\r\nHost: server\r\n\r\n").as_bytes()).unwrap();
    let answer = format!("served {path}\n");
    assert!(read_until(stream, &answer).contains(&answer), "{path}");
}

/// A server of `web` and a client of it. Requests for gold are of `shop`, all others of `rest`.
fn gold_of_shop(door: Door, rest: &str) -> (Front, Process, TcpStream) {
    let policy = format!(
        r#"
[container.web]
[container.shop]
[container."{rest}"]
[listener.plain]
address = "[::]:80"
queue = false
[[listener.plain.client]]
from = ["any"]
container = "{rest}"
[[listener.plain.request]]
path = "/gold/*"
container = "shop"
"#
    );
    let front = Front::new(door, &policy);
    let server = front.python(&python_server("    do_GET = answer"));
    let stream = connect_once_served(&front.topology.clients, anywhere(Family::V4), plain(Family::V4));
    (front, server, stream)
}

/// The door rules the requests of each class, and the server's unit pays for them: the first one by its verdict, later ones as they pass.
#[test]
fn a_server_beside_the_classes_pays_for_what_the_door_lets_through_to_it() {
    if !(front::ready() && require(Feature::Python)) {
        return;
    }
    for door in Door::GUARDS {
        let (front, _server, mut stream) = gold_of_shop(door, "shop/rest");
        ["/first", "/gold/second", "/third"].into_iter().for_each(|path| ask(&mut stream, path));
        let fief = front.installation().fief();
        for class in ["shop", "shop/rest"] {
            let usage = view(fief, class).usage;
            let paid = (usage.bytes_in, usage.bytes_out, usage.receive_ns, usage.accepts);
            assert_eq!(paid, (0, 0, 0, 0), "{door:?}: {class}");
        }
        let web = view(fief, "web").usage;
        assert!(web.bytes_in > 0 && web.receive_ns > 0 && web.accepts >= 1, "{door:?}: {web:?}");
    }
}

/// Requests for gold are of a class beside the home of the server's unit, which pays for those.
#[test]
fn a_connection_counts_in_its_class_while_that_pays_for_it() {
    if !(front::ready() && require(Feature::Python)) {
        return;
    }
    for door in Door::GUARDS {
        let (front, _server, mut stream) = gold_of_shop(door, "web/rest");
        let counted = || ["web/rest", "shop"].map(|class| view(front.installation().fief(), class).sockets);
        for (path, counts) in [("/gold/first", 0), ("/second", 1), ("/gold/third", 0), ("/fourth", 1)] {
            ask(&mut stream, path);
            assert_eq!(counted(), [counts, 0], "{door:?}: {path}");
        }
        drop(stream);
        wait_until(SOON, || counted() == [0; 2]).unwrap_or_else(|_| panic!("{door:?}: {:?}", counted()));
    }
}
