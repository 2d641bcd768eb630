// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The lab without the command: `cargo run --release --example lab -- priority-clients --quick`.

use fief_lab::{Args, Experiment, child_main, is_child, run};
use std::process::ExitCode;

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    if words.first().is_some_and(|word| is_child(word)) {
        return child_main(&words);
    }
    let Some(experiment) = words.first().and_then(|name| Experiment::from_name(name)) else {
        eprintln!("usage: lab NAME [--quick] [--json] [--report DIR]");
        return ExitCode::from(2);
    };
    let has = |flag: &str| words.iter().any(|word| word == flag);
    let report = words.iter().position(|word| word == "--report").and_then(|place| words.get(place + 1));
    let args = Args { experiment, quick: has("--quick"), json: has("--json"), report: report.map(Into::into) };
    match run(&args) {
        Ok(_) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("fief lab: {error}");
            ExitCode::FAILURE
        }
    }
}
