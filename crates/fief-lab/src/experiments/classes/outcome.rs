// SPDX-License-Identifier: Apache-2.0 OR MIT
//! From single trials to tables, plots and figures. Pure.

use super::{CLASSES, Loads, MANY, RATES, equal, growing, limited};
use crate::experiments::Outcome;
use crate::experiments::overload::{Sample, cell};
use crate::figures::{Bound, Figures};
use crate::plot::{Plot, Series};
use crate::statistics::{median, ms, ratios};
use crate::table::{Table, number};

const ABOUT: &str = "Fifty blocking workers, requests of 1 ms of CPU, three classes of clients. What does the high class \
get when all have equally many clients, how long does it wait while only the low class grows, and what do the others get \
when the high class is limited at its SYNs?";

/// Names of the ways, and what tables call them.
const WAYS: [(&str, &str); 3] = [("plain", "workers"), ("strict", "class listeners"), ("queue", "Fief's queue")];
/// Places of the crowds in a trial.
const HIGH: usize = 0;
const MIDDLE: usize = 1;
const LOW: usize = 2;
/// Where the growing class is held against itself: no queue, every worker busy, and a long queue.
const GROWN: [usize; 3] = [30, 60, 240];

pub fn of(sample: &Sample, loads: &Loads, notes: Vec<String>) -> Outcome {
    let mut shares = equals(sample, loads);
    shares.notes.extend(notes);
    shares.notes.extend(sample.warnings());
    let mut tables = vec![shares];
    if sample.has("strict") || sample.has("queue") {
        tables.push(grown(sample, loads));
    }
    if loads.rates.iter().any(|&rate| sample.has(&limited(rate))) {
        tables.push(limits(sample, loads));
    }
    Outcome {
        name: "classes",
        about: ABOUT.to_owned(),
        tables,
        plots: plots(sample, loads),
        measurements: sample.to_json(),
        figures: figures(sample),
    }
}

fn figures(sample: &Sample) -> Figures {
    let mut figures = Figures::default();
    let share = |way: &str| {
        let [high, middle, low] = [HIGH, MIDDLE, LOW].map(|crowd| sample.rates(way, &equal(MANY), crowd));
        let all: Vec<f64> = (0..high.len()).map(|round| high[round] + middle[round] + low[round]).collect();
        median(&ratios(&high, &all))
    };
    let high = "requests a second of the high class, of all three";
    let load = equal(MANY);
    figures.must("high_share", share("strict"), Bound::AtLeast(0.95)).of(high, "ratio", load.clone());
    let queued = format!("{load}, by Fief's queue");
    figures.must("high_share_queue", share("queue"), Bound::AtLeast(0.95)).of(high, "ratio", queued);
    figures.add("high_share_plain", share("plain")).of(high, "ratio", format!("{load}, without Fief"));
    let grown = |way: &str, from: usize| {
        let response = |clients| sample.means(way, &growing(clients), HIGH);
        median(&ratios(&response(GROWN[2]), &response(from)))
    };
    // Both without Fief too: where the same order comes about by itself, a figure says nothing.
    for (name, from, bound) in [("high_flat", GROWN[1], Some(1.15)), ("high_grown", GROWN[0], None)] {
        let queue = if from == GROWN[0] { "no queue yet" } else { "all workers busy" };
        let metric = format!(
            "mean response time of the high class beside {} low clients, of that beside {from} ({queue})",
            GROWN[2]
        );
        for (way, suffix, by) in [("strict", "", ""), ("queue", "_queue", ", by Fief's queue")] {
            let (name, value) = (format!("{name}{suffix}"), grown(way, from));
            let figure = match bound {
                Some(most) => figures.must(name, value, Bound::AtMost(most)),
                None => figures.add(name, value),
            };
            figure.of(metric.clone(), "ratio", growing(GROWN[2]) + by);
        }
        let load = format!("{}, without Fief", growing(GROWN[2]));
        figures.add(format!("{name}_plain"), grown("plain", from)).of(metric, "ratio", load);
    }
    let way = limited(RATES[0]);
    let rates = |crowd| sample.rates(&way, &way, crowd);
    let errors: Vec<f64> = rates(HIGH).iter().map(|rate| (rate / f64::from(RATES[0]) - 1.0).abs()).collect();
    let figure = figures.must("limited_rate_error", median(&errors), Bound::AtMost(0.03));
    figure.of("requests a second of the high class, against its limit", "ratio", way.clone());
    let served = |class: &str| format!("requests a second of the {class} class");
    figures.add("limited_high", median(&rates(HIGH))).of(served("high"), "1/s", way.clone());
    // One request in a minute would still be starvation.
    for (name, class, crowd) in [("limited_middle", "middle", MIDDLE), ("limited_low", "low", LOW)] {
        figures.must(name, median(&rates(crowd)), Bound::AtLeast(1.0)).of(served(class), "1/s", way.clone());
    }
    figures
}

