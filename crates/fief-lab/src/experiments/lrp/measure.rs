// SPDX-License-Identifier: Apache-2.0 OR MIT
//! One measurement: the high client, perhaps beside the low ones, perhaps beside the flood.

use super::way::Way;
use super::{Plan, SYNS_PER_SECOND};
use crate::error::Result;
use crate::flood::{Flood, Sent, Sources};
use crate::load::{self, Seen};
use crate::noise::{Noise, Snapshot};
use fief_testkit::{Client, Topology};
use serde_json::{Value, json};
use std::time::Duration;

const LOW_CLIENTS: usize = 20;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Load {
    /// The high client alone.
    None,
    Low,
    LowAndFlood,
}

impl Load {
    pub const ALL: [Load; 3] = [Load::None, Load::Low, Load::LowAndFlood];

    pub fn title(self) -> &'static str {
        match self {
            Load::None => "the paying client alone",
            Load::Low => "beside 20 others",
            Load::LowAndFlood => "beside them and 200k SYN/s",
        }
    }
}

#[derive(Clone, Debug)]
pub struct Measurement {
    pub way: Way,
    pub load: Load,
    /// Room in the listeners' queues of connection requests.
    pub backlog: u32,
    pub round: usize,
    pub high: Seen,
    pub low: Seen,
    pub sent: Sent,
    pub noise: Noise,
}

impl Measurement {
    pub fn to_json(&self) -> Value {
        let flooded = self.load == Load::LowAndFlood;
        json!({
            "experiment": "lrp",
            "way": self.way.title(),
            "load": self.load.title(),
            "backlog": self.backlog,
            "round": self.round,
            "paying_per_second": self.high.per_second(),
            "paying_mean_us": self.high.mean_us(),
            "paying_p99_us": self.high.p99_us(),
            "paying_stalls": self.high.stalls,
            "others_per_second": self.low_per_second(),
            "others_stalls": self.low.stalls,
            "sent_per_second": if flooded { self.sent.per_second() } else { 0.0 },
            "busy": self.noise.busy,
            "steal": self.noise.steal(),
            "foreign": self.noise.foreign,
        })
    }

    pub fn is_flood_short(&self) -> bool {
        self.load == Load::LowAndFlood && self.sent.per_second() < 0.9 * f64::from(SYNS_PER_SECOND)
    }

    pub fn low_per_second(&self) -> f64 {
        if self.load == Load::None { 0.0 } else { self.low.per_second() }
    }
}

/// From the prefix that the policy does not know.
pub fn flood(topology: &Topology, seconds: f64) -> Flood {
    Flood::of(topology, Sources::new([10, 88, 0, 0], 16), f64::from(SYNS_PER_SECOND), seconds)
}

pub fn measure(plan: &Plan, topology: &Topology, way: Way, load: Load, round: usize) -> Result<Measurement> {
    let flood = (load == Load::LowAndFlood)
        .then(|| flood(topology, plan.warm_up + plan.seconds + 10.0).start(&topology.clients))
        .transpose()?;
    let low = (load != Load::None).then(|| load_of(plan, Client::Low).start(&topology.clients)).transpose()?;
    let high = load_of(plan, Client::High).start(&topology.clients)?;
    std::thread::sleep(Duration::from_secs_f64(plan.warm_up));
    let before = Snapshot::take();
    std::thread::sleep(Duration::from_secs_f64(plan.seconds * 0.8));
    let noise = before.until_now();
    let high = high.finish()?;
    let low = low.map(|low| low.finish()).transpose()?.unwrap_or_default();
    let sent = flood.map(|flood| flood.end()).transpose()?.unwrap_or_default();
    Ok(Measurement { way, load, backlog: 0, round, high, low, sent, noise })
}

fn load_of(plan: &Plan, class: Client) -> load::Load {
    let load = match class {
        Client::High => load::Load::watched(),
        _ => load::Load::of(class, 20, LOW_CLIENTS),
    };
    load::Load { seconds: plan.seconds, warm_up: plan.warm_up, ..load }
}
