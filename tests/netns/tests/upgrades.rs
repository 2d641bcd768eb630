// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What stands behind a request for another protocol: it passes once the server has confirmed, and is ruled as HTTP until then.

#[path = "upgrades/rig.rs"]
mod rig;

use std::io::Write;
use std::net::SocketAddr;
use std::process::Stdio;

use fief_bpf::abi;
use fief_bpf::upgrade::program_id;
use fief_testkit::{Client, Family, Feature, Process, Topology, Veth, read_until, require, wait_until};
use fief_tests_netns::front::{Door, Front, plain, ready};
use fief_tests_netns::{SOON, connect_from, one_installation, python_server};
use libbpf_rs::query::{LinkInfoIter, LinkTypeInfo};

use rig::{FOREIGN, FRAME, PUBLIC, Rig, SCRIPTED, SECRET, SWITCHED, connect, echoes, policy, upgrade};

/// Agrees to change to another protocol, which says everything again; with `none`, there is no such handler.
const NODE: &str = r#"
const http = require("http");
const server = http.createServer((request, response) => {
    request.resume();
    request.on("end", () => response.end("served " + request.url + "\n"));
});
server.on("upgrade", (request, socket, head) => {
    socket.write("HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\n");
    socket.write(head);
    socket.pipe(socket);
});
server.listen(Number(process.argv[1]), "::");
"#;

#[test]
fn what_stands_behind_a_confirmed_upgrade_passes() {
    if !(ready() && require(Feature::Python)) {
        return;
    }
    let requests = [
        (upgrade("/public/101"), SWITCHED),
        (upgrade("/public/bytewise"), SWITCHED),
        (upgrade("/public/hints"), SWITCHED),
        (connect("tunnel"), "established\r\n\r\n"),
        (connect("bears"), "Content-Length: 5\r\n\r\n"),
    ];
    let _one = one_installation();
    for door in Door::GUARDS {
        for managed in [true, false] {
            let rig = Rig::scripted(door, "", managed);
            for (request, answer) in &requests {
                for words in FOREIGN {
                    let before = rig.front.verdicts();
                    let mut stream = rig.asked(request, answer);
                    assert!(echoes(&mut stream, words), "{door:?}, {managed}, {answer}: {words:?}");
                    assert!(echoes(&mut stream, SECRET.as_bytes()), "{door:?}, {managed}, {answer}: {words:?}");
                    rig.has_one(&before, abi::FIEF_PASSED_UPGRADE, answer);
                }
            }
        }
    }
}

#[test]
fn a_request_behind_an_upgrade_that_is_not_confirmed_is_ruled() {
    if !(ready() && require(Feature::Python)) {
        return;
    }
    let mut requests = vec![upgrade("/public/2"), upgrade("/public/fake"), connect("closed")];
    // an answer with a body is none that opens a tunnel
    requests.extend(["taken", "slowly", "empty", "chunks", "nothing"].map(connect));
    let _one = one_installation();
    for door in Door::GUARDS {
        let rig = Rig::scripted(door, "", true);
        for request in &requests {
            let mut stream = rig.asked(request, "\r\n\r\n");
            stream.write_all(PUBLIC.as_bytes()).unwrap();
            assert!(read_until(&mut stream, "served /public/1").contains("served /public/1"), "{door:?}");
            let before = rig.front.verdicts();
            let _ = stream.write_all(SECRET.as_bytes());
            assert!(!read_until(&mut stream, "served /secret").contains("served"), "{door:?}");
            rig.has_one(&before, abi::FIEF_REQUEST_REFUSED, "a request");
            let mut stream = rig.asked(request, "\r\n\r\n");
            let before = rig.front.verdicts();
            let _ = stream.write_all(FRAME);
            read_until(&mut stream, "until it ends");
            rig.has_one(&before, abi::FIEF_REFUSED_UPGRADE, "a frame");
        }
    }
}

/// Takes any method, as programs do that do not look at it.
const HEEDLESS: &str = "    do_GET = do_CONNECT = answer";

#[test]
fn connect_that_a_server_takes_for_any_request_confirms_nothing() {
    if !(ready() && require(Feature::Python)) {
        return;
    }
    let _one = one_installation();
    for door in Door::GUARDS {
        let rig = Rig::new(door, "");
        let mut command = rig.front.server_command("python3");
        command.args(["-c", &python_server(HEEDLESS)]).stderr(Stdio::null());
        let rig = rig.with(command);
        let mut stream = rig.asked(&connect("tunnel"), "served tunnel:80\n");
        let _ = stream.write_all(SECRET.as_bytes());
        let words = read_until(&mut stream, "served /secret/1\n");
        assert!(!words.contains("served"), "{door:?}: {words}");
    }
}

