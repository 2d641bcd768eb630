// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Who may become the listener of a class, and who may reach one.

#[path = "steer/rig.rs"]
mod rig;

use std::mem::offset_of;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpStream};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use fief_bpf::{abi, word};
use fief_testkit::segment::{RST, SYN, Segment};
use fief_testkit::{Family, NetNs, ORDINARY_OPTIONS, RawClients, RawConnection, Topology, run};
use fief_tests_netns::{SOON, numbered_again, two_classes};
use libbpf_rs::MapHandle;
use rig::{PORT, Rig, high, low, ready};

/// Asks for class 0 of an address, as the shim does, and says how it went.
const ASK: &str = r#"
import errno, os, socket, struct, sys
uid, port = int(sys.argv[1]), int(sys.argv[2])
if uid:
    os.setresuid(uid, uid, uid)
s = socket.socket()
try:
    s.setsockopt(0x46696566, 12, struct.pack("I", 0))
    s.bind(("0.0.0.0", port))
    s.listen(16)
    print(s.getsockname()[0])
except OSError as e:
    print(errno.errorcode[e.errno])
"#;

fn ask(mut command: Command, uid: u32, port: u16) -> String {
    command.args(["-c", ASK, &uid.to_string(), &port.to_string()]);
    run(&mut command).unwrap().trim().to_owned()
}

#[test]
fn the_server_itself_may_add_a_listener_to_its_address() {
    if !ready() {
        return;
    }
    let rig = Rig::new(rig::POLICY);
    let _server = rig.server("blocking", "0.0.0.0", PORT);
    assert_eq!(ask(rig.command("python3"), 0, PORT), "127.0.0.1");
}

#[test]
fn another_user_may_not_take_connections_of_an_address() {
    if !ready() {
        return;
    }
    let rig = Rig::new(rig::POLICY);
    let _server = rig.server("blocking", "0.0.0.0", PORT);
    assert_eq!(ask(rig.command("python3"), 65534, PORT), "EACCES");
    assert_eq!(rig.registered().len(), 3);
}

/// Listens on an address of its own, then asks for a class of all addresses, in both families.
const SQUAT: &str = r#"
import errno, os, socket, struct, sys
uid, port = int(sys.argv[1]), int(sys.argv[2])
os.setresuid(uid, uid, uid)
own = socket.socket(socket.AF_INET6)
own.bind(("::1", port))
own.listen(16)
s = socket.socket(socket.AF_INET6)
try:
    s.setsockopt(0x46696566, 12, struct.pack("I", 0))
    s.bind(("::", port))
    s.listen(16)
    print("registered")
except OSError as e:
    print(errno.errorcode[e.errno])
"#;

#[test]
fn a_listener_on_one_address_gives_no_right_to_all() {
    if !ready() {
        return;
    }
    let rig = Rig::new(rig::POLICY);
    let _server = rig.server("blocking", "0.0.0.0", PORT);
    let mut command = rig.command("python3");
    command.args(["-c", SQUAT, "65534", &PORT.to_string()]);
    assert_eq!(run(&mut command).unwrap().trim(), "EACCES");
    assert_eq!(rig.registered().len(), 3);
}

#[test]
fn nobody_may_where_no_server_listens() {
    if !ready() {
        return;
    }
    let rig = Rig::new(rig::POLICY);
    assert_eq!(ask(rig.command("python3"), 0, PORT), "EACCES");
    assert_eq!(rig.registered(), []);
}

#[test]
fn nobody_may_on_an_address_that_the_policy_does_not_name() {
    if !ready() {
        return;
    }
    let rig = Rig::new(rig::POLICY);
    assert_eq!(ask(rig.command("python3"), 0, 9000), "EADDRNOTAVAIL");
}

#[test]
fn a_namespace_of_ones_own_gives_no_right_to_the_address() {
    if !ready() {
        return;
    }
    let rig = Rig::new(rig::POLICY);
    let elsewhere = NetNs::new("elsewhere").unwrap();
    let mut command = rig.installation.command("python3");
    elsewhere.enter(&mut command);
    assert_eq!(ask(command, 0, PORT), "EADDRNOTAVAIL");
}

