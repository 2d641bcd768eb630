// SPDX-License-Identifier: Apache-2.0 OR MIT
//! From single measurements to tables, plots and figures. Pure.

use super::{Kind, Measurement, Plan};
use crate::experiments::Outcome;
use crate::figures::{Bound, Figures};
use crate::load::Seen;
use crate::plot::{Plot, Series};
use crate::statistics::{Spread, median, ms, ratios};
use crate::table::{Table, in_ms, number};

const ABOUT: &str = "One client of a paying class asks nginx for a file of 1 kB every 2 ms, while other clients ask \
as fast as they are answered and saturate the server's core. How long does the paying one wait?";

/// Where flatness is taken.
const FEW: usize = 5;
const MANY: usize = 40;

pub fn of(plan: &Plan, measurements: &[Measurement], notes: Vec<String>) -> Outcome {
    let sample = Sample { measurements };
    let kinds: Vec<Kind> = plan.kinds.iter().copied().filter(|&kind| sample.has(kind)).collect();
    let mut response = sample.table(
        plan,
        &kinds,
        "Response time of the paying client, ms: mean / 99th percentile",
        |sample, kind, low| {
            let mean = Spread::of(&sample.means(kind, low));
            format!("{} / {}", in_ms(mean.median), in_ms(sample.merged(kind, low).p99_us()))
        },
    );
    response.notes = notes;
    response.notes.extend(sample.warnings());
    let spread =
        sample.table(plan, &kinds, "Spread of the mean over the rounds, ms: quartiles", |sample, kind, low| {
            let mean = Spread::of(&sample.means(kind, low));
            format!("{} - {}", in_ms(mean.low), in_ms(mean.high))
        });
    let throughput = sample.table(plan, &kinds, "Requests a second, all clients", |sample, kind, low| {
        number(median(&sample.throughputs(kind, low)))
    });
    Outcome {
        name: "priority-clients",
        about: ABOUT.to_owned(),
        tables: vec![response, spread, throughput],
        plots: plots(plan, &sample, &kinds),
        measurements: measurements.iter().map(Measurement::to_json).collect(),
        figures: figures(plan, &sample),
    }
}

struct Sample<'a> {
    measurements: &'a [Measurement],
}

impl Sample<'_> {
    fn has(&self, kind: Kind) -> bool {
        self.measurements.iter().any(|measurement| measurement.kind == kind)
    }

    /// In the order of the rounds.
    fn select(&self, kind: Kind, low: usize) -> impl Iterator<Item = &Measurement> {
        self.measurements.iter().filter(move |one| one.kind == kind && one.low_clients == low)
    }

    fn means(&self, kind: Kind, low: usize) -> Vec<f64> {
        self.select(kind, low).map(|one| one.high.mean_us()).collect()
    }

    fn p99s(&self, kind: Kind, low: usize) -> Vec<f64> {
        self.select(kind, low).map(|one| one.high.p99_us()).collect()
    }

    fn throughputs(&self, kind: Kind, low: usize) -> Vec<f64> {
        self.select(kind, low).map(Measurement::throughput).collect()
    }

    /// All rounds of the paying client in one: a percentile needs many requests.
    fn merged(&self, kind: Kind, low: usize) -> Seen {
        let mut all = Seen::default();
        self.select(kind, low).for_each(|one| all.merge(&one.high));
        all
    }

    fn table(&self, plan: &Plan, kinds: &[Kind], title: &str, cell: impl Fn(&Self, Kind, usize) -> String) -> Table {
        let titles: Vec<String> = kinds.iter().map(|kind| kind.title()).collect();
        let head: Vec<&str> = std::iter::once("others").chain(titles.iter().map(String::as_str)).collect();
        let mut table = Table::new(title, &head);
        for &low in &plan.loads {
            let cells = kinds.iter().map(|&kind| cell(self, kind, low));
            table.row(std::iter::once(low.to_string()).chain(cells));
        }
        table
    }

    /// What makes the figures less certain.
    fn warnings(&self) -> Vec<String> {
        let count =
            |condition: &dyn Fn(&Measurement) -> bool| self.measurements.iter().filter(|one| condition(one)).count();
        let total = self.measurements.len();
        let disturbed = count(&Measurement::is_disturbed);
        let unbound = count(&|one| !one.is_server_bound());
        let stalls: u64 = self.measurements.iter().map(|one| one.high.stalls + one.low.stalls).sum();
        let errors: u64 = self.measurements.iter().map(|one| one.high.errors + one.low.errors).sum();
        [
            (
                disturbed,
                format!(
                    "in {disturbed} of {total} measurements other programs used the CPU; a quiet machine tells more"
                ),
            ),
            (unbound, format!("in {unbound} of {total} measurements the server's core was not the bottleneck")),
            (stalls as usize, format!("{stalls} requests stalled for 0.9 s or more (a lost SYN)")),
            (errors as usize, format!("{errors} connections failed")),
        ]
        .into_iter()
        .filter(|(count, _)| *count > 0)
        .map(|(_, text)| text)
        .collect()
    }
}

