// SPDX-License-Identifier: Apache-2.0 OR MIT
//! From single trials to tables, plots and figures. Pure.

use super::{BOUNDED, Cost, PER_SECOND, Priced, Stage};
use crate::experiments::Outcome;
use crate::experiments::overload::{Sample, cell};
use crate::figures::{Bound, Figures};
use crate::plot::{Plot, Series};
use crate::statistics::{median, ms, ratios};
use crate::table::{Table, cost_ms, number};

const ABOUT: &str = "Well-behaved clients saturate nginx, whose requests cost 2.5 ms of CPU, and in turn 0.5 ms. A crowd \
beside them is limited to 10 requests a second, and offers more and more. What do the well-behaved keep when the server \
refuses the crowd, and when the kernel does, at the SYN or at the URL, and when who was refused has no connection for a second?";

/// Places of the crowds in a trial.
const GOOD: usize = 0;
const CROWD: usize = 1;

pub fn of(sample: &Sample, parts: &[f64], priced: &[Priced], notes: Vec<String>) -> Outcome {
    let mut outcome = Outcome {
        name: "user-vs-kernel",
        about: ABOUT.to_owned(),
        measurements: sample.to_json(),
        ..Outcome::default()
    };
    for priced in priced {
        outcome.tables.extend(tables(sample, parts, priced));
        outcome.plots.extend(plots(sample, parts, priced.cost));
        figures(sample, parts, priced.cost, &mut outcome.figures);
    }
    if let Some(table) = outcome.tables.first_mut() {
        table.notes.extend(notes);
        table.notes.extend(sample.warnings());
    }
    outcome
}

/// Those that were measured at this cost.
fn stages(sample: &Sample, cost: Cost) -> Vec<Stage> {
    Stage::ALL.into_iter().filter(|stage| sample.has(&cost.way(stage.way()))).collect()
}

fn tables(sample: &Sample, parts: &[f64], Priced { cost, page }: &Priced) -> [Table; 3] {
    let stages = stages(sample, *cost);
    let table = |title: &str, cell: &dyn Fn(&str, &str) -> String| {
        let head: Vec<&str> =
            ["refused load, of capacity"].into_iter().chain(stages.iter().map(|s| s.title())).collect();
        let mut table = Table::new(format!("{title}, {} a request", cost_ms(cost.us())), &head);
        for &part in parts {
            let cells = stages.iter().map(|&stage| cell(&cost.way(stage.way()), &stage.step(part)));
            table.row(std::iter::once(part.to_string()).chain(cells));
        }
        table
    };
    let mut kept = table("Well-behaved clients, requests served a second (quartiles)", &|way, step| {
        cell(&sample.rates(way, step, GOOD))
    });
    let capacity = number(page.capacity);
    kept.note(format!("The server's core does {capacity} requests a second when it has nothing else to do."));
    let response = table("Their response time, ms: mean / 99th percentile", &|way, step| {
        let mean = median(&sample.means(way, step, GOOD));
        format!("{} / {}", number(mean / 1000.0), number(sample.p99_us(way, step, GOOD) / 1000.0))
    });
    let crowd =
        table("The limited crowd, requests served a second", &|way, step| cell(&sample.rates(way, step, CROWD)));
    [kept, response, crowd]
}

/// At the paper's cost. Where a request is cheap, as many times its cost in refusals fills the core whoever refuses: there it
/// is at least what is kept where the server refuses, in the same run and at the same cost.
fn bound(stage: Stage, cost: Cost, server: f64) -> Option<Bound> {
    match (stage, cost) {
        (Stage::Server | Stage::Penalty, _) => None,
        (Stage::Syn | Stage::Url | Stage::Answer, Cost::Cheap) => Some(Bound::AtLeast(server)),
        (Stage::Syn, Cost::Paper) => Some(Bound::AtLeast(0.95)),
        (Stage::Url, Cost::Paper) => Some(Bound::AtLeast(0.85)),
        (Stage::Answer, Cost::Paper) => Some(Bound::AtLeast(0.8)),
    }
}

