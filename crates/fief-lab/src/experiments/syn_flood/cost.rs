// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What one SYN costs the server's core, without clients: answered by the kernel, answered by Fief, and policed.
//!
//! The time is the receiving thread's own by the scheduler's clock, so other programs on the core do not count. What the
//! kernel does later in timers for SYNs that it has answered (sending the answer again) is not in it; Fief has none.

use super::stand::Stand;
use super::way::{LIMITS, Way, policy};
use super::{Attack, Plan};
use crate::cpu_time::cpu_seconds;
use crate::error::Result;
use crate::progress::Progress;
use fief_testkit::{Topology, napi_threads};
use std::time::{Duration, Instant};

pub const STEPS: usize = 3;
const RATE: u32 = 70_000;
/// Until the queue of the kernel is full and it goes over to cookies, until prefixes are isolated.
const SETTLE: Duration = Duration::from_millis(300);

/// CPU time of one SYN in ns.
#[derive(Clone, Copy, Debug)]
pub struct Costs {
    pub stock: f64,
    pub answered: f64,
    pub policed: f64,
}

pub fn measure(plan: &Plan, stands: &[Stand], progress: &mut Progress) -> Result<Costs> {
    let stand = |way| stands.iter().find(|stand| stand.way == way);
    let mut costs = Costs { stock: f64::NAN, answered: f64::NAN, policed: f64::NAN };
    if let Some(stock) = stand(Way::Stock) {
        progress.step("the cost of a SYN, stock")?;
        costs.stock = per_syn(plan, &stock.topology)?;
        stock.forget_request_sockets();
    }
    if let Some(fief) = stand(Way::Fief) {
        progress.step("the cost of a SYN that Fief answers")?;
        let front = fief.fief(&policy(""))?;
        costs.answered = per_syn(plan, &fief.topology)?;
        drop(front);
        progress.step("the cost of a SYN that Fief polices")?;
        let _front = fief.fief(&policy(LIMITS))?;
        costs.policed = per_syn(plan, &fief.topology)?;
    }
    Ok(costs)
}

fn per_syn(plan: &Plan, topology: &Topology) -> Result<f64> {
    let receivers = napi_threads(&topology.server, Topology::SERVER)?;
    let idle = rate(&receivers, plan.cost_seconds * 0.5);
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
