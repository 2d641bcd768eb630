// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What is in force from a level of overload on: rules, admission, limits on connection requests, receive work in lanes. And
//! who cannot raise a level by the CPU.

#[path = "lrp/stage.rs"]
mod stage;

use std::io::{Read, Write};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use fief_bpf::{abi, record};
use fief_testkit::segment::{ACK, SYN, Segment, frame};
use fief_testkit::{
    Client, Family, Feature, ORDINARY_OPTIONS, PacketSender, RawClients, SchedStat, Topology, napi_threads, require,
    wait_until,
};
use fief_tests_netns::front::{Door, Front, Verdict, Verdicts, anywhere, plain, ready};
use fief_tests_netns::rig::{Rig, pieces, status_of, whole};
use fief_tests_netns::{SOON, connect_from, connect_once_served, one_installation, python_server, role, spin};
use libbpf_rs::MapHandle;
use stage::{PORT, Stage, policy, serve};

/// Of the listen queue.
const PLACES: i32 = 16;

/// Busy with 4 connections in the queue, overloaded with 10.
fn by_queue(listener: &str) -> String {
    format!(
        "[overload]\nbusy = {{ queue = \"25%\", drops = 1000000 }}\n\
         overloaded = {{ queue = \"60%\", drops = 1000000 }}\nhold = \"1s\"\n\
         [container.web]\n[listener.plain]\naddress = \"0.0.0.0:80\"\n{listener}\n\
         [[listener.plain.client]]\nfrom = [\"any\"]\ncontainer = \"web\"\n"
    )
}

/// Asks for `path` until the listener is at this level; who waits in its queue.
fn crowd(front: &Front, level: &str) -> Vec<std::net::TcpStream> {
    let mut waiting = Vec::new();
    wait_until(SOON, || {
        if front.load().1 < 60 {
            waiting.push(front.ask("/cheap"));
        } else {
            // a look is taken with the next packet
            drop(connect_from(&front.topology.clients, anywhere(Family::V4), plain(Family::V4)));
        }
        front.level() == level
    })
    .unwrap_or_else(|_| panic!("{:?}", front.load()));
    waiting
}

#[test]
fn a_rule_for_overload_is_in_force_above_the_busy_level_only() {
    if !ready() {
        return;
    }
    let _one = one_installation();
    let rules = "[[listener.plain.request]]\npath = \"/dear\"\nrefuse = \"503\"\nwhen = \"busy\"\n\
                 [[listener.plain.request]]\npath = \"/dearer\"\nrefuse = \"503\"\nwhen = \"overloaded\"\n";
    for door in Door::GUARDS {
        let front = Front::new(door, &(by_queue("") + rules));
        let let_it = front.server_with_queue(PLACES);
        let first = front.ask("/dearer");
        let mut waiting = crowd(&front, "busy");
        assert_eq!(front.status("/dear"), Ok(503), "{door:?}");
        // by the second rule alone: the first one may refuse a request twice, which its client sent again
        let refused = || {
            let verdicts = front.verdicts();
            let is_it = |verdict: &&Verdict| verdict.reason == abi::FIEF_REQUEST_REFUSED && verdict.rule == Some(1);
            verdicts.all().iter().filter(is_it).map(|verdict| verdict.count).sum::<u64>()
        };
        waiting.push(front.ask("/dearer"));
        waiting.extend(crowd(&front, "overloaded"));
        assert_eq!(refused(), 0, "{door:?}: served while busy");
        assert_eq!((front.status("/dearer"), front.status("/dear")), (Ok(503), Ok(503)), "{door:?}");
        assert!(refused() > 0, "{door:?}: {:?}", front.verdicts());
        let_it.send(()).unwrap();
        for stream in waiting.into_iter().chain([first]) {
            assert_eq!(status_of(stream), Ok(200), "{door:?}");
        }
        wait_until(SOON, || front.status("/dearer") == Ok(200)).expect("the higher level is left");
        wait_until(SOON, || front.status("/dear") == Ok(200)).expect("the lower level is left");
    }
}

