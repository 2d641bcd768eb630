// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Tables 5 and 6 of the paper on kernel mechanisms for service differentiation: what admission costs a packet by the
//! number of rules, and what it costs a server.
//!
//! The costs of packets are the kernel's own measurement of the installed program, upon frames of which no two are alike,
//! so that tables are as cold as random clients find them. The server is loaded without Fief, with empty programs where
//! Fief's are, and with Fief, in turn: by one client on the server's own core, and by many on the other.
//!
//! So many "rules" are so many values (prefixes, patterns) of at most 200 rules: a listener has at most 65,535 rules.

mod frames;
mod lengths;
mod programs;
mod rules;
mod side;

use crate::effort::is_least;
use crate::error::{Context, Result};
use crate::experiments::Outcome;
use crate::figures::Bound;
use crate::plot::{Plot, Series};
use crate::progress::Progress;
use crate::statistics::{Spread, median, ratios};
use crate::table::{Table, number};
use crate::wanted::Wanted;
use fief_testkit::{Nginx, NginxConfig, Topology};
use programs::Costs;

const ABOUT: &str = "What a SYN that is answered, a SYN that is policed and a request that is matched cost the program \
at the interface, by the number of rules' values and by the length of the URL; what admission costs in CPU a request; and \
what a saturated server keeps of its throughput, beside empty programs at the same places.";

const PORT: u16 = 80;

#[derive(Clone, Debug)]
struct Plan {
    /// Filters, and request patterns.
    counts: Vec<usize>,
    rounds: usize,
    /// Of each kind, for each number of rules.
    frames: usize,
    /// Alternating measurements of nginx.
    pairs: usize,
    load_seconds: f64,
    /// Of the stage without wake-ups, and batches of 5 ms in each.
    stage_rounds: usize,
    batches: usize,
    /// For the URLs' lengths, which cost little time.
    length_rounds: usize,
}

impl Plan {
    fn of(quick: bool) -> Plan {
        let counts = vec![1, 1000, 100_000, 1_000_000];
        let full = Plan {
            counts,
            rounds: 3,
            frames: 5000,
            pairs: 17,
            load_seconds: 1.5,
            stage_rounds: 15,
            batches: 200,
            length_rounds: 7,
        };
        match quick {
            _ if is_least() => Plan {
                counts: vec![1, 1000],
                rounds: 1,
                frames: 1000,
                pairs: 1,
                load_seconds: 0.1,
                stage_rounds: 1,
                batches: 3,
                length_rounds: 1,
            },
            true => Plan { rounds: 1, frames: 2000, pairs: 7, stage_rounds: 5, length_rounds: 3, ..full },
            false => full,
        }
    }

    fn steps(&self) -> usize {
        // without, empty programs, with
        let sides = 3;
        self.rounds * self.counts.len() + self.length_rounds + sides * (self.pairs + self.stage_rounds)
    }
}

pub fn run(quick: bool) -> Result<Outcome> {
    crate::command::can_run()?;
    let plan = Plan::of(quick);
    let topology = Topology::new()?;
    let nginx = start_nginx(&topology)?;
    let mut progress = Progress::new("admission-cost", plan.steps());
    let mut outcome = Outcome { name: "admission-cost", about: ABOUT.to_owned(), ..Outcome::default() };
    let wanted = Wanted::from_env();
    if wanted.any(&["rules"]) {
        let costs = costs(&plan, &topology, &mut progress, &mut outcome)?;
        report(&plan, &costs, &mut outcome);
    }
    if wanted.any(&["lengths"]) {
        lengths::run(&plan, &topology, &mut progress, &mut outcome)?;
    }
    if wanted.any(&["throughput"]) {
        side::throughput(&plan, &topology, &nginx, &mut progress, &mut outcome)?;
    }
    if wanted.any(&["cpu"]) {
        side::cpu(&plan, &mut progress, &mut outcome)?;
    }
    Ok(outcome)
}

