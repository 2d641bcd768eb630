// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `top` without a terminal: a table for each interval, all lines unfolded.

use std::num::NonZeroU32;

use super::column::Column;
use super::rows::{Row, View, rows};
use crate::charged;
use crate::cli::Top;
use crate::failure::Result;
use crate::interval::{Interval, Intervals};
use crate::look::{Seen, Source};
use crate::output::{Output, printable};
use crate::queued;
use crate::tree;

pub fn run(args: &Top, source: &mut dyn Source, output: &mut Output) -> Result<()> {
    let mut before = source.see()?;
    let mut intervals = Intervals::default();
    intervals.until(&before.snapshot);
    for round in 1_u32.. {
        source.wait(args.interval);
        let now = source.see()?;
        let interval = intervals.until(&now.snapshot);
        if round > 1 {
            output.line("")?;
        }
        output.text(page(&before, &now, &interval))?;
        output.flush()?;
        before = now;
        if Some(round) == args.count.map(NonZeroU32::get) {
            break;
        }
    }
    Ok(())
}

fn page(before: &Seen, now: &Seen, interval: &Interval) -> String {
    let queued = queued::between(Some(&before.queues), &now.queues);
    let columns = Column::shown(!now.queues.is_empty());
    let every = now.snapshot.containers.iter().map(|view| ((view.id, view.generation), false)).collect();
    let view = View { folds: every, ..View::default() };
    let rows = rows(&now.snapshot, interval, &queued, &view);
    let name = |row: &Row| printable(&tree::indented(&row.name, row.depth));
    let widest = rows.iter().map(|row| name(row).chars().count()).max().unwrap_or(0).max(Column::Container.width());
    let line = |name: &str, cell: &dyn Fn(Column) -> String| {
        let mut line = format!("{name:<widest$}");
        for column in &columns[1..] {
            line.push_str(&format!("  {:>width$}", cell(*column), width = column.width()));
        }
        line + "\n"
    };
    let mut page = line(Column::Container.title(), &|column| column.title().to_owned());
    for row in &rows {
        page.push_str(&line(&name(row), &|column| column.cell(row)));
    }
    if let Some(note) = charged::note(&now.snapshot, Some(&before.snapshot)) {
        page.push_str(&format!("{note}\n"));
    }
    page
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tui::rows::sample;

    fn page_of(before: impl Into<Seen>, after: impl Into<Seen>) -> String {
        let (before, after) = (before.into(), after.into());
        page(&before, &after, &Interval::between(Some(&before.snapshot), &after.snapshot))
    }

    #[test]
    fn every_container_has_a_line() {
        let (after, _) = sample::second();
        let page = page_of(sample::moment([100, 100, 100, 0, 0]), after);
        assert_eq!(
            page,
            "\
CONTAINER  SHARE   CPU%  USER%   SYS%  RECV%  PKTS IN/s  PKTS OUT/s  SYN/s  DROPPED/s  THREADS
shop           -   65.0   60.0    5.0      0      1.23K           0     40        7.0        3
  browse       -   40.0   40.0      0      0      1.23K           0     40        7.0        1
  gold         -   20.0   15.0    5.0      0          0           0      0          0        2
backup         -      0      0      0      0          0           0      0          0        0
system         -    5.0      0    5.0      0          0           0      0          0        0
idle           -   30.0      -      -      0          0           0      0          0        0
"
        );
    }

    #[test]
    fn where_no_cpu_time_is_charged_the_last_line_says_so() {
        let (mut after, _) = sample::second();
        after.charged = false;
        let page = page_of(sample::moment([100, 100, 100, 0, 0]), after);
        assert!(page.lines().last().is_some_and(|line| line.starts_with("no CPU time is charged: ")), "{page}");
    }

    #[test]
    fn where_a_listener_has_a_queue_the_lines_tell_who_waits() {
        let before = Seen { snapshot: sample::moment([100, 100, 100, 0, 0]), queues: sample::queues(0) };
        let after = Seen { snapshot: sample::second().0, queues: sample::queues(4) };
        let page = page_of(before, after);
        let threads = page.find("THREADS").expect("the last column of all") + "THREADS".len();
        let behind = |at: usize| page.lines().nth(at).and_then(|line| line.get(threads..)).expect("a line");
        assert_eq!(behind(0), "  WAITING  IN SERVICE  PLACES  WAIT P50  WAIT P99  FULL/s  LATE/s", "{page}");
        assert_eq!(behind(3), "        1           1      ~2   8.19 us   8.19 us     3.0       0", "{page}");
        assert_eq!(behind(4), "        -           -       -         -         -       -       -", "{page}");
    }
}
