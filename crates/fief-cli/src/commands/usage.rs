// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `fief usage`: what containers have used, once or again and again.

use std::num::NonZeroU32;
use std::time::{Duration, Instant};

use serde::Serialize;

use crate::charged;
use crate::cli;
use crate::failure::Result;
use crate::history::{self, Pace};
use crate::interval::{Interval, Intervals};
use crate::look;
use crate::output::{Align, Output, Table};
use crate::quantity::{bytes, count, duration};
use crate::record::Usage;
use crate::tree::{self, Tree};
use fief_control::Snapshot;

pub fn run(args: &cli::Usage, output: &mut Output) -> Result<()> {
    let mut source = history::source(&args.history, Pace::Leaps)?;
    let Some(interval) = args.interval else {
        return print(&source.look()?, None, args, output);
    };
    // A table of an interval needs a reading before; the first line of JSON does not.
    let mut before = if args.json { None } else { Some(source.look()?) };
    let mut intervals = Intervals::default();
    if let Some(before) = &before {
        intervals.until(before);
    }
    let mut clock = Clock::new(source.now(), interval, before.is_some());
    for round in 1_u32.. {
        let wait = clock.wait(source.now());
        source.wait(wait);
        let now = source.look()?;
        if round > 1 && !args.json {
            output.line("")?;
        }
        let interval = before.as_ref().map(|before| (before, intervals.until(&now)));
        print(&now, interval, args, output)?;
        output.flush()?;
        before = before.map(|_| now);
        if Some(round) == args.count.map(NonZeroU32::get) {
            break;
        }
    }
    Ok(())
}

/// Readings at whole intervals after the first one: what a reading costs does not add up.
struct Clock {
    next: Instant,
    interval: Duration,
}

impl Clock {
    fn new(now: Instant, interval: Duration, waits_first: bool) -> Self {
        Self { next: if waits_first { now + interval } else { now }, interval }
    }

    /// How long to wait before the next reading. What is late is read at once, and not made up for.
    fn wait(&mut self, now: Instant) -> Duration {
        let wait = self.next.saturating_duration_since(now);
        self.next = self.next.max(now) + self.interval;
        wait
    }
}

/// What was used in an interval, which has the reading before beside it, or else in all.
fn print(
    now: &Snapshot,
    interval: Option<(&Snapshot, Interval)>,
    args: &cli::Usage,
    output: &mut Output,
) -> Result<()> {
    let chosen = chosen(now, &args.containers)?;
    let tree = Tree::of(now);
    let summed = |at: usize, usage_of: &dyn Fn(usize) -> Usage| match args.recursive {
        true => tree.below(at).into_iter().map(usage_of).fold(Usage::default(), Usage::plus),
        false => usage_of(at),
    };
    let total = |at: usize| Usage::from(&now.containers[at].usage);
    if args.json {
        return chosen.iter().try_for_each(|&(at, _)| {
            let recursive = args.recursive;
            output.json(&Record::of(now, at, recursive, summed(at, &total)))
        });
    }
    match &interval {
        None => output.text(table(now, &chosen, |at| summed(at, &total))),
        Some((_, interval)) => {
            let within = |at: usize| interval.used(at);
            output.text(table(now, &chosen, |at| summed(at, &within)))
        }
    }?;
    charged::note(now, interval.map(|(before, _)| before)).map_or(Ok(()), |note| output.line(note))
}

/// Positions with their level: those that were named, or the whole tree.
fn chosen(snapshot: &Snapshot, paths: &[String]) -> Result<Vec<(usize, usize)>> {
    match paths {
        [] => Ok(Tree::of(snapshot).walk()),
        paths => paths.iter().map(|path| Ok((look::find(snapshot, path)?, 0))).collect(),
    }
}

#[derive(Serialize)]
struct Record<'a> {
    /// CLOCK_MONOTONIC of the reading.
    taken_ns: u64,
    container: &'a str,
    id: u32,
    generation: u32,
    recursive: bool,
    #[serde(flatten)]
    usage: Usage,
}

impl<'a> Record<'a> {
    fn of(snapshot: &'a Snapshot, at: usize, recursive: bool, usage: Usage) -> Self {
        let view = &snapshot.containers[at];
        Self {
            taken_ns: snapshot.taken_ns,
            container: &view.path,
            id: view.id,
            generation: view.generation,
            recursive,
            usage,
        }
    }
}

