// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `cpu-limits`: a limited container with 1 to 5 processes, alone on the machine and beside others that want all of it.

use std::time::Duration;

use serde_json::json;

use super::load::{Load, Stand, means};
use crate::effort::is_least;
use crate::error::Result;
use crate::experiments::Outcome;
use crate::figures::Bound;
use crate::plot::{Plot, Series};
use crate::progress::Progress;
use crate::table::Table;

const ABOUT: &str = "A container that is limited to a part of the machine, with processes that only compute: it gets its limit, \
whether the CPUs have nothing else to do or two more processes want all of them.";

const LIMITS: [(&str, f64); 2] = [("cpu.limit = \"10%\"", 10.0), ("cpu.limit = \"30%\"", 30.0)];

pub fn run(quick: bool) -> Result<Outcome> {
    let counts: &[usize] = match (is_least(), quick) {
        (true, _) => &[1],
        (_, true) => &[1, 5],
        _ => &[1, 2, 3, 4, 5],
    };
    let length = if is_least() { Duration::from_millis(100) } else { Duration::from_secs(10) };
    let mut progress = Progress::new("cpu-limits", LIMITS.len() * counts.len() * 2);
    let mut outcome = Outcome { name: "cpu-limits", about: ABOUT.to_owned(), ..Outcome::default() };
    let mut table = Table::new(
        "CPU time of a limited container in percent of the machine",
        &["limit", "processes", "alone", "beside others"],
    );
    let mut stand = Stand::default();
    let mut worst = 0f64;
    let mut series = Vec::new();
    for (given, limit) in LIMITS {
        let mut got = [Vec::new(), Vec::new()];
        for &count in counts {
            let mut cells = vec![format!("{limit:.0}"), count.to_string()];
            for (others, got) in [0, 2].into_iter().zip(&mut got) {
                progress.step(&format!("{limit:.0} %, {count} processes beside {others}"))?;
                let loads = [
                    Load { container: "limited", given, processes: count, expected: limit },
                    Load { container: "free", given: "", processes: others, expected: 100.0 - limit },
                ];
                let found = means(&stand.windows(&loads, 1, length)?);
                worst = worst.max((found[0] - limit).abs());
                cells.push(format!("{:.2}", found[0]));
                got.push((count as f64, found[0]));
                outcome.measurements.push(json!({
                    "limit_percent": limit, "processes": count, "others": others, "percent": found[0],
                    "others_percent": found[1],
                }));
            }
            table.row(cells);
        }
        for (beside, got) in ["alone", "beside others"].into_iter().zip(got) {
            series.push(Series::of_single(format!("limit {limit:.0} %, {beside}"), got));
        }
    }
    stand.end()?;
    outcome.figures.must("worst_error_points", worst, Bound::AtMost(0.3)).of(
        "largest distance of the limited container from its limit",
        "percent of the machine",
        "1 to 5 computing processes in it, alone and beside two more",
    );
    outcome.plots.push(Plot {
        name: "limits".to_owned(),
        title: "CPU time of a limited container".to_owned(),
        x: "processes in it".to_owned(),
        y: "percent of the machine".to_owned(),
        series,
        logarithmic: false,
    });
    outcome.tables.push(table);
    Ok(outcome)
}
