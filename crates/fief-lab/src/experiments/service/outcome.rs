// SPDX-License-Identifier: Apache-2.0 OR MIT
//! From what was measured to figures with their bounds, a table and plots. Pure.

use super::classes::unclassified;
use super::probe::{self, Answer};
use super::reloads::Reloads;
use super::restarts::{Round, lost_vs};
use super::unit::Start;
use super::{Measured, Plan, crowd};
use crate::experiments::Outcome;
use crate::figures::{Bound, Figures};
use crate::plot::{Plot, Series};
use crate::statistics::{median, quantile};
use crate::table::Table;
use serde_json::{Value, json};

const ABOUT: &str = "nginx under clients that ask as fast as they are answered, while its policy is changed again and again (containers \
come, go and are renamed, rules change), and while nginx is started anew, by the drop-in of `fief unit` and without Fief in turn. The \
upgrade of the package, and systemd, are not here: they need a machine of their own.";

pub fn of(plan: &Plan, measured: &Measured) -> Outcome {
    let mut figures = Figures::default();
    let mut notes = Vec::new();
    if let Some(reloads) = &measured.reloads {
        of_reloads(plan, reloads, &mut figures);
        notes.push(format!("{} probes of the refused file", reloads.probes.len()));
    }
    of_restarts(plan, &measured.restarts, &mut figures);
    of_classes(measured, &mut figures);
    of_adoption(plan, &measured.adopt_ms, &mut figures);
    let mut table = Table::of_figures("A service's life", &figures);
    notes.into_iter().for_each(|note| table.note(note));
    Outcome {
        name: "service",
        about: ABOUT.to_owned(),
        tables: vec![table],
        plots: plots(measured),
        measurements: measurements(measured),
        figures,
    }
}

fn of_reloads(plan: &Plan, reloads: &Reloads, figures: &mut Figures) {
    let load = format!("{} policies applied one after the other; {}", plan.reloads, crowd::WORDS);
    let mut must = |name: &str, value: f64, most: f64, metric: &str, unit| {
        figures.must(name, value, Bound::AtMost(most)).of(metric, unit, load.clone());
    };
    let answered = &reloads.answered;
    must(
        "requests_lost",
        answered.lost() as f64,
        0.0,
        "requests that failed or were not answered within 2 s",
        "requests",
    );
    let metric = "time of fief apply, 99th percentile";
    must("reload_ms", quantile(&reloads.ms, 0.99), 250.0, metric, "ms");
    let metric = "longest time in which what the policy refuses was served, from refusal to refusal";
    must("gap_ms", probe::gap_ms(&reloads.probes), 0.0, metric, "ms");
    let metric = "probes of what is refused that were neither refused nor served: nobody looked meanwhile";
    must("probes_unanswered", probe::count(&reloads.probes, Answer::None) as f64, 0.0, metric, "requests");
    let metric = "thread time that containers were charged before a policy and no account has after it";
    must("accounts_lost_ns", reloads.accounts_lost_ns as f64, 0.0, metric, "ns");
    let mut add = |name: &str, value: f64, metric: &str, unit| figures.add(name, value).of(metric, unit, load.clone());
    add("reload_p50_ms", median(&reloads.ms), "time of fief apply, median", "ms");
    add("requests_stalled", answered.stalls() as f64, "requests that took 0.9 s or longer", "requests");
    add(
        "served_least",
        least(&answered.seconds),
        "requests in the second with the fewest, of the median second",
        "ratio",
    );
}

/// The first and the last second are not whole.
fn least(seconds: &[f64]) -> f64 {
    let whole = seconds.get(1..seconds.len().saturating_sub(1)).unwrap_or_default();
    quantile(whole, 0.0) / median(whole)
}

fn of_restarts(plan: &Plan, rounds: &[Round], figures: &mut Figures) {
    if rounds.is_empty() {
        return;
    }
    let load = format!("{} restarts of nginx on each side, in turn; {}", plan.restarts(), crowd::WORDS);
    let of = |side: Start| rounds.iter().filter(move |round| round.side == side);
    let sum = |side: Start, value: fn(&Round) -> u64| of(side).map(value).sum::<u64>();
    let lost = |side: Start| sum(side, |round| round.answered.lost());
    let (fief, stock) = (lost(Start::DropIn), lost(Start::Plain));
    let metric = "requests lost over restarts with Fief, of those lost over as many without";
    figures.must("restart_lost_vs_stock", lost_vs(fief, stock), Bound::AtMost(1.0)).of(metric, "ratio", load.clone());
    for (side, suffix) in [(Start::DropIn, ""), (Start::Plain, "_stock")] {
        let words = side.words();
        let mut add = |name: &str, value: f64, metric: &str, unit| {
            figures.add(format!("{name}{suffix}"), value).of(format!("{metric}, {words}"), unit, load.clone());
        };
        add("restart_lost", lost(side) as f64, "requests lost over the restarts", "requests");
        let stalled = sum(side, |round| round.answered.stalls());
        add("restart_stalled", stalled as f64, "requests that took 0.9 s or longer over the restarts", "requests");
        let all: Vec<f64> = of(side).flat_map(|round| round.ms.iter().copied()).collect();
        add("restart_ms", median(&all), "from the first word of the server's end until it serves again, median", "ms");
    }
}

