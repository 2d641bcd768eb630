// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Which containers have series of their own, and where the others are counted. Pure.
//!
//! Problem: an application may make a container for each request, of any name; a time series for each would fill the memory of
//! whoever stores them. And two containers may have one path, which makes a scrape invalid.
//! How: a container without a name is counted where its usage goes when it ends, so that the series does not fall then. Those with
//! a name have series up to a bound, the policy's first and then by slot, which is the order of their making as long as slots are
//! not used again; the rest is one series. One path is one series.
//! Limits: when one of the chosen ends, the first of the rest moves up, and the sum of the rest falls as a counter that restarts.

use std::collections::HashMap;

use fief::Usage;
use fief_control::{ContainerView, Snapshot};

/// Containers with series of their own, if nothing else is said.
pub const MOST_CONTAINERS: usize = 1000;

/// All that have none. A container's name has no space.
pub(crate) const REST: &str = "all others";

/// One value of the label `container`.
#[derive(Debug, Clone)]
pub(crate) struct Row {
    pub(crate) container: String,
    pub(crate) usage: Usage,
    pub(crate) threads: u64,
    pub(crate) processes: u64,
    pub(crate) sockets: u64,
}

#[derive(Debug)]
pub(crate) struct Series {
    pub(crate) rows: Vec<Row>,
    /// Containers with a name that have no series of their own.
    pub(crate) left_out: usize,
    /// By path.
    places: HashMap<String, usize>,
    rest: Option<usize>,
}

impl Series {
    pub(crate) fn of(snapshot: &Snapshot, most: usize) -> Self {
        let containers = &snapshot.containers;
        let by_id: HashMap<u32, usize> = containers.iter().enumerate().map(|(at, view)| (view.id, at)).collect();
        let mut named: Vec<&ContainerView> = containers.iter().filter(|view| !is_nameless(view)).collect();
        named.sort_by_key(|view| (!view.policy && view.id >= fief::abi::FIEF_FIRST_ID, view.id));
        let mut series = Self { rows: Vec::new(), left_out: 0, places: HashMap::new(), rest: None };
        for view in named {
            if !series.places.contains_key(&view.path) {
                if series.rows.len() >= most {
                    series.left_out += 1;
                    continue;
                }
                series.places.insert(view.path.clone(), series.rows.len());
                series.rows.push(row(view.path.clone()));
            }
        }
        for view in containers {
            let place = series.place(&containers[counted_at(containers, &by_id, view)].path);
            add(&mut series.rows[place], view);
        }
        series
    }

    /// Of the row that counts for a path.
    fn place(&mut self, path: &str) -> usize {
        if let Some(place) = self.places.get(path) {
            return *place;
        }
        *self.rest.get_or_insert_with(|| {
            self.rows.push(row(REST.to_owned()));
            self.rows.len() - 1
        })
    }

    /// The label of what is known of a container by its path.
    pub(crate) fn label<'a>(&self, path: &'a str) -> &'a str {
        if self.places.contains_key(path) { path } else { REST }
    }
}

fn row(container: String) -> Row {
    Row { container, usage: Usage::default(), threads: 0, processes: 0, sockets: 0 }
}

fn add(row: &mut Row, view: &ContainerView) {
    let (mut sum, more) = (row.usage.counters(), view.usage.counters());
    sum.iter_mut().zip(more).for_each(|(sum, more)| *sum = sum.saturating_add(more));
    row.usage = Usage::of_counters(sum);
    row.threads += u64::from(view.threads);
    row.processes += u64::from(view.processes);
    row.sockets += u64::from(view.sockets);
}

/// Its last part is `#` and its slot.
fn is_nameless(view: &ContainerView) -> bool {
    let last = view.path.rsplit('/').next().unwrap_or(&view.path);
    last.strip_prefix('#').is_some_and(|slot| slot.parse() == Ok(view.id))
}

