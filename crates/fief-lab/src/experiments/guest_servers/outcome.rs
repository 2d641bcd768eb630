// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What came out: the medians of the rounds, and the figures of the papers.

use serde_json::json;

use super::parts::{program_error, rest_error, share_error};
use super::policy::{SITES, rest};
use super::{Measured, Step, WAYS, Way};
use crate::experiments::Outcome;
use crate::figures::Bound;
use crate::plot::{Plot, Series};
use crate::statistics::median;
use crate::table::{Table, number};

const ABOUT: &str = "Three sites on one core, each a lighttpd that compresses a text for some clients and starts CGI programs of 1 s \
of CPU for others, beside threads that compute in the background. Under Fief the sites have 45, 27 and 18 % of what all of them have \
together, their programs a third of that each, and the background the rest. Site A always has 8 clients of the text and 2 of the program; what \
the others want grows.";

const LOAD: &str = "A with 8 clients of a text and 2 of a program; 5 to 40 clients of each other site; 1 to 10 threads in the \
background; on one core";

/// What the sample says of each way and step.
struct Medians<'a> {
    sample: &'a [Measured],
    steps: Vec<Step>,
}

impl Medians<'_> {
    fn all(&self, way: Way, step: Step, what: impl Fn(&Measured) -> f64) -> Vec<f64> {
        self.sample.iter().filter(|one| one.way == way && one.step == step).map(what).collect()
    }

    fn of(&self, way: Way, step: Step, what: impl Fn(&Measured) -> f64) -> f64 {
        median(&self.all(way, step, what))
    }

    fn alone(&self) -> Step {
        self.steps[0]
    }

    /// Where everybody wants more than its share.
    fn loaded(&self) -> impl Iterator<Item = Step> {
        self.steps.iter().copied().skip(1)
    }

    fn parts(&self, way: Way, step: Step) -> [f64; SITES.len() + 1] {
        std::array::from_fn(|at| self.of(way, step, |one| one.parts()[at]))
    }

    fn program_parts(&self, way: Way, step: Step) -> [f64; SITES.len()] {
        std::array::from_fn(|at| self.of(way, step, |one| one.program_parts()[at]))
    }

    fn texts_of_a(&self, way: Way, step: Step) -> f64 {
        self.of(way, step, |one| one.sites[0].texts)
    }

    /// A's texts a second, of what its share gives it: that part of what it has alone.
    fn kept(&self, way: Way, step: Step) -> f64 {
        self.texts_of_a(way, step) / (SITES[0].share / 100.0 * self.texts_of_a(way, self.alone()))
    }

    /// Seconds of the core that a text takes without Fief where A is alone. Of the two ways the lesser value, by which Fief gains
    /// less where it has more texts done.
    fn cost(&self) -> f64 {
        let ways = [Way::Uncontrolled, Way::OwnLimits];
        ways.into_iter().map(|way| self.of(way, self.alone(), Measured::cost)).fold(f64::NAN, f64::min)
    }

    /// Work of a way, of the work without Fief.
    fn work(&self, way: Way, step: Step) -> f64 {
        let cost = self.cost();
        self.of(way, step, |one| one.work(cost)) / self.of(Way::Uncontrolled, step, |one| one.work(cost))
    }

    fn worst(&self, way: Way, what: impl Fn(Step) -> f64) -> f64 {
        // what this way did not measure has no worst
        if !self.sample.iter().any(|one| one.way == way) {
            return f64::NAN;
        }
        self.loaded().map(what).fold(0.0, f64::max)
    }

    fn least(&self, steps: impl Iterator<Item = Step>, what: impl Fn(Step) -> f64) -> f64 {
        steps.map(what).filter(|value| value.is_finite()).reduce(f64::min).unwrap_or(f64::NAN)
    }
}

/// `holder`: what held the shares under Fief.
pub fn of(sample: &[Measured], holder: Option<&str>) -> Outcome {
    let mut outcome = Outcome { name: "guest-servers", about: ABOUT.to_owned(), ..Outcome::default() };
    let mut steps: Vec<Step> = sample.iter().map(|one| one.step).collect();
    steps.sort_by_key(Step::clients);
    steps.dedup();
    let medians = Medians { sample, steps };
    outcome.tables.extend([parts_table(&medians, holder), work_table(&medians)]);
    outcome.plots = plots(&medians);
    figures(&medians, &mut outcome);
    for one in sample {
        outcome.measurements.push(json!({
            "way": one.way.name(), "round": one.round + 1, "clients_of_others": one.step.clients(),
            "background_threads": one.step.background, "texts_per_second": one.sites.map(|site| site.texts),
            "server_percent": one.sites.map(|site| site.server), "programs_percent": one.sites.map(|site| site.programs),
            "background_percent": one.background, "disturbed": one.is_disturbed,
        }));
    }
    outcome
}

