// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Limits, priorities, shares and weights, on one CPU whose clock is exact.

use fief_tests_order::{Given, Machine, limit, priority, share, weight};
use proptest::prelude::*;

const MS: u64 = 1_000_000;
const SECOND: u64 = 1000 * MS;
const SLICE: u64 = 4 * MS;
const ROOT: u32 = 0;

/// Percent of what was used while `length_ns` passed.
fn percents(machine: &mut Machine, ids: &[u32], length_ns: u64) -> Vec<f64> {
    let before: Vec<_> = ids.iter().map(|id| machine.used_ns(*id)).collect();
    machine.run(length_ns, SLICE);
    ids.iter()
        .zip(before)
        .map(|(id, before)| (machine.used_ns(*id) - before) as f64 * 100.0 / length_ns as f64)
        .collect()
}

/// Percent of what these used together while `other` came so many times and went: it was there for the first time, away for the second.
fn percents_beside(machine: &mut Machine, ids: &[u32], other: u32, times: usize, [there, away]: [u64; 2]) -> Vec<f64> {
    let before: Vec<_> = ids.iter().map(|id| machine.used_ns(*id)).collect();
    for _ in 0..times {
        machine.wait(other);
        machine.run(there, SLICE);
        machine.sleep(other);
        machine.run(away, SLICE);
    }
    let used: Vec<_> = ids.iter().zip(before).map(|(id, before)| (machine.used_ns(*id) - before) as f64).collect();
    let sum: f64 = used.iter().sum();
    used.iter().map(|used| used * 100.0 / sum).collect()
}

fn assert_near(found: &[f64], expected: &[f64], points: f64) {
    let near = found.iter().zip(expected).all(|(found, expected)| (found - expected).abs() <= points);
    assert!(near, "{found:?}, not {expected:?}");
}

fn busy(machine: &mut Machine, given: &[Given]) -> Vec<u32> {
    let ids: Vec<_> = given.iter().map(|given| machine.container(ROOT, *given)).collect();
    for id in &ids {
        machine.wait(*id);
        machine.wait(*id);
    }
    ids
}

#[test]
fn shares_are_what_they_say() {
    let mut machine = Machine::new();
    let ids = busy(&mut machine, &[share(16), share(32), share(48), share(4)]);
    let found = percents(&mut machine, &ids, 20 * SECOND);
    assert_near(&found, &[16.0, 32.0, 48.0, 4.0], 0.1);
}

/// All of them choose the same child until the first one is charged for it.
#[test]
fn shares_are_what_they_say_on_many_cpus() {
    for cpus in [2, 16, 64, 256] {
        let mut machine = Machine::new();
        let ids: Vec<_> = [share(10), share(90)].map(|given| machine.container(ROOT, given)).into();
        for _ in 0..cpus {
            for id in &ids {
                machine.wait(*id);
            }
        }
        machine.run_on(cpus, 20 * SECOND, SLICE);
        let whole = f64::from(cpus) * (20 * SECOND) as f64;
        let found: Vec<_> = ids.iter().map(|id| machine.used_ns(*id) as f64 * 100.0 / whole).collect();
        assert_near(&found, &[10.0, 90.0], 0.5);
    }
}

#[test]
fn each_second_is_divided_as_the_whole() {
    let mut machine = Machine::new();
    let ids = busy(&mut machine, &[share(16), share(32), share(48), share(4)]);
    for _ in 0..20 {
        let found = percents(&mut machine, &ids, SECOND);
        assert_near(&found, &[16.0, 32.0, 48.0, 4.0], 1.0);
    }
}

#[test]
fn weights_divide_what_shares_leave() {
    let mut machine = Machine::new();
    let ids = busy(&mut machine, &[weight(100), weight(200), weight(400)]);
    assert_near(&percents(&mut machine, &ids, 20 * SECOND), &[100.0 / 7.0, 200.0 / 7.0, 400.0 / 7.0], 0.1);
    let mut machine = {
        drop(machine);
        Machine::new()
    };
    let ids = busy(&mut machine, &[share(40), weight(100), weight(200)]);
    assert_near(&percents(&mut machine, &ids, 20 * SECOND), &[40.0, 20.0, 40.0], 0.1);
}

