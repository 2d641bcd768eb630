// SPDX-License-Identifier: Apache-2.0 OR MIT
//! An open loop: requests come whatever the server does, and are given up after half a second. What is still useful of what
//! the server does while more is asked for than it can do?
//!
//! A tenth of the capacity is asked for by the high class, the rest by the low one. Capacity is what the server does by
//! itself for closed-loop clients, measured before and after what is judged. As the floor the same clients ask again and again while as many
//! connections as have to be refused come to a port where nobody listens: the kernel refuses these by one packet each, before there is a
//! handshake. To tell a client more takes a handshake: four packets of its own. The second floor is of as many.

use super::case::Connections;
use super::kind::Kind;
use super::stand::Stand;
use super::way::Way;
use super::{Plan, cost};
use crate::error::Result;
use crate::experiments::Outcome;
use crate::figures::Bound;
use crate::load::{Arrivals, Close, Load, Seen};
use crate::noise::{Noise, Snapshot};
use crate::progress::Progress;
use crate::statistics::median;
use crate::table::{Table, cost_ms, number};
use fief_testkit::{Client, Family, Topology};
use serde_json::{Value, json};
use std::time::Duration;

const PATIENCE_MS: u64 = 500;
/// Of the capacity.
const HIGH: f64 = 0.1;
/// The peer's connections to the server: few enough that there is an order, enough that it does not wait for HAProxy.
const PEER: Way = Way::Haproxy(4);
/// Enough that the core is never without work.
const CLIENTS: usize = 40;
/// More requests under way than this are not offered to any server; far below the descriptors of a process.
const MOST_UNDER_WAY: usize = 12_000;

/// One server at one cost of a request, offered so many times its capacity.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Case {
    kind: Kind,
    way: Way,
    cost_us: u64,
    times: f64,
}

#[derive(Clone, Debug)]
struct Measured {
    case: Case,
    round: usize,
    capacity: f64,
    /// High and low.
    seen: [Seen; 2],
    noise: Noise,
}

/// What closed-loop clients get of a plain server while the kernel refuses what is beyond its capacity.
#[derive(Clone, Copy, Debug)]
struct Floor {
    kind: Kind,
    cost_us: u64,
    times: f64,
    /// That each client sends which is refused.
    packets: usize,
    round: usize,
    goodput: f64,
}

impl Floor {
    fn to_json(self) -> Value {
        json!({
            "experiment": "queue", "part": "goodput", "server": self.kind.name(), "way": "floor", "cost_us": self.cost_us,
            "times_capacity": self.times, "packets": self.packets, "round": self.round, "goodput": self.goodput,
        })
    }
}

/// Offers that are judged, of the capacity: their names in figures, and the least goodput.
const JUDGED: [(f64, &str, f64); 2] = [(2.0, "2x", 0.95), (4.0, "4x", 0.9)];
/// Packets of a client that is refused: to where nobody listens; and by an answer, its SYN, ACK, request and FIN.
const PACKETS: [(usize, &str); 2] = [(1, "floor"), (4, "floor_answered")];
/// Where nobody listens.
const NOBODY: u16 = 9;

impl Measured {
    /// Requests answered in time, of what the server can do.
    fn goodput(&self) -> f64 {
        self.seen.iter().map(Seen::per_second).sum::<f64>() / self.capacity
    }

    /// Of the high class's requests those that were answered in time; what is under way at the end is not counted.
    fn high(&self) -> f64 {
        let [seen, _] = &self.seen;
        let lost = seen.refused + seen.errors + seen.given_up + seen.shed;
        seen.latency.count() as f64 / (seen.latency.count() + lost) as f64
    }

