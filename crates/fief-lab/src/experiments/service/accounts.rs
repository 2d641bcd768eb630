// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Whether what was charged before a policy changed is charged after it. Pure.
//!
//! A container that both policies have is the same one under its new path, and has at least what it had. What one had that has ended
//! is in the account of those that have. Tenants without clients have no new work, so what is lost of theirs is not hidden by it.

use crate::command::Used;
use std::collections::BTreeMap;

fn cpu_ns(one: &Used) -> u64 {
    one.thread_ns + one.receive_ns
}

/// Where the time of containers is that have ended.
const RETIRED: &str = "retired";

/// Time of threads and of receive work that is in no account any more, ns. `moved`: where each container that stays is now.
pub fn lost_ns(before: &[Used], after: &[Used], moved: &BTreeMap<String, String>) -> u64 {
    let same = |one: &Used| after.iter().find(|other| (other.id, other.generation) == (one.id, one.generation));
    let (mut lost, mut ended) = (0, 0);
    for one in before {
        let path = moved.get(&one.container);
        match same(one) {
            Some(now) if path.is_none_or(|path| *path == now.container) => {
                lost += cpu_ns(one).saturating_sub(cpu_ns(now));
            }
            None if path.is_none() => ended += cpu_ns(one),
            // it is somewhere else, or ended
            _ => lost += cpu_ns(one),
        }
    }
    let retired = |all: &[Used]| all.iter().find(|one| one.container == RETIRED).map_or(0, cpu_ns);
    let taken = retired(after).saturating_sub(retired(before));
    lost + u64::saturating_sub(ended, taken)
}

/// Time that all accounts together got between both looks beyond what so many CPUs had, as a part of that; below 0 where they got less.
/// What is charged twice is found so, which no account by itself tells. Idle and stolen time are accounts too.
pub fn beyond_clock(before: &[Used], after: &[Used], cpus: usize) -> f64 {
    let sum = |all: &[Used]| all.iter().map(cpu_ns).sum::<u64>() as f64;
    let at = |all: &[Used]| all.first().map_or(0, |one| one.taken_ns) as f64;
    let clock = cpus as f64 * (at(after) - at(before));
    (sum(after) - sum(before)) / clock - 1.0
}

#[cfg(test)]
mod tests {
    use super::*;

    fn used(id: u32, container: &str, thread_ns: u64) -> Used {
        Used {
            taken_ns: 0,
            container: container.to_owned(),
            id,
            generation: 1,
            thread_ns,
            receive_ns: 0,
            packets_in: 0,
            accepts: 0,
        }
    }

    fn lost(before: &[Used], after: &[Used]) -> u64 {
        lost_ns(before, after, &BTreeMap::from([("shop".to_owned(), "store".to_owned())]))
    }

    #[test]
    fn a_renamed_container_has_what_it_had() {
        let before = [used(9, "shop", 100), used(1, "root", 7)];
        assert_eq!(lost(&before, &[used(9, "store", 100), used(1, "root", 8)]), 0);
        let received = |ns| [Used { receive_ns: ns, ..used(9, "store", 100) }, used(1, "root", 7)];
        assert_eq!(lost_ns(&received(50), &received(20), &BTreeMap::new()), 30, "of packets too");
        assert_eq!(lost(&before, &[used(9, "store", 130), used(1, "root", 7)]), 0);
        assert_eq!(lost(&before, &[used(9, "store", 60), used(1, "root", 5)]), 42);
        assert_eq!(lost(&before, &[used(9, "shop", 100), used(1, "root", 7)]), 100, "it is not where it should be");
        assert_eq!(lost(&before, &[used(10, "store", 500), used(1, "root", 7)]), 100, "another one of that name");
        let anew = Used { generation: 2, ..used(9, "store", 500) };
        assert_eq!(lost(&before, &[anew, used(1, "root", 7)]), 100);
    }

    #[test]
    fn what_one_had_that_ended_is_kept_with_those_that_have() {
        let before = [used(12, "past/t1", 50), used(3, RETIRED, 1000)];
        assert_eq!(lost(&before, &[used(3, RETIRED, 1050)]), 0);
        assert_eq!(lost(&before, &[used(3, RETIRED, 1030)]), 20);
        assert_eq!(lost(&before, &[used(12, "past/t1", 50), used(3, RETIRED, 1000)]), 0, "somebody holds it");
    }

    #[test]
    fn time_that_is_charged_twice_is_more_than_the_cpus_had() {
        let at = |taken_ns, all: [u64; 2]| {
            let [idle, shop] = all;
            let one = |id, name, ns| Used { taken_ns, ..used(id, name, ns) };
            [one(0, "idle", idle), one(9, "shop", shop)]
        };
        let before = at(1000, [500, 100]);
        assert_eq!(beyond_clock(&before, &at(2000, [1500, 1100]), 2), 0.0);
        assert!((beyond_clock(&before, &at(2000, [1500, 1120]), 2) - 0.01).abs() < 1e-9);
        assert!((beyond_clock(&before, &at(2000, [1480, 1100]), 2) + 0.01).abs() < 1e-9);
    }
}
