// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `fief bill`: what each container used in each interval of a record. All lines together are what was used from the begin to the
//! end: what a container leaves when it ends is not counted twice, and what an installation used is not lost when the next begins.

use std::collections::BTreeMap;
use std::io;

use fief_agent::record::{Folder, Player};
use serde::Serialize;

use crate::cli::{self, BillFormat};
use crate::failure::{Failure, Result};
use crate::history::time;
use crate::interval::Interval;
use crate::output::{Output, printable};
use crate::record::{USAGE_NAMES, Usage};
use fief_control::{SchedulerView, Snapshot};

pub fn run(args: &cli::Bill, output: &mut Output) -> Result<()> {
    let folder = Folder::of(&args.folder);
    let Some((first, last)) = folder.span_ms()? else {
        return Err(Failure::new(format!("{} has no record", args.folder.display())));
    };
    let (from_ms, to_ms) = (args.from.unwrap_or(first), args.to.unwrap_or(last));
    if to_ms < from_ms {
        return Err(Failure::usage("the end is before the begin"));
    }
    if args.format == BillFormat::Csv {
        row(output, ["from", "to", "container"].into_iter().chain(USAGE_NAMES).map(str::to_owned))?;
    }
    // all of it, also where a clock that was set back has the first time twice
    let mut bill = Bill::begin(folder.play(args.from.unwrap_or(0))?, from_ms)?;
    let interval_ms = (args.interval.as_millis() as u64).max(1);
    let mut begin = from_ms;
    while begin < to_ms {
        let end = begin.saturating_add(interval_ms).min(to_ms);
        let [from, to] = [begin, end].map(time);
        for (container, usage) in bill.until(end)? {
            let line = Line { from: &from, to: &to, container: &container, usage };
            match args.format {
                BillFormat::Json => output.json(&line)?,
                BillFormat::Csv => row(output, line.cells())?,
            }
        }
        begin = end;
    }
    Ok(())
}

/// The names are a promise to programs; `docs/cli.md` lists them.
#[derive(Serialize)]
struct Line<'a> {
    from: &'a str,
    to: &'a str,
    container: &'a str,
    #[serde(flatten)]
    usage: Usage,
}

impl Line<'_> {
    fn cells(&self) -> impl Iterator<Item = String> {
        let texts = [self.from, self.to, self.container].map(str::to_owned);
        texts.into_iter().chain(self.usage.counters().map(|counter| counter.to_string()))
    }
}

/// Quoted where a name needs it.
fn row(output: &mut Output, cells: impl Iterator<Item = String>) -> Result<()> {
    let mut line = Vec::new();
    cells_into(&mut line, cells).map_err(|error| Failure::write(&error))?;
    output.text(String::from_utf8_lossy(&line))
}

fn cells_into(line: &mut Vec<u8>, cells: impl Iterator<Item = String>) -> io::Result<()> {
    let mut writer = csv::Writer::from_writer(line);
    writer.write_record(cells.map(|cell| printable(&cell).into_bytes()))?;
    writer.flush()
}

/// What is added up, from one place of a record to the next.
struct Bill {
    player: Player,
    /// Where the interval began, and no counter less than it was told before; `None`: nothing is known yet.
    start: Option<Snapshot>,
}

impl Bill {
    fn begin(mut player: Player, from_ms: u64) -> Result<Self> {
        while player.step(from_ms)? {}
        player.take_ended();
        let start = player.known().cloned();
        Ok(Self { player, start })
    }

    /// By path.
    fn until(&mut self, end_ms: u64) -> Result<BTreeMap<String, Usage>> {
        let mut used = BTreeMap::new();
        while self.player.step(end_ms)? {
            if let Some(ended) = self.player.take_ended() {
                add(&mut used, self.start.as_ref(), &ended);
                self.start = Some(nothing(&ended));
            }
            if self.start.is_none() {
                self.start = self.player.known().cloned();
            }
        }
        if let Some(now) = self.player.known() {
            let interval = add(&mut used, self.start.as_ref(), now);
            self.start = Some(interval.start_of_next(now));
        }
        used.retain(|_, usage| *usage != Usage::default());
        Ok(used)
    }
}

