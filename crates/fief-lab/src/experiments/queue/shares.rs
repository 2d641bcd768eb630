// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Three classes of one server of one thread, each with more requests than it can have: whether each gets its share of the
//! CPU, its weight, or no more than its limit.
//!
//! What a class got is the number of its requests that were answered, times what one of them costs where its class asks alone,
//! by the kernel's clocks of the server's processes: not the charge that the queue goes by, which stands beside it in the JSON. Costs are
//! measured before and after, the classes in turn, all at one and the same server: where its pages lie, a request costs some percent more or
//! less. What else disturbs a measurement adds to it, so the classes' parts go by the lower quartile of each one's costs. A machine is faster
//! at one time than at another by more than the bound of a limit allows: so what the processes used, divided in the same proportion, stands
//! beside what follows from the costs' medians.
//! A class with a limit that asks alone is judged by the kernel's clocks of the measured run, all of which is its own: its requests cost more
//! there than where nothing is divided, since the server sleeps in between.
//! Requests of one class cost four times those of the others, so that an order by number would show.

use super::case::Connections;
use super::kind::{Kind, LONG};
use super::stand::Stand;
use super::way::{PORT, Way};
use super::{Plan, borrowed, cost};
use crate::command::usage;
use crate::cpu_time::cpu_seconds;
use crate::error::{Error, Result};
use crate::experiments::Outcome;
use crate::figures::Bound;
use crate::load::Load;
use crate::progress::Progress;
use crate::statistics::{median, quantile};
use crate::table::{Table, number};
use fief_testkit::{Client, Family, Topology};
use serde_json::json;
use std::time::{Duration, Instant};

const CLASSES: [Client; 3] = [Client::High, Client::Low, Client::Middle];
const SHORT: &str = "/1k";
/// Of each class.
const CLIENTS: usize = 20;
const COST_US: u64 = 300;
/// Of the machine.
const LIMIT_PERCENT: f64 = 20.0;

