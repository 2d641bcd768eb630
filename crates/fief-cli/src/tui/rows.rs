// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The lines of `top`: each container together with all below it, so that a folded line hides nothing.

use std::collections::HashMap;

use super::column::Column;
use crate::interval::Interval;
use crate::queued::{ByContainer, Queued};
use crate::record::{Split, Usage};
use crate::tree::{self, Tree};
use fief_control::{ContainerView, Snapshot};

/// Containers with more children than this begin folded: a container per request can make very many.
const MOST_CHILDREN_SHOWN: usize = 50;

/// Names a container over its whole life.
pub type Key = (u32, u32);

#[derive(Clone, Debug, PartialEq)]
pub struct Row {
    pub key: Key,
    pub parent: Option<Key>,
    /// Last component of the path; the whole of it at the top.
    pub name: String,
    pub depth: usize,
    /// None: nothing below it.
    pub folded: Option<bool>,
    pub kind: RowKind,
    pub share_ppm: u32,
    /// Somebody enforces it.
    pub is_share_held: bool,
    pub threads: u32,
    /// Parts of the whole machine.
    pub user: f64,
    pub system: f64,
    /// Of threads, not known to be one or the other.
    pub undivided: f64,
    pub receive: f64,
    /// In a second.
    pub packets_in: f64,
    pub packets_out: f64,
    pub syns_seen: f64,
    pub syns_dropped: f64,
    /// None: no class of a queue.
    pub queued: Option<Queued>,
    pub refused_full: f64,
    pub refused_wait: f64,
}

/// What a line stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RowKind {
    /// Somebody's container.
    Container,
    /// A name for a part of the machine's time; after all others, however the lines are sorted.
    AlwaysThere,
    /// The same, where nothing ran for us: idle, steal.
    NotOurs,
}

impl Row {
    pub fn cpu(&self) -> f64 {
        self.user + self.system + self.undivided + self.receive
    }

    /// Nothing happened in it.
    pub fn is_quiet(&self) -> bool {
        let is_asked = |queued: &Queued| queued.waiting + queued.in_service > 0;
        let events = [self.packets_in, self.packets_out, self.syns_seen, self.syns_dropped];
        let refused = self.refused_full + self.refused_wait;
        self.cpu() + events.iter().sum::<f64>() + refused <= 0.0 && !self.queued.as_ref().is_some_and(is_asked)
    }
}

/// How the lines are chosen and ordered.
#[derive(Clone, Debug)]
pub struct View {
    pub sort: Column,
    pub reverse: bool,
    /// Against what would be folded by itself.
    pub folds: HashMap<Key, bool>,
    pub hide_quiet: bool,
}

impl Default for View {
    fn default() -> Self {
        Self { sort: Column::Cpu, reverse: false, folds: HashMap::new(), hide_quiet: false }
    }
}

/// All lines that are not below a folded one, parents before their children, siblings by the column of the view.
pub fn rows(snapshot: &Snapshot, interval: &Interval, queued: &ByContainer, view: &View) -> Vec<Row> {
    let tree = Tree::of(snapshot);
    let totals = totals(snapshot, interval, queued, &tree);
    let mut rows = Vec::new();
    Builder { snapshot, interval, view, tree: &tree, totals }.add(tree.roots(), 0, None, &mut rows);
    rows
}

struct Builder<'a> {
    snapshot: &'a Snapshot,
    interval: &'a Interval,
    view: &'a View,
    tree: &'a Tree,
    totals: Vec<Total>,
}

/// A container with all below it.
#[derive(Clone)]
struct Total {
    usage: Usage,
    /// The time of threads is split container by container: samples of one say nothing about another.
    split: Split,
    threads: u32,
    queued: Option<Queued>,
}

impl Total {
    fn add(&mut self, child: Total) {
        self.usage = self.usage.plus(child.usage);
        self.split = self.split.plus(child.split);
        self.threads = self.threads.saturating_add(child.threads);
        if let Some(queued) = child.queued {
            self.queued.get_or_insert_default().add(&queued);
        }
    }
}

