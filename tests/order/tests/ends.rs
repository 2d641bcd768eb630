// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Where the usage of containers goes that end in any order.

use fief_tests_order::core::Core;

const ROOT: u32 = 0;
const RETIRED: u32 = 5;
/// Containers, each below the one before.
const LEVELS: usize = 4;

/// All orders of these.
fn orders(of: &[usize]) -> Vec<Vec<usize>> {
    if of.is_empty() {
        return vec![Vec::new()];
    }
    let with_first = |&first: &usize| {
        let others: Vec<usize> = of.iter().copied().filter(|&other| other != first).collect();
        orders(&others).into_iter().map(move |others| [vec![first], others].concat())
    };
    of.iter().flat_map(with_first).collect()
}

/// The first that has not ended, from this one on upwards; `None`: it has ended, or one between, and passes nothing up.
fn heir(mut level: usize, ended: &[usize], passes_up: [bool; LEVELS]) -> Option<usize> {
    while ended.contains(&level) {
        if !passes_up[level] {
            return None;
        }
        level = level.checked_sub(1)?;
    }
    Some(level)
}

#[test]
fn usage_stops_at_a_container_that_passes_nothing_up_whichever_ended_first() {
    for bits in 0..1_u32 << LEVELS {
        let passes_up: [bool; LEVELS] = std::array::from_fn(|level| bits & 1 << level != 0);
        for order in orders(&[0, 1, 2, 3]) {
            let mut core = Core::new();
            let mut chain: Vec<u32> = Vec::new();
            for (level, up) in passes_up.into_iter().enumerate() {
                let id = core.create(chain.last().copied().unwrap_or(ROOT)).unwrap();
                core.pass_up(id, up);
                core.uses(id, 1 << (8 * level));
                chain.push(id);
            }
            for count in 1..=LEVELS {
                let ended = &order[..count];
                core.close(chain[order[count - 1]]);
                // the last is what `retired` has
                let mut expected = [0_u64; LEVELS + 1];
                for level in 0..LEVELS {
                    expected[heir(level, ended, passes_up).unwrap_or(LEVELS)] += 1 << (8 * level);
                }
                let used: Vec<u64> = chain.iter().chain([&RETIRED]).map(|&id| core.used(id)).collect();
                assert_eq!(used, expected, "ended: {ended:?}, which pass up: {passes_up:?}");
            }
        }
    }
}

/// A packet was on its way, and is known to a CPU's cache until another container needs that line. By then others have the slots of both.
#[test]
fn what_a_container_uses_after_its_end_is_nobodys_who_came_since() {
    let mut core = Core::new();
    let parent = core.create(ROOT).unwrap();
    let child = core.create(parent).unwrap();
    core.pass_up(child, true);
    let below = core.create(child).unwrap();
    core.close(child);
    core.uses(child, 100);
    core.close(below);
    core.close(parent);
    let others: Vec<u32> = std::iter::from_fn(|| core.create(ROOT).ok()).collect();
    assert!(others.contains(&parent) && others.contains(&child), "{others:?}");
    others.iter().for_each(|&id| core.uses(id, 1));
    assert!(others.iter().all(|&id| core.used(id) == 1), "{}, {}", core.used(parent), core.used(child));
    assert_eq!(core.used(RETIRED), 100);
}
