// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Which containers have series of their own, and where the others are counted. Pure.
//!
//! Problem: applications and clients make containers, for each request or CGI program say, and name them as they like; a time series
//! for each name would fill the memory of whoever stores them, and two containers may have one path, which makes a scrape invalid.
//! How: those have series whose name and place are the operator's or the kernel side's: what is always there, the policy's, those of
//! units and those of users. All others are counted where their usage goes when they end, so that no series falls then. Those of
//! applications that have a name have series too if the operator asks for it, but for a path that one of the former has. All of it up to a
//! bound, the policy's first, then units', users' and applications', each by slot; the rest is one series. One path is one series.
//! Limits: when one of the chosen ends, the first of the rest moves up, and the sum of the rest falls as a counter that restarts. So
//! does a series whose container an application moves to another parent, or tells to pass its usage on elsewhere, and one that several
//! of an application's containers share.

use std::collections::{HashMap, HashSet};

use fief::Usage;
use fief::abi::{FIEF_FIRST_ID, FIEF_NO_ID, FIEF_USERS};
use fief_control::{ContainerView, Heirs, Snapshot};

/// Containers with series of their own, if nothing else is said.
pub const MOST_CONTAINERS: usize = 1000;

/// All that have none. No name of a policy has a space; one that root made with it is a part of them.
pub(crate) const REST: &str = "all others";

/// Which containers have series of their own.
#[derive(Debug, Clone, Copy, Default)]
pub struct SeriesOptions {
    /// The most of them; and the most series of verdicts by rule.
    pub most: usize,
    /// Those that applications made and named too.
    pub applications: bool,
}

/// One value of the label `container`.
#[derive(Debug, Clone)]
pub(crate) struct Row {
    pub(crate) container: String,
    /// Slot and generation of the container that has this value; of the rest, a slot that is none.
    pub(crate) of: (u32, u32),
    pub(crate) usage: Usage,
    pub(crate) threads: u64,
    pub(crate) processes: u64,
    pub(crate) sockets: u64,
}

#[derive(Debug)]
pub(crate) struct Series {
    pub(crate) rows: Vec<Row>,
    /// Containers for whose series there was no room.
    pub(crate) left_out: usize,
    /// By path.
    places: HashMap<String, usize>,
}

impl Series {
    pub(crate) fn of(snapshot: &Snapshot, options: SeriesOptions) -> Self {
        let containers = &snapshot.containers;
        let mut tree = Tree::of(containers);
        if options.applications {
            tree.name();
        }
        let mut own: Vec<&ContainerView> =
            containers.iter().zip(&tree.own).filter_map(|(view, own)| own.then_some(view)).collect();
        own.sort_by_key(|view| (turn(view), view.id));
        let mut series = Self { rows: Vec::new(), left_out: 0, places: HashMap::new() };
        for view in own {
            if !series.places.contains_key(&view.path) {
                if series.rows.len() >= options.most {
                    series.left_out += 1;
                    continue;
                }
                series.places.insert(view.path.clone(), series.rows.len());
                series.rows.push(row(view.path.clone(), (view.id, view.generation)));
            }
        }
        for (at, view) in containers.iter().enumerate() {
            let place = series.place(&containers[tree.counted_at(at)].path);
            add(&mut series.rows[place], view);
        }
        series
    }

    /// Of the row that counts for a path.
    fn place(&mut self, path: &str) -> usize {
        if let Some(place) = self.places.get(path).or_else(|| self.places.get(REST)) {
            return *place;
        }
        self.rows.push(row(REST.to_owned(), (FIEF_NO_ID, 0)));
        self.places.insert(REST.to_owned(), self.rows.len() - 1);
        self.rows.len() - 1
    }

    /// The label of what is known of a container by its path.
    pub(crate) fn label<'a>(&self, path: &'a str) -> &'a str {
        if self.places.contains_key(path) { path } else { REST }
    }
}

