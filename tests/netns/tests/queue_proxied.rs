// SPDX-License-Identifier: Apache-2.0 OR MIT
//! nginx as the client of a server with a queue: a proxy that keeps its connections.
//!
//! `FIEF_TEST_REQUESTS=100000` asks for more than the usual number.

use std::collections::BTreeMap;
use std::io::Read;
use std::net::{SocketAddr, TcpStream};

use fief_testkit::{Feature, Nginx, NginxConfig, pattern, require, wait_until};
use fief_tests_netns::front::{Door, ready};
use fief_tests_netns::queued::{Queued, answer_on, ask_on, high, lasting, length_of, status};
use fief_tests_netns::{SOON, connect_from, requests};

/// Clients of the proxy at once.
const CLIENTS: usize = 8;

/// Bytes of an answer: of the usual number of requests none has one that is as long as another's.
const LONGEST: usize = 20_000;

/// Of each client, at each door.
fn requests_of_each() -> usize {
    requests(800).div_ceil(CLIENTS * Door::GUARDS.len())
}

const UPSTREAM: &str = "upstream queued { server 10.77.0.1:80; keepalive 8; keepalive_requests 1000000; }";
const LOCATION: &str = "keepalive_requests 1000000; \
    location /p/ { proxy_pass http://queued; proxy_http_version 1.1; proxy_set_header Connection \"\"; }";

fn connect(rig: &Queued) -> TcpStream {
    let [from, proxy]: [SocketAddr; 2] = ["127.0.0.1:0", "127.0.0.1:8080"].map(|address| address.parse().unwrap());
    let mut made = Err(nix::errno::Errno::EAGAIN);
    wait_until(SOON, || {
        made = connect_from(&rig.front.topology.clients, from, proxy);
        made.is_ok()
    })
    .unwrap();
    made.unwrap()
}

/// The answer to a request of so many bytes.
fn is_answered(stream: &mut TcpStream, bytes: usize) {
    let head = answer_on(stream);
    assert!(head.starts_with("HTTP/1.1 200 "), "{head}");
    let mut body = vec![0; length_of(&head)];
    stream.read_exact(&mut body).unwrap();
    assert!(body == pattern(bytes), "another answer of {} bytes", body.len());
}

/// Its requests wait behind those of a better class.
fn goes_in_order(rig: &Queued) {
    let mut through: Vec<_> = (0..4).map(|_| connect(rig)).collect();
    ask_on(&mut through[0], "/p/first/10");
    rig.got_all(1);
    for (waiting, stream) in (1..).zip(&mut through[1..]) {
        ask_on(stream, "/p/waits/10");
        rig.wait_for(waiting);
    }
    let better = rig.ask(high(1), "/better");
    rig.wait_for(4);
    rig.let_go(5);
    let waits = ["/p/waits/10"; 3];
    assert_eq!(rig.got_all(5), [&["/p/first/10", "/better"], &waits[..]].concat(), "{:?}", rig.front.door);
    through.iter_mut().for_each(|stream| is_answered(stream, 10));
    assert_eq!(status(better), 200);
}

/// Each request has a path of its own.
fn loses_and_doubles_nothing(rig: &Queued) {
    let (seen, each) = (rig.got().len(), requests_of_each());
    rig.let_go(CLIENTS * each);
    std::thread::scope(|scope| {
        for client in 0..CLIENTS {
            scope.spawn(move || {
                let mut stream = connect(rig);
                for n in client * each..(client + 1) * each {
                    let bytes = 1 + n % LONGEST;
                    ask_on(&mut stream, &format!("/p/{n}/{bytes}"));
                    is_answered(&mut stream, bytes);
                }
            });
        }
    });
    let mut times = BTreeMap::new();
    rig.got()[seen..].iter().for_each(|path| *times.entry(path.clone()).or_insert(0) += 1);
    assert_eq!(times.len(), CLIENTS * each, "{:?}", rig.front.door);
    times.retain(|_, times| *times != 1);
    assert!(times.is_empty(), "{:?}: {times:?}", rig.front.door);
}

fn requests_of_a_proxy_wait_and_go_on_the_connections_that_it_keeps(door: Door) {
    if !(ready() && require(Feature::Nginx)) {
        return;
    }
    let rig = Queued::new(door, &lasting());
    let config = NginxConfig::with_http(8080, &["127.0.0.1:8080"], 1, UPSTREAM, LOCATION).unwrap();
    let _proxy = Nginx::start_with(&rig.front.topology.clients, config).unwrap();
    let opened = || rig.front.topology.clients.tcp_counter("ActiveOpens").unwrap() as usize;
    let before = opened();
    goes_in_order(&rig);
    loses_and_doubles_nothing(&rig);
    rig.wait_for_peace();
    let all = CLIENTS * requests_of_each();
    // on both sides of the proxy
    assert!(opened() - before < all / 2, "{door:?}: {} connections", opened() - before);
    let class = rig.queue().class[1];
    assert_eq!(class.entered + class.released, (4 + all) as u64, "{door:?}");
    assert_eq!(class.refused_full + class.refused_wait + class.gone, 0, "{door:?}");
}

#[test]
fn requests_of_a_proxy_wait_and_go_on_the_connections_that_it_keeps_where_fief_answers() {
    requests_of_a_proxy_wait_and_go_on_the_connections_that_it_keeps(Door::Own);
}

#[test]
fn requests_of_a_proxy_wait_and_go_on_the_connections_that_it_keeps_where_the_kernel_answers() {
    requests_of_a_proxy_wait_and_go_on_the_connections_that_it_keeps(Door::Kernel);
}
