// SPDX-License-Identifier: Apache-2.0 OR MIT
//! From single measurements to tables, a plot and figures. Pure.

use super::cost::Kind;
use super::newcomer::{self, Case, PATIENCE_S};
use super::{Attack, Measurement, Way};
use crate::experiments::Outcome;
use crate::figures::{Bound, Figures};
use crate::plot::{Plot, Series};
use crate::statistics::{Spread, median, quantile, ratios};
use crate::table::{Table, number};

const ABOUT: &str = "Twenty well-behaved clients ask nginx for a file of 1 kB as fast as they are answered, while \
somebody floods the server with SYNs. How much of its throughput does it keep? And how long does a client wait that \
comes for the first time?";

const STOCK: &str = "a stock kernel";
const NFT: &str = "an nftables limit on that prefix";

/// All that was measured.
#[derive(Clone, Copy, Debug)]
pub struct Measured<'a> {
    pub floods: &'a [Measurement],
    pub costs: &'a [(Kind, f64)],
    pub isolations: &'a [f64],
    pub by_server: &'a [f64],
    pub newcomers: &'a [newcomer::Measurement],
}

pub fn of(ways: &[Way], measured: &Measured<'_>, notes: Vec<String>) -> Outcome {
    let Measured { floods: measurements, costs, isolations, by_server, newcomers } = *measured;
    let sample = Sample { measurements };
    let mut kept =
        sample.table("Throughput kept, of the same way's own without a flood (quartiles)", ways, |way, attack| {
            let spread = Spread::of(&sample.kept(way, attack));
            format!("{} ({} - {})", number(spread.median), number(spread.low), number(spread.high))
        });
    kept.notes = notes;
    kept.notes.extend(sample.warnings());
    let throughput = sample.table("Requests a second", ways, |way, attack| {
        number(median(&sample.select(way, attack).map(|one| one.seen.per_second()).collect::<Vec<_>>()))
    });
    let stalls = sample.table("Requests that stalled for 0.9 s or more, all rounds", ways, |way, attack| {
        sample.select(way, attack).map(|one| one.seen.stalls).sum::<u64>().to_string()
    });
    let mut figures = figures(&sample, costs, isolations);
    let metric = "from the first SYN until the server has given its network a listening socket of its own";
    figures.add("time_to_isolate_by_server_s", median(by_server)).of(
        metric,
        "s",
        "70000 SYN/s from one /16".to_owned(),
    );
    newcomer_figures(newcomers, &mut figures);
    let floods = measurements.iter().map(Measurement::to_json);
    Outcome {
        name: "syn-flood",
        about: ABOUT.to_owned(),
        tables: vec![kept, throughput, stalls, cost_table(costs), newcomer_table(newcomers)],
        plots: vec![sample.plot(ways)],
        measurements: floods.chain(newcomers.iter().map(newcomer::Measurement::to_json)).collect(),
        figures,
    }
}

struct Sample<'a> {
    measurements: &'a [Measurement],
}

impl Sample<'_> {
    /// In the order of the rounds.
    fn select(&self, way: Way, attack: Attack) -> impl Iterator<Item = &Measurement> {
        self.measurements.iter().filter(move |one| one.way == way && one.attack == attack)
    }

    /// Throughput of without a flood, round by round.
    fn kept(&self, way: Way, attack: Attack) -> Vec<f64> {
        let rates = |attack| self.select(way, attack).map(|one| one.seen.per_second()).collect::<Vec<_>>();
        ratios(&rates(attack), &rates(Attack::None))
    }

    /// In the order in which they were first measured.
    fn attacks(&self) -> Vec<Attack> {
        let mut attacks = Vec::new();
        for one in self.measurements {
            if !attacks.contains(&one.attack) {
                attacks.push(one.attack);
            }
        }
        attacks
    }

    fn table(&self, title: &str, ways: &[Way], cell: impl Fn(Way, Attack) -> String) -> Table {
        let head: Vec<&str> = std::iter::once("flood").chain(ways.iter().map(|way| way.title())).collect();
        let mut table = Table::new(title, &head);
        for attack in self.attacks() {
            let cells = ways.iter().map(|&way| match self.select(way, attack).next() {
                Some(_) => cell(way, attack),
                None => String::new(),
            });
            table.row(std::iter::once(attack.to_string()).chain(cells));
        }
        table
    }

    fn plot(&self, ways: &[Way]) -> Plot {
        let series = ways.iter().map(|&way| {
            let attacks = self.attacks();
            let loads = attacks.iter().filter(|attack| matches!(attack, Attack::None | Attack::Prefix(_)));
            let of = |&attack: &Attack| (f64::from(attack.per_second()) / 1000.0, self.kept(way, attack));
            Series::of(way.title(), loads.map(of))
        });
        Plot {
            name: "kept".to_owned(),
            title: "Throughput kept under a flood from one prefix".to_owned(),
            x: "SYNs a second, thousands".to_owned(),
            y: "of without".to_owned(),
            series: series.collect(),
            logarithmic: false,
        }
    }

    /// What makes the figures less certain.
    fn warnings(&self) -> Vec<String> {
        let total = self.measurements.len();
        let count = |is: fn(&Measurement) -> bool| self.measurements.iter().filter(|one| is(one)).count();
        [
            (count(|one| one.noise.is_disturbed()), "other programs used the CPU; a quiet machine tells more"),
            (count(|one| !one.is_server_bound()), "the server's core was not the bottleneck"),
            (count(|one| !one.is_flooded()), "the flood was slower than it should have been"),
            (count(|one| one.seen.errors > 0), "connections failed"),
        ]
        .into_iter()
        .filter(|(count, _)| *count > 0)
        .map(|(count, what)| format!("in {count} of {total} measurements {what}"))
        .collect()
    }
}