fn figures(sample: &Sample, parts: &[f64], cost: Cost, figures: &mut Figures) {
    let load = |part: f64| {
        format!(
            "a crowd offers {part} of the capacity, limited to 10 a second; {} of CPU a request",
            cost_ms(cost.us())
        )
    };
    let kept_at = |stage: Stage, part: f64| {
        let rates = |part| sample.rates(&cost.way(stage.way()), &stage.step(part), GOOD);
        median(&ratios(&rates(part), &rates(parts[0])))
    };
    let server = kept_at(Stage::Server, BOUNDED);
    for stage in [Stage::Syn, Stage::Url, Stage::Answer, Stage::Penalty, Stage::Server] {
        let (way, start, end) = (cost.way(stage.way()), stage.step(parts[0]), stage.step(BOUNDED));
        let name = format!("{}{}", stage.figure(), cost.suffix());
        let kept = |part| kept_at(stage, part);
        let figure = match bound(stage, cost, server) {
            Some(bound) => figures.must(&name, kept(BOUNDED), bound),
            None => figures.add(&name, kept(BOUNDED)),
        };
        let metric = format!("well-behaved requests a second at that load, of at {} of the capacity", parts[0]);
        let metric = format!("{metric}; limited {}", stage.title());
        figure.of(&metric, "ratio", load(BOUNDED));
        for &part in parts.iter().filter(|&&part| part > BOUNDED) {
            let name = format!("{}_{part}x{}", stage.figure(), cost.suffix());
            figures.add(name, kept(part)).of(&metric, "ratio", load(part));
        }
        let slower = ratios(&sample.means(&way, &end, GOOD), &sample.means(&way, &start, GOOD));
        let mut add = |of: &str, value: f64, metric: String, unit| {
            let metric = format!("{metric}; limited {}", stage.title());
            figures.add(format!("{name}.{of}"), value).of(metric, unit, load(BOUNDED));
        };
        let metric =
            format!("well-behaved clients' mean response time, of at {} of the capacity; less is better", parts[0]);
        add("response", median(&slower), metric, "ratio");
        let metric = "CPU time on the server's core for each request that is refused; less is better".to_owned();
        add("refusal_us", median(&refusal_us(sample, &way, &start, &end)), metric, "us");
        let metric = format!("requests a second that the crowd gets; {PER_SECOND} are allowed, and more is not better");
        add("crowd_per_second", median(&sample.rates(&way, &end, CROWD)), metric, "1/s");
    }
}

/// CPU time on the server's core for each request that was refused, in us: what both crowds' served ones cost by the
/// first step is taken off.
fn refusal_us(sample: &Sample, way: &str, start: &str, end: &str) -> Vec<f64> {
    let served = |step: &str| {
        let [good, crowd] = [GOOD, CROWD].map(|crowd| sample.rates(way, step, crowd));
        good.iter().zip(&crowd).map(|(good, crowd)| good + crowd).collect::<Vec<_>>()
    };
    let each = ratios(&sample.server_cpu(way, start), &served(start));
    let refused =
        sample.of(way, end, CROWD, |seen| seen.begun.saturating_sub(seen.latency.count()) as f64 / seen.seconds);
    let used = sample.server_cpu(way, end).into_iter().zip(each.iter().zip(served(end)));
    used.zip(refused).map(|((cpu, (each, served)), refused)| (cpu - each * served) * 1e6 / refused).collect()
}

