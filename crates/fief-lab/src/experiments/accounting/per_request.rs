// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What a container for each request costs a server.

use super::Plan;
use super::stage::Stage;
use super::worker::{Answer, Order};
use crate::error::{Error, Result};
use crate::experiments::Outcome;
use crate::figures::Bound;
use crate::progress::Progress;
use crate::sample::{Comparison, Sample, load, warn};
use crate::statistics::median;
use crate::table::{Table, number};
use fief_testkit::{Family, Topology};

const PORT: u16 = 8088;
const PATHS: [&str; 2] = ["/plain", "/container"];

pub fn steps(plan: &Plan) -> usize {
    plan.pairs
}

pub fn run(plan: &Plan, stage: &mut Stage, progress: &mut Progress, outcome: &mut Outcome) -> Result<()> {
    stage.topology.set_receive(true, true)?;
    let address = Topology::server_address(Family::V4, PORT);
    let Answer::Serving { process } = stage.ask(&Order::Serve { address, cpu: Topology::server_cpu() })? else {
        return Err(Error::failed("the worker does not serve"));
    };
    let mut samples: [Vec<Sample>; 2] = Default::default();
    for pair in 0..plan.pairs {
        progress.step("a container per request")?;
        for turn in 0..2 {
            // Who comes first changes, so that a drift of the machine falls on both.
            let place = (pair + turn) % 2;
            let sample = Sample::take(&stage.topology, &[process], &load(plan.load_seconds, PORT, PATHS[place]))?;
            outcome.measurements.push(sample.to_json("container_per_request", PATHS[place], pair));
            samples[place].push(sample);
        }
    }
    let comparison = Comparison::of(&samples[1], &samples[0]);
    let middle = |place: usize, of: fn(&Sample) -> f64| median(&samples[place].iter().map(of).collect::<Vec<_>>());
    let rates = [0, 1].map(|place| middle(place, |one| one.per_second));
    let cpu_rates = [0, 1].map(|place| middle(place, |one| one.per_cpu_second));
    let [by_second, by_cpu_second] = comparison.cells();
    let mut table = Table::new(
        "A container for each request: requests a second, and a second of the CPU the server got; ratios with quartiles",
        &["by", "without", "with", "ratio", "ns more"],
    );
    for (name, [without, with], ratio) in [("wall clock", rates, by_second), ("CPU", cpu_rates, by_cpu_second)] {
        let more = number(1e9 / with - 1e9 / without);
        table.row([name.to_owned(), number(without), number(with), ratio, more]);
    }
    comparison.note(&mut table);
    table.note(format!(
        "{} pairs; a server of one thread that computes 0.05 ms for a request and sends 1 kB, a connection per request; \
         with: a new container (renew), enter, leave for each. Fief is in force on both sides.",
        plan.pairs
    ));
    warn(samples.iter().flatten(), &mut table);
    outcome.tables.push(table);
    let metric = format!(
        "{}, of a server that makes a container for each request, of the same server without",
        comparison.metric()
    );
    let load = "closed-loop clients, a connection for each request, 0.05 ms of computing";
    outcome.figures.must("container_per_request", comparison.figure(), Bound::AtLeast(0.95)).of(metric, "ratio", load);
    Ok(())
}
