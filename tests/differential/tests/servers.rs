// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The standing tables and what is grown of them, at every server that the machine has.

use fief_testkit::{Dice, alone};
use fief_tests_differential::report::SHRUNK;
use fief_tests_differential::vector::{self, Seed};
use fief_tests_differential::{Campaign, Kind, Report, Speech, Stage, Tally, hello};

/// Grown cases of all servers together; with the table more than 20,000.
const HEADS: u64 = 20_000;
const HELLOS: u64 = 4000;
/// Behind a queue, where a case that a server waits in takes others' time.
const QUEUED: u64 = 4000;
/// The same cases each time: a change fails by itself, not by the day. `make fuzz` throws others.
const SEED: u64 = 15;
/// Of so many exchanges, of all servers together, one may tell nothing: it was refused once and not again, or ended by patience alone.
const TELLING: u64 = 1000;

fn hold(stage: &Stage, speech: Speech, seeds: &[Seed], cases: u64) {
    let campaign = Campaign::new(stage, speech).with_seeds(seeds).with_growth(seeds, Dice::new(SEED), cases);
    let report = Report::new(stage, seeds, SEED, campaign.run(stage), SHRUNK);
    println!("{report}known to be open: {}", vector::known().join(", "));
    for (kind, tally) in &report.tallies {
        assert!(tally.cases > 0 && tally.passed > 0 && tally.held > 0, "{}: nothing was tried: {tally:?}", kind.name());
        assert_eq!(tally.unopened, 0, "{}: no answer to a plain request", kind.name());
    }
    assert_eq!(report.new_failures(), 0, "{report}");
    let sum = |of: fn(&Tally) -> u64| report.tallies.values().map(of).sum::<u64>();
    let exchanges = sum(Tally::exchanges);
    for (what, count) in [("unsteady", sum(|tally| tally.unsteady)), ("silent", sum(|tally| tally.silent))] {
        assert!(count * TELLING <= exchanges, "{count} of {exchanges} exchanges were {what}:\n{report}");
    }
}

#[test]
fn no_server_serves_a_head_that_fief_refuses_and_none_misses_one_that_it_allows() {
    let _alone = alone();
    let Some(stage) = Stage::new(Kind::present()) else { return };
    hold(&stage, Speech::Heads, &vector::seeds(), HEADS);
}

#[test]
fn no_server_serves_a_name_that_fief_refuses_and_none_misses_one_that_it_allows() {
    let _alone = alone();
    let Some(stage) = Stage::new(Kind::present()) else { return };
    hold(&stage, Speech::Hellos, &hello::seeds(), HELLOS);
}

#[test]
fn the_same_holds_where_requests_wait_in_front_of_the_servers() {
    let _alone = alone();
    let Some(stage) = Stage::queued(Kind::present()) else { return };
    hold(&stage, Speech::Heads, &vector::seeds(), QUEUED);
    assert!(stage.waited() > QUEUED / 10, "{}", stage.waited());
}