fn parts_table(medians: &Medians<'_>, holder: Option<&str>) -> Table {
    let head =
        ["way", "clients of B, of C", "background", "A", "B", "C", "rest", "A's CGI", "B's CGI", "C's CGI", "together"];
    let mut table = Table::new("Percent of what sites and background had together, and that of the core", &head);
    for way in WAYS {
        for step in medians.steps.iter().copied().filter(|step| medians.texts_of_a(way, *step).is_finite()) {
            let mut row = vec![way.name().to_owned(), step.clients().to_string(), step.background.to_string()];
            row.extend(medians.parts(way, step).map(number));
            row.extend(medians.program_parts(way, step).map(number));
            row.push(number(medians.of(way, step, Measured::together)));
            table.row(row);
        }
    }
    let shares = SITES.map(|site| site.share.to_string()).join(", ");
    let programs = SITES.map(|site| site.of_programs.to_string()).join(", ");
    table.note(format!("Given: {shares} and {} of the rest; {programs} to the programs.", rest()));
    if let Some(holder) = holder {
        table.note(format!("Under Fief the shares were held by: {holder}."));
    }
    let disturbed = medians.sample.iter().filter(|one| one.is_disturbed).count();
    if disturbed > 0 {
        table.note(format!("In {disturbed} of {} windows others used the CPU.", medians.sample.len()));
    }
    table
}

fn work_table(medians: &Medians<'_>) -> Table {
    let head =
        ["clients of B, of C", "background", "uncontrolled", "limits", "fief", "work with limits", "work with fief"];
    let mut table = Table::new("Texts a second of site A; all work, of that without control", &head);
    for step in medians.steps.iter().copied() {
        let mut row = vec![step.clients().to_string(), step.background.to_string()];
        row.extend(WAYS.map(|way| number(medians.texts_of_a(way, step))));
        row.extend([Way::OwnLimits, Way::Fief].map(|way| number(medians.work(way, step))));
        table.row(row);
    }
    table.note(format!("A text counts as {} ms of the core.", number(1000.0 * medians.cost())));
    table
}

fn plots(medians: &Medians<'_>) -> Vec<Plot> {
    let plot = |name: &str, title: &str, y: &str, what: &dyn Fn(&Measured) -> f64| Plot {
        name: name.to_owned(),
        title: title.to_owned(),
        x: "clients of B, and as many of C".to_owned(),
        y: y.to_owned(),
        series: WAYS
            .iter()
            .map(|way| {
                let points = medians.steps.iter().map(|step| (step.clients() as f64, medians.all(*way, *step, what)));
                Series::of(way.name(), points)
            })
            .collect(),
        logarithmic: false,
    };
    vec![
        plot("texts", "Static requests of site A", "requests a second", &|one| one.sites[0].texts),
        plot("part", "CPU time of site A", "percent of what all had", &|one| one.parts()[0]),
    ]
}

