// SPDX-License-Identifier: Apache-2.0 OR MIT
//! From single measurements to tables and figures. Pure.

use super::charge::Charge;
use super::{BACKLOGS, Load, Measurement, Way};
use crate::experiments::Outcome;
use crate::figures::{Bound, Figures};
use crate::plot::{Plot, Series};
use crate::statistics::{Spread, median, ratios};
use crate::table::{Table, number};
use fief_testkit::Topology;

const ABOUT: &str = "Nobody polices a flood of 200,000 SYNs a second. Who is served meanwhile, if its packets are worked \
through as they come, and if they wait for their turn by the priority of their class?";

const KEPT: &str = "requests a second of the paying client, of those without load and flood";
const FLOODED: &str = "others and 200000 SYN/s for 10 s, which nobody polices";

pub fn of(ways: &[Way], measurements: &[Measurement], charges: &[Charge], notes: Vec<String>) -> Outcome {
    let sample = Sample { measurements };
    let mut high = sample.table("The paying client: requests a second, mean response in ms", ways, |way, load| {
        let of = |of: fn(&Measurement) -> f64| number(median(&sample.values(way, load, of)));
        format!("{} / {}", of(|one| one.high.per_second()), of(|one| one.high.mean_us() / 1000.0))
    });
    high.notes = notes;
    high.notes.extend(sample.warnings());
    let low = sample.table("The others: requests a second (quartiles)", ways, |way, load| {
        let spread = Spread::of(&sample.values(way, load, Measurement::low_per_second));
        format!("{} ({} - {})", number(spread.median), number(spread.low), number(spread.high))
    });
    let mut charged =
        Table::new("The flood's receive work, seconds", &["round", "charged to its class", "its thread ran"]);
    for (round, charge) in charges.iter().enumerate() {
        charged.row([(round + 1).to_string(), format!("{:.4}", charge.charged), format!("{:.4}", charge.ran)]);
    }
    Outcome {
        name: "lrp",
        about: ABOUT.to_owned(),
        tables: vec![high, low, charged],
        plots: vec![plot(&sample, ways)],
        measurements: measurements.iter().map(Measurement::to_json).collect(),
        figures: figures(&sample, charges),
    }
}

fn plot(sample: &Sample<'_>, ways: &[Way]) -> Plot {
    let kept = |way| {
        let rates = move |load| sample.values(way, load, |one| one.high.per_second());
        Load::ALL.into_iter().enumerate().map(move |(at, load)| (at as f64, ratios(&rates(load), &rates(Load::None))))
    };
    Plot {
        name: "paying".to_owned(),
        title: "Requests a second of the paying client, of alone".to_owned(),
        x: "0 alone, 1 others, 2 others and flood".to_owned(),
        y: "of alone".to_owned(),
        series: ways.iter().map(|&way| Series::of(way.title(), kept(way))).collect(),
        logarithmic: false,
    }
}

struct Sample<'a> {
    measurements: &'a [Measurement],
}

impl Sample<'_> {
    /// In the order of the rounds.
    fn values(&self, way: Way, load: Load, of: fn(&Measurement) -> f64) -> Vec<f64> {
        self.measurements.iter().filter(|one| one.way == way && one.load == load).map(of).collect()
    }

    fn table(&self, title: &str, ways: &[Way], cell: impl Fn(Way, Load) -> String) -> Table {
        let head: Vec<&str> = std::iter::once("").chain(ways.iter().map(|way| way.title())).collect();
        let mut table = Table::new(title, &head);
        for load in Load::ALL {
            let cells = ways.iter().map(|&way| cell(way, load));
            table.row(std::iter::once(load.title().to_owned()).chain(cells));
        }
        table
    }

    fn warnings(&self) -> Vec<String> {
        let total = self.measurements.len();
        let count = |is: fn(&Measurement) -> bool| self.measurements.iter().filter(|one| is(one)).count();
        let (server, load) = (Topology::server_cpu(), Topology::load_cpu());
        let unbound = self.measurements.iter().filter(|one| {
            one.load != Load::None && !one.noise.is_disturbed() && !one.noise.is_server_bound(server, load)
        });
        [
            (count(|one| one.noise.is_disturbed()), "other programs used the CPU; a quiet machine tells more"),
            (unbound.count(), "the server's core was not the bottleneck"),
            (count(Measurement::is_flood_short), "the flood fell short of its rate by a tenth or more"),
            (count(|one| one.high.stalls > 0), "requests of the paying client stalled for 0.9 s or more (a lost SYN)"),
        ]
        .into_iter()
        .filter(|(count, _)| *count > 0)
        .map(|(count, what)| format!("in {count} of {total} measurements {what}"))
        .collect()
    }
}