fn figures(plan: &Plan, sample: &Sample<'_>) -> Figures {
    let mut figures = Figures::default();
    let plain = (sample.means(Kind::Plain, MANY), sample.p99s(Kind::Plain, MANY));
    let order = [Kind::Single, Kind::Copies].into_iter().chain(Kind::HAPROXY).chain([Kind::Application, Kind::Plain]);
    for kind in order.filter(|kind| plan.kinds.contains(kind)) {
        let mut add = |name: &str, value: f64, bound: Option<Bound>, unit: &'static str, metric: &str| {
            let name = format!("{}.{name}", kind.name());
            let figure = match bound {
                Some(bound) => figures.must(name, value, bound),
                None => figures.add(name, value),
            };
            let load =
                format!("{MANY} others, as fast as they are answered, {FEW} where it is said; one paying client");
            figure.of(format!("{}: {metric}", kind.title()), unit, load);
        };
        let (most, least) = (|most| Some(Bound::AtMost(most)), |least| Some(Bound::AtLeast(least)));
        let bounds = match kind {
            Kind::Single => [most(1.6), most(1.5), most(0.2), most(0.15), least(0.88), least(0.85)],
            Kind::Copies => [most(1.15), None, None, None, least(0.97), None],
            _ => [None; 6],
        };
        let (few, many) = (sample.means(kind, FEW), sample.means(kind, MANY));
        let (few_p99, many_p99) = (sample.p99s(kind, FEW), sample.p99s(kind, MANY));
        let flat = "of the paying client's beside 40 others, of that beside 5";
        let of_plain = "of the paying client's beside 40 others, of plain nginx's";
        let ratio = |over: &[f64], under: &[f64]| median(&ratios(over, under));
        add("flatness", ratio(&many, &few), bounds[0], "ratio", &format!("mean response time {flat}"));
        add("p99_flatness", ratio(&many_p99, &few_p99), bounds[1], "ratio", &format!("99th percentile {flat}"));
        add("t40_vs_plain", ratio(&many, &plain.0), bounds[2], "ratio", &format!("mean response time {of_plain}"));
        add("p99_t40_vs_plain", ratio(&many_p99, &plain.1), bounds[3], "ratio", &format!("99th percentile {of_plain}"));
        let throughput = |low| ratio(&sample.throughputs(kind, low), &sample.throughputs(Kind::Plain, low));
        let all = "requests a second of all clients, of plain nginx's";
        add("throughput", throughput(MANY), bounds[4], "ratio", all);
        let loads = plan.loads.iter().filter(|&&low| low >= FEW);
        // NaN where one has no value, which f64::min would hide.
        let worst = loads
            .map(|&low| throughput(low))
            .reduce(|worst, one| if one < worst || one.is_nan() { one } else { worst });
        let all = format!("{all}, at the load from {FEW} others on where it is least");
        add("throughput_least", worst.unwrap_or(f64::NAN), bounds[5], "ratio", &all);
        add("t40", median(&many) / 1000.0, None, "ms", "mean response time of the paying client");
        let p99 = sample.merged(kind, MANY).p99_us();
        add("p99_t40", p99 / 1000.0, None, "ms", "99th percentile of the paying client's response time");
    }
    add_peer(&mut figures, sample);
    figures
}