fn figures(medians: &Medians<'_>, outcome: &mut Outcome) {
    let share_worst = |way| medians.worst(way, |step| share_error(&medians.parts(way, step)));
    let programs_worst = |way| medians.worst(way, |step| program_error(&medians.program_parts(way, step)));
    let kept = |way| medians.least(medians.loaded(), |step| medians.kept(way, step));
    let work = |way| medians.least(medians.steps.iter().copied(), |step| medians.work(way, step));
    let figures = &mut outcome.figures;
    figures.must("worst_share_error_points", share_worst(Way::Fief), Bound::AtMost(1.0)).of(
        "largest distance of a site from its share, of what sites and background had together",
        "percent",
        LOAD,
    );
    figures.must("sub_share_error_points", programs_worst(Way::Fief), Bound::AtMost(1.0)).of(
        "largest distance of a site's programs from their share, of what sites and background had together",
        "percent",
        LOAD,
    );
    figures.must("site_a_kept", kept(Way::Fief), Bound::AtLeast(0.95)).of(
        "A's texts a second where they are fewest, of what its share gives it: 45 % of those where it is alone",
        "ratio",
        LOAD,
    );
    figures.must("aggregate", work(Way::Fief), Bound::AtLeast(0.95)).of(
        "work of all sites and of the background, of that without Fief, where it is least: texts at what one costs alone, programs and \
         background by their CPU time",
        "ratio",
        LOAD,
    );
    figures.add("rest_error_points", medians.worst(Way::Fief, |step| rest_error(&medians.parts(Way::Fief, step)))).of(
        "largest distance of the background from the tenth that the sites leave",
        "percent",
        LOAD,
    );
    let flat: Vec<f64> = medians.loaded().map(|step| medians.texts_of_a(Way::Fief, step)).collect();
    let (fewest, most) = (flat.iter().copied().fold(f64::INFINITY, f64::min), flat.iter().copied().fold(0.0, f64::max));
    figures.add("site_a_flatness", fewest / most).of(
        "A's texts a second where they are fewest, of where they are most, beside the others",
        "ratio",
        LOAD,
    );
    for (way, name) in [(Way::Uncontrolled, "uncontrolled"), (Way::OwnLimits, "limits")] {
        let how = match way {
            Way::OwnLimits => "with limits of the servers' own: 40, 24 and 16 connections",
            _ => "without Fief",
        };
        let (metric, unit) = ("largest distance of a site from its share", "percent");
        figures.add(format!("share_error_{name}"), share_worst(way)).of(format!("{metric}, {how}"), unit, LOAD);
        let metric = "A's texts a second where they are fewest, of 45 % of those where it is alone";
        figures.add(format!("site_a_kept_{name}"), kept(way)).of(format!("{metric}, {how}"), "ratio", LOAD);
    }
    figures.add("aggregate_limits", work(Way::OwnLimits)).of(
        "work of all sites and of the background where it is least, of that without limits of the servers' own",
        "ratio",
        LOAD,
    );
}

#[cfg(test)]
mod tests {
    use super::super::{Done, STEPS};
    use super::*;

    /// Texts of A, and percent of each site, a third of which its programs have.
    fn sample(of: impl Fn(Way, usize) -> (f64, [f64; 3])) -> Vec<Measured> {
        let one = |way: Way, at: usize| {
            let (texts, percent) = of(way, at);
            let mut sites = percent.map(|part| Done { texts: 0.0, server: part * 2.0 / 3.0, programs: part / 3.0 });
            sites[0].texts = texts;
            let background = 100.0 - percent.iter().sum::<f64>();
            Measured { way, step: STEPS[at], round: 0, sites, background, is_disturbed: false }
        };
        WAYS.into_iter().flat_map(|way| [0, 1, 4].map(|at| one(way, at))).collect()
    }

    fn exact(way: Way, at: usize) -> (f64, [f64; 3]) {
        match (way, at) {
            (_, 0) => (1000.0, [100.0, 0.0, 0.0]),
            (Way::Uncontrolled, _) => (90.0, [9.0, 30.0, 30.0]),
            _ => (450.0, [45.0, 27.0, 18.0]),
        }
    }

    #[test]
    fn shares_that_hold_exactly_have_no_error_and_keep_all_of_a() {
        let figures = of(&sample(exact), None).figures;
        let value = |name: &str| figures.get(name).expect("a figure");
        assert!(value("worst_share_error_points") < 1e-9 && value("sub_share_error_points") < 1e-9);
        assert!(value("rest_error_points") < 1e-9);
        assert!((value("site_a_kept") - 1.0).abs() < 1e-9 && (value("site_a_flatness") - 1.0).abs() < 1e-9);
        assert!((value("share_error_uncontrolled") - 36.0).abs() < 1e-9);
        assert!((value("site_a_kept_uncontrolled") - 0.2).abs() < 1e-9);
    }

    #[test]
    fn the_worst_load_of_the_others_counts() {
        let worse = |way: Way, at: usize| match (way, at) {
            (Way::Fief, 4) => (405.0, [42.0, 27.0, 18.0]),
            _ => exact(way, at),
        };
        let figures = of(&sample(worse), Some("cgroup-v1")).figures;
        let value = |name: &str| figures.get(name).expect("a figure");
        assert!((value("worst_share_error_points") - 3.0).abs() < 1e-9);
        assert!((value("sub_share_error_points") - 1.0).abs() < 1e-9);
        assert!((value("site_a_kept") - 0.9).abs() < 1e-9);
    }

    #[test]
    fn a_way_that_was_left_out_has_no_figures() {
        let only: Vec<Measured> = sample(exact).into_iter().filter(|one| one.way == Way::Fief).collect();
        let figures = of(&only, None).figures;
        assert!(figures.get("aggregate").expect("named").is_nan());
        assert!(figures.get("share_error_limits").expect("named").is_nan());
        assert_eq!(figures.get("site_a_kept").map(|kept| (kept * 1e9).round()), Some(1e9));
    }
}