fn totals(snapshot: &Snapshot, interval: &Interval, queued: &ByContainer, tree: &Tree) -> Vec<Total> {
    let own = |at: usize| {
        let (view, usage) = (&snapshot.containers[at], interval.used(at));
        let queued = queued.get(&view.path).cloned();
        Total { usage, split: usage.split(view.id), threads: view.threads, queued }
    };
    let mut totals: Vec<Total> = (0..snapshot.containers.len()).map(own).collect();
    // Children stand after their parents in the walk.
    for (at, _) in tree.walk().into_iter().rev() {
        for &child in tree.children(at) {
            let below = totals[child].clone();
            totals[at].add(below);
        }
    }
    totals
}

impl Builder<'_> {
    fn add(&self, siblings: &[usize], depth: usize, parent: Option<Key>, rows: &mut Vec<Row>) {
        let mut level: Vec<(usize, Row)> = siblings.iter().map(|&at| (at, self.row(at, depth, parent))).collect();
        level.retain(|(_, row)| !(self.view.hide_quiet && row.is_quiet()));
        // A stable sort: equal lines keep the order of the tree.
        level.sort_by(|(_, a), (_, b)| {
            let last = |row: &Row| row.kind != RowKind::Container;
            last(a).cmp(&last(b)).then_with(|| match (last(a), self.view.reverse) {
                (true, _) => std::cmp::Ordering::Equal,
                (false, false) => self.view.sort.compare(a, b),
                (false, true) => self.view.sort.compare(b, a),
            })
        });
        for (at, row) in level {
            let (key, is_open) = (row.key, row.folded == Some(false));
            rows.push(row);
            if is_open {
                self.add(self.tree.children(at), depth + 1, Some(key), rows);
            }
        }
    }

    fn row(&self, at: usize, depth: usize, parent: Option<Key>) -> Row {
        let view = &self.snapshot.containers[at];
        let Total { usage: used, split, threads, queued } = self.totals[at].clone();
        let refused = queued.as_ref().map_or((0, 0), |queued| (queued.refused_full, queued.refused_wait));
        let key = (view.id, view.generation);
        let children = self.tree.children(at).len();
        let folded = *self.view.folds.get(&key).unwrap_or(&(children > MOST_CHILDREN_SHOWN));
        Row {
            key,
            parent,
            name: tree::indented(&view.path, depth).trim_start().to_owned(),
            depth,
            folded: (children > 0).then_some(folded),
            kind: kind(view),
            share_ppm: view.attributes.share_ppm,
            is_share_held: self.snapshot.scheduler.word_for(&view.path).is_some(),
            threads,
            user: self.interval.part(split.user_ns),
            system: self.interval.part(split.system_ns),
            undivided: self.interval.part(split.undivided_ns),
            receive: self.interval.part(used.receive_ns),
            packets_in: self.interval.per_second(used.packets_in),
            packets_out: self.interval.per_second(used.packets_out),
            syns_seen: self.interval.per_second(used.syns_seen),
            syns_dropped: self.interval.per_second(used.syns_dropped),
            queued,
            refused_full: self.interval.per_second(refused.0),
            refused_wait: self.interval.per_second(refused.1),
        }
    }
}

fn kind(view: &ContainerView) -> RowKind {
    match view {
        view if tree::is_not_ours(view) => RowKind::NotOurs,
        view if tree::is_always_there(view) => RowKind::AlwaysThere,
        _ => RowKind::Container,
    }
}

/// A machine of two CPUs and one second, for the tests of all of `top`.
#[cfg(test)]
pub mod sample {
    use super::*;
    use crate::record::sample::{container, snapshot};

