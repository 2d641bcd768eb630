// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Whether a class is answered as soon as its policy promises, while another asks in bursts and the server halves its speed for
//! two seconds.
//!
//! Both classes ask in an open loop. The clients of the promised class judge each second by itself: it is held if 99 of a hundred
//! requests that came to an end in it were answered in time; one that was refused, failed or given up was not. Beside it stand
//! the plain server, and the same queue without a promise, since an order alone does much.

use super::case::Connections;
use super::kind::Kind;
use super::plan::chosen;
use super::stand::Stand;
use super::way::{self, Way};
use super::{Plan, cost};
use crate::error::Result;
use crate::experiments::Outcome;
use crate::figures::Bound;
use crate::installation::queues;
use crate::load::{Arrivals, Close, Load, Seen, Volleys};
use crate::noise::{Noise, Snapshot};
use crate::progress::Progress;
use crate::statistics::{median, ratios};
use crate::table::{Table, cost_ms, number};
use crate::wanted::Wanted;
use fief_testkit::{Client, Topology};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::{Value, json};
use std::time::Duration;

/// One that computes, and one whose requests wait for others besides: there a single request at a time is no answer. Go as it comes
/// listens with multipath TCP, and what comes there with the end of a handshake while no place is free comes again 0.2 s later: what
/// is promised does not hold, and is measured without a bound.
const KINDS: [Kind; 3] = [Kind::GoTcp, Kind::SleeperTcp, Kind::Go];
const COST_US: u64 = 1000;
const PROMISE: &str = "99% in 20ms";
const WITHIN: Duration = Duration::from_millis(20);
/// Of a hundred.
const LATE_MOST: f64 = 0.01;
/// A request of the promised class that takes longer is given up, so that no second passes without a word of it.
const PATIENCE_MS: u64 = 1000;
/// What the classes ask for, of the capacity. Together it is more than the server does at half its speed.
const HIGH: f64 = 0.2;
const LOW: f64 = 0.3;
const BURSTS: Volleys = Volleys { least: 50, most: 150, per_second: 2.0 };
/// More requests under way than this are not offered.
const MOST_UNDER_WAY: usize = 6000;
/// Enough that the core is never without work.
const CLIENTS: usize = 40;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum How {
    Plain,
    /// A queue that knows the order alone.
    Unpromised,
    Promised,
}

impl How {
    const ALL: [How; 3] = [How::Plain, How::Unpromised, How::Promised];

    fn name(self) -> &'static str {
        match self {
            How::Plain => "plain",
            How::Unpromised => "unpromised",
            How::Promised => "promised",
        }
    }

    fn title(self) -> &'static str {
        match self {
            How::Plain => "plain",
            How::Unpromised => "Fief's queue, nothing promised",
            How::Promised => "Fief's queue, promised",
        }
    }

    /// Begins its figure's name.
    fn prefix(self) -> &'static str {
        match self {
            How::Plain => "plain_",
            How::Unpromised => "unpromised_",
            How::Promised => "",
        }
    }

    fn policy(self) -> Option<String> {
        let order = way::policy("queue = true");
        let promised = format!("cpu.priority = 200\nlatency = \"{PROMISE}\"");
        match self {
            How::Plain => None,
            How::Unpromised => Some(order),
            How::Promised => Some(order.replace("cpu.priority = 200", &promised)),
        }
    }
}

/// How long all takes, in seconds.
#[derive(Clone, Copy, Debug)]
struct Times {
    /// Until Fief has found out how many requests the server is to get.
    warm_up: u32,
    measured: u32,
    /// When the server becomes slow, after the warm-up, and for how long.
    slow_from: u32,
    slow: u32,
}

impl Times {
    fn of(plan: &Plan) -> Times {
        match plan.is_tried() {
            true => Times { warm_up: 1, measured: 3, slow_from: 1, slow: 1 },
            false => Times { warm_up: 4, measured: 20, slow_from: 6, slow: 2 },
        }
    }
}

struct One {
    kind: Kind,
    how: How,
    round: usize,
    /// Of the promised class.
    seconds: Vec<Seen>,
    high: Seen,
    low: Seen,
    noise: Noise,
    /// What Fief says of the classes at the end.
    classes: Vec<Value>,
}

impl One {
    fn to_json(&self) -> Value {
        let second = |seen: &Seen| json!({ "ended": seen.ended(), "late": late(seen), "held": is_held(seen) });
        json!({
            "experiment": "queue", "part": "objective", "server": self.kind.name(), "way": self.how.name(), "round": self.round,
            "met": met([self]), "seconds": self.seconds.iter().map(second).collect::<Vec<_>>(),
            "paying_p99_us": self.high.p99_us(), "paying_stalls": self.high.stalls, "paying_refused": self.high.refused, "paying_errors": self.high.errors,
            "paying_given_up": self.high.given_up, "others_per_second": self.low.per_second(), "others_refused": self.low.refused,
            "others_shed": self.low.shed, "busy": self.noise.busy, "foreign": self.noise.foreign,
            "classes": self.classes,
        })
    }
}

fn late(seen: &Seen) -> u64 {
    seen.ended() - seen.latency.within(WITHIN.as_nanos() as u64)
}

