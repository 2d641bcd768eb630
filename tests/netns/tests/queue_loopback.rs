// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A queue at the loopback: a server behind a proxy on its own machine, whose clients are ordered by a header.

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::TcpStream;

use fief_control::LOOPBACK_QUEUES;
use fief_testkit::{Family, Feature, NetNs, Nginx, NginxConfig, PlainServer, Topology, get, pattern, require};
use fief_tests_netns::connect_from;
use fief_tests_netns::front::{Door, Front, anywhere, ready};
use fief_tests_netns::queued::{Queued, answer_on, length_of};

/// Guarded at the loopback alone.
const POLICY: &str = r#"interfaces = ["lo"]
[container.gold]
cpu.priority = 200
[container.rest]
[container.web]
[listener.app]
address = "127.0.0.1:80"
queue = { in-service = 1, length = 200, wait = "1m", stale = "30s" }
[[listener.app.client]]
from = ["any"]
container = "rest"
[[listener.app.request]]
header = { "x-class" = "gold" }
container = "gold"
"#;

const UPSTREAM: &str = "upstream app { server 127.0.0.1:80; keepalive 8; keepalive_requests 1000000; }";
const LOCATION: &str =
    "location /p/ { proxy_pass http://app; proxy_http_version 1.1; proxy_set_header Connection \"\"; }";

/// Clients of the proxy at once, and requests of each.
const CLIENTS: usize = 8;
const REQUESTS: usize = 50;

/// A port of the loopback that no listener names.
const UNGUARDED: &str = "127.0.0.1:81";

/// What the sysctls of such a queue are there.
fn sysctls(namespace: &NetNs) -> [String; 2] {
    let read = |(name, _): (&str, &str)| {
        let text = std::fs::read_to_string(format!("/proc/sys/{}", name.replace('.', "/"))).unwrap();
        text.trim().to_owned()
    };
    namespace.run(|| LOOPBACK_QUEUES.map(read)).unwrap()
}

/// A client on another machine, at the proxy.
fn connect(rig: &Queued) -> TcpStream {
    let proxy = Topology::server_address(Family::V4, 8080);
    connect_from(&rig.front.topology.clients, anywhere(Family::V4), proxy).unwrap()
}

fn ask(stream: &mut TcpStream, path: &str, class: &str) {
    write!(stream, "GET {path} HTTP/1.1\r\nHost: server\r\nX-Class: {class}\r\n\r\n").unwrap();
}

/// The answer to a request of so many bytes.
fn is_answered(stream: &mut TcpStream, bytes: usize) {
    let head = answer_on(stream);
    assert!(head.starts_with("HTTP/1.1 200 "), "{head}");
    let mut body = vec![0; length_of(&head)];
    stream.read_exact(&mut body).unwrap();
    assert!(body == pattern(bytes), "another answer of {} bytes", body.len());
}

/// The better class goes first, and who asks at an unguarded port meanwhile waits for nobody.
fn goes_in_order(rig: &Queued) {
    let beside = PlainServer::start(&rig.front.topology.server, UNGUARDED.parse().unwrap()).unwrap();
    let mut streams: Vec<_> = (0..5).map(|_| connect(rig)).collect();
    ask(&mut streams[0], "/p/first/10", "rest");
    rig.got_all(1);
    let waits = [("/p/waits/10", "rest"), ("/p/waits/10", "rest"), ("/p/waits/10", "rest"), ("/p/better/10", "gold")];
    for ((waiting, stream), (path, class)) in (1..).zip(&mut streams[1..]).zip(waits) {
        ask(stream, path, class);
        rig.wait_for(waiting);
    }
    let served = get(&rig.front.topology.server, UNGUARDED.parse().unwrap(), "/10").unwrap();
    assert!(served.contains(" 200 ") && beside.accepted() == 1, "{:?}: {served}", rig.front.door);
    rig.let_go(5);
    let order = ["/p/first/10", "/p/better/10", "/p/waits/10", "/p/waits/10", "/p/waits/10"];
    assert_eq!(rig.got_all(5), order, "{:?}", rig.front.door);
    streams.iter_mut().for_each(|stream| is_answered(stream, 10));
}

