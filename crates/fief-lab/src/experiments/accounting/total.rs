// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Whether all containers together are the machine: against CPUs times wall clock, and against the kernel's accounts.
//!
//! The kernel's own: idle time per CPU in /proc/stat (exact where the tick stops on idle CPUs, in units of 10 ms), and
//! `cpuacct.usage_percpu` where version 1 of cgroups is mounted (run time of all threads in ns, without steal; with the
//! softirqs on top of them, without those on an idle CPU).

use super::Plan;
use super::misattribution::{WORK, open};
use super::packets::{From, Sender};
use super::stage::Stage;
use crate::command::{Used, usage};
use crate::error::{Context, Error, Result};
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

/// Which CPUs have work. Fief keeps one account for all CPUs, so errors of two could cancel; each is loaded alone too.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Loaded {
    Server,
    Other,
    Both,
}

impl Loaded {
    const ALL: [Loaded; 3] = [Loaded::Server, Loaded::Other, Loaded::Both];

    fn title(self) -> &'static str {
        match self {
            Loaded::Server => "the server's CPU",
            Loaded::Other => "the other CPU",
            Loaded::Both => "both CPUs",
        }
    }

    fn cpus(self) -> Vec<usize> {
        match self {
            Loaded::Server => vec![Topology::server_cpu()],
            Loaded::Other => vec![Topology::load_cpu()],
            Loaded::Both => vec![Topology::server_cpu(), Topology::load_cpu()],
        }
    }
}

pub const STEPS: usize = Loaded::ALL.len();
/// A busy machine has no idle time to wait for.
const LONGEST_UNIT: Duration = Duration::from_millis(200);
/// Packets a second for the worker, where both CPUs are loaded.
const RATE: f64 = 20_000.0;

/// While the worker is managed.
pub fn run(plan: &Plan, stage: &mut Stage, progress: &mut Progress, outcome: &mut Outcome) -> Result<()> {
    let mut table = Table::new(
        "The whole machine, as parts of CPUs x wall clock",
        &["loaded", "account", "containers", "kernel", "error"],
    );
    let mut worst: f64 = 0.0;
    stage.topology.set_receive(true, true)?;
    let mut sender = open(stage, false, WORK)?;
    for loaded in Loaded::ALL {
        progress.step(&format!("all containers against the kernel's accounts, {} loaded", loaded.title()))?;
        let (before, after) = measure(plan, loaded, &mut sender)?;
        for Compared { name, ours, theirs, counts } in accounts(&before, &after, loaded) {
            let error = (ours - theirs).abs();
            let cells = [format!("{ours:.5}"), format!("{theirs:.5}"), number(error)];
            table.row([loaded.title().to_owned(), name.to_owned()].into_iter().chain(cells));
            outcome.measurements.push(json!({
                "experiment": "total_error", "loaded": loaded.title(), "account": name, "containers": ours, "kernel": theirs,
            }));
            worst = if counts { worst.max(error) } else { worst };
        }
    }
    table.note(
        "Threads compute half of the time in stints of 0.1 to 12 ms; with both CPUs also 20,000 packets a second. The figure is \
         the worst of all but two: steal, which /proc/stat has in units of 10 ms and counts a tick late, and idle under packets, \
         since /proc/stat leaves out the way into idle and out of it, and cpuacct does too. cpuacct leaves out interrupts of an \
         idle CPU.",
    );
    outcome.tables.push(table);
    let metric =
        "the sum of all containers, against the kernel's accounts of its CPUs; the worst account of the worst load";
    outcome.figures.must("total_error", worst, Bound::AtMost(0.001)).of(
        metric,
        "CPUs x wall clock",
        "each CPU half busy alone, and both with 20,000 packets a second to a managed server",
    );
    Ok(())
}

fn measure(plan: &Plan, loaded: Loaded, sender: &mut Sender) -> Result<(Account, Account)> {
    let begin = Instant::now();
    let ended = AtomicBool::new(false);
    std::thread::scope(|scope| {
        // Half of each CPU busy, in stints of every length.
        for cpu in loaded.cpus() {
            let ended = &ended;
            scope.spawn(move || half_busy(cpu, ended));
        }
        let packets = (loaded == Loaded::Both).then(|| {
            // beyond both looks
            let seconds = plan.total_seconds + 0.5;
            scope.spawn(move || sender.stream(From::Beside, &[0, 1], RATE, seconds))
        });
        let measured = (|| {
            let before = Account::take(begin)?;
            std::thread::sleep(Duration::from_secs_f64(plan.total_seconds));
            Ok::<_, crate::error::Error>((before, Account::take(begin)?))
        })();
        ended.store(true, Ordering::Relaxed);
        packets
            .map_or(Ok(()), |packets| packets.join().unwrap_or_else(|_| Err(Error::failed("the sender panicked"))))?;
        measured
    })
}

/// One account by both; parts of CPUs x wall clock.
struct Compared {
    name: &'static str,
    ours: f64,
    theirs: f64,
    counts: bool,
}

/// /proc/stat leaves out the way into idle and out of it, 1 to 2 us a wake-up, which its cpuacct gives to nobody either; Fief
/// counts it as idle. So idle counts where wake-ups are few, and is shown where packets wake the CPU ten thousand times a second.
fn accounts(before: &Account, after: &Account, loaded: Loaded) -> Vec<Compared> {
    let cpus = fief_testkit::cpus().len().max(1) as f64;
    let fief = |of: fn(&Account) -> f64| (of(after) - of(before)) / (cpus * (after.fief_at - before.fief_at));
    let kernel = |of: fn(&Account) -> f64| (of(after) - of(before)) / (cpus * (after.kernel_at - before.kernel_at));
    let compared = |name, ours, theirs, counts| Compared { name, ours, theirs, counts };
    let mut all = vec![
        compared("all, wall clock", fief(|one| one.fief_all), 1.0, true),
        compared("idle, /proc/stat", fief(|one| one.fief_idle), kernel(|one| one.kernel_idle), loaded != Loaded::Both),
        compared("steal, /proc/stat", fief(|one| one.fief_steal), kernel(|one| one.kernel_steal), false),
    ];
    if before.kernel_run.and(after.kernel_run).is_some() {
        let busy = fief(|one| one.fief_all - one.fief_idle - one.fief_steal);
        all.push(compared("busy, cpuacct", busy, kernel(|one| one.kernel_run.unwrap_or(f64::NAN)), true));
    }
    all
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
        let stat = at_a_change()?;
        let kernel_run = cpuacct()
            .and_then(|file| std::fs::read_to_string(file).ok())
            .map(|text| text.split_whitespace().filter_map(|word| word.parse::<f64>().ok()).sum());
        let kernel_at = begin.elapsed().as_nanos() as f64;
        let (kernel_idle, kernel_steal) = idle_and_steal(&stat);
        let used = usage()?;
        let time = |one: &Used| (one.thread_ns + one.receive_ns) as f64;
        let of = |name: &str| used.iter().filter(|one| one.container == name).map(time).sum::<f64>();
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

/// /proc/stat at the moment at which its idle time grows by a unit of 10 ms, so that the unit does not matter.
fn at_a_change() -> Result<String> {
    let read = || std::fs::read_to_string("/proc/stat").context("read /proc/stat");
    let (first, begin) = (read()?, Instant::now());
    loop {
        let now = read()?;
        if idle_and_steal(&now).0 != idle_and_steal(&first).0 || begin.elapsed() > LONGEST_UNIT {
            return Ok(now);
        }
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