/// What a policy says of the three classes, and what they ask for.
#[derive(Clone, Copy, Debug)]
struct Wish {
    name: &'static str,
    says: [&'static str; 3],
    asks: [Option<&'static str>; 3],
    /// In percent of what all get; of the machine for a limit.
    expected: [Option<f64>; 3],
}

const WISHES: [Wish; 4] = [
    Wish {
        name: "share",
        says: ["cpu.share = \"60%\"", "cpu.share = \"30%\"", "cpu.share = \"10%\""],
        asks: [Some(SHORT), Some(LONG), Some(SHORT)],
        expected: [Some(60.0), Some(30.0), Some(10.0)],
    },
    Wish {
        name: "weight",
        says: ["cpu.weight = 100", "cpu.weight = 200", "cpu.weight = 400"],
        asks: [Some(LONG), Some(SHORT), Some(SHORT)],
        expected: [Some(100.0 / 7.0), Some(200.0 / 7.0), Some(400.0 / 7.0)],
    },
    Wish {
        name: "limit",
        says: ["cpu.limit = \"20%\"", "", ""],
        asks: [Some(SHORT), Some(LONG), None],
        expected: [Some(LIMIT_PERCENT), None, None],
    },
    Wish {
        name: "limit_alone",
        says: ["cpu.limit = \"20%\"", "", ""],
        asks: [Some(LONG), None, None],
        expected: [Some(LIMIT_PERCENT), None, None],
    },
];

impl Wish {
    fn is_limit(&self) -> bool {
        self.name.starts_with("limit")
    }

    /// Whether one class asks and no other.
    fn is_alone(&self) -> bool {
        self.asks.iter().flatten().count() == 1
    }

    fn policy(&self, kind: Kind) -> String {
        let containers: String = (0..).zip(self.says).map(|(n, says)| format!("[container.c{n}]\n{says}\n")).collect();
        let client =
            |from: &str, to: &str| format!("[[listener.web.client]]\nfrom = [\"{from}\"]\ncontainer = \"{to}\"\n");
        let class = |(n, class): (usize, Client)| client(&class.prefix(Family::V4), &format!("c{n}"));
        let clients: String = CLASSES.into_iter().enumerate().map(class).collect();
        format!(
            "version = 1\n{containers}[container.rest]\n[listener.web]\naddress = \"0.0.0.0:{PORT}\"\n\
             queue = {{ in-service = {} }}\n{clients}{}",
            kind.workers(),
            client("any", "rest")
        )
    }

    /// The largest distance from what is expected, in points. `got`: CPU seconds of each class, of so many of the machine.
    fn error_points(&self, got: [f64; 3], machine: f64) -> f64 {
        let all = if self.is_limit() { machine } else { got.iter().sum() };
        let distance =
            |(got, expected): (f64, Option<f64>)| expected.map(|expected| (100.0 * got / all - expected).abs());
        got.into_iter().zip(self.expected).filter_map(distance).fold(0.0, f64::max)
    }
}

struct Measured {
    kind: Kind,
    wish: Wish,
    round: usize,
    /// In percent of what the wish speaks of.
    percent: [f64; 3],
    /// The same of what the processes used, and its distance.
    by_clocks: [f64; 3],
    clock_error_points: f64,
    error_points: f64,
    /// The same as the classes' own accounts say, which the queue goes by.
    charged_percent: [f64; 3],
    /// What the class's account has, of the time of the server's processes, where the class asks alone.
    alone_charged: [f64; 3],
    /// CPU time of a request of each class, as often as it was measured.
    costs_us: Vec<[f64; 3]>,
}

/// Adds what came out to the outcome.
pub fn run(plan: &Plan, topology: &Topology, outcome: &mut Outcome) -> Result<()> {
    let mut kinds: Vec<Kind> = [Kind::Nginx, Kind::Go].into_iter().filter(|kind| plan.kinds.contains(kind)).collect();
    if plan.is_tried() {
        kinds.truncate(1);
    }
    let (rounds, seconds) = (plan.rounds.min(3), if plan.seconds < 0.5 { plan.seconds } else { 3.0 });
    let mut progress = Progress::new("queue, shares", kinds.len() * (WISHES.len() + 1) * rounds);
    let (mut measured, mut borrowings) = (Vec::new(), Vec::new());
    for &kind in &kinds {
        let work = cost::work(topology, (kind, Connections::Persistent), COST_US, seconds.min(0.5))?;
        for round in 0..rounds {
            for wish in WISHES {
                progress.step(&format!("{}, {}", kind.title(), wish.name))?;
                measured.push(once(topology, (kind, work), wish, round, seconds)?);
            }
            progress.step(&format!("{}, a share that is not used", kind.title()))?;
            let stand = Stand::under(topology, kind, Way::Queue, work, Some(&WISHES[0].policy(kind)))?;
            borrowings.push((kind, borrowed::once(topology, seconds)?));
            stand.stop()?;
        }
    }
    outcome.measurements.extend(measured.iter().map(|one| {
        json!({
            "experiment": "queue", "part": "shares", "server": one.kind.name(), "what": one.wish.name, "round": one.round,
            "percent": one.percent, "error_points": one.error_points, "by_clocks": one.by_clocks,
            "charged_percent": one.charged_percent, "alone_charged": one.alone_charged,
            "costs_us": one.costs_us,
        })
    }));
    outcome.measurements.extend(borrowings.iter().map(
        |(kind, ms)| json!({ "experiment": "queue", "part": "borrowed", "server": kind.name(), "borrowed_ms": ms }),
    ));
    for kind in kinds {
        outcome.tables.push(table(kind, &measured));
        let ms: Vec<f64> = borrowings.iter().filter(|(of, _)| *of == kind).map(|(_, ms)| *ms).collect();
        let metric = "time from the last request of a class with a share of 60 % until the others are answered as many as later on";
        let load = format!("{}, classes of 60, 30 and 10 %, 20 closed-loop clients each", kind.title());
        outcome
            .figures
            .must(format!("{}.borrowed_ms", kind.name()), median(&ms), Bound::AtMost(100.0))
            .of(metric, "ms", load);
        for wish in WISHES {
            let points = median(&of(&measured, kind, wish).map(|one| one.error_points).collect::<Vec<_>>());
            let bound = Bound::AtMost(if wish.is_limit() { 0.5 } else { 1.0 });
            let name = format!("{}.{}_error_points", kind.name(), wish.name);
            let got = match wish.is_alone() {
                true => "what the server's processes used by the kernel's clocks",
                false => "requests answered times the cost of one measured alone",
            };
            let metric = format!("worst class's distance from what the policy says, in points: {got}");
            let load =
                format!("{}, three classes of {CLIENTS} closed-loop clients, persistent connections", kind.title());
            outcome.figures.must(name, points, bound).of(metric, "points", &load);
            if wish.name == "limit" {
                let points = of(&measured, kind, wish).map(|one| one.clock_error_points).collect::<Vec<_>>();
                let metric = "the same, of what the server's processes used by the kernel's clocks";
                let name = format!("{}.limit_clock_error_points", kind.name());
                outcome.figures.add(name, median(&points)).of(metric, "points", load);
            }
        }
    }
    Ok(())
}

fn of(measured: &[Measured], kind: Kind, wish: Wish) -> impl Iterator<Item = &Measured> {
    measured.iter().filter(move |one| one.kind == kind && one.wish.name == wish.name)
}

fn once(topology: &Topology, (kind, work): (Kind, usize), wish: Wish, round: usize, seconds: f64) -> Result<Measured> {
    // half of the costs afterwards, since a machine has its days
    let is_tried = seconds < 0.5;
    let nothing = Wish { says: [""; 3], ..wish };
    let mut stand = Stand::under(topology, kind, Way::Queue, work, Some(&nothing.policy(kind)))?;
    let costs = |stand: &Stand| costs(topology, (kind, stand), wish, seconds, if is_tried { 1 } else { COSTS });
    let mut all_costs = costs(&stand)?;
    stand.change(topology, &wish.policy(kind))?;
    // what was saved up is used up, and debts are carried
    let begin = |(class, asks): (Client, Option<&str>)| {
        asks.map(|path| Load { warm_up: seconds / 3.0, ..load(class, path, seconds) }.start(&topology.clients))
            .transpose()
    };
    let loads = CLASSES.into_iter().zip(wish.asks).map(begin).collect::<Result<Vec<_>>>()?;
    std::thread::sleep(Duration::from_secs_f64(seconds / 3.0));
    let clocks = || Ok::<_, Error>(cpu_seconds(&stand.processes(topology)?));
    let (before, used, begin) = (charged()?, clocks()?, Instant::now());
    std::thread::sleep(Duration::from_secs_f64(seconds));
    let (after, used, passed) = (charged()?, clocks()? - used, begin.elapsed().as_secs_f64());
    let answered = loads.into_iter().map(|load| load.map_or(Ok(0.0), |load| Ok(load.finish()?.per_second())));
    let answered = answered.collect::<Result<Vec<_>>>()?;
    if !is_tried {
        stand.change(topology, &nothing.policy(kind))?;
        all_costs.extend(costs(&stand)?);
    }
    stand.stop()?;
    let of =
        |n: usize, value: fn(&Alone) -> f64| median(&all_costs.iter().map(|each| value(&each[n])).collect::<Vec<_>>());
    let part = divided(1.0, [0, 1, 2].map(|n| answered[n] * undisturbed(all_costs.iter().map(|each| each[n].us))));
    let by_clocks = part.map(|part| part * used / passed);
    let by_costs: f64 = (0..3).map(|n| answered[n] * of(n, |alone| alone.us) / 1e6).sum();
    let got = if wish.is_alone() { by_clocks } else { part.map(|part| part * by_costs) };
    let alone_charged = [0, 1, 2].map(|n| of(n, |alone| alone.charged));
    let costs_us = all_costs.iter().map(|each| each.map(|alone| alone.us)).collect();
    let machine = std::thread::available_parallelism().map_or(1.0, |cpus| cpus.get() as f64);
    let percent_of = |each: [f64; 3]| {
        let all = if wish.is_limit() { machine } else { each.iter().sum() };
        each.map(|one| 100.0 * one / all)
    };
    let charged = [0, 1, 2].map(|n| (after[n] - before[n]) / passed);
    Ok(Measured {
        kind,
        wish,
        round,
        percent: percent_of(got),
        by_clocks: percent_of(by_clocks),
        clock_error_points: wish.error_points(by_clocks, machine),
        error_points: wish.error_points(got, machine),
        charged_percent: percent_of(charged),
        alone_charged,
        costs_us,
    })
}

/// So much in this proportion.
fn divided(all: f64, parts: [f64; 3]) -> [f64; 3] {
    parts.map(|part| all * part / parts.iter().sum::<f64>())
}

/// What a request costs where little else is done: the lower quartile.
fn undisturbed(costs: impl Iterator<Item = f64>) -> f64 {
    quantile(&costs.collect::<Vec<_>>(), 0.25)
}

fn load(class: Client, path: &str, seconds: f64) -> Load {
    Load {
        path: path.to_owned(),
        seconds,
        close: Connections::Persistent.close(),
        ..Load::of(class, CLIENTS as u8, CLIENTS)
    }
}

/// What a request of each class costs where nothing is divided, so many times.
fn costs(
    topology: &Topology,
    (kind, stand): (Kind, &Stand),
    wish: Wish,
    seconds: f64,
    times: usize,
) -> Result<Vec<[Alone; 3]>> {
    let cost = |n: usize, path: &str| -> Result<Alone> {
        let clocks = || Ok::<_, Error>(cpu_seconds(&stand.processes(topology)?));
        let (account, before) = (charged()?[n], clocks()?);
        let us = cost::cost_at(topology, stand, kind, load(CLASSES[n], path, seconds / 16.0))?;
        Ok(Alone { us, charged: (charged()?[n] - account) / (clocks()? - before) })
    };
    let mut found = Vec::new();
    for _ in 0..times {
        let mut each = [Alone::default(); 3];
        for (n, path) in wish.asks.into_iter().enumerate() {
            each[n] = path.map(|path| cost(n, path)).transpose()?.unwrap_or_default();
        }
        found.push(each);
    }
    Ok(found)
}

/// Of one class that asks alone.
#[derive(Clone, Copy, Debug, Default)]
struct Alone {
    /// CPU time of a request.
    us: f64,
    /// The account's part of the time of the server's processes.
    charged: f64,
}

/// So often a cost is measured before, and as often afterwards.
const COSTS: usize = 8;

/// CPU seconds in the accounts of the three classes.
fn charged() -> Result<[f64; 3]> {
    let all = usage()?;
    let of = |n: usize| all.iter().find(|one| one.container == format!("c{n}"));
    Ok([0, 1, 2].map(|n| of(n).map_or(0.0, |one| (one.thread_ns + one.receive_ns) as f64 / 1e9)))
}

fn table(kind: Kind, measured: &[Measured]) -> Table {
    let title = format!("{}, three classes: percent of the CPU that they share (limits: of the machine)", kind.title());
    let mut table = Table::new(title, &["what", "first", "second", "third", "error, points"]);
    for wish in WISHES {
        let middle =
            |value: &dyn Fn(&Measured) -> f64| number(median(&of(measured, kind, wish).map(value).collect::<Vec<_>>()));
        let class = |n: usize| match (wish.asks[n], wish.expected[n]) {
            (None, _) => "-".to_owned(),
            (_, Some(expected)) => format!("{} of {}", middle(&|one: &Measured| one.percent[n]), number(expected)),
            (_, None) => middle(&|one: &Measured| one.percent[n]),
        };
        let points = middle(&|one: &Measured| one.error_points);
        table.row([wish.name.to_owned(), class(0), class(1), class(2), points]);
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_are_points_of_what_is_divided_or_of_the_machine() {
        let [share, _, limit, _] = WISHES;
        assert!((share.error_points([0.57, 0.33, 0.10], 2.0) - 3.0).abs() < 1e-9);
        assert!((limit.error_points([0.41, 0.59, 0.0], 2.0) - 0.5).abs() < 1e-9, "the others have no limit");
    }

    #[test]
    fn what_was_used_is_divided_in_proportion() {
        let got = divided(0.9, [0.4, 0.2, 0.0]);
        assert!(got.iter().zip([0.6, 0.3, 0.0]).all(|(got, wanted)| (got - wanted).abs() < 1e-9), "{got:?}");
    }

    #[test]
    fn each_policy_has_its_classes_and_a_queue() {
        for wish in WISHES {
            let policy = wish.policy(Kind::Go);
            for part in
                wish.says.into_iter().chain(["container = \"c2\"", "from = [\"any\"]", "queue = { in-service = 1 }"])
            {
                assert!(policy.contains(part), "{part}: {policy}");
            }
        }
    }
}
