// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Whose turn a thread has while a request of a better class waits for it.

use fief_tests_order::{Machine, Requests, limit, priority, share, weight};

const MS: u64 = 1_000_000;
const GOLD: u32 = 0;
const BRONZE: u32 = 1;

/// Gold, bronze and a hog in between.
fn priorities() -> (Machine, [u32; 3]) {
    let mut machine = Machine::new();
    let shop = machine.container(0, share(50));
    let all = [9, 1, 5].map(|of| machine.container(shop, priority(of)));
    (machine, all)
}

#[test]
fn a_request_in_line_lends_its_turn_to_who_serves_it() {
    let (machine, [gold, bronze, hog]) = priorities();
    let requests = Requests::new(&machine, &[gold, bronze]);
    assert_eq!(requests.lend(0, bronze), bronze, "nobody waits");
    requests.line(GOLD, true);
    assert_eq!(requests.lend(0, bronze), gold);
    assert_eq!(requests.lend(1, bronze), bronze, "another listener's server");
    assert_eq!(requests.lend(0, hog), hog, "what it works for is none of the listener's");
    requests.line(GOLD, false);
    assert_eq!(requests.lend(0, bronze), bronze, "its client has gone");
}

#[test]
fn what_is_below_a_class_is_served_by_it() {
    let (mut machine, [gold, bronze, _]) = priorities();
    let request = machine.container(bronze, weight(100));
    let requests = Requests::new(&machine, &[gold, bronze]);
    requests.line(GOLD, true);
    assert_eq!(requests.lend(0, request), gold);
}

#[test]
fn a_worse_request_lends_nothing_to_a_better_one() {
    let (machine, [gold, bronze, _]) = priorities();
    let requests = Requests::new(&machine, &[gold, bronze]);
    requests.line(BRONZE, true);
    assert_eq!(requests.lend(0, gold), gold);
}

#[test]
fn a_request_that_the_server_has_and_nobody_took_lends_its_turn() {
    let (machine, [gold, bronze, _]) = priorities();
    let requests = Requests::new(&machine, &[gold, bronze]);
    requests.handed(GOLD, 3 * MS, 100 * MS);
    assert_eq!(requests.lend(0, bronze), gold);
    requests.worked(gold, 5 * MS);
    assert_eq!(requests.lend(0, bronze), gold, "somebody worked for gold before it came");
    requests.worked(gold, 2 * MS);
    assert_eq!(requests.lend(0, bronze), bronze, "somebody has taken it since");
    requests.worked(gold, 5 * MS);
    requests.handed(GOLD, 3 * MS, 0);
    assert_eq!(requests.lend(0, bronze), bronze, "its place has run out");
}

#[test]
fn a_turn_that_its_own_threads_have_is_not_lent() {
    let (mut machine, [gold, bronze, _]) = priorities();
    machine.wait(gold);
    let requests = Requests::new(&machine, &[gold, bronze]);
    requests.line(GOLD, true);
    assert_eq!(requests.lend(0, bronze), bronze);
    drop(machine);
    let (machine, [gold, bronze, _]) = priorities();
    let requests = Requests::new(&machine, &[gold, bronze]);
    requests.line(GOLD, true);
    requests.runs(gold);
    assert_eq!(requests.lend(0, bronze), bronze);
}

#[test]
fn a_class_that_has_used_up_its_limit_lends_nothing() {
    let (machine, [gold, bronze, _]) = priorities();
    let requests = Requests::new(&machine, &[gold, bronze]);
    requests.line(GOLD, true);
    requests.limit(GOLD, MS);
    assert_eq!(requests.lend(0, bronze), bronze, "the queue passes it over");
    requests.limit(GOLD, 0);
    assert_eq!(requests.lend(0, bronze), gold);
}

#[test]
fn a_queue_that_keeps_nobody_waiting_lends_nothing() {
    let (machine, [gold, bronze, _]) = priorities();
    let requests = Requests::new(&machine, &[gold, bronze]);
    requests.line(GOLD, true);
    requests.open(true, false);
    assert_eq!(requests.lend(0, bronze), bronze);
    requests.open(false, true);
    assert_eq!(requests.lend(0, bronze), bronze);
}

#[test]
fn of_several_that_wait_the_first_turn_is_lent() {
    let mut machine = Machine::new();
    let [gold, silver, bronze] = [9, 5, 1].map(|of| machine.container(0, priority(of)));
    let requests = Requests::new(&machine, &[gold, silver, bronze]);
    requests.line(1, true);
    assert_eq!(requests.lend(0, bronze), silver);
    requests.line(GOLD, true);
    assert_eq!(requests.lend(0, bronze), gold);
    assert_eq!(requests.lend(0, silver), gold);
}

