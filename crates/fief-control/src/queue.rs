// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Queue: requests that wait in front of a server, as the kernel side's records (`bpf/front/queue.bpf.h`).
//!
//! A queue that a new policy says the same of goes on. Another one lets all go that wait in it, before the flip, and is
//! removed after it; the server then may have more at once for a moment. Those that it does not take by then are refused.

mod classes;
mod opened;
mod served;
mod ticks;
mod waits;

use std::collections::HashMap;
use std::time::Instant;

use fief_bpf::queue::{self, Told};
use fief_bpf::upgrade::require_own_records;
use fief_bpf::{Error, ErrorKind, Result, abi, ingress};
use fief_policy::{Listener, Policy, Queue, Until};
use serde::{Deserialize, Serialize};

use crate::Fief;
use crate::charge::{now_ns, online_cpus};
use crate::names::Names;
use crate::namespace::{Namespace, within};
use opened::Emptied;
pub(crate) use opened::Opened;
use served::Served;
pub use waits::Waits;

/// The most requests that a server gets at once.
pub const QUEUE_PLACES: u32 = abi::FIEF_QUEUE_PLACES;

/// The largest number of a queue.
const MOST: u32 = 0x7fff;

/// The queues that a policy on its way into a slot names.
#[derive(Debug)]
pub(crate) struct Queues {
    there: Vec<(u32, abi::fief_queue)>,
    /// What waits could go on: no interface is given up that it came in by.
    keeps: bool,
    made: Vec<(u32, abi::fief_queue)>,
    named: Vec<u32>,
    /// Where the interfaces are, that which gives them time among them.
    netns: abi::fief_netns,
    clock: u32,
}

impl Queues {
    /// `clock`: the interface that gives them time, or 0. `interfaces`: those that will be guarded.
    pub(crate) fn open(fief: &Fief, clock: u32, interfaces: &[u32]) -> Result<Self> {
        let there = queue::all(fief.pins())?;
        let netns = Namespace::of_caller()?.known.record();
        let leaves = |&(there, interface): &(u64, u32)| there != netns.inode || !interfaces.contains(&interface);
        let keeps = !ingress::attached(fief.pins()).iter().any(leaves);
        Ok(Self { there, keeps, made: Vec::new(), named: Vec::new(), netns, clock })
    }

    /// The number of a queue that is there and says the same, or of a new one.
    pub(crate) fn add(&mut self, mut wanted: abi::fief_queue) -> u32 {
        (wanted.netns, wanted.clock) = (self.netns, self.clock);
        let is_same = |there: &abi::fief_queue| self.keeps && there.open == 0 && says(there) == says(&wanted);
        let same = self.there.iter().find(|(_, there)| is_same(there));
        let number = match same {
            Some(&(number, _)) => number,
            None => {
                let taken = |number: &u32| self.there.iter().chain(&self.made).any(|(other, _)| other == number);
                // carriers have 15 bits for it, and the kernel side has room for fewer
                let number = (1..=MOST).find(|number| !taken(number)).unwrap_or(MOST);
                self.made.push((number, wanted));
                number
            }
        };
        self.named.push(number);
        number
    }

    /// Makes those that are not there. Returns the numbers of all that the policy names.
    pub(crate) fn write(self, fief: &Fief) -> Result<Vec<u32>> {
        for (number, record) in &self.made {
            queue::make(fief.pins(), *number, record)?;
        }
        Ok(self.named)
    }
}

/// A queue before a policy is staged.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct FormerQueue {
    number: u32,
    /// Nobody waits in it any more.
    open: bool,
}