fn row(container: String, of: (u32, u32)) -> Row {
    Row { container, of, usage: Usage::default(), threads: 0, processes: 0, sockets: 0 }
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

/// Of an application's.
const LAST_TURN: u32 = 3;

/// Whose series come first.
fn turn(view: &ContainerView) -> u32 {
    if view.policy || view.id < FIEF_FIRST_ID {
        0
    } else if view.unit {
        1
    } else if view.parent == Some(FIEF_USERS) {
        2
    } else {
        LAST_TURN
    }
}

/// Which containers have series if there is room, and to which of them the usage of the others goes.
struct Tree<'s> {
    containers: &'s [ContainerView],
    heirs: Heirs<'s>,
    own: Vec<bool>,
}

impl<'s> Tree<'s> {
    fn of(containers: &'s [ContainerView]) -> Self {
        let heirs = Heirs::of(containers);
        // below an application's container the path is that one's
        let is_own = |at: usize| heirs.way_up(at).all(|at| turn(&containers[at]) < LAST_TURN);
        let own = (0..containers.len()).map(is_own).collect();
        Self { containers, heirs, own }
    }

    /// Has those of applications with a name have series too.
    fn name(&mut self) {
        let taken: HashSet<&str> =
            self.containers.iter().zip(&self.own).filter_map(|(view, own)| own.then_some(view.path.as_str())).collect();
        let named = |view: &ContainerView| !is_nameless(view) && !taken.contains(view.path.as_str());
        self.own.iter_mut().zip(self.containers).for_each(|(own, view)| *own |= named(view));
    }

