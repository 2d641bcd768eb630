// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A server under a policy with lanes, and clients of three classes.
#![allow(dead_code, reason = "each test program takes what it needs")]

use std::io::{Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};

use fief::Usage;
use fief_control::LaneView;
use fief_testkit::segment::{SYN, Segment, frame};
use fief_testkit::{Client, Family, Mac, PacketSender, Process, Topology, wait_until};
use fief_tests_netns::{Installation, SOON, Setup, connect_once_served};

pub const PORT: u16 = 8080;

/// No listener of the policy.
pub const OTHER_PORT: u16 = 8081;

/// Three classes of clients, over both families.
pub fn policy(when: &str) -> String {
    let mut text = "version = 1\n[container.shop]\n[container.\"shop/high\"]\ncpu.priority = 200\n\
                    [container.\"shop/low\"]\ncpu.priority = 50\n[container.\"shop/idle\"]\ncpu.priority = 0\n"
        .to_owned();
    for (name, address, family) in [("four", "0.0.0.0:8080", Family::V4), ("six", "[fd77::1]:8080", Family::V6)] {
        let (high, idle) = (Client::High.prefix(family), Client::Middle.prefix(family));
        text += &format!(
            "[listener.{name}]\naddress = \"{address}\"\nclasses = \"listeners\"\n[listener.{name}.lrp]\nwhen = \"{when}\"\n\
             [[listener.{name}.client]]\nfrom = [\"{high}\"]\ncontainer = \"shop/high\"\n\
             [[listener.{name}.client]]\nfrom = [\"{idle}\"]\ncontainer = \"shop/idle\"\n\
             [[listener.{name}.client]]\nfrom = [\"any\"]\ncontainer = \"shop/low\"\n"
        );
    }
    text
}

/// Takes what each client sends, to its end, and answers with one byte.
pub fn serve() {
    let places = [(Family::V4, PORT), (Family::V6, PORT), (Family::V4, OTHER_PORT)];
    let listeners = places.map(|(family, port)| {
        let listener = TcpListener::bind(Topology::server_address(family, port)).unwrap();
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let mut stream = stream.unwrap();
                std::thread::spawn(move || {
                    let mut buffer = vec![0; 65536];
                    while stream.read(&mut buffer).is_ok_and(|length| length > 0) {}
                    let _ = stream.write_all(b".");
                });
            }
        })
    });
    for listener in listeners {
        listener.join().unwrap();
    }
}

pub struct Stage {
    pub topology: Topology,
    pub installation: Installation,
    _server: Process,
}

impl Stage {
    /// A server under a policy with lanes; `name` is the test's, which plays the server too.
    pub fn new(name: &str, when: &str) -> Self {
        let topology = Topology::new().unwrap();
        let policy = policy(when);
        let setup = Setup { policy: &policy, home: "shop", follow: true, ..Setup::default() };
        let installation = topology.server.run(|| Installation::with(&setup)).unwrap();
        let mut part = installation.part(Some(&installation.cgroup()), name, "server");
        topology.server.enter(&mut part);
        let server = Process::start(part).unwrap();
        Self { topology, installation, _server: server }
    }

    pub fn connect(&self, family: Family, from: IpAddr, port: u16) -> TcpStream {
        connect_once_served(&self.topology.clients, (from, 0).into(), Topology::server_address(family, port))
    }

    /// Sends `bytes` and waits until the server has them.
    pub fn upload(&self, family: Family, class: Client, port: u16, bytes: usize) {
        let mut stream = self.connect(family, class.address(family, 1), port);
        send_all(&mut stream, bytes);
        stream.shutdown(std::net::Shutdown::Write).unwrap();
        assert_eq!(stream.read(&mut [0; 2]).unwrap(), 1);
    }

    /// Sends each frame once from the clients' end of the link, as fast as it takes them.
    pub fn flood(&self, frames: &[Vec<u8>]) {
        let sender = self.topology.clients.run(|| PacketSender::open(Topology::CLIENTS)).unwrap().unwrap();
        let mut rest = frames;
        while !rest.is_empty() {
            rest = &rest[sender.send(rest).unwrap()..];
        }
    }

    /// First segments of connections from different ports and addresses of a class.
    pub fn syns(&self, family: Family, class: Client, count: usize) -> Vec<Vec<u8>> {
        let [server, clients] = [self.topology.link.near_mac, self.topology.link.far_mac].map(Mac::octets);
        let destination = Topology::server_address(family, PORT);
        let syn = |n: usize| {
            let source = SocketAddr::new(class.address(family, (n % 250 + 1) as u8), (1024 + n / 250 % 60_000) as u16);
            frame(server, clients, &[], &Segment::new(source, destination, SYN).packet())
        };
        (0..count).map(syn).collect()
    }

    pub fn lane(&self, container: &str) -> LaneView {
        let lanes = self.installation.fief().lanes().unwrap();
        lanes.into_iter().find(|lane| lane.container == container).unwrap_or_else(|| panic!("no lane of {container}"))
    }

    pub fn thread(&self, container: &str) -> i32 {
        self.lane(container).thread.expect("a lane has a thread")
    }

    /// Waits until a lane is empty; how it is then.
    pub fn settled(&self, container: &str) -> LaneView {
        let empty = || self.lane(container).entered == self.lane(container).left;
        wait_until(SOON, empty).unwrap_or_else(|e| panic!("{e}: {:?}", self.lane(container)));
        self.lane(container)
    }

    pub fn receive_ns(&self, container: &str) -> u64 {
        self.usage(container).receive_ns
    }

    /// What a hypervisor took so far, as far as it is known.
    pub fn stolen_ns(&self) -> u64 {
        self.usage("steal").cpu_ns()
    }

    fn usage(&self, container: &str) -> Usage {
        let snapshot = self.installation.fief().snapshot().unwrap();
        snapshot.containers.iter().find(|c| c.path == container).unwrap().usage
    }
}

/// Nice value and scheduling policy of a thread.
pub fn scheduling(thread: i32) -> (i32, i32) {
    let stat = std::fs::read_to_string(format!("/proc/{thread}/stat")).unwrap();
    let fields: Vec<_> = stat.rsplit_once(") ").unwrap().1.split(' ').collect();
    (fields[16].parse().unwrap(), fields[38].parse().unwrap())
}

pub fn send_all(stream: &mut TcpStream, bytes: usize) {
    let block = vec![7; 65536];
    for _ in 0..bytes.div_ceil(block.len()) {
        stream.write_all(&block).unwrap();
    }
}