/// Whoever may make namespaces gets the number of the policy's sooner or later, once that is gone.
#[test]
fn a_namespace_with_the_number_of_the_policys_gives_no_right_to_the_address() {
    if !ready() {
        return;
    }
    let rig = Rig::new(rig::POLICY);
    let again = numbered_again(|gone| drop(gone.run(|| rig.installation.apply(rig::POLICY).unwrap()).unwrap()));
    let mut command = rig.installation.command("python3");
    again.enter(&mut command);
    assert_eq!(ask(command, 0, PORT), "EADDRNOTAVAIL");
}

/// Where the class listeners are bound.
fn hidden(rig: &Rig) -> Vec<SocketAddr> {
    let text = run(Command::new("ss").args(["-N", rig.topology.server.name(), "-tlnH"])).unwrap();
    let hidden: Vec<SocketAddr> = text
        .lines()
        .filter_map(|line| line.split_whitespace().nth(3)?.parse().ok())
        .filter(|address: &SocketAddr| address.ip() == IpAddr::V4(Ipv4Addr::LOCALHOST))
        .collect();
    assert_eq!(hidden.len(), 3, "{text}");
    hidden
}

#[test]
fn the_wire_does_not_reach_a_hidden_listener() {
    if !ready() {
        return;
    }
    let front = "version = 1\n[front]\nhandshake = \"own\"";
    let guarded =
        rig::POLICY.replace("version = 1", front).replace("\"0.0.0.0:8080\"", "\"0.0.0.0:8080\"\nadmit = true");
    for policy in [rig::POLICY, &guarded] {
        let rig = Rig::new(policy);
        // even where addresses of the loopback are taken from the wire
        for interface in ["all", Topology::SERVER] {
            rig.topology.server.sysctl(&format!("net/ipv4/conf/{interface}/route_localnet"), "1").unwrap();
        }
        let _server = rig.server("blocking", "0.0.0.0", PORT);
        let clients = RawClients::new(&rig.topology).unwrap();
        let own = Topology::server_address(Family::V4, 0).ip();
        // Nobody listens there, so that the kernel refuses what comes. It answers in the order of the link: once it has refused what was
        // sent second, it has answered the first or never does. The address that they serve is answered by the door, which may be sooner.
        let refused = Topology::server_address(Family::V4, 9);
        for (n, address) in (1..).zip(hidden(&rig)) {
            for (port, ip) in (1024_u16..).zip([own, address.ip()]) {
                let from = |port: u16| SocketAddr::new(RawClients::address(Family::V4, n), port);
                let [client, marker] = [port, port + 1000].map(from);
                for (from, to) in [(client, SocketAddr::new(ip, address.port())), (marker, refused)] {
                    let mut syn = Segment::new(from, to, SYN);
                    syn.options = ORDINARY_OPTIONS.to_vec();
                    clients.send(&syn).unwrap();
                }
                let behind = clients.receive(marker, SOON).expect("the kernel refuses it");
                assert!(behind.has(RST), "{behind:?}");
                let answer = clients.receive(client, Duration::ZERO);
                assert!(answer.is_none_or(|answer| answer.has(RST)), "{ip}, port {}", address.port());
            }
        }
        let client: SocketAddr = (RawClients::address(Family::V4, 99), 1024).into();
        let served = Topology::server_address(Family::V4, PORT);
        let open = RawConnection::open(&clients, [client, served], 7, &ORDINARY_OPTIONS, SOON);
        assert!(open.unwrap().is_some(), "the address that they serve is open");
    }
}

