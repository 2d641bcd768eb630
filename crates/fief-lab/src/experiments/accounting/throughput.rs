// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What the accounting costs an unmodified nginx whose core is saturated.
//!
//! One nginx runs through it all; Fief is applied, manages it, and is taken down again, in turn with loads without it.
//! So both sides have the same process with the same memory, and differ in nothing else.

use super::Plan;
use super::installation::Installation;
use super::pingpong::round_trip_ns;
use crate::command::PolicyFile;
use crate::error::Result;
use crate::experiments::Outcome;
use crate::figures::Bound;
use crate::load::{Close, Load};
use crate::noise::Snapshot;
use crate::progress::Progress;
use crate::statistics::{Spread, median, ratios};
use crate::table::{Table, number};
use fief_testkit::{Cgroup, Client, Family, Nginx, NginxConfig, Topology, pin_command};
use serde_json::json;
use std::time::Duration;

const PORT: u16 = 80;
const CLIENTS: usize = 40;
const POLICY: &str = "version = 1\n\n[container.web]\n\n[container.\"web/gold\"]\n\n[container.\"web/browse\"]\n\n\
                      [listener.web]\naddress = \"0.0.0.0:80\"\nclasses = \"shared\"\n\n\
                      [[listener.web.client]]\nfrom = [\"10.77.2.0/28\"]\ncontainer = \"web/gold\"\n\n\
                      [[listener.web.client]]\nfrom = [\"any\"]\ncontainer = \"web/browse\"\n";

/// What is on while nginx is loaded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mode {
    Without,
    /// Everything: classes, charging, and threads that follow their sockets.
    Everything,
    /// The same without following.
    Core,
}

impl Mode {
    const ALL: [Mode; 3] = [Mode::Without, Mode::Everything, Mode::Core];

    fn title(self) -> &'static str {
        match self {
            Mode::Without => "without Fief",
            Mode::Everything => "everything on",
            Mode::Core => "without following",
        }
    }
}

pub fn steps(plan: &Plan) -> usize {
    plan.pairs * Mode::ALL.len()
}

pub fn run(plan: &Plan, progress: &mut Progress, outcome: &mut Outcome) -> Result<()> {
    let topology = Topology::new()?;
    let policy = PolicyFile::new(POLICY)?;
    let cgroup = Cgroup::new("nginx")?;
    let _nginx = start_nginx(&topology, &cgroup)?;
    let mut samples: [Vec<Sample>; 3] = Default::default();
    let mut pings: [Vec<f64>; 2] = Default::default();
    for round in 0..plan.pairs {
        for turn in 0..Mode::ALL.len() {
            let mode = Mode::ALL[(round + turn) % Mode::ALL.len()];
            progress.step(&format!("nginx {}", mode.title()))?;
            let installation = match mode {
                Mode::Without => None,
                _ => {
                    let installation = Installation::apply(&policy)?;
                    installation.manage(cgroup.path(), "web", mode == Mode::Everything)?;
                    Some(installation)
                }
            };
            let sample = Sample::take(&topology, &load(plan, PORT, "/1k"))?;
            if mode != Mode::Core {
                pings[usize::from(mode == Mode::Everything)].push(round_trip_ns(Topology::load_cpu())?);
            }
            if let Some(installation) = installation {
                installation.down()?;
            }
            outcome.measurements.push(json!({
                "experiment": "nginx_throughput", "mode": mode.title(), "round": round,
                "requests_per_second": sample.per_second, "server_bound": sample.is_server_bound,
                "foreign": sample.foreign,
            }));
            samples[Mode::ALL.iter().position(|&one| one == mode).expect("it is one of them")].push(sample);
        }
    }
    report(plan, &samples, &pings, outcome);
    Ok(())
}

