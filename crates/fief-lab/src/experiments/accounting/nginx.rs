// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What the accounting costs an unmodified nginx: CPU of a request on one core, and requests a second over two.
//!
//! Two settings, each beside empty programs at the same places: without following sockets, and with everything on. In each
//! the policy has two classes of clients of one listener, and nothing else.

use super::Plan;
use super::pingpong::{Pings, Player};
use crate::command::usage;
use crate::error::{Error, Result};
use crate::experiments::Outcome;
use crate::figures::Bound;
use crate::progress::Progress;
use crate::sides::{Promise, Setting, Side, Sides, Trial, Unit, cpu, throughput};
use crate::stage::{Stage, start_nginx};
use crate::statistics::{Spread, median, ratios};
use crate::table::{Table, number};
use fief_testkit::{Cgroup, NetNs, NginxConfig, Topology};

const PORT: u16 = 80;
const POLICY: &str = "version = 1\n\n[container.web]\n\n[container.\"web/gold\"]\n\n[container.\"web/browse\"]\n\n\
                      [listener.web]\naddress = \"0.0.0.0:80\"\nclasses = \"shared\"\n\n\
                      [[listener.web.client]]\nfrom = [\"10.77.2.0/28\"]\ncontainer = \"web/gold\"\n\n\
                      [[listener.web.client]]\nfrom = [\"any\"]\ncontainer = \"web/browse\"\n";
const ABOUT: &str = "nginx managed, two classes of clients";
const CLASSES: [&str; 2] = ["web/gold", "web/browse"];

/// Places of the settings.
const CORE: usize = 0;
const FOLLOWING: usize = 1;

const CPU: [Promise; 2] = [
    Promise {
        name: "nginx_cpu_core",
        added: Some("nginx_core_added_ns"),
        least: [Some(0.96), Some(0.98)],
        least_of_floor: [None; 2],
    },
    Promise {
        name: "nginx_cpu",
        added: Some("nginx_added_ns"),
        least: [Some(0.94), Some(0.97)],
        least_of_floor: [None; 2],
    },
];
/// Over two cores wake-ups about double what the CPU shows.
const THROUGHPUT: [Promise; 2] = [
    Promise {
        name: "nginx_throughput_core",
        added: None,
        least: [Some(0.92), Some(0.98)],
        least_of_floor: [Some(0.98), None],
    },
    Promise { name: "nginx_throughput", added: None, least: [Some(0.95), Some(0.95)], least_of_floor: [None; 2] },
];
const SIDES: usize = 5;

pub fn throughput_steps(plan: &Plan) -> usize {
    plan.pairs * SIDES
}

pub fn cpu_steps(plan: &Plan) -> usize {
    plan.stage_rounds * SIDES
}

fn sides<'a>(servers: &'a NetNs, cgroup: &Cgroup) -> Result<Sides<'a>> {
    let unit = |follow| Some(Unit { cgroup: cgroup.path().to_owned(), container: "web", follow });
    Ok(Sides::new(vec![
        Setting::new("without following", POLICY, servers, unit(false))?,
        Setting::new("everything on", POLICY, servers, unit(true))?,
    ]))
}

pub fn cpu(plan: &Plan, progress: &mut Progress, outcome: &mut Outcome) -> Result<()> {
    let cgroup = Cgroup::new("nginx")?;
    let mut stage = Stage::start("/1k", Some(&cgroup), |_| Ok(()))?;
    let topology = stage.topology();
    let sides = sides(&topology.server, &cgroup)?;
    let mut pings = Pings::default();
    let stage_plan = cpu::Plan { rounds: plan.stage_rounds, batches: plan.batches };
    let trial = Trial { sides: &sides, about: ABOUT, promises: &CPU };
    cpu::run(stage_plan, &mut stage, trial, progress, outcome, |side| {
        pings.take(side, plan.batches)?;
        is_charged(side)
    })?;
    report_pings(&pings, outcome);
    stage.stop()
}

pub fn throughput(plan: &Plan, progress: &mut Progress, outcome: &mut Outcome) -> Result<()> {
    let topology = Topology::new()?;
    let cgroup = Cgroup::new("nginx")?;
    let nginx = start_nginx(&topology, NginxConfig::listening(PORT, &[&PORT.to_string()], 1, "")?, Some(&cgroup))?;
    let sides = sides(&topology.server, &cgroup)?;
    let load = throughput::Plan { rounds: plan.pairs, seconds: plan.load_seconds, port: PORT, path: "/1k" };
    let trial = Trial { sides: &sides, about: ABOUT, promises: &THROUGHPUT };
    throughput::run(load, (&topology, &nginx.workers()), trial, progress, outcome, is_charged)
}

/// What is not done costs nothing: both classes must have been charged what the setting charges.
fn is_charged(side: Side) -> Result<()> {
    let Side::With(setting) = side else { return Ok(()) };
    let used = usage()?;
    for class in CLASSES {
        let mut of = used.iter().filter(|one| one.container == class);
        if !of.any(|one| one.receive_ns > 0 && (setting == CORE || one.thread_ns > 0)) {
            return Err(Error::failed(format!("nothing was charged to {class} while its clients were served")));
        }
    }
    Ok(())
}

fn report_pings(pings: &Pings, outcome: &mut Outcome) {
    let [without, floor, with] =
        [Side::Without, Side::Floor(FOLLOWING), Side::With(FOLLOWING)].map(|side| pings.of(side));
    let mut table = Table::new(
        "A byte to and fro between two threads that nobody manages, on one CPU: ns a round trip",
        &["", "ns", "of without", "quartiles"],
    );
    for (title, ns) in [("without Fief", &without), ("empty programs", &floor), ("everything on", &with)] {
        let ratio = Spread::of(&ratios(ns, &without));
        let quartiles = format!("{:.4} - {:.4}", ratio.low, ratio.high);
        table.row([title.to_owned(), number(median(ns)), format!("{:.4}", ratio.median), quartiles]);
    }
    outcome.tables.push(table);
    let load = "two threads on one CPU that wake each other; the lowest tenth of batches of 500 round trips";
    for (name, over, under, bound, what) in [
        ("pipe_pingpong", &with, &without, Some(Bound::AtMost(1.08)), "with everything on, of Fief down"),
        ("pipe_pingpong_floor", &floor, &without, None, "with empty programs at the same places, of Fief down"),
        ("pipe_pingpong_vs_floor", &with, &floor, None, "with everything on, of empty programs at the same places"),
    ] {
        let value = median(&ratios(over, under));
        let figure = match bound {
            Some(bound) => outcome.figures.must(name, value, bound),
            None => outcome.figures.add(name, value),
        };
        let metric = format!("a byte to and fro between two threads that nobody manages, {what}");
        figure.of(metric, "ratio", load);
    }
}

/// Both players of a ping-pong that nobody manages.
impl Pings {
    fn take(&mut self, side: Side, batches: usize) -> Result<()> {
        let ns = super::pingpong::round_trip_ns(Topology::server_cpu(), batches, |_: Player| Ok(()))?;
        self.push(side, ns);
        Ok(())
    }
}
