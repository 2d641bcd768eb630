// SPDX-License-Identifier: Apache-2.0 OR MIT
//! From single trials to tables, plots and figures. Pure.

use super::steps::{
    AT_SYN, AT_URL, BURSTS, FIRST, RATED, RATES, SECOND, Setting, UNCONTROLLED, UNLOADED, VOLLEYS, burst_way, goodput,
    priority, rate_way,
};
use crate::experiments::Outcome;
use crate::experiments::overload::{Sample, cell};
use crate::figures::{Bound, Figures};
use crate::plot::{Plot, Series};
use crate::statistics::{median, ratios};
use crate::table::{Table, number};

const ABOUT: &str = "Requests cost 1 ms of CPU. Paying clients saturate the server; a crowd of others beside them asks for \
0.6 of what the server can do, and is limited to a fiftieth, by its URL or at its SYNs. What do the paying ones \
keep? And what is left of a URL's goodput when 2.5 times its limit is asked for by clients who do not wait long?";

pub fn of(sample: &Sample, setting: &Setting, notes: Vec<String>) -> Outcome {
    let mut preferred = preferred(sample, setting);
    preferred.notes.extend(notes);
    preferred.notes.extend(sample.warnings());
    let mut tables = vec![preferred, goodputs(sample, setting)];
    let mut plots = vec![goodput_plot(sample, setting)];
    if sample.has("priority") {
        tables.push(priorities(sample, setting));
    }
    if sample.has(&rate_way(RATES[0])) {
        tables.extend([rates(sample, setting), bursts(sample)]);
        plots.extend([rate_plot(sample, setting), burst_plot(sample)]);
    }
    Outcome {
        name: "header-control",
        about: ABOUT.to_owned(),
        tables,
        plots,
        measurements: sample.to_json(),
        figures: figures(sample, setting),
    }
}

fn figures(sample: &Sample, setting: &Setting) -> Figures {
    let mut figures = Figures::default();
    let kept =
        |way: &str, step: &str| median(&ratios(&sample.rates(way, step, FIRST), &sample.rates(way, UNLOADED, FIRST)));
    let (by_url, by_syn) = (kept("fief", AT_URL), kept("fief", AT_SYN));
    // f64::min would take the one that was measured for both.
    let worst = if by_syn < by_url || by_syn.is_nan() { by_syn } else { by_url };
    let preferred = "requests a second of the paying clients, of those without the crowd";
    let crowd = "an open-loop crowd that asks for 0.6 of the capacity";
    figures.must("preferred", worst, Bound::AtLeast(0.9)).of(
        preferred,
        "ratio",
        format!("{crowd}; the worse of the next two"),
    );
    for (name, value, limit) in [
        ("preferred_url", by_url, "limited by its URL to a fiftieth"),
        ("preferred_syn", by_syn, "limited at its SYNs to a fiftieth"),
        ("nginx_preferred", kept("nginx", AT_URL), "limited by nginx's limit_req"),
        ("uncontrolled_preferred", kept("nginx", UNCONTROLLED), "not limited"),
    ] {
        figures.add(name, value).of(preferred, "ratio", format!("{crowd}, {limit}"));
    }
    let served = sample.rates("fief", &goodput(2.5), FIRST);
    let errors: Vec<f64> = served.iter().map(|rate| (rate / setting.capped.per_second - 1.0).abs()).collect();
    let beyond = "2.5 times the limit is asked for";
    let figure = figures.must("limited_rate_error", median(&errors), Bound::AtMost(0.03));
    figure.of("a limited URL's requests a second, against its limit", "ratio", beyond);
    let kept = |way: &str| {
        let [beyond, at_limit] = [2.5, 1.0].map(|part| sample.rates(way, &goodput(part), FIRST));
        median(&ratios(&beyond, &at_limit))
    };
    let useful = "requests a second served within 150 ms, of those when exactly the limit is asked for";
    figures.must("goodput_kept", kept("fief"), Bound::AtLeast(0.95)).of(useful, "ratio", beyond);
    figures.add("goodput_uncontrolled", kept("nginx")).of(useful, "ratio", format!("{beyond}; nobody limits"));
    let share = |step: &str, crowd: usize| median(&shares(sample, step, crowd));
    if let Some(&most) = setting.clients().last() {
        let load = format!("{most} clients of each of two URLs");
        figures.add("url_high_share", share(&priority(most), FIRST)).of(
            "requests a second of the paying clients' URL, of both",
            "ratio",
            load,
        );
    }
    figures.add("url_low_share_when_high_is_limited", share(RATED[0].0, SECOND)).of(
        "requests a second of the others' URL, of both",
        "ratio",
        "the paying clients' URL is limited to 0.3 of the capacity",
    );
    figures
}