    fn to_json(&self) -> Value {
        let class = |seen: &Seen| {
            let each = |count: u64| count as f64 / seen.seconds;
            json!({
                "begun_per_second": each(seen.begun), "useful_per_second": seen.per_second(),
                "refused_per_second": each(seen.refused), "given_up_per_second": each(seen.given_up),
                "failed_per_second": each(seen.errors), "shed": seen.shed, "mean_us": seen.mean_us(), "p99_us": seen.p99_us(),
            })
        };
        let Case { kind, way, cost_us, times } = self.case;
        json!({
            "experiment": "queue", "part": "goodput", "server": kind.name(), "way": way.name(), "cost_us": cost_us,
            "times_capacity": times, "capacity": self.capacity, "round": self.round, "goodput": self.goodput(),
            "paying": class(&self.seen[0]), "others": class(&self.seen[1]), "busy": self.noise.busy,
            "foreign": self.noise.foreign,
        })
    }
}

/// Adds what came out to the outcome.
pub fn run(plan: &Plan, topology: &Topology, is_full: bool, outcome: &mut Outcome) -> Result<()> {
    let goodput = Goodput::new(plan, is_full);
    let (measured, floors) = goodput.measure(topology)?;
    outcome.measurements.extend(measured.iter().map(Measured::to_json));
    outcome.measurements.extend(floors.iter().map(|floor| floor.to_json()));
    outcome.tables.extend(goodput.tables(&measured));
    goodput.figures(&measured, &floors, outcome);
    Ok(())
}

struct Goodput {
    kinds: Vec<Kind>,
    ways: Vec<Way>,
    costs_us: Vec<u64>,
    times: Vec<f64>,
    rounds: usize,
    seconds: f64,
    warm_up: f64,
}

impl Goodput {
    fn new(plan: &Plan, is_full: bool) -> Goodput {
        let of = |kind: &Kind| matches!(kind, Kind::Nginx | Kind::Go) && plan.kinds.contains(kind);
        let ways = [Way::Plain, Way::Queue, Way::LimitConn, PEER];
        Goodput {
            kinds: Kind::ALL.into_iter().filter(of).collect(),
            ways: ways.into_iter().filter(|way| plan.ways.contains(way)).collect(),
            // a request of 0.3 ms only for the report: there the clients' core is the bottleneck at four times the capacity
            costs_us: if is_full { vec![1000, 300] } else { vec![1000] },
            times: if is_full { vec![0.5, 1.0, 1.5, 2.0, 3.0, 4.0] } else { vec![2.0, 4.0] },
            rounds: plan.rounds.min(3),
            // the phenomenon is as long as the patience of many clients
            seconds: if plan.seconds < 0.5 { plan.seconds } else { 2.0 },
            warm_up: if plan.seconds < 0.5 { plan.warm_up } else { 1.5 },
        }
    }

    fn measure(&self, topology: &Topology) -> Result<(Vec<Measured>, Vec<Floor>)> {
        let mut stands = Vec::new();
        for &kind in &self.kinds {
            for &cost_us in &self.costs_us {
                let work = cost::work(topology, (kind, Connections::Each), cost_us, self.seconds.min(0.5))?;
                stands.push((kind, cost_us, work));
            }
        }
        let ways = |kind: Kind| self.ways.iter().copied().filter(move |way| way.is_for(kind));
        let steps: usize =
            stands.iter().map(|(kind, ..)| ways(*kind).count() * self.times.len() + floors_judged().count()).sum();
        let mut progress = Progress::new("queue, goodput", steps * self.rounds);
        let (mut measured, mut floors) = (Vec::new(), Vec::new());
        for round in 0..self.rounds {
            for &(kind, cost_us, work) in &stands {
                let mut capacity = self.capacity(topology, kind, work, 0.0)?;
                for ((times, ..), (packets, _)) in floors_judged() {
                    progress.step(&format!("{}, the floor, {times} x capacity", kind.title()))?;
                    let refused = (times - 1.0) * capacity * packets as f64;
                    let found = self.capacity(topology, kind, work, refused)?;
                    let after = self.capacity(topology, kind, work, 0.0)?;
                    let goodput = found / f64::midpoint(capacity, after);
                    capacity = after;
                    floors.push(Floor { kind, cost_us, times, packets, round, goodput });
                }
                for way in ways(kind) {
                    for &times in &self.times {
                        progress.step(&format!("{}, {}, {times} x capacity", kind.title(), way.title()))?;
                        // a server of its own: what one step left waiting is not the next one's
                        let stand = Stand::start(topology, kind, way, work)?;
                        let mut once = self.once(topology, Case { kind, way, cost_us, times }, round, capacity)?;
                        stand.stop()?;
                        if way == Way::Queue && JUDGED.iter().any(|(judged, ..)| *judged == times) {
                            let after = self.capacity(topology, kind, work, 0.0)?;
                            once.capacity = f64::midpoint(capacity, after);
                            capacity = after;
                        }
                        measured.push(once);
                    }
                }
            }
        }
        Ok((measured, floors))
    }