    /// Thread time in milliseconds of one second on two CPUs: 1 ms is 0.05 % of the machine.
    pub fn moment(times: [u64; 5]) -> Snapshot {
        let [shop, gold, browse, system, idle] = times.map(|ms| ms * 1_000_000);
        let mut containers = vec![
            container("shop", 8, Some(0)),
            container("shop/gold", 9, Some(8)),
            container("shop/browse", 10, Some(8)),
            container("backup", 11, Some(0)),
            container("system", fief::abi::FIEF_SYSTEM, None),
            container("idle", fief::abi::FIEF_IDLE, None),
        ];
        for (at, ns) in [(0, shop), (1, gold), (2, browse), (4, system), (5, idle)] {
            containers[at].usage.thread_ns = ns;
        }
        containers[1].threads = 2;
        containers[2].threads = 1;
        snapshot(containers)
    }

    /// One queue of both classes of the shop. So many requests of gold's waited, and all but one of those were refused later.
    pub fn queues(released: u32) -> Vec<fief_control::QueueView> {
        use crate::queued::sample::{class, queue};
        let mut web = queue("web", 2, vec![class("shop/gold", released), class("shop/browse", 7)]);
        web.finds = true;
        web.classes[0].refused_full += u64::from(released.saturating_sub(1));
        vec![web]
    }