/// One crowd's part of what both were served, in each round.
fn shares(sample: &Sample, step: &str, crowd: usize) -> Vec<f64> {
    let [first, second] = [FIRST, SECOND].map(|crowd| sample.rates("priority", step, crowd));
    let all: Vec<f64> = first.iter().zip(&second).map(|(first, second)| first + second).collect();
    ratios(if crowd == FIRST { &first } else { &second }, &all)
}

fn preferred(sample: &Sample, setting: &Setting) -> Table {
    let mut table = Table::new(
        "Requests served a second (quartiles)",
        &["", "paying", "of alone", "their response, ms", "others", "refused"],
    );
    let rows = [
        ("nginx", UNLOADED),
        ("nginx", UNCONTROLLED),
        ("nginx", AT_URL),
        ("fief", UNLOADED),
        ("fief", AT_URL),
        ("fief", AT_SYN),
    ];
    for (way, step) in rows.into_iter().filter(|(way, _)| sample.has(way)) {
        let rates = sample.rates(way, step, FIRST);
        let refused = sample.of(way, step, SECOND, |seen| (seen.refused + seen.given_up) as f64 / seen.seconds);
        table.row([
            format!("{}, {step}", if way == "fief" { "Fief" } else { way }),
            cell(&rates),
            number(median(&ratios(&rates, &sample.rates(way, UNLOADED, FIRST)))),
            number(median(&sample.means(way, step, FIRST)) / 1000.0),
            cell(&sample.rates(way, step, SECOND)),
            number(median(&refused)),
        ]);
    }
    table.note(format!(
        "The server's core does {} requests a second; the others' limit is {}, burst {}. nginx limits by limit_req. \
         Who is refused at a SYN hears nothing and gives up.",
        number(setting.capacity),
        setting.crowd.per_second,
        setting.crowd.burst
    ));
    table
}

fn goodputs(sample: &Sample, setting: &Setting) -> Table {
    let title = format!("Goodput of a URL limited to {} a second, requests served in time", setting.capped.per_second);
    let mut table = Table::new(title, &["asked for, of the limit", "nginx without control", "Fief"]);
    for &part in setting.parts() {
        let goodput = |way| cell(&sample.rates(way, &goodput(part), FIRST));
        table.row([part.to_string(), goodput("nginx"), goodput("fief")]);
    }
    table
}

fn priorities(sample: &Sample, setting: &Setting) -> Table {
    let mut table = Table::new(
        "A URL of the paying clients and one of the others, 50 blocking workers: requests served a second",
        &["", "paying", "others", "share of the paying"],
    );
    let steps = setting.clients().iter().map(|&clients| priority(clients));
    for step in steps.chain(RATED.iter().map(|(step, _)| (*step).to_owned())) {
        let [high, low] = [FIRST, SECOND].map(|crowd| sample.rates("priority", &step, crowd));
        if !high.is_empty() {
            let share = number(median(&shares(sample, &step, FIRST)));
            table.row([step, cell(&high), cell(&low), share]);
        }
    }
    let [first, second] = setting.rated.map(|bucket| bucket.per_second);
    table.note(format!("0.3 and 0.1 of the capacity are {first} and {second} a second, burst 10."));
    table
}

fn rates(sample: &Sample, setting: &Setting) -> Table {
    let mut table = Table::new(
        "The others' limit against what the paying clients keep, requests a second",
        &["limit, of capacity", "paying, by URL", "others", "paying, at SYN", "others"],
    );
    for part in RATES {
        let way = rate_way(part);
        let rates = |step, crowd| cell(&sample.rates(&way, step, crowd));
        table.row([
            format!("{part} ({:.0})", part * setting.capacity),
            rates(AT_URL, FIRST),
            rates(AT_URL, SECOND),
            rates(AT_SYN, FIRST),
            rates(AT_SYN, SECOND),
        ]);
    }
    table
}