/// Of one kind, round by round.
fn of_kind(costs: &[(Kind, f64)], kind: Kind) -> Vec<f64> {
    costs.iter().filter(|(one, _)| *one == kind).map(|(_, ns)| *ns).collect()
}

fn cost_table(costs: &[(Kind, f64)]) -> Table {
    let mut table = Table::new("CPU time of the server's core a SYN, ns, without clients", &["", "ns", "quartiles"]);
    for kind in Kind::ALL {
        let spread = Spread::of(&of_kind(costs, kind));
        let quartiles = format!("{} - {}", number(spread.low), number(spread.high));
        table.row([kind.title().to_owned(), number(spread.median), quartiles]);
    }
    table
}

fn figures(sample: &Sample<'_>, costs: &[(Kind, f64)], isolations: &[f64]) -> Figures {
    let kept = |way, rate| sample.kept(way, Attack::Prefix(rate));
    let versus = |way, rate| median(&ratios(&kept(Way::Fief, rate), &kept(way, rate)));
    let mut figures = Figures::default();
    let clients = "20 well-behaved closed-loop clients that have proved themselves, a 1 kB file";
    let from_prefix = |rate: u32| format!("{rate} SYN/s from one /16; {clients}");
    let own = "requests a second, of the same way's without a flood";
    let versus_metric = |what: &str| format!("what Fief keeps of its throughput, of what {what} keeps");
    let add = figures.must("useful_70k", median(&kept(Way::Fief, 70_000)), Bound::AtLeast(0.95));
    add.of(own, "ratio", from_prefix(70_000));
    let add = figures.must("useful_70k_vs_nft", versus(Way::Limit, 70_000), Bound::AtLeast(0.97));
    add.of(versus_metric(NFT), "ratio", from_prefix(70_000));
    let add = figures.must("useful_70k_vs_stock", versus(Way::Stock, 70_000), Bound::AtLeast(1.7));
    add.of(versus_metric(STOCK), "ratio", from_prefix(70_000));
    let add = figures.must("useful_200k", median(&kept(Way::Fief, 200_000)), Bound::AtLeast(0.95));
    add.of(own, "ratio", from_prefix(200_000));
    let add = figures.must("useful_200k_vs_stock", versus(Way::Stock, 200_000), Bound::AtLeast(4.0));
    add.of(versus_metric(STOCK), "ratio", from_prefix(200_000));
    let add = figures.add("vs_syncookies2_70k", versus(Way::Cookies, 70_000));
    add.of(versus_metric("a kernel with tcp_syncookies = 2"), "ratio", from_prefix(70_000));
    let add = figures.add("vs_nft_200k", versus(Way::Limit, 200_000));
    add.of(versus_metric(NFT), "ratio", from_prefix(200_000));
    let spoofed =
        [Attack::Anywhere(70_000), Attack::AmongClients(70_000)].map(|attack| median(&sample.kept(Way::Fief, attack)));
    // NaN where either is missing, which `min` would hide.
    let worst = if spoofed[0] <= spoofed[1] { spoofed[0] } else { spoofed[1] + 0.0 * spoofed[0] };
    let load = format!("70000 SYN/s, spoofed all over a /10 or inside the clients' own /24, the worse; {clients}");
    figures.must("spoofed_70k", worst, Bound::AtLeast(0.85)).of(own, "ratio", load);
    for (name, value, sources) in [
        ("spoofed_anywhere_70k", spoofed[0], "all over a /10"),
        ("spoofed_among_clients_70k", spoofed[1], "inside the clients' own /24"),
    ] {
        let load = format!("70000 SYN/s, spoofed {sources}; {clients}");
        figures.add(name, value).of(format!("{own}; more is better"), "ratio", load);
    }
    for way in [Way::Stock, Way::Cookies, Way::Limit, Way::Synproxy, Way::Server] {
        for (word, rate) in [("70k", 70_000), ("200k", 200_000)] {
            let metric = format!("{own}; {}; more is better", way.title());
            let load = from_prefix(rate);
            figures.add(format!("{}_{word}", way.name()), median(&kept(way, rate))).of(metric, "ratio", load);
        }
    }
    let metric = "from the first SYN until fewer than 5 % are answered, by isolation alone; less is better";
    figures.add("time_to_isolate_s", median(isolations)).of(metric, "s", "70000 SYN/s from one /16");
    let of_stock = |kind| median(&ratios(&of_kind(costs, kind), &of_kind(costs, Kind::Stock)));
    let cost =
        |kind: Kind| format!("CPU time of the server's receiving thread a SYN {}, of a stock kernel's", kind.title());
    let alone = "SYNs of one /16 at a constant rate, no clients";
    let answered = figures.must("cpu_per_syn_answered", of_stock(Kind::Answered), Bound::AtMost(0.55));
    answered.of(cost(Kind::Answered), "ratio", alone);
    let policed = figures.must("cpu_per_syn_policed", of_stock(Kind::Policed), Bound::AtMost(0.4));
    policed.of(cost(Kind::Policed), "ratio", alone);
    let dropped = format!("{}: what receiving a packet costs at all", cost(Kind::Dropped));
    figures.add("cpu_per_syn_nft", of_stock(Kind::Dropped)).of(dropped, "ratio", alone);
    let flooded = sample.measurements.iter().filter(|one| one.way == Way::Fief && one.attack != Attack::None);
    let most = flooded.map(|one| one.request_sockets as f64).fold(f64::NAN, f64::max);
    let metric = "sockets in SYN_RECV at the server under Fief, the most that was seen";
    figures.must("request_sockets", most, Bound::AtMost(0.0)).of(metric, "sockets", "all floods");
    figures
}