/// Position of the container with a name that has its usage, once it has ended.
fn counted_at(containers: &[ContainerView], by_id: &HashMap<u32, usize>, view: &ContainerView) -> usize {
    let at = |id: u32| by_id.get(&id).copied();
    let mut here = at(view.id).unwrap_or(0);
    // the depth of the tree is bounded; a loop in a torn snapshot is not
    for _ in 0..=fief::abi::FIEF_MAX_DEPTH {
        let view = &containers[here];
        if !is_nameless(view) {
            return here;
        }
        match view.parent.and_then(at).filter(|_| view.attributes.pass_up) {
            Some(parent) => here = parent,
            None => break,
        }
    }
    at(fief::abi::FIEF_RETIRED).unwrap_or(here)
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use fief_control::SchedulerView;

    pub(crate) fn container(path: &str, id: u32, parent: Option<u32>, thread_ns: u64) -> ContainerView {
        let mut usage = Usage::default();
        usage.thread_ns = thread_ns;
        let raw = fief::abi::fief_attributes { weight: 100, priority: 100, pass_up: 1, ..Default::default() };
        ContainerView {
            path: path.to_owned(),
            id,
            generation: 1,
            parent,
            state: "alive",
            policy: true,
            unit: false,
            handles: 1,
            threads: 1,
            processes: 0,
            sockets: 0,
            files: 0,
            discarded: 0,
            children: 0,
            attributes: raw.into(),
            usage,
        }
    }

    pub(crate) fn snapshot(containers: Vec<ContainerView>) -> Snapshot {
        Snapshot {
            taken_ns: 5_000_000_000,
            cpus: 2,
            containers,
            system_kinds: vec![("hardirq", 40)],
            failures: vec![("table_full", 2)],
            class_listeners: Vec::new(),
            units: Vec::new(),
            scheduler: SchedulerView::Off,
            charged: true,
        }
    }

    fn times(series: &Series) -> Vec<(&str, u64)> {
        series.rows.iter().map(|row| (row.container.as_str(), row.usage.thread_ns)).collect()
    }

    #[test]
    fn one_without_a_name_is_counted_where_its_usage_goes() {
        let mut lost = container("shop/#72", 72, Some(8), 1000);
        lost.attributes.pass_up = false;
        let retired = container("retired", fief::abi::FIEF_RETIRED, None, 5);
        let of = |containers| Series::of(&snapshot(containers), 10);
        let before = of(vec![
            retired.clone(),
            container("shop", 8, None, 1),
            container("shop/#70", 70, Some(8), 10),
            container("shop/#70/#71", 71, Some(70), 100),
            lost,
        ]);
        assert_eq!(times(&before), [("retired", 1005), ("shop", 111)]);
        let mut retired = retired;
        retired.usage.thread_ns = 1005;
        let after = of(vec![retired, container("shop", 8, None, 111)]);
        assert_eq!(times(&after), times(&before), "no counter falls when they end");
    }

    #[test]
    fn what_is_beyond_the_bound_is_one_series_and_said() {
        let mut own = container("zeta", 9, None, 4);
        own.policy = false;
        let mut all = vec![own, container("a", 10, None, 1), container("b", 11, None, 2)];
        all.extend((0..50).map(|n| {
            let mut view = container(&format!("c{n}"), 100 + n, None, 1);
            view.policy = false;
            view
        }));
        let series = Series::of(&snapshot(all), 3);
        assert_eq!(times(&series), [("a", 1), ("b", 2), ("zeta", 4), (REST, 50)], "the policy's come first");
        assert_eq!(series.left_out, 50);
        assert_eq!((series.label("a"), series.label("c7"), series.label("gone")), ("a", REST, REST));
    }

    #[test]
    fn one_path_is_one_series_whoever_bears_it() {
        let twice = vec![container("shop/x", 70, None, 1), container("shop/x", 71, None, 2)];
        assert_eq!(times(&Series::of(&snapshot(twice), 10)), [("shop/x", 3)]);
        let liar = vec![container("shop/#9", 70, None, 1), container("all", 71, None, 2)];
        assert_eq!(times(&Series::of(&snapshot(liar), 10)).len(), 2, "a name that looks like a slot is a name");
    }

    #[test]
    fn nothing_is_lost() {
        let all: Vec<_> = (8..2000).map(|id| container(&format!("c{}", id % 700), id, Some(id / 2), 1)).collect();
        for most in [0, 1, 10, 5000] {
            let sum: u64 = Series::of(&snapshot(all.clone()), most).rows.iter().map(|row| row.usage.thread_ns).sum();
            assert_eq!(sum, 1992, "{most}");
        }
    }
}