    /// `refused`: connections a second to where nobody listens, meanwhile.
    fn capacity(&self, topology: &Topology, kind: Kind, work: usize, refused: f64) -> Result<f64> {
        let stand = Stand::start(topology, kind, Way::Plain, work)?;
        let nobody = || {
            let load = Load {
                server: Topology::server_address(Family::V4, NOBODY),
                seconds: self.seconds + 0.2,
                arrivals: Some(Arrivals::evenly(refused)),
                ..Load::of(Client::Middle, 40, 200)
            };
            load.start(&topology.clients)
        };
        let beside = (refused > 0.0).then(nobody).transpose()?;
        let load =
            Load { seconds: self.seconds, warm_up: 0.2, close: Close::Fin, ..Load::of(Client::Low, 20, CLIENTS) };
        let seen = load.start(&topology.clients)?.finish()?;
        beside.map(|beside| beside.finish()).transpose()?;
        stand.stop()?;
        Ok(seen.per_second())
    }

    fn once(&self, topology: &Topology, case: Case, round: usize, capacity: f64) -> Result<Measured> {
        let crowd = |class: Client, per_second: f64| {
            let clients = ((per_second * PATIENCE_MS as f64 / 1000.0 * 1.5) as usize + 50).min(MOST_UNDER_WAY);
            Load {
                seconds: self.seconds,
                warm_up: self.warm_up,
                arrivals: Some(Arrivals::evenly(per_second)),
                patience_ms: PATIENCE_MS,
                // a client that gives up closes as a browser does
                close: Close::Fin,
                // those whose service is judged must not wait for the others on their own side
                fifo: if class == Client::High { 40 } else { 0 },
                ..Load::of(class, 40, clients)
            }
        };
        let high = crowd(Client::High, HIGH * capacity).start(&topology.clients)?;
        let low = crowd(Client::Low, (case.times - HIGH) * capacity).start(&topology.clients)?;
        std::thread::sleep(Duration::from_secs_f64(self.warm_up));
        let before = Snapshot::take();
        std::thread::sleep(Duration::from_secs_f64(self.seconds * 0.9));
        let noise = before.until_now();
        let seen = [high.finish()?, low.finish()?];
        Ok(Measured { case, round, capacity, seen, noise })
    }

    fn tables(&self, measured: &[Measured]) -> Vec<Table> {
        let mut tables = Vec::new();
        for &kind in &self.kinds {
            for &cost_us in &self.costs_us {
                let ways: Vec<Way> = self.ways.iter().copied().filter(|way| way.is_for(kind)).collect();
                let titles: Vec<String> = ways.iter().map(|way| way.title()).collect();
                let head: Vec<&str> = std::iter::once("asked for").chain(titles.iter().map(String::as_str)).collect();
                let title = format!(
                    "{}, open loop, requests of {}: answered within {PATIENCE_MS} ms, of the capacity / of the paying \
                     class's",
                    kind.title(),
                    cost_ms(cost_us)
                );
                let mut table = Table::new(title, &head);
                for &times in &self.times {
                    let cells = ways.iter().map(|&way| {
                        let [goodput, high] = values(measured, Case { kind, way, cost_us, times });
                        format!("{} / {}", number(goodput), number(high))
                    });
                    table.row(std::iter::once(format!("{times} x capacity")).chain(cells));
                }
                tables.push(table);
            }
        }
        tables
    }

