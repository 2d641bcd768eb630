// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The standing table and what is grown of it, at every server that the machine has.

use fief_testkit::Dice;
use fief_tests_differential::report::SHRUNK;
use fief_tests_differential::vector::{known, seeds};
use fief_tests_differential::{Campaign, Kind, Report, Stage};

/// Grown cases of all servers together; with the table more than 20,000.
const CASES: u64 = 20_000;
/// The same cases each time: a change fails by itself, not by the day. `make fuzz` throws others.
const SEED: u64 = 15;

#[test]
fn no_server_serves_what_fief_refuses_and_none_misses_what_it_allows() {
    let Some(stage) = Stage::new(Kind::present()) else { return };
    let seeds = seeds();
    let campaign = Campaign::new(&stage).with_seeds(&seeds).with_growth(&seeds, Dice::new(SEED), CASES).run(&stage);
    let report = Report::new(&stage, &seeds, SEED, campaign, SHRUNK);
    println!("{report}known to be open: {}", known().join(", "));
    for (kind, tally) in &report.tallies {
        assert!(tally.cases > 0 && tally.passed > 0 && tally.held > 0, "{}: nothing was tried: {tally:?}", kind.name());
        assert_eq!(tally.unopened, 0, "{}: no answer to a plain request", kind.name());
    }
    assert_eq!(report.new_failures(), 0, "{report}");
}