#[test]
fn a_local_process_does_not_reach_a_hidden_listener() {
    if !ready() {
        return;
    }
    let rig = Rig::new(rig::POLICY);
    let mut server = rig.server("blocking", "0.0.0.0", PORT);
    server.go();
    let hidden = hidden(&rig);
    for address in hidden {
        let reached = rig
            .topology
            .server
            .run(|| TcpStream::connect_timeout(&address, Duration::from_millis(300)).map(drop))
            .unwrap();
        assert!(reached.is_err(), "{address}");
    }
    // The address that they serve is open to local processes too.
    let own = SocketAddr::from(([127, 0, 0, 1], PORT));
    rig.topology.server.run(|| TcpStream::connect_timeout(&own, Duration::from_secs(5)).map(drop)).unwrap().unwrap();
}

#[test]
fn the_home_of_a_copy_tells_its_class() {
    if !ready() {
        return;
    }
    let policy = two_classes("address = \"0.0.0.0:8080\"\ncopies = \"per-class\"");
    let rig = Rig::with_home(&policy, "shop/high");
    let other = rig.unit("shop/low");
    // The shim is not needed, and both bind the same address.
    let script = rig.script();
    let start = |mut command: Command| {
        command.arg(&script).args(["blocking", "0.0.0.0", &PORT.to_string()]).stderr(Stdio::inherit());
        rig::Server::start(command)
    };
    let mut copies = [start(rig.command("python3")), start(rig.command_in(&other, "python3"))];
    assert_eq!(rig.registered().len(), 2);
    copies.iter_mut().for_each(rig::Server::go);
    let connections = rig.connect(&[low(1), high(1)], Topology::server_address(Family::V4, PORT));
    assert_eq!(copies[0].served(1), [high(1)]);
    assert_eq!(copies[1].served(1), [low(1)]);
    for connection in connections {
        assert_eq!(connection.answer().address, Topology::server_address(Family::V4, PORT));
    }
}

/// Takes the running thread's record off the first CPU, over and over, as a switch does that no program saw.
fn forget_who_runs(cpus: &MapHandle, until: &AtomicBool) {
    while !until.load(Ordering::Relaxed) {
        word::store(cpus, &[0], offset_of!(abi::fief_cpu, has_task), 0).unwrap();
    }
}

#[test]
fn a_copy_has_its_class_though_its_cpu_missed_the_switch_to_it() {
    if !ready() {
        return;
    }
    let rig = Rig::with_home(&two_classes("address = \"0.0.0.0:8080\"\ncopies = \"per-class\""), "shop/high");
    let script = "import os, socket, sys\n\
        os.sched_setaffinity(0, {0})\n\
        got = set()\n\
        for _ in range(20000):\n    \
            s = socket.socket()\n    \
            s.bind(('0.0.0.0', int(sys.argv[1])))\n    \
            got.add(s.getsockname()[0])\n    \
            s.close()\n\
        print(*got)\n";
    let cpus = MapHandle::from_pinned_path(rig.installation.fief().pins().map("cpus")).unwrap();
    let done = AtomicBool::new(false);
    let bound = std::thread::scope(|scope| {
        scope.spawn(|| forget_who_runs(&cpus, &done));
        let bound = run(rig.command("python3").args(["-c", script, &PORT.to_string()]));
        done.store(true, Ordering::Relaxed);
        bound.unwrap()
    });
    assert_eq!(bound, "127.0.0.1\n", "the hidden address of its class, each time");
}

#[test]
fn a_copy_that_nobody_would_reach_is_refused_its_address() {
    if !ready() {
        return;
    }
    let rig = Rig::with_home(&two_classes("address = \"0.0.0.0:8080\"\ncopies = \"per-class\""), "shop/high");
    let script = "import errno, socket, sys\n\
        s = socket.socket(socket.AF_INET, socket.SOCK_STREAM, 262)\n\
        try: s.bind(('0.0.0.0', int(sys.argv[1]))); print('bound')\n\
        except OSError as e: print(errno.errorcode[e.errno])\n";
    let bind = |port: u16| run(rig.command("python3").args(["-c", script, &port.to_string()])).unwrap();
    // no listener of multipath TCP can be that of a class
    assert_eq!(bind(PORT), "EPROTONOSUPPORT\n");
    assert_eq!(bind(PORT + 1), "bound\n");
}
