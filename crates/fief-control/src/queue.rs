// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Queue: requests that wait in front of a server, as the kernel side's records (`bpf/front/queue.bpf.h`).
//!
//! A queue that a new policy says the same of goes on. Another one lets all go that wait in it, before the flip, and is
//! removed after it; the server then may have more at once for a moment.

mod ticks;
mod waits;

use fief_bpf::{Error, ErrorKind, Result, abi, ingress, queue};
use fief_policy::{Listener, Mode, Policy, Queue};
use serde::{Deserialize, Serialize};

use crate::Fief;
use crate::charge::online_cpus;
use crate::names::Names;
use crate::namespace::Namespace;

/// A part in ten thousand of the machine.
const SHARE_UNIT_PPM: u32 = 100;

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
    clock: u32,
}

impl Queues {
    /// `clock`: the interface that gives them time, or 0. `interfaces`: those that will be guarded.
    pub(crate) fn open(fief: &Fief, clock: u32, interfaces: &[u32]) -> Result<Self> {
        let there = queue::all(fief.pins())?;
        let netns = Namespace::of_caller()?.inode;
        let leaves = |&(there, interface): &(u64, u32)| there != netns || !interfaces.contains(&interface);
        let keeps = !ingress::attached(fief.pins()).iter().any(leaves);
        Ok(Self { there, keeps, made: Vec::new(), named: Vec::new(), clock })
    }

    /// The number of a queue that is there and says the same, or of a new one.
    pub(crate) fn add(&mut self, mut wanted: abi::fief_queue) -> u32 {
        wanted.clock = self.clock;
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
    /// Requests that did not wait, ever.
    pub entered: u64,
    /// Requests that waited, and went to the server.
    pub released: u64,
    /// Displaced, or without room.
    pub refused_full: u64,
    /// Waited too long.
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
    /// The queues of the policy in force, by listener.
    pub(crate) fn queues(&self, names: &Names) -> Result<Vec<QueueView>> {
        let class = |class: &abi::fief_queue_class| QueueClassView {
            container: names.container(class.container),
            waiting: class.waiting,
            entered: class.entered,
            released: class.released,
            refused_full: class.refused_full,
            refused_wait: class.refused_wait,
            gone: class.gone,
            latency: LatencyView::of(class),
            waited_ns: class.waited_ns,
            wait_p50_ns: waits::quantile(&class.waits, 0.5),
            wait_p99_ns: waits::quantile(&class.waits, 0.99),
        };
        let view = |(_, queue): (u32, abi::fief_queue)| QueueView {
            listener: names.listener(u16::try_from(queue.listener).unwrap_or(u16::MAX)),
            places: queue.places,
            finds: queue.finds != 0,
            places_below: (queue.promises != 0).then(|| queue.below.min(queue.places)),
            in_service: queue.busy,
            waiting: queue.waiting,
            length: queue.length,
            memory: queue.kept,
            too_long: queue.too_long,
            would_wait: queue.would_wait,
            classes: queue.class.iter().take(queue.classes as usize).map(class).collect(),
        };
        let there = queue::all(self.pins())?.into_iter().filter(|(_, queue)| queue.open == 0);
        let mut views: Vec<_> = there.map(view).collect();
        views.sort_by(|a, b| a.listener.cmp(&b.listener));
        Ok(views)
    }

    /// Lets go of what waits in all queues but these, while the policy that names them is in force: its guards know the flows.
    /// Returns how many requests nothing moved on.
    pub(crate) fn open_queues(&self, keep: &[u32]) -> Result<u32> {
        let old = self.other_queues(keep)?;
        if old.is_empty() {
            return Ok(0);
        }
        let here = Namespace::of_caller()?.inode;
        let at = ingress::attached(self.pins()).into_iter().filter(|(netns, _)| *netns == here);
        let interfaces: Vec<_> = at.map(|(_, interface)| interface).collect();
        old.into_iter().map(|number| queue::open(self.pins(), number, &interfaces)).sum()
    }

    /// Removes all queues but these; no guard names them any more.
    pub(crate) fn remove_queues(&self, keep: &[u32]) -> Result<()> {
        self.other_queues(keep)?.into_iter().try_for_each(|number| queue::remove(self.pins(), number))?;
        if keep.is_empty() { queue::detach_clock(self.pins()) } else { Ok(()) }
    }

    fn other_queues(&self, keep: &[u32]) -> Result<Vec<u32>> {
        let numbers = queue::all(self.pins())?.into_iter().map(|(number, _)| number);
        Ok(numbers.filter(|number| !keep.contains(number)).collect())
    }
}

/// What a policy says of it.
fn says(queue: &abi::fief_queue) -> impl PartialEq + use<> {
    let classes = queue.class.map(|class| {
        (class.container, class.weight, class.level, class.floor, class.limit_ns, class.latency_ns, class.late_ppm)
    });
    let places = if queue.finds == 0 { queue.places } else { 0 };
    let times = (queue.wait_ns, queue.clock, queue.tick_shift, queue.stale_ticks);
    let how = (queue.monitor, queue.fair, queue.finds, places);
    (queue.listener, queue.classes, how, queue.length, queue.memory, times, classes)
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
    let classes = classes(policy, listener);
    let monitor = [policy.mode, listener.mode].contains(&Mode::Monitor);
    // nothing is found out where nobody waits
    let finds = queue.in_service.is_none() && !monitor;
    let places = queue.in_service.unwrap_or_else(|| if finds { abi::FIEF_QUEUE_PLACES } else { online_cpus() }).max(1);
    let tick_shift = tick_shift(queue.stale_ns);
    let mut record = abi::fief_queue {
        places,
        finds: finds.into(),
        length: queue.length,
        listener: index.into(),
        classes: classes.len() as u32,
        monitor: monitor.into(),
        fair: queue.fair.into(),
        memory: queue.memory,
        wait_ns: queue.wait_ns,
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
        if let Some(latency) = class.latency {
            (to.latency_ns, to.late_ppm) = (latency.within_ns, 1_000_000 - latency.ppm);
            record.promises = 1;
            // the first one is the highest
            record.below_level = record.below_level.min(class.level.into());
        }
        to.limit_ns = u64::from(class.limit_ppm) * u64::from(online_cpus()) * 1000;
    }
    Ok(record)
}

/// A class in the order in which a queue serves them.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Class<'p> {
    path: &'p str,
    /// 0 is served first.
    level: u8,
    /// Among those of its level.
    weight: u32,
    /// It never starves.
    floor: bool,
    /// Of the machine; 0: none.
    limit_ppm: u32,
    latency: Option<fief_policy::Latency>,
}