#[test]
fn admission_from_a_level_on_is_in_force_there_and_not_below() {
    if !ready() {
        return;
    }
    let _one = one_installation();
    let rules = "[[listener.plain.request]]\npath = \"/secret\"\nrefuse = \"503\"\n";
    for (door, level) in Door::GUARDS.into_iter().flat_map(|door| [(door, "busy"), (door, "overloaded")]) {
        let front = Front::new(door, &(by_queue(&format!("admit-from = \"{level}\"")) + rules));
        let let_it = front.server_with_queue(PLACES);
        // Below the level connections are the kernel's, and are ruled as they pass.
        assert_eq!(front.status("/secret"), Ok(503), "{door:?}, {level}: {:?}", front.verdicts());
        let below = front.ask("/cheap");
        // One that has its handshake from below the level, and says something above it.
        let mut early = connect_from(&front.topology.clients, anywhere(Family::V4), plain(Family::V4)).unwrap();
        let waiting = crowd(&front, level);
        let accepted = |front: &Front| front.verdicts().count(abi::FIEF_REQUEST_CLIENT);
        assert_eq!(front.status("/secret"), Ok(503), "{door:?}, {level}");
        let refused = front.verdicts().count(abi::FIEF_REQUEST_REFUSED);
        assert!(front.is_counted(refused, 2), "{door:?}, {level}: {:?}", front.verdicts());
        early.write_all(b"GET /secret HTTP/1.1\r\nConnection: close\r\n\r\n").unwrap();
        let mut words = String::new();
        early.read_to_string(&mut words).unwrap();
        assert!(words.starts_with("HTTP/1.1 503"), "{door:?}, {level}: {words}: {:?}", front.verdicts());
        let before = accepted(&front);
        let last = front.ask("/cheap");
        wait_until(SOON, || accepted(&front) > before)
            .unwrap_or_else(|_| panic!("{door:?}, {level}: {:?}", front.verdicts()));
        let_it.send(()).unwrap();
        for stream in waiting.into_iter().chain([below, last]) {
            assert_eq!(status_of(stream), Ok(200), "{door:?}, {level}");
        }
        assert_eq!(front.status("/secret"), Ok(503), "{door:?}, {level}: at whichever level");
    }
}

/// Connection requests of these sources, each from a port of its own, and what became of them.
fn judged(front: &Front, clients: &RawClients, port: u16, sources: impl Iterator<Item = [u8; 4]>) -> Verdicts {
    let before = front.verdicts();
    let mut sent = 0;
    for (source, port) in sources.zip(port..) {
        let mut syn = Segment::new((source, port).into(), plain(Family::V4), SYN);
        (syn.sequence, syn.options) = (u32::from(port) << 8, ORDINARY_OPTIONS.to_vec());
        clients.send(&syn).unwrap();
        sent += 1;
    }
    let new = || front.verdicts().since(&before);
    wait_until(SOON, || new().syns() >= sent).unwrap_or_else(|_| panic!("{sent} were sent: {:?}", new()));
    new()
}

#[test]
fn limits_on_connection_requests_are_in_force_from_their_level_on_only() {
    if !ready() {
        return;
    }
    let listener = "admit = true\nisolate = { above = 20, for = \"1m\", when = \"busy\" }\n\
                    unproven = { rate = 1, burst = 1, when = \"overloaded\" }\n\
                    [[listener.plain.client]]\nfrom = [\"10.89.3.0/24\"]\ncontainer = \"web\"\n\
                    syn = { rate = 1, burst = 1, when = \"busy\" }";
    for door in Door::GUARDS {
        let front = Front::new(door, &by_queue(listener));
        let let_it = front.server_with_queue(PLACES);
        let clients = RawClients::new(&front.topology).unwrap();
        front.no_cpu_idle();
        let mut port = 1000;
        // Whether a network that floods is isolated, a rate holds, and the budget for all networks does.
        let mut in_force = || {
            port += 1000;
            let flood = judged(&front, &clients, port, (0..200).map(|n| [10, 89, 1, n]));
            let rated = judged(&front, &clients, port + 300, (0..5).map(|n| [10, 89, 3, n]));
            let many = judged(&front, &clients, port + 400, (100..150).map(|n| [10, 89, n, 1]));
            let isolated = flood.count(abi::FIEF_SYN_ISOLATED) > 0;
            // what the time of so few brings is one more at most
            (isolated, rated.count(abi::FIEF_SYN_RATE) >= 3, many.count(abi::FIEF_SYN_UNPROVEN) >= 40)
        };
        let first = front.ask("/cheap");
        assert_eq!(in_force(), (false, false, false), "{door:?}: {:?}", front.load());
        let mut waiting = crowd(&front, "busy");
        assert_eq!(in_force(), (true, true, false), "{door:?}: {:?}", front.load());
        waiting.extend(crowd(&front, "overloaded"));
        assert_eq!(in_force(), (true, true, true), "{door:?}: {:?}", front.load());
        let_it.send(()).unwrap();
        for stream in waiting.into_iter().chain([first]) {
            assert_eq!(status_of(stream), Ok(200), "{door:?}");
        }
        let left = || front.status("/cheap") == Ok(200) && front.level() == "always";
        wait_until(SOON, left).unwrap_or_else(|_| panic!("{door:?}: {:?}", front.load()));
        assert_eq!(in_force(), (false, false, false), "{door:?}: {:?}", front.load());
    }
}

