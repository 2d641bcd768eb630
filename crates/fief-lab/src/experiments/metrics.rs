// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What the agent costs: a scrape of very many containers, and a record of many, some of which are active in every second. And how long
//! a server waits until it is started under Fief.
//!
//! Tenants are a process under `fief run` that makes a container for each. Beside it run `fief agent`, scraped as Prometheus would,
//! and `fief record`; what they use is the scheduler's own figure.

mod journal;
mod started;
mod tenants;

use crate::command::{self, DOWN, PolicyFile, fief};
use crate::cpu_time::cpu_seconds;
use crate::effort::is_least;
use crate::error::{Context, Error, Result};
use crate::experiments::Outcome;
use crate::figures::{Bound, Figures};
use crate::plot::Plot;
use crate::progress::Progress;
use crate::statistics::{median, quantile};
use crate::table::Table;
use crate::wanted::Wanted;
use fief_testkit::{NetNs, Process, run as call};
use jiff::{SignedDuration, Timestamp};
use journal::Journal;
use serde_json::{Value, json};
use started::Started;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{ChildStdin, Stdio};
use std::time::{Duration, Instant};

pub use tenants::main as tenants_main;

const ABOUT: &str = "What an operator pays for metrics and for a record: one scrape of all series of 10,000 containers each 15 \
seconds, with events written to a journal, and a record of 1,000 containers each second, 100 of them active.";

const POLICY: &str = "version = 1\n\n[container.lab]\n";
const SCRAPED: usize = 10_000;
const RECORDED: usize = 1_000;
const ACTIVE: usize = 100;
/// As Prometheus does, and as seldom.
const EVERY: Duration = Duration::from_secs(15);
/// A record writes a whole reading as often (docs/metrics.md); a day has as many.
const WHOLE_A_DAY: f64 = 144.0;
const DAY: f64 = 86_400.0;

struct Plan {
    containers: usize,
    scrapes: usize,
    every: Duration,
    /// Of the record.
    seconds: u64,
    looks: u64,
    /// Of servers.
    starts: usize,
}

pub fn run(quick: bool) -> Result<Outcome> {
    command::can_run()?;
    let plan = match quick {
        _ if is_least() => {
            Plan { containers: 200, scrapes: 2, every: Duration::from_millis(300), seconds: 3, looks: 2, starts: 1 }
        }
        true => Plan { containers: SCRAPED, scrapes: 4, every: EVERY, seconds: 120, looks: 10, starts: 5 },
        false => Plan { containers: SCRAPED, scrapes: 20, every: EVERY, seconds: 3_600, looks: 50, starts: 20 },
    };
    let mut progress = Progress::new("metrics", 2 * plan.scrapes + 4 + plan.starts);
    let namespace = NetNs::new("metrics")?;
    let policy = PolicyFile::new(POLICY)?;
    let started = started::measure(plan.starts, &namespace, &mut progress)?;
    let scraped = scrape(&plan, &namespace, &policy, &mut progress)?;
    let is_wanted = Wanted::from_env().any(&["record"]);
    let recorded = is_wanted.then(|| record(&plan, &namespace, &policy, &mut progress)).transpose()?;
    Ok(outcome(&plan, &started, &scraped, recorded.as_ref()))
}

/// Keeps Fief in force, and ends with its input.
struct Tenants {
    process: Process,
    _input: Option<ChildStdin>,
}

impl Tenants {
    fn start(containers: usize, active: usize, namespace: &NetNs, policy: &PolicyFile) -> Result<Self> {
        let words = ["lab-tenants".to_owned(), containers.to_string(), active.to_string()];
        let mut command = policy.run(namespace, command::own()?, words.map(Into::into).into())?;
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut process = Process::start(command)?;
        let input = process.child().stdin.take();
        let mut said = BufReader::new(process.child().stdout.take().expect("it was piped"));
        first_line(&mut said)?;
        Ok(Self { process, _input: input })
    }

    fn end(self) -> Result<()> {
        drop(self._input);
        self.process.finish(DOWN).map(drop).map_err(Error::from)
    }
}

fn first_line(said: &mut impl BufRead) -> Result<String> {
    let mut line = String::new();
    said.read_line(&mut line).context("hear a process that was started")?;
    match line.is_empty() {
        true => Err(Error::failed("a process that was started ended at once; its own words are above")),
        false => Ok(line.trim_end().to_owned()),
    }
}

#[derive(Debug, Default)]
struct Scraped {
    ms: Vec<f64>,
    /// Of one CPU, from scrape to scrape.
    cpu_percent: Vec<f64>,
    /// The same of all the time: looks for events may be further apart than scrapes, and a median of rounds would have none of them.
    whole_cpu_percent: f64,
    rss_mib: f64,
    series: usize,
    bytes: usize,
}

