// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Figures, plots and measurements of what changed under load: policies, and Fief's programs. What both must show is one figure,
//! which has the worse of them; beside it stands what each was. Pure.

use super::super::changes::{Changes, What};
use super::super::probe::{self, Answer};
use super::super::{Measured, Plan, crowd, holder};
use super::numbered;
use crate::figures::{Bound, Figures};
use crate::plot::Plot;
use crate::statistics::{median, quantile};
use serde_json::{Value, json};

/// What was measured of it.
struct Part<'a> {
    what: What,
    changes: &'a Changes,
}

impl Part<'_> {
    /// Before the names of figures that each part has.
    fn prefix(&self) -> &'static str {
        match self.what {
            What::Policies => "reload",
            What::Programs => "upgrade",
        }
    }

    fn words(&self, plan: &Plan) -> String {
        let times = self.what.times(plan);
        match self.what {
            What::Policies => format!("{times} policies applied one after the other"),
            What::Programs => {
                let held = holder::HELD;
                format!(
                    "{times} changes of Fief's programs, each with another policy, while an application holds {held} containers"
                )
            }
        }
    }

    fn gap_ms(&self) -> f64 {
        probe::gap_ms(&self.changes.probes)
    }

    fn unanswered(&self) -> f64 {
        probe::count(&self.changes.probes, Answer::None) as f64
    }
}

fn parts(measured: &Measured) -> Vec<Part<'_>> {
    let both = [(What::Policies, &measured.reloads), (What::Programs, &measured.upgrades)];
    both.into_iter().filter_map(|(what, changes)| Some(Part { what, changes: changes.as_ref()? })).collect()
}

pub fn figures(plan: &Plan, measured: &Measured, figures: &mut Figures) {
    let parts = parts(measured);
    if parts.is_empty() {
        return;
    }
    let load = parts.iter().map(|part| part.words(plan)).collect::<Vec<_>>().join("; then ");
    let load = format!("{load}; {}", crowd::WORDS);
    let sum = |of: &dyn Fn(&Part) -> f64| parts.iter().map(of).sum::<f64>();
    let worst = |of: &dyn Fn(&Part) -> f64| parts.iter().map(of).fold(0.0, f64::max);
    let mut must = |name: &str, value: f64, metric: &str, unit| {
        figures.must(name, value, Bound::AtMost(0.0)).of(metric, unit, load.clone());
    };
    let metric = "requests that failed or were not answered within 2 s";
    must("requests_lost", sum(&|part| part.changes.answered.lost() as f64), metric, "requests");
    let metric = "longest time in which what the policy refuses was served, from refusal to refusal";
    must("gap_ms", worst(&|part| part.gap_ms()), metric, "ms");
    let metric = "probes of what is refused that were neither refused nor served: nobody looked meanwhile";
    must("probes_unanswered", sum(&|part| part.unanswered()), metric, "requests");
    let metric = "thread time that containers were charged before a change and no account has after it: of renames or of changes of \
                  programs, whichever lost more";
    must("accounts_lost_ns", worst(&|part| part.changes.accounts_lost_ns as f64), metric, "ns");
    let beyond = parts.iter().flat_map(|part| &part.changes.beyond_clock).map(|part| part.abs()).fold(0.0, f64::max);
    let metric = "what all accounts together, with idle and stolen time, got over a change, against what the CPUs had: the largest \
                  difference, which time that was charged twice would be";
    figures.add("accounts_beyond_clock", beyond).of(metric, "CPUs x wall clock", load.clone());
    parts.iter().for_each(|part| of_part(plan, part, figures));
}