fn is_held(second: &Seen) -> bool {
    let ended = second.ended();
    ended > 0 && late(second) as f64 <= LATE_MOST * ended as f64
}

/// The part of all their seconds in which the promise was held.
fn met<'a>(all: impl IntoIterator<Item = &'a One>) -> f64 {
    let seconds: Vec<bool> = all.into_iter().flat_map(|one| &one.seconds).map(is_held).collect();
    seconds.iter().filter(|held| **held).count() as f64 / seconds.len() as f64
}

/// Adds what came out to the outcome.
pub fn run(plan: &Plan, topology: &Topology, is_full: bool, outcome: &mut Outcome) -> Result<()> {
    let wanted = Wanted::from_env();
    let least = if plan.is_tried() { &[Kind::GoTcp, Kind::Go][..] } else { &KINDS };
    let kinds = least.iter().copied().filter(|kind| kind.check().is_ok()).collect();
    let kinds = chosen(&wanted, kinds, |kind: &Kind| kind.name().to_owned());
    let ways = chosen(&wanted, How::ALL.to_vec(), |how| how.name().to_owned());
    let hows =
        |kind: Kind| ways.iter().copied().filter(|how| kind != Kind::Go || *how == How::Promised).collect::<Vec<_>>();
    let (rounds, times) = (if is_full { 3 } else { 1 }, Times::of(plan));
    let mut progress =
        Progress::new("queue, objective", kinds.iter().map(|kind| hows(*kind).len()).sum::<usize>() * rounds);
    let mut all = Vec::new();
    for &kind in &kinds {
        let work = cost::work(topology, (kind, Connections::Each), COST_US, plan.seconds.min(0.5))?;
        for round in 0..rounds {
            let capacity = capacity(topology, kind, work, plan.seconds)?;
            let hows = hows(kind);
            for turn in 0..hows.len() {
                let how = hows[(turn + round) % hows.len()];
                progress.step(&format!("round {}, {}, {}", round + 1, kind.title(), how.title()))?;
                let way = if how == How::Plain { Way::Plain } else { Way::Queue };
                let stand = Stand::under(topology, kind, way, work, how.policy().as_deref())?;
                all.push(once(topology, (kind, how, round), capacity, times)?);
                stand.stop()?;
            }
        }
    }
    outcome.measurements.extend(all.iter().map(One::to_json));
    for kind in kinds {
        outcome.tables.push(table(kind, &all));
        figures(kind, &all, outcome);
    }
    Ok(())
}

/// Requests a second of closed-loop clients.
fn capacity(topology: &Topology, kind: Kind, work: usize, seconds: f64) -> Result<f64> {
    let stand = Stand::start(topology, kind, Way::Plain, work)?;
    let load = Load { seconds, warm_up: 0.2, close: Close::Fin, ..Load::of(Client::Low, 20, CLIENTS) };
    let seen = load.start(&topology.clients)?.finish()?;
    stand.stop()?;
    Ok(seen.per_second())
}

fn once(topology: &Topology, (kind, how, round): (Kind, How, usize), capacity: f64, times: Times) -> Result<One> {
    let load = |class: Client, arrivals: Arrivals| Load {
        // its last second is told too
        seconds: f64::from(times.measured) + 0.5,
        warm_up: times.warm_up.into(),
        arrivals: Some(arrivals),
        close: Close::Fin,
        ..Load::of(class, 40, MOST_UNDER_WAY)
    };
    let bursts = Arrivals { volleys: Some(BURSTS), ..Arrivals::evenly(LOW * capacity) };
    let high = Load {
        patience_ms: PATIENCE_MS,
        live_ms: 1000,
        // whose service is judged must not wait for the others on their own side
        fifo: 40,
        ..load(Client::High, Arrivals::evenly(HIGH * capacity))
    };
    let low = load(Client::Low, bursts).start(&topology.clients)?;
    let high = high.start(&topology.clients)?;
    let mut seconds = Vec::new();
    let (high, (noise, classes)) = std::thread::scope(|scope| {
        let slow = scope.spawn(|| slow_down(topology, how, times));
        let high = high.watch(|second| seconds.push(second.clone()));
        (high, slow.join().unwrap_or_default())
    });
    let seconds = seconds.into_iter().skip(times.warm_up as usize).take(times.measured as usize).collect();
    Ok(One { kind, how, round, seconds, high: high?, low: low.finish()?, noise, classes })
}

/// Has the server take twice as long for a while; what else happened meanwhile, and what Fief says of it.
fn slow_down(topology: &Topology, how: How, times: Times) -> (Noise, Vec<Value>) {
    let sleep = |seconds: u32| std::thread::sleep(Duration::from_secs(seconds.into()));
    sleep(times.warm_up);
    let before = Snapshot::take();
    sleep(times.slow_from);
    tell(topology, Signal::SIGUSR1);
    sleep(times.slow);
    tell(topology, Signal::SIGUSR2);
    sleep(times.measured - times.slow_from - times.slow - 1);
    let noise = before.until_now();
    let classes = if how == How::Plain { Vec::new() } else { queues().unwrap_or_default() };
    (noise, classes)
}

