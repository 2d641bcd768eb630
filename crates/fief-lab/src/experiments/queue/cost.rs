// SPDX-License-Identifier: Apache-2.0 OR MIT
//! How much work a server has to be given so that one of its requests costs a set time of CPU, receive work and all.
//!
//! The cost is measured at no work and at a guess, and between the two at what a straight line says, twice: it is none
//! where a server compresses. It is another cost where each request has a connection of its own. A server whose requests cost
//! more without any work is measured at that. PostgreSQL's is the cost of a query: a connection of its own costs several times that.

use super::case::Connections;
use super::kind::Kind;
use super::stand::Stand;
use super::way::Way;
use crate::cpu_time::cpu_seconds;
use crate::error::{Error, Result};
use crate::load::Load;
use fief_testkit::{Client, Topology};
use std::time::Duration;

/// Enough that the core is never without work.
const CLIENTS: usize = 20;

/// Work whose requests cost so much on this machine.
pub fn work(
    topology: &Topology,
    (kind, connections): (Kind, Connections),
    cost_us: u64,
    seconds: f64,
) -> Result<usize> {
    // a process for each connection costs several times a query
    let server = (kind, if kind.is_postgres() { Connections::Persistent } else { connections });
    let cost = |work: usize| cost(topology, server, work, seconds);
    let (least, guess, wanted) = (server.0.least(), server.0.guess(), cost_us as f64);
    let mut below = Point { work: least, cost: cost(least)? };
    if below.cost >= wanted {
        return Ok(least);
    }
    let mut above = Point { work: guess, cost: cost(guess)? };
    // where each step is only tried, what it costs means nothing
    for _ in 0..if seconds < 0.3 { 0 } else { 2 } {
        let work = between(below, above, wanted);
        let point = Point { work, cost: cost(work)? };
        match point.cost < wanted {
            true => below = point,
            false => above = point,
        }
    }
    Ok(between(below, above, wanted))
}

#[derive(Clone, Copy, Debug)]
struct Point {
    work: usize,
    cost: f64,
}

/// Work on the line through both, also beyond them.
fn between(below: Point, above: Point, wanted: f64) -> usize {
    let slope = (above.cost - below.cost) / (above.work as f64 - below.work as f64);
    let more = (wanted - below.cost) / slope;
    match more.is_finite() && more > 0.0 {
        true => below.work + (more as usize).min(100 * above.work),
        // two measurements that contradict each other
        false => below.work,
    }
}

/// CPU time of one request in us.
fn cost(topology: &Topology, (kind, connections): (Kind, Connections), work: usize, seconds: f64) -> Result<f64> {
    let stand = Stand::start(topology, kind, Way::Plain, work)?;
    let load = Load { seconds, close: connections.close(), ..kind.asked_by(Load::of(Client::Low, 20, CLIENTS)) };
    let used = cost_at(topology, &stand, kind, load)?;
    stand.stop()?;
    Ok(used)
}

/// The same of a server that runs, under this load.
pub fn cost_at(topology: &Topology, stand: &Stand, kind: Kind, load: Load) -> Result<f64> {
    // who begins a process for each client may answer none at first: it gets more time
    for times in [1.0, 2.0, 4.0, 8.0] {
        let seconds = load.seconds * times;
        // a server that compiles itself while it runs is slow at first
        let warm_up = 0.8 * seconds;
        let running = Load { seconds, warm_up, ..load.clone() }.start(&topology.clients)?;
        std::thread::sleep(Duration::from_secs_f64(warm_up));
        // with those that were begun for these clients
        let processes = stand.processes(topology)?;
        let used = cpu_seconds(&processes);
        std::thread::sleep(Duration::from_secs_f64(seconds));
        let used = cpu_seconds(&processes) - used;
        let count = running.finish()?.latency.count();
        if count > 0 {
            return Ok(used * 1e6 / count as f64);
        }
    }
    Err(Error::failed(format!("{} answered no request that its cost is measured with", kind.title())))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn work_lies_on_the_line_also_beyond_the_guess() {
        let [below, above] = [(0, 100.0), (100, 300.0)].map(|(work, cost)| Point { work, cost });
        assert_eq!(between(below, above, 200.0), 50);
        assert_eq!(between(below, above, 1000.0), 450);
        assert_eq!(between(above, above, 1000.0), 100, "there is no line");
    }
}
