// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Requests that wait in front of servers: how many, of which class, for how long.

use serde::Serialize;

use crate::failure::Result;
use crate::output::{Align, Output, Table};
use crate::quantity::{count, duration};
use fief_control::{LatencyView, QueueClassView, QueueView};

/// A server begins with so many where their number is found out.
const MOST: u32 = fief_control::QUEUE_PLACES;

/// The names are a promise to programs; `docs/cli.md` lists them.
#[derive(Serialize)]
#[serde(tag = "record", rename_all = "kebab-case")]
enum Object<'a> {
    Queue(Queued<'a>),
}

/// A class of a queue.
#[derive(Debug, Serialize)]
pub struct Queued<'a> {
    listener: &'a str,
    container: &'a str,
    /// Of all classes together.
    places: u32,
    places_found: bool,
    in_service: u32,
    memory: u64,
    too_long: u64,
    would_wait: u64,
    uncounted: u64,
    carried_again: u64,
    places_below: Option<u32>,
    /// Of this one.
    waiting: u32,
    class_in_service: u32,
    length: u32,
    wait_max_ns: u64,
    reserve: u32,
    entered: u64,
    released: u64,
    refused_full: u64,
    refused_wait: u64,
    gone: u64,
    waited_ns: u64,
    wait_p50_ns: Option<u64>,
    wait_p99_ns: Option<u64>,
    latency_within_ns: Option<u64>,
    latency_answered: Option<u32>,
    latency_late: Option<u32>,
    latency_held: Option<u32>,
    latency_missed: Option<u32>,
}

impl<'a> Queued<'a> {
    pub fn of(queue: &'a QueueView, class: &'a QueueClassView) -> Self {
        Self {
            listener: &queue.listener,
            container: &class.container,
            places: queue.places,
            places_found: queue.finds,
            in_service: queue.in_service,
            memory: queue.memory,
            too_long: queue.too_long,
            would_wait: queue.would_wait,
            uncounted: queue.uncounted,
            carried_again: queue.carried_again,
            places_below: queue.places_below,
            waiting: class.waiting,
            class_in_service: class.in_service,
            length: class.length,
            wait_max_ns: class.wait_max_ns,
            reserve: class.reserve,
            entered: class.entered,
            released: class.released,
            refused_full: class.refused_full,
            refused_wait: class.refused_wait,
            gone: class.gone,
            waited_ns: class.waited_ns,
            wait_p50_ns: class.wait_p50_ns,
            wait_p99_ns: class.wait_p99_ns,
            latency_within_ns: class.latency.map(|latency| latency.within_ns),
            latency_answered: class.latency.map(|latency| latency.answered),
            latency_late: class.latency.map(|latency| latency.late),
            latency_held: class.latency.map(|latency| latency.held),
            latency_missed: class.latency.map(|latency| latency.missed),
        }
    }
}

pub fn objects(queues: &[QueueView], output: &mut Output) -> Result<()> {
    classes(queues).try_for_each(|(queue, class)| output.json(&Object::Queue(Queued::of(queue, class))))
}

/// A line for each class, in the order in which they are served, and one for each queue below it.
pub fn page(queues: &[QueueView]) -> String {
    let mut table = Table::new(&[
        ("LISTENER", Align::Left),
        ("CONTAINER", Align::Left),
        ("WAITING", Align::Right),
        ("AT ONCE", Align::Right),
        ("WAITED", Align::Right),
        ("MEAN WAIT", Align::Right),
        ("P50", Align::Right),
        ("P99", Align::Right),
        ("REFUSED: FULL", Align::Right),
        ("TOO LATE", Align::Right),
        ("GONE", Align::Right),
    ]);
    let wait = |ns: Option<u64>| ns.map_or_else(|| "-".to_owned(), duration);
    for (queue, class) in classes(queues) {
        table.push([
            queue.listener.clone(),
            class.container.clone(),
            class.waiting.to_string(),
            count(class.entered),
            count(class.released),
            wait(class.waited_ns.checked_div(class.released)),
            wait(class.wait_p50_ns),
            wait(class.wait_p99_ns),
            count(class.refused_full),
            count(class.refused_wait),
            count(class.gone),
        ]);
    }
    let mut page = table.to_string();
    page.push_str(&queues.iter().map(together).collect::<String>());
    for (queue, class) in classes(queues) {
        page.push_str(&own(queue, class).unwrap_or_default());
    }
    for (queue, class) in classes(queues) {
        if let Some(latency) = class.latency {
            page.push_str(&promise(queue, class, &latency));
        }
    }
    page
}

