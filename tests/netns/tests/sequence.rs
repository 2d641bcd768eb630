// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A hundred thousand connections, a few at a time: each is served and counted once, and nothing is left of them.

use std::io::{Read, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpStream};

use fief_bpf::abi;
use fief_testkit::segment::{RST, Segment};
use fief_testkit::{Family, NetNs, RawClients, wait_until};
use fief_tests_netns::front::{Door, plain, ready};
use fief_tests_netns::rig::Rig;
use fief_tests_netns::{SOON, connect_from};
use nix::sys::socket::{
    AddressFamily, SockFlag, SockType, SockaddrStorage, bind, connect, setsockopt, socket, sockopt,
};
use std::os::fd::AsRawFd;

const POLICY: &str = r#"
[container.web]
[container."web/images"]
[listener.plain]
address = "[::]:80"
[[listener.plain.client]]
from = ["any"]
container = "web"
[[listener.plain.request]]
path = "/secret/*"
refuse = "503"
[[listener.plain.request]]
path = "*.png"
container = "web/images"
"#;

const AT_A_TIME: u32 = 4;

/// Through each door.
const CONNECTIONS: u32 = 50_000;

/// Each has a port of its own: from one that the server remembers (TIME_WAIT) the kernel makes the connection, refused or not.
const OF_ONE_ADDRESS: u32 = 12_500;

/// One connection and its request; its status.
fn visit(from: SocketAddr, to: SocketAddr, path: &str) -> std::io::Result<u16> {
    let fd = socket(AddressFamily::Inet, SockType::Stream, SockFlag::SOCK_CLOEXEC, None)?;
    setsockopt(&fd, sockopt::ReuseAddr, &true)?;
    bind(fd.as_raw_fd(), &SockaddrStorage::from(from))?;
    connect(fd.as_raw_fd(), &SockaddrStorage::from(to))?;
    let mut stream = TcpStream::from(fd);
    stream.set_read_timeout(Some(SOON))?;
    stream.write_all(format!("GET {path} HTTP/1.1\r\nConnection: close\r\n\r\n").as_bytes())?;
    let mut words = String::new();
    stream.read_to_string(&mut words)?;
    Ok(words.split(' ').nth(1).and_then(|word| word.parse().ok()).unwrap_or(0))
}

/// Every tenth request is refused, every other goes to another container.
fn visit_all(clients: &NetNs, worker: u32) {
    let paths = ["/secret/1", "/1.png", "/1", "/1.png", "/1", "/1.png", "/1", "/1.png", "/1", "/1"];
    let done = clients.run(|| {
        (0..CONNECTIONS / AT_A_TIME).find_map(|n| {
            let address = Ipv4Addr::new(10, 77, 1, (worker * 8 + n / OF_ONE_ADDRESS + 1) as u8);
            let path = paths[n as usize % paths.len()];
            let from = SocketAddr::new(IpAddr::V4(address), (10_000 + n % OF_ONE_ADDRESS) as u16);
            let status = visit(from, plain(Family::V4), path);
            let expected = if path.starts_with("/secret") { 503 } else { 200 };
            (!matches!(status, Ok(status) if status == expected)).then(|| format!("{n}: {path}: {status:?}"))
        })
    });
    assert_eq!(done.unwrap(), None);
}

fn ask(stream: &mut TcpStream, path: &str) -> String {
    stream.write_all(format!("GET {path} HTTP/1.1\r\n\r\n").as_bytes()).unwrap();
    let mut buffer = [0; 4096];
    let length = stream.read(&mut buffer).unwrap_or(0);
    String::from_utf8_lossy(&buffer[..length]).into_owned()
}

/// Resets as anybody can send them who knows the addresses of a connection, but none of its numbers: TCP goes on.
fn forge_resets(by: &RawClients, from: SocketAddr) {
    for high in 0..=255 {
        let mut reset = Segment::new(from, plain(Family::V4), RST);
        reset.sequence = high << 24;
        by.send(&reset).unwrap();
    }
}

#[test]
fn each_of_a_hundred_thousand_connections_is_ruled_once_and_nothing_is_left() {
    if !ready() {
        return;
    }
    for door in Door::GUARDS {
        let rig = Rig::new(door, POLICY);
        let containers = || rig.front.installation().fief().snapshot().unwrap().containers.len();
        let before = containers();
        let mut kept: Vec<TcpStream> = ["10.77.1.200:0", "10.77.1.201:0"]
            .map(|from| connect_from(&rig.front.topology.clients, from.parse().unwrap(), plain(Family::V4)).unwrap())
            .into();
        for stream in &mut kept {
            assert!(ask(stream, "/10").starts_with("HTTP/1.1 200"));
        }
        forge_resets(&rig.clients, kept[1].local_addr().unwrap());
        std::thread::scope(|scope| {
            for worker in 0..AT_A_TIME {
                let clients = &rig.front.topology.clients;
                scope.spawn(move || visit_all(clients, worker));
            }
        });
        let all = rig.verdicts();
        let refused = u64::from(CONNECTIONS / 10);
        let images = u64::from(CONNECTIONS) * 4 / 10;
        // A segment that is sent again before its answer comes is ruled again where there is no socket yet.
        let near = |count: u64, expected: u64| count >= expected && count <= expected + expected / 100;
        assert!(near(all.count(abi::FIEF_REQUEST_REFUSED), refused), "{door:?}: {all:?}");
        assert!(near(all.count(abi::FIEF_REQUEST_RULE), images), "{door:?}: {all:?}");
        assert!(near(all.count(abi::FIEF_SYN_TAKEN), u64::from(CONNECTIONS) + 2), "{door:?}: {all:?}");
        assert_eq!(rig.server.accepted(), u64::from(CONNECTIONS) - refused + 2, "{door:?}");
        assert_eq!(containers(), before, "{door:?}");
        // The connections of the begin are followed to their end.
        for stream in &mut kept {
            assert!(ask(stream, "/10").starts_with("HTTP/1.1 200"), "{door:?}");
            assert!(ask(stream, "/secret/1").starts_with("HTTP/1.1 503"), "{door:?}: {:?}", rig.verdicts());
        }
        drop(kept);
        let open = || {
            let sockets =
                rig.front.topology.server.run(|| std::fs::read_to_string("/proc/thread-self/net/tcp6")).unwrap();
            // established, closing, or a request
            sockets
                .unwrap()
                .lines()
                .filter(|line| [" 01 ", " 03 ", " 08 "].iter().any(|state| line.contains(state)))
                .count()
        };
        wait_until(SOON, || open() == 0).unwrap_or_else(|_| panic!("{door:?}: {} sockets", open()));
    }
}