/// The kernel's cookies, whether the policy asks for them or the kernel is set so. Each first segment ends its handshake.
#[test]
fn below_the_level_a_request_that_ends_the_handshake_of_a_kernels_cookie_is_ruled() {
    if !ready() {
        return;
    }
    let rules = "[[listener.plain.request]]\npath = \"/secret\"\nrefuse = \"503\"\n";
    for door in Door::GUARDS {
        let rig = Rig::new(door, &(by_queue("admit-from = \"overloaded\"") + rules));
        rig.front.topology.server.sysctl("net.ipv4.tcp_syncookies", "2").unwrap();
        let ask = |path: &str, size| {
            let stream = format!("GET {path} HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n").into_bytes();
            let mut connection = rig.open(Family::V4);
            let (words, _) = connection.converse(&stream, &pieces(&stream, size), SOON).unwrap();
            String::from_utf8(words).unwrap().split(' ').nth(1).map(str::to_owned)
        };
        for size in [1000, 20] {
            assert_eq!(ask("/secret", size).as_deref(), Some("503"), "{door:?}, {size}: {:?}", rig.verdicts());
            assert_eq!(ask("/10", size).as_deref(), Some("200"), "{door:?}, {size}: {:?}", rig.verdicts());
        }
        let refused = rig.verdicts().count(abi::FIEF_REQUEST_REFUSED);
        assert!(rig.is_counted(refused, 2), "{door:?}: {:?}", rig.verdicts());
    }
}

/// The kernel's cookie leaves no request socket: what ends the handshake is the request itself.
#[test]
fn a_guard_that_watches_sees_a_request_that_makes_its_connection() {
    if !ready() {
        return;
    }
    let rules = "[[listener.plain.request]]\npath = \"/secret\"\nrefuse = \"503\"\n";
    let policy = by_queue("mode = \"monitor\"") + rules;
    for door in Door::GUARDS {
        let rig = Rig::new(door, &policy);
        rig.front.topology.server.sysctl("net.ipv4.tcp_syncookies", "2").unwrap();
        let stream = b"GET /secret HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n";
        let (words, _) = rig.open(Family::V4).converse(stream, &pieces(stream, 1000), SOON).unwrap();
        assert!(words.starts_with(b"HTTP/1.1 200"), "{door:?}: {}", String::from_utf8_lossy(&words));
        let refused = rig.verdicts().monitored(abi::FIEF_REQUEST_REFUSED);
        assert!(rig.is_counted(refused, 1), "{door:?}: {:?}", rig.verdicts());
    }
}