/// What a better one uses moves nobody's place among the worse ones: they stood at the edge of what may be behind, the lighter one further.
#[test]
fn beside_a_better_one_that_comes_and_goes_the_others_keep_their_parts() {
    let better = |given: Given| Given { priority: 200, ..given };
    let cases = [
        (weight(100), [weight(1000), weight(100)], [1000.0 / 11.0, 100.0 / 11.0]),
        (share(10), [share(60), share(10)], [600.0 / 7.0, 100.0 / 7.0]),
        (weight(100), [share(60), share(10)], [600.0 / 7.0, 100.0 / 7.0]),
    ];
    for (first, others, expected) in cases {
        let mut machine = Machine::new();
        let gold = machine.container(ROOT, better(first));
        let ids = busy(&mut machine, &others);
        let found = percents_beside(&mut machine, &ids, gold, 5000, [SLICE, SLICE]);
        assert_near(&found, &expected, 1.0);
    }
}

/// What children without a share have as one is of one priority too: a better one of them that was there for long, or was away for long,
/// and then comes for a moment again and again, moves nobody.
#[test]
fn shares_hold_beside_a_better_one_without_a_share_that_comes_for_moments() {
    for (gold_ms, alone_ms) in [(60_000, 0), (0, 600_000), (1000, 1000)] {
        let mut machine = Machine::new();
        let gold = machine.container(ROOT, Given { priority: 200, ..weight(100) });
        let ids = busy(&mut machine, &[share(60), weight(100)]);
        machine.wait(gold);
        machine.run(gold_ms * MS, SLICE);
        machine.sleep(gold);
        machine.run(alone_ms * MS, SLICE);
        let found = percents_beside(&mut machine, &ids, gold, 2000, [MS / 100, 8 * MS]);
        assert_near(&found, &[60.0, 40.0], 1.0);
    }
}

/// 1 and 200 have one place in a container. Who only receives takes it from nobody.
#[test]
fn shares_hold_beside_a_worse_one_that_only_receives() {
    let mut machine = Machine::new();
    let better = |given: Given| Given { priority: 200, ..given };
    let ids = busy(&mut machine, &[better(share(60)), better(weight(100)), priority(1)]);
    let before = ids.iter().map(|&id| machine.used_ns(id)).collect::<Vec<_>>();
    for _ in 0..3000 {
        machine.step(SLICE);
        machine.charge(ids[2], MS / 100);
    }
    let used: Vec<_> = ids.iter().zip(before).map(|(&id, before)| (machine.used_ns(id) - before) as f64).collect();
    assert_near(&[used[0] * 100.0 / (used[0] + used[1])], &[60.0], 1.0);
}

/// 180 and 100 have one place too. Each time the better one comes for a moment the other's is made anew, at the child with a share.
#[test]
fn shares_hold_beside_a_better_one_that_takes_their_place() {
    for (percent, away_ms) in [(60, 20), (60, 100), (30, 40), (10, 100)] {
        let mut machine = Machine::new();
        let gold = machine.container(ROOT, Given { priority: 180, ..weight(100) });
        let ids = busy(&mut machine, &[share(percent), weight(100)]);
        let found = percents_beside(&mut machine, &ids, gold, 2000, [MS / 100, away_ms * MS]);
        assert_near(&found, &[f64::from(percent), f64::from(100 - percent)], 3.0);
    }
}

#[test]
fn a_share_that_is_not_used_is_lent() {
    let mut machine = Machine::new();
    let lender = machine.container(ROOT, share(50));
    let ids = busy(&mut machine, &[share(20), share(30)]);
    assert_near(&percents(&mut machine, &ids, 10 * SECOND), &[40.0, 60.0], 0.2);
    machine.wait(lender);
    let all = [ids[0], ids[1], lender];
    assert_near(&percents(&mut machine, &all, 10 * SECOND), &[20.0, 30.0, 50.0], 0.2);
}

