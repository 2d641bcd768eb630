// SPDX-License-Identifier: Apache-2.0 OR MIT
//! One measurement: the low clients and the high one against a running server.

use super::{Kind, Plan};
use crate::error::Result;
use crate::load::{Load, Seen};
use crate::noise::{Noise, Snapshot};
use fief_testkit::{Client, Topology};
use serde_json::{Value, json};
use std::time::Duration;

const LIVE_MS: u64 = 250;

#[derive(Clone, Debug)]
pub struct Measurement {
    pub kind: Kind,
    pub low_clients: usize,
    pub round: usize,
    pub high: Seen,
    pub low: Seen,
    pub noise: Noise,
}

impl Measurement {
    pub fn is_disturbed(&self) -> bool {
        self.noise.is_disturbed()
    }

    /// With low clients the server's core must be the bottleneck. While others take what the two cores have left, it
    /// cannot be told; those measurements are marked anyway.
    pub fn is_server_bound(&self) -> bool {
        self.low_clients < 5
            || self.is_disturbed()
            || self.noise.is_server_bound(Topology::server_cpu(), Topology::load_cpu())
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
            "others": self.low_clients,
            "round": self.round,
            "paying_mean_us": self.high.mean_us(),
            "paying_p99_us": self.high.p99_us(),
            "paying_requests": self.high.latency.count(),
            "paying_stalls": self.high.stalls,
            "requests_per_second": self.throughput(),
            "others_mean_us": self.low.mean_us(),
            "others_stalls": self.low.stalls,
            "errors": self.high.errors + self.low.errors,
            "busy": self.noise.busy,
            "steal": self.noise.steal(),
            "foreign": self.noise.foreign,
        })
    }
}

/// The load of one class of clients.
fn load_of(plan: &Plan, class: Client, clients: usize) -> Load {
    let load = match class {
        Client::High => Load { live_ms: LIVE_MS, ..Load::watched() },
        _ => Load::of(class, 20, clients),
    };
    Load { seconds: plan.seconds, warm_up: plan.warm_up, ..load }
}

/// `live` gets what the high client saw every quarter of a second.
pub fn measure(
    plan: &Plan,
    topology: &Topology,
    kind: Kind,
    low_clients: usize,
    round: usize,
    live: impl FnMut(&Seen),
) -> Result<Measurement> {
    let low = match low_clients {
        0 => None,
        clients => Some(load_of(plan, Client::Low, clients).start(&topology.clients)?),
    };
    let high = load_of(plan, Client::High, 1).start(&topology.clients)?;
    let (high, noise) = std::thread::scope(|scope| {
        let noise = scope.spawn(|| noise(plan));
        let high = high.watch(live);
        (high, noise.join().unwrap_or_default())
    });
    let high = high?;
    let low = low.map(|low| low.finish()).transpose()?.unwrap_or_default();
    Ok(Measurement { kind, low_clients, round, high, low, noise })
}

/// Of most of the measured time, so that the loads' idle end does not count.
fn noise(plan: &Plan) -> Noise {
    std::thread::sleep(Duration::from_secs_f64(plan.warm_up));
    let before = Snapshot::take();
    std::thread::sleep(Duration::from_secs_f64(plan.seconds * 0.9));
    before.until_now()
}