fn scrape(plan: &Plan, namespace: &NetNs, policy: &PolicyFile, progress: &mut Progress) -> Result<Scraped> {
    progress.step("containers are made")?;
    let tenants = Tenants::start(plan.containers, ACTIVE, namespace, policy)?;
    let journal = Journal::new()?;
    let mut agent = fief()?;
    // all of them, the worst that can be asked for
    agent.args(["agent", "--journal", "--applications", "--series", &(2 * plan.containers).to_string()]);
    let mut agent = journal.of(&agent);
    agent.stdin(Stdio::null()).stdout(Stdio::piped());
    let mut agent = Process::start(agent)?;
    let mut said = BufReader::new(agent.child().stdout.take().expect("it was piped"));
    let line = first_line(&mut said)?;
    let socket = line.rsplit(" at ").next().unwrap_or_default().to_owned();
    let mut scraped = Scraped::default();
    // the first ones pay for what stays
    get(Path::new(&socket))?;
    journal.wait(DOWN)?;
    let mut before = cpu_seconds(&[agent.pid()]);
    let mut since = Instant::now();
    let (first, begin) = (before, since);
    for round in 0..plan.scrapes {
        progress.step(&format!("scrape {}", round + 1))?;
        std::thread::sleep(plan.every.saturating_sub(since.elapsed()));
        let begun = Instant::now();
        let text = get(Path::new(&socket))?;
        scraped.ms.push(begun.elapsed().as_secs_f64() * 1e3);
        // it is charged at its switch away, which comes with the end of the answer
        std::thread::sleep(Duration::from_millis(100));
        let now = cpu_seconds(&[agent.pid()]);
        scraped.cpu_percent.push(100.0 * (now - before) / since.elapsed().as_secs_f64());
        (before, since) = (now, begun);
        scraped.bytes = text.len();
        scraped.series = text.lines().filter(|line| !line.starts_with('#')).count();
        progress.step("waits for the next")?;
    }
    scraped.whole_cpu_percent = 100.0 * (before - first) / begin.elapsed().as_secs_f64();
    scraped.rss_mib = most_memory_mib(agent.pid())?;
    agent.stop(DOWN);
    tenants.end()?;
    Ok(scraped)
}

fn get(socket: &Path) -> Result<String> {
    let fail = "scrape the agent";
    let mut stream = UnixStream::connect(socket).context(fail)?;
    stream.write_all(b"GET /metrics HTTP/1.0\r\nAccept: application/openmetrics-text\r\n\r\n").context(fail)?;
    let mut text = String::new();
    stream.read_to_string(&mut text).context(fail)?;
    match text.ends_with("# EOF\n") {
        true => Ok(text),
        false => Err(Error::failed(format!("{fail}: the answer has no end"))),
    }
}

/// The most that it ever had.
fn most_memory_mib(pid: u32) -> Result<f64> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).context("look at the agent's memory")?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap_or_default();
    let kib = line.split_whitespace().next().and_then(|word| word.parse::<f64>().ok());
    Ok(kib.unwrap_or(f64::NAN) / 1024.0)
}

#[derive(Debug)]
struct Recorded {
    whole_bytes: f64,
    change_bytes: f64,
    replay_ms: Vec<f64>,
}

impl Recorded {
    fn mib_per_day(&self) -> f64 {
        (self.whole_bytes * WHOLE_A_DAY + self.change_bytes * (DAY - WHOLE_A_DAY)) / f64::from(1 << 20)
    }
}

/// One line of `fief replay --json`.
#[derive(Debug, serde::Deserialize)]
struct Day {
    bytes: u64,
    readings: u64,
    from: Option<Timestamp>,
}

fn record(plan: &Plan, namespace: &NetNs, policy: &PolicyFile, progress: &mut Progress) -> Result<Recorded> {
    progress.step("other containers are made")?;
    let tenants = Tenants::start(plan.containers.min(RECORDED), ACTIVE, namespace, policy)?;
    let folder = tempfile::tempdir().context("make a folder for a record")?;
    let record = |count: u64| -> Result<Vec<Day>> {
        call(fief()?.arg("record").arg(folder.path()).args(["--count", &count.to_string()])).map_err(Error::from)?;
        let text = call(fief()?.args(["replay", "--json"]).arg(folder.path())).map_err(Error::from)?;
        text.lines().map(|line| serde_json::from_str(line).context("read what a record holds")).collect()
    };
    let total = |days: &[Day]| days.iter().map(|day| day.bytes).sum::<u64>() as f64;
    let whole_bytes = total(&record(1)?);
    progress.step(&format!("a record of {} s", plan.seconds))?;
    let days = record(plan.seconds)?;
    let readings: u64 = days.iter().map(|day| day.readings).sum();
    // each ten minutes, and each time it begins, a whole one
    let wholes = 2 + (plan.seconds - 1) / 600;
    let change_bytes = (total(&days) - whole_bytes * wholes as f64) / readings.saturating_sub(wholes).max(1) as f64;
    progress.step("any second of it is replayed")?;
    let begin = days.iter().find_map(|day| day.from).ok_or_else(|| Error::failed("the record is empty"))?;
    let replay_ms = (0..plan.looks).map(|look| {
        let after = 1 + look * plan.seconds / plan.looks.max(1);
        let at = begin + SignedDuration::from_secs(after as i64);
        let mut usage = fief()?;
        usage.args(["usage", "--json", "--at", &at.to_string(), "--replay"]).arg(folder.path());
        let begun = Instant::now();
        call(&mut usage).map_err(Error::from)?;
        Ok(begun.elapsed().as_secs_f64() * 1e3)
    });
    let replay_ms = replay_ms.collect::<Result<Vec<f64>>>()?;
    tenants.end()?;
    Ok(Recorded { whole_bytes, change_bytes, replay_ms })
}