fn bursts(sample: &Sample) -> Table {
    let mut table = Table::new(
        "Volleys of 50 to 80 requests twice a second, limited to a twentieth of the capacity: requests served a second",
        &["burst", "paying", "their 99th percentile, ms", "others"],
    );
    for burst in BURSTS {
        let way = burst_way(burst);
        table.row([
            burst.to_string(),
            cell(&sample.rates(&way, VOLLEYS, FIRST)),
            number(sample.p99_us(&way, VOLLEYS, FIRST) / 1000.0),
            cell(&sample.rates(&way, VOLLEYS, SECOND)),
        ]);
    }
    table
}

fn rate_plot(sample: &Sample, setting: &Setting) -> Plot {
    let series = [(AT_URL, "limited by URL"), (AT_SYN, "limited at the SYN")].map(|(step, name)| {
        let samples = RATES.map(|part| (part * setting.capacity, sample.rates(&rate_way(part), step, FIRST)));
        Series::of(name, samples)
    });
    Plot {
        name: "rate".to_owned(),
        title: "What the paying clients keep, by the others' limit".to_owned(),
        x: "limit, requests/s".to_owned(),
        y: "requests/s".to_owned(),
        series: series.to_vec(),
        logarithmic: false,
    }
}

fn burst_plot(sample: &Sample) -> Plot {
    let series = [(FIRST, "paying"), (SECOND, "volleys of the others")].map(|(crowd, name)| {
        let samples = BURSTS.map(|burst| (f64::from(burst), sample.rates(&burst_way(burst), VOLLEYS, crowd)));
        Series::of(name, samples)
    });
    Plot {
        name: "burst".to_owned(),
        title: "The burst of the limit, against volleys".to_owned(),
        x: "burst".to_owned(),
        y: "requests/s".to_owned(),
        series: series.to_vec(),
        logarithmic: false,
    }
}

fn goodput_plot(sample: &Sample, setting: &Setting) -> Plot {
    let series = [("nginx", "nginx without control"), ("fief", "Fief")].map(|(way, name)| {
        let of = |&part: &f64| (part * setting.capped.per_second, sample.rates(way, &goodput(part), FIRST));
        Series::of(name, setting.parts().iter().map(of))
    });
    Plot {
        name: "goodput".to_owned(),
        title: "Goodput of an expensive URL".to_owned(),
        x: "asked for, requests/s".to_owned(),
        y: "served in time, requests/s".to_owned(),
        series: series.to_vec(),
        logarithmic: false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample() -> Sample {
        let mut sample = Sample::new("header-control");
        for round in 0..3 {
            sample.push_rates("nginx", UNLOADED, round, &[1000]);
            sample.push_rates("nginx", UNCONTROLLED, round, &[250, 750]);
            sample.push_rates("fief", UNLOADED, round, &[1000]);
            sample.push_rates("fief", AT_URL, round, &[940, 20]);
            sample.push_rates("fief", AT_SYN, round, &[960, 20]);
            sample.push_rates("fief", &goodput(1.0), round, &[740]);
            sample.push_rates("fief", &goodput(2.5), round, &[742]);
        }
        sample
    }

    #[test]
    fn the_preferred_are_judged_where_they_keep_least() {
        let figures = of(&sample(), &Setting::of(1000.0, true), Vec::new()).figures;
        assert_eq!([figures.get("preferred"), figures.get("preferred_syn")], [Some(0.94), Some(0.96)]);
        assert_eq!(figures.get("uncontrolled_preferred"), Some(0.25));
    }

    #[test]
    fn a_stage_that_was_not_measured_misses_the_bound() {
        let mut sample = Sample::new("header-control");
        sample.push_rates("fief", UNLOADED, 0, &[1000]);
        sample.push_rates("fief", AT_URL, 0, &[990, 20]);
        let figures = of(&sample, &Setting::of(1000.0, true), Vec::new()).figures;
        assert!(figures.get("preferred").expect("a figure").is_nan());
        assert!(figures.missed().any(|figure| figure.name == "preferred"));
    }

    #[test]
    fn a_limit_is_held_against_what_was_served() {
        let Outcome { figures, plots, .. } = of(&sample(), &Setting::of(1000.0, true), Vec::new());
        assert_eq!(plots.iter().map(|plot| plot.name.as_str()).collect::<Vec<_>>(), ["goodput"], "a quick run has one");
        assert!((figures.get("limited_rate_error").expect("a figure") - 8.0 / 750.0).abs() < 1e-9, "742 of 750");
        assert!(figures.get("goodput_kept").expect("a figure") > 1.0, "742 of 740");
    }
}