    /// The container with a series that has the usage of another one, once that has ended.
    fn counted_at(&self, at: usize) -> usize {
        self.heirs.heir(at, |here| self.own[here]).unwrap_or(at)
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use fief::abi::{FIEF_RETIRED, FIEF_ROOT};

    pub(crate) fn container(path: &str, id: u32, parent: Option<u32>, thread_ns: u64) -> ContainerView {
        let mut view = fief_sample::container(path, id, parent);
        view.policy = true;
        view.threads = 1;
        view.attributes.pass_up = true;
        view.usage.thread_ns = thread_ns;
        view
    }

    pub(crate) fn snapshot(containers: Vec<ContainerView>) -> Snapshot {
        Snapshot {
            system_kinds: vec![("hardirq", 40)],
            failures: vec![("table_full", 2)],
            ..fief_sample::snapshot(containers)
        }
    }

    fn times(series: &Series) -> Vec<(&str, u64)> {
        series.rows.iter().map(|row| (row.container.as_str(), row.usage.thread_ns)).collect()
    }

    /// Of an application's.
    fn made(path: &str, id: u32, parent: Option<u32>, thread_ns: u64) -> ContainerView {
        ContainerView { policy: false, ..container(path, id, parent, thread_ns) }
    }

    fn series(containers: Vec<ContainerView>, most: usize) -> Series {
        Series::of(&snapshot(containers), SeriesOptions { most, applications: false })
    }

    fn with_applications(containers: Vec<ContainerView>, most: usize) -> Series {
        Series::of(&snapshot(containers), SeriesOptions { most, applications: true })
    }

    #[test]
    fn what_applications_make_is_counted_where_its_usage_goes_whatever_its_name() {
        let retired = container("retired", FIEF_RETIRED, None, 5);
        for names in [["#70", "#71", "#72", "#73", "#74"], ["cgi-4711", "gold", "x", "shop", "shop"]] {
            let [a, b, c, d, e] = names;
            let (a, d) = (format!("shop/{a}"), format!("shop/{d}"));
            let mut lost = made(&format!("shop/{c}"), 72, Some(8), 1000);
            lost.attributes.pass_up = false;
            // its parent, between it and the policy's, has ended
            let mut orphan = made(&format!("{d}/x"), 73, None, 10_000);
            orphan.state = "orphan";
            let top = made(&format!("top-{e}"), 74, Some(FIEF_ROOT), 100_000);
            let before = series(
                vec![
                    container("root", FIEF_ROOT, None, 0),
                    retired.clone(),
                    container("shop", 8, None, 1),
                    container("shop/gold", 9, Some(8), 7),
                    made(&a, 70, Some(8), 10),
                    made(&format!("{a}/{b}"), 71, Some(70), 100),
                    lost,
                    orphan,
                    top,
                ],
                10,
            );
            let counted = [("root", 0), ("retired", 101_005), ("shop", 10_111), ("shop/gold", 7)];
            assert_eq!(times(&before), counted);
            assert_eq!((before.label(&a), before.left_out), (REST, 0));
            let after = series(
                vec![
                    container("root", FIEF_ROOT, None, 0),
                    container("retired", FIEF_RETIRED, None, 101_005),
                    container("shop", 8, None, 10_111),
                    container("shop/gold", 9, Some(8), 7),
                ],
                10,
            );
            assert_eq!(times(&after), counted, "no counter falls when they end");
        }
    }

    #[test]
    fn a_name_of_the_policys_is_nobody_elses() {
        // a thread at home in `shop` makes a child that is called as the class is
        let twin = made("shop/gold", 70, Some(8), 1000);
        let both = vec![container("shop", 8, None, 1), container("shop/gold", 9, Some(8), 7), twin];
        for series in [series(both.clone(), 10), with_applications(both, 10)] {
            assert_eq!(times(&series), [("shop", 1001), ("shop/gold", 7)]);
        }
    }

    #[test]
    fn what_stands_below_an_applications_container_has_its_path_and_no_series() {
        // root made a folder there
        let unit = ContainerView { unit: true, ..made("shop/tenant/own", 71, Some(70), 100) };
        let all = vec![container("shop", 8, None, 1), made("shop/tenant", 70, Some(8), 10), unit];
        assert_eq!(times(&series(all, 10)), [("shop", 111)]);
    }

    #[test]
    fn the_policys_come_first_then_units_then_users_then_applications() {
        let mut all = vec![
            container("user", FIEF_USERS, None, 0),
            made("user/1000", 8, Some(FIEF_USERS), 3),
            ContainerView { unit: true, ..made("nginx.service", 200, None, 2) },
            container("a", 300, None, 1),
        ];
        all.extend((0..50).map(|n| made(&format!("c{n}"), 9 + n, None, 1)));
        let always = [("user", 0), ("a", 1), ("nginx.service", 2), ("user/1000", 3)];
        let four = with_applications(all.clone(), 4);
        assert_eq!(times(&four), [&always[..], &[(REST, 50)]].concat());
        assert_eq!(four.left_out, 50);
        assert_eq!((four.label("a"), four.label("c7"), four.label("gone")), ("a", REST, REST));
        let six = with_applications(all, 6);
        assert_eq!(times(&six), [&always[..], &[("c0", 1), ("c1", 1), (REST, 48)]].concat());
    }

    #[test]
    fn one_path_is_one_series_whoever_bears_it() {
        let twice = vec![made("shop/x", 70, None, 1), made("shop/x", 71, None, 2)];
        assert_eq!(times(&with_applications(twice, 10)), [("shop/x", 3)]);
        let liar = vec![made("shop/#9", 70, None, 1), container("all", 71, None, 2)];
        assert_eq!(times(&with_applications(liar, 10)).len(), 2, "a name that looks like a slot is a name");
        let rest = ContainerView { unit: true, ..made(REST, 70, None, 1) };
        assert_eq!(times(&series(vec![rest, container("a", 71, None, 2)], 1)), [("a", 2), (REST, 1)]);
        let rest = ContainerView { unit: true, ..made(REST, 70, None, 1) };
        let made = made("b", 71, None, 2);
        assert_eq!(times(&series(vec![rest, made], 9)), [(REST, 3)], "nothing is there twice");
    }

    #[test]
    fn nothing_is_lost() {
        let all: Vec<_> = (8..2000)
            .map(|id| ContainerView {
                policy: id % 3 == 0,
                ..container(&format!("c{}", id % 700), id, Some(id / 2), 1)
            })
            .collect();
        for most in [0, 1, 10, 5000] {
            for series in [series(all.clone(), most), with_applications(all.clone(), most)] {
                assert_eq!(series.rows.iter().map(|row| row.usage.thread_ns).sum::<u64>(), 1992, "{most}");
            }
        }
    }
}
