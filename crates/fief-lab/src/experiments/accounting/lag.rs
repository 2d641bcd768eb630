// SPDX-License-Identifier: Apache-2.0 OR MIT
//! How far a reader's view of a running thread lies behind, or ahead of, what the thread knows of itself.
//!
//! A lone hog can run for seconds without a context switch; a reader that saw only what was charged at the last one
//! would be seconds late.

use super::Plan;
use super::stage::Stage;
use super::worker::{Answer, Order};
use crate::error::{Error, Result};
use crate::experiments::Outcome;
use crate::figures::Bound;
use crate::progress::Progress;
use crate::table::{Table, number};
use fief_testkit::Topology;
use serde_json::json;

pub fn run(plan: &Plan, stage: &mut Stage, progress: &mut Progress, outcome: &mut Outcome) -> Result<()> {
    progress.step("a reader beside a hog")?;
    let order = Order::Lag { seconds: plan.lag_seconds, cpu: Topology::server_cpu(), reader_cpu: Topology::load_cpu() };
    let Answer::Lagged(lagged) = stage.ask(&order)? else {
        return Err(Error::failed("the worker did not say what its reader saw"));
    };
    let ms = |ns: u64| ns as f64 / 1e6;
    let mut table = Table::new("A reader beside a hog: largest difference, ms", &["of", "reads", "behind", "ahead"]);
    let row =
        |of: &str, behind, ahead| [of.to_owned(), lagged.reads.to_string(), number(ms(behind)), number(ms(ahead))];
    table.row(row("10 ms", lagged.behind_ns, lagged.ahead_ns));
    table.row(row("all that it ran", lagged.behind_in_all_ns, lagged.ahead_in_all_ns));
    table.note(format!(
        "In {} episodes of 0.2 s, by what both grew within 10 ms, and by all since the hog began (less what they differ by once \
         all is charged: softirqs on top of the hog are in its clock alone). Left out: {} times 10 ms in or before which the \
         hypervisor took the hog's CPU, which a reader learns when the CPU does.",
        lagged.episodes, lagged.stolen
    ));
    outcome.tables.push(table);
    outcome.measurements.push(json!({
        "experiment": "reader_lag_ms", "reads": lagged.reads,
        "behind_ms": ms(lagged.behind_ns), "ahead_ms": ms(lagged.ahead_ns),
        "behind_in_all_ms": ms(lagged.behind_in_all_ns), "ahead_in_all_ms": ms(lagged.ahead_in_all_ns),
        "stolen_windows": lagged.stolen,
    }));
    let all = [lagged.behind_ns, lagged.ahead_ns, lagged.behind_in_all_ns, lagged.ahead_in_all_ns];
    let most = ms(all.into_iter().max().unwrap_or_default());
    let metric =
        "how far a reading lies behind or ahead of a thread that runs without a break, within 10 ms and in all";
    outcome.figures.must("reader_lag_ms", most, Bound::AtMost(1.0)).of(
        metric,
        "ms",
        "one busy thread, a reader on another CPU",
    );
    Ok(())
}