    fn figures(&self, measured: &[Measured], floors: &[Floor], outcome: &mut Outcome) {
        for &kind in &self.kinds {
            for (cost, &cost_us) in self.costs_us.iter().enumerate() {
                let cost = if cost == 0 { "" } else { "_300us" };
                for way in self.ways.iter().copied().filter(|way| way.is_for(kind)) {
                    for (times, name, bound) in JUDGED {
                        let [goodput, high] = values(measured, Case { kind, way, cost_us, times });
                        let is_queue = way == Way::Queue;
                        let way_name = if is_queue { String::new() } else { format!("{}_", way.name()) };
                        let mut add = |name: &str, value: f64, bound: f64, metric: &str| {
                            let name = format!("{}.{way_name}{name}{cost}", kind.name());
                            let figure = match is_queue && cost.is_empty() {
                                true => outcome.figures.must(name, value, Bound::AtLeast(bound)),
                                false => outcome.figures.add(name, value),
                            };
                            let load = format!(
                                "{}, {}, requests of {}, open loop at {times} x capacity, a tenth of it of the paying \
                                 class",
                                kind.title(),
                                way.title(),
                                cost_ms(cost_us)
                            );
                            figure.of(metric, "ratio", load);
                        };
                        let metric = "requests answered within 500 ms, of the server's capacity";
                        add(&format!("goodput_{name}"), goodput, bound, metric);
                        let metric = "of the paying class's requests those answered within 500 ms";
                        add(&format!("goodput_high_{name}"), high, 1.0, metric);
                    }
                }
                for ((times, name, _), (packets, floor)) in floors_judged() {
                    let of = |one: &&Floor| {
                        (one.kind, one.cost_us, one.times, one.packets) == (kind, cost_us, times, packets)
                    };
                    let all: Vec<f64> = floors.iter().filter(of).map(|one| one.goodput).collect();
                    let load = format!(
                        "{}, plain, requests of {}, {CLIENTS} closed-loop clients, beside {} x capacity of connections to where nobody \
                         listens",
                        kind.title(),
                        cost_ms(cost_us),
                        (times - 1.0) * packets as f64
                    );
                    let metric = match packets {
                        1 => {
                            "requests answered, of the server's capacity, while the kernel refuses by one packet what is beyond"
                        }
                        _ => "the same with as many packets for each refusal as a client sends that is answered 503",
                    };
                    let figure =
                        outcome.figures.add(format!("{}.goodput_{name}_{floor}{cost}", kind.name()), median(&all));
                    figure.of(metric, "ratio", load);
                }
            }
        }
    }
}

/// Each judged offer with each number of packets.
fn floors_judged() -> impl Iterator<Item = ((f64, &'static str, f64), (usize, &'static str))> {
    JUDGED.into_iter().flat_map(|judged| PACKETS.into_iter().map(move |packets| (judged, packets)))
}

/// Goodput, and the paying class's part, in the median.
fn values(measured: &[Measured], case: Case) -> [f64; 2] {
    let of = |value: fn(&Measured) -> f64| {
        let chosen = measured.iter().filter(|one| one.case == case);
        median(&chosen.map(value).collect::<Vec<_>>())
    };
    [of(Measured::goodput), of(Measured::high)]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::statistics::Histogram;

    #[test]
    fn what_is_answered_in_time_is_held_against_the_capacity_and_what_was_asked_for() {
        let seen = |count: u64, given_up: u64| {
            let mut latency = Histogram::default();
            (0..count).for_each(|_| latency.record(1_000_000));
            Seen { seconds: 1.0, latency, given_up, begun: count + given_up + 3, ..Seen::default() }
        };
        let case = Case { kind: Kind::Go, way: Way::Queue, cost_us: 1000, times: 2.0 };
        let measured = Measured {
            case,
            round: 0,
            capacity: 1000.0,
            seen: [seen(100, 0), seen(860, 900)],
            noise: Noise::default(),
        };
        assert!((measured.goodput() - 0.96).abs() < 1e-9);
        assert!((measured.high() - 1.0).abs() < 1e-9, "what is under way is not lost");
        assert!(values(&[measured], Case { times: 4.0, ..case })[0].is_nan());
    }
}