/// A queue at one moment.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct QueueView {
    /// Name of its listener.
    pub listener: String,
    /// Requests that the server has at once.
    pub places: u32,
    /// That number is found out, and changes.
    pub finds: bool,
    /// Where a class has a latency to hold: places for the classes below it.
    pub places_below: Option<u32>,
    /// Places that are taken: requests that the server has not begun to answer.
    pub in_service: u32,
    /// Requests that wait.
    pub waiting: u32,
    /// Most that may.
    pub length: u32,
    /// Bytes that they take.
    pub memory: u64,
    /// Requests of which only the first bytes waited; their clients sent the rest again.
    pub too_long: u64,
    /// Monitor mode: requests that would have waited.
    pub would_wait: u64,
    /// Requests that the server got without a place: there was no room to know of it when they end.
    #[serde(default)]
    pub uncounted: u64,
    /// How often a request was carried to the server once more, since it was lost behind the door.
    #[serde(default)]
    pub carried_again: u64,
    /// In the order in which they are served.
    pub classes: Vec<QueueClassView>,
}

/// A class of a queue.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct QueueClassView {
    /// Path of the container.
    pub container: String,
    /// Requests that wait now.
    pub waiting: u32,
    /// Requests that the server has now.
    #[serde(default)]
    pub in_service: u32,
    /// Most that may wait.
    pub length: u32,
    /// So long one waits at most.
    pub wait_max_ns: u64,
    /// Places of the queue that no other class can take.
    pub reserve: u32,
    /// Requests that did not wait, ever.
    pub entered: u64,
    /// Requests that waited, and went to the server.
    pub released: u64,
    /// Displaced, or without room.
    pub refused_full: u64,
    /// Waited too long, or would have.
    pub refused_wait: u64,
    /// Their clients went away meanwhile.
    pub gone: u64,
    /// What the policy says of how soon it is answered.
    pub latency: Option<LatencyView>,
    /// Of those that were released, together.
    pub waited_ns: u64,
    /// Half of these waited no longer; none was released: `None`.
    pub wait_p50_ns: Option<u64>,
    /// 99 of a hundred waited no longer.
    pub wait_p99_ns: Option<u64>,
    /// All of these by how long they waited, so that an interval has its own quantiles.
    #[serde(default)]
    pub waits: Waits,
}

/// A class whose requests are to be answered within a time, and whether they are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct LatencyView {
    pub within_ns: u64,
    /// Of a million answers so many may begin later.
    pub late_ppm: u32,
    /// Within the last second.
    pub answered: u32,
    pub late: u32,
    /// How often it held over a second, looked at 7 times a second.
    pub held: u32,
    pub missed: u32,
}

impl LatencyView {
    fn of(class: &abi::fief_queue_class) -> Option<Self> {
        (class.latency_ns > 0).then(|| Self {
            within_ns: class.latency_ns,
            late_ppm: class.late_ppm,
            answered: class.answered.iter().sum(),
            late: class.late.iter().sum(),
            held: class.eighths_held,
            missed: class.eighths_missed,
        })
    }

    /// Within the last second.
    pub fn is_missed(&self) -> bool {
        u64::from(self.late) * 1_000_000 > u64::from(self.answered) * u64::from(self.late_ppm)
    }
}

impl Fief {
    /// The queues of the policy in force, as [`Fief::front`] has them; without reading names where there is none.
    pub fn queue_views(&self) -> Result<Vec<QueueView>> {
        self.require_installed()?;
        match queue::all(self.pins())? {
            there if there.is_empty() => Ok(Vec::new()),
            there => self.views(there, &self.names()?),
        }
    }

    /// The queues of the policy in force, by listener.
    pub(crate) fn queues(&self, names: &Names) -> Result<Vec<QueueView>> {
        self.views(queue::all(self.pins())?, names)
    }

