// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What a container for each request costs a server.

use super::Plan;
use super::stage::Stage;
use super::throughput::{Sample, load};
use super::worker::Order;
use crate::error::Result;
use crate::experiments::Outcome;
use crate::figures::Bound;
use crate::progress::Progress;
use crate::statistics::{Spread, median, ratios};
use crate::table::{Table, number};
use fief_testkit::{Family, Topology};
use serde_json::json;

const PORT: u16 = 8088;
const PATHS: [&str; 2] = ["/plain", "/container"];

pub fn steps(plan: &Plan) -> usize {
    plan.pairs
}

pub fn run(plan: &Plan, stage: &mut Stage, progress: &mut Progress, outcome: &mut Outcome) -> Result<()> {
    stage.topology.set_receive(true, true)?;
    let address = Topology::server_address(Family::V4, PORT);
    stage.ask(&Order::Serve { address, cpu: Topology::server_cpu() })?;
    let mut samples: [Vec<Sample>; 2] = Default::default();
    for pair in 0..plan.pairs {
        progress.step("a container per request")?;
        for turn in 0..2 {
            // Who comes first changes, so that a drift of the machine falls on both.
            let place = (pair + turn) % 2;
            let sample = Sample::take(&stage.topology, &load(plan, PORT, PATHS[place]))?;
            outcome.measurements.push(json!({
                "experiment": "container_per_request", "path": PATHS[place], "pair": pair,
                "requests_per_second": sample.per_second, "server_bound": sample.is_server_bound,
            }));
            samples[place].push(sample);
        }
    }
    let per_second = |place: usize| samples[place].iter().map(|one| one.per_second).collect::<Vec<_>>();
    let ratio = Spread::of(&ratios(&per_second(1), &per_second(0)));
    let mut table = Table::new(
        "A container for each request: requests a second",
        &["without", "with", "ratio", "quartiles", "us a request more"],
    );
    let (without, with) = (median(&per_second(0)), median(&per_second(1)));
    table.row([
        number(without),
        number(with),
        number(ratio.median),
        format!("{:.4} - {:.4}", ratio.low, ratio.high),
        number(1e6 / with - 1e6 / without),
    ]);
    table.note(format!(
        "{} pairs; a server of one thread that computes 50 us for a request and sends 1 kB, a connection per request; \
         with: create, enter, leave, close for each. Fief is in force on both sides.",
        plan.pairs
    ));
    Sample::warn(samples.iter().flatten(), &mut table);
    outcome.tables.push(table);
    outcome.figures.must("container_per_request", ratio.median, Bound::AtLeast(0.95));
    Ok(())
}