#[test]
fn who_does_not_wait_for_the_confirmation_is_ruled() {
    if !(ready() && require(Feature::Python)) {
        return;
    }
    let _one = one_installation();
    for door in Door::GUARDS {
        for managed in [true, false] {
            let rig = Rig::scripted(door, "", managed);
            for in_one in [true, false] {
                let before = rig.front.verdicts();
                let mut stream = rig.dial().expect("a connection");
                if in_one {
                    stream.write_all(&[&upgrade("/public/wait"), FRAME].concat()).unwrap();
                } else {
                    stream.write_all(&upgrade("/public/wait")).unwrap();
                    wait_until(SOON, || rig.since(&before).requests() > 0).unwrap();
                    let _ = stream.write_all(FRAME);
                }
                let words = read_until(&mut stream, "101");
                assert!(!words.contains("101"), "{door:?}, {managed}, {in_one}: {words}");
                rig.has_one(&before, abi::FIEF_REFUSED_UPGRADE, &format!("{managed}, {in_one}"));
            }
        }
    }
}

/// Where in the server's stream its answer begins is not known, so the end of an earlier answer could pass for it.
#[test]
fn an_upgrade_that_is_not_the_first_request_is_not_confirmed() {
    if !(ready() && require(Feature::Python)) {
        return;
    }
    let _one = one_installation();
    for door in Door::GUARDS {
        let rig = Rig::scripted(door, "", true);
        for together in [true, false] {
            for request in [connect("closed"), connect("tunnel"), upgrade("/public/101")] {
                let mut stream = rig.dial().expect("a connection");
                if together {
                    stream.write_all(&[PUBLIC.as_bytes(), &request].concat()).unwrap();
                } else {
                    stream.write_all(PUBLIC.as_bytes()).unwrap();
                    read_until(&mut stream, "served /public/1\n");
                    stream.write_all(&request).unwrap();
                }
                let answered = if request[..3] == *b"GET" { SWITCHED } else { "tunnel" };
                let words = read_until(&mut stream, answered);
                let before = rig.front.verdicts();
                let _ = stream.write_all(FRAME);
                read_until(&mut stream, "until it ends");
                rig.has_one(&before, abi::FIEF_REFUSED_UPGRADE, &format!("{together}: {words}"));
            }
        }
    }
}

/// HTTP/2 behind `Upgrade: h2c` is as little ruled as from a connection's begin on.
#[test]
fn http_2_behind_a_confirmed_upgrade_is_unread() {
    if !(ready() && require(Feature::Python)) {
        return;
    }
    let preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
    let _one = one_installation();
    for door in Door::GUARDS {
        let rig = Rig::scripted(door, "", true);
        for size in [1, 3, preface.len()] {
            let mut stream = rig.asked(&upgrade("/public/101"), "\r\n\r\n");
            let before = rig.front.verdicts();
            for piece in preface.chunks(size) {
                let _ = stream.write_all(piece);
            }
            read_until(&mut stream, "until it ends");
            rig.has_one(&before, abi::FIEF_REFUSED_HTTP2, &format!("{size}"));
        }
        drop(rig);
        let rig = Rig::scripted(door, "unread = { http2 = \"pass\" }", true);
        let mut stream = rig.asked(&upgrade("/public/101"), "\r\n\r\n");
        assert!(echoes(&mut stream, preface), "{door:?}");
    }
}

#[test]
fn an_answer_that_goes_out_by_another_interface_confirms() {
    if !(ready() && require(Feature::Python)) {
        return;
    }
    let _one = one_installation();
    for door in Door::GUARDS {
        for named in [false, true] {
            let topology = Topology::new().unwrap();
            let _link = Veth::between((&topology.server, "s2"), (&topology.clients, "c2")).unwrap();
            for (namespace, device, address) in
                [(&topology.server, "s2", "10.66.3.1/30"), (&topology.clients, "c2", "10.66.3.2/30")]
            {
                namespace.ip(&format!("addr add {address} dev {device}")).unwrap();
                namespace.ip(&format!("link set {device} up")).unwrap();
            }
            for device in ["all", "default", "cv", "c2"] {
                topology.clients.sysctl(&format!("net/ipv4/conf/{device}/rp_filter"), "0").unwrap();
            }
            let client = Client::High.address(Family::V4, 1);
            topology.server.ip(&format!("route add {client}/32 via 10.66.3.2 dev s2")).unwrap();
            for device in ["all", "default", "sv", "s2"] {
                topology.server.sysctl(&format!("net/ipv4/conf/{device}/rp_filter"), "0").unwrap();
            }
            let mut text = policy("");
            if named {
                text = format!("interfaces = [\"sv\"]\n{text}");
            }
            let rig = Rig { front: Front::at(door, &text, topology), servers: Vec::new() };
            let mut command = rig.front.server_command("python3");
            command.args(["-c", SCRIPTED]);
            let rig = rig.with(command);
            let mut stream = rig.asked(&upgrade("/public/101"), "\r\n\r\n");
            // what was not seen confirms nothing
            assert_eq!(echoes(&mut stream, FRAME), !named, "{door:?}");
        }
    }
}

