// SPDX-License-Identifier: Apache-2.0 OR MIT
//! One load of a server: requests a second, and requests a second of the CPU that the server got.
//!
//! The two tell the same while the server has its core to itself. On a machine that others use, only the second says
//! anything about the server: it is what the core could do if nobody took from it.

use crate::cpu_time::cpu_seconds;
use crate::error::Result;
use crate::load::{Close, Load};
use crate::noise::Snapshot;
use crate::stage::Manner;
use crate::statistics::{Spread, ratios};
use crate::table::Table;
use fief_testkit::{Client, Family, Topology, napi_threads};
use serde_json::{Value, json};
use std::time::Duration;

pub const CLIENTS: usize = 40;

/// Forty clients, a connection for each request.
pub fn load(seconds: f64, port: u16, path: &str) -> Load {
    Load {
        server: Topology::server_address(Family::V4, port),
        path: path.to_owned(),
        seconds,
        // All requests count, as all of the server's CPU does.
        warm_up: 0.0,
        ..Load::of(Client::Low, 40, CLIENTS)
    }
}

/// The same clients on persistent connections. Here the server is the bottleneck: with a connection for each request it
/// waits, on a machine of two cores, for the clients' core as often as that waits for it.
fn persistent_load(seconds: f64, port: u16, path: &str) -> Load {
    Load { close: Close::Keep, ..load(seconds, port, path) }
}

/// How a saturated server is loaded.
#[derive(Clone, Copy, Debug)]
pub struct Way {
    pub manner: Manner,
    pub load: fn(f64, u16, &str) -> Load,
}

impl Way {
    /// Of nginx by this load; without rows.
    pub fn table(&self) -> Table {
        let what = "requests a second, and a second of the CPU it got; ratios with quartiles";
        Table::new(
            format!("nginx, one worker, {}: {what}", self.manner.title()),
            &["", "requests/s", "ratio", "a CPU second", "ratio"],
        )
    }
}

pub const WAYS: [Way; 2] =
    [Way { manner: Manner::ConnectionEach, load }, Way { manner: Manner::Persistent, load: persistent_load }];

#[derive(Clone, Copy, Debug)]
pub struct Sample {
    pub per_second: f64,
    pub per_cpu_second: f64,
    pub p50_us: f64,
    pub p99_us: f64,
    is_server_bound: bool,
    foreign: f64,
    is_disturbed: bool,
    errors: u64,
}

impl Sample {
    /// `server`: the processes that serve; the receiving threads of the server's link are added.
    pub fn take(topology: &Topology, server: &[u32], load: &Load) -> Result<Sample> {
        let mut processes = server.to_vec();
        processes.extend(napi_threads(&topology.server, Topology::SERVER)?);
        let ran = cpu_seconds(&processes);
        let running = load.start(&topology.clients)?;
        std::thread::sleep(Duration::from_secs_f64(load.seconds * 0.25));
        let before = Snapshot::take();
        // Before the load ends, so that its idle end does not count.
        std::thread::sleep(Duration::from_secs_f64(load.seconds * 0.6));
        let noise = before.until_now();
        let seen = running.finish()?;
        Ok(Sample {
            per_second: seen.per_second(),
            per_cpu_second: seen.latency.count() as f64 / (cpu_seconds(&processes) - ran),
            p50_us: seen.latency.quantile(0.5) / 1000.0,
            p99_us: seen.p99_us(),
            is_server_bound: noise.is_server_bound(Topology::server_cpu(), Topology::load_cpu()),
            foreign: noise.foreign,
            is_disturbed: noise.is_disturbed(),
            errors: seen.errors,
        })
    }

    pub fn to_json(self, experiment: &str, what: &str, round: usize) -> Value {
        let mut object = self.values();
        object["experiment"] = experiment.into();
        object["what"] = what.into();
        object["round"] = round.into();
        object
    }

    /// Without which it is.
    pub fn values(self) -> Value {
        json!({
            "requests_per_second": self.per_second, "requests_per_cpu_second": self.per_cpu_second,
            "server_bound": self.is_server_bound, "foreign": self.foreign, "errors": self.errors, "p50_us": self.p50_us,
            "p99_us": self.p99_us,
        })
    }
}

/// Loads with something, beside the loads without it in the same rounds.
#[derive(Debug)]
pub struct Comparison {
    pub by_second: Spread,
    pub by_cpu_second: Spread,
    by_cpu: bool,
}

impl Comparison {
    pub fn of(with: &[Sample], without: &[Sample]) -> Comparison {
        let spread = |of: fn(&Sample) -> f64| {
            let values = |samples: &[Sample]| samples.iter().map(of).collect::<Vec<_>>();
            Spread::of(&ratios(&values(with), &values(without)))
        };
        let samples = with.iter().chain(without);
        let spoilt = samples.filter(|one| one.is_disturbed || !one.is_server_bound).count();
        Comparison {
            by_second: spread(|one| one.per_second),
            by_cpu_second: spread(|one| one.per_cpu_second),
            by_cpu: spoilt * 2 > with.len() + without.len(),
        }
    }

    /// By requests a second; by those of the server's CPU, if most loads did not have the machine to themselves.
    pub fn figure(&self) -> f64 {
        if self.by_cpu { self.by_cpu_second.median } else { self.by_second.median }
    }

    /// What [`Comparison::figure`] compares.
    pub fn metric(&self) -> &'static str {
        match self.by_cpu {
            true => {
                "requests a second of the CPU that the server got (the machine was shared or its core not saturated)"
            }
            false => "requests a second",
        }
    }

    pub fn cells(&self) -> [String; 2] {
        [self.by_second, self.by_cpu_second]
            .map(|ratio| format!("{:.4} ({:.4} - {:.4})", ratio.median, ratio.low, ratio.high))
    }

    pub fn note(&self, table: &mut Table) {
        if self.by_cpu {
            table.note(
                "Most loads shared the machine with somebody else or did not saturate the server's core, so the \
                 figure is by the server's CPU.",
            );
        }
    }
}

/// What makes the figures less certain, below the table.
pub fn warn<'a>(samples: impl Iterator<Item = &'a Sample>, table: &mut Table) {
    let samples: Vec<&Sample> = samples.collect();
    let mut warn = |count: usize, what: &str| {
        if count > 0 {
            table.note(format!("{count} of {} loads {what}.", samples.len()));
        }
    };
    warn(samples.iter().filter(|one| !one.is_server_bound).count(), "did not saturate the server's core alone");
    warn(samples.iter().filter(|one| one.is_disturbed).count(), "ran while somebody else used the machine");
    warn(samples.iter().filter(|one| one.errors > 0).count(), "had failed requests");
}
