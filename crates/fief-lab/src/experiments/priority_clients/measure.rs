// SPDX-License-Identifier: Apache-2.0 OR MIT
//! One measurement: the low clients and the high one against a running server.

use super::{Kind, Plan};
use crate::error::Result;
use crate::load::{Close, Load, Seen};
use crate::noise::{Noise, Snapshot};
use fief_testkit::{Client, Family, Topology};
use serde_json::{Value, json};

/// The high client pauses so long between two requests.
pub const THINK_US: u64 = 2000;

#[derive(Clone, Debug)]
pub struct Measurement {
    pub kind: Kind,
    pub low_clients: usize,
    pub round: usize,
    pub high: Seen,
    pub low: Seen,
    /// CPU that others used, as a part of one.
    pub foreign: f64,
    pub noise: Noise,
}

impl Measurement {
    pub fn is_disturbed(&self) -> bool {
        self.noise.is_disturbed()
    }

    /// With low clients the server's core must be the bottleneck.
    pub fn is_server_bound(&self) -> bool {
        self.low_clients < 5 || self.noise.is_server_bound(Topology::server_cpu(), Topology::load_cpu())
    }

    /// Requests a second of both classes.
    pub fn throughput(&self) -> f64 {
        let low = if self.low_clients == 0 { 0.0 } else { self.low.per_second() };
        self.high.per_second() + low
    }

    pub fn to_json(&self) -> Value {
        json!({
            "experiment": "priority-clients",
            "kind": self.kind.name(),
            "low_clients": self.low_clients,
            "round": self.round,
            "high_mean_us": self.high.mean_us(),
            "high_p99_us": self.high.p99_us(),
            "high_requests": self.high.latency.count(),
            "high_stalls": self.high.stalls,
            "requests_per_second": self.throughput(),
            "low_mean_us": self.low.mean_us(),
            "low_stalls": self.low.stalls,
            "errors": self.high.errors + self.low.errors,
            "busy": self.noise.busy,
            "steal": self.noise.steal,
            "foreign": self.foreign,
        })
    }
}

/// The load of one class of clients.
pub fn load_of(plan: &Plan, class: Client, clients: usize) -> Load {
    let is_high = class == Client::High;
    Load {
        server: Topology::server_address(Family::V4, 80),
        path: "/1k".to_owned(),
        seconds: plan.seconds,
        warm_up: plan.warm_up,
        first: class.address(Family::V4, 1),
        addresses: if is_high { 10 } else { 20 },
        clients,
        think_us: if is_high { THINK_US } else { 0 },
        close: Close::Rst,
        cpu: Topology::load_cpu(),
        // The load shares its core with the client whose time is measured; that one must not wait for it.
        fifo: if is_high { 40 } else { 0 },
        live_ms: 0,
    }
}

pub fn measure(plan: &Plan, topology: &Topology, kind: Kind, low_clients: usize, round: usize) -> Result<Measurement> {
    let low = match low_clients {
        0 => None,
        clients => Some(load_of(plan, Client::Low, clients).start(&topology.clients)?),
    };
    let high = load_of(plan, Client::High, 1).start(&topology.clients)?;
    std::thread::sleep(std::time::Duration::from_secs_f64(plan.warm_up));
    let before = Snapshot::take();
    // Before the loads end, so that their idle end does not count.
    std::thread::sleep(std::time::Duration::from_secs_f64(plan.seconds * 0.9));
    let noise = before.until_now();
    let high = high.finish()?;
    let low = low.map(|low| low.finish()).transpose()?.unwrap_or_default();
    Ok(Measurement { kind, low_clients, round, high, low, foreign: noise.foreign, noise })
}
