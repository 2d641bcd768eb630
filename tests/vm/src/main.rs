// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The checks that a guest of `tests/vm/run.sh` makes with the installed `fief`, on a kernel that is not the builder's.
//!
//! Without arguments: all checks from outside, as root. The other words are the parts that this program plays itself:
//! an unprivileged application, a server, a client, a process that works. Each check prints one line, `ok` or `FAILED`.

mod application;
mod attach;
mod attributes;
mod bombs;
mod changes;
mod combined;
mod command;
mod connections;
mod devices;
mod flood;
mod groups;
mod host;
mod hotplug;
mod inversion;
mod machine;
mod numbers;
mod outside;
mod policies;
mod report;
mod rounds;
mod schedule;
mod server;
mod turns;
mod types;
mod work;

use std::process::ExitCode;

use report::Report;

/// What a part has to say of itself.
fn told(found: report::Found) -> ExitCode {
    let (said, code) = match found {
        Ok(figures) => (figures, ExitCode::SUCCESS),
        Err(why) => (why, ExitCode::FAILURE),
    };
    println!("{said}");
    code
}

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
        ["loads"] => outside::check_loads(&mut report),
        ["application"] => application::check(&mut report),
        ["serve", address] => server::serve(address),
        ["get", address, file] => host::get(address, file),
        ["schedule"] => schedule::check(&mut report),
        ["schedule", "briefly"] => schedule::check_briefly(&mut report),
        ["groups"] => groups::check(&mut report),
        ["combined"] => combined::check(&mut report),
        ["inversion"] => inversion::check(&mut report),
        ["inversion", "briefly"] => inversion::check_briefly(&mut report),
        ["serve-requests", address] => inversion::serve(address),
        ["limits-itself"] => return told(attributes::limits_itself()),
        ["sets-attributes"] => return told(attributes::set_attributes()),
        ["serves-both"] => return told(combined::serve_both()),
        ["machine", "begins"] => machine::begin(&mut report),
        ["machine", "goes-on"] => machine::go_on(&mut report),
        ["policies"] => policies::check(&mut report),
        ["policies", "outside"] => policies::check_outside(&mut report),
        ["play"] => policies::play(),
        ["flood"] => report.check("receive work above a limit is discarded", flood::is_discarded),
        ["rounds"] => rounds::check(&mut report),
        ["walks"] => rounds::walk(),
        ["walks-far"] => rounds::walk_far(),
        ["wakes"] => rounds::wake(),
        ["sleeps-and-spins"] => rounds::sleep_and_spin(),
        ["calls-filtered"] => rounds::call_filtered(),
        ["hotplug"] => report.check("a CPU that goes and comes changes no share", hotplug::is_borne),
        ["hotplug", "queue"] => {
            report.check("who waits in a queue is served while a CPU goes and comes", hotplug::is_borne_by_a_queue);
        }
        ["changes"] => changes::check(&mut report),
        ["numbers"] => numbers::check(&mut report),
        ["crowds"] => numbers::crowd(),
        ["connections"] => connections::check(&mut report),
        ["serves-connections"] => return told(connections::serve()),
        ["turns", times] => turns::check_turns(&mut report, times.parse().expect("a number")),
        ["turns", "alone", times] => turns::check_turns_alone(&mut report, times.parse().expect("a number")),
        ["attaches", times] => turns::check_attaches(&mut report, times.parse().expect("a number")),
        ["receive"] => return told(flood::receive().map(|()| String::new()).map_err(report::text)),
        ["spin"] => work::without_end(),
        ["attributes"] => attributes::check(&mut report),
        ["bombs"] => bombs::check(&mut report),
        ["bombs", "storm"] => bombs::check_storm(&mut report),
        ["bomb"] => bombs::bomb(),
        ["storm"] => return told(bombs::storm()),
        ["work"] => work::when_told(),
        ["work-for-descriptor"] => work::for_descriptor(),
        _ => {
            eprintln!("unknown part: {words:?}");
            return ExitCode::from(2);
        }
    }
    report.code()
}