fn of_case(newcomers: &[newcomer::Measurement], case: Case) -> impl Iterator<Item = &newcomer::Measurement> {
    newcomers.iter().filter(move |one| one.case == case)
}

/// Of the newcomers of all rounds.
fn waits(newcomers: &[newcomer::Measurement], case: Case) -> Vec<f64> {
    of_case(newcomers, case).flat_map(newcomer::Measurement::seconds).collect()
}

fn newcomer_table(newcomers: &[newcomer::Measurement]) -> Table {
    let mut table = Table::new(
        "A client that comes for the first time, s from its first SYN to the whole response; 70,000 spoofed SYN/s",
        &["", "median", "90th percentile", "not served", "of", "of these refused"],
    );
    for case in Case::ALL {
        let seconds = waits(newcomers, case);
        if seconds.is_empty() {
            continue;
        }
        let unserved: usize = of_case(newcomers, case).map(newcomer::Measurement::unserved).sum();
        let refused: usize = of_case(newcomers, case).map(|one| one.waits.refused).sum();
        let [p50, p90] = [0.5, 0.9].map(|q| number(quantile(&seconds, q)));
        let [unserved, count, refused] = [unserved, seconds.len(), refused].map(|count| count.to_string());
        table.row([case.title().to_owned(), p50, p90, unserved, count, refused]);
    }
    table.note(format!(
        "Newcomers come from the same /10 that the flood's sources are spoofed from; one that was not served within \
         {PATIENCE_S} s counts as {PATIENCE_S} s. The nftables limit names another prefix and is a stock kernel here."
    ));
    let disturbed = newcomers.iter().filter(|one| one.noise.is_disturbed()).count();
    if disturbed > 0 {
        table.note(format!("in {disturbed} of {} measurements other programs used the CPU", newcomers.len()));
    }
    table
}

