// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What the accounting costs an unmodified nginx whose core is saturated.
//!
//! One nginx runs through it all; Fief is applied, manages it, and is taken down again, in turn with loads without it.
//! So both sides have the same process with the same memory, and differ in nothing else.

use super::Plan;
use super::pingpong::round_trip_ns;
use crate::command::PolicyFile;
use crate::error::Result;
use crate::experiments::Outcome;
use crate::figures::Bound;
use crate::installation::Installation;
use crate::progress::Progress;
use crate::sample::{CLIENTS, Comparison, Sample, WAYS, Way, warn};
use crate::statistics::{Spread, median, ratios};
use crate::table::{Table, number};
use fief_testkit::{Cgroup, Nginx, NginxConfig, Topology, pin_command};

const PORT: u16 = 80;
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
    let nginx = start_nginx(&topology, &cgroup)?;
    let workers = nginx.workers();
    let mut samples: [[Vec<Sample>; 3]; WAYS.len()] = Default::default();
    let mut pings: [Vec<f64>; 2] = Default::default();
    for round in 0..plan.pairs {
        for turn in 0..Mode::ALL.len() {
            let place = (round + turn) % Mode::ALL.len();
            let mode = Mode::ALL[place];
            progress.step(&format!("nginx {}", mode.title()))?;
            let installation = match mode {
                Mode::Without => None,
                _ => {
                    let installation = Installation::apply(&policy)?;
                    installation.manage(cgroup.path(), "web", mode == Mode::Everything)?;
                    Some(installation)
                }
            };
            for (way, samples) in WAYS.iter().zip(&mut samples) {
                let sample = Sample::take(&topology, &workers, &(way.load)(plan.load_seconds, PORT, "/1k"))?;
                let experiment = format!("nginx_throughput{}", way.suffix);
                outcome.measurements.push(sample.to_json(&experiment, mode.title(), round));
                samples[place].push(sample);
            }
            if mode != Mode::Core {
                pings[usize::from(mode == Mode::Everything)].push(round_trip_ns(Topology::load_cpu())?);
            }
            if let Some(installation) = installation {
                installation.down()?;
            }
        }
    }
    for (way, samples) in WAYS.iter().zip(&samples) {
        report(plan, way, samples, outcome);
    }
    report_pings(&pings, outcome);
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

fn report(plan: &Plan, way: &Way, samples: &[Vec<Sample>; 3], outcome: &mut Outcome) {
    let mut table = way.table();
    let load = format!("{CLIENTS} closed-loop clients, {}, a file of 1 kB", way.title);
    for (place, mode) in Mode::ALL.into_iter().enumerate() {
        let comparison = Comparison::of(&samples[place], &samples[0]);
        let middle = |of: fn(&Sample) -> f64| number(median(&samples[place].iter().map(of).collect::<Vec<_>>()));
        let [by_second, by_cpu_second] = comparison.cells();
        let (rate, cpu_rate) = (middle(|one| one.per_second), middle(|one| one.per_cpu_second));
        table.row([mode.title().to_owned(), rate, by_second, cpu_rate, by_cpu_second]);
        match mode {
            Mode::Without => {}
            Mode::Everything => {
                comparison.note(&mut table);
                let name = format!("nginx_throughput{}", way.suffix);
                let figure = outcome.figures.must(name, comparison.figure(), Bound::AtLeast(0.95));
                figure.of("requests a second of nginx with everything on, of Fief down", "ratio", load.clone());
            }
            Mode::Core => {
                let name = format!("nginx_throughput_core{}", way.suffix);
                let figure = outcome.figures.must(name, comparison.figure(), Bound::AtLeast(0.98));
                figure.of("requests a second of nginx without following sockets, of Fief down", "ratio", load.clone());
            }
        }
    }
    table.note(format!("{} rounds; {CLIENTS} clients, {}, a file of 1 kB.", plan.pairs, way.title));
    warn(samples.iter().flatten(), &mut table);
    outcome.tables.push(table);
}

fn report_pings(pings: &[Vec<f64>; 2], outcome: &mut Outcome) {
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
    let metric = "a byte to and fro between two threads that nobody manages, of Fief down";
    outcome.figures.add("pipe_pingpong", ping.median).of(
        metric,
        "ratio",
        "two threads on one CPU that wake each other",
    );
}