fn costs(plan: &Plan, topology: &Topology, progress: &mut Progress, outcome: &mut Outcome) -> Result<Vec<Costs>> {
    let mut costs = Vec::new();
    for round in 0..plan.rounds {
        for turn in 0..plan.counts.len() {
            let count = plan.counts[(turn + round) % plan.counts.len()];
            progress.step(&format!("the programs with {count} rules"))?;
            let of_round = programs::measure(topology, count, plan.frames)?;
            outcome.measurements.push(of_round.to_json(round));
            costs.push(of_round);
        }
    }
    Ok(costs)
}

/// What the request rules of the loaded server name.
fn put_page(config: &NginxConfig) -> Result<()> {
    let page = |name: &str| config.folder().join(name);
    std::fs::copy(page("1k"), page("page.html")).context("make a page").map(drop)
}

fn start_nginx(topology: &Topology) -> Result<Nginx> {
    let config = NginxConfig::listening(PORT, &[&PORT.to_string()], 1, "")?;
    put_page(&config)?;
    crate::stage::start_nginx(topology, config, None)
}

fn report(plan: &Plan, costs: &[Costs], outcome: &mut Outcome) {
    type Cost = fn(&Costs) -> f64;
    let kinds: [(&str, &str, Cost); 3] = [
        ("syn_answered", "SYN answered", |costs| costs.syn_answered),
        ("syn_policed", "SYN policed", |costs| costs.syn_policed),
        ("request_matched", "request matched", |costs| costs.request_matched),
    ];
    let with =
        |count: usize, of: Cost| -> Vec<f64> { costs.iter().filter(|costs| costs.rules == count).map(of).collect() };
    let head: Vec<&str> = std::iter::once("rules").chain(kinds.map(|kind| kind.1)).collect();
    let mut table = Table::new("The program at the interface, ns a frame: median (quartiles of the rounds)", &head);
    for &count in &plan.counts {
        let cells = kinds.map(|(_, _, of)| {
            let spread = Spread::of(&with(count, of));
            format!("{} ({} - {})", number(spread.median), number(spread.low), number(spread.high))
        });
        table.row(std::iter::once(count.to_string()).chain(cells));
    }
    table.note(
        "So many client filters, of up to 24 prefix lengths, and as many patterns of requests, as values of at most 200 \
         rules each (a listener has at most 65,535 rules). No frame comes twice.",
    );
    let strange: usize = costs.iter().map(|costs| costs.strange).sum();
    if strange > 0 {
        table.note(format!("{strange} frames met another verdict than they should have"));
    }
    outcome.tables.push(table);
    let samples = |of: Cost| plan.counts.iter().map(move |&count| ((count as f64).log10(), with(count, of)));
    outcome.plots.push(Plot {
        name: "rules".to_owned(),
        title: "What a frame costs the program at the interface".to_owned(),
        x: "filters, and patterns, power of ten".to_owned(),
        y: "ns".to_owned(),
        series: kinds.map(|(_, title, of)| Series::of(title, samples(of))).into(),
        logarithmic: false,
    });
    for (name, most) in [("100k", (100_000, 2.0)), ("1m", (1_000_000, 3.0))] {
        let (count, most) = most;
        let of_kinds = kinds.map(|(_, _, of)| median(&ratios(&with(count, of), &with(1, of))));
        // The worst of the three; one that could not be measured is the worst.
        let worst = of_kinds.into_iter().fold(0.0, |worst: f64, ratio| if ratio <= worst { worst } else { ratio });
        let figure = outcome.figures.must(format!("rules_{name}_vs_1"), worst, Bound::AtMost(most));
        let load = format!("{count} client filters and {count} request patterns: values of 200 rules each");
        figure.of("run time of the program a frame, of with one filter and one pattern; the worst kind", "ratio", load);
        for ((kind, title, _), ratio) in kinds.into_iter().zip(of_kinds) {
            let load = format!("{count} client filters and {count} request patterns; {title}");
            let metric = "run time of the program a frame, of with one filter and one pattern; less is better";
            outcome.figures.add(format!("{kind}_{name}_vs_1"), ratio).of(metric, "ratio", load);
        }
    }
    for (kind, title, of) in kinds {
        let load = format!("one client filter and one request pattern; {title}");
        let metric = "run time of the program at the interface a frame; less is better";
        outcome.figures.add(format!("{kind}_ns"), median(&with(1, of))).of(metric, "ns", load);
    }
}
