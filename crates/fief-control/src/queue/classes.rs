// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Classes of a queue, from the containers that a listener names and from what its rules say of them. Pure.

use std::cmp::Reverse;

use fief_policy::{ClassQueue, Listener, Policy, Queue};

/// A part in ten thousand of the machine.
const SHARE_UNIT_PPM: u32 = 100;

/// A class in the order in which a queue serves them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Class<'p> {
    pub(super) path: &'p str,
    /// 0 is served first.
    pub(super) level: u8,
    /// Among those of its level.
    pub(super) weight: u32,
    /// It never starves.
    pub(super) floor: bool,
    /// Of the machine; 0: none.
    pub(super) limit_ppm: u32,
    pub(super) latency: Option<fief_policy::Latency>,
    /// So many of it wait at most.
    pub(super) length: u32,
    pub(super) wait_ns: u64,
    /// The same while its line stands; 0: as ever.
    pub(super) short_ns: u64,
    /// What no other class can take of the queue's length.
    pub(super) reserve: u32,
}

/// The classes of a listener, the highest priority first. Among those of one priority the one with the lower limit is behind: requests of
/// several classes that one connection brings at once are of the last of them, and must not get round a limit so.
pub(super) fn classes<'p>(policy: &'p Policy, listener: &'p Listener, queue: Queue) -> Vec<Class<'p>> {
    let mut containers: Vec<_> = listener.class_paths().into_iter().filter_map(|path| policy.container(path)).collect();
    containers.sort_by_key(|container| {
        let limit_ppm = limit(policy, container);
        (Reverse(container.cpu.priority), limit_ppm != 0, Reverse(limit_ppm))
    });
    let mut priorities: Vec<_> = containers.iter().map(|container| container.cpu.priority).collect();
    priorities.dedup();
    let class = |container: &&'p fief_policy::Container| {
        let level = priorities.iter().position(|priority| *priority == container.cpu.priority).unwrap_or(0);
        let says = listener.class_queue(&container.path);
        let beside = containers.iter().filter(|other| other.cpu.priority == container.cpu.priority);
        Class {
            path: &container.path,
            level: level as u8,
            weight: weight(container, beside.copied()),
            floor: container.cpu.priority != 0,
            limit_ppm: limit(policy, container),
            latency: container.latency,
            length: says.length.unwrap_or(queue.length),
            wait_ns: says.wait_ns.unwrap_or(queue.wait_ns),
            // what a rule says of how its class waits holds as it says; where clients take turns, one waits for others' lines
            short_ns: match queue.adapts && !queue.fair && says == ClassQueue::default() {
                true => queue.short_wait_ns(),
                false => 0,
            },
            reserve: says.reserve.unwrap_or(0),
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
        let classes = classes(&policy, &policy.listeners[0], Queue::default());
        classes.iter().map(|class| (class.path.to_owned(), class.level, class.weight, class.floor)).collect()
    }

    #[test]
    fn of_one_priority_the_lower_limit_is_behind() {
        let limits = ["cpu.limit = \"10%\"", "cpu.limit = \"20%\"", ""];
        let classes =
            order(&format!("[container.a]\n{}\n[container.b]\n{}\n[container.c]\n{}", limits[0], limits[1], limits[2]));
        assert_eq!(classes.iter().map(|class| class.0.as_str()).collect::<Vec<_>>(), ["c", "b", "a"]);
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

    #[test]
    fn a_class_waits_as_its_rules_say_and_else_as_the_queue_does() {
        let mut policy = policy("[container.a]\n[container.b]\n[container.c]");
        let listener = &mut policy.listeners[0];
        listener.clients[0].queue.length = Some(7);
        listener.clients[1].queue.wait_ns = Some(8);
        listener.clients[2].queue.reserve = Some(9);
        let queue = Queue { length: 100, wait_ns: 1000, ..Queue::default() };
        let classes = classes(&policy, &policy.listeners[0], queue);
        let waits: Vec<_> = classes.iter().map(|class| (class.length, class.wait_ns, class.reserve)).collect();
        assert_eq!(waits, [(7, 1000, 0), (100, 8, 0), (100, 1000, 9)]);
        let short: Vec<_> = classes.iter().map(|class| class.short_ns).collect();
        assert_eq!(short, [0, 0, 0], "what a rule says holds as ever");
        policy.listeners[0].clients[2].queue.reserve = None;
        let classes = super::classes(&policy, &policy.listeners[0], queue);
        assert_eq!(classes[2].short_ns, 62);
        let classes = super::classes(&policy, &policy.listeners[0], Queue { fair: true, ..queue });
        assert_eq!(classes[2].short_ns, 0, "one client's line is not another's overload");
    }
}