#[test]
fn of_shares_the_one_further_behind_has_the_turn() {
    for (ahead, behind) in [(BRONZE, GOLD), (GOLD, BRONZE)] {
        let mut machine = Machine::new();
        let shares = [60, 5].map(|of| machine.container(0, share(of)));
        machine.charge(shares[ahead as usize], 10 * MS);
        let requests = Requests::new(&machine, &shares);
        requests.line(GOLD, true);
        assert_eq!(requests.lend(0, shares[1]), shares[behind as usize]);
    }
}

#[test]
fn a_used_up_limit_of_the_worse_class_is_overdrawn_for_a_better_one() {
    let mut machine = Machine::new();
    let gold = machine.container(0, weight(1));
    let bronze = machine.container(0, limit(10));
    machine.wait(bronze);
    machine.pick();
    machine.charge(bronze, 100 * MS);
    machine.pick();
    machine.sleep(bronze);
    assert!(machine.is_held(bronze));
    // gold is not behind by its weight
    machine.charge(gold, 40 * MS);
    let requests = Requests::new(&machine, &[gold, bronze]);
    assert_eq!(requests.lend(0, bronze), bronze);
    requests.line(GOLD, true);
    assert_eq!(requests.lend(0, bronze), gold);
}

/// The thread would pay for the time of which its turn is lent.
#[test]
fn a_cpu_that_was_stopped_with_the_lock_is_not_waited_for_before_a_turn_is_lent() {
    let mut machine = Machine::new();
    let gold = machine.container(0, priority(9));
    let bronze = machine.container(0, limit(10));
    machine.wait(bronze);
    machine.pick();
    machine.charge(bronze, 100 * MS);
    machine.pick();
    machine.sleep(bronze);
    assert!(machine.is_held(bronze));
    machine.stopped(100);
    let requests = Requests::new(&machine, &[gold, bronze]);
    requests.line(GOLD, true);
    assert_eq!(requests.lend(0, bronze), gold);
    let took = requests.took_ns();
    assert!(took < MS, "{took} ns");
}

#[test]
fn a_second_thread_gets_no_turn_that_is_lent_already() {
    let (machine, [gold, bronze, _]) = priorities();
    let requests = Requests::new(&machine, &[gold, bronze]);
    requests.line(GOLD, true);
    requests.lent(gold);
    assert_eq!(requests.lend(0, bronze), bronze);
    requests.lent(bronze);
    assert_eq!(requests.lend(0, bronze), gold, "that one has another's");
}

#[test]
fn who_worked_for_what_is_below_a_class_has_taken_its_request() {
    let (mut machine, [gold, bronze, _]) = priorities();
    let request = machine.container(gold, weight(100));
    let requests = Requests::new(&machine, &[gold, bronze]);
    requests.handed(GOLD, 3 * MS, 100 * MS);
    assert_eq!(requests.lend(0, bronze), gold);
    requests.worked(request, MS);
    assert_eq!(requests.lend(0, bronze), bronze);
}

#[test]
fn a_thread_that_works_on_without_its_clients_serves_the_listener_no_longer() {
    let (machine, [gold, bronze, _]) = priorities();
    let requests = Requests::new(&machine, &[gold, bronze]);
    assert!(requests.served(99 * MS));
    assert!(!requests.served(100 * MS), "it has worked too long since it received");
}

#[test]
fn all_debt_that_is_made_by_lent_turns_is_paid_off() {
    let mut machine = Machine::new();
    let gold = machine.container(0, priority(9));
    let bronze = machine.container(0, limit(10));
    machine.wait(bronze);
    machine.pick();
    let since = machine.now();
    machine.charge(bronze, 10 * MS);
    machine.pick();
    machine.sleep(bronze);
    assert!(machine.is_held(bronze));
    Requests::new(&machine, &[gold, bronze]).line(GOLD, true);
    let mut had = 10 * MS;
    // at each tick it is asked again
    while Requests::new(&machine, &[]).lend(0, bronze) == gold {
        machine.charge(bronze, 4 * MS);
        had += 4 * MS;
        assert!(had < 1000 * MS, "for ever");
    }
    assert!(had > 150 * MS, "100 periods of 20 ms are paid off, by which it could have 200 ms: {had} ns");
    machine.wait(bronze);
    while machine.is_held(bronze) {
        machine.charge(gold, MS);
        machine.pick();
    }
    let may = (machine.now() - since) / 10;
    assert!(may.abs_diff(had) <= 4 * MS, "it had {had} ns, and may have {may} ns");
}
