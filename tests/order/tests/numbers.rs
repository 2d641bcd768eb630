// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Who has a queue of its own where there are too few, in whose line the others wait, and whom a thread wakes that cannot leave its CPU.

use fief_tests_order::{Given, Kernel, Machine, Requests, USERS, Wait, is_stuck, limit, priority, share};

const SECOND: u64 = 1_000_000_000;
const MS: u64 = 1_000_000;
/// In which a limit holds.
const PERIOD: u64 = 20 * MS;
const SLICE: u64 = 4_000_000;
const ROOT: u32 = 0;
/// More than one party gets queues for.
const CROWD: usize = 2500;

fn plain(machine: &mut Machine, parent: u32) -> u32 {
    machine.container(parent, Given::default())
}

fn named(machine: &mut Machine, parent: u32) -> u32 {
    let id = plain(machine, parent);
    machine.name(id);
    id
}

fn user(machine: &mut Machine) -> u32 {
    let id = plain(machine, USERS);
    machine.give_to_user(id);
    id
}

/// Containers of an application, each with a thread that waits, and in whose line each does.
fn crowd(machine: &mut Machine, parent: u32) -> Vec<(u32, u32)> {
    let ids: Vec<u32> = (0..CROWD).map(|_| plain(machine, parent)).collect();
    ids.into_iter().map(|id| (id, machine.line(id))).collect()
}

/// Those that wait in their own line; all others do in `above`'s.
fn alone(crowd: &[(u32, u32)], above: u32) -> usize {
    assert!(crowd.iter().all(|(id, line)| line == id || *line == above), "{crowd:?}");
    crowd.iter().filter(|(id, line)| line == id).count()
}

#[test]
fn a_user_with_very_many_containers_leaves_queues_to_all_others() {
    let mut machine = Machine::new();
    let (first, second, shop) = (user(&mut machine), user(&mut machine), named(&mut machine, ROOT));
    let crowd = crowd(&mut machine, first);
    let had = alone(&crowd, first);
    assert!((1000..CROWD).contains(&had), "{had}");
    for parent in [second, shop, ROOT] {
        for _ in 0..100 {
            let id = plain(&mut machine, parent);
            assert_eq!(machine.line(id), id, "of {parent}");
        }
    }
    for _ in 0..900 {
        let id = named(&mut machine, shop);
        assert_eq!(machine.line(id), id);
    }
}

/// Containers of an application that wait, until one gets no queue of its own: how many had one.
fn greedy(machine: &mut Machine, parent: u32) -> usize {
    let mut had = 0;
    loop {
        let id = plain(machine, parent);
        if machine.line(id) != id {
            return had;
        }
        had += 1;
    }
}

#[test]
fn one_party_leaves_others_as_many_as_it_has() {
    let mut machine = Machine::new();
    let (first, second) = (user(&mut machine), user(&mut machine));
    let (had, left) = (greedy(&mut machine, first), greedy(&mut machine, second));
    assert!(left * 2 + 2 >= had, "{had}, then {left}");
    assert!(had > 1000, "{had}");
}

#[test]
fn who_comes_after_many_that_take_all_they_can_finds_some() {
    let mut machine = Machine::new();
    let early = user(&mut machine);
    let of_early: Vec<u32> = (0..8).map(|_| plain(&mut machine, early)).collect();
    of_early.iter().for_each(|&id| assert_eq!(machine.line(id), id));
    let mut had = Vec::new();
    for (others, found, kept) in [(6, 32, 8), (12, 16, 8), (50, 1, 1)] {
        while had.len() < others {
            let one = user(&mut machine);
            had.push(greedy(&mut machine, one));
        }
        let late = user(&mut machine);
        let ids: Vec<u32> = (0..found).map(|_| plain(&mut machine, late)).collect();
        ids.iter().for_each(|&id| assert_eq!(machine.line(id), id, "after {had:?}"));
        ids.iter().for_each(|&id| machine.sleep(id));
        // and who has a few has them again
        of_early.iter().for_each(|&id| machine.sleep(id));
        of_early[..kept].iter().for_each(|&id| assert_eq!(machine.line(id), id, "after {had:?}"));
    }
}

#[test]
fn what_the_operator_names_below_one_container_is_a_party_each() {
    let mut machine = Machine::new();
    let tenants = named(&mut machine, ROOT);
    let (alice, bob) = (named(&mut machine, tenants), named(&mut machine, tenants));
    let crowd = crowd(&mut machine, alice);
    assert!(alone(&crowd, alice) < CROWD);
    for _ in 0..500 {
        let id = plain(&mut machine, bob);
        assert_eq!(machine.line(id), id);
    }
}

#[test]
fn no_turn_is_lent_of_a_container_that_finds_no_queue() {
    let mut machine = Machine::new();
    let first = user(&mut machine);
    let [gold, bronze] = [9, 1].map(|of| machine.container(first, priority(of)));
    Requests::new(&machine, &[gold, bronze]).line(0, true);
    let turn = |machine: &Machine| Requests::new(machine, &[]).lend(0, bronze);
    assert_eq!(turn(&machine), gold);
    crowd(&mut machine, first);
    assert_eq!(turn(&machine), bronze);
}

