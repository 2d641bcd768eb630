// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The checks that a guest of `tests/vm/run.sh` makes with the installed `fief`, on a kernel that is not the builder's.
//!
//! Without arguments: all checks from outside, as root. The other words are the parts that this program plays itself:
//! an unprivileged application, a server, a client, a process that works. Each check prints one line, `ok` or `FAILED`.

mod application;
mod command;
mod devices;
mod groups;
mod host;
mod outside;
mod report;
mod schedule;
mod server;
mod work;

use std::process::ExitCode;

use report::Report;

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let mut report = Report::default();
    match words[..] {
        [] => {
            outside::check(&mut report);
            devices::check(&mut report);
            schedule::check(&mut report);
            groups::check(&mut report);
        }
        ["application"] => application::check(&mut report),
        ["serve", address] => server::serve(address),
        ["get", address, file] => host::get(address, file),
        ["schedule"] => schedule::check(&mut report),
        ["schedule", "briefly"] => schedule::check_briefly(&mut report),
        ["groups"] => groups::check(&mut report),
        ["limits-itself"] => {
            return match schedule::limits_itself() {
                Ok(figures) => {
                    println!("{figures}");
                    ExitCode::SUCCESS
                }
                Err(why) => {
                    println!("{why}");
                    ExitCode::FAILURE
                }
            };
        }
        ["spin"] => work::without_end(),
        ["bomb"] => work::bomb(),
        ["work"] => work::when_told(),
        ["work-for-descriptor"] => work::for_descriptor(),
        _ => {
            eprintln!("unknown part: {words:?}");
            return ExitCode::from(2);
        }
    }
    report.code()
}