/// What all classes of a queue are together.
pub fn together(queue: &QueueView) -> String {
    let QueueView { listener, places, finds, in_service, waiting, length, would_wait, uncounted, .. } = queue;
    let found = match *finds {
        true if *places == MOST => ", the most there are, until fewer are found to do",
        true => ", a number that is found out",
        false => "",
    };
    let mut lines = format!(
        "{listener}: the server has {in_service} of {places} requests at once{found}; {waiting} of {length} wait\n"
    );
    if *would_wait > 0 {
        lines.push_str(&format!("{listener}: on trial, {} requests would have waited\n", count(*would_wait)));
    }
    if *uncounted > 0 {
        let uncounted = count(*uncounted);
        lines.push_str(&format!(
            "{listener}: {uncounted} requests went to the server without a place, since there was no room to know their end\n"
        ));
    }
    if queue.carried_again > 0 {
        let times = count(queue.carried_again);
        lines.push_str(&format!(
            "{listener}: what drops packets behind the door lost requests that had waited; they were carried again, {times} times\n"
        ));
    }
    lines
}

/// What holds for a class and not for all of its queue.
fn own(queue: &QueueView, class: &QueueClassView) -> Option<String> {
    let QueueClassView { container, waiting, length, wait_max_ns, reserve, .. } = class;
    let waits_alike = queue.classes.iter().all(|other| other.wait_max_ns == *wait_max_ns);
    if *length >= queue.length && *reserve == 0 && waits_alike {
        return None;
    }
    let reserved = if *reserve > 0 { format!("; {reserve} places are for no other class") } else { String::new() };
    let longest = duration(*wait_max_ns);
    Some(format!(
        "{}: {waiting} of {length} wait that are of {container}, each up to {longest}{reserved}\n",
        queue.listener
    ))
}

/// Whether a class is answered as soon as the policy says, and what was done for that.
fn promise(queue: &QueueView, class: &QueueClassView, latency: &LatencyView) -> String {
    let LatencyView { answered, late, within_ns, held, missed, .. } = *latency;
    let below = queue.places_below.unwrap_or(queue.places);
    let below = match (latency.is_missed(), below) {
        (true, 1) => "; it cannot be held: the classes below have one place already".to_owned(),
        (_, below) if below < queue.places => format!("; the classes below have {below} places"),
        _ => String::new(),
    };
    format!(
        "{}: {late} of {answered} answers to {} came later than {} within the last second, which held {held} of {} times{below}\n",
        queue.listener,
        class.container,
        duration(within_ns),
        held + missed,
    )
}

pub fn classes(queues: &[QueueView]) -> impl Iterator<Item = (&QueueView, &QueueClassView)> {
    queues.iter().flat_map(|queue| queue.classes.iter().map(move |class| (queue, class)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::queued::sample::{class, queue};

    #[test]
    fn every_name_of_the_object_is_in_the_documentation() {
        let page = include_str!("../../../../../docs/cli.md");
        let queue = queue("web", 2, vec![class("shop/gold", 4)]);
        let object = serde_json::to_value(Queued::of(&queue, &queue.classes[0])).expect("texts and numbers");
        for name in object.as_object().expect("an object").keys() {
            assert!(page.contains(&format!("`{name}`")), "{name} is missing");
        }
    }

    #[test]
    fn each_class_has_a_line_and_the_mean_of_those_that_waited() {
        let class = QueueClassView {
            waiting: 3,
            reserve: 4,
            entered: 10,
            latency: Some(LatencyView {
                within_ns: 20_000_000,
                late_ppm: 10_000,
                answered: 100,
                late: 2,
                held: 3,
                missed: 1,
            }),
            ..class("shop/gold", 4)
        };
        let queue = QueueView {
            finds: true,
            places_below: Some(1),
            would_wait: 9,
            uncounted: 8,
            carried_again: 7,
            ..queue("web", 2, vec![class])
        };
        let page = page(&[queue]);
        let line = page.lines().nth(1).expect("a line");
        let words: Vec<_> = line.split_whitespace().collect();
        assert_eq!(words[..5], ["web", "shop/gold", "3", "10", "4"], "{page}");
        assert_eq!(words[words.len() - 3..], ["5", "6", "7"], "{page}");
        assert!(
            page.contains("web: the server has 1 of 2 requests at once, a number that is found out; 3 of 100 wait\n"),
            "{page}"
        );
        assert!(page.contains("9 requests would have waited"), "{page}");
        assert!(page.contains("web: 8 requests went to the server without a place, since "), "{page}");
        assert!(page.contains("lost requests that had waited; they were carried again, 7 times\n"), "{page}");
        let own = "web: 3 of 10 wait that are of shop/gold, each up to 2.000 s; 4 places are for no other class\n";
        assert!(page.contains(own), "{page}");
        let promise = "web: 2 of 100 answers to shop/gold came later than 20 ms within the last second, which held 3 of 4 times; it \
                       cannot be held: the classes below have one place already";
        assert!(page.contains(promise), "{page}");
    }
}
