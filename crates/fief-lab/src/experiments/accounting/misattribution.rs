// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Whether receive work finds its class: two classes whose packets cost 10:1, interleaved, against each class alone.
//!
//! The work is in a socket filter, which the kernel runs for each packet in the context that received it. What a packet
//! costs alone is what it must cost in the mix: if a part of the expensive packets were charged to the cheap ones, the
//! cheap ones' cost would rise by ten times that part.

use super::Plan;
use super::packets::{BURST, From, Sender, awake};
use super::stage::Stage;
use super::worker::{Answer, Look, Order};
use crate::error::{Error, Result};
use crate::experiments::Outcome;
use crate::figures::Bound;
use crate::progress::Progress;
use crate::statistics::{median, ratios};
use crate::table::{Table, number};
use fief_testkit::{Topology, wait_until};
use serde_json::json;
use std::time::Duration;

/// Packets a second, of one class or of both: what a burst finds in the caches depends on how long the last one is ago.
const RATE: f64 = 6_000.0;
/// Steps of the filters; the second is a first guess where it matters.
pub const WORK: [u16; 2] = [80, 1700];
/// What a packet of the expensive class costs alone, of a cheap one's. Measured first, set by the filter's steps, and held again
/// against what was measured with.
const RATIO: f64 = 10.0;
/// Of the ratio, while it is set.
const NEAR: f64 = 0.03;
const TRIES: usize = 4;
const CLASSES: [&str; 2] = ["cheap", "expensive"];
pub const STEPS: usize = 8;

/// Where the kernel receives. veth has no NAPI thread without GRO, and no NAPI at all.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Context {
    /// On top of the sender; each packet by itself, or by way of the backlog.
    Softirq { gro: bool },
    /// In a softirq that takes up lists of packets: they came while it worked on a long one.
    SoftirqLists,
    /// In a thread, which takes up lists of packets: the sender is above it on its CPU, so that it finds whole bursts.
    Threaded,
}

impl Context {
    const ALL: [Context; 4] =
        [Context::Softirq { gro: true }, Context::Softirq { gro: false }, Context::SoftirqLists, Context::Threaded];

    fn title(self) -> &'static str {
        match self {
            Context::Softirq { gro: true } => "softirq, GRO on, one by one",
            Context::Softirq { gro: false } => "softirq, GRO off, one by one",
            Context::SoftirqLists => "softirq, GRO on, bursts",
            Context::Threaded => "threaded NAPI, GRO on, bursts",
        }
    }

    fn from(self) -> From {
        match self {
            Context::Softirq { .. } => From::Beside,
            Context::SoftirqLists => From::Behind,
            Context::Threaded => From::Above,
        }
    }

    fn set(self, topology: &Topology) -> Result<()> {
        let server = &topology.server;
        topology.set_receive(self == Context::Threaded, true)?;
        // What answers cost must not depend on whether the clients' thread happens to be awake.
        topology.clients.write_device("cv/threaded", "0")?;
        if self == (Context::Softirq { gro: false }) {
            fief_testkit::run(server.command("ethtool").args(["-K", Topology::SERVER, "gro", "off"]))?;
        }
        Ok(())
    }
}

#[derive(Clone, Copy, Debug)]
struct Way {
    tcp: bool,
    context: Context,
}

impl Way {
    fn all() -> impl Iterator<Item = Way> {
        Context::ALL.into_iter().flat_map(|context| [false, true].map(|tcp| Way { tcp, context }))
    }

    fn title(self) -> String {
        format!("{}, {}", if self.tcp { "TCP" } else { "UDP" }, self.context.title())
    }
}

/// Nanoseconds a packet, of each class: alone, and in the mix.
#[derive(Debug, Default)]
struct Costs {
    alone: [Vec<f64>; 2],
    mixed: [Vec<f64>; 2],
}

impl Costs {
    /// Round by round, since a host's speed changes by a tenth within less time than all rounds take.
    fn error(&self, class: usize) -> f64 {
        (median(&ratios(&self.mixed[class], &self.alone[class])) - 1.0).abs()
    }