#[test]
fn shares_hold_at_two_levels_and_interior_threads_count_as_a_child() {
    let mut machine = Machine::new();
    let (g, h) = (machine.container(ROOT, share(50)), machine.container(ROOT, share(50)));
    let (x, y) = (machine.container(g, share(35)), machine.container(g, share(15)));
    let (p, q) = (machine.container(h, weight(100)), machine.container(h, weight(300)));
    let ids = [x, y, p, q];
    for id in ids {
        machine.wait(id);
    }
    assert_near(&percents(&mut machine, &ids, 20 * SECOND), &[35.0, 15.0, 12.5, 37.5], 0.1);
    machine.wait(h);
    let ids = [x, y, p, q, h];
    assert_near(&percents(&mut machine, &ids, 20 * SECOND), &[35.0, 15.0, 10.0, 30.0, 10.0], 0.1);
}

/// Each CPU is charged at its own tick, and what more than 100 periods would have to pay off is forgiven: crates/fief-control/src/least.rs.
#[test]
fn a_limit_holds_down_to_a_tick_of_each_cpu_in_a_hundred_periods() {
    for cpus in [1, 4, 32] {
        let percent = |threads: u32, limit_ppm: u32| {
            let mut machine = Machine::new();
            let id = machine.container(ROOT, Given { limit_ppm, ..Given::default() });
            for _ in 0..threads {
                machine.wait(id);
            }
            machine.run_on(cpus, 60 * SECOND, SLICE);
            machine.used_ns(id) as f64 * 100.0 / (f64::from(cpus) * (60 * SECOND) as f64)
        };
        let least = 2000;
        assert_near(&[percent(cpus, 2 * least), percent(cpus, least)], &[0.4, 0.2], 0.02);
        assert_near(&[percent(cpus, least / 2), percent(cpus, least / 20)], &[0.2, 0.2], 0.02);
        // of one CPU
        assert_near(&[percent(1, least / cpus)], &[0.2 / f64::from(cpus)], 0.02 / f64::from(cpus));
    }
}

#[test]
fn a_limit_holds_alone_and_under_load_and_the_others_have_the_rest() {
    let mut machine = Machine::new();
    let ids = busy(&mut machine, &[limit(10)]);
    assert_near(&percents(&mut machine, &ids, 10 * SECOND), &[10.0], 0.1);
    assert!(machine.idle_ns() > 8 * SECOND);
    drop(machine);
    let mut machine = Machine::new();
    let ids = busy(&mut machine, &[limit(30), weight(100)]);
    assert_near(&percents(&mut machine, &ids, 10 * SECOND), &[30.0, 70.0], 0.1);
    assert_eq!(machine.idle_ns(), 0);
}

#[test]
fn a_limit_holds_for_all_below() {
    let mut machine = Machine::new();
    let site = machine.container(ROOT, limit(20));
    let (a, b) = (machine.container(site, Given::default()), machine.container(site, limit(15)));
    for id in [a, b, site] {
        machine.wait(id);
    }
    let found = percents(&mut machine, &[a, b, site], 20 * SECOND);
    assert!((found.iter().sum::<f64>() - 20.0).abs() < 0.2, "{found:?}");
}

#[test]
fn receiving_counts_against_the_limit() {
    let mut machine = Machine::new();
    let ids = busy(&mut machine, &[limit(30), weight(100)]);
    let end = 10_000;
    for round in 0..end {
        machine.step(MS);
        if round % 5 == 0 {
            machine.charge(ids[0], MS);
        }
    }
    let all = machine.used_ns(ids[0]) + machine.used_ns(ids[1]);
    let found = machine.used_ns(ids[0]) as f64 * 100.0 / all as f64;
    assert!((found - 30.0).abs() < 0.5, "{found}");
    // a running thread is stopped by what is received meanwhile
    machine.charge(ids[0], SECOND);
    assert!(machine.is_held(ids[0]));
}

#[test]
fn a_higher_priority_goes_first_and_zero_has_what_nobody_wants() {
    let mut machine = Machine::new();
    let ids = busy(&mut machine, &[priority(0), priority(100), priority(200)]);
    assert_near(&percents(&mut machine, &ids, SECOND), &[0.0, 0.0, 100.0], 0.0);
    machine.sleep(ids[2]);
    machine.sleep(ids[2]);
    assert_near(&percents(&mut machine, &ids, SECOND), &[0.0, 100.0, 0.0], 0.0);
    machine.sleep(ids[1]);
    machine.sleep(ids[1]);
    assert_near(&percents(&mut machine, &ids, SECOND), &[100.0, 0.0, 0.0], 0.0);
}