fn figures(sample: &Sample<'_>, charges: &[Charge]) -> Figures {
    let mut figures = Figures::default();
    let high = |way, load| sample.values(way, load, |one| one.high.per_second());
    let low = |way, load| sample.values(way, load, Measurement::low_per_second);
    let high_kept = |way| median(&ratios(&high(way, Load::LowAndFlood), &high(way, Load::None)));
    let low_kept = |way| median(&ratios(&low(way, Load::LowAndFlood), &low(way, Load::Low)));
    let mut worst = f64::INFINITY;
    for backlog in BACKLOGS {
        let of = |one: &Measurement| if one.backlog == backlog { one.high.per_second() } else { f64::NAN };
        let high =
            |load| sample.measurements.iter().filter(move |one| one.way == Way::Lanes && one.load == load).map(of);
        let high = |load| high(load).filter(|rate| !rate.is_nan()).collect::<Vec<_>>();
        let kept = median(&ratios(&high(Load::LowAndFlood), &high(Load::None)));
        // one that has no value is the worst
        worst = if worst.is_nan() || kept.is_nan() { f64::NAN } else { worst.min(kept) };
        let figure = figures.must(format!("high_kept_{backlog}"), kept, Bound::AtLeast(0.9));
        figure.of(KEPT, "ratio", format!("{FLOODED}; a backlog of {backlog}, Fief with lanes"));
    }
    let figure = figures.must("high_kept", worst, Bound::AtLeast(0.9));
    figure.of(KEPT, "ratio", format!("{FLOODED}; the worse of the two backlogs, Fief with lanes"));
    let low_metric = "requests a second of the others, of those without the flood";
    for (name, value, metric, way) in [
        ("high_kept_without", high_kept(Way::Copies), KEPT, "Fief without lanes"),
        ("high_kept_plain", high_kept(Way::Plain), KEPT, "no Fief"),
        ("low_kept", low_kept(Way::Lanes), low_metric, "Fief with lanes"),
        ("low_kept_without", low_kept(Way::Copies), low_metric, "Fief without lanes"),
        ("low_kept_plain", low_kept(Way::Plain), low_metric, "no Fief"),
    ] {
        figures.add(name, value).of(metric, "ratio", format!("{FLOODED}; {way}"));
    }
    let dropped = high_kept(Way::Dropped);
    if !dropped.is_nan() {
        let load = format!("{FLOODED}; Fief without lanes, the flood dropped by nft at the interface");
        figures.add("high_kept_floor", dropped).of(KEPT, "ratio", load);
        let metric =
            "what the paying client keeps with lanes, of what it keeps where the flood is dropped at the interface";
        figures.add("high_kept_vs_floor", worst / dropped).of(metric, "ratio", FLOODED);
        let without = median(&ratios(&high(Way::Lanes, Load::Low), &high(Way::Lanes, Load::None)));
        let load = "others, no flood; Fief with lanes";
        figures.add("high_kept_no_flood", without).of(KEPT, "ratio", load);
    }
    let versus = ratios(&low(Way::Lanes, Load::LowAndFlood), &low(Way::Copies, Load::LowAndFlood));
    let metric = "requests a second of the others with lanes, of those without lanes";
    figures.add("low_with_vs_without", median(&versus)).of(metric, "ratio", FLOODED);
    let throughput = median(&ratios(&low(Way::Lanes, Load::Low), &low(Way::Copies, Load::Low)));
    figures.add("throughput", throughput).of(metric, "ratio", "others, no flood");
    let errors: Vec<f64> = charges.iter().map(|charge| charge.error()).collect();
    let metric = "receive time charged to the flood's class, against the run time of its receiving thread";
    figures.must("charge_error", median(&errors), Bound::AtMost(0.02)).of(metric, "ratio", FLOODED);
    figures
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::load::Seen;
    use crate::noise::Noise;
    use crate::statistics::Histogram;

    fn seen(requests: usize) -> Seen {
        let mut latency = Histogram::default();
        (0..requests).for_each(|_| latency.record(1000));
        Seen { seconds: 1.0, latency, ..Seen::default() }
    }

    fn measurement(way: Way, load: Load, backlog: u32, high: usize, low: usize) -> Measurement {
        let noise = Noise { busy: vec![1.0, 0.5], ..Noise::default() };
        Measurement { way, load, backlog, round: 0, high: seen(high), low: seen(low), sent: Default::default(), noise }
    }

    #[test]
    fn the_high_client_is_measured_against_itself_alone() {
        let measurements = [
            measurement(Way::Lanes, Load::None, 511, 400, 0),
            measurement(Way::Lanes, Load::Low, 511, 390, 1000),
            measurement(Way::Lanes, Load::LowAndFlood, 511, 380, 800),
            measurement(Way::Copies, Load::LowAndFlood, 511, 200, 200),
            measurement(Way::Lanes, Load::None, 4096, 400, 0),
            measurement(Way::Lanes, Load::LowAndFlood, 4096, 240, 800),
        ];
        let charges = [Charge { charged: 0.97, ran: 1.0 }];
        let outcome = of(&Way::ALL, &measurements, &charges, Vec::new());
        let figure = |name: &str| outcome.figures.get(name).expect("a figure");
        assert!((figure("high_kept_511") - 0.95).abs() < 1e-9);
        assert!((figure("high_kept_4096") - 0.6).abs() < 1e-9);
        assert!((figure("high_kept") - 0.6).abs() < 1e-9, "the worse");
        assert!((figure("low_kept") - 0.8).abs() < 1e-9);
        assert!((figure("low_with_vs_without") - 4.0).abs() < 1e-9);
        let missed: Vec<_> = outcome.figures.missed().map(|figure| figure.name.as_str()).collect();
        assert_eq!(missed, ["high_kept_4096", "high_kept", "charge_error"]);
    }
}