fn of_classes(measured: &Measured, figures: &mut Figures) {
    let reloads = measured.reloads.iter().flat_map(|reloads| &reloads.classes);
    let classes: Vec<_> = reloads.chain(measured.restarts.iter().flat_map(|round| &round.classes)).copied().collect();
    if classes.is_empty() {
        return;
    }
    let metric = "requests that were not charged to the class of their client, of all";
    let load =
        format!("nginx started by fief exec --here --container, over all reloads and restarts; {}", crowd::WORDS);
    figures.must("unclassified", unclassified(&classes), Bound::AtMost(0.0)).of(metric, "ratio", load);
}

fn of_adoption(plan: &Plan, all: &[f64], figures: &mut Figures) {
    if all.is_empty() {
        return;
    }
    let load = format!("{} restarts of nginx without a drop-in; {}", plan.adoptions, crowd::WORDS);
    let metric = "from the making of the unit's new cgroup until fief manage --keep has it again";
    figures.add("adopt_ms", median(all)).of(format!("{metric}, median"), "ms", load.clone());
    figures.add("adopt_worst_ms", quantile(all, 1.0)).of(format!("{metric}, the longest"), "ms", load);
}

fn plots(measured: &Measured) -> Vec<Plot> {
    let numbered = |values: &[f64]| values.iter().enumerate().map(|(at, value)| (at as f64 + 1.0, *value)).collect();
    let mut plots = Vec::new();
    if let Some(reloads) = &measured.reloads {
        plots.push(Plot {
            name: "reloads".to_owned(),
            title: "fief apply under load".to_owned(),
            x: "reload".to_owned(),
            y: "ms".to_owned(),
            series: vec![Series { name: "fief apply".to_owned(), points: numbered(&reloads.ms) }],
            logarithmic: false,
        });
        plots.push(Plot {
            name: "served".to_owned(),
            title: "Requests served while policies change".to_owned(),
            x: "second".to_owned(),
            y: "requests".to_owned(),
            series: vec![Series { name: "all clients".to_owned(), points: numbered(&reloads.answered.seconds) }],
            logarithmic: false,
        });
    }
    if !measured.restarts.is_empty() {
        let of = |side: Start| {
            let rounds = measured.restarts.iter().filter(|round| round.side == side);
            (side.words().to_owned(), rounds.map(|round| round.answered.lost() as f64).collect())
        };
        let title = "Requests lost over restarts";
        plots.push(Plot::of_rounds("restarts", title, "requests lost", [Start::DropIn, Start::Plain].map(of)));
    }
    plots
}

fn measurements(measured: &Measured) -> Vec<Value> {
    let mut all = Vec::new();
    if let Some(reloads) = &measured.reloads {
        let answered = &reloads.answered;
        all.push(json!({
            "experiment": "service", "part": "reloads", "reload_ms": reloads.ms, "served": answered.served(),
            "lost": answered.lost(), "stalled": answered.stalls(), "seconds": answered.seconds,
            "probes": reloads.probes.len(), "probes_served": probe::count(&reloads.probes, Answer::Served),
            "quiet_ns": reloads.quiet_ns, "lost_by_class": answered.classes.each_ref().map(|seen| seen.lost()),
        }));
    }
    let round = |round: &Round| {
        json!({
            "experiment": "service", "part": "restarts", "side": round.side.words(), "round": round.number, "restart_ms": round.ms,
            "served": round.answered.served(), "lost": round.answered.lost(), "stalled": round.answered.stalls(),
        })
    };
    all.extend(measured.restarts.iter().map(round));
    if !measured.adopt_ms.is_empty() {
        all.push(json!({ "experiment": "service", "part": "adoption", "adopt_ms": measured.adopt_ms }));
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::experiments::service::classes::Class;
    use crate::experiments::service::crowd::Answered;
    use crate::load::Seen;

    fn round(side: Start, errors: u64) -> Round {
        let answered = Answered {
            classes: [Seen { errors, ..Seen::default() }, Seen::default(), Seen::default()],
            seconds: vec![],
        };
        let class = Class { requests: 10, connections: 10, lost: 0, accepts: 10, thread_ns: 1 };
        let classes = if side == Start::DropIn { vec![class] } else { vec![] };
        Round { side, number: 0, ms: vec![20.0], answered, classes }
    }

    #[test]
    fn losses_of_all_rounds_are_added_before_they_are_compared() {
        let rounds = [(Start::Plain, 10), (Start::DropIn, 8), (Start::DropIn, 4), (Start::Plain, 14)];
        let restarts = rounds.map(|(side, lost)| round(side, lost)).into();
        let figures = of(&Plan::of(true), &Measured { restarts, ..Measured::default() }).figures;
        assert_eq!(figures.get("restart_lost_vs_stock"), Some(0.5));
        assert_eq!((figures.get("restart_lost"), figures.get("restart_lost_stock")), (Some(12.0), Some(24.0)));
        assert_eq!(figures.get("unclassified"), Some(0.0));
        assert_eq!(figures.missed().count(), 0);
        assert_eq!(figures.get("requests_lost"), None, "nobody measured it");
    }

    #[test]
    fn one_request_that_is_lost_over_reloads_is_too_many() {
        let answered = round(Start::Plain, 1).answered;
        let reloads = Reloads { answered, ms: vec![100.0, 300.0], ..Reloads::default() };
        let figures = of(&Plan::of(true), &Measured { reloads: Some(reloads), ..Measured::default() }).figures;
        let missed: Vec<_> = figures.missed().map(|figure| figure.name.as_str()).collect();
        assert_eq!(missed, ["requests_lost", "reload_ms"]);
    }

    #[test]
    fn the_least_second_is_a_whole_one() {
        assert_eq!(least(&[1.0, 100.0, 50.0, 100.0, 2.0]), 0.5);
        assert!(least(&[1.0]).is_nan());
    }
}
