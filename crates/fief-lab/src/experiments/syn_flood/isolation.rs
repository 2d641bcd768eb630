// SPDX-License-Identifier: Apache-2.0 OR MIT
//! How long Fief answers a flood from one prefix before it isolates it, as the flood's own host sees it.
//!
//! Without a budget for unproven sources, so that nothing but isolation keeps the server from answering.

use super::Attack;
use super::stand::Stand;
use super::way::policy;
use crate::error::{Context, Result};
use fief_testkit::{PacketCounter, Topology};
use nix::time::{ClockId, clock_gettime};
use std::time::{Duration, Instant};

pub const RATE: u32 = 70_000;
const ISOLATE: &str = "isolate = { above = 100, for = \"10s\" }\n";
const LOOK: Duration = Duration::from_millis(10);
const LONGEST: Duration = Duration::from_secs(4);
/// Isolated: of the SYNs of an interval, fewer are answered.
const ANSWERED: f64 = 0.05;

/// SYN-ACKs of IPv4 to a port below [`crate::flood::FIRST_CLIENT_PORT`].
const ANSWERS: [(u16, u8, u8, u32); 8] = [
    (0x28, 0, 0, 12),
    (0x15, 0, 5, 0x0800),
    (0x30, 0, 0, 47),
    (0x15, 0, 3, 0x12),
    (0x28, 0, 0, 36),
    (0x35, 1, 0, crate::flood::FIRST_CLIENT_PORT as u32),
    (0x06, 0, 0, u32::MAX),
    (0x06, 0, 0, 0),
];

/// Seconds from the first SYN to the last answer but a few; NaN if there was no end of them.
pub fn measure(stand: &Stand) -> Result<f64> {
    let _front = stand.fief(&policy(ISOLATE))?;
    let topology = &stand.topology;
    let counter = topology.clients.run(|| PacketCounter::open(Topology::CLIENTS, &ANSWERS))??;
    let flood = Attack::Prefix(RATE).flood(topology, LONGEST.as_secs_f64()).expect("a flood");
    let flood = flood.start(&topology.clients)?;
    let begin = Instant::now();
    let mut isolated = None;
    let mut answered = 0;
    let few = (f64::from(RATE) * LOOK.as_secs_f64() * ANSWERED) as u64;
    while isolated.is_none() && begin.elapsed() < LONGEST {
        std::thread::sleep(LOOK);
        let now = Duration::from(clock_gettime(ClockId::CLOCK_MONOTONIC).context("read the clock")?);
        let answers = counter.take()?;
        answered += answers;
        if answered > 0 && answers < few {
            isolated = Some(now);
        }
    }
    let sent = flood.end()?;
    // The interval that was looked at began earlier.
    let at = isolated.map(|at| at.saturating_sub(LOOK).saturating_sub(Duration::from_nanos(sent.began_ns)));
    Ok(at.map_or(f64::NAN, |at| at.as_secs_f64()))
}