    fn views(&self, mut there: Vec<(u32, abi::fief_queue)>, names: &Names) -> Result<Vec<QueueView>> {
        let now = now_ns()?;
        there.retain(|(_, queue)| queue.open == 0);
        let served = Served::read(self, &there, now)?;
        let class = |queue: &abi::fief_queue, class: &abi::fief_queue_class, in_service| QueueClassView {
            container: names.container(class.container),
            waiting: class.waiting,
            in_service,
            length: class.length.min(queue.length),
            wait_max_ns: class.wait_ns,
            reserve: class.reserve,
            entered: class.entered,
            released: class.released,
            refused_full: class.refused_full,
            refused_wait: class.refused_wait,
            gone: class.gone,
            latency: LatencyView::of(class),
            waited_ns: class.waited_ns,
            wait_p50_ns: Waits::of(&class.waits).quantile(0.5),
            wait_p99_ns: Waits::of(&class.waits).quantile(0.99),
            waits: Waits::of(&class.waits),
        };
        let view = |(number, queue): &(u32, abi::fief_queue)| QueueView {
            listener: names.listener(u16::try_from(queue.listener).unwrap_or(u16::MAX)),
            places: queue.places,
            finds: queue.finds != 0,
            places_below: (queue.promises != 0).then(|| queue.below.min(queue.places)),
            in_service: in_service(queue, now),
            waiting: queue.waiting,
            length: queue.length,
            memory: queue.kept,
            too_long: queue.too_long,
            would_wait: queue.would_wait,
            uncounted: queue.uncounted,
            carried_again: queue.carried_again,
            classes: queue
                .class
                .iter()
                .take(queue.classes as usize)
                .enumerate()
                .map(|(at, of)| class(queue, of, served.of(*number, at)))
                .collect(),
        };
        let mut views: Vec<_> = there.iter().map(view).collect();
        views.sort_by(|a, b| a.listener.cmp(&b.listener));
        Ok(views)
    }

    /// Lets go of what waits in all queues but these, while the policy that names them is in force: its guards know the flows. What is left
    /// after a while is refused, but of an installation of another version, whose queues can only be opened. One that fails does not keep the
    /// others: what became of those stands beside the error.
    pub(crate) fn open_queues(&self, keep: &[u32]) -> (Opened, Result<()>) {
        let mut old = match queue::all(self.pins()) {
            Ok(there) => there,
            Err(e) => return (Opened::default(), Err(e)),
        };
        old.retain(|(number, queue)| !keep.contains(number) && !queue::has_ended(queue));
        let refuses = require_own_records(self.pins()).is_ok();
        let there: Vec<_> = old.iter().map(|(number, queue)| (*number, queue.waiting + queue.refused)).collect();
        let mut waited = self.empty_queues(&old, Told::Open);
        old.retain(|(number, _)| !matches!(waited.get(number), Some(Ok(0))));
        let mut left = if refuses { self.empty_queues(&old, Told::Refuse) } else { HashMap::new() };
        let emptied = there.into_iter().filter_map(|(number, there)| {
            Some(Emptied { there, waited: waited.remove(&number)?, left: left.remove(&number) })
        });
        Opened::of(emptied, refuses)
    }

    /// Tells these, and waits until they are empty, all for the same time. How many requests are left in each.
    fn empty_queues(&self, queues: &[(u32, abi::fief_queue)], told: Told) -> HashMap<u32, Result<u32>> {
        let attached = ingress::attached(self.pins());
        let empty = |(number, queue): &(u32, abi::fief_queue), until: Instant| {
            // nothing of it goes by interfaces of another network namespace
            let at = attached.iter().filter(|(netns, _)| *netns == queue.netns.inode);
            let interfaces: Vec<_> = at.map(|(_, interface)| *interface).collect();
            let left = if interfaces.is_empty() {
                Ok(None)
            } else {
                within(queue.netns, || queue::empty(self.pins(), *number, &interfaces, told, until))
            };
            // where nothing can be sent they stay
            left.map(|left| left.unwrap_or(queue.waiting + queue.refused))
        };
        let begin = Instant::now();
        // each begins at once
        queues.iter().for_each(|queue| drop(empty(queue, begin)));
        queues.iter().map(|queue| (queue.0, empty(queue, begin + queue::EMPTIES_WITHIN))).collect()
    }