    /// shop 5 %, gold 20 %, browse 40 %, system 5 %, idle 30 %.
    pub fn second() -> (Snapshot, Interval) {
        let before = moment([100, 100, 100, 0, 0]);
        let mut after = moment([200, 500, 900, 100, 600]);
        after.taken_ns += 1_000_000_000;
        after.containers[1].usage.user_ns = 3;
        after.containers[1].usage.system_ns = 1;
        after.containers[2].usage.packets_in = 1234;
        after.containers[2].usage.syns_seen = 40;
        after.containers[2].usage.syns_dropped = 7;
        let interval = Interval::between(Some(&before), &after);
        (after, interval)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use fief_control::{GroupsView, Hierarchy, SchedulerView, Version};

    fn shown(view: &View) -> Vec<(String, String)> {
        let (snapshot, interval) = sample::second();
        let line = |row: Row| (row.name.clone(), crate::quantity::part(row.cpu()));
        rows(&snapshot, &interval, &ByContainer::new(), view).into_iter().map(line).collect()
    }

    fn names(view: &View) -> Vec<String> {
        shown(view).into_iter().map(|(name, _)| name).collect()
    }

    #[test]
    fn a_line_counts_what_is_below_it() {
        let expected = [
            ("shop", "65.0"),
            ("browse", "40.0"),
            ("gold", "20.0"),
            ("backup", "0"),
            ("system", "5.0"),
            ("idle", "30.0"),
        ];
        let shown = shown(&View::default());
        assert_eq!(shown, expected.map(|(name, cpu)| (name.to_owned(), cpu.to_owned())));
    }

    #[test]
    fn a_line_counts_the_queues_below_it() {
        let (snapshot, interval) = sample::second();
        let [before, after] = [sample::queues(0), sample::queues(4)];
        let queued = crate::queued::between(Some(&before), &after);
        let rows = rows(&snapshot, &interval, &queued, &View::default());
        let cells = |name: &str| {
            let row = rows.iter().find(|row| row.name == name).expect("a line");
            Column::ALL[11..].iter().map(|column| column.cell(row)).collect::<Vec<_>>()
        };
        assert_eq!(cells("gold"), ["1", "1", "~2", "8.19 us", "8.19 us", "3.0", "0"]);
        assert_eq!(cells("browse"), ["1", "1", "~2", "-", "-", "0", "0"], "nobody has waited");
        assert_eq!(cells("shop"), ["2", "2", "~2", "8.19 us", "8.19 us", "3.0", "0"]);
        assert_eq!(cells("backup"), ["-"; 7]);
    }

    #[test]
    fn a_line_where_somebody_waits_is_not_quiet() {
        let snapshot = sample::moment([0; 5]);
        let interval = Interval::between(None, &snapshot);
        let view = View { hide_quiet: true, ..View::default() };
        let count = |queued: &ByContainer| rows(&snapshot, &interval, queued, &view).len();
        assert_eq!(count(&ByContainer::new()), 0);
        assert_eq!(count(&crate::queued::between(None, &sample::queues(0))), 3, "shop and both below it");
    }

    #[test]
    fn a_folded_line_keeps_its_numbers_and_hides_its_children() {
        let view = View { folds: HashMap::from([((8, 1), true)]), ..View::default() };
        assert_eq!(shown(&view)[0], ("shop".to_owned(), "65.0".to_owned()));
        assert_eq!(names(&view), ["shop", "backup", "system", "idle"]);
    }

    #[test]
    fn children_stay_below_their_parent_however_they_are_sorted() {
        let view = View { reverse: true, ..View::default() };
        assert_eq!(names(&view), ["backup", "shop", "gold", "browse", "system", "idle"]);
        let view = View { sort: Column::Container, ..View::default() };
        assert_eq!(names(&view), ["backup", "shop", "browse", "gold", "system", "idle"]);
        let view = View { sort: Column::Threads, ..View::default() };
        assert_eq!(names(&view), ["shop", "gold", "browse", "backup", "system", "idle"]);
    }

    #[test]
    fn quiet_lines_can_be_hidden() {
        let view = View { hide_quiet: true, ..View::default() };
        assert!(!names(&view).contains(&"backup".to_owned()));
    }

    #[test]
    fn time_of_threads_is_split_by_samples_and_idle_is_not() {
        let (snapshot, interval) = sample::second();
        let rows = rows(&snapshot, &interval, &ByContainer::new(), &View::default());
        let gold = rows.iter().find(|row| row.name == "gold").expect("a line for gold");
        assert_eq!([gold.user, gold.system].map(crate::quantity::part), ["15.0", "5.0"]);
        let idle = rows.last().expect("idle is last");
        assert_eq!((idle.user, idle.system, idle.kind), (0.0, 0.0, RowKind::NotOurs));
    }

    #[test]
    fn a_share_that_nobody_enforces_is_in_parentheses() {
        let (mut snapshot, interval) = sample::second();
        snapshot.containers[1].attributes.share_ppm = 300_000;
        snapshot.containers[2].attributes.share_ppm = 50_000;
        let shares = |snapshot: &Snapshot| {
            let rows = rows(snapshot, &interval, &ByContainer::new(), &View::default());
            let share = |name: &str| Column::Share.cell(rows.iter().find(|row| row.name == name).expect("a line"));
            ["gold", "browse", "backup"].map(share)
        };
        assert_eq!(shares(&snapshot), ["(30%)", "(5%)", "-"]);
        snapshot.scheduler = SchedulerView::Ejected("runnable task stall".into());
        assert_eq!(shares(&snapshot), ["(30%)", "(5%)", "-"]);
        snapshot.scheduler = SchedulerView::On { counts: Vec::new(), combined: Vec::new() };
        assert_eq!(shares(&snapshot), ["30%", "5%", "-"]);
        let hierarchy = Hierarchy { version: Version::V2, top: "/sys/fs/cgroup".into() };
        let containers = BTreeSet::from(["shop/gold".to_owned()]);
        snapshot.scheduler = SchedulerView::Groups(GroupsView { hierarchy, containers, problems: Vec::new() });
        assert_eq!(shares(&snapshot), ["30%", "(5%)", "-"]);
    }

    #[test]
    fn a_container_with_very_many_children_begins_folded() {
        use crate::record::sample::{container, snapshot};
        let mut containers = vec![container("shop", 8, None)];
        containers.extend((0..60).map(|at| container(&format!("shop/#{}", 100 + at), 100 + at, Some(8))));
        let snapshot = snapshot(containers);
        let interval = Interval::between(None, &snapshot);
        let rows = |view: &View| rows(&snapshot, &interval, &ByContainer::new(), view);
        assert_eq!(rows(&View::default()).len(), 1);
        let view = View { folds: HashMap::from([((8, 1), false)]), ..View::default() };
        assert_eq!(rows(&view).len(), 61);
    }
}