#[test]
fn an_answer_is_found_in_a_large_segment() {
    if !(ready() && require(Feature::Python)) {
        return;
    }
    let _one = one_installation();
    for door in Door::GUARDS {
        let rig = Rig::scripted(door, "", true);
        let offload = ["-K", "sv", "tx", "on", "tso", "on", "gso", "on", "sg", "on"];
        assert!(rig.front.topology.server.command("ethtool").args(offload).status().unwrap().success());
        let mut stream = rig.asked(&upgrade("/public/large"), "xyz");
        assert!(echoes(&mut stream, FRAME), "{door:?}");
    }
}

fn nginx(backend: u16) -> String {
    format!(
        "worker_processes 1; daemon off; error_log stderr;\nevents {{ worker_connections 64; }}\n\
         http {{ access_log off;\nserver {{ listen [::]:80 ipv6only=off; keepalive_timeout 60s;\n\
         location /public/ {{ return 200 \"served $uri\\n\"; }}\nlocation /secret/ {{ return 200 \"served $uri\\n\"; }}\n\
         location /socket {{ proxy_pass http://127.0.0.1:{backend}; proxy_http_version 1.1;\n\
         proxy_set_header Upgrade $http_upgrade; proxy_set_header Connection \"upgrade\"; }}\n}} }}\n"
    )
}

#[test]
fn nginx_and_node_pass_web_sockets_and_ignore_others() {
    if !(ready() && require(Feature::Nginx) && require(Feature::Node)) {
        return;
    }
    let _one = one_installation();
    for door in Door::GUARDS {
        let rig = Rig::new(door, "");
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("nginx.conf");
        std::fs::write(&file, nginx(8080)).unwrap();
        let mut node = rig.front.topology.server.command("node");
        node.args(["-e", NODE, "8080"]);
        let backend = Process::start(node).unwrap();
        let mut command = rig.front.server_command("nginx");
        command.arg("-c").arg(&file).arg("-p").arg(folder.path()).stderr(Stdio::null());
        let rig = rig.with(command);
        let server = &rig.front.topology.server;
        wait_until(SOON, || connect_from(server, any(), "127.0.0.1:8080".parse().unwrap()).is_ok()).unwrap();
        for words in FOREIGN {
            let mut stream = rig.asked(&upgrade("/socket"), "\r\n\r\n");
            assert!(echoes(&mut stream, words), "{door:?}: {words:?}");
        }
        let mut stream = rig.asked(&upgrade("/public/2"), "served /public/2\n");
        let _ = stream.write_all(SECRET.as_bytes());
        assert!(!read_until(&mut stream, "served /secret").contains("served"), "{door:?}");
        drop(backend);
    }
}

fn any() -> SocketAddr {
    SocketAddr::from(([0, 0, 0, 0], 0))
}

#[test]
fn node_itself_confirms() {
    if !(ready() && require(Feature::Node)) {
        return;
    }
    let _one = one_installation();
    for door in Door::GUARDS {
        let rig = Rig::new(door, "");
        let mut command = rig.front.server_command("node");
        command.args(["-e", NODE, "80"]);
        let rig = rig.with(command);
        for words in FOREIGN {
            let mut stream = rig.asked(&upgrade("/socket"), "\r\n\r\n");
            assert!(echoes(&mut stream, words), "{door:?}: {words:?}");
        }
    }
}

/// HAProxy hands CONNECT on to a proxy behind it.
#[test]
fn haproxy_opens_a_tunnel_that_passes() {
    if !(ready() && require(Feature::Haproxy) && require(Feature::Python)) {
        return;
    }
    let _one = one_installation();
    for door in Door::GUARDS {
        let rig = Rig::new(door, "");
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("haproxy.cfg");
        let config = "defaults\n  mode http\n  timeout connect 5s\n  timeout client 30s\n  timeout server 30s\n\
                      frontend in\n  bind :::80 v4v6\n  default_backend out\n\
                      backend out\n  server one 127.0.0.1:8080\n";
        std::fs::write(&file, config).unwrap();
        let mut proxy = rig.front.topology.server.command("python3");
        proxy.args(["-c", &SCRIPTED.replace("80)", "8080)")]);
        let proxy = Process::start(proxy).unwrap();
        let mut command = rig.front.server_command("haproxy");
        command.arg("-db").arg("-f").arg(&file).stderr(Stdio::null());
        let rig = rig.with(command);
        let server = &rig.front.topology.server;
        wait_until(SOON, || connect_from(server, any(), "127.0.0.1:8080".parse().unwrap()).is_ok()).unwrap();
        for words in FOREIGN {
            let mut stream = rig.asked(&connect("tunnel"), "\r\n\r\n");
            assert!(echoes(&mut stream, words), "{door:?}: {words:?}");
        }
        let mut stream = rig.asked(&connect("closed"), "\r\n\r\n");
        let _ = stream.write_all(SECRET.as_bytes());
        assert!(!read_until(&mut stream, "served /secret").contains("served"), "{door:?}");
        drop(proxy);
    }
}

