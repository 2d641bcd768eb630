// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Whether the flood's packets are charged to its class: what Fief says against the time for which the class's own
//! thread had the CPU.

use super::Plan;
use super::measure::flood;
use super::way::{REST, lanes};
use crate::command::{Used, usage};
use crate::error::{Error, Result};
use crate::noise::Snapshot;
use fief_testkit::{TaskClock, Topology, napi_threads, wait_until};
use std::time::{Duration, Instant};

/// Until the flood runs as it will.
const SETTLE: Duration = Duration::from_millis(200);

/// What one flood was charged, and how long its thread had the CPU; seconds.
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
    let mut clocks = threads.into_iter().map(TaskClock::of).collect::<fief_testkit::Result<Vec<_>>>()?;
    let flood = flood(topology, plan.charge_seconds + 10.0).start(&topology.clients)?;
    // its process has to be there first
    let runs = Duration::from_millis(20);
    let _ =
        wait_until(Duration::from_secs(20), || clocks.iter_mut().any(|clock| clock.ran().is_ok_and(|ran| ran > runs)));
    std::thread::sleep(SETTLE);
    let snapshot = Snapshot::take();
    let before = Look::take(&mut clocks)?;
    std::thread::sleep(Duration::from_secs_f64(plan.charge_seconds));
    let after = Look::take(&mut clocks)?;
    let noise = snapshot.until_now();
    flood.end()?;
    let elapsed = (after.at - before.at).as_secs_f64();
    // One thread is the flood's: nobody else sent anything.
    let ran = before.threads.iter().zip(&after.threads).map(|(before, after)| after - before).fold(0.0, f64::max);
    // If none of them worked, there is nothing to compare with, and the figure stays without a value.
    let ran = if ran > elapsed * 0.01 { ran } else { f64::NAN };
    // The hypervisor takes from whoever has the CPU, and the core is full.
    let ran = ran * (1.0 - noise.stolen.get(Topology::server_cpu()).copied().unwrap_or(0.0));
    Ok(Charge { charged: after.charged - before.charged, ran })
}

/// The class's account, and the clocks of all threads at the same moment, nearly.
struct Look {
    at: Instant,
    charged: f64,
    threads: Vec<f64>,
}

impl Look {
    fn take(clocks: &mut [TaskClock]) -> Result<Look> {
        let used = usage()?;
        let rest = used.iter().find(|used| used.container == REST);
        let charged = rest.map(|rest: &Used| rest.receive_ns as f64 / 1e9);
        let charged = charged.ok_or_else(|| Error::failed(format!("fief usage does not list {REST}")))?;
        let ran = clocks.iter_mut().map(|clock| Ok(clock.ran()?.as_secs_f64()));
        Ok(Look { at: Instant::now(), charged, threads: ran.collect::<Result<_>>()? })
    }
}