fn plots(sample: &Sample, parts: &[f64], cost: Cost) -> Vec<Plot> {
    let stages = stages(sample, cost);
    let plot = |name: &str, title: &str, y: &str, values: &dyn Fn(&str, &str) -> Vec<f64>| {
        let series = stages.iter().map(|&stage| {
            let of = |&part: &f64| (part * 100.0, values(&cost.way(stage.way()), &stage.step(part)));
            Series::of(stage.title(), parts.iter().map(of))
        });
        Plot {
            name: format!("{name}{}", cost.suffix()),
            title: format!("{title}, {} a request", cost_ms(cost.us())),
            x: "refused load, % of the server's capacity".to_owned(),
            y: y.to_owned(),
            series: series.collect(),
            logarithmic: false,
        }
    };
    vec![
        plot("throughput", "What the well-behaved clients keep", "requests/s", &|way, step| {
            sample.rates(way, step, GOOD)
        }),
        plot("response", "How long they wait", "ms", &|way, step| ms(&sample.means(way, step, GOOD))),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::experiments::overload::Page;

    fn outcome(sample: &Sample, notes: Vec<String>) -> Outcome {
        let priced = Cost::ALL.map(|cost| Priced { cost, page: Page { text: String::new(), capacity: 1000.0 } });
        of(sample, &[0.02, 4.0, 6.0], &priced, notes)
    }

    #[test]
    fn what_is_kept_at_four_times_the_capacity_is_of_the_start_within_a_round_at_each_cost() {
        let mut sample = Sample::new("user-vs-kernel");
        for (round, slow) in [(0, 1), (1, 2), (2, 1)] {
            for (stage, end) in [(Stage::Server, 400), (Stage::Syn, 960), (Stage::Url, 900), (Stage::Answer, 820)] {
                for (cost, less) in [(Cost::Paper, 0), (Cost::Cheap, 50)] {
                    let way = cost.way(stage.way());
                    sample.push_rates(&way, &stage.step(0.02), round, &[1000 / slow, 10]);
                    sample.push_rates(&way, &stage.step(4.0), round, &[(end - less) / slow, 10]);
                    sample.push_rates(&way, &stage.step(6.0), round, &[(end - less) / slow / 2, 10]);
                }
            }
        }
        let outcome = outcome(&sample, Vec::new());
        let figure = |name: &str| outcome.figures.get(name).expect("a figure");
        assert_eq!(["kept", "kept_url", "kept_url_503", "server_kept"].map(figure), [0.96, 0.9, 0.82, 0.4]);
        assert_eq!([figure("kept_500us"), figure("server_kept_500us")], [0.91, 0.35]);
        assert_eq!([figure("kept_6x"), figure("kept_6x_500us")], [0.48, 0.455]);
        let bounds =
            ["kept_500us", "kept_url_500us", "kept_url_503_500us", "kept_url_penalty_500us", "server_kept_500us"];
        let bounds =
            bounds.map(|name| outcome.figures.iter().find(|figure| figure.name == name).expect("a figure").bound);
        let relative = Some(Bound::AtLeast(0.35));
        assert_eq!(bounds, [relative, relative, relative, None, None], "what the server keeps at that cost");
        let missed: Vec<_> = outcome.figures.missed().map(|figure| figure.name.as_str()).collect();
        assert!(missed.is_empty(), "{missed:?}");
    }

    #[test]
    fn where_a_request_is_cheap_the_kernel_has_to_keep_as_much_as_the_server() {
        let mut sample = Sample::new("user-vs-kernel");
        for (stage, end) in [(Stage::Server, 400), (Stage::Syn, 960), (Stage::Url, 399), (Stage::Answer, 400)] {
            for cost in Cost::ALL {
                let way = cost.way(stage.way());
                sample.push_rates(&way, &stage.step(0.02), 0, &[1000, 10]);
                let kept = if cost == Cost::Paper { 960 } else { end };
                sample.push_rates(&way, &stage.step(4.0), 0, &[kept, 10]);
            }
        }
        let outcome = outcome(&sample, Vec::new());
        let missed: Vec<_> = outcome.figures.missed().map(|figure| figure.name.as_str()).collect();
        assert_eq!(missed, ["kept_url_500us"]);
    }

    #[test]
    fn what_was_not_measured_misses_its_bound_and_says_why() {
        let mut sample = Sample::new("user-vs-kernel");
        sample.push_rates("server", &Stage::Server.step(0.02), 0, &[1000, 10]);
        let outcome = outcome(&sample, vec!["a reason".into()]);
        let missed: Vec<_> = outcome.figures.missed().map(|figure| figure.name.as_str()).collect();
        let figures = ["kept", "kept_url", "kept_url_503", "kept_500us", "kept_url_500us", "kept_url_503_500us"];
        assert_eq!(missed, figures);
        assert!(outcome.tables[0].to_string().contains("a reason"));
    }
}