    /// The queues that are there, for [`Fief::restore_queues`].
    pub(crate) fn former_queues(&self) -> Result<Vec<FormerQueue>> {
        let there = queue::all(self.pins())?.into_iter();
        Ok(there.map(|(number, queue)| FormerQueue { number, open: queue.open != 0 }).collect())
    }

    /// After a policy that did not come into force: removes the queues that it made, which no guard of the one in force names. In those
    /// that were opened for it requests wait again.
    pub(crate) fn restore_queues(&self, former: &[FormerQueue]) -> Result<()> {
        let were_closed = |number| former.contains(&FormerQueue { number, open: false });
        let opened = queue::all(self.pins())?.into_iter().filter(|(number, now)| now.open != 0 && were_closed(*number));
        let closed = opened.map(|(number, _)| queue::close(self.pins(), number)).fold(Ok(()), Result::and);
        let numbers: Vec<_> = former.iter().map(|queue| queue.number).collect();
        // a failure must not keep the others
        closed.and(self.remove_queues(&numbers))
    }

    /// Removes all queues but these, with what waits in them; no guard names them any more.
    pub(crate) fn remove_queues(&self, keep: &[u32]) -> Result<()> {
        let others = queue::all(self.pins())?.into_iter().filter(|(number, _)| !keep.contains(number));
        // one that stays must not keep the others
        let removed = others.map(|(number, queue)| queue::remove(self.pins(), number, &queue));
        removed.fold(Ok(()), Result::and)?;
        if keep.is_empty() { queue::detach_clock(self.pins()) } else { Ok(()) }
    }
}

/// Places that are taken. The kernel side gives back those that have run out when something happens.
fn in_service(queue: &abi::fief_queue, now_ns: u64) -> u32 {
    let now = now_ns >> queue.tick_shift;
    let lasts = (1..=u64::from(abi::FIEF_QUEUE_TICKS)).map(|n| queue.tick + n).filter(|tick| *tick > now);
    let run_out = lasts.map(|tick| u32::from(queue.ends[(tick % u64::from(abi::FIEF_QUEUE_TICKS)) as usize]));
    run_out.sum::<u32>() + queue.lasting
}

/// What a policy says of it.
fn says(queue: &abi::fief_queue) -> impl PartialEq + use<> {
    let classes = queue.class.map(|class| {
        let order = (class.weight, class.level, class.floor);
        let waits = (class.length, class.wait_ns, class.short_ns, class.reserve);
        (class.container, order, waits, class.limit_ns, class.latency_ns, class.late_ppm)
    });
    let places = if queue.finds == 0 { queue.places } else { 0 };
    let times = (queue.netns.cookie, queue.clock, queue.tick_shift, queue.stale_ticks);
    let how = (queue.monitor, queue.fair, queue.until, queue.finds, places);
    (queue.listener, queue.classes, how, queue.length, queue.memory, times, classes)
}

fn until(until: Until) -> u32 {
    match until {
        Until::FirstByte => abi::FIEF_UNTIL_FIRST_BYTE,
        Until::Response => abi::FIEF_UNTIL_RESPONSE,
        Until::Close => abi::FIEF_UNTIL_CLOSE,
    }
}

/// A place is held for a number of ticks of 2^this ns, none shorter than a millisecond.
fn tick_shift(stale_ns: u64) -> u32 {
    (20..30).find(|shift| u64::from(abi::FIEF_QUEUE_TICKS - 2) << shift >= stale_ns).unwrap_or(30)
}

/// Makes the door read requests where no rule asks for it: a shape that nothing is looked up for.
pub(crate) fn rule_all(guard: &mut abi::fief_guard) {
    if guard.shapes == 0 {
        guard.shapes = 1;
        guard.shape[0] = abi::fief_shape { first_rule: abi::FIEF_NO_ID, ..Default::default() };
    }
}