/// The classes of a listener, the highest priority first.
fn classes<'p>(policy: &'p Policy, listener: &'p Listener) -> Vec<Class<'p>> {
    let mut containers: Vec<_> = listener.class_paths().into_iter().filter_map(|path| policy.container(path)).collect();
    containers.sort_by_key(|container| std::cmp::Reverse(container.cpu.priority));
    let mut priorities: Vec<_> = containers.iter().map(|container| container.cpu.priority).collect();
    priorities.dedup();
    let class = |container: &&'p fief_policy::Container| {
        let level = priorities.iter().position(|priority| *priority == container.cpu.priority).unwrap_or(0);
        let beside = containers.iter().filter(|other| other.cpu.priority == container.cpu.priority);
        Class {
            path: &container.path,
            level: level as u8,
            weight: weight(container, beside.copied()),
            floor: container.cpu.priority != 0,
            limit_ppm: limit(policy, container),
            latency: container.latency,
        }
    };
    containers.iter().map(class).collect()
}

/// The least of its own and of those above it, of which one that is not there is 0.
fn limit(policy: &Policy, container: &fief_policy::Container) -> u32 {
    let above =
        container.parent().and_then(|parent| policy.container(parent)).map_or(0, |parent| limit(policy, parent));
    [container.cpu.limit_ppm, above].into_iter().filter(|&ppm| ppm > 0).min().unwrap_or(0)
}

/// What a class gets for each turn among those of its priority: its share; without one, its weight's part of what they leave.
fn weight<'p>(container: &fief_policy::Container, beside: impl Iterator<Item = &'p fief_policy::Container>) -> u32 {
    let beside: Vec<_> = beside.collect();
    let shared: u32 = beside.iter().map(|other| other.cpu.share_ppm).sum();
    if shared == 0 {
        return container.cpu.weight.max(1);
    }
    if container.cpu.share_ppm > 0 {
        return (container.cpu.share_ppm / SHARE_UNIT_PPM).max(1);
    }
    let weights: u32 = beside.iter().filter(|other| other.cpu.share_ppm == 0).map(|other| other.cpu.weight).sum();
    let rest = 1_000_000u32.saturating_sub(shared) / SHARE_UNIT_PPM;
    (u64::from(rest) * u64::from(container.cpu.weight) / u64::from(weights.max(1))).max(1) as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    fn policy(containers: &str) -> Policy {
        let text = format!(
            "version = 1\n{containers}\n[listener.web]\naddress = \"0.0.0.0:80\"\nqueue = true\n\
             [[listener.web.client]]\nfrom = [\"10.0.0.0/8\"]\ncontainer = \"a\"\n\
             [[listener.web.client]]\nfrom = [\"11.0.0.0/8\"]\ncontainer = \"b\"\n\
             [[listener.web.client]]\nfrom = [\"any\"]\ncontainer = \"c\"\n"
        );
        fief_policy::parse(&text, "test.toml").expect("a policy")
    }

    fn order(containers: &str) -> Vec<(String, u8, u32, bool)> {
        let policy = policy(containers);
        let classes = classes(&policy, &policy.listeners[0]);
        classes.iter().map(|class| (class.path.to_owned(), class.level, class.weight, class.floor)).collect()
    }

    #[test]
    fn a_place_is_held_for_no_more_ticks_than_there_are() {
        for (stale_ms, shift) in [(16, 20), (266, 20), (267, 21), (2000, 23), (30_000, 27)] {
            assert_eq!(tick_shift(stale_ms * 1_000_000), shift, "{stale_ms} ms");
        }
    }

    #[test]
    fn the_highest_priority_is_served_first_and_priority_0_may_starve() {
        let classes = order(
            "[container.a]\ncpu.priority = 10\n[container.b]\ncpu.priority = 0\n[container.c]\ncpu.priority = 900",
        );
        let expected = [("c", 0, 100, true), ("a", 1, 100, true), ("b", 2, 100, false)];
        assert_eq!(classes, expected.map(|(path, level, weight, floor)| (path.to_owned(), level, weight, floor)));
    }

    #[test]
    fn a_share_counts_before_weights_among_classes_of_one_priority() {
        let classes = order(
            "[container.a]\ncpu.share = \"60%\"\n[container.b]\ncpu.weight = 300\n[container.c]\ncpu.weight = 100",
        );
        let weights: Vec<_> = classes.iter().map(|(path, level, weight, _)| (path.as_str(), *level, *weight)).collect();
        assert_eq!(weights, [("a", 0, 6000), ("b", 0, 3000), ("c", 0, 1000)]);
    }
}
