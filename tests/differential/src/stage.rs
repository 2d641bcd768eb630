// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Where it happens: servers in a namespace behind a policy that refuses one resource, clients in another one.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::net::SocketAddr;

use fief_testkit::{Family, Feature, Topology, TopologyOptions, require};
use fief_tests_netns::Installation;

use crate::server::{Kind, Server};

/// Which of a server's ports.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Port {
    /// Guarded; what is refused is reset.
    Reset = 1,
    /// Guarded; what is refused is answered 503.
    Unavailable = 2,
    /// No listener of the policy.
    Open = 3,
    /// Guarded, TLS; what is refused is reset.
    Tls = 4,
    /// TLS, no listener of the policy.
    TlsOpen = 5,
}

impl Port {
    pub const HTTP: [Port; 3] = [Port::Reset, Port::Unavailable, Port::Open];
    pub const GUARDED: [Port; 2] = [Port::Reset, Port::Unavailable];

    /// The same server without Fief.
    pub fn open(self) -> Port {
        if self >= Port::Tls { Port::TlsOpen } else { Port::Open }
    }
}

/// Where on a connection a case stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Position {
    First,
    /// After the answer to a first request.
    Later,
}

impl Position {
    pub const ALL: [Position; 2] = [Position::First, Position::Later];
}

#[derive(Debug)]
pub struct Stage {
    // Dropped in this order: what the installation attached must not outlive the namespace.
    _servers: Vec<Server>,
    installation: Installation,
    pub topology: Topology,
    pub kinds: Vec<Kind>,
    /// Requests wait in front of the servers.
    pub is_queued: bool,
}

impl Stage {
    /// With the servers that the machine has; `None`: it lacks what all need.
    pub fn new(kinds: Vec<Kind>) -> Option<Stage> {
        Stage::with(kinds, "")
    }

    /// The same, with requests that wait in front of the servers, which get one at once.
    pub fn queued(kinds: Vec<Kind>) -> Option<Stage> {
        Stage::with(kinds, "queue = { in-service = 1, wait = \"1m\" }\n")
    }

    fn with(kinds: Vec<Kind>, queue: &str) -> Option<Stage> {
        if ![Feature::NetNs, Feature::Cgroup2, Feature::Bpf, Feature::OpenSsl].into_iter().all(require)
            || kinds.is_empty()
        {
            return None;
        }
        let options = TopologyOptions { threaded: false, gro: true, ipv6: false };
        let topology = Topology::with(options).unwrap_or_else(|e| panic!("{e}"));
        let guard = || Installation::new(&policy(&kinds, queue), "web");
        let installation = topology.server.run(guard).unwrap_or_else(|e| panic!("{e}"));
        let start = |&kind: &Kind| {
            Server::start(kind, &topology.server, |program| {
                let mut command = installation.command(program);
                topology.server.enter(&mut command);
                command
            })
        };
        let servers = kinds.iter().map(start).collect();
        Some(Stage { _servers: servers, installation, topology, kinds, is_queued: !queue.is_empty() })
    }

    /// How often each verdict fell, by its word.
    pub fn verdicts(&self) -> BTreeMap<&'static str, u64> {
        let mut counts = BTreeMap::new();
        let front = self.installation.fief().front().unwrap_or_else(|e| panic!("{e}"));
        for verdict in front.verdicts {
            *counts.entry(verdict.reason.as_str()).or_default() += verdict.count;
        }
        counts
    }

    /// How many requests the servers got that had waited in front of them.
    pub fn waited(&self) -> u64 {
        let front = self.installation.fief().front().unwrap_or_else(|e| panic!("{e}"));
        front.queues.iter().flat_map(|queue| &queue.classes).map(|class| class.released).sum()
    }

    pub fn address(kind: Kind, port: Port) -> SocketAddr {
        Topology::server_address(Family::V4, kind.port(port))
    }
}

/// Two listeners for each server, which refuse the same resource in different ways, and one for its TLS. `queue` is what each
/// says of its queue, if it has one.
fn policy(kinds: &[Kind], queue: &str) -> String {
    let mut text = "version = 1\n[container.web]\n[container.\"web/rest\"]\n".to_owned();
    let heads = ["path = \"/secret*\"", "host = \"secret.example\"", "header = { X-Secret = \"yes\" }"];
    let hellos = ["server-name = \"secret.example\""];
    for kind in kinds {
        for (port, refuse, conditions) in
            [(Port::Reset, "reset", &heads[..]), (Port::Unavailable, "503", &heads), (Port::Tls, "reset", &hellos)]
        {
            let number = kind.port(port);
            let mut line = |words: String| writeln!(text, "{words}").expect("a String takes everything");
            line(format!("[listener.port-{number}]\naddress = \"0.0.0.0:{number}\"\n{queue}"));
            if kind.reads_bodies() {
                line("bodies = \"read\"".to_owned());
            }
            line(format!("[[listener.port-{number}.client]]\nfrom = [\"any\"]\ncontainer = \"web/rest\""));
            for condition in conditions {
                line(format!("[[listener.port-{number}.request]]\n{condition}\nrefuse = \"{refuse}\""));
            }
        }
    }
    text
}
