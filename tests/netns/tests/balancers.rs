// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Balancers that send a PROXY head, before a guarded listener that names them: HAProxy in both versions and nginx. nginx
//! behind the door says whom it served.

use std::io::{Read, Write};
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::process::Stdio;

use fief_bpf::abi;
use fief_testkit::{Client, Family, Feature, Nginx, NginxConfig, Process, require, require_if, wait_until};
use fief_tests_netns::front::{Door, Front, anywhere, plain, ready};
use fief_tests_netns::{NEVER_OVERLOADED, SOON, connect_from, one_installation};

/// Balancers are 10.77.1.x.
const POLICY: &str = r#"
[container.web]
[container."web/images"]
[listener.plain]
address = "0.0.0.0:80"
queue = false
proxy = { from = ["10.77.1.0/24"] }
[[listener.plain.client]]
from = ["any"]
container = "web"
[[listener.plain.request]]
path = "/secret/*"
refuse = "reset"
[[listener.plain.request]]
path = "*.png"
container = "web/images"
"#;

const STREAM_MODULE: &str = "/usr/lib/nginx/modules/ngx_stream_module.so";

/// Where balancers listen, in the clients' namespace.
const AT: &str = "127.0.0.1:8080";

/// Who asks a balancer.
const ASKER: &str = "127.0.0.9:0";

fn wants_head() -> NginxConfig {
    let more = "location / { return 200 \"$uri for $proxy_protocol_addr\\n\"; }\nkeepalive_requests 1000;";
    NginxConfig::listening(81, &["80 proxy_protocol", "81"], 1, more).unwrap()
}

struct Balancer {
    _process: Process,
    _folder: tempfile::TempDir,
}

impl Balancer {
    fn start(front: &Front, program: &str, flag: &str, config: &str) -> Self {
        let folder = tempfile::Builder::new().prefix("ff-balancer-").tempdir().unwrap();
        let file = folder.path().join("config");
        std::fs::write(&file, config.replace("FOLDER", folder.path().to_str().unwrap())).unwrap();
        let mut command = front.topology.clients.command(program);
        command.arg(flag).arg(&file).stdout(Stdio::null()).stderr(Stdio::null());
        let balancer = Self { _process: Process::start(command).unwrap(), _folder: folder };
        wait_until(SOON, || connect(front).is_some()).unwrap_or_else(|_| panic!("{program} does not listen"));
        balancer
    }

    fn haproxy(front: &Front, mode: &str, version: &str) -> Self {
        let config = format!(
            "global\n nbthread 1\ndefaults\n mode {mode}\n timeout connect 5s\n timeout client 20s\n timeout server 20s\n retries 0\n\
             listen l\n bind {AT}\n server s 10.77.0.1:80 source 10.77.1.5 {version}\n"
        );
        Self::start(front, "haproxy", "-f", &config)
    }

    fn nginx(front: &Front) -> Self {
        let config = format!(
            "load_module {STREAM_MODULE};\ndaemon off;\nworker_processes 1;\npid FOLDER/pid;\nerror_log FOLDER/log;\n\
             events {{}}\nstream {{ server {{ listen {AT}; proxy_pass 10.77.0.1:80; proxy_bind 10.77.1.6; \
             proxy_protocol on; }} }}\n"
        );
        Self::start(front, "nginx", "-c", &config)
    }
}

fn connect(front: &Front) -> Option<TcpStream> {
    connect_from(&front.topology.clients, ASKER.parse().unwrap(), AT.parse().unwrap()).ok()
}

fn request(path: &str) -> String {
    format!("GET {path} HTTP/1.1\r\nHost: server\r\n\r\n")
}

/// What a balancer says for a server that resets; it keeps its client's connection then.
const BAD_GATEWAY: &str = "HTTP/1.1 502";

/// Asks for these one after the other on one connection; what was served.
fn ask(stream: &mut TcpStream, paths: &[&str]) -> String {
    let (mut all, mut buffer) = (String::new(), [0; 4096]);
    for path in paths {
        let wanted = format!("{path} for ");
        if stream.write_all(request(path).as_bytes()).is_err() {
            return all;
        }
        while !all.contains(&wanted) {
            match stream.read(&mut buffer) {
                Ok(0) | Err(_) => return all,
                Ok(length) => all.push_str(&String::from_utf8_lossy(&buffer[..length])),
            }
            if all.contains(BAD_GATEWAY) {
                return all;
            }
        }
    }
    all
}

/// Rules hold behind the head, for first requests and for later ones.
fn is_ruled(front: &Front, what: &str) {
    let before = front.verdicts();
    let words = ask(&mut connect(front).unwrap(), &["/1", "/2.png", "/3"]);
    for path in ["/1", "/2.png", "/3"] {
        assert!(words.contains(&format!("{path} for 127.0.0.9")), "{what}: {words}: {:?}", front.verdicts());
    }
    let new = front.verdicts().since(&before);
    let images = new.all().iter().filter(|verdict| verdict.container == "web/images");
    assert!(front.is_counted(images.map(|verdict| verdict.count).sum(), 1), "{what}: {new:?}");
    for paths in [&["/secret/1"][..], &["/1", "/secret/2"]] {
        let before = front.verdicts();
        let words = ask(&mut connect(front).unwrap(), paths);
        assert!(!words.contains("/secret/"), "{what}: {words}: {:?}", front.verdicts().since(&before));
        // A balancer may try again.
        let refused = front.verdicts().since(&before).count(abi::FIEF_REQUEST_REFUSED);
        assert!(refused >= 1, "{what}: {:?}", front.verdicts().since(&before));
    }
}

