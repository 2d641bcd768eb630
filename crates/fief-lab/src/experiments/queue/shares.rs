// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Three classes of one server of one thread, each with more requests than it can have: whether each gets its share of the
//! CPU, its weight, or no more than its limit.
//!
//! What a class got is the number of its requests that were answered, times what one of them costs where its class asks alone,
//! by the kernel's clocks of the server's processes: not the charge that the queue goes by. Requests of one class cost four
//! times those of the others, so that an order by number would show.

use super::case::Connections;
use super::kind::{Kind, LONG};
use super::stand::Stand;
use super::way::{PORT, Way};
use super::{Plan, borrowed, cost};
use crate::error::Result;
use crate::experiments::Outcome;
use crate::figures::Bound;
use crate::load::Load;
use crate::progress::Progress;
use crate::statistics::median;
use crate::table::{Table, number};
use fief_testkit::{Client, Family, Topology};
use serde_json::json;

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
    error_points: f64,
}

/// Adds what came out to the outcome.
pub fn run(plan: &Plan, topology: &Topology, outcome: &mut Outcome) -> Result<()> {
    let kinds: Vec<Kind> = [Kind::Nginx, Kind::Go].into_iter().filter(|kind| plan.kinds.contains(kind)).collect();
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
            "percent": one.percent, "error_points": one.error_points,
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
            let metric = "worst class's distance from what the policy says, in points: requests answered times the cost of one \
                          measured alone";
            let load =
                format!("{}, three classes of {CLIENTS} closed-loop clients, persistent connections", kind.title());
            outcome.figures.must(name, points, bound).of(metric, "points", load);
        }
    }
    Ok(())
}

fn of(measured: &[Measured], kind: Kind, wish: Wish) -> impl Iterator<Item = &Measured> {
    measured.iter().filter(move |one| one.kind == kind && one.wish.name == wish.name)
}

fn once(topology: &Topology, (kind, work): (Kind, usize), wish: Wish, round: usize, seconds: f64) -> Result<Measured> {
    let start = |wish: &Wish| Stand::under(topology, kind, Way::Queue, work, Some(&wish.policy(kind)));
    let load = |class: Client, path: &str| Load {
        path: path.to_owned(),
        seconds,
        close: Connections::Persistent.close(),
        ..Load::of(class, CLIENTS as u8, CLIENTS)
    };
    // where nothing is divided, what a request of each class costs
    let alone = Wish { says: [""; 3], ..wish };
    let stand = start(&alone)?;
    let mut costs_us = [0.0; 3];
    for ((class, asks), cost_us) in CLASSES.into_iter().zip(wish.asks).zip(&mut costs_us) {
        if let Some(path) = asks {
            *cost_us = cost::cost_at(topology, &stand, kind, Load { seconds: seconds / 3.0, ..load(class, path) })?;
        }
    }
    stand.stop()?;
    let stand = start(&wish)?;
    // what was saved up is used up, and debts are carried
    let begin = |(class, asks): (Client, Option<&str>)| {
        asks.map(|path| Load { warm_up: seconds / 3.0, ..load(class, path) }.start(&topology.clients)).transpose()
    };
    let loads = CLASSES.into_iter().zip(wish.asks).map(begin).collect::<Result<Vec<_>>>()?;
    let mut got = [0.0; 3];
    for ((load, cost_us), got) in loads.into_iter().zip(costs_us).zip(&mut got) {
        if let Some(load) = load {
            *got = load.finish()?.per_second() * cost_us / 1e6;
        }
    }
    stand.stop()?;
    let machine = std::thread::available_parallelism().map_or(1.0, |cpus| cpus.get() as f64);
    let all = if wish.is_limit() { machine } else { got.iter().sum() };
    let percent = got.map(|got| 100.0 * got / all);
    Ok(Measured { kind, wish, round, percent, error_points: wish.error_points(got, machine) })
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
