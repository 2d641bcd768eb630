// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Rules hold before a server that listens with multipath TCP, as Go's net/http does unless told otherwise, whatever its
//! clients speak and whoever was there first: the server or the policy.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use fief_bpf::abi;
use fief_testkit::segment::{ACK, SYN, Segment};
use fief_testkit::{
    Family, Feature, ORDINARY_OPTIONS, Process, RawClients, RawConnection, Topology, require, run, wait_until,
};
use fief_tests_netns::front::{Door, Front, plain, ready};
use fief_tests_netns::{SOON, one_installation};

const POLICY: &str = r#"
[container.web]
[container."web/few"]
[listener.plain]
address = "[::]:80"
classes = "shared"
[[listener.plain.client]]
from = ["any"]
container = "web"
[[listener.plain.request]]
path = "/secret/*"
refuse = "503"
[[listener.plain.request]]
path = "/few/*"
container = "web/few"
rate = { per-second = 1, burst = 2 }
"#;

/// A kind-30 option that offers multipath TCP (RFC 8684 3.1: MP_CAPABLE, version 1, SHA-256).
const MULTIPATH: [u8; 4] = [30, 4, 0x01, 0x01];

fn has_go() -> bool {
    ready() && require(Feature::Go) && require(Feature::Python)
}

fn program() -> &'static Path {
    static BUILT: OnceLock<(tempfile::TempDir, PathBuf)> = OnceLock::new();
    let (_, program) = BUILT.get_or_init(|| {
        let folder = tempfile::tempdir().unwrap();
        let program = folder.path().join("web");
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/multipath/web.go");
        run(Command::new("go").args(["build", "-o"]).arg(&program).arg(source).env("CGO_ENABLED", "0")).unwrap();
        (folder, program)
    });
    program
}

struct Rig {
    front: Front,
    said: tempfile::NamedTempFile,
    _server: Process,
}

impl Rig {
    /// A server that starts before the policy comes into force, or after.
    fn new(door: Door, policy_first: bool) -> Self {
        let topology = Topology::new().unwrap();
        let said = tempfile::NamedTempFile::new().unwrap();
        let start = |mut command: Command| {
            command.arg("[::]:80").stdout(File::create(said.path()).unwrap()).env_remove("GODEBUG");
            Process::start(command).unwrap()
        };
        let listens = |topology: &Topology| {
            let connect = || std::net::TcpStream::connect("127.0.0.1:80").is_ok();
            wait_until(SOON, || topology.server.run(connect).unwrap()).unwrap();
        };
        if policy_first {
            let front = Front::at(door, POLICY, topology);
            let server = start(front.server_command(program().to_str().unwrap()));
            listens(&front.topology);
            return Self { front, said, _server: server };
        }
        let server = start(topology.server.command(program()));
        listens(&topology);
        Self { front: Front::at(door, POLICY, topology), said, _server: server }
    }

    /// What the server has seen: connections, and the paths of requests.
    fn seen(&self) -> (usize, Vec<String>) {
        let text = std::fs::read_to_string(self.said.path()).unwrap();
        let paths = text.lines().filter_map(|line| line.strip_prefix("request ").map(str::to_owned)).collect();
        (text.lines().filter(|line| *line == "connection").count(), paths)
    }

    fn ask(&self, protocol: &str, family: Family, pieces: &[&str]) -> String {
        let client = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/multipath/client.py");
        let host = plain(family).ip().to_string();
        let mut command = self.front.topology.clients.command("python3");
        run(command.arg(client).args([protocol, &host]).args(pieces)).unwrap().trim().to_owned()
    }
}

fn everywhere(check: impl Fn(&Rig)) {
    for door in Door::GUARDS {
        for policy_first in [true, false] {
            eprintln!("{door:?}, the policy first: {policy_first}");
            check(&Rig::new(door, policy_first));
        }
    }
}