#[test]
fn nobody_saves_time_up_by_sleeping() {
    let mut machine = Machine::new();
    let ids = busy(&mut machine, &[share(50), share(50)]);
    machine.sleep(ids[0]);
    machine.sleep(ids[0]);
    machine.run(100 * SECOND, SLICE);
    machine.wait(ids[0]);
    assert_near(&percents(&mut machine, &ids, SECOND), &[50.0, 50.0], 2.0);
}

#[test]
fn time_that_nobody_ordered_is_paid_back_within_seconds() {
    let mut machine = Machine::new();
    let ids = busy(&mut machine, &[share(1), share(99)]);
    machine.run(SECOND, SLICE);
    machine.charge(ids[0], 10 * SECOND);
    let before = machine.used_ns(ids[0]);
    machine.run(5 * SECOND, SLICE);
    assert!(machine.used_ns(ids[0]) > before);
}

#[test]
fn more_children_than_one_search_sees_have_all_their_turn() {
    let mut machine = Machine::new();
    let held: Vec<_> = (0..200).map(|_| machine.container(ROOT, limit(1))).collect();
    for id in &held {
        machine.wait(*id);
        // used up for long
        machine.charge(*id, SECOND);
    }
    let ids = busy(&mut machine, &vec![weight(100); 300]);
    machine.run(20 * SECOND, SLICE);
    let least = ids.iter().map(|id| machine.used_ns(*id)).min().expect("there are some");
    assert!(least >= 20 * SECOND / 600, "{least}");
}

#[test]
fn a_queue_serves_the_next_container_once_it_is_empty() {
    let mut machine = Machine::new();
    let (a, b) = (machine.container(ROOT, Given::default()), machine.container(ROOT, Given::default()));
    let of_a = machine.wait(a);
    assert_ne!(of_a, machine.wait(b));
    machine.sleep(a);
    machine.sleep(b);
    let c = machine.container(ROOT, Given::default());
    assert!(machine.wait(c) <= of_a + 1);
}

fn given() -> impl Strategy<Value = Given> {
    (0u32..20, 1u32..1000, 0u32..3).prop_map(|(percent, weight, level)| Given {
        share_ppm: percent * 10_000,
        limit_ppm: 0,
        weight,
        priority: level * 100,
    })
}

/// Nothing would ever be charged to a parent without children, so it would come first for ever.
#[test]
fn a_former_parent_of_what_waits_is_looked_at_no_more() {
    let mut machine = Machine::new();
    let parents: Vec<u32> = (0..200).map(|_| machine.container(0, Given::default())).collect();
    let (child, other) = (machine.container(parents[0], Given::default()), machine.container(0, Given::default()));
    for id in [child, child, child, other] {
        machine.wait(id);
    }
    for &parent in &parents[1..] {
        machine.move_to(child, parent);
        machine.step(SLICE);
        machine.wait(child);
        machine.step(SLICE);
        assert!(machine.looks() <= 3, "{} looks", machine.looks());
    }
    assert_eq!(machine.listed(), 4, "the root, the two, and the parent that it has");
}

/// The container above the one whose threads work is moved, and a thread of that one always waits.
#[test]
fn a_container_that_is_moved_below_a_limit_is_held_by_it() {
    let mut machine = Machine::new();
    let (shop, limited, hog) = (
        machine.container(0, Given::default()),
        machine.container(0, limit(10)),
        machine.container(0, Given::default()),
    );
    let inner = machine.container(shop, Given::default());
    for id in [inner, inner, inner, hog] {
        machine.wait(id);
    }
    machine.run(SECOND, SLICE);
    machine.move_to(shop, limited);
    let before = machine.used_ns(inner);
    machine.run(10 * SECOND, SLICE);
    let percent = (machine.used_ns(inner) - before) as f64 * 100.0 / (10 * SECOND) as f64;
    assert!((9.0..=10.5).contains(&percent), "{percent}");
}