/// Each request has a path of its own.
fn loses_and_doubles_nothing(rig: &Queued) {
    let seen = rig.got().len();
    rig.let_go(CLIENTS * REQUESTS);
    std::thread::scope(|scope| {
        for client in 0..CLIENTS {
            scope.spawn(move || {
                let mut stream = connect(rig);
                let class = if client % 2 == 0 { "gold" } else { "rest" };
                for n in 0..REQUESTS {
                    let bytes = 1 + client * REQUESTS + n;
                    ask(&mut stream, &format!("/p/{bytes}"), class);
                    is_answered(&mut stream, bytes);
                }
            });
        }
    });
    let mut times = BTreeMap::new();
    rig.got()[seen..].iter().for_each(|path| *times.entry(path.clone()).or_insert(0) += 1);
    assert_eq!(times.len(), CLIENTS * REQUESTS, "{:?}", rig.front.door);
    times.retain(|_, times| *times != 1);
    assert!(times.is_empty(), "{:?}: {times:?}", rig.front.door);
}

/// What waits goes on while the kernel still takes it.
fn goes_down(rig: &Queued) {
    let seen = rig.got().len();
    let mut streams = [connect(rig), connect(rig)];
    ask(&mut streams[0], "/p/served/10", "rest");
    rig.got_all(seen + 1);
    ask(&mut streams[1], "/p/held/10", "rest");
    rig.wait_for(1);
    rig.front.topology.server.run(|| rig.front.installation().fief().down().map(drop)).unwrap().unwrap();
    rig.let_go(2);
    assert_eq!(rig.got_all(seen + 2)[seen..], ["/p/served/10", "/p/held/10"], "{:?}", rig.front.door);
    streams.iter_mut().for_each(|stream| is_answered(stream, 10));
}

#[test]
fn requests_of_a_proxy_on_the_same_machine_go_by_their_classes() {
    if !(ready() && require(Feature::Nginx)) {
        return;
    }
    for door in Door::GUARDS {
        let rig = Queued::new(door, POLICY);
        let server = &rig.front.topology.server;
        assert_eq!(sysctls(server), ["1", "1"], "{door:?}");
        let config = NginxConfig::with_http(8080, &["0.0.0.0:8080"], 1, UPSTREAM, LOCATION).unwrap();
        let _proxy = Nginx::start_with(server, config).unwrap();
        goes_in_order(&rig);
        loses_and_doubles_nothing(&rig);
        rig.wait_for_peace();
        let classes = rig.queue().class;
        let sum = |of: fn(&fief_bpf::abi::fief_queue_class) -> u64| classes.iter().map(of).sum::<u64>();
        let asked = (5 + CLIENTS * REQUESTS) as u64;
        assert_eq!(sum(|class| class.entered + class.released), asked, "{door:?}");
        assert_eq!(sum(|class| class.refused_full + class.refused_wait + class.gone), 0, "{door:?}");
        goes_down(&rig);
        assert_eq!(sysctls(server), ["0", "0"], "{door:?}");
    }
}

#[test]
fn what_a_queue_at_the_loopback_changed_is_given_back_and_what_the_operator_set_stays() {
    if !ready() {
        return;
    }
    let topology = Topology::new().unwrap();
    let [(accepts, _), (routes, _)] = LOOPBACK_QUEUES;
    topology.server.sysctl(routes, "1").unwrap();
    let front = Front::at(Door::Own, POLICY, topology);
    let server = &front.topology.server;
    assert_eq!(sysctls(server), ["1", "1"]);
    let [elsewhere, watching, without] = [
        POLICY.replace("\"lo\"", "\"sv\""),
        format!("mode = \"monitor\"\n{POLICY}"),
        POLICY.replace("queue = {", "queue = false #"),
    ];
    for policy in [elsewhere, watching, without] {
        front.apply(&policy).unwrap();
        assert_eq!(sysctls(server), ["0", "1"], "{policy}");
        front.apply(POLICY).unwrap();
        assert_eq!(sysctls(server), ["1", "1"], "after {policy}");
    }
    let notes = || server.run(|| front.installation().fief().front().unwrap().notes).unwrap();
    assert!(!notes().iter().any(|note| note.contains(accepts)), "{:?}", notes());
    server.sysctl(accepts, "0").unwrap();
    let said = format!("{accepts} is 0 now: the kernel drops what comes out of a queue at lo; apply the policy again");
    assert!(notes().contains(&said), "{:?}", notes());
    front.apply(POLICY).unwrap();
    assert_eq!(sysctls(server), ["1", "1"]);
    server.run(|| front.installation().fief().down().map(drop)).unwrap().unwrap();
    assert_eq!(sysctls(server), ["0", "1"]);
}
