// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Which class of a queue is served next, by CPU time, weight and priority.

use fief_tests_order::{Class, Classes};
use proptest::prelude::*;

const MS: u64 = 1_000_000;
const SECOND: u64 = 1000 * MS;
/// FIEF_QUEUE_PASSED
const PASSED: u64 = 31;

fn class(level: u32, weight: u32, cost_ms: u64) -> Class {
    Class { level, weight, floor: true, cost_ns: cost_ms * MS }
}

fn assert_near(found: &[f64], expected: &[f64], points: f64) {
    let near = found.iter().zip(expected).all(|(found, expected)| (found - expected).abs() <= points);
    assert!(near, "{found:?}, not {expected:?}");
}

/// However much dearer the requests of one class are than those of the other.
#[test]
fn classes_of_one_priority_have_equal_time() {
    for dear in [1, 4, 100, 500] {
        let mut classes = Classes::new(&[class(0, 100, dear), class(0, 100, 1)]);
        assert_near(&classes.run(100 * SECOND), &[50.0, 50.0], 0.5);
    }
}

/// A line of thousands that is too late all at once is refused a little at a time.
#[test]
fn refusals_follow_each_other_a_few_in_a_millisecond() {
    let mut classes = Classes::new(&[class(0, 100, 1)]);
    let mut follow =
        |from: u64| (from..from + 50 * MS).step_by(10_000).filter(|now| classes.refusal_follows(*now)).count();
    for from in [SECOND, 5 * SECOND] {
        let found = follow(from);
        assert!((350..=540).contains(&found), "{found} in 50 ms, after a pause");
    }
}

#[test]
fn a_weight_of_100_to_1_is_held() {
    let mut classes = Classes::new(&[class(0, 10_000, 1), class(0, 100, 1)]);
    assert_near(&classes.run(100 * SECOND), &[100.0 * 100.0 / 101.0, 100.0 / 101.0], 0.1);
}

#[test]
fn a_worse_level_has_one_turn_of_32_and_divides_it_by_time() {
    let mut classes = Classes::new(&[class(0, 100, 1), class(1, 100, 1), class(1, 300, 4)]);
    let found = classes.run(100 * SECOND);
    let worse = classes.served()[1] + classes.served()[2];
    assert_eq!(classes.served()[0] / worse, PASSED);
    assert_near(&[found[1] / (found[1] + found[2]) * 100.0], &[25.0], 0.5);
}

#[test]
fn each_of_three_levels_has_its_floor_and_priority_0_has_none() {
    let none = Class { floor: false, ..class(2, 100, 1) };
    let mut classes = Classes::new(&[class(0, 100, 1), class(1, 100, 1), none]);
    classes.run(100 * SECOND);
    assert_eq!(classes.served()[2], 0);
    assert!(classes.served()[1] > 0);
    classes.wait(0, false);
    classes.wait(1, false);
    assert_eq!(classes.serve(), Some(2));
    drop(classes);
    let mut classes = Classes::new(&[class(0, 100, 1), class(1, 100, 1), class(2, 100, 1)]);
    classes.run(100 * SECOND);
    assert!(classes.served().iter().all(|&served| served > 1000), "{:?}", classes.served());
}

#[test]
fn one_that_has_used_up_its_limit_is_passed_over_and_saves_nothing_up() {
    let mut classes = Classes::new(&[class(0, 100, 1), class(0, 100, 1)]);
    classes.run(SECOND);
    classes.hold(0, 10 * SECOND);
    assert_near(&classes.run(10 * SECOND - MS), &[0.0, 100.0], 0.1);
    assert_near(&classes.run(SECOND), &[50.0, 50.0], 0.5);
}

/// However often it was passed over, and although nobody else waits.
#[test]
fn one_that_has_all_places_which_a_latency_leaves_it_waits() {
    let mut classes = Classes::new(&[class(0, 100, 1), class(1, 100, 1), class(2, 100, 1)]);
    classes.promise(0, 2, 2);
    (0..10 * PASSED).for_each(|_| assert_eq!(classes.serve(), Some(0)));
    classes.wait(0, false);
    assert_eq!(classes.serve(), None);
    classes.promise(0, 2, 1);
    assert_eq!(classes.serve(), Some(1));
    // the second level is not below what it is promised itself
    classes.promise(1, 1, 1);
    classes.wait(1, false);
    assert_eq!(classes.serve(), None);
    classes.wait(1, true);
    assert_eq!(classes.serve(), Some(1));
    classes.wait(1, false);
    classes.open();
    assert_eq!(classes.serve(), Some(2));
}

/// Nor is the first one's time after hours in which it had the server to itself.
#[test]
fn what_a_class_had_while_nobody_waited_is_not_owed() {
    let mut classes = Classes::new(&[class(0, 100, 1), class(0, 100, 1)]);
    (0..2).for_each(|class| classes.wait(class, false));
    (0..1000).for_each(|_| classes.enter(0, false));
    (0..2).for_each(|class| classes.wait(class, true));
    assert_near(&classes.run(SECOND), &[50.0, 50.0], 0.5);
}

/// A hundred that all went to the server at once were charged after the last of them began.
#[test]
fn what_a_class_had_before_the_server_was_idle_is_not_owed() {
    let mut classes = Classes::new(&[class(0, 100, 1), class(0, 100, 1)]);
    (0..2).for_each(|class| classes.wait(class, false));
    classes.turn(0, 100 * MS, 0);
    classes.enter(1, true);
    (0..2).for_each(|class| classes.wait(class, true));
    assert_near(&classes.run(SECOND), &[50.0, 50.0], 0.5);
}

proptest! {
    /// What only looks at turns comes to the same.
    #[test]
    fn the_short_way_to_the_next_class_finds_the_same(
        all in proptest::collection::vec((0..1u64 << 50, any::<bool>()), 1..=32),
        least in 0..1u64 << 50,
        spread in 0..48u32,
    ) {
        let mut classes = Classes::new(&vec![class(0, 100, 1); all.len()]);
        for (at, &(turn, waits)) in all.iter().enumerate() {
            classes.wait(at, waits);
            classes.turn(at, least + (turn >> (50 - spread)), least);
        }
        let [short, long] = classes.next();
        prop_assert_eq!(short, long);
        prop_assert_eq!(short.is_some(), all.iter().any(|&(_, waits)| waits));
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]

    /// Whatever requests cost, classes of one priority have time by their weights, also below a better level that always waits.
    #[test]
    fn time_is_divided_by_weights(
        all in proptest::collection::vec((50..1000u32, 1..200u64), 2..6),
        is_below in any::<bool>(),
    ) {
        let first = u32::from(is_below);
        let mut given: Vec<Class> = all.iter().map(|&(weight, cost)| class(first, weight, cost)).collect();
        if is_below {
            given.insert(0, class(0, 100, 4));
        }
        let mut classes = if is_below { Classes::new(&given) } else { Classes::flat(&given) };
        let found = classes.run(300 * SECOND);
        let (own, sum) = (&found[first as usize..], found[first as usize..].iter().sum::<f64>());
        let weights: u32 = all.iter().map(|&(weight, _)| weight).sum();
        for (part, &(weight, _)) in own.iter().zip(&all) {
            let (found, expected) = (part * 100.0 / sum, f64::from(weight) * 100.0 / f64::from(weights));
            prop_assert!((found - expected).abs() <= 6.0, "{own:?} of {all:?}");
        }
    }
}
