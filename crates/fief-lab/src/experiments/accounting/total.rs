// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Whether all containers together are the machine: against CPUs times wall clock, and against the kernel's accounts.
//!
//! The kernel's own: idle time per CPU in /proc/stat (exact where the tick stops on idle CPUs, in units of 10 ms), and
//! `cpuacct.usage_percpu` where version 1 of cgroups is mounted (run time of all threads in ns, without steal; with the
//! softirqs on top of them, without those on an idle CPU).

use super::Plan;
use crate::command::{Used, usage};
use crate::error::{Context, Result};
use crate::experiments::Outcome;
use crate::figures::Bound;
use crate::progress::Progress;
use crate::table::{Table, number};
use fief_testkit::Topology;
use serde_json::json;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// One look at the machine; nanoseconds.
#[derive(Clone, Copy, Debug)]
struct Account {
    fief_at: f64,
    fief_all: f64,
    fief_idle: f64,
    fief_steal: f64,
    kernel_at: f64,
    kernel_idle: f64,
    kernel_steal: f64,
    /// None: no version 1 of cgroups.
    kernel_run: Option<f64>,
}

/// While something is in force.
pub fn run(plan: &Plan, progress: &mut Progress, outcome: &mut Outcome) -> Result<()> {
    progress.step("all containers against the kernel's accounts")?;
    let begin = Instant::now();
    let ended = AtomicBool::new(false);
    let (before, after) = std::thread::scope(|scope| {
        // Half of each CPU busy, in stints of every length.
        for cpu in [Topology::server_cpu(), Topology::load_cpu()] {
            let ended = &ended;
            scope.spawn(move || half_busy(cpu, ended));
        }
        let measured = (|| {
            let before = Account::take(begin)?;
            std::thread::sleep(Duration::from_secs_f64(plan.total_seconds));
            Ok::<_, crate::Error>((before, Account::take(begin)?))
        })();
        ended.store(true, Ordering::Relaxed);
        measured
    })?;
    let cpus = fief_testkit::cpus().len().max(1) as f64;
    let fief = |of: fn(&Account) -> f64| (of(&after) - of(&before)) / (cpus * (after.fief_at - before.fief_at));
    let kernel = |of: fn(&Account) -> f64| (of(&after) - of(&before)) / (cpus * (after.kernel_at - before.kernel_at));
    let all = fief(|one| one.fief_all);
    let idle = (fief(|one| one.fief_idle), kernel(|one| one.kernel_idle));
    let steal = (fief(|one| one.fief_steal), kernel(|one| one.kernel_steal));
    let busy = fief(|one| one.fief_all - one.fief_idle - one.fief_steal);
    let run = before.kernel_run.and(after.kernel_run).map(|_| kernel(|one| one.kernel_run.unwrap_or(f64::NAN)));
    let mut table =
        Table::new("The whole machine, as parts of CPUs x wall clock", &["account", "containers", "kernel", "error"]);
    let mut row = |name: &str, ours: f64, theirs: f64| {
        table.row([name.to_owned(), format!("{ours:.5}"), format!("{theirs:.5}"), number((ours - theirs).abs())]);
        outcome.measurements.push(json!({
            "experiment": "total_error", "account": name, "containers": ours, "kernel": theirs,
        }));
        (ours - theirs).abs()
    };
    let mut worst = row("all, wall clock", all, 1.0);
    worst = worst.max(row("idle, /proc/stat", idle.0, idle.1));
    row("steal, /proc/stat", steal.0, steal.1);
    if let Some(run) = run {
        worst = worst.max(row("busy, cpuacct", busy, run));
    }
    table.note(
        "The figure is the worst of all but steal, which /proc/stat has in units of 10 ms and counts a tick late. \
         cpuacct leaves out interrupts of an idle CPU.",
    );
    outcome.tables.push(table);
    let metric = "the sum of all containers, against the kernel's accounts of its CPUs; the worst account";
    outcome.figures.must("total_error", worst, Bound::AtMost(0.001)).of(
        metric,
        "CPUs x wall clock",
        "the machine as it is",
    );
    Ok(())
}

/// Computes for 0.1 to 12 ms, sleeps as long, and so on.
fn half_busy(cpu: usize, ended: &AtomicBool) {
    if fief_testkit::pin(0, cpu).is_err() {
        return;
    }
    let mut stint = Duration::from_micros(100);
    while !ended.load(Ordering::Relaxed) {
        let until = Instant::now() + stint;
        while Instant::now() < until {
            std::hint::spin_loop();
        }
        std::thread::sleep(stint);
        stint = if stint > Duration::from_millis(10) { Duration::from_micros(100) } else { stint * 5 / 4 };
    }
}

impl Account {
    fn take(begin: Instant) -> Result<Account> {
        let used = usage()?;
        let time = |one: &Used| (one.thread_ns + one.receive_ns) as f64;
        let of = |name: &str| used.iter().filter(|one| one.container == name).map(time).sum::<f64>();
        let stat = std::fs::read_to_string("/proc/stat").context("read /proc/stat")?;
        let kernel_run = cpuacct()
            .and_then(|file| std::fs::read_to_string(file).ok())
            .map(|text| text.split_whitespace().filter_map(|word| word.parse::<f64>().ok()).sum());
        let kernel_at = begin.elapsed().as_nanos() as f64;
        let (kernel_idle, kernel_steal) = idle_and_steal(&stat);
        Ok(Account {
            fief_at: used.first().map_or(0.0, |one| one.taken_ns as f64),
            fief_all: used.iter().map(time).sum(),
            fief_idle: of("idle"),
            fief_steal: of("steal"),
            kernel_at,
            kernel_idle,
            kernel_steal,
            kernel_run,
        })
    }
}

/// Of the line of all CPUs: name user nice system idle iowait irq softirq steal, in 10 ms.
fn idle_and_steal(stat: &str) -> (f64, f64) {
    let fields: Vec<f64> = stat
        .lines()
        .next()
        .unwrap_or_default()
        .split_whitespace()
        .skip(1)
        .filter_map(|word| word.parse().ok())
        .collect();
    let field = |place: usize| fields.get(place).copied().unwrap_or(f64::NAN) * 1e7;
    (field(3) + field(4), field(7))
}

fn cpuacct() -> Option<PathBuf> {
    let mounts = std::fs::read_to_string("/proc/self/mountinfo").ok()?;
    let line = mounts.lines().find(|line| {
        line.split_once(" - cgroup ").is_some_and(|(_, rest)| {
            rest.split_whitespace().last().is_some_and(|options| options.split(',').any(|word| word == "cpuacct"))
        })
    })?;
    Some(PathBuf::from(line.split(' ').nth(4)?).join("cpuacct.usage_percpu"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waiting_for_a_disk_is_idle() {
        assert_eq!(idle_and_steal("cpu  1 2 3 100 5 6 7 8 0 0\ncpu0 1\n"), (105e7, 8e7));
    }
}
