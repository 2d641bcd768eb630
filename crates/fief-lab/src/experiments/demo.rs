// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `queue` for a newcomer: two unmodified servers without and with Fief, watched while it happens.
//!
//! It shows three things in this order: how long the paying client waits, who used the CPU meanwhile, and where to read
//! on. The whole comparison, with its rivals, is `queue`.

mod cpu;
mod picture;

use crate::command;
use crate::effort::is_least;
use crate::error::Result;
use crate::experiments::Outcome;
use crate::experiments::queue::{Case, Connections, Kind, Plan, Sample, Stand, Way, outcome_of, work};
use crate::plot::{Plot, Series};
use crate::progress;
use crate::statistics::ms;
use crate::table::Table;
use crate::wanted::usable;
use fief_testkit::Topology;
use picture::{Picture, Row};

const ABOUT: &str = "One paying client asks an unmodified server for a page every 2 ms. Beside it 0 to 200 others ask as \
fast as they are answered. How long does the paying one wait, without Fief and with it?";
/// Of a request.
const COST_US: u64 = 300;
const WAYS: [Way; 2] = [Way::Plain, Way::Queue];

fn plan(quick: bool) -> Plan {
    Plan {
        kinds: vec![Kind::Nginx, Kind::Go],
        ways: WAYS.to_vec(),
        loads: match (is_least(), quick) {
            (true, _) => vec![0, 200],
            (_, true) => vec![0, 5, 50, 200],
            _ => vec![0, 5, 20, 50, 100, 200],
        },
        costs_us: vec![COST_US],
        rounds: if quick || is_least() { 1 } else { 2 },
        seconds: if is_least() { 0.2 } else { 1.5 },
        warm_up: 0.25,
        retries: 0,
    }
}

pub fn run(quick: bool) -> Result<Outcome> {
    let mut plan = plan(quick);
    WAYS.iter().try_for_each(|way| way.check())?;
    Kind::Nginx.check()?;
    let (kinds, notes) = usable(plan.kinds, |kind| kind.check(), |kind| kind.title().to_owned());
    plan.kinds = kinds;
    let topology = Topology::new()?;
    let mut demo = Demo { picture: Picture::new(ABOUT, rows(&plan)), sample: Sample::default(), used: None };
    for (number, &kind) in plan.kinds.iter().enumerate() {
        let work = work(&topology, (kind, Connections::Each), COST_US, 0.3)?;
        for round in 0..plan.rounds {
            for (column, way) in WAYS.into_iter().enumerate() {
                let at = (number * plan.loads.len(), column);
                demo.ladder(&plan, &topology, (kind, way, work), round, at)?;
            }
        }
    }
    let Demo { picture, sample, used } = demo;
    drop(picture);
    let mut outcome = outcome_of(&plan, &sample, notes);
    outcome.name = "demo";
    outcome.about = ABOUT.to_owned();
    outcome.tables.extend(used);
    outcome.plots = vec![plot(&plan, &sample)];
    outcome.figures.bound_only();
    Ok(outcome)
}

fn rows(plan: &Plan) -> Vec<Row> {
    let of = |kind: &Kind| {
        let server = kind.title();
        plan.loads.iter().map(move |&others| Row { server, others })
    };
    plan.kinds.iter().flat_map(of).collect()
}

struct Demo {
    picture: Picture,
    sample: Sample,
    /// Who used the CPU at the last step with Fief.
    used: Option<Table>,
}

impl Demo {
    /// One server under more and more clients.
    fn ladder(
        &mut self,
        plan: &Plan,
        topology: &Topology,
        (kind, way, work): (Kind, Way, usize),
        round: usize,
        (first, column): (usize, usize),
    ) -> Result<()> {
        let stand = Stand::start(topology, kind, way, work)?;
        for (row, &low) in plan.loads.iter().enumerate() {
            progress::check()?;
            let is_last = row + 1 == plan.loads.len();
            let before = if way == Way::Queue && is_last { command::usage()? } else { Vec::new() };
            self.picture.begin(first + row, column);
            let case = Case { kind, way, connections: Connections::Each, low, cost_us: COST_US };
            let picture = &mut self.picture;
            let live = |seen: &_| picture.live(crate::load::Seen::mean_us(seen));
            let measured = case.measure(topology, round, (plan.seconds, plan.warm_up), live)?;
            self.picture.end(measured.high.mean_us());
            if !before.is_empty() {
                self.used = Some(cpu::table(kind.title(), low, &before, &command::usage()?));
            }
            self.sample.push(measured);
        }
        stand.stop()
    }
}

/// All servers, without Fief and with it.
fn plot(plan: &Plan, sample: &Sample) -> Plot {
    let series = |kind: Kind, way: Way| {
        let case = |low: usize| Case { kind, way, connections: Connections::Each, low, cost_us: COST_US };
        let samples = plan.loads.iter().map(|&low| (low as f64, ms(&sample.means(case(low)))));
        let with = if way == Way::Queue { "with" } else { "without" };
        Series::of(format!("{}, {with} Fief", kind.title()), samples)
    };
    Plot {
        name: "effect".to_owned(),
        title: "Mean response time of the paying client, medians of the rounds".to_owned(),
        x: "others".to_owned(),
        y: "ms".to_owned(),
        series: plan.kinds.iter().flat_map(|&kind| WAYS.map(|way| series(kind, way))).collect(),
        logarithmic: true,
    }
}