/// The interfaces that this program is attached to.
fn places(rig: &Rig) -> usize {
    let program = program_id(rig.front.installation().fief().pins(), "egress_confirms").unwrap();
    let here = |info: &libbpf_rs::query::LinkInfo| info.prog_id == program;
    LinkInfoIter::default().filter(here).filter(|info| matches!(info.info, LinkTypeInfo::Tcx(_))).count()
}

/// A link that somebody else is making ends the walk over all of them, so that it is made again.
#[track_caller]
fn stands_at_one(rig: &Rig) {
    wait_until(SOON, || places(rig) == 1).unwrap_or_else(|_| panic!("{} places", places(rig)));
}

#[test]
fn answers_are_looked_at_only_where_a_listener_asks() {
    if !(ready() && require(Feature::Python)) {
        return;
    }
    let rig = Rig::scripted(Door::Own, "", true);
    stands_at_one(&rig);
    let mut stream = rig.asked(&upgrade("/public/101"), "\r\n\r\n");
    rig.front.topology.server.run(|| rig.front.installation().fief().upgrade().unwrap()).unwrap();
    stands_at_one(&rig);
    assert!(echoes(&mut stream, FRAME), "a confirmation outlives an upgrade of the programs");
    rig.front.apply(&policy("unread = { upgrade = \"pass\" }")).unwrap();
    // the kernel frees a link after its file is gone
    wait_until(SOON, || places(&rig) == 0).unwrap();
    let mut stream = rig.asked(&upgrade("/public/101"), "\r\n\r\n");
    assert!(echoes(&mut stream, FRAME));
    rig.front.apply(&policy("")).unwrap();
    stands_at_one(&rig);
}

/// The answer leaves by the bridge, whose port has no program.
#[test]
fn an_answer_over_a_bridge_confirms() {
    if !(ready() && require(Feature::Python)) {
        return;
    }
    let _one = one_installation();
    for door in Door::GUARDS {
        let topology = Topology::new().unwrap();
        let _link = Veth::between((&topology.server, "s2"), (&topology.clients, "c2")).unwrap();
        topology.server.ip("link add br0 type bridge").unwrap();
        topology.server.ip("link set s2 up master br0").unwrap();
        for (namespace, device, host) in [(&topology.server, "br0", 1), (&topology.clients, "c2", 2)] {
            namespace.ip(&format!("addr add 10.66.7.{host}/24 dev {device}")).unwrap();
            namespace.ip(&format!("link set {device} up")).unwrap();
        }
        let rig = Rig { front: Front::at(door, &policy(""), topology), servers: Vec::new() };
        let mut command = rig.front.server_command("python3");
        command.args(["-c", SCRIPTED]);
        let rig = rig.with(command);
        for (request, answer) in [(upgrade("/public/101"), SWITCHED), (connect("tunnel"), "established\r\n\r\n")] {
            let [from, to] = [([10, 66, 7, 2], 0), ([10, 66, 7, 1], 80)].map(SocketAddr::from);
            let mut stream = connect_from(&rig.front.topology.clients, from, to).unwrap();
            stream.write_all(&request).unwrap();
            let words = read_until(&mut stream, answer);
            assert!(echoes(&mut stream, FRAME), "{door:?}: {words}");
        }
    }
}

/// Over IPv6, whose answers have another header before them.
#[test]
fn an_answer_over_ipv6_confirms() {
    if !(ready() && require(Feature::Python)) {
        return;
    }
    let _one = one_installation();
    for door in Door::GUARDS {
        for managed in [true, false] {
            let rig = Rig::scripted(door, "", managed);
            let from = (Client::High.address(Family::V6, 1), 0).into();
            let mut stream = connect_from(&rig.front.topology.clients, from, plain(Family::V6)).unwrap();
            stream.write_all(&upgrade("/public/101")).unwrap();
            let words = read_until(&mut stream, SWITCHED);
            assert!(echoes(&mut stream, FRAME), "{door:?}, {managed}: {words}");
        }
    }
}
