// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The checked model of a policy: plain data with defaults filled in and units resolved.
//!
//! A value from [`parse`](crate::parse) holds all the rules of `docs/policy.md`; one that was built by hand holds what
//! its builder saw to.

use std::net::SocketAddr;

use ipnet::IpNet;
use serde::Serialize;

/// A whole policy file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Policy {
    pub version: u32,
    pub mode: Mode,
    /// Every path, the implied parents too, parents before their children, otherwise in the order of the file.
    pub containers: Vec<Container>,
    /// In the order of the file; the position is the listener's index in the kernel.
    pub listeners: Vec<Listener>,
}

impl Policy {
    /// The container of that path.
    pub fn container(&self, path: &str) -> Option<&Container> {
        self.containers.iter().find(|container| container.path == path)
    }

    /// The listener of that name.
    pub fn listener(&self, name: &str) -> Option<&Listener> {
        self.listeners.iter().find(|listener| listener.name == name)
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum Mode {
    #[default]
    Enforce,
}

/// A resource principal.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Container {
    /// Components joined by `/`, the topmost first.
    pub path: String,
    pub cpu: Cpu,
    /// Bytes; 0: no limit.
    pub memory_max: u64,
    pub network: Network,
    /// At its end, the usage is added to the parent's.
    pub pass_up: bool,
    /// Most containers below this one; 0: no limit of its own.
    pub descendants_max: u32,
}

impl Container {
    /// A container with the defaults of every attribute.
    pub fn new(path: impl Into<String>) -> Self {
        Self {
            path: path.into(),
            cpu: Cpu::default(),
            memory_max: 0,
            network: Network::default(),
            pass_up: false,
            descendants_max: 0,
        }
    }

    /// Path of the parent; none: it stands right below the root.
    pub fn parent(&self) -> Option<&str> {
        self.path.rsplit_once('/').map(|(parent, _)| parent)
    }

    /// Last component of the path.
    pub fn name(&self) -> &str {
        self.path.rsplit('/').next().unwrap_or(&self.path)
    }

    /// Levels below the root, from 1.
    pub fn depth(&self) -> usize {
        self.path.split('/').count()
    }
}

/// Shares and limits are parts per million of the whole machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Cpu {
    /// Guaranteed; 0: nothing. A parent that names no share of its own has the sum of its children's.
    pub share_ppm: u32,
    /// At most; 0: no limit.
    pub limit_ppm: u32,
    /// Among siblings, 1 to 10,000.
    pub weight: u32,
    /// Higher goes first; 0: only when nothing else wants the CPU; at most 65,535.
    pub priority: u32,
}

impl Default for Cpu {
    fn default() -> Self {
        Self { share_ppm: 0, limit_ppm: 0, weight: 100, priority: 100 }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Network {
    /// Bits per second; 0: no limit.
    pub max_bits: u64,
    /// Among siblings, 1 to 10,000.
    pub weight: u32,
}

impl Default for Network {
    fn default() -> Self {
        Self { max_bits: 0, weight: 100 }
    }
}

/// An address that a server listens on, and the classes of its clients.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Listener {
    pub name: String,
    /// `0.0.0.0`: every IPv4 address; `[::]`: every address of both families, except where another listener is more
    /// exact. Never an IPv4-mapped IPv6 address.
    pub address: SocketAddr,
    pub serve: Serve,
    /// First match wins; the last one matches every client.
    pub clients: Vec<Client>,
}

/// How the classes of a listener reach the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Serve {
    /// One listening socket for all classes: they are told apart for accounting only.
    Shared,
    /// A listening socket for each class behind the server's one descriptor.
    Shim,
    /// A copy of the server for each class.
    CopiesPerClass,
}

/// A rule: whose connections belong to which container.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Client {
    pub from: From,
    pub container: String,
    pub accept: AcceptOrder,
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