/// The kernel's cookies of one minute are as far apart as the client's own numbers: a client that goes on behind its last
/// connection with both makes what begins another one look like the rest of it.
#[test]
fn below_the_level_a_connection_that_looks_like_the_rest_of_the_one_before_is_ruled() {
    if !ready() {
        return;
    }
    let rules = "[[listener.plain.request]]\npath = \"/secret\"\nrefuse = \"503\"\n";
    for (door, family) in Door::GUARDS.into_iter().flat_map(|door| [(door, Family::V4), (door, Family::V6)]) {
        let policy = by_queue("admit-from = \"overloaded\"").replace("0.0.0.0:80", "[::]:80");
        let rig = Rig::new(door, &(policy + rules));
        rig.front.topology.server.sysctl("net.ipv4.tcp_syncookies", "2").unwrap();
        let ask = |port, first, path: &str| {
            let stream = format!("GET {path} HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n").into_bytes();
            let client = SocketAddr::new(RawClients::address(family, 5), port);
            let mut connection = rig.open_with(client, first, &ORDINARY_OPTIONS);
            let (words, _) = connection.converse(&stream, &whole(&stream), SOON).unwrap();
            let status = String::from_utf8(words).unwrap().split(' ').nth(1).map(str::to_owned);
            (connection.greeting.sequence, status)
        };
        // a minute may end between the two, and the cookies' next one begin
        let near = (2000..2003).any(|port| {
            let (before, status) = ask(port, 4711, "/10");
            assert_eq!(status.as_deref(), Some("200"), "{door:?}, {family:?}: {:?}", rig.verdicts());
            wait_until(SOON, || rig.front.sockets(port).is_empty()).expect("the reset ends it");
            let (after, status) = ask(port, 4711 + 1000, "/secret");
            assert_eq!(status.as_deref(), Some("503"), "{door:?}, {family:?}: {:?}", rig.verdicts());
            after.wrapping_sub(before) < 1 << 24
        });
        assert!(near, "{door:?}, {family:?}: no cookies of one minute");
        let seen = rig.server.seen();
        assert!(seen.iter().all(|seen| seen.line.starts_with("GET /10 ")), "{door:?}, {family:?}: {seen:?}");
    }
}

#[test]
fn lanes_are_used_while_the_listener_is_overloaded() {
    let name = "lanes_are_used_while_the_listener_is_overloaded";
    if role().is_some() {
        return serve();
    }
    if !require(Feature::ThreadedNapi) {
        return;
    }
    let stage = Stage::new(name, "overloaded");
    let thresholds = "[overload]\nbusy = { cpu = \"80%\" }\noverloaded = { cpu = \"85%\" }\nhold = \"1s\"\n";
    let text = policy("overloaded").replace("version = 1\n", &format!("version = 1\n{thresholds}"));
    stage.topology.server.run(|| stage.installation.apply(&text).unwrap()).unwrap();
    let entered = || stage.lane("shop/high").entered;
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for _ in 0..std::thread::available_parallelism().unwrap().get() {
            scope.spawn(|| {
                while !done.load(Ordering::Relaxed) {
                    spin(Duration::from_millis(10));
                }
            });
        }
        let used = wait_until(SOON, || {
            stage.upload(Family::V4, Client::High, PORT, 1 << 16);
            entered() > 0
        });
        done.store(true, Ordering::Relaxed);
        used.unwrap_or_else(|_| panic!("{:?}", stage.installation.fief().front().unwrap().loads));
    });
}

/// Time that the levels leave out as nobody's, at the first listener's last look.
fn received_for_nobody(front: &Front) -> Duration {
    let map = MapHandle::from_pinned_path(front.installation().fief().pins().map("loads")).unwrap();
    let load = record::lookup::<abi::fief_load>(&map, &0u32.to_ne_bytes()).unwrap().unwrap();
    Duration::from_nanos(load.receiving_ns)
}

/// Many segments from addresses of this network, with these flags and bytes.
fn flood_from(network: u32, flags: u8, payload: &[u8], front: &Front) -> Vec<Vec<u8>> {
    let link = &front.topology.link;
    let segment = |n: u32| {
        let from = std::net::Ipv4Addr::from(network + n % 65_000);
        let mut segment = Segment::new((from, 2000).into(), plain(Family::V4), flags);
        (segment.acknowledgment, segment.payload) = (n, payload.to_vec());
        if flags == SYN {
            segment.options = ORDINARY_OPTIONS.to_vec();
        }
        frame(link.near_mac.octets(), link.far_mac.octets(), &[], &segment.packet())
    };
    (0..20_000).map(segment).collect()
}

/// Sends these until the thread that receives them has worked for a while; for how long it did.
fn received(front: &Front, frames: &[Vec<u8>]) -> Duration {
    let thread = napi_threads(&front.topology.server, Topology::SERVER).unwrap()[0];
    let sender = front.topology.clients.run(|| PacketSender::open(Topology::CLIENTS)).unwrap().unwrap();
    let ran = || SchedStat::of(thread).unwrap().ran;
    let before = ran();
    wait_until(SOON, || {
        let mut rest = frames;
        while !rest.is_empty() {
            rest = &rest[sender.send(rest).unwrap()..];
        }
        ran() - before > Duration::from_millis(300)
    })
    .unwrap();
    // behind all of them, and a look
    assert_eq!(front.status("/cheap"), Ok(200));
    ran() - before
}

