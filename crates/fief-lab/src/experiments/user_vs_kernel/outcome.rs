// SPDX-License-Identifier: Apache-2.0 OR MIT
//! From single trials to tables, plots and figures. Pure.

use super::Stage;
use crate::experiments::Outcome;
use crate::experiments::overload::{Sample, cell};
use crate::figures::{Bound, Figures};
use crate::plot::{Plot, Series};
use crate::statistics::{median, ratios};
use crate::table::{Table, number};

const ABOUT: &str = "Well-behaved clients saturate nginx, whose requests cost 2.5 ms of CPU. A crowd beside them is limited \
to 10 requests a second, and offers more and more. What do the well-behaved keep when the server refuses the crowd, and \
when the kernel does, at the SYN or at the URL?";

/// Places of the crowds in a trial.
const GOOD: usize = 0;
const CROWD: usize = 1;

pub fn of(sample: &Sample, parts: &[f64], capacity: f64, notes: Vec<String>) -> Outcome {
    let stages: Vec<Stage> = Stage::ALL.into_iter().filter(|stage| sample.has(stage.way())).collect();
    let table = |title: &str, cell: &dyn Fn(Stage, f64) -> String| {
        let head: Vec<&str> =
            ["refused load, of capacity"].into_iter().chain(stages.iter().map(|s| s.title())).collect();
        let mut table = Table::new(title, &head);
        for &part in parts {
            let cells = stages.iter().map(|&stage| cell(stage, part));
            table.row(std::iter::once(part.to_string()).chain(cells));
        }
        table
    };
    let mut kept = table("Well-behaved clients, requests served a second (quartiles)", &|stage, part| {
        cell(&sample.rates(stage.way(), &stage.step(part), GOOD))
    });
    kept.note(format!("The server's core does {} requests a second when it has nothing else to do.", number(capacity)));
    kept.notes.extend(notes);
    kept.notes.extend(sample.warnings());
    let response = table("Their response time, ms: mean / 99th percentile", &|stage, part| {
        let (way, step) = (stage.way(), stage.step(part));
        let mean = median(&sample.means(way, &step, GOOD));
        format!("{} / {}", number(mean / 1000.0), number(sample.p99_us(way, &step, GOOD) / 1000.0))
    });
    let crowd = table("The limited crowd, requests served a second", &|stage, part| {
        cell(&sample.rates(stage.way(), &stage.step(part), CROWD))
    });
    Outcome {
        name: "user-vs-kernel",
        about: ABOUT.to_owned(),
        tables: vec![kept, response, crowd],
        plots: plots(sample, &stages, parts),
        measurements: sample.to_json(),
        figures: figures(sample, parts),
    }
}

fn figures(sample: &Sample, parts: &[f64]) -> Figures {
    let mut figures = Figures::default();
    let (Some(&start), Some(&end)) = (parts.first(), parts.last()) else {
        return figures;
    };
    for stage in [Stage::Syn, Stage::Url, Stage::Answer, Stage::Server] {
        let (way, start, end) = (stage.way(), stage.step(start), stage.step(end));
        let kept = median(&ratios(&sample.rates(way, &end, GOOD), &sample.rates(way, &start, GOOD)));
        match stage {
            Stage::Syn => figures.must(stage.figure(), kept, Bound::AtLeast(0.95)),
            Stage::Url => figures.must(stage.figure(), kept, Bound::AtLeast(0.85)),
            Stage::Answer | Stage::Server => figures.add(stage.figure(), kept),
        }
        let slower = ratios(&sample.means(way, &end, GOOD), &sample.means(way, &start, GOOD));
        figures.add(format!("{}.response", stage.figure()), median(&slower));
        figures.add(format!("{}.refusal_us", stage.figure()), median(&refusal_us(sample, stage, &start, &end)));
        figures.add(format!("{}.crowd_per_second", stage.figure()), median(&sample.rates(way, &end, CROWD)));
    }
    figures
}

/// CPU time on the server's core for each request that was refused, in us: what both crowds' served ones cost by the
/// first step is taken off.
fn refusal_us(sample: &Sample, stage: Stage, start: &str, end: &str) -> Vec<f64> {
    let way = stage.way();
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

fn plots(sample: &Sample, stages: &[Stage], parts: &[f64]) -> Vec<Plot> {
    let plot = |name: &str, title: &str, y: &str, value: &dyn Fn(&str, &str) -> f64| {
        let series = stages.iter().map(|&stage| Series {
            name: stage.title().to_owned(),
            points: parts.iter().map(|&part| (part * 100.0, value(stage.way(), &stage.step(part)))).collect(),
        });
        Plot {
            name: name.to_owned(),
            title: title.to_owned(),
            x: "refused load, % of the server's capacity".to_owned(),
            y: y.to_owned(),
            series: series.collect(),
            logarithmic: false,
        }
    };
    vec![
        plot("throughput", "What the well-behaved clients keep", "requests/s", &|way, step| {
            median(&sample.rates(way, step, GOOD))
        }),
        plot("response", "How long they wait", "ms", &|way, step| median(&sample.means(way, step, GOOD)) / 1000.0),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_kept_is_the_end_of_the_start_within_a_round() {
        let mut sample = Sample::new("user-vs-kernel");
        for (round, slow) in [(0, 1), (1, 2), (2, 1)] {
            for (stage, end) in [(Stage::Server, 400), (Stage::Syn, 960), (Stage::Url, 900)] {
                sample.push_rates(stage.way(), &stage.step(0.02), round, &[1000 / slow, 10]);
                sample.push_rates(stage.way(), &stage.step(4.0), round, &[end / slow, 10]);
            }
        }
        let outcome = of(&sample, &[0.02, 4.0], 1000.0, Vec::new());
        let figure = |name: &str| outcome.figures.get(name).expect("a figure");
        assert_eq!([figure("kept"), figure("kept_url"), figure("server_kept")], [0.96, 0.9, 0.4]);
        assert_eq!(outcome.figures.missed().count(), 0);
    }

    #[test]
    fn what_was_not_measured_misses_its_bound_and_says_why() {
        let mut sample = Sample::new("user-vs-kernel");
        sample.push_rates("server", &Stage::Server.step(0.02), 0, &[1000, 10]);
        let outcome = of(&sample, &[0.02, 4.0], 1000.0, vec!["a reason".into()]);
        let missed: Vec<_> = outcome.figures.missed().map(|figure| figure.name.as_str()).collect();
        assert_eq!(missed, ["kept", "kept_url"]);
        assert!(outcome.tables[0].to_string().contains("a reason"));
    }
}
