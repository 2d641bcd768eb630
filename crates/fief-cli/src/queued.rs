// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Requests that wait, by container: all queues together in which it is a class, now and since the look before. Pure.
//!
//! Counters of a queue begin anew with a policy that says something else of it. An interval in which that happened has what the
//! new queue counted.

use std::collections::{BTreeMap, HashMap};

use fief_control::{QueueClassView, QueueView, Waits};

/// Of a container, or of several together.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Queued {
    pub waiting: u32,
    pub in_service: u32,
    /// Requests that its servers get at once, by position of the queue: two classes of one share them.
    places: BTreeMap<usize, u32>,
    /// That number is found out in one of them.
    pub finds: bool,
    /// Within the interval: those that waited and went to the server.
    pub waits: Waits,
    /// Within the interval: refused since there was no room.
    pub refused_full: u64,
    /// Within the interval: refused after too long a wait, or since it would have been.
    pub refused_wait: u64,
}

/// By path.
pub type ByContainer = HashMap<String, Queued>;

impl Queued {
    fn of(at: usize, queue: &QueueView, class: &QueueClassView, earlier: Option<&QueueClassView>) -> Self {
        let none = Waits::default();
        let (waits, full, late) = earlier.map_or((&none, 0, 0), |was| (&was.waits, was.refused_full, was.refused_wait));
        Self {
            waiting: class.waiting,
            in_service: class.in_service,
            places: BTreeMap::from([(at, queue.places)]),
            finds: queue.finds,
            waits: class.waits.since(waits),
            refused_full: class.refused_full - full,
            refused_wait: class.refused_wait - late,
        }
    }

    /// Together with another one.
    pub fn add(&mut self, other: &Self) {
        self.waiting += other.waiting;
        self.in_service += other.in_service;
        self.places.extend(&other.places);
        self.finds |= other.finds;
        self.waits.add(&other.waits);
        self.refused_full += other.refused_full;
        self.refused_wait += other.refused_wait;
    }

    pub fn places(&self) -> u32 {
        self.places.values().sum()
    }
}

/// Without an earlier look, nobody is known to have waited or to have been refused.
pub fn between(before: Option<&[QueueView]>, after: &[QueueView]) -> ByContainer {
    let mut all = ByContainer::new();
    for (at, queue) in after.iter().enumerate() {
        let same = before.map(|queues| queues.iter().find(|other| other.listener == queue.listener));
        for class in &queue.classes {
            let was = same.flatten().and_then(|queue| queue.classes.iter().find(|c| c.container == class.container));
            let earlier = match before {
                None => Some(class),
                Some(_) => was.filter(|was| goes_on(was, class)),
            };
            all.entry(class.container.clone()).or_default().add(&Queued::of(at, queue, class, earlier));
        }
    }
    all
}

/// Whether it is the same queue still. These counters never go back; `entered` does for a request that then makes no connection.
fn goes_on(before: &QueueClassView, after: &QueueClassView) -> bool {
    let counters = |class: &QueueClassView| [class.released, class.refused_full, class.refused_wait, class.gone];
    counters(before).iter().zip(counters(after)).all(|(before, after)| *before <= after)
}

/// Queues for tests.
#[cfg(test)]
pub mod sample {
    use super::*;

    /// One request waits, one is in service; so many waited, each for less than 16 us.
    pub fn class(container: &str, released: u32) -> QueueClassView {
        let waits = Waits::of(&[released]);
        QueueClassView {
            container: container.to_owned(),
            waiting: 1,
            in_service: 1,
            length: 10,
            wait_max_ns: 2_000_000_000,
            reserve: 0,
            entered: 3,
            released: released.into(),
            refused_full: 5,
            refused_wait: 6,
            gone: 7,
            latency: None,
            waited_ns: 8_000_000,
            wait_p50_ns: waits.quantile(0.5),
            wait_p99_ns: waits.quantile(0.99),
            waits,
        }
    }

    pub fn queue(listener: &str, places: u32, classes: Vec<QueueClassView>) -> QueueView {
        QueueView {
            listener: listener.to_owned(),
            places,
            finds: false,
            places_below: None,
            in_service: classes.iter().map(|class| class.in_service).sum(),
            waiting: classes.iter().map(|class| class.waiting).sum(),
            length: 100,
            memory: 0,
            too_long: 0,
            would_wait: 0,
            uncounted: 0,
            carried_again: 0,
            classes,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::sample::{class, queue};
    use super::*;

    #[test]
    fn a_class_of_two_queues_is_their_sum() {
        let queues = [queue("web", 2, vec![class("a", 1), class("b", 2)]), queue("api", 4, vec![class("a", 3)])];
        let queued = between(Some(&[]), &queues);
        let (a, b) = (&queued["a"], &queued["b"]);
        assert_eq!((a.waiting, a.in_service, a.places(), a.waits.clone()), (2, 2, 6, Waits::of(&[4])));
        assert_eq!((b.waiting, b.in_service, b.places(), b.waits.clone()), (1, 1, 2, Waits::of(&[2])));
    }

    #[test]
    fn the_places_of_two_classes_of_one_queue_are_the_same() {
        let mut queues = [queue("web", 2, vec![class("a", 1), class("b", 2)]), queue("api", 4, vec![class("b", 3)])];
        queues[1].finds = true;
        let queued = between(None, &queues);
        let mut both = queued["a"].clone();
        assert!(!both.finds);
        both.add(&queued["b"]);
        assert_eq!((both.places(), both.finds, both.waiting), (6, true, 3));
    }

    #[test]
    fn an_interval_has_what_was_counted_within_it() {
        let before = [queue("api", 4, vec![class("a", 50)]), queue("web", 2, vec![class("a", 9)])];
        let mut after = [queue("web", 2, vec![class("a", 13)])];
        after[0].classes[0].refused_full += 2;
        after[0].classes[0].refused_wait += 3;
        let queued = &between(Some(&before), &after)["a"];
        assert_eq!((&queued.waits, queued.refused_full, queued.refused_wait), (&Waits::of(&[4]), 2, 3));
    }

    #[test]
    fn a_queue_that_was_made_anew_counts_from_nothing() {
        let before = [queue("web", 2, vec![class("a", 9)])];
        let mut after = [queue("web", 2, vec![class("a", 11)])];
        after[0].classes[0].refused_wait = 1;
        let queued = &between(Some(&before), &after)["a"];
        assert_eq!((&queued.waits, queued.refused_full, queued.refused_wait), (&Waits::of(&[11]), 5, 1));
    }

    #[test]
    fn the_first_look_shows_who_waits_and_no_waits() {
        let queued = &between(None, &[queue("web", 2, vec![class("a", 9)])])["a"];
        assert_eq!((queued.waiting, queued.waits.quantile(0.5), queued.refused_full), (1, None, 0));
    }
}
