// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A class of one server, of one thread, gets no more of the CPU than its limit, and the other class waits for nobody.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use fief_testkit::{Client, Family, Feature, Process, Topology, require};
use fief_tests_netns::{Installation, Setup, connect_once_served, role, serve_in_turn, spin, two_classes};

const REQUEST: &[u8] = b"GET / HTTP/1.1\r\nHost: server\r\n\r\n";
const RESPONSE: &[u8] = b"HTTP/1.1 204 No Content\r\n\r\n";
const WORK: Duration = Duration::from_millis(5);
const RUN: Duration = Duration::from_secs(4);

fn serve() {
    serve_in_turn(([0, 0, 0, 0], 80).into(), |connection| {
        let asks = matches!(connection.read(&mut [0; 4096]), Ok(1..));
        if asks {
            spin(WORK);
            connection.write_all(RESPONSE).unwrap();
        }
        asks
    });
}

/// Asks again and again, until it is over.
fn ask(mut stream: TcpStream, over: &AtomicBool) {
    while !over.load(Ordering::Relaxed) {
        stream.write_all(REQUEST).unwrap();
        stream.read_exact(&mut [0; RESPONSE.len()]).unwrap();
    }
}

/// What the classes used of the machine, high and low, while these clients asked. `priority`: the high one's; the other has 100.
fn used(name: &str, clients: &[Client], priority: u32) -> [f64; 2] {
    let topology = Topology::new().unwrap();
    let policy = two_classes("address = \"0.0.0.0:80\"\nqueue = { in-service = 1, wait = \"1m\" }")
        .replace("cpu.priority = 100", "cpu.priority = 100\ncpu.limit = \"10%\"")
        .replace("cpu.priority = 200", &format!("cpu.priority = {priority}"));
    let setup = Setup { policy: &policy, home: "shop", follow: true, ..Setup::default() };
    let installation = topology.server.run(|| Installation::with(&setup)).unwrap();
    let mut part = installation.part(Some(&installation.cgroup()), name, "server");
    topology.server.enter(&mut part);
    let _server = Process::start(part).unwrap();
    let look = || {
        let snapshot = installation.fief().snapshot().unwrap();
        let ns = |path: &str| snapshot.containers.iter().find(|c| c.path == path).unwrap().usage.cpu_ns();
        (Instant::now(), [ns("shop/high"), ns("shop/low")], snapshot.cpus)
    };
    let connect = |n: u8, client: &Client| {
        let from = (client.address(Family::V4, n), 0).into();
        connect_once_served(&topology.clients, from, Topology::server_address(Family::V4, 80))
    };
    let streams: Vec<_> = (1..).zip(clients).map(|(n, client)| connect(n, client)).collect();
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        streams.into_iter().for_each(|stream| drop(scope.spawn(|| ask(stream, &over))));
        std::thread::sleep(RUN / 4); // what was saved up is used up
        let (begin, before, cpus) = look();
        std::thread::sleep(RUN);
        let (end, after, _) = look();
        over.store(true, Ordering::Relaxed);
        let all = (end - begin).as_nanos() as f64 * f64::from(cpus);
        [0, 1].map(|n| (after[n] - before[n]) as f64 / all)
    })
}

#[test]
fn a_class_gets_no_more_than_its_limit() {
    let name = "a_class_gets_no_more_than_its_limit";
    if role().is_some() {
        return serve();
    }
    if !require(Feature::NetNs) {
        return;
    }
    let [_, alone] = used(name, &[Client::Low; 3], 200);
    // a busy machine may not give it that much
    assert!((0.05..0.11).contains(&alone), "alone: {alone}");
    let both = [Client::High, Client::High, Client::Low, Client::Low, Client::Low];
    let [high, low] = used(name, &both, 200);
    assert!(low < 0.11 && high > low / 2.0, "high {high}, low {low}");
    // and no less, beside another one of its priority: a fifth of the server is below its half
    let [high, low] = used(name, &both, 100);
    assert!((0.05..0.11).contains(&low) && high > low, "high {high}, low {low}");
}
