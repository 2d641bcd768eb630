// SPDX-License-Identifier: Apache-2.0 OR MIT
//! No stream of clients hides one that costs more, and what is said of each holds.

use fief_tests_costs::Costs;
use proptest::prelude::*;

/// What a step of halving takes (`COST_HALVES`).
const STEP_NS: u64 = 1 << 36;

fn holds(costs: &Costs) -> Result<(), TestCaseError> {
    prop_assert_eq!(costs.all(), costs.truth.values().sum::<u64>(), "nothing is lost or told twice");
    for (&client, &really) in &costs.truth {
        let (shown, forgotten) = (costs.shown(client).unwrap_or(0), costs.forgotten(client));
        prop_assert!(shown <= really, "client {}: {} shown of {}", client, shown, really);
        prop_assert!(really <= shown + forgotten, "client {}: {} > {} + {}", client, really, shown, forgotten);
    }
    Ok(())
}

proptest! {
    #[test]
    fn what_is_shown_and_what_is_forgotten_bound_the_truth(
        stream in proptest::collection::vec((1..200_u64, 1..5_000_000_u64, any::<bool>()), 0..2000),
        sets in 1..8_u32,
    ) {
        let mut costs = Costs::new(sets);
        for (client, ns, pause) in stream {
            costs.now_ns += if pause { STEP_NS / 3 } else { 0 };
            costs.add(client, ns);
        }
        holds(&costs)?;
    }

    /// Within a step nothing is halved, so a sixth is a sixth.
    #[test]
    fn one_that_costs_more_than_a_sixth_keeps_its_place_from_its_first_moment_on(
        stream in proptest::collection::vec((100..1_000_000_u64, 1..1000_u64), 0..4000),
        portion in 2..6_u64,
    ) {
        let mut costs = Costs::new(1);
        let mut others = 0;
        costs.add(1, 1_000);
        let mut own = 1_000;
        for (client, ns) in stream {
            // before the next stranger comes it has more than a sixth of all, whoever came until then
            while own * 6 <= others + own + ns {
                costs.add(1, ns * portion);
                own += ns * portion;
            }
            costs.add(client, ns);
            others += ns;
            prop_assert_eq!(costs.shown(1), Some(own));
        }
    }
}

/// A million invented sources, each as dear as a connection request; the costly one worked before, and never again.
#[test]
fn a_flood_of_new_sources_does_not_push_out_the_costliest() {
    for seed in 0..4 {
        let mut costs = Costs::new(1024);
        let costly = u64::MAX - seed;
        (0..100).for_each(|_| costs.add(costly, 1_000_000));
        for source in 0..1_000_000_u64 {
            costs.add(1 + source + (seed << 32), 1_500);
        }
        assert_eq!(costs.shown(costly), Some(100_000_000), "{seed}");
        let most_of_a_source = costs.forgotten(costly);
        assert!(
            most_of_a_source < 4 * 1_000_000 * 1_500 / 1024,
            "each set forgets its part of the flood: {most_of_a_source}"
        );
    }
}

/// It begins in the midst of a flood, and is shown whole but for what it cost before its first million sources more.
#[test]
fn one_that_comes_in_the_midst_of_a_flood_is_shown() {
    let mut costs = Costs::new(1024);
    let costly = 77;
    let mut source = 1_000;
    let mut flood = |costs: &mut Costs, count: u64| {
        (0..count).for_each(|_| {
            source += 1;
            costs.add(source, 1_500);
        });
    };
    flood(&mut costs, 1_000_000);
    for _ in 0..100 {
        costs.add(costly, 1_000_000);
        flood(&mut costs, 10_000);
    }
    assert_eq!(costs.shown(costly), Some(100_000_000), "60 % of the CPU was the flood's");
}

/// Each charge of it is as small as a stranger's, and all others in its set have had more.
#[test]
fn one_that_costs_much_by_little_and_little_is_shown() {
    let mut costs = Costs::new(1);
    (1..=8).for_each(|other| costs.add(other, 1_000_000));
    let mut source = 1_000;
    for _ in 0..100_000 {
        costs.add(99, 2_000);
        source += 1;
        costs.add(source, 1_500);
    }
    assert_eq!(costs.shown(99), Some(200_000_000));
}

/// What was costly an hour ago, each client by another amount, does not keep out what is costly now.
#[test]
fn the_past_makes_room_for_the_present() {
    let mut costs = Costs::new(1);
    (1..=8).for_each(|old| costs.add(old, old * 10_000_000_000));
    costs.now_ns += 20 * STEP_NS;
    let mut source = 1_000;
    for _ in 0..1_000 {
        costs.add(99, 1_000_000);
        (0..10).for_each(|_| {
            source += 1;
            costs.add(source, 10_000);
        });
    }
    assert_eq!(costs.shown(99), Some(1_000_000_000));
    assert_eq!((1..=8).filter(|&old| costs.shown(old).is_some()).count(), 2, "beside it those that stay in all");
}

/// It is away for hours, and a flood comes in its absence.
#[test]
fn the_two_that_cost_most_in_all_stay_however_long_they_are_away() {
    let mut costs = Costs::new(1);
    costs.add(1, 500_000_000);
    costs.add(2, 400_000_000);
    costs.now_ns += 100 * STEP_NS;
    (10..100_000).for_each(|source| costs.add(source, 1_500));
    assert_eq!((costs.shown(1), costs.shown(2)), (Some(500_000_000), Some(400_000_000)));
}

/// CPUs' clocks differ by a little, and tell a set in any order.
#[test]
fn a_cpu_that_is_a_little_behind_drives_nobody_out() {
    let mut costs = Costs::new(1);
    for client in 1..=8 {
        costs.now_ns = 2 * STEP_NS + 1000;
        costs.add(client, client * 1_000_000_000);
    }
    for stranger in 100..200 {
        costs.now_ns = 2 * STEP_NS - 5000;
        costs.add(stranger, 1500);
    }
    for client in 2..=8 {
        assert_eq!(costs.shown(client), Some(client * 1_000_000_000));
    }
}