    /// Of the expensive class, of the cheap one's.
    fn ratio(&self) -> f64 {
        median(&self.alone[1]) / median(&self.alone[0])
    }
}

pub fn run(plan: &Plan, stage: &mut Stage, progress: &mut Progress, outcome: &mut Outcome) -> Result<()> {
    let mut table = Table::new(
        "Receive work a packet, ns: alone / in the mix",
        &["way", CLASSES[0], "error", CLASSES[1], "error", "ratio alone"],
    );
    let (mut worst, mut ratio_errors): (f64, Vec<f64>) = (0.0, Vec::new());
    prepare(stage, true)?;
    for way in Way::all() {
        progress.step(&format!("receive work by class: {}", way.title()))?;
        let costs = awake(Topology::server_cpu(), || measure(plan, stage, way, outcome))?;
        ratio_errors.push((costs.ratio() / RATIO - 1.0).abs());
        let cell =
            |class: usize| format!("{} / {}", number(median(&costs.alone[class])), number(median(&costs.mixed[class])));
        let percent = |class: usize| format!("{:.1} %", costs.error(class) * 100.0);
        table.row([way.title(), cell(0), percent(0), cell(1), percent(1), number(costs.ratio())]);
        worst = [worst, costs.error(0), costs.error(1)].into_iter().fold(0.0, worse);
    }
    table.note(format!(
        "{RATE} packets a second, one by one or in bursts of {BURST}, of one class or of both in turn, each for {:.0} ms; medians \
         of {} rounds, the errors' of ratios round by round.",
        plan.stream_seconds * 1e3,
        plan.rounds
    ));
    // As the other parts expect it.
    prepare(stage, false)?;
    stage.topology.set_receive(true, true)?;
    outcome.tables.push(table);
    let metric = "receive time charged to the wrong one of two classes, of what its packets cost alone; the worst way";
    let load = format!("{RATE} packets a second of two interleaved classes, one by one and in bursts of {BURST}");
    outcome.figures.must("misattribution", worst, Bound::AtMost(0.05)).of(metric, "ratio", load.clone());
    let ratio = ratio_errors.into_iter().fold(0.0, worse);
    let metric = format!("what a packet of one class costs alone, of the other's, against {RATIO}; the worst way");
    outcome.figures.must("misattribution_ratio_error", ratio, Bound::AtMost(0.1)).of(metric, "ratio", load);
    Ok(())
}

/// Makes TCP send each packet at once and acknowledge it at once, else both depend on the time between packets.
fn prepare(stage: &Stage, prompt: bool) -> Result<()> {
    let topology = &stage.topology;
    let (quick, window) = if prompt { (1, 100) } else { (0, 10) };
    let route = |word: &str, own: u8, rest: &str| {
        format!("route change 10.77.0.0/16 dev {word} proto kernel scope link src 10.77.0.{own} {rest}")
    };
    topology.server.ip(&route(Topology::SERVER, 1, &format!("quickack {quick}")))?;
    topology.clients.ip(&route(Topology::CLIENTS, 2, &format!("initcwnd {window}")))?;
    // Else small writes wait for one another while the receiver has not taken up the last packet.
    topology.clients.sysctl("net.ipv4.tcp_autocorking", if prompt { "0" } else { "1" })?;
    Ok(())
}

/// The greater; what could not be measured is the worst.
fn worse(a: f64, b: f64) -> f64 {
    if a.is_nan() || b.is_nan() { f64::NAN } else { a.max(b) }
}