fn outcome(plan: &Plan, started: &Started, scraped: &Scraped, recorded: Option<&Recorded>) -> Outcome {
    let mut figures = figures(plan, scraped, recorded);
    started.add_figures(&mut figures);
    let mut table = Table::of_figures("The agent and the record", &figures);
    table.note(format!("{} series, {} bytes a scrape", scraped.series, scraped.bytes));
    Outcome {
        name: "metrics",
        about: ABOUT.to_owned(),
        tables: vec![table],
        plots: plots(scraped, recorded).into_iter().chain([started.plot()]).collect(),
        measurements: measurements(scraped, recorded).into_iter().chain(started.measurements()).collect(),
        figures,
    }
}

fn plots(scraped: &Scraped, recorded: Option<&Recorded>) -> Vec<Plot> {
    let of = |name: &str, title: &str, series: &str, ms: &[f64]| {
        Plot::of_rounds(name, title, "ms", [(series.to_owned(), ms.to_vec())])
    };
    let replay = "usage --replay";
    let scrapes = of("scrapes", "A scrape of all containers", "from connect to the end of the answer", &scraped.ms);
    let replays = recorded.map(|recorded| of("replays", "Any second of a record is read", replay, &recorded.replay_ms));
    [scrapes].into_iter().chain(replays).collect()
}

fn measurements(scraped: &Scraped, recorded: Option<&Recorded>) -> Vec<Value> {
    let rounds = scraped.ms.iter().zip(&scraped.cpu_percent).enumerate();
    let scrapes = rounds.map(|(round, (ms, percent))| {
        json!({ "experiment": "metrics", "scrape": round, "scrape_ms": ms, "cpu_percent": percent })
    });
    let page = json!({ "experiment": "metrics", "series": scraped.series, "scrape_bytes": scraped.bytes });
    let record = recorded.map(|recorded| {
        json!({
            "experiment": "metrics", "whole_bytes": recorded.whole_bytes, "change_bytes": recorded.change_bytes,
            "replay_ms": recorded.replay_ms,
        })
    });
    scrapes.chain([page]).chain(record).collect()
}

fn figures(plan: &Plan, scraped: &Scraped, recorded: Option<&Recorded>) -> Figures {
    let scrapes = format!(
        "{} containers, all with series of their own, a scrape each 15 s, events written to a journal",
        plan.containers
    );
    let record = format!("{} containers, {ACTIVE} of them active in every second", plan.containers.min(RECORDED));
    let mut figures = Figures::default();
    let mut most = |name: &str, value: f64, bound: f64, metric: &str, unit, load: &str| {
        figures.must(name, value, Bound::AtMost(bound)).of(metric, unit, load);
    };
    most("scrape_ms", median(&scraped.ms), 100.0, "a scrape, from connect to the end of the answer", "ms", &scrapes);
    most("cpu_percent", scraped.whole_cpu_percent, 0.5, "CPU time of the agent, of one CPU", "percent", &scrapes);
    most("rss_mib", scraped.rss_mib, 32.0, "the most memory that the agent ever had", "MiB", &scrapes);
    if let Some(recorded) = recorded {
        let size = "size of a record of a day, a reading each second";
        most("mib_per_day", recorded.mib_per_day(), 250.0, size, "MiB", &record);
        let slowest = quantile(&recorded.replay_ms, 1.0);
        let replay = "reading any second of the record, the slowest; with the start of the command";
        most("replay_ms", slowest, 100.0, replay, "ms", &record);
    }
    let worst = quantile(&scraped.ms, 1.0);
    figures.add("scrape_worst_ms", worst).of("the slowest of the scrapes", "ms", &scrapes);
    figures
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_day_has_as_many_whole_readings_as_ten_minutes() {
        let recorded = Recorded { whole_bytes: 1024.0 * 1024.0, change_bytes: 0.0, replay_ms: vec![1.0] };
        assert_eq!(recorded.mib_per_day(), 144.0);
        let recorded = Recorded { whole_bytes: 0.0, change_bytes: 1024.0, replay_ms: vec![1.0] };
        assert!((recorded.mib_per_day() - 84.2).abs() < 0.1);
    }
}