/// A tenth of a CPU, of which no thread finds a queue.
fn climbed() -> (Machine, u32, u32) {
    let mut machine = Machine::new();
    let first = user(&mut machine);
    crowd(&mut machine, first);
    let limited = machine.container(first, limit(10));
    let inner = plain(&mut machine, limited);
    assert_eq!(machine.begin(0, inner, inner).line, first);
    (machine, first, inner)
}

#[test]
fn a_limit_holds_below_the_line_where_a_thread_waits() {
    // of 2 ms in a period; no more than 100 periods of debt are paid off
    for (worked, periods) in [(MS, None), (2 * MS, Some(1)), (5 * MS, Some(2)), (60 * SECOND, Some(101))] {
        let (mut machine, first, inner) = climbed();
        assert_eq!(machine.held_until(0, SECOND), None, "it begins to count");
        machine.end(0);
        machine.work(0, worked);
        assert_eq!(machine.gives_back(0), periods.is_some(), "{worked}");
        let begin = |machine: &mut Machine, now: u64| {
            assert_eq!(machine.begin(0, inner, inner).line, first);
            (machine.held_until(0, now), machine.waits(0))
        };
        let until = periods.map(|periods| SECOND + periods * PERIOD);
        // its limit may be another one by then
        let asked = until.map(|until| until.min(SECOND + MS + 5 * PERIOD));
        assert_eq!(begin(&mut machine, SECOND + MS), (asked, until.is_none()), "{worked}");
        machine.end(0);
        assert_eq!(begin(&mut machine, until.unwrap_or(SECOND + MS)), (None, true), "{worked}");
        assert!(!machine.gives_back(0));
        machine.end(0);
    }
}

#[test]
fn queues_that_are_given_back_are_had_again() {
    let mut machine = Machine::new();
    let first = user(&mut machine);
    let crowd = crowd(&mut machine, first);
    let had = alone(&crowd, first);
    for _ in 0..2 {
        crowd.iter().for_each(|(_, line)| machine.sleep(*line));
        let again: Vec<_> = crowd.iter().map(|(id, _)| (*id, machine.line(*id))).collect();
        assert_eq!(alone(&again, first), had);
    }
}

#[test]
fn many_users_take_no_queue_from_what_the_policy_names() {
    let mut machine = Machine::new();
    let users: Vec<u32> = (0..3100).map(|_| user(&mut machine)).collect();
    let lines: Vec<_> = users.into_iter().map(|id| (id, machine.line(id))).collect();
    assert!(alone(&lines, USERS) < lines.len());
    for _ in 0..900 {
        let id = named(&mut machine, ROOT);
        assert_eq!(machine.line(id), id);
    }
}

#[test]
fn who_has_no_queue_waits_in_the_nearest_line_above() {
    let mut machine = Machine::new();
    let user = user(&mut machine);
    let inner = plain(&mut machine, user);
    machine.wait(inner);
    let crowd = crowd(&mut machine, inner);
    assert!(alone(&crowd, inner) < CROWD);
}

/// The first ones of the policy have their part also where a user took all that it could before.
#[test]
fn shares_are_held_beside_a_user_with_very_many_containers() {
    let mut machine = Machine::new();
    let first = user(&mut machine);
    let crowd = crowd(&mut machine, first);
    assert!(alone(&crowd, first) < CROWD);
    let shop = machine.container(ROOT, share(60));
    machine.name(shop);
    machine.wait(shop);
    machine.run(10 * SECOND, SLICE);
    let percent = machine.used_ns(shop) as f64 * 100.0 / (10 * SECOND) as f64;
    assert!((59.0..=61.0).contains(&percent), "{percent}");
}

#[test]
fn a_thread_without_a_queue_is_charged_where_it_waits() {
    let mut machine = Machine::new();
    let first = user(&mut machine);
    let (early, shop) = (plain(&mut machine, first), named(&mut machine, ROOT));
    assert_eq!(machine.begin(0, early, early), Wait { line: early, charged: early, foreign: false });
    crowd(&mut machine, first);
    let late = plain(&mut machine, first);
    assert_eq!(machine.unqueued(), 0, "no thread as yet");
    assert_eq!(machine.begin(1, late, late), Wait { line: first, charged: first, foreign: false });
    assert_eq!(machine.unqueued(), 1);
    // the part of another one: with its queue, and without
    assert_eq!(machine.begin(2, late, shop), Wait { line: shop, charged: shop, foreign: true });
    assert_eq!(machine.begin(3, early, late), Wait { line: early, charged: early, foreign: false });
    assert_eq!(machine.unqueued(), 2);
    (0..4).for_each(|thread| machine.end(thread));
}

/// The program that asks is one of those that keep a thread where it runs, but for kernels whose programs keep it by other means.
#[test]
fn a_thread_that_runs_with_migration_off_is_stuck() {
    let mut machine = Machine::new();
    for (minor, preempt_rcu, least) in [(12, true, 2), (17, false, 2), (18, true, 2), (18, false, 1), (19, false, 1)] {
        let on = Kernel { minor, preempt_rcu };
        for counts in 0..3 {
            assert_eq!(is_stuck(&mut machine, on, counts, true), counts >= least, "{on:?}, {counts}");
            assert!(!is_stuck(&mut machine, on, counts, false), "the mask of one that does not run is narrow");
        }
    }
}