/// A signal to the Go program in the server's namespace.
fn tell(topology: &Topology, signal: Signal) {
    let is_server =
        |pid: &u32| std::fs::read_to_string(format!("/proc/{pid}/comm")).is_ok_and(|name| name.trim() == "web");
    for pid in topology.server.pids().into_iter().filter(is_server) {
        let _ = kill(Pid::from_raw(pid.cast_signed()), signal);
    }
}

fn of(all: &[One], kind: Kind, how: How) -> Vec<&One> {
    let mut some: Vec<&One> = all.iter().filter(|one| (one.kind, one.how) == (kind, how)).collect();
    some.sort_by_key(|one| one.round);
    some
}

fn table(kind: Kind, all: &[One]) -> Table {
    let title = format!("{}, bursts of the others, half the speed for a while: {PROMISE}", kind.title());
    let mut table =
        Table::new(title, &["way", "seconds held", "paying, 99th percentile, ms", "others, requests a second"]);
    for how in How::ALL {
        let some = of(all, kind, how);
        if some.is_empty() {
            continue;
        }
        let middle = |value: fn(&One) -> f64| number(median(&some.iter().map(|one| value(one)).collect::<Vec<_>>()));
        let count: usize = some.iter().map(|one| one.seconds.len()).sum();
        let held = met(some.iter().copied()) * count as f64;
        let held = format!("{held:.0} of {count}");
        table.row([
            how.title().to_owned(),
            held,
            middle(|one| one.high.p99_us() / 1000.0),
            middle(|one| one.low.per_second()),
        ]);
    }
    table
}

fn figures(kind: Kind, all: &[One], outcome: &mut Outcome) {
    let load = format!(
        "{}, requests of {}, an open loop: {HIGH} of the capacity by the promised class, {LOW} by another and {} bursts \
         a second of {} to {} requests; each request costs twice as much for 2 s",
        kind.title(),
        cost_ms(COST_US),
        BURSTS.per_second,
        BURSTS.least,
        BURSTS.most
    );
    for how in How::ALL {
        let name = format!("{}.{}met", kind.name(), how.prefix());
        let some = of(all, kind, how);
        if some.is_empty() {
            continue;
        }
        let value = met(some);
        let figure = match how {
            How::Promised if kind != Kind::Go => outcome.figures.must(name, value, Bound::AtLeast(0.95)),
            _ => outcome.figures.add(name, value),
        };
        let metric = format!("part of the seconds in which {PROMISE} held, as clients measure it: {}", how.title());
        figure.of(metric, "ratio", load.clone());
    }
    let low = |how: How| of(all, kind, how).iter().map(|one| one.low.per_second()).collect::<Vec<_>>();
    let value = median(&ratios(&low(How::Promised), &low(How::Plain)));
    if value.is_nan() {
        return;
    }
    let figure = outcome.figures.add(format!("{}.met_low_vs_plain", kind.name()), value);
    figure.of(
        "requests a second that the other class gets beside a promise, of those at the plain server",
        "ratio",
        load,
    );
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::statistics::Histogram;

    fn second(fast: u64, slow: u64, refused: u64) -> Seen {
        let mut latency = Histogram::default();
        (0..fast).for_each(|_| latency.record(5_000_000));
        (0..slow).for_each(|_| latency.record(30_000_000));
        Seen { latency, refused, ..Seen::default() }
    }

    #[test]
    fn a_second_is_held_with_one_late_of_a_hundred_and_not_with_two() {
        assert!(is_held(&second(99, 1, 0)) && is_held(&second(50, 0, 0)));
        assert!(!is_held(&second(98, 2, 0)) && !is_held(&second(50, 1, 0)));
        assert!(!is_held(&second(98, 0, 2)), "a refusal is no answer");
        assert!(!is_held(&second(0, 0, 0)), "nothing was answered");
        assert!(!is_held(&Seen { given_up: 2, ..second(98, 0, 0) }));
    }

    #[test]
    fn all_seconds_of_all_rounds_count_alike() {
        let one = |seconds: Vec<Seen>| One {
            kind: Kind::Go,
            how: How::Promised,
            round: 0,
            seconds,
            high: Seen::default(),
            low: Seen::default(),
            noise: Noise::default(),
            classes: Vec::new(),
        };
        let rounds = [one(vec![second(100, 0, 0); 3]), one(vec![second(0, 9, 0)])];
        assert!((met(&rounds) - 0.75).abs() < 1e-9);
    }

    #[test]
    fn only_the_promised_queue_has_a_promise() {
        let has = |how: How| how.policy().is_some_and(|policy| policy.contains("latency = \"99% in 20ms\""));
        assert_eq!(How::ALL.map(has), [false, false, true]);
        assert!(How::Unpromised.policy().is_some_and(|policy| policy.contains("queue = true")));
    }

    #[test]
    fn the_server_is_slow_within_what_is_measured() {
        for plan in [Plan::least(), Plan::quick(), Plan::full()] {
            let times = Times::of(&plan);
            assert!(times.slow_from + times.slow < times.measured, "{times:?}");
        }
    }
}