fn table(snapshot: &Snapshot, chosen: &[(usize, usize)], usage_of: impl Fn(usize) -> Usage) -> Table {
    let mut table = Table::new(&[
        ("CONTAINER", Align::Left),
        ("CPU", Align::Right),
        ("USER", Align::Right),
        ("SYSTEM", Align::Right),
        ("RECEIVE", Align::Right),
        ("PKTS IN", Align::Right),
        ("IN", Align::Right),
        ("PKTS OUT", Align::Right),
        ("OUT", Align::Right),
        ("READ", Align::Right),
        ("WRITTEN", Align::Right),
        ("FAULTS", Align::Right),
        ("SYNS", Align::Right),
        ("DROPPED", Align::Right),
        ("ACCEPTS", Align::Right),
    ]);
    for &(at, depth) in chosen {
        let view = &snapshot.containers[at];
        let usage = usage_of(at);
        let split = usage.split(view.id);
        let mode = |ns| if split.undivided_ns > 0 { "-".to_owned() } else { duration(ns) };
        table.push([
            tree::indented(&view.path, depth),
            duration(usage.cpu_ns()),
            mode(split.user_ns),
            mode(split.system_ns),
            duration(usage.receive_ns),
            count(usage.packets_in),
            bytes(usage.bytes_in),
            count(usage.packets_out),
            bytes(usage.bytes_out),
            bytes(usage.disk_read_bytes),
            bytes(usage.disk_write_bytes),
            count(usage.minor_faults + usage.major_faults),
            count(usage.syns_seen),
            count(usage.syns_dropped),
            count(usage.accepts),
        ]);
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::sample;

    fn snapshot() -> Snapshot {
        let mut gold = sample::container("shop/gold", 9, Some(8));
        gold.usage.thread_ns = 3_000_000;
        gold.usage.user_ns = 1;
        gold.usage.system_ns = 2;
        sample::snapshot(vec![sample::container("shop", 8, Some(0)), gold])
    }

    #[test]
    fn json_has_raw_integers_with_their_unit_in_the_name() {
        let snapshot = snapshot();
        let record = Record::of(&snapshot, 1, false, Usage::from(&snapshot.containers[1].usage));
        let line = serde_json::to_string(&record).expect("texts and numbers");
        assert_eq!(
            line,
            r#"{"taken_ns":5000000000,"container":"shop/gold","id":9,"generation":1,"recursive":false,"thread_ns":3000000,"receive_ns":0,"user_ns":1,"system_ns":2,"packets_in":0,"bytes_in":0,"packets_out":0,"bytes_out":0,"disk_read_bytes":0,"disk_write_bytes":0,"minor_faults":0,"major_faults":0,"syns_seen":0,"syns_dropped":0,"accepts":0}"#
        );
    }

    #[test]
    fn the_time_of_threads_is_split_by_the_samples() {
        let snapshot = snapshot();
        let chosen = chosen(&snapshot, &[]).expect("the whole tree");
        let page = table(&snapshot, &chosen, |at| Usage::from(&snapshot.containers[at].usage)).to_string();
        let gold = page.lines().last().expect("a line for gold");
        assert_eq!(gold.split_whitespace().take(7).collect::<Vec<_>>(), ["gold", "3", "ms", "1", "ms", "2", "ms"]);
    }

    #[test]
    fn what_a_reading_costs_does_not_add_up() {
        let second = Duration::from_secs(1);
        let begin = Instant::now();
        let mut clock = Clock::new(begin, second, false);
        assert_eq!(clock.wait(begin), Duration::ZERO);
        assert_eq!(clock.wait(begin + second / 4), second * 3 / 4);
        assert_eq!(clock.wait(begin + second * 5 / 4), second * 3 / 4);
        assert_eq!(clock.wait(begin + second * 9), Duration::ZERO, "late");
        assert_eq!(clock.wait(begin + second * 9), second, "and not twice at once");
    }

    #[test]
    fn one_wrong_path_is_an_error() {
        assert!(chosen(&snapshot(), &["shop".into(), "shop/silver".into()]).is_err());
    }
}
