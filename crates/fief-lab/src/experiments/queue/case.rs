// SPDX-License-Identifier: Apache-2.0 OR MIT
//! One measurement: the low clients and the high one against a running server.

use super::kind::Kind;
use super::way::Way;
use crate::error::Result;
use crate::load::{Close, Load, Seen};
use crate::noise::{Noise, Snapshot};
use fief_testkit::{Client, Topology};
use serde_json::{Value, json};
use std::time::Duration;

const LIVE_MS: u64 = 250;

/// What clients do with a connection after a response.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Connections {
    /// A new one for each request.
    Each,
    Persistent,
}

impl Connections {
    pub const ALL: [Connections; 2] = [Connections::Each, Connections::Persistent];

    /// Ends the names of its figures.
    pub fn suffix(self) -> &'static str {
        match self {
            Connections::Each => "",
            Connections::Persistent => "_persistent",
        }
    }

    pub fn title(self) -> &'static str {
        match self {
            Connections::Each => "a connection each",
            Connections::Persistent => "persistent connections",
        }
    }

    pub fn close(self) -> Close {
        match self {
            Connections::Each => Close::Rst,
            Connections::Persistent => Close::Keep,
        }
    }
}

/// What is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Case {
    pub kind: Kind,
    pub way: Way,
    pub connections: Connections,
    /// Number of low clients.
    pub low: usize,
    pub cost_us: u64,
}

#[derive(Clone, Debug)]
pub struct Measured {
    pub case: Case,
    pub round: usize,
    pub high: Seen,
    pub low: Seen,
    pub noise: Noise,
}

impl Case {
    /// More clients need longer until each has been answered some times.
    fn seconds(&self, seconds: f64) -> f64 {
        // a connection of its own costs several times a query
        let seconds = if self.kind.is_postgres() { 4.0 * seconds } else { seconds };
        seconds.max(seconds.min(1.0) * 4.0 * self.low as f64 * self.cost_us as f64 / 1e6)
    }

    fn warm_up(&self, warm_up: f64) -> f64 {
        warm_up.max(1.5 * self.low as f64 * self.cost_us as f64 / 1e6)
    }

    /// `live` gets what the high client saw every quarter of a second.
    pub fn measure(
        self,
        topology: &Topology,
        round: usize,
        (seconds, warm_up): (f64, f64),
        live: impl FnMut(&Seen),
    ) -> Result<Measured> {
        let (seconds, warm_up) = (self.seconds(seconds), self.warm_up(warm_up));
        let load = |load: Load| Load { seconds, warm_up, close: self.connections.close(), ..self.kind.asked_by(load) };
        let low = match self.low {
            0 => None,
            clients => Some(load(Load::of(Client::Low, 20, clients)).start(&topology.clients)?),
        };
        let high = load(Load { live_ms: LIVE_MS, ..Load::watched() }).start(&topology.clients)?;
        // of most of the measured time, so that the loads' idle end does not count
        let noise = || {
            std::thread::sleep(Duration::from_secs_f64(warm_up));
            let before = Snapshot::take();
            std::thread::sleep(Duration::from_secs_f64(seconds * 0.9));
            before.until_now()
        };
        let (high, noise) = std::thread::scope(|scope| {
            let noise = scope.spawn(noise);
            (high.watch(live), noise.join().unwrap_or_default())
        });
        let high = high?;
        let low = low.map(|low| low.finish()).transpose()?.unwrap_or_default();
        Ok(Measured { case: self, round, high, low, noise })
    }
}

impl Measured {
    /// With low clients the server's core must be the bottleneck. While others take what the two cores have left, it
    /// cannot be told; those measurements are marked anyway.
    pub fn is_server_bound(&self) -> bool {
        self.case.low < 5
            || self.noise.is_disturbed()
            || self.noise.is_server_bound(Topology::server_cpu(), Topology::load_cpu())
    }

    /// Requests served a second, of both classes.
    pub fn throughput(&self) -> f64 {
        let low = if self.case.low == 0 { 0.0 } else { self.low.per_second() };
        self.high.per_second() + low
    }

    pub fn to_json(&self) -> Value {
        let case = self.case;
        json!({
            "experiment": "queue",
            "server": case.kind.name(),
            "way": case.way.name(),
            "connections": case.connections.title(),
            "others": case.low,
            "cost_us": case.cost_us,
            "round": self.round,
            "paying_mean_us": self.high.mean_us(),
            "paying_p99_us": self.high.p99_us(),
            "paying_requests": self.high.latency.count(),
            "paying_refused": self.high.refused,
            "paying_errors": self.high.errors,
            "paying_stalls": self.high.stalls,
            "requests_per_second": self.throughput(),
            "others_mean_us": self.low.mean_us(),
            "others_refused": self.low.refused,
            "others_errors": self.low.errors,
            "others_stalls": self.low.stalls,
            "busy": self.noise.busy,
            "steal": self.noise.steal(),
            "foreign": self.noise.foreign,
        })
    }
}
