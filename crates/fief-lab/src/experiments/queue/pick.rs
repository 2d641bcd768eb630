// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What finding the next class takes, of one lookup in a hash table, by the kernel's clock around many runs of each.

use super::Plan;
use crate::error::{Context, Result};
use crate::experiments::Outcome;
use crate::figures::Bound;
use crate::progress::Progress;
use crate::statistics::{median, ratios};
use crate::table::{Table, number};
use fief_testkit::Topology;
use serde_json::json;

const ROUNDS: usize = 21;
const RUNS: u32 = 100_000;

/// Adds what came out to the outcome.
pub fn run(plan: &Plan, outcome: &mut Outcome) -> Result<()> {
    // a lookup is short of the clock's own step where few are made
    let rounds = if plan.is_tried() { 5 } else { ROUNDS };
    let mut progress = Progress::new("queue, pick", rounds);
    let (mut picks, mut lookups) = (Vec::new(), Vec::new());
    for round in 0..rounds {
        progress.step(&format!("round {}", round + 1))?;
        // on the thread's own core from the begin to the end
        let picked = std::thread::scope(|scope| {
            let measured = scope.spawn(|| {
                let pinned = fief_testkit::pin(0, Topology::server_cpu()).context("stay on a core");
                pinned.and_then(|()| fief_bpf::pick::measure(RUNS).context("measure how a class is found"))
            });
            measured.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        })?;
        let [pick, lookup] = [picked.pick, picked.look_up].map(|took| took.as_nanos() as f64);
        outcome.measurements.push(json!({
            "experiment": "queue", "part": "pick", "round": round, "pick_ns": pick, "lookup_ns": lookup,
        }));
        picks.push(pick);
        lookups.push(lookup);
    }
    let mut table = Table::new("which of 32 classes is next".to_owned(), &["what", "ns"]);
    table.row(["finding the class".to_owned(), number(median(&picks))]);
    table.row(["one lookup of a flow among 10,000".to_owned(), number(median(&lookups))]);
    outcome.tables.push(table);
    let load = "32 classes in which somebody waits; everything in the cache";
    let figure = outcome.figures.must("pick_vs_hash_lookup", median(&ratios(&picks, &lookups)), Bound::AtMost(2.0));
    figure.of("time to find the class that is next, of a lookup in a hash table", "ratio", load);
    let figure = outcome.figures.add("pick_ns", median(&picks));
    figure.of("time to find the class that is next", "ns", load);
    Ok(())
}