/// Who is no balancer of the policy's sends such a head, or none.
fn is_unread_from_others(front: &Front) {
    let two = [&b"\r\n\r\n\0\r\nQUIT\n\x21\x11\0\x0c"[..], &[192, 0, 2, 1, 198, 51, 100, 1, 0xdc, 4, 0, 80]].concat();
    for head in [&b"PROXY TCP4 192.0.2.1 198.51.100.1 56324 80\r\n"[..], &two, b"PROXY UNKNOWN\r\n"] {
        let before = front.verdicts();
        let from: IpAddr = Client::Low.address(Family::V4, 1);
        let mut stream = connect_from(&front.topology.clients, (from, 0).into(), plain(Family::V4)).unwrap();
        let _ = stream.write_all(&[head, request("/1").as_bytes()].concat());
        let mut words = String::new();
        let _ = stream.read_to_string(&mut words);
        assert_eq!(words, "", "{head:?}");
        let new = front.verdicts().since(&before);
        assert!(front.is_counted(new.count(abi::FIEF_REFUSED_PROXY), 1), "{head:?}: {new:?}");
    }
}

fn served(front: &Front) -> Nginx {
    Nginx::start_with(&front.topology.server, wants_head()).unwrap()
}

#[test]
fn rules_hold_behind_the_heads_of_haproxy() {
    if !(ready() && require(Feature::Nginx) && require(Feature::Haproxy)) {
        return;
    }
    let _one = one_installation();
    for door in Door::GUARDS {
        let front = Front::new(door, POLICY);
        let _server = served(&front);
        for mode in ["tcp", "http"] {
            for version in ["send-proxy", "send-proxy-v2", "send-proxy-v2-ssl-cn proxy-v2-options crc32c,unique-id"] {
                let _balancer = Balancer::haproxy(&front, mode, version);
                is_ruled(&front, &format!("{door:?}, {mode}, {version}"));
            }
        }
        is_unread_from_others(&front);
    }
}

#[test]
fn rules_hold_behind_the_heads_of_nginx() {
    let _one = one_installation();
    let has_stream = std::path::Path::new(STREAM_MODULE).exists();
    if !(ready() && require(Feature::Nginx) && require_if("nginx-stream", has_stream, false)) {
        return;
    }
    for door in Door::GUARDS {
        let front = Front::new(door, POLICY);
        let _server = served(&front);
        let _balancer = Balancer::nginx(&front);
        is_ruled(&front, &format!("{door:?}, nginx"));
        is_unread_from_others(&front);
    }
}

/// Below the level of admission: the head comes to a socket that is there, or to a handshake that the kernel keeps.
#[test]
fn rules_hold_behind_heads_where_the_kernel_makes_the_connection() {
    if !(ready() && require(Feature::Nginx) && require(Feature::Haproxy)) {
        return;
    }
    let _one = one_installation();
    let policy = NEVER_OVERLOADED.to_owned() + &POLICY.replace("proxy =", "admit-from = \"overloaded\"\nproxy =");
    for door in Door::GUARDS {
        let front = Front::new(door, &policy);
        let _server = served(&front);
        for (mode, version) in [("tcp", "send-proxy"), ("http", "send-proxy-v2")] {
            let _balancer = Balancer::haproxy(&front, mode, version);
            // head and request come in two segments, now and then in one batch with the end of the handshake
            for _ in 0..3 {
                is_ruled(&front, &format!("{door:?}, {mode}, {version}"));
            }
        }
        is_unread_from_others(&front);
    }
}

/// A balancer's health checks: HAProxy's own command LOCAL, and a connection without any request.
#[test]
fn health_checks_of_a_balancer_pass() {
    if !(ready() && require(Feature::Nginx) && require(Feature::Haproxy)) {
        return;
    }
    let _one = one_installation();
    for door in Door::GUARDS {
        let front = Front::new(door, POLICY);
        let _server = served(&front);
        for version in ["send-proxy", "send-proxy-v2"] {
            let checks =
                format!("{version} check check-send-proxy inter 100ms fall 1 rise 1\n option httpchk GET /health");
            let before = front.verdicts();
            let _balancer = Balancer::haproxy(&front, "http", &checks);
            let new = || front.verdicts().since(&before);
            wait_until(SOON, || new().count(abi::FIEF_REQUEST_CLIENT) >= 3)
                .unwrap_or_else(|_| panic!("{door:?}, {version}: {:?}", new()));
            // a check that the machine did not run in time takes the server out until the next one
            wait_until(SOON, || ask(&mut connect(&front).unwrap(), &["/1"]).contains("/1 for "))
                .unwrap_or_else(|_| panic!("{door:?}, {version}: {:?}", new()));
        }
    }
}

/// Who shares a balancer's machine reaches the server with an address of its own.
#[test]
fn a_client_without_a_head_is_ruled_as_ever() {
    if !(ready() && require(Feature::Nginx)) {
        return;
    }
    let _one = one_installation();
    let front = Front::new(Door::Own, POLICY);
    let _server = served(&front);
    let to: SocketAddr = plain(Family::V4);
    let mut stream = connect_from(&front.topology.clients, anywhere(Family::V4), to).unwrap();
    assert_eq!(ask(&mut stream, &["/secret/1"]), "");
    let refused = front.verdicts().count(abi::FIEF_REQUEST_REFUSED);
    assert!(front.is_counted(refused, 1), "{:?}", front.verdicts());
}