/// What each part was, and what only one of them has.
fn of_part(plan: &Plan, part: &Part, figures: &mut Figures) {
    let load = format!("{}; {}", part.words(plan), crowd::WORDS);
    let (changes, answered) = (part.changes, &part.changes.answered);
    let prefix = part.prefix();
    // those of reloads had their names first
    let plain = if part.what == What::Policies { String::new() } else { format!("{prefix}_") };
    match part.what {
        What::Policies => {
            let metric = "time of fief apply, 99th percentile";
            let value = quantile(&changes.ms, 0.99);
            figures.must("reload_ms", value, Bound::AtMost(250.0)).of(metric, "ms", load.clone());
        }
        What::Programs => {
            let metric = "time of a fief apply that puts its own programs in the place of those in force, the longest";
            figures.add("upgrade_ms", quantile(&changes.ms, 1.0)).of(metric, "ms", load.clone());
            let metric = "containers held by the application through descriptors, bound threads and a ring that are not the same \
                          any more, cannot be used, have less than they had, or are not charged three times, one after the other";
            let value = changes.held_lost.len() as f64;
            figures.must("held_lost", value, Bound::AtMost(0.0)).of(metric, "containers", load.clone());
            let metric =
                "looks at such a container that found less than a quarter of 50 us of work charged to it, of all looks";
            let (looks, short) = changes.held_looks;
            figures.add("held_looks_short", short as f64 / looks.max(1) as f64).of(metric, "ratio", load.clone());
        }
    }
    let mut add =
        |name: String, value: f64, metric: &str, unit| figures.add(name, value).of(metric, unit, load.clone());
    let metric = "the part of requests_lost in this load";
    add(format!("{prefix}_requests_lost"), answered.lost() as f64, metric, "requests");
    add(format!("{prefix}_gap_ms"), part.gap_ms(), "gap_ms in this load", "ms");
    let metric = "accounts_lost_ns in this load";
    add(format!("{prefix}_accounts_lost_ns"), changes.accounts_lost_ns as f64, metric, "ns");
    add(format!("{prefix}_p50_ms"), median(&changes.ms), "time of fief apply, median", "ms");
    add(format!("{plain}requests_stalled"), answered.stalls() as f64, "requests that took 0.9 s or longer", "requests");
    let metric = "requests in the second with the fewest, of the median second";
    add(format!("{plain}served_least"), least(&answered.seconds), metric, "ratio");
}

/// The first and the last second are not whole.
fn least(seconds: &[f64]) -> f64 {
    let whole = seconds.get(1..seconds.len().saturating_sub(1)).unwrap_or_default();
    quantile(whole, 0.0) / median(whole)
}

/// What stands below the table.
pub fn notes(measured: &Measured) -> Vec<String> {
    let probes = parts(measured).iter().map(|part| part.changes.probes.len()).sum::<usize>();
    let lost = measured.upgrades.iter().flat_map(|changes| &changes.held_lost);
    let lost = lost.map(|(number, why)| format!("container {number} of the application was lost: {why}"));
    (probes > 0).then(|| format!("{probes} probes of the refused file")).into_iter().chain(lost).collect()
}

pub fn plots(measured: &Measured) -> Vec<Plot> {
    let plots = parts(measured).into_iter().flat_map(|part| {
        let (times, seconds, title, served, each) = match part.what {
            What::Policies => {
                ("reloads", "served", "fief apply under load", "Requests served while policies change", "reload")
            }
            What::Programs => (
                "upgrades",
                "served_upgrades",
                "fief apply under load, by another build",
                "Requests served while Fief's programs change",
                "change of programs",
            ),
        };
        let plot = |name: &str, title: &str, x: &str, y: &str, series: &str, values: &[f64]| Plot {
            name: name.to_owned(),
            title: title.to_owned(),
            x: x.to_owned(),
            y: y.to_owned(),
            series: numbered(series, values),
            logarithmic: false,
        };
        [
            plot(times, title, each, "ms", "fief apply", &part.changes.ms),
            plot(seconds, served, "second", "requests", "all clients", &part.changes.answered.seconds),
        ]
    });
    plots.collect()
}

