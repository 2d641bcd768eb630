// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What came out: the medians of the rounds, and the figures of the paper.

use serde_json::json;

use super::{Measured, WAYS, Way};
use crate::experiments::Outcome;
use crate::figures::Bound;
use crate::plot::{Plot, Series};
use crate::statistics::median;
use crate::table::{Table, number};

const ABOUT: &str = "lighttpd serves a file of 1 kB to 16 clients on one core, on which CGI programs of 2 seconds of CPU compute \
beside it. Uncontrolled they share the core by their number. Under Fief each has a container of its own below the one that the \
policy limits, and static requests keep the rest, whatever the number of programs.";

pub fn of(sample: &[Measured]) -> Outcome {
    let mut outcome = Outcome { name: "cgi-sandbox", about: ABOUT.to_owned(), ..Outcome::default() };
    let of = |way: Way, programs: usize, what: fn(&Measured) -> f64| {
        let here = |one: &&Measured| one.way == way && one.programs == programs;
        sample.iter().filter(here).map(what).collect::<Vec<f64>>()
    };
    let throughput = |way, programs| median(&of(way, programs, |one| one.throughput));
    let share = |way, programs| median(&of(way, programs, |one| one.share));
    let mut counts: Vec<usize> = sample.iter().map(|one| one.programs).collect();
    counts.sort_unstable();
    counts.dedup();
    let busy = || counts.iter().copied().filter(|count| *count > 0);

    let head = ["programs", "uncontrolled", "limit 30 %", "limit 10 %", "CPU %", "CPU % at 30", "CPU % at 10"];
    let mut table = Table::new("Static requests a second, and the programs' part of the core", &head);
    for &count in &counts {
        let cells = WAYS.map(|way| number(throughput(way, count)));
        let shares = WAYS.map(|way| number(share(way, count)));
        table.row([vec![count.to_string()], cells.to_vec(), shares.to_vec()].concat());
    }
    let disturbed = sample.iter().filter(|one| one.is_disturbed).count();
    if disturbed > 0 {
        table.note(format!("In {disturbed} of {} windows others used the CPU.", sample.len()));
    }
    outcome.tables.push(table);
    let plot = |name: &str, title: &str, y: &str, what: fn(&Measured) -> f64| Plot {
        name: name.to_owned(),
        title: title.to_owned(),
        x: "CGI programs at a time".to_owned(),
        y: y.to_owned(),
        series: WAYS
            .iter()
            .map(|way| Series::of(way.name, counts.iter().map(|count| (*count as f64, of(*way, *count, what)))))
            .collect(),
        logarithmic: false,
    };
    outcome
        .plots
        .push(plot("static", "Static requests beside CGI programs", "requests a second", |one| one.throughput));
    outcome.plots.push(plot("share", "CPU time of all CGI programs", "percent of the core", |one| one.share));

    let limited = || WAYS.into_iter().filter_map(|way| Some((way, way.limit?)));
    let flatness = |way: Way| {
        let all: Vec<f64> = busy().map(|count| throughput(way, count)).collect();
        all.iter().copied().fold(f64::INFINITY, f64::min) / all.iter().copied().fold(0.0, f64::max)
    };
    let least =
        |of: &dyn Fn(Way, f64) -> f64| limited().map(|(way, limit)| of(way, limit)).fold(f64::INFINITY, f64::min);
    let error = |(way, limit): (Way, f64)| busy().map(|count| (share(way, count) - limit).abs()).fold(0.0, f64::max);
    let expected = |way: Way, limit: f64| {
        let rest = (1.0 - limit / 100.0) * throughput(way, 0);
        busy().map(|count| throughput(way, count) / rest).fold(f64::INFINITY, f64::min)
    };
    let load = "1 to 5 CGI programs at a time and 16 clients of a file, on one core";
    let figures = &mut outcome.figures;
    figures.must("worst_share_error_points", limited().map(error).fold(0.0, f64::max), Bound::AtMost(1.0)).of(
        "largest distance of the programs together from their limit of 30 % or 10 %",
        "percent of the core",
        load,
    );
    figures.must("static_flatness", least(&|way, _| flatness(way)), Bound::AtLeast(0.95)).of(
        "static requests a second where they are fewest, of where they are most, from 1 program to 5; the worse limit",
        "ratio",
        load,
    );
    figures.must("static_vs_expected", least(&expected), Bound::AtLeast(0.95)).of(
        "static requests a second where they are fewest, of what the limit leaves: its complement of those without a program; the \
         worse limit",
        "ratio",
        load,
    );
    let most = counts.last().copied().unwrap_or(0);
    let free = WAYS[0];
    figures.add("static_uncontrolled", throughput(free, most) / throughput(free, 0)).of(
        "static requests a second beside the most programs, of those without; without Fief",
        "ratio",
        load,
    );
    figures.add("share_uncontrolled", share(free, most)).of(
        "the programs' part of the core where they are most; without Fief",
        "percent of the core",
        load,
    );
    figures.add("static_alone", throughput(WAYS[1], 0) / throughput(free, 0)).of(
        "static requests a second without a program under Fief, of without Fief",
        "ratio",
        "16 clients of a file, on one core",
    );
    for one in sample {
        outcome.measurements.push(json!({
            "way": one.way.name, "programs": one.programs, "round": one.round + 1, "static_per_second": one.throughput,
            "programs_percent": one.share, "disturbed": one.is_disturbed,
        }));
    }
    outcome
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(disturb: impl Fn(Way, usize) -> (f64, f64)) -> Vec<Measured> {
        let one = |way: Way, programs: usize| {
            let (throughput, share) = disturb(way, programs);
            Measured { way, programs, round: 0, throughput, share, is_disturbed: false }
        };
        WAYS.into_iter().flat_map(|way| [0, 1, 5].map(|programs| one(way, programs))).collect()
    }

    #[test]
    fn a_sandbox_that_holds_exactly_has_no_error_and_is_flat() {
        let exact = |way: Way, programs: usize| match (way.limit, programs) {
            (_, 0) => (1000.0, 0.0),
            (Some(limit), _) => (10.0 * (100.0 - limit), limit),
            (None, n) => (1000.0 / (n + 1) as f64, 100.0 * n as f64 / (n + 1) as f64),
        };
        let figures = of(&sample(exact)).figures;
        let value = |name: &str| figures.get(name).expect("a figure");
        assert!(value("worst_share_error_points") < 1e-9);
        assert!((value("static_flatness") - 1.0).abs() < 1e-9 && (value("static_vs_expected") - 1.0).abs() < 1e-9);
        assert!((value("static_uncontrolled") - 1.0 / 6.0).abs() < 1e-9);
    }

    #[test]
    fn the_worst_limit_and_number_of_programs_count() {
        let worse = |way: Way, programs: usize| match (way.limit, programs) {
            (_, 0) => (1000.0, 0.0),
            (Some(10.0), 5) => (600.0, 13.0),
            (Some(limit), _) => (10.0 * (100.0 - limit), limit),
            (None, _) => (500.0, 50.0),
        };
        let figures = of(&sample(worse)).figures;
        let value = |name: &str| figures.get(name).expect("a figure");
        assert!((value("worst_share_error_points") - 3.0).abs() < 1e-9);
        assert!((value("static_flatness") - 600.0 / 900.0).abs() < 1e-9);
        assert!((value("static_vs_expected") - 600.0 / 900.0).abs() < 1e-9);
    }
}
