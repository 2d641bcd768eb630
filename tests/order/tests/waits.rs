// SPDX-License-Identifier: Apache-2.0 OR MIT
//! How long requests of a line wait: one that grows without end is overload, and one of clients that ask again is not.

use fief_tests_order::{Ended, Waits, limit_delay_ns};

const SECOND: u64 = 1000;

/// Of what could have been served in that time, what was while a client that gives up after half a second was there.
fn of_use(ended: &[Ended], could: u64) -> f64 {
    ended.iter().filter(|one| one.served && one.waited_ms <= 500).count() as f64 / could as f64
}

fn refused(ended: &[Ended]) -> usize {
    ended.iter().filter(|one| !one.served).count()
}

#[test]
fn in_overload_nearly_all_that_are_served_waited_for_a_short_time() {
    for (served, offered) in [(1000, 2000), (1000, 4000), (100, 150), (5000, 7000)] {
        let mut line = Waits::new(served, 1000);
        line.run(10 * SECOND, offered);
        let before = of_use(&line.take(), 10 * served);
        line.run(50 * SECOND, offered);
        let later = of_use(&line.take(), 50 * served);
        println!("{offered} of {served}: {before:.3} {later:.3}");
        assert!(before >= 0.8 && later >= 0.9, "{offered} of {served}: {before} {later}");
    }
}

/// A client whose request would wait in vain is told so when that comes: this costs the server less, and lets the client go elsewhere.
#[test]
fn in_overload_nearly_all_that_are_refused_are_so_at_once() {
    for (served, offered) in [(1000, 2000), (1000, 4000), (100, 150), (5000, 7000)] {
        let mut line = Waits::new(served, 10_000);
        line.run(10 * SECOND, offered);
        line.take();
        line.run(60 * SECOND, offered);
        let ended = line.take();
        let at_once = ended.iter().filter(|one| !one.served && one.waited_ms == 0).count();
        println!("{offered} of {served}: {at_once} of {}", refused(&ended));
        assert!(
            at_once as f64 >= 0.9 * refused(&ended) as f64,
            "{offered} of {served}: {at_once} of {}",
            refused(&ended)
        );
    }
}

/// A listener's load counts those that would wait, not the few that do: overload shows by how much more is asked for.
#[test]
fn a_line_that_is_held_short_counts_as_long_as_it_would_be() {
    for (served, offered) in [(1000, 2000), (500, 1000), (500, 2000), (30, 60)] {
        let mut line = Waits::new(served, 20_000);
        line.run(5 * SECOND, offered);
        let (would, asked_in_wait) = (line.would_wait() as f64, 5.0 * offered as f64);
        println!("{offered} of {served}: {would}, {} wait", line.waiting());
        assert!((would / asked_in_wait - 1.0).abs() < 0.25, "{offered} of {served}: {would}, not {asked_in_wait}");
    }
}

#[test]
fn a_full_line_is_overload_however_it_came_to_be_full() {
    for (served, offered, burst) in [(200, 1500, 0), (200, 210, 1000), (50, 60, 240)] {
        let mut line = Waits::new(served, 1000);
        line.run(1000, burst);
        line.run(30 * SECOND, offered);
        line.take();
        line.run(10 * SECOND, offered);
        let found = of_use(&line.take(), 10 * served);
        println!("{offered} of {served}: {found:.3}");
        assert!(found >= 0.75, "{offered} of {served} after {burst}: {found}");
    }
}

/// A number of clients that ask again once they are answered, however they came.
#[test]
fn clients_that_ask_again_are_all_served() {
    for each_ms in [0, 5, 10, 20, 50] {
        let mut line = Waits::new(100, 1000);
        for _ in 0..100 {
            line.client_comes();
            line.run(each_ms, 0);
        }
        line.run(SECOND, 0);
        line.run(25 * SECOND, 0);
        line.take();
        line.run(20 * SECOND, 0);
        assert_eq!(refused(&line.take()), 0, "one in {each_ms} ms");
        assert!(line.waiting() >= 99, "{}", line.waiting());
    }
}

/// Also where others made it overload for a time, which left it to them.
#[test]
fn an_overload_that_has_ended_is_over_for_those_that_ask_again() {
    let mut line = Waits::new(100, 1000);
    for _ in 0..100 {
        line.client_comes();
        line.run(5, 0);
    }
    line.run(60 * SECOND, 100);
    line.run(70 * SECOND, 0);
    line.take();
    line.run(20 * SECOND, 0);
    assert_eq!(refused(&line.take()), 0);
}

/// A few slow ones that come beside them, as a hostile client can have it, make no overload.
#[test]
fn a_few_that_come_beside_them_make_no_overload() {
    let mut line = Waits::new(100, 1000);
    for _ in 0..60 {
        line.client_comes();
    }
    line.run(2 * SECOND, 0);
    line.take();
    for _ in 0..8 {
        line.client_comes();
        line.run(250, 0);
    }
    line.run(5 * SECOND, 0);
    assert_eq!(refused(&line.take()), 0);
}

/// Of what a class uses at once up to a minute counts, exactly up to 10 s.
#[test]
fn a_limit_delays_by_what_was_used_also_beyond_ten_seconds() {
    let second = 1_000_000_000;
    for (cost, limit, expected) in [(9.9, 0.4, 24.75), (10.1, 0.4, 25.25), (30.0, 0.4, 75.0), (3600.0, 64.0, 0.9375)] {
        let found = limit_delay_ns((cost * 1e9) as u64, (limit * 1e9) as u64) as f64 / second as f64;
        assert!((found - expected).abs() <= expected / 1e5, "{cost} of {limit}: {found}, not {expected}");
    }
}

/// Of clients that think before they ask again the line is now longer and now shorter by chance. Mistaken for overload it is seldom.
#[test]
fn a_line_that_is_longer_by_chance_is_hardly_ever_overload() {
    for (clients, served, think_ms) in
        [(200, 100, 1000), (400, 100, 3000), (1000, 100, 8000), (60, 20, 2000), (500, 200, 2000)]
    {
        let mut line = Waits::new(served, 1000);
        line.think(think_ms);
        for _ in 0..clients {
            line.client_comes();
            line.run(2, 0);
        }
        line.run(60 * SECOND, 0);
        line.take();
        let refusing = (0..600)
            .filter(|_| {
                line.run(SECOND, 0);
                refused(&line.take()) > 0
            })
            .count();
        println!("{clients} clients: refused in {refusing} of 600 s");
        assert!(refusing <= 40, "{clients} clients that think for {think_ms} ms: refused in {refusing} of 600 s");
    }
}