fn equals(sample: &Sample, loads: &Loads) -> Table {
    let mut table = Table::new(
        "Requests served a second by class, as many clients in each (quartiles); response of the high class, ms",
        &["clients in each", "", "high", "middle", "low", "mean", "99th"],
    );
    for &clients in loads.equal {
        for (way, title) in WAYS {
            if !sample.has(way) {
                continue;
            }
            let step = equal(clients);
            let rate = |crowd| cell(&sample.rates(way, &step, crowd));
            table.row([
                clients.to_string(),
                title.to_owned(),
                rate(HIGH),
                rate(MIDDLE),
                rate(LOW),
                number(median(&sample.means(way, &step, HIGH)) / 1000.0),
                number(sample.p99_us(way, &step, HIGH) / 1000.0),
            ]);
        }
    }
    table
}

fn grown(sample: &Sample, loads: &Loads) -> Table {
    let mut table = Table::new(
        "Only the low class grows, beside 10 high clients",
        &["low clients", "", "high, requests/s", "response, ms: mean", "99th", "low, requests/s"],
    );
    for &clients in loads.growing {
        let step = growing(clients);
        for (way, title) in WAYS.into_iter().filter(|(way, _)| sample.has(way)) {
            table.row([
                clients.to_string(),
                title.to_owned(),
                cell(&sample.rates(way, &step, HIGH)),
                number(median(&sample.means(way, &step, HIGH)) / 1000.0),
                number(sample.p99_us(way, &step, HIGH) / 1000.0),
                // The second crowd of this step.
                cell(&sample.rates(way, &step, MIDDLE)),
            ]);
        }
    }
    table
}

fn limits(sample: &Sample, loads: &Loads) -> Table {
    let mut table = Table::new(
        "The high class limited at its SYNs, requests served a second (quartiles)",
        &["rate and burst", "high", "middle", "low"],
    );
    for &rate in loads.rates {
        let way = limited(rate);
        let rates = |crowd| cell(&sample.rates(&way, &way, crowd));
        table.row([format!("{rate}, {rate}"), rates(HIGH), rates(MIDDLE), rates(LOW)]);
    }
    table
}

fn plots(sample: &Sample, loads: &Loads) -> Vec<Plot> {
    let plot = |name: &str, title: &str, y: &str, values: &dyn Fn(&str, usize) -> Vec<f64>| {
        let series = CLASSES.iter().enumerate().map(|(crowd, class)| {
            let of = |&clients: &usize| (clients as f64, values(&equal(clients), crowd));
            Series::of(format!("{class:?}").to_lowercase(), loads.equal.iter().map(of))
        });
        Plot {
            name: name.to_owned(),
            title: title.to_owned(),
            x: "clients in each class".to_owned(),
            y: y.to_owned(),
            series: series.collect(),
            logarithmic: false,
        }
    };
    let grown = WAYS.map(|(way, title)| {
        let of = |&clients: &usize| (clients as f64, ms(&sample.means(way, &growing(clients), HIGH)));
        Series::of(title, loads.growing.iter().map(of))
    });
    vec![
        plot("throughput", "Three classes before 50 workers under Fief", "requests/s", &|step, crowd| {
            sample.rates("strict", step, crowd)
        }),
        plot("response", "Their mean response times", "ms", &|step, crowd| ms(&sample.means("strict", step, crowd))),
        Plot {
            name: "grown".to_owned(),
            title: "Mean response time of 10 high clients while the low class grows".to_owned(),
            x: "low clients".to_owned(),
            y: "ms".to_owned(),
            series: grown.into(),
            logarithmic: false,
        },
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn loads() -> Loads {
        super::super::loads(true)
    }

    #[test]
    fn the_high_classes_share_is_of_all_that_was_served() {
        let mut sample = Sample::new("classes");
        sample.push_rates("plain", &equal(MANY), 0, &[300, 300, 300]);
        sample.push_rates("strict", &equal(MANY), 0, &[970, 30, 0]);
        let figures = of(&sample, &loads(), Vec::new()).figures;
        assert_eq!(figures.get("high_share"), Some(0.97));
        assert!((figures.get("high_share_plain").expect("a figure") - 1.0 / 3.0).abs() < 1e-9);
    }

    #[test]
    fn a_limit_is_missed_by_more_than_it_allows_and_by_starving_the_others() {
        let missed = |rates: [u64; 3]| {
            let mut sample = Sample::new("classes");
            sample.push_rates(&limited(300), &limited(300), 0, &rates);
            let figures = of(&sample, &loads(), Vec::new()).figures;
            let missed = figures.missed().map(|figure| figure.name.clone());
            missed.filter(|name| name.starts_with("limited")).collect::<Vec<_>>()
        };
        assert!(missed([305, 600, 40]).is_empty());
        assert_eq!(missed([320, 600, 0]), ["limited_rate_error", "limited_low"]);
    }
}
