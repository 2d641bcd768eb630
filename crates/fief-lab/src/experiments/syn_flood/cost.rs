// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What one SYN of a flood costs the server's core, without clients.
//!
//! The time is the receiving thread's own by the scheduler's clock, so other programs on the core do not count. What the
//! kernel does later in timers for SYNs that it has answered (sending the answer again) is not in it; Fief has none.

use super::stand::Stand;
use super::{Attack, Plan, Way};
use crate::cpu_time::cpu_seconds;
use crate::error::Result;
use fief_testkit::{Topology, napi_threads};
use std::time::{Duration, Instant};

const RATE: u32 = 100_000;
/// Until the queue of the kernel is full and it goes over to cookies, until prefixes are isolated.
const SETTLE: Duration = Duration::from_millis(300);

/// What became of the SYNs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Answered by the kernel's cookies, after some request sockets.
    Stock,
    /// Dropped by the packet filter, but for a few.
    Dropped,
    /// Answered by Fief, all of them.
    Answered,
    /// Dropped by Fief, as in the floods.
    Policed,
}

impl Kind {
    pub const ALL: [Kind; 4] = [Kind::Stock, Kind::Dropped, Kind::Answered, Kind::Policed];

    pub fn title(self) -> &'static str {
        match self {
            Kind::Stock => "stock",
            Kind::Dropped => "dropped by nft",
            Kind::Answered => "answered by Fief",
            Kind::Policed => "policed by Fief",
        }
    }
}

impl From<Way> for Kind {
    fn from(way: Way) -> Kind {
        match way {
            Way::Stock | Way::Cookies | Way::Synproxy | Way::Server => Kind::Stock,
            Way::Limit => Kind::Dropped,
            Way::Fief => Kind::Policed,
        }
    }
}

/// CPU time of one SYN in ns, with what is in force now.
pub fn measure(plan: &Plan, stand: &Stand) -> Result<f64> {
    let topology = &stand.topology;
    let receivers = napi_threads(&topology.server, Topology::SERVER)?;
    let idle = rate(&receivers, 0.1);
    let seconds = plan.cost_seconds + SETTLE.as_secs_f64() + 10.0;
    let flood = Attack::Prefix(RATE).flood(topology, seconds).expect("a flood").start(&topology.clients)?;
    std::thread::sleep(SETTLE);
    let busy = rate(&receivers, plan.cost_seconds);
    let sent = flood.end()?;
    Ok((busy - idle) / sent.per_second() * 1e9)
}

/// CPU seconds a second.
fn rate(threads: &[u32], seconds: f64) -> f64 {
    let (before, begin) = (cpu_seconds(threads), Instant::now());
    std::thread::sleep(Duration::from_secs_f64(seconds));
    (cpu_seconds(threads) - before) / begin.elapsed().as_secs_f64()
}