/// The queue of a listener as a record.
pub(crate) fn record(
    policy: &Policy,
    index: u16,
    listener: &Listener,
    queue: Queue,
    container: &impl Fn(&str) -> Option<abi::fief_ref>,
) -> Result<abi::fief_queue> {
    let classes = classes::classes(policy, listener, queue);
    let monitor = policy.watches(listener);
    // nothing is found out where nobody waits
    let finds = queue.in_service.is_none() && !monitor;
    let places = queue.in_service.unwrap_or_else(|| if finds { abi::FIEF_QUEUE_PLACES } else { online_cpus() }).max(1);
    let tick_shift = tick_shift(queue.stale_ns);
    let mut record = abi::fief_queue {
        places,
        finds: finds.into(),
        length: queue.length,
        common: queue.length.saturating_sub(classes.iter().map(|class| class.reserve).sum()),
        listener: index.into(),
        classes: classes.len() as u32,
        monitor: monitor.into(),
        fair: queue.fair.into(),
        until: until(queue.until),
        memory: queue.memory.min(i64::MAX as u64), // the kernel side takes differences
        below: abi::FIEF_QUEUE_PLACES,
        below_level: u32::MAX,
        tick_shift,
        stale_ticks: queue.stale_ns.div_ceil(1 << tick_shift) as u32,
        measured: abi::fief_queue_measured { settled: places, holds: 1, ..Default::default() },
        ..Default::default()
    };
    for (to, class) in record.class.iter_mut().zip(&classes) {
        let missing = || Error::new(ErrorKind::NotFound, format!("listener {}: no {}", listener.name, class.path));
        to.container = container(class.path).ok_or_else(missing)?;
        (to.level, to.weight, to.floor) = (class.level, class.weight, class.floor.into());
        (to.wait_ns, to.short_ns, to.reserve) = (class.wait_ns, class.short_ns, class.reserve);
        // one without a length of its own is told that the queue is full, and not that it asks for too much
        to.length = if class.length < queue.length { class.length } else { u32::MAX };
        if let Some(latency) = class.latency {
            (to.latency_ns, to.late_ppm) = (latency.within_ns, 1_000_000 - latency.ppm);
            record.promises = 1;
            // the first one is the highest
            record.below_level = record.below_level.min(class.level.into());
        }
        to.limit_ns = u64::from(class.limit_ppm) * u64::from(online_cpus()) * 1000;
    }
    let flat = classes.iter().all(|class| class.level == 0 && class.limit_ppm == 0 && class.latency.is_none());
    record.flat = flat.into();
    Ok(record)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_that_has_run_out_is_taken_no_longer() {
        let mut queue = abi::fief_queue { tick: 1000, tick_shift: 20, lasting: 1, ..Default::default() };
        (queue.ends[1010 % 256], queue.ends[1255 % 256]) = (2, 3);
        let at = |tick: u64| in_service(&queue, tick << 20);
        assert_eq!([1000, 1009, 1010, 1254, 1255, 9999].map(at), [6, 6, 4, 4, 1, 1]);
    }

    #[test]
    fn a_class_as_an_older_agent_tells_of_it_is_read() {
        let told = r#"{"container":"shop","waiting":3,"length":9,"wait_max_ns":1,"reserve":0,"entered":1,"released":2,
            "refused_full":0,"refused_wait":0,"gone":0,"latency":null,"waited_ns":7,"wait_p50_ns":3,"wait_p99_ns":4}"#;
        let class: QueueClassView = serde_json::from_str(told).expect("what is missing is nothing");
        assert_eq!((class.waiting, class.in_service, class.waits), (3, 0, Waits::default()));
    }

    #[test]
    fn a_place_is_held_for_no_more_ticks_than_there_are() {
        for (stale_ms, shift) in [(16, 20), (266, 20), (267, 21), (2000, 23), (30_000, 27)] {
            assert_eq!(tick_shift(stale_ms * 1_000_000), shift, "{stale_ms} ms");
        }
    }
}