/// Receive work that the container `web` was charged with.
fn received_for_web(front: &Front) -> Duration {
    let containers = front.installation().fief().snapshot().unwrap().containers;
    let web = containers.iter().find(|container| container.path == "web").expect("the policy names it");
    Duration::from_nanos(web.usage.receive_ns)
}

/// The machine's own share of a level by the CPU is not of the flood's making, as far as the thread that receives it shows.
#[test]
fn the_work_of_a_flood_is_no_load_by_the_cpu() {
    if !(ready() && require(Feature::ThreadedNapi)) {
        return;
    }
    let policy = by_queue("").replace(
        "[[listener.plain.client]]\nfrom = [\"any\"]\ncontainer = \"web\"\n",
        "[[listener.plain.client]]\nfrom = [\"10.89.0.0/16\"]\ncontainer = \"web\"\nsyn = { rate = 1, burst = 1 }\n\
         [[listener.plain.client]]\nfrom = [\"any\"]\ncontainer = \"web\"\n\
         [[listener.plain.request]]\npath = \"/secret\"\nrefuse = \"drop\"\n",
    );
    let kinds: [(&str, u8, &[u8], u32); 3] = [
        ("SYNs above a rate", SYN, &[], 0x0a59_0000),
        ("SYNs that we answer", SYN, &[], 0x0a58_0000),
        ("forged first bytes", ACK, b"GET / HTTP/1.1\r\n\r\n", 0x0a58_0000),
    ];
    let front = Front::new(Door::Own, &policy);
    front.server_with_queue(PLACES).send(()).unwrap();
    let _routes = RawClients::new(&front.topology).unwrap();
    for (what, flags, payload, network) in kinds {
        let frames = flood_from(network, flags, payload, &front);
        assert_eq!(front.status("/cheap"), Ok(200));
        let before = received_for_nobody(&front);
        let ran = received(&front, &frames);
        let nobody = received_for_nobody(&front) - before;
        eprintln!("{what}: the thread ran {ran:?}, {nobody:?} were left out");
        assert!(nobody >= ran.mul_f64(0.8), "{what}: {nobody:?} of {ran:?}");
    }
}

/// The one exception (docs/policy.md, `[overload]`). The level itself would show nothing here: the sender is on the same machine, and its
/// time counts too. So the server's unit, whose time no level leaves out, is looked at.
#[test]
fn where_the_kernel_answers_the_work_of_a_flood_is_load_as_far_as_unproven_lets_it_pass() {
    if !(ready() && require(Feature::ThreadedNapi) && require(Feature::Python)) {
        return;
    }
    let _one = one_installation();
    let policy = |listener: &str| {
        let rule = "[[listener.plain.request]]\npath = \"/secret\"\nrefuse = \"drop\"\n";
        by_queue(listener).replace("0.0.0.0:80", "[::]:80") + rule
    };
    let front = Front::new(Door::Kernel, &policy(""));
    // in a managed cgroup
    let _server = front.python(&python_server("    do_GET = answer"));
    drop(connect_once_served(&front.topology.clients, anywhere(Family::V4), plain(Family::V4)));
    // nobody there answers what comes back
    let _routes = RawClients::new(&front.topology).unwrap();
    let frames = flood_from(0x0a59_0000, SYN, &[], &front);
    let of_web = |what: &str| {
        assert_eq!(front.status("/cheap"), Ok(200), "{what}");
        let before = received_for_web(&front);
        let ran = received(&front, &frames);
        let web = received_for_web(&front) - before;
        eprintln!("{what}: the thread ran {ran:?}, {web:?} were the server's");
        web.as_secs_f64() / ran.as_secs_f64()
    };
    let web = of_web("no budget");
    assert!(web >= 0.3, "{web}: {:?}", front.verdicts());
    front.apply(&policy("unproven = { rate = 100, burst = 100 }")).unwrap();
    front.no_cpu_idle();
    let web = of_web("a budget");
    assert!(web <= 0.1, "{web}: {:?}", front.verdicts());
}
