// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Whether the flood's packets are charged to its class: what Fief says against the clock of the class's own thread.

use super::Plan;
use super::measure::flood;
use super::way::{REST, lanes};
use crate::command::{Used, usage};
use crate::cpu_time::cpu_seconds;
use crate::error::{Error, Result};
use fief_testkit::{Topology, napi_threads};
use std::time::{Duration, Instant};

/// Until the flood runs as it will.
const SETTLE: Duration = Duration::from_millis(200);

/// What one flood was charged, and what its thread ran; seconds.
#[derive(Clone, Copy, Debug)]
pub struct Charge {
    pub charged: f64,
    pub ran: f64,
}

impl Charge {
    pub fn error(self) -> f64 {
        (self.charged / self.ran - 1.0).abs()
    }
}

pub fn measure(plan: &Plan, topology: &Topology) -> Result<Charge> {
    let mut threads = Vec::new();
    for lane in lanes(&topology.server)? {
        threads.extend(napi_threads(&topology.server, &lane)?);
    }
    let flood = flood(topology, plan.charge_seconds + 10.0).start(&topology.clients)?;
    std::thread::sleep(SETTLE);
    let before = Look::take(&threads)?;
    std::thread::sleep(Duration::from_secs_f64(plan.charge_seconds));
    let after = Look::take(&threads)?;
    flood.end()?;
    let elapsed = (after.at - before.at).as_secs_f64();
    // One thread is the flood's: nobody else sent anything.
    let ran = before.threads.iter().zip(&after.threads).map(|(before, after)| after - before).fold(0.0, f64::max);
    // If none of them worked, there is nothing to compare with, and the figure stays without a value.
    let ran = if ran > elapsed * 0.01 { ran } else { f64::NAN };
    Ok(Charge { charged: after.charged - before.charged, ran })
}

/// The class's account, and the clocks of all threads at the same moment, nearly.
struct Look {
    at: Instant,
    charged: f64,
    threads: Vec<f64>,
}

impl Look {
    fn take(threads: &[u32]) -> Result<Look> {
        let used = usage()?;
        let rest = used.iter().find(|used| used.container == REST);
        let charged = rest.map(|rest: &Used| rest.receive_ns as f64 / 1e9);
        let charged = charged.ok_or_else(|| Error::failed(format!("fief usage does not list {REST}")))?;
        Ok(Look {
            at: Instant::now(),
            charged,
            threads: threads.iter().map(|&thread| cpu_seconds(&[thread])).collect(),
        })
    }
}