#[test]
fn refusals_and_rates_hold_for_first_and_later_requests() {
    if !has_go() {
        return;
    }
    let _one = one_installation();
    let get = |path: &str| format!("GET {path} HTTP/1.1\\r\\nHost: a\\r\\n\\r\\n");
    everywhere(|rig| {
        for family in [Family::V4, Family::V6] {
            for protocol in ["tcp", "mptcp"] {
                let ask = |pieces: &[&str]| rig.ask(protocol, family, pieces);
                let (fine, secret, few) = (get("/fine"), get("/secret/1"), get("/few/1"));
                let case = format!("{family:?}, {protocol}");
                assert_eq!(ask(&[&fine, "+", &fine, "+"]), "200 200", "{case}");
                assert_eq!(ask(&[&secret, "+"]), "503", "{case}");
                assert_eq!(ask(&[&fine, "+", &secret, "+"]), "200 503", "{case}");
                assert_eq!(ask(&["GET /sec", "ret/1 HTTP/1.1\\r\\nHost: a\\r\\n\\r\\n", "+"]), "503", "{case}");
                assert_eq!(
                    ask(&["GET /fi", "ne HTTP/1.1\\r\\nHost: a\\r\\n\\r\\n", "+", &fine, "+"]),
                    "200 200",
                    "{case}"
                );
                let many: Vec<&str> = (0..8).flat_map(|_| [few.as_str(), "+"]).collect();
                assert!(ask(&many).contains("503"), "{case}");
            }
        }
        let (_, paths) = rig.seen();
        assert!(paths.iter().all(|path| !path.contains("secret")), "{paths:?}");
        assert!(rig.front.verdicts().count(abi::FIEF_REQUEST_REFUSED) >= 12);
    });
}

#[test]
fn the_first_bytes_may_end_the_handshake() {
    if !has_go() {
        return;
    }
    let _one = one_installation();
    everywhere(|rig| {
        let clients = RawClients::new(&rig.front.topology).unwrap();
        for (port, options) in [(3000, &ORDINARY_OPTIONS[..]), (3001, &[&ORDINARY_OPTIONS[..], &MULTIPATH].concat())] {
            for (n, path, expected) in [(0, "/secret/1", "HTTP/1.1 503"), (2, "/fine", "HTTP/1.1 200")] {
                let ends = [(RawClients::address(Family::V4, 5), port + n).into(), plain(Family::V4)];
                let mut connection =
                    RawConnection::open(&clients, ends, 77, options, SOON).unwrap().expect("a SYN-ACK");
                assert_eq!(connection.greeting.option(30), None, "one path only");
                let request = format!("GET {path} HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n").into_bytes();
                let (words, _) =
                    connection.converse(&request, std::slice::from_ref(&(0..request.len())), SOON).unwrap();
                let words = String::from_utf8_lossy(&words).into_owned();
                assert!(words.starts_with(expected), "{path}: {words}");
            }
        }
    });
}

#[test]
fn a_connection_that_asks_nothing_is_kept_from_the_server_where_the_kernel_answers() {
    if !has_go() {
        return;
    }
    let _one = one_installation();
    for policy_first in [true, false] {
        let rig = Rig::new(Door::Kernel, policy_first);
        wait_until(SOON, || rig.seen().0 > 0).unwrap(); // the one that asked whether it listens
        let before = rig.seen().0;
        let clients = RawClients::new(&rig.front.topology).unwrap();
        for port in 4000..4010u16 {
            let ends = [(RawClients::address(Family::V4, 5), port).into(), plain(Family::V4)];
            let open = RawConnection::open(&clients, ends, 77, &ORDINARY_OPTIONS, SOON).unwrap();
            open.expect("a SYN-ACK").acknowledge().unwrap();
            assert_eq!(rig.front.sockets(port), [""; 0]);
        }
        // what comes later is there: the server has seen all that it will see
        assert_eq!(rig.ask("tcp", Family::V4, &["GET /fine HTTP/1.1\\r\\nHost: a\\r\\n\\r\\n", "+"]), "200");
        assert_eq!(rig.seen().0, before + 1);
    }
}

#[test]
fn who_makes_the_connections_is_said() {
    if !has_go() {
        return;
    }
    let _one = one_installation();
    let rig = Rig::new(Door::Own, true);
    let notes = || rig.front.installation().fief().front().unwrap().notes;
    let said = |notes: &[String]| notes.iter().any(|note| note.contains("not held") && note.contains("multipath TCP"));
    assert!(said(&rig.front.topology.server.run(notes).unwrap()), "{:?}", rig.front.topology.server.run(notes));
    let applied = rig.front.apply(POLICY).unwrap();
    assert!(said(&applied.notes), "{:?}", applied.notes);
    // whoever leaves the choice to Fief has them held
    let auto = format!("version = 1\n{POLICY}");
    let applied = rig.front.topology.server.run(|| rig.front.installation().apply(&auto).unwrap()).unwrap();
    assert!(applied.notes.iter().any(|note| note.contains("the kernel answers connection requests to plain")));
    assert_eq!(rig.front.topology.server.run(notes).unwrap(), [""; 0]);
    let cookies = || std::fs::read_to_string("/proc/sys/net/ipv4/tcp_syncookies").unwrap();
    assert_eq!(rig.front.topology.server.run(cookies).unwrap().trim(), "2");
}