fn measure(plan: &Plan, stage: &mut Stage, way: Way, outcome: &mut Outcome) -> Result<Costs> {
    way.context.set(&stage.topology)?;
    let mut sender = calibrate(plan, stage, way)?;
    let mut costs = Costs::default();
    let mut turns = [&[0][..], &[1], &[0, 1]];
    for round in 0..plan.rounds {
        turns.rotate_left(1);
        for classes in turns {
            let (before, after) = streamed(plan, stage, way, &mut sender, classes)?;
            for &class in classes {
                let cost = per_packet(&before[class], &after[class]);
                let is_alone = classes.len() == 1;
                let sample = if is_alone { &mut costs.alone } else { &mut costs.mixed };
                sample[class].push(cost);
                outcome.measurements.push(json!({
                    "experiment": "misattribution", "way": way.title(), "round": round, "class": CLASSES[class],
                    "alone": is_alone, "packets": after[class].packets_in - before[class].packets_in,
                    "receive_ns_per_packet": cost,
                }));
            }
        }
    }
    Ok(costs)
}

/// Sockets whose packets cost alone what they should: a step's cost differs from machine to machine, and by how packets come.
fn calibrate(plan: &Plan, stage: &mut Stage, way: Way) -> Result<Sender> {
    let mut work = WORK;
    let mut sender = open(stage, way.tcp, work)?;
    for _ in 0..TRIES {
        let mut costs: [Vec<f64>; 2] = Default::default();
        for _ in 0..plan.rounds.clamp(1, 9) {
            for (class, costs) in costs.iter_mut().enumerate() {
                let (before, after) = streamed(plan, stage, way, &mut sender, &[class])?;
                costs.push(per_packet(&before[class], &after[class]));
            }
        }
        let [cheap, expensive] = costs.map(|costs| median(&costs));
        if (expensive / cheap / RATIO - 1.0).abs() <= NEAR {
            break;
        }
        let step = (expensive - cheap) / (f64::from(work[1]) - f64::from(work[0]));
        let steps = f64::from(WORK[0]) + cheap * (RATIO - 1.0) / step;
        if !steps.is_finite() {
            continue; // no packet came in so short a time
        }
        work[1] = steps.clamp(f64::from(WORK[0]) * 2.0, 8000.0) as u16;
        sender = open(stage, way.tcp, work)?;
    }
    Ok(sender)
}

/// What both classes used before and after a stream.
fn streamed(
    plan: &Plan,
    stage: &mut Stage,
    way: Way,
    sender: &mut Sender,
    classes: &[usize],
) -> Result<([Look; 2], [Look; 2])> {
    let before = look(stage)?;
    sender.stream(way.context.from(), classes, RATE, plan.stream_seconds)?;
    Ok((before, settled(stage)?))
}

fn per_packet(before: &Look, after: &Look) -> f64 {
    (after.receive_ns - before.receive_ns) as f64 / (after.packets_in - before.packets_in) as f64
}

/// Opens the worker's sockets and connects to them.
pub fn open(stage: &mut Stage, tcp: bool, work: [u16; 2]) -> Result<Sender> {
    let Answer::Receiving(ports) = stage.ask(&Order::Receive { tcp, work })? else {
        return Err(Error::failed("the worker did not say where it receives"));
    };
    let mut sender = Sender::connect(&stage.topology, tcp, ports)?;
    // The worker accepts and labels; from then on packets count for the classes.
    for class in 0..2 {
        let begin = look(stage)?[class].packets_in;
        let mut failed = None;
        wait_until(Duration::from_secs(5), || {
            let seen = sender.stream(From::Beside, &[class], RATE, 0.002).and_then(|()| look(stage));
            seen.map(|seen| seen[class].packets_in > begin).unwrap_or_else(|error| {
                failed = Some(error);
                true
            })
        })?;
        failed.map_or(Ok(()), Err)?;
    }
    Ok(sender)
}

fn look(stage: &mut Stage) -> Result<[Look; 2]> {
    match stage.ask(&Order::Look)? {
        Answer::Looked(looks) => Ok(looks),
        _ => Err(Error::failed("the worker did not read its containers")),
    }
}

/// Once no more packets come.
fn settled(stage: &mut Stage) -> Result<[Look; 2]> {
    let mut last = look(stage)?;
    loop {
        std::thread::sleep(Duration::from_millis(1));
        let now = look(stage)?;
        if now[0].packets_in == last[0].packets_in && now[1].packets_in == last[1].packets_in {
            return Ok(now);
        }
        last = now;
    }
}