pub fn measurements(measured: &Measured) -> Vec<Value> {
    let of = |part: &Part| {
        let (changes, answered) = (part.changes, &part.changes.answered);
        let (name, times) = (format!("{}s", part.prefix()), format!("{}_ms", part.prefix()));
        json!({
            "experiment": "service", "part": name, times: changes.ms, "served": answered.served(), "lost": answered.lost(),
            "stalled": answered.stalls(), "seconds": answered.seconds, "probes": changes.probes.len(),
            "probes_served": probe::count(&changes.probes, Answer::Served), "gap_ms": part.gap_ms(),
            "quiet_ns": changes.quiet_ns, "lost_by_class": answered.classes.each_ref().map(|seen| seen.lost()),
            "accounts_lost_ns": changes.accounts_lost_ns, "beyond_clock": changes.beyond_clock, "held_lost": changes.held_lost,
            "held_looks": changes.held_looks,
        })
    };
    parts(measured).iter().map(of).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::experiments::service::crowd::Answered;
    use crate::load::Seen;
    use std::time::{Duration, Instant};

    fn changes(lost: u64, accounts_lost_ns: u64, gap_ms: u64) -> Changes {
        let answered = Answered {
            classes: [Seen { errors: lost, ..Seen::default() }, Seen::default(), Seen::default()],
            seconds: vec![],
        };
        let begin = Instant::now();
        let probes = [(0, Answer::Refused), (gap_ms / 2, Answer::Served), (gap_ms, Answer::Refused)];
        let probes = probes.into_iter().filter(|(_, answer)| gap_ms > 0 || *answer == Answer::Refused);
        let probes = probes.map(|(ms, answer)| (begin + Duration::from_millis(ms), answer)).collect();
        Changes { answered, accounts_lost_ns, probes, ms: vec![100.0, 300.0], ..Changes::default() }
    }

    fn of(reloads: Option<Changes>, upgrades: Option<Changes>) -> Figures {
        let mut all = Figures::default();
        figures(&Plan::of(true), &Measured { reloads, upgrades, ..Measured::default() }, &mut all);
        all
    }

    fn missed(figures: &Figures) -> Vec<&str> {
        figures.missed().map(|figure| figure.name.as_str()).collect()
    }

    #[test]
    fn one_request_that_is_lost_over_reloads_is_too_many() {
        let figures = of(Some(changes(1, 0, 0)), None);
        assert_eq!(missed(&figures), ["requests_lost", "reload_ms"]);
        assert_eq!((figures.get("upgrade_ms"), figures.get("held_lost")), (None, None), "nobody measured it");
    }

    #[test]
    fn the_worse_of_both_must_hold_and_each_stands_beside_it() {
        let lost = [(3, "gone".to_owned()), (5, "less".to_owned())].into();
        let figures = of(Some(changes(1, 7, 6)), Some(Changes { held_lost: lost, ..changes(2, 5, 8) }));
        assert_eq!(
            missed(&figures),
            ["requests_lost", "gap_ms", "accounts_lost_ns", "reload_ms", "held_lost"],
            "an upgrade has no bound of its own"
        );
        let value = |name| figures.get(name).unwrap();
        assert_eq!(
            [value("requests_lost"), value("reload_requests_lost"), value("upgrade_requests_lost")],
            [3.0, 1.0, 2.0]
        );
        assert_eq!([value("gap_ms"), value("reload_gap_ms"), value("upgrade_gap_ms")], [8.0, 6.0, 8.0]);
        assert_eq!(
            [value("accounts_lost_ns"), value("reload_accounts_lost_ns"), value("upgrade_accounts_lost_ns")],
            [7.0, 7.0, 5.0]
        );
        assert_eq!([value("upgrade_ms"), value("held_lost")], [300.0, 2.0]);
        let beyond = |beyond_clock| Some(Changes { beyond_clock, ..Changes::default() });
        let figures = of(beyond(vec![0.001, -0.003]), beyond(vec![0.002]));
        assert_eq!(figures.get("accounts_beyond_clock"), Some(0.003), "too little is a difference too");
    }

    #[test]
    fn what_was_not_measured_has_no_figures() {
        assert_eq!(of(None, None), Figures::default());
    }

    #[test]
    fn the_least_second_is_a_whole_one() {
        assert_eq!(least(&[1.0, 100.0, 50.0, 100.0, 2.0]), 0.5);
        assert!(least(&[1.0]).is_nan());
    }
}
