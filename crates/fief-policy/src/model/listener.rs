// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A listener of the checked model: where a server listens, the rules for its clients and requests, and what guards it.

use std::collections::BTreeSet;
use std::net::SocketAddr;

use ipnet::IpNet;
use serde::{Deserialize, Serialize};

use super::{Level, Mode};
use crate::fields::Unread;
use crate::request::Request;

/// An address that a server listens on, the classes of its clients, and what guards it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Listener {
    pub name: String,
    /// `0.0.0.0`: every IPv4 address; `[::]`: every address of both families, except where another listener is more
    /// exact. Never an IPv4-mapped IPv6 address.
    pub address: SocketAddr,
    /// The listener is for the ports from the address's to this one.
    pub last_port: u16,
    pub serve: Serve,
    pub mode: Mode,
    /// Its connections pass through this machine to others.
    pub forward: bool,
    /// Connections are kept from the server until their first bytes are there.
    pub admit: bool,
    pub admit_from: Level,
    /// The second and later requests of a connection are ruled too.
    pub later_requests: bool,
    /// The server reads the body of every request to its end, whatever the method: none is ruled as a request.
    pub bodies_read: bool,
    /// Of rules that refuse and name none; 0: none.
    pub penalty_ns: u64,
    /// Who never has a penalty here.
    pub penalty_except: Vec<IpNet>,
    pub isolate: Option<Isolate>,
    /// So long nobody may listen before connection requests are refused; 0: at once.
    pub restart_ns: u64,
    /// Connection requests that are answered to sources that have not returned a cookie yet.
    pub unproven: Option<SynRate>,
    /// Connection requests of each source that has.
    pub proven: Option<SynRate>,
    pub lrp: Option<Lrp>,
    /// Requests wait in front of the server.
    pub queue: Option<Queue>,
    /// What is refused of what cannot be read as a request, in the order of the kinds; the rest passes.
    pub unread_refused: Vec<Unread>,
    /// Peers whose connections begin with a PROXY head.
    pub proxies: Vec<IpNet>,
    /// First match wins; the last one matches every client.
    pub clients: Vec<Client>,
    /// First match wins; without a match the client's class stays.
    pub requests: Vec<Request>,
}

impl Listener {
    /// A listener that guards nothing, without rules.
    pub fn new(name: impl Into<String>, address: SocketAddr) -> Self {
        Self {
            name: name.into(),
            address,
            last_port: address.port(),
            serve: Serve::Shared,
            mode: Mode::Enforce,
            forward: false,
            admit: false,
            admit_from: Level::Always,
            later_requests: false,
            bodies_read: false,
            penalty_ns: 0,
            penalty_except: Vec::new(),
            isolate: None,
            restart_ns: 0,
            unproven: None,
            proven: None,
            lrp: None,
            queue: None,
            unread_refused: Vec::new(),
            proxies: Vec::new(),
            clients: Vec::new(),
            requests: Vec::new(),
        }
    }

    /// Every address and port that the listener is for.
    pub fn addresses(&self) -> impl Iterator<Item = SocketAddr> + use<> {
        let ip = self.address.ip();
        (self.address.port()..=self.last_port).map(move |port| SocketAddr::new(ip, port))
    }

    /// Whether clients of IPv4 reach it.
    pub fn has_ipv4(&self) -> bool {
        // at `[::]` too
        self.address.is_ipv4() || self.address.ip().is_unspecified()
    }

    /// Paths of the containers that its clients and requests can belong to.
    pub fn class_paths(&self) -> BTreeSet<&str> {
        let clients = self.clients.iter().map(|client| client.container.as_str());
        let requests = self.requests.iter().filter_map(|request| request.container.as_deref());
        let isolated = self.isolate.iter().filter_map(|isolate| isolate.into.as_deref());
        clients.chain(requests).chain(isolated).collect()
    }

    /// What its rules say of a class that waits.
    pub fn class_queue(&self, path: &str) -> ClassQueue {
        let clients = self.clients.iter().filter(|client| client.container == path).map(|client| client.queue);
        let is_its = |request: &&Request| request.container.as_deref() == Some(path);
        let requests = self.requests.iter().filter(is_its).map(|request| request.queue);
        clients.chain(requests).fold(ClassQueue::default(), ClassQueue::or)
    }

    /// Does anything stand before the server: admission, some limit of connection requests, or who waits for its start?
    pub fn is_guarded(&self) -> bool {
        self.admit || self.is_policed() || self.restart_ns > 0
    }

    /// Is anything refused here, always or above a rate?
    pub fn limits(&self) -> bool {
        self.is_policed() || self.requests.iter().any(|request| request.refusal.is_some() || request.rate.is_some())
    }

