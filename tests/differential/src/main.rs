// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `make fuzz`: the differential test with as many cases as wanted, as words or as one JSON object for each server.

use std::process::ExitCode;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use clap::Parser;
use fief_testkit::Dice;
use fief_tests_differential::report::SHRUNK;
use fief_tests_differential::{Campaign, Kind, Report, Speech, Stage, hello, vector};

/// Sends mutated heads through Fief and without to real servers, and says what got round and what was refused wrongly.
#[derive(Parser)]
struct Words {
    /// Grown cases for each server, besides the standing table
    #[arg(long, default_value_t = 100_000)]
    cases: u64,
    /// Of the dice; the time if it is not given
    #[arg(long)]
    seed: Option<u64>,
    /// Only these servers
    #[arg(long, value_delimiter = ',')]
    servers: Vec<String>,
    /// Failures that are made smaller
    #[arg(long, default_value_t = SHRUNK)]
    shrink: usize,
    /// One JSON object a line for each server
    #[arg(long)]
    json: bool,
}

fn main() -> ExitCode {
    let words = Words::parse();
    let seed =
        words.seed.unwrap_or_else(|| SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs()));
    let mut kinds = Kind::present();
    kinds.retain(|kind| words.servers.is_empty() || words.servers.iter().any(|name| name == kind.name()));
    let Some(stage) = Stage::new(kinds) else {
        eprintln!("this machine lacks what the servers need: root, network namespaces, BPF");
        return ExitCode::FAILURE;
    };
    let begun = Instant::now();
    let mut failures = 0;
    // Hellos have fewer forms than heads, and no later ones.
    for (speech, seeds, cases) in
        [(Speech::Heads, vector::seeds(), words.cases), (Speech::Hellos, hello::seeds(), words.cases / 5)]
    {
        let campaign = Campaign::new(&stage, speech);
        let cases = cases * campaign.tallies.len() as u64;
        let campaign = campaign.with_seeds(&seeds).with_growth(&seeds, Dice::new(seed), cases).run(&stage);
        eprintln!("{:?}", stage.verdicts());
        let report = Report::new(&stage, &seeds, seed, campaign, words.shrink);
        failures += report.failures.len() + report.more + report.open;
        if words.json {
            report.json().iter().for_each(|line| println!("{line}"));
            eprint!("{report}");
        } else {
            print!("{report}");
        }
    }
    eprintln!("{:.0} s", begun.elapsed().as_secs_f64());
    if failures == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