/// A socket belongs to the cgroup in which it was made, so nginx has to be inside before it listens.
fn start_nginx(topology: &Topology, cgroup: &Cgroup) -> Result<Nginx> {
    let config = NginxConfig::listening(PORT, &[&PORT.to_string()], 1, "")?;
    let mut command = topology.server.command("sh");
    command
        .args(["-c", "echo $$ > \"$0/cgroup.procs\" && exec nginx \"$@\""])
        .arg(cgroup.path())
        .args(config.arguments())
        .stderr(std::process::Stdio::null());
    pin_command(&mut command, Topology::server_cpu());
    Ok(Nginx::start_command(&topology.server, command, config)?)
}

fn report(plan: &Plan, samples: &[Vec<Sample>; 3], pings: &[Vec<f64>; 2], outcome: &mut Outcome) {
    let per_second = |place: usize| samples[place].iter().map(|one| one.per_second).collect::<Vec<_>>();
    let mut table = Table::new("nginx, one worker, its core saturated", &["", "requests/s", "ratio", "quartiles"]);
    for (place, mode) in Mode::ALL.into_iter().enumerate() {
        let ratio = Spread::of(&ratios(&per_second(place), &per_second(0)));
        let rate = number(median(&per_second(place)));
        let quartiles = format!("{:.4} - {:.4}", ratio.low, ratio.high);
        table.row([mode.title().to_owned(), rate, format!("{:.4}", ratio.median), quartiles]);
        match mode {
            Mode::Without => {}
            Mode::Everything => outcome.figures.must("nginx_throughput", ratio.median, Bound::AtLeast(0.95)),
            Mode::Core => outcome.figures.must("nginx_throughput_core", ratio.median, Bound::AtLeast(0.98)),
        }
    }
    table.note(format!("{} rounds; {CLIENTS} clients, a connection per request, a file of 1 kB.", plan.pairs));
    Sample::warn(samples.iter().flatten(), &mut table);
    outcome.tables.push(table);
    let ping = Spread::of(&ratios(&pings[1], &pings[0]));
    let mut table = Table::new(
        "A byte to and fro between two threads that nobody manages, on one CPU: ns a round trip",
        &["without Fief", "with", "ratio", "quartiles"],
    );
    table.row([
        number(median(&pings[0])),
        number(median(&pings[1])),
        number(ping.median),
        format!("{:.4} - {:.4}", ping.low, ping.high),
    ]);
    outcome.tables.push(table);
    outcome.figures.add("pipe_pingpong", ping.median);
}

/// The load of both experiments with servers.
pub fn load(plan: &Plan, port: u16, path: &str) -> Load {
    Load {
        server: Topology::server_address(Family::V4, port),
        path: path.to_owned(),
        seconds: plan.load_seconds,
        warm_up: plan.load_seconds / 5.0,
        first: Client::Low.address(Family::V4, 1),
        addresses: 40,
        clients: CLIENTS,
        think_us: 0,
        close: Close::Rst,
        cpu: Topology::load_cpu(),
        fifo: 0,
        live_ms: 0,
    }
}

/// One load.
#[derive(Clone, Copy, Debug)]
pub struct Sample {
    pub per_second: f64,
    pub is_server_bound: bool,
    pub foreign: f64,
    is_disturbed: bool,
    errors: u64,
}

impl Sample {
    pub fn take(topology: &Topology, load: &Load) -> Result<Sample> {
        let running = load.start(&topology.clients)?;
        std::thread::sleep(Duration::from_secs_f64(load.warm_up * 1.5));
        let before = Snapshot::take();
        // Before the load ends, so that its idle end does not count.
        std::thread::sleep(Duration::from_secs_f64(load.seconds * 0.7));
        let noise = before.until_now();
        let seen = running.finish()?;
        Ok(Sample {
            per_second: seen.per_second(),
            is_server_bound: noise.is_server_bound(Topology::server_cpu(), Topology::load_cpu()),
            foreign: noise.foreign,
            is_disturbed: noise.is_disturbed(),
            errors: seen.errors,
        })
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
}