fn newcomer_figures(newcomers: &[newcomer::Measurement], figures: &mut Figures) {
    for case in Case::ALL {
        let word = match case.name() {
            "" => String::new(),
            name => format!("_{name}"),
        };
        let seconds = waits(newcomers, case);
        for (part, q) in [("p50", 0.5), ("p90", 0.9)] {
            let name = format!("newcomer_{part}{word}_s");
            let value = quantile(&seconds, q);
            let figure = match (case, part) {
                (Case::Unbudgeted, "p90") => figures.must(name, value, Bound::AtMost(0.1)),
                (Case::Budgeted, "p90") => figures.must(name, value, Bound::AtMost(1.3)),
                _ => figures.add(name, value),
            };
            let metric = format!("{part} from first SYN to whole response, {}; unserved counts as 7 s", case.title());
            figure.of(metric, "s", case.load());
        }
        let unserved: usize = of_case(newcomers, case).map(newcomer::Measurement::unserved).sum();
        let metric =
            format!("newcomers that were not served within {PATIENCE_S} s, of all; {}; less is better", case.title());
        let value = unserved as f64 / seconds.len() as f64;
        figures.add(format!("newcomers_unserved{word}"), value).of(metric, "ratio", case.load());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::flood::Sent;
    use crate::load::Seen;
    use crate::noise::Noise;
    use crate::statistics::Histogram;

    fn measurement(way: Way, attack: Attack, requests: usize, request_sockets: usize) -> Measurement {
        let mut latency = Histogram::default();
        (0..requests).for_each(|_| latency.record(1000));
        let seen = Seen { seconds: 1.0, latency, ..Seen::default() };
        let sent = Sent { syns: attack.per_second().into(), seconds: 1.0, began_ns: 0 };
        let noise = Noise { busy: vec![1.0, 0.5], ..Noise::default() };
        Measurement { way, attack, round: 0, seen, sent, request_sockets, noise }
    }

    fn outcome(measurements: &[Measurement]) -> Outcome {
        let costs = [(Kind::Stock, 2000.0), (Kind::Policed, 500.0), (Kind::Answered, 1000.0)];
        let measured =
            Measured { floods: measurements, costs: &costs, isolations: &[0.4], by_server: &[], newcomers: &[] };
        of(&Way::ALL, &measured, Vec::new())
    }

    #[test]
    fn a_way_is_measured_against_itself_without_a_flood() {
        let outcome = outcome(&[
            measurement(Way::Stock, Attack::None, 1000, 0),
            measurement(Way::Stock, Attack::Prefix(70_000), 400, 4096),
            measurement(Way::Fief, Attack::None, 900, 0),
            measurement(Way::Fief, Attack::Prefix(70_000), 810, 0),
            measurement(Way::Fief, Attack::Anywhere(70_000), 720, 0),
            measurement(Way::Fief, Attack::AmongClients(70_000), 765, 0),
        ]);
        let figure = |name: &str| outcome.figures.get(name).expect("a figure");
        assert!((figure("useful_70k") - 0.9).abs() < 1e-9);
        assert!((figure("stock_70k") - 0.4).abs() < 1e-9);
        assert!((figure("useful_70k_vs_stock") - 2.25).abs() < 1e-9);
        assert!((figure("spoofed_70k") - 0.8).abs() < 1e-9);
        assert_eq!((figure("cpu_per_syn_answered"), figure("request_sockets")), (0.5, 0.0));
        assert!(figure("useful_200k").is_nan(), "not measured");
    }

    #[test]
    fn one_request_socket_misses_the_bound() {
        let outcome = outcome(&[
            measurement(Way::Fief, Attack::Prefix(70_000), 1, 0),
            measurement(Way::Fief, Attack::Prefix(200_000), 1, 1),
        ]);
        assert!(outcome.figures.missed().any(|figure| figure.name == "request_sockets"));
    }

    #[test]
    fn half_of_the_spoofed_floods_is_no_worst_one() {
        let outcome = outcome(&[
            measurement(Way::Fief, Attack::None, 900, 0),
            measurement(Way::Fief, Attack::AmongClients(70_000), 900, 0),
        ]);
        assert!(outcome.figures.get("spoofed_70k").expect("a figure").is_nan());
    }

    #[test]
    fn a_newcomer_that_was_not_served_waited_its_whole_patience() {
        let served = |served_s: &[Option<f64>]| newcomer::Measurement::with_waits(Case::Budgeted, served_s);
        let newcomers = [served(&[Some(0.1), Some(0.2)]), served(&[Some(0.3), None])];
        let mut figures = Figures::default();
        newcomer_figures(&newcomers, &mut figures);
        let figure = |name: &str| figures.get(name).expect("a figure");
        assert_eq!(figure("newcomers_unserved_budget"), 0.25);
        assert!((figure("newcomer_p50_budget_s") - 0.25).abs() < 1e-9 && figure("newcomer_p90_budget_s") > 4.0);
        let missed: Vec<_> = figures.missed().map(|figure| figure.name.as_str()).collect();
        assert_eq!(missed, ["newcomer_p90_s", "newcomer_p90_budget_s"], "what was not measured is missed too");
        assert!(newcomer_table(&newcomers).to_string().contains("unproven = 5000"));
    }

    #[test]
    fn a_flood_that_was_too_slow_is_told() {
        let mut slow = measurement(Way::Stock, Attack::Prefix(70_000), 1, 0);
        slow.sent.syns = 50_000;
        assert!(outcome(&[slow]).tables[0].notes.iter().any(|note| note.contains("slower")));
    }
}
