// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What finding the next class takes, of one lookup in a hash table, and what a request takes of its queue beside another CPU, by the
//! kernel's clock around many runs of each.

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
    contended(rounds, outcome)?;
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

/// Each queue has a lock of its own. All of them share the links of what waits, under a lock, and the count of news: what a request takes of
/// these stands beside.
fn contended(rounds: usize, outcome: &mut Outcome) -> Result<()> {
    let mut progress = Progress::new("queue, contended", rounds);
    let (mut alone, mut beside, mut at_one) = (Vec::new(), Vec::new(), Vec::new());
    let (mut sharing_alone, mut sharing_beside) = (Vec::new(), Vec::new());
    for round in 0..rounds {
        progress.step(&format!("round {}", round + 1))?;
        let pin = |other: bool| {
            let cpu = if other { Topology::load_cpu() } else { Topology::server_cpu() };
            // where it may not, the figure says so by its spread
            let _ = fief_testkit::pin(0, cpu);
        };
        let took = fief_bpf::pick::measure_contended(RUNS, pin).context("measure two CPUs at queues")?;
        let [own, other, one] = [took.alone, took.beside, took.at_one].map(|took| took.as_nanos() as f64);
        let sharing = [took.sharing_alone, took.sharing_beside].map(|took| took.as_nanos() as f64);
        outcome.measurements.push(json!({
            "experiment": "queue", "part": "contended", "round": round, "alone_ns": own, "beside_ns": other, "at_one_ns": one,
            "sharing_alone_ns": sharing[0], "sharing_beside_ns": sharing[1],
        }));
        sharing_alone.push(sharing[0]);
        sharing_beside.push(sharing[1]);
        alone.push(own);
        beside.push(other);
        at_one.push(one);
    }
    let mut table = Table::new("what a request that waited takes of its queue".to_owned(), &["on one CPU", "ns"]);
    table.row(["alone".to_owned(), number(median(&alone))]);
    table.row(["another CPU has a queue of its own".to_owned(), number(median(&beside))]);
    table.row(["another CPU has the same queue".to_owned(), number(median(&at_one))]);
    table.row(["alone, with what all queues share".to_owned(), number(median(&sharing_alone))]);
    table.row(["another CPU has a queue of its own, with that".to_owned(), number(median(&sharing_beside))]);
    outcome.tables.push(table);
    let load = "32 classes in which somebody waits; both CPUs without a pause, a queue each";
    let figure = outcome.figures.must("contended", median(&ratios(&beside, &alone)), Bound::AtMost(1.1));
    figure.of("time that a request takes of its queue beside another CPU that does the same, of alone", "ratio", load);
    let load = "the same at one queue, which no request asks for without a pause";
    let figure = outcome.figures.add("contended_at_one", median(&ratios(&at_one, &alone)));
    figure.of("the same at one queue", "ratio", load);
    let load = "both CPUs without a pause, a queue each, a link and the count of news of all";
    let ratio = median(&ratios(&sharing_beside, &sharing_alone));
    let metric = "time that a request takes of its queue and of what all queues share beside another CPU that does the same, of alone";
    outcome.figures.add("contended_sharing", ratio).of(metric, "ratio", load);
    let added: Vec<f64> = sharing_beside.iter().zip(&sharing_alone).map(|(beside, alone)| beside - alone).collect();
    let metric = "what another CPU adds to that time";
    outcome.figures.add("contended_sharing_ns", median(&added)).of(metric, "ns", load);
    Ok(())
}