proptest! {
    /// Whatever threads come and go, the CPU works while one waits, and never for a container without one.
    #[test]
    fn the_cpu_works_while_somebody_waits(
        given in proptest::collection::vec((given(), 0usize..6), 1..24),
        moves in proptest::collection::vec((0usize..24, any::<bool>()), 1..400),
    ) {
        let mut machine = Machine::new();
        let mut ids = vec![ROOT];
        for (given, parent) in &given {
            // a parent without a share has none to give
            let given = Given { share_ppm: if *parent == 0 { given.share_ppm / 24 } else { 0 }, ..*given };
            ids.push(machine.container(ids[parent % ids.len()], given));
        }
        let mut waiting = vec![0u32; ids.len()];
        for (at, comes) in moves {
            let at = at % ids.len();
            if comes {
                machine.wait(ids[at]);
                waiting[at] += 1;
            } else if waiting[at] > 0 {
                machine.sleep(ids[at]);
                waiting[at] -= 1;
            }
            let picked = machine.step(SLICE);
            let some = waiting.iter().any(|count| *count > 0);
            prop_assert_eq!(picked.is_some(), some);
            if let Some(id) = picked {
                let at = ids.iter().position(|own| *own == id).expect("one of ours");
                prop_assert!(waiting[at] > 0, "{} has no thread", id);
            }
        }
    }

    /// Shares of whatever size are held over a long time.
    #[test]
    fn any_shares_are_held(parts in proptest::collection::vec(1u32..20, 2..8)) {
        let mut machine = Machine::new();
        let sum: u32 = parts.iter().sum();
        let shares: Vec<_> = parts.iter().map(|part| Given { share_ppm: part * 1_000_000 / sum, ..Given::default() }).collect();
        let ids = busy(&mut machine, &shares);
        let found = percents(&mut machine, &ids, 30 * SECOND);
        let expected: Vec<_> = parts.iter().map(|part| f64::from(*part) * 100.0 / f64::from(sum)).collect();
        for (found, expected) in found.iter().zip(&expected) {
            prop_assert!((found - expected).abs() < 0.1, "{found} of {expected}");
        }
    }

    /// However containers are moved while their threads wait: who waits has its turn, and nothing is left when all sleep.
    #[test]
    fn moved_containers_are_neither_lost_nor_left(
        moves in proptest::collection::vec((0..6usize, 0..6usize, 0..4u8), 1..200),
    ) {
        let mut machine = Machine::new();
        let outer: Vec<u32> = (0..3).map(|_| machine.container(0, Given::default())).collect();
        let inner: Vec<u32> = (0..3).map(|at| machine.container(outer[at], Given::default())).collect();
        let leaves: Vec<u32> = (0..6).map(|at| machine.container(inner[at % 3], Given::default())).collect();
        let mut waits = [0u32; 6];
        for (at, to, what) in moves {
            match what {
                0 => machine.move_to(leaves[at], inner[to % 3]),
                1 => machine.move_to(inner[at % 3], outer[to % 3]),
                2 => {
                    machine.wait(leaves[at]);
                    waits[at] += 1;
                }
                _ if waits[at] > 0 => {
                    machine.sleep(leaves[at]);
                    waits[at] -= 1;
                }
                _ => {}
            }
            prop_assert_eq!(machine.step(SLICE).is_some(), waits.iter().any(|&count| count > 0));
        }
        let before: Vec<u64> = leaves.iter().map(|&leaf| machine.used_ns(leaf)).collect();
        machine.run(SECOND, SLICE);
        for at in 0..6 {
            prop_assert_eq!(machine.used_ns(leaves[at]) > before[at], waits[at] > 0);
            (0..waits[at]).for_each(|_| machine.sleep(leaves[at]));
        }
        prop_assert_eq!((machine.step(SLICE), machine.listed()), (None, 0));
    }
}

/// However slow its tries are, as those of an emulated CPU.
#[test]
fn a_cpu_that_was_stopped_with_the_lock_is_waited_for_by_the_clock() {
    for try_ns in [4, 20, 100] {
        let mut machine = Machine::new();
        machine.stopped(try_ns);
        let waited = machine.waits_for_the_lock_ns();
        assert!((MS..=5 * MS).contains(&waited), "{waited} ns, {try_ns} a try");
    }
}