/// HAProxy at its best: the number of requests behind it with which its paying client waits the shortest.
fn add_peer(figures: &mut Figures, sample: &Sample<'_>) {
    let wait = |kind: Kind| median(&sample.means(kind, MANY));
    let best = Kind::HAPROXY.into_iter().filter(|&kind| wait(kind).is_finite());
    let Some(best) = best.min_by(|&a, &b| wait(a).total_cmp(&wait(b))) else { return };
    let load = format!("{MANY} others, as fast as they are answered; one paying client; {} is the best", best.title());
    let ratio = |over: &[f64], under: &[f64]| median(&ratios(over, under));
    let throughput = |kind: Kind| ratio(&sample.throughputs(kind, MANY), &sample.throughputs(Kind::Plain, MANY));
    let mean = "mean response time of the paying client";
    let all = "requests a second of all clients";
    for (name, value, unit, metric) in [
        ("haproxy.t40", wait(best) / 1000.0, "ms", format!("HAProxy at its best: {mean}")),
        ("haproxy.throughput", throughput(best), "ratio", format!("HAProxy at its best: {all}, of plain nginx's")),
        (
            "single.t40_vs_haproxy",
            ratio(&sample.means(Kind::Single, MANY), &sample.means(best, MANY)),
            "ratio",
            format!("Fief, one nginx: {mean}, of HAProxy's at its best"),
        ),
        (
            "single.throughput_vs_haproxy",
            ratio(&sample.throughputs(Kind::Single, MANY), &sample.throughputs(best, MANY)),
            "ratio",
            format!("Fief, one nginx: {all}, of HAProxy's at its best"),
        ),
    ] {
        figures.add(name, value).of(metric, unit, load.clone());
    }
}

fn plots(plan: &Plan, sample: &Sample<'_>, kinds: &[Kind]) -> Vec<Plot> {
    let plot = |name: &str, title: &str, most: usize, us: &dyn Fn(Kind, usize) -> Vec<f64>| {
        let series = kinds.iter().map(|&kind| {
            let loads = plan.loads.iter().filter(|&&low| low <= most);
            Series::of(kind.title(), loads.map(|&low| (low as f64, ms(&us(kind, low)))))
        });
        Plot {
            name: name.to_owned(),
            title: title.to_owned(),
            x: "others".to_owned(),
            y: "ms".to_owned(),
            series: series.collect(),
            logarithmic: most > MANY,
        }
    };
    let mean = |kind, low| sample.means(kind, low);
    let p99 = |kind, low| sample.p99s(kind, low);
    let mut plots = vec![
        plot("mean", "Mean response time of the paying client", MANY, &mean),
        plot("p99", "99th percentile of its response time", MANY, &p99),
    ];
    if plan.loads.iter().any(|&low| low > MANY) {
        plots.push(plot("mean-all", "Mean response time up to overload", usize::MAX, &mean));
    }
    plots
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::noise::Noise;
    use crate::statistics::Histogram;

    fn seen(us: u64, count: usize) -> Seen {
        let mut latency = Histogram::default();
        (0..count).for_each(|_| latency.record(us * 1000));
        Seen { seconds: 1.0, latency, ..Seen::default() }
    }

    fn measurement(kind: Kind, low_clients: usize, us: u64, requests: usize) -> Measurement {
        let noise = Noise { busy: vec![1.0, 0.5], ..Noise::default() };
        Measurement { kind, low_clients, round: 0, high: seen(us, 100), low: seen(900, requests), noise }
    }

    fn measurements() -> Vec<Measurement> {
        vec![
            measurement(Kind::Plain, 5, 200, 900),
            measurement(Kind::Plain, 40, 2000, 1900),
            measurement(Kind::Single, 5, 200, 860),
            measurement(Kind::Single, 40, 280, 1700),
        ]
    }

    #[test]
    fn figures_are_ratios_within_a_round() {
        let outcome = of(&Plan::quick(), &measurements(), Vec::new());
        let figure = |name: &str| outcome.figures.get(name).expect("a figure");
        assert!((figure("single.flatness") - 1.4).abs() < 1e-9);
        assert!((figure("single.t40_vs_plain") - 0.14).abs() < 1e-9);
        assert!((figure("single.throughput") - 0.9).abs() < 1e-9);
        assert!((figure("single.throughput_least") - 0.9).abs() < 1e-9);
        assert!(figure("copies.flatness").is_nan(), "not measured");
    }

    #[test]
    fn what_was_not_measured_has_no_column_and_misses_its_bound() {
        let outcome = of(&Plan::quick(), &measurements(), vec!["a reason".into()]);
        assert_eq!(outcome.tables[0].head, ["others", "plain nginx", "Fief, one nginx"]);
        assert!(outcome.tables[0].to_string().contains("a reason"));
        let missed: Vec<_> = outcome.figures.missed().map(|figure| figure.name.as_str()).collect();
        assert_eq!(missed, ["copies.flatness", "copies.throughput"]);
    }

    #[test]
    fn a_load_that_was_the_bottleneck_is_told() {
        let mut measurements = measurements();
        measurements[0].noise.busy = vec![0.5, 1.0];
        let outcome = of(&Plan::quick(), &measurements, Vec::new());
        assert!(outcome.tables[0].notes[0].contains("1 of 4"), "{:?}", outcome.tables[0].notes);
    }
}
