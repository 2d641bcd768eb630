// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What 10,000 waiting requests take: by what the kernel counts for each map of a queue (`memlock` of its fdinfo), filled or not.
//!
//! The server listens and accepts nobody, so all but those that enter wait. A place runs out after a while, so a few more come
//! than have to wait.

use super::Plan;
use super::way::{self, PORT};
use crate::command::{PolicyFile, scope};
use crate::error::{Context, Error, Result};
use crate::experiments::Outcome;
use crate::figures::Bound;
use crate::installation::{Installation, queues};
use crate::load::{Arrivals, Close, Load};
use crate::progress::Progress;
use crate::table::{Table, number};
use fief_bpf::pin::Pins;
use fief_testkit::{Client, Topology, wait_until};
use serde_json::json;
use std::net::{Ipv4Addr, TcpListener};
use std::os::fd::{AsFd, AsRawFd};
use std::time::Duration;

const WAITING: u64 = 10_000;
const TRIED: u64 = 200;
const PER_SECOND: f64 = 2500.0;
const MIB: f64 = 1024.0 * 1024.0;
/// Until all of them wait, on a machine that others use too.
const DEADLINE: Duration = Duration::from_secs(30);

/// Adds what came out to the outcome.
pub fn run(plan: &Plan, topology: &Topology, outcome: &mut Outcome) -> Result<()> {
    let wanted = if plan.is_tried() { TRIED } else { WAITING };
    let mut progress = Progress::new("queue, memory", 1);
    progress.step(&format!("{wanted} requests wait"))?;
    let policy =
        PolicyFile::new(&way::policy("queue = { in-service = 1, length = 12000, wait = \"5m\", memory = \"64M\" }"))?;
    let installation = Installation::apply_in(&policy, &topology.server)?;
    let listener = topology.server.run(|| TcpListener::bind((Ipv4Addr::UNSPECIFIED, PORT)))?.context("listen")?;
    let before = taken()?;
    let load = Load {
        seconds: DEADLINE.as_secs_f64(),
        arrivals: Some(Arrivals::evenly(PER_SECOND)),
        close: Close::Rst,
        ..Load::of(Client::Low, 200, wanted as usize + 100)
    };
    let running = load.start(&topology.clients)?;
    let mut waiting: u64 = 0;
    let waited = wait_until(DEADLINE, || {
        let classes = queues().unwrap_or_default();
        waiting = classes.iter().filter_map(|class| class["waiting"].as_u64()).sum();
        waiting >= wanted
    });
    let after = taken()?;
    drop((running, listener));
    installation.down()?;
    waited.map_err(|_| Error::failed(format!("{waiting} requests wait, and not {wanted}")))?;
    let [before, after] = [before, after].map(|bytes| bytes as f64 / MIB);
    let mut table = Table::new("memory of the maps of all queues".to_owned(), &["requests that wait", "MiB"]);
    table.row(["0".to_owned(), number(before)]);
    table.row([waiting.to_string(), number(after)]);
    outcome.tables.push(table);
    outcome.measurements.push(json!({
        "experiment": "queue", "part": "memory", "waiting": waiting, "mib": after, "mib_before": before,
    }));
    let figure = outcome.figures.must("memory_10k_mib", after, Bound::AtMost(32.0));
    let load = format!("{wanted} requests of the load's usual size wait, from 200 addresses, a connection each");
    figure.of("memory of the maps of all queues, as the kernel counts it", "MiB", load);
    Ok(())
}

/// Bytes of all maps of the lab's installation that belong to queues.
fn taken() -> Result<u64> {
    let pins = Pins::new(&scope());
    let folder = pins.map("");
    let entries = std::fs::read_dir(&folder).context(format!("read {}", folder.display()))?;
    let names = entries.flatten().filter_map(|entry| entry.file_name().into_string().ok());
    let mut bytes = 0;
    for name in names.filter(|name| name.starts_with("queue")) {
        let map = pins.open_map(&name).map_err(|error| Error::failed(error.to_string()))?;
        let file = format!("/proc/self/fdinfo/{}", map.as_fd().as_raw_fd());
        let text = std::fs::read_to_string(&file).context(format!("read {file}"))?;
        bytes += memlock(&text).ok_or_else(|| Error::failed(format!("the kernel does not tell what {name} takes")))?;
    }
    Ok(bytes)
}

fn memlock(fdinfo: &str) -> Option<u64> {
    fdinfo.lines().find_map(|line| line.strip_prefix("memlock:")?.trim().parse().ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_map_takes_stands_in_its_fdinfo() {
        assert_eq!(memlock("pos:\t0\nmap_type:\t1\nmemlock:\t4096\nmap_id:\t7\n"), Some(4096));
        assert_eq!(memlock("pos:\t0\n"), None);
    }
}