    /// Does the server's answer decide about what stands behind a request for another protocol: whether it is refused, or has turns?
    pub fn confirms_upgrades(&self) -> bool {
        let has_turns = self.queue.is_some_and(|queue| queue.turns);
        self.later_requests && (has_turns || self.unread_refused.contains(&Unread::Upgrade))
    }

    /// Are connection requests limited, by any rule or for all?
    pub fn is_policed(&self) -> bool {
        let limits_all = self.isolate.is_some() || self.unproven.is_some() || self.proven.is_some();
        let penalises = self.requests.iter().any(|request| request.penalty_ns > 0);
        limits_all || penalises || self.clients.iter().any(|client| client.syn.is_some())
    }
}

/// Sources that ask for too many connections are shut out, an IPv4 /24 or IPv6 /64 together.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Isolate {
    /// Connection requests a second.
    pub above: u32,
    pub for_ns: u64,
    pub when: Level,
    /// Not shut out, but of this class, which is served last.
    pub into: Option<String>,
    /// Who is never isolated.
    pub except: Vec<IpNet>,
}

/// Receive work in a thread of the class.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Lrp {
    pub when: Level,
}

/// Requests that wait in front of a server, in the order of their classes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Queue {
    /// Requests that the server has at once; `None`: Fief finds out how many.
    pub in_service: Option<u32>,
    pub until: Until,
    /// Most requests that wait.
    pub length: u32,
    /// Nobody waits longer.
    pub wait_ns: u64,
    /// The policy does not say how long: less while the line of a class stands, after it grew for a second.
    pub adapts: bool,
    /// So long a request that is not answered counts.
    pub stale_ns: u64,
    /// Where requests cannot be read, each turn of a client waits, and not its first alone.
    pub turns: bool,
    /// The clients of a class take turns, whatever each asks for.
    pub fair: bool,
    /// Most bytes for those that wait.
    pub memory: u64,
}

impl Default for Queue {
    fn default() -> Self {
        Self {
            in_service: None,
            until: Until::FirstByte,
            length: 10_000,
            wait_ns: 5_000_000_000,
            adapts: true,
            stale_ns: 2_000_000_000,
            turns: true,
            fair: false,
            memory: 32 << 20,
        }
    }
}

impl Queue {
    /// The longest wait while the line of a class stands, where the policy does not say how long.
    pub fn short_wait_ns(&self) -> u64 {
        self.wait_ns / 16
    }
}

/// How long the server has a request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Until {
    /// Of its answer.
    #[default]
    FirstByte,
    /// All of it has left, as far as that shows.
    Response,
    /// Of the connection, once the server has begun to answer.
    Close,
}

/// What a rule says of its class where the listener has a queue; `None`: what the queue says.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct ClassQueue {
    /// Most of its requests that wait.
    pub length: Option<u32>,
    pub wait_ns: Option<u64>,
    /// Of the queue's length, what no other class can take.
    pub reserve: Option<u32>,
}

impl ClassQueue {
    /// With what another rule says of the same class.
    pub fn or(self, other: Self) -> Self {
        Self {
            length: self.length.or(other.length),
            wait_ns: self.wait_ns.or(other.wait_ns),
            reserve: self.reserve.or(other.reserve),
        }
    }
}

/// Most connection requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SynRate {
    pub per_second: u32,
    /// As many at once.
    pub burst: u32,
    pub per: Per,
    pub when: Level,
    /// From these ports of the clients only, first and last; none: from all.
    pub from_port: Option<(u16, u16)>,
}

/// Whom a rate is for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Per {
    /// All that the rule matches, together.
    #[default]
    Rule,
    /// Each IPv4 address and IPv6 /64 for itself.
    Source,
}

/// How the classes of a listener reach the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Serve {
    /// One listening socket for all classes: a queue orders their requests, or nothing does.
    Shared,
    /// A listening socket for each class behind the server's one descriptor.
    Shim,
    /// A copy of the server for each class.
    CopiesPerClass,
}

/// A rule: whose connections belong to which container, and how many they may ask for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Client {
    pub from: From,
    pub container: String,
    pub accept: AcceptOrder,
    pub syn: Option<SynRate>,
    /// Of its class.
    pub queue: ClassQueue,
    /// Of the rate.
    pub mode: Mode,
}

impl Client {
    /// A rule without a rate.
    pub fn new(from: From, container: impl Into<String>) -> Self {
        let (accept, mode) = (AcceptOrder::Before, Mode::Enforce);
        Self { from, container: container.into(), accept, syn: None, queue: ClassQueue::default(), mode }
    }
}

/// Source addresses. An IPv4 prefix holds for IPv4-mapped addresses; an IPv6 prefix never does, however short it is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum From {
    /// Every address of both families.
    Any,
    In(Vec<IpNet>),
    #[serde(rename = "not_in")]
    NotIn(Vec<IpNet>),
}

/// Where the new connections of a class stand against those that are being served.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum AcceptOrder {
    #[default]
    Before,
    After,
}
