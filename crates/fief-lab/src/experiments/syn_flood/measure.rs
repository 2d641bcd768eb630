// SPDX-License-Identifier: Apache-2.0 OR MIT
//! One measurement: twenty well-behaved clients, and a flood beside them.

use super::stand::{SPOOFED, Stand};
use super::{Plan, Way};
use crate::error::Result;
use crate::flood::{Flood, Sent, Sources, request_sockets};
use crate::load::{Load, Seen};
use crate::noise::{Noise, Snapshot};
use fief_testkit::{Client, Topology};
use serde_json::{Value, json};
use std::fmt;
use std::time::Duration;

const CLIENTS: u8 = 20;

/// Routed to the clients' host, which has no host in it that the server knows.
pub const FOREIGN: Sources = Sources::new([10, 88, 0, 0], 16);
/// Where the well-behaved clients are.
const AMONG: Sources = Sources::new([10, 77, 2, 0], 24);

/// Where the flood comes from, and its SYNs a second.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Attack {
    None,
    /// One foreign prefix, a /16.
    Prefix(u32),
    /// Addresses of a /10, each of which sends less than one SYN a second.
    Anywhere(u32),
    /// Addresses of the clients' own /24, theirs among them.
    AmongClients(u32),
}

impl Attack {
    pub fn per_second(self) -> u32 {
        match self {
            Attack::None => 0,
            Attack::Prefix(rate) | Attack::Anywhere(rate) | Attack::AmongClients(rate) => rate,
        }
    }

    fn name(self) -> &'static str {
        match self {
            Attack::None => "none",
            Attack::Prefix(_) => "prefix",
            Attack::Anywhere(_) => "anywhere",
            Attack::AmongClients(_) => "among-clients",
        }
    }

    pub fn flood(self, topology: &Topology, seconds: f64) -> Option<Flood> {
        let sources = match self {
            Attack::None => return None,
            Attack::Prefix(_) => FOREIGN,
            Attack::Anywhere(_) => SPOOFED,
            Attack::AmongClients(_) => AMONG,
        };
        Some(Flood::of(topology, sources, f64::from(self.per_second()), seconds))
    }
}

impl fmt::Display for Attack {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let thousands = self.per_second() / 1000;
        match self {
            Attack::None => write!(f, "no flood"),
            Attack::Prefix(_) => write!(f, "{thousands}k SYN/s from {FOREIGN}"),
            Attack::Anywhere(_) => write!(f, "{thousands}k SYN/s from {SPOOFED}"),
            Attack::AmongClients(_) => write!(f, "{thousands}k SYN/s among the clients"),
        }
    }
}

#[derive(Clone, Debug)]
pub struct Measurement {
    pub way: Way,
    pub attack: Attack,
    pub round: usize,
    pub seen: Seen,
    pub sent: Sent,
    /// Sockets that wait for the end of a handshake, at the end of the measurement.
    pub request_sockets: usize,
    pub noise: Noise,
}

impl Measurement {
    /// Under a flood the load's core has time left, or the clients were slow and not the server.
    pub fn is_server_bound(&self) -> bool {
        self.noise.is_disturbed() || self.noise.is_server_bound(Topology::server_cpu(), Topology::load_cpu())
    }

    /// Whether the flood was what it should have been.
    pub fn is_flooded(&self) -> bool {
        self.attack == Attack::None || self.sent.per_second() >= 0.95 * f64::from(self.attack.per_second())
    }

    pub fn to_json(&self) -> Value {
        json!({
            "experiment": "syn-flood",
            "way": self.way.title(),
            "attack": self.attack.name(),
            "syns_per_second": self.attack.per_second(),
            "round": self.round,
            "requests_per_second": self.seen.per_second(),
            "mean_us": self.seen.mean_us(),
            "stalls": self.seen.stalls,
            "errors": self.seen.errors,
            "sent_per_second": if self.attack == Attack::None { 0.0 } else { self.sent.per_second() },
            "request_sockets": self.request_sockets,
            "busy": self.noise.busy,
            "steal": self.noise.steal(),
            "foreign": self.noise.foreign,
        })
    }
}

pub fn measure(plan: &Plan, stand: &Stand, attack: Attack, round: usize) -> Result<Measurement> {
    let topology = &stand.topology;
    // Longer than needed: it is ended when everything was seen.
    let flood = attack.flood(topology, plan.warm_up + plan.seconds + 10.0);
    let flood = flood.map(|flood| flood.start(&topology.clients)).transpose()?;
    let load = load(plan).start(&topology.clients)?;
    std::thread::sleep(Duration::from_secs_f64(plan.warm_up + 0.1 * plan.seconds));
    let before = Snapshot::take();
    std::thread::sleep(Duration::from_secs_f64(plan.seconds * 0.8));
    let noise = before.until_now();
    let seen = load.finish()?;
    let request_sockets = request_sockets(&topology.server)?;
    let sent = flood.map(|flood| flood.end()).transpose()?.unwrap_or_default();
    Ok(Measurement { way: stand.way, attack, round, seen, sent, request_sockets, noise })
}

fn load(plan: &Plan) -> Load {
    Load { seconds: plan.seconds, warm_up: plan.warm_up, ..Load::of(Client::Low, CLIENTS, CLIENTS.into()) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use fief_testkit::Family;

    #[test]
    fn the_flood_among_the_clients_covers_their_addresses() {
        for n in [1, CLIENTS] {
            let address: std::net::Ipv4Addr =
                Client::Low.address(Family::V4, n).to_string().parse().expect("an address");
            assert_eq!(u32::from(address) >> 8, u32::from(AMONG.first) >> 8);
        }
    }
}