fn add(used: &mut BTreeMap<String, Usage>, before: Option<&Snapshot>, now: &Snapshot) -> Interval {
    let interval = Interval::between(before, now);
    for (at, view) in now.containers.iter().enumerate() {
        let sum = used.entry(view.path.clone()).or_default();
        *sum = sum.plus(interval.used(at));
    }
    interval
}

/// Before anything was used.
fn nothing(like: &Snapshot) -> Snapshot {
    Snapshot {
        taken_ns: 0,
        cpus: like.cpus,
        containers: Vec::new(),
        system_kinds: Vec::new(),
        failures: Vec::new(),
        units: Vec::new(),
        class_listeners: Vec::new(),
        scheduler: SchedulerView::Off,
        charged: like.charged,
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::{Duration, SystemTime};

    use fief_agent::record::{Recorder, RecorderOptions};
    use fief_control::ContainerView;

    use super::*;
    use crate::record::sample;

    const SECOND: Duration = Duration::from_secs(1);

    fn used(path: &str, id: u32, parent: Option<u32>, thread_ns: u64) -> ContainerView {
        let mut view = sample::container(path, id, parent);
        view.usage.thread_ns = thread_ns;
        view
    }

    /// A second between two; `None`: nothing was in force.
    fn record(folder: &std::path::Path, readings: Vec<Option<Vec<ContainerView>>>) -> u64 {
        let options = RecorderOptions { interval: SECOND, most_bytes: 1 << 30 };
        let mut recorder = Recorder::open(Folder::of(folder), options).expect("a folder");
        let begin = SystemTime::UNIX_EPOCH + SECOND * 1_795_629_600;
        for (number, containers) in (0..).zip(readings) {
            let snapshot = containers.map(|containers| {
                let mut snapshot = sample::snapshot(containers);
                snapshot.taken_ns = 1_000_000_000 * (u64::from(number) + 1);
                Arc::new(snapshot)
            });
            recorder.add(begin + SECOND * number, snapshot).expect("room");
        }
        1_795_629_600_000
    }

    fn bill(folder: &std::path::Path, from_ms: u64, ends: &[u64]) -> Vec<Vec<(String, u64)>> {
        let mut bill = Bill::begin(Folder::of(folder).play(from_ms).expect("a record"), from_ms).expect("a record");
        let interval = |end: &u64| {
            let used = bill.until(from_ms + end * 1000).expect("a record");
            used.into_iter().map(|(path, usage)| (path, usage.thread_ns)).collect()
        };
        ends.iter().map(interval).collect()
    }

    #[test]
    fn intervals_add_up_to_what_was_used() {
        let folder = tempfile::tempdir().expect("a folder");
        let passing = |ns| {
            let mut view = used("a/#9", 9, Some(8), ns);
            view.attributes.pass_up = true;
            view
        };
        let from = record(
            folder.path(),
            vec![
                Some(vec![used("a", 8, None, 100)]),
                Some(vec![used("a", 8, None, 110), passing(5)]),
                Some(vec![used("a", 8, None, 110), passing(50)]),
                Some(vec![used("a", 8, None, 170)]), // it ended, and left 10 more than was seen
                Some(vec![used("a", 8, None, 171)]),
            ],
        );
        let lines = bill(folder.path(), from, &[2, 4]);
        assert_eq!(lines, [vec![("a".into(), 10), ("a/#9".into(), 50)], vec![("a".into(), 11)]]);
        assert_eq!(bill(folder.path(), from, &[4]), [vec![("a".into(), 71)]], "all that was used in between");
    }

    /// A reading has the time of a CPU that the hypervisor has taken, and the next one has less (bpf/core/usage.bpf.h).
    #[test]
    fn intervals_add_up_where_a_reading_had_too_much() {
        let folder = tempfile::tempdir().expect("a folder");
        let a = |ns| Some(vec![used("a", 8, None, ns)]);
        let from = record(folder.path(), vec![a(100), a(150), a(130), a(160)]);
        let lines = bill(folder.path(), from, &[1, 2, 3]);
        assert_eq!(lines, [vec![("a".into(), 50)], vec![], vec![("a".into(), 10)]]);
        assert_eq!(bill(folder.path(), from, &[3]), [vec![("a".into(), 60)]]);
    }

    #[test]
    fn what_a_reading_had_too_much_of_root_does_not_bring_all_of_it_again() {
        const MS: u64 = 1_000_000;
        let folder = tempfile::tempdir().expect("a folder");
        let root = |ms| Some(vec![used("root", fief::abi::FIEF_ROOT, None, ms * MS)]);
        let from = record(folder.path(), vec![root(100_000), root(101_000), root(100_950), root(102_000)]);
        assert_eq!(bill(folder.path(), from, &[9]), [vec![("root".into(), 2_000 * MS)]]);
    }

    #[test]
    fn what_was_used_before_the_record_is_nobodys() {
        let folder = tempfile::tempdir().expect("a folder");
        let from =
            record(folder.path(), vec![Some(vec![used("a", 8, None, 100)]), Some(vec![used("a", 8, None, 103)])]);
        assert_eq!(bill(folder.path(), from - 5_000, &[10]), [vec![("a".into(), 3)]]);
    }

    #[test]
    fn nothing_is_lost_when_all_is_taken_down_and_put_in_force_again() {
        let folder = tempfile::tempdir().expect("a folder");
        let with_idle = |generation, idle, ns| {
            let a = fief_control::ContainerView { generation, ..used("a", 8, None, ns) };
            Some(vec![used("idle", fief::abi::FIEF_IDLE, None, idle), a])
        };
        for gap in [false, true] {
            let folder = folder.path().join(gap.to_string());
            let mut readings = vec![with_idle(1, 1000, 100), with_idle(1, 1010, 130)];
            if gap {
                readings.push(None);
            }
            readings.extend([with_idle(9, 7, 50), with_idle(9, 8, 51)]);
            let from = record(&folder, readings);
            assert_eq!(bill(&folder, from, &[9]), [vec![("a".into(), 81), ("idle".into(), 18)]], "{gap}");
        }
    }

    #[test]
    fn nothing_is_lost_where_the_next_installation_has_charged_more_than_the_one_before() {
        let folder = tempfile::tempdir().expect("a folder");
        let reading = |generation, idle, syns_seen| {
            let mut a = used("a", 8, None, 0);
            (a.generation, a.usage.syns_seen) = (generation, syns_seen);
            Some(vec![used("idle", fief::abi::FIEF_IDLE, None, idle), a])
        };
        let from = record(folder.path(), vec![reading(1000, 3, 5), reading(1000, 3, 9), reading(900, 7, 20)]);
        let mut bill = Bill::begin(Folder::of(folder.path()).play(from).expect("a record"), from).expect("a record");
        let used = bill.until(from + 9_000).expect("a record");
        assert_eq!((used["a"].syns_seen, used["idle"].thread_ns), (24, 7));
    }

    #[test]
    fn a_name_cannot_write_cells_of_its_own_nor_to_the_terminal() {
        let line = Line { from: "x", to: "y", container: "a,\"b\n\u{1b}[8m\u{202e}c", usage: Usage::default() };
        let mut bytes = Vec::new();
        cells_into(&mut bytes, line.cells()).expect("memory");
        let text = String::from_utf8(bytes).expect("text");
        assert!(text.starts_with("x,y,\"a,\"\"b\\n\\u{1b}[8m\\u{202e}c\",0,"), "{text}");
    }

    #[test]
    fn every_name_of_the_object_is_in_the_documentation() {
        let page = include_str!("../../../../docs/cli.md");
        let line = Line { from: "x", to: "y", container: "z", usage: Usage::default() };
        for name in serde_json::to_value(line).expect("texts and numbers").as_object().expect("an object").keys() {
            assert!(page.contains(&format!("`{name}`")), "{name} is missing");
        }
    }
}