/// A server of the kernel's that takes bytes with the connection request (TCP Fast Open).
fn fast_open(front: &Front, value: &str) -> Process {
    front.topology.server.sysctl("net.ipv4.tcp_fastopen", value).unwrap();
    let program = "import socket,sys\n\
        s=socket.socket(); s.setsockopt(1,2,1); s.setsockopt(6,23,64); s.bind(('0.0.0.0',80)); s.listen(64)\n\
        while True:\n c,_=s.accept(); c.settimeout(20)\n try:\n  print('bytes',c.recv(9999),flush=True)\n  \
        c.sendall(b'HTTP/1.1 200 OK\\r\\nContent-Length: 0\\r\\nConnection: close\\r\\n\\r\\n')\n except OSError: pass\n c.close()\n";
    let mut command = front.server_command("python3");
    command.args(["-c", program]);
    let server = Process::start(command).unwrap();
    let there = || front.topology.server.run(|| std::net::TcpStream::connect("127.0.0.1:80").is_ok()).unwrap();
    wait_until(SOON, there).unwrap();
    server
}

#[test]
fn bytes_that_come_with_the_connection_request_are_ruled_too() {
    if !(ready() && require(Feature::Python)) {
        return;
    }
    let _one = one_installation();
    let request = b"GET /secret/1 HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n";
    for door in Door::GUARDS {
        let front = Front::new(door, POLICY);
        let clients = RawClients::new(&front.topology).unwrap();
        // with the server's cookie, without any (0x200), for every listener (0x400)
        for (value, begin) in ["3", "515", "1027", "1539"].into_iter().zip((5000u16..).step_by(10)) {
            let _server = fast_open(&front, value);
            for port in begin..begin + 4 {
                let client = (RawClients::address(Family::V4, 7), port).into();
                let ends = [client, plain(Family::V4)];
                let before = front.verdicts();
                // a connection that the server closes first, so that its end is remembered (TIME_WAIT)
                let mut first = RawConnection::open(&clients, ends, 77, &ORDINARY_OPTIONS, SOON).unwrap().unwrap();
                first.acknowledge().unwrap();
                let fine = b"GET /fine HTTP/1.1\r\nHost: a\r\n\r\n";
                first.converse(fine, std::slice::from_ref(&(0..fine.len())), SOON).unwrap();
                let mut fin = first.segment(fief_testkit::segment::FIN | ACK, fine.len() as u32, b"");
                fin.acknowledgment = first.expected;
                clients.send(&fin).unwrap();
                let waits = || front.sockets(port) == ["06"];
                wait_until(SOON, waits).unwrap_or_else(|e| panic!("{e}: {:?}", front.sockets(port)));
                std::mem::forget(first); // its reset would end that
                let mut syn = Segment::new(client, ends[1], SYN);
                syn.sequence = 1 << 28;
                // timestamps that have gone on; a cookie request, or none
                syn.options = vec![2, 4, 5, 0xb4, 4, 2, 8, 10, 0, 0, 0x20, 0, 0, 0, 0, 0, 34, 2, 1, 1];
                syn.payload = request.to_vec();
                clients.send(&syn).unwrap();
                let answer = loop {
                    let segment = clients.receive(client, SOON).expect("a SYN-ACK");
                    if segment.has(SYN | ACK) {
                        break segment;
                    }
                };
                assert_eq!(answer.acknowledgment, syn.sequence + 1, "{door:?}, {value}: the bytes are to come again");
                // the bytes again, with the handshake's end
                let mut again = Segment { payload: request.to_vec(), ..Segment::new(client, ends[1], ACK) };
                again.sequence = syn.sequence + 1;
                again.acknowledgment = answer.sequence.wrapping_add(1);
                if let Some(stamp) = answer.option(8) {
                    again.options = [&[1, 1, 8, 10, 0, 0, 0x20, 1][..], &stamp[..4]].concat();
                }
                clients.send(&again).unwrap();
                let refused = || front.verdicts().since(&before).count(abi::FIEF_REQUEST_REFUSED) > 0;
                wait_until(SOON, refused).unwrap_or_else(|e| panic!("{door:?}, {value}: {e}"));
            }
        }
    }
}
