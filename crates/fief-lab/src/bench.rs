// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Where servers and their clients are: at the two ends of the testbed's link, or, in an emulated machine, on one loopback.
//!
//! That machine has one CPU, so that there is nothing for a link to keep apart; and Debian's newest kernels have no pair of links
//! in the image itself.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use fief_testkit::{Client, Family, NetNs, Topology, set_fifo, set_other};

use crate::error::Result;
use crate::load::Load;
use crate::vm;

/// Real-time priority of clients, and of who measures, on that one CPU.
const FIFO: i32 = 40;

#[derive(Debug)]
pub enum Bench {
    Link(Box<Topology>),
    Loopback(NetNs),
}

impl Bench {
    pub fn new() -> Result<Bench> {
        match vm::is_inside() {
            true => Ok(Bench::Loopback(NetNs::new("bench")?)),
            false => Ok(Bench::Link(Box::new(Topology::new()?))),
        }
    }

    /// The network namespace of the servers.
    pub fn servers(&self) -> &NetNs {
        match self {
            Bench::Link(topology) => &topology.server,
            Bench::Loopback(both) => both,
        }
    }

    /// That of the clients.
    pub fn clients(&self) -> &NetNs {
        match self {
            Bench::Link(topology) => &topology.clients,
            Bench::Loopback(both) => both,
        }
    }

    /// So many clients of a class with ten addresses, which ask for the path at this port again and again.
    pub fn load(&self, class: Client, clients: usize, port: u16, path: &str) -> Load {
        let (server, first, fifo): (SocketAddr, IpAddr, i32) = match self {
            Bench::Link(_) => (Topology::server_address(Family::V4, port), class.address(Family::V4, 1), 0),
            Bench::Loopback(_) => (([127, 0, 0, 1], port).into(), Ipv4Addr::new(127, 0, 1, 1).into(), FIFO),
        };
        Load { server, first, fifo, path: path.to_owned(), ..Load::of(class, 10, clients) }
    }

    /// On one CPU, this thread goes before the servers as long as the guard lives: the clients that it starts begin at once, and it
    /// looks at all clocks at one moment, however many others want the CPU.
    pub fn first(&self) -> Result<Option<First>> {
        match self {
            Bench::Link(_) => Ok(None),
            Bench::Loopback(_) => First::take().map(Some),
        }
    }
}

/// Of the thread that took it.
#[derive(Debug)]
pub struct First;

impl First {
    /// For what this thread starts too.
    pub fn take() -> Result<First> {
        set_fifo(0, FIFO)?;
        Ok(First)
    }
}

impl Drop for First {
    fn drop(&mut self) {
        let _ = set_other(0);
    }
}
