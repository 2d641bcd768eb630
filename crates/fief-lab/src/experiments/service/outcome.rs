// SPDX-License-Identifier: Apache-2.0 OR MIT
//! From what was measured to figures with their bounds, a table and plots. Pure.

mod changes;

use super::classes::unclassified;
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
come, go and are renamed, rules change), while Fief's own programs change as an upgrade of the package changes them, and while nginx is \
started anew, by the drop-in of `fief unit` and without Fief in turn. Systemd is not here: it needs a machine of its own.";

pub fn of(plan: &Plan, measured: &Measured) -> Outcome {
    let mut figures = Figures::default();
    changes::figures(plan, measured, &mut figures);
    of_restarts(plan, &measured.restarts, &mut figures);
    of_classes(measured, &mut figures);
    of_adoption(plan, &measured.adopt_ms, &mut figures);
    let mut table = Table::of_figures("A service's life", &figures);
    changes::notes(measured).into_iter().for_each(|note| table.note(note));
    Outcome {
        name: "service",
        about: ABOUT.to_owned(),
        tables: vec![table],
        plots: plots(measured),
        measurements: measurements(measured),
        figures,
    }
}

fn of_restarts(plan: &Plan, rounds: &[Round], figures: &mut Figures) {
    if rounds.is_empty() {
        return;
    }
    let load = format!("{} restarts of nginx on each side, in turn; {}", plan.restarts(), crowd::WORDS);
    let of = |side: Start| rounds.iter().filter(move |round| round.side == side);
    let sum = |side: Start, value: fn(&Round) -> u64| of(side).map(value).sum::<u64>();
    let lost = |side: Start| sum(side, |round| round.answered.lost());
    let stock = lost(Start::Plain);
    let metric = "requests lost over restarts with Fief, of those lost over as many without";
    let ratio = lost_vs(lost(Start::Waited), stock);
    figures.must("restart_lost_vs_stock", ratio, Bound::AtMost(1.0)).of(metric, "ratio", load.clone());
    let metric = "the same, where no listener has `restart`";
    figures.add("restart_lost_refused_vs_stock", lost_vs(lost(Start::DropIn), stock)).of(metric, "ratio", load.clone());
    for (side, suffix) in [(Start::Waited, ""), (Start::DropIn, "_refused"), (Start::Plain, "_stock")] {
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
    let changes = measured.reloads.iter().chain(&measured.upgrades).flat_map(|changes| &changes.classes);
    let classes: Vec<_> = changes.chain(measured.restarts.iter().flat_map(|round| &round.classes)).copied().collect();
    if classes.is_empty() {
        return;
    }
    let metric = "requests that were not charged to the class of their client, of all";
    let load =
        format!("nginx started by fief exec --here --container, over all changes and restarts; {}", crowd::WORDS);
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

fn numbered(name: &str, values: &[f64]) -> Vec<Series> {
    vec![Series::of_single(name, values.iter().enumerate().map(|(at, value)| (at as f64 + 1.0, *value)))]
}

fn plots(measured: &Measured) -> Vec<Plot> {
    let mut plots = changes::plots(measured);
    if !measured.restarts.is_empty() {
        let of = |side: Start| {
            let rounds = measured.restarts.iter().filter(|round| round.side == side);
            (side.words().to_owned(), rounds.map(|round| round.answered.lost() as f64).collect())
        };
        let title = "Requests lost over restarts";
        plots.push(Plot::of_rounds(
            "restarts",
            title,
            "requests lost",
            [Start::Waited, Start::DropIn, Start::Plain].map(of),
        ));
    }
    plots
}

fn measurements(measured: &Measured) -> Vec<Value> {
    let mut all = changes::measurements(measured);
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
        let classes = if side == Start::Plain { vec![] } else { vec![class] };
        Round { side, number: 0, ms: vec![20.0], answered, classes }
    }

    #[test]
    fn losses_of_all_rounds_are_added_before_they_are_compared() {
        let rounds =
            [(Start::Plain, 10), (Start::Waited, 8), (Start::Waited, 4), (Start::Plain, 14), (Start::DropIn, 48)];
        let restarts = rounds.map(|(side, lost)| round(side, lost)).into();
        let figures = of(&Plan::of(true), &Measured { restarts, ..Measured::default() }).figures;
        assert_eq!(figures.get("restart_lost_vs_stock"), Some(0.5));
        assert_eq!((figures.get("restart_lost"), figures.get("restart_lost_stock")), (Some(12.0), Some(24.0)));
        assert_eq!(figures.get("unclassified"), Some(0.0));
        assert_eq!(figures.missed().count(), 0);
        assert_eq!(figures.get("requests_lost"), None, "nobody measured it");
    }
}
