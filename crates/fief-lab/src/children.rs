// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What this program does when an experiment started it: load generators, servers and workers. Their words, `lab-...`, are no
//! part of the command line.

use std::process::ExitCode;

use crate::error::{Error, Kind};
use crate::{experiments, flood, load, newcomers, remains, server, stage, workers};

/// None: a person or a script started us.
pub fn main() -> Option<ExitCode> {
    let words: Vec<String> = std::env::args_os().skip(1).map(|word| word.to_string_lossy().into_owned()).collect();
    let (word, arguments) = words.split_first()?;
    let result = match word.as_str() {
        "lab-guard" => remains::guard_main(arguments),
        "lab-load" => load::load_main(arguments),
        "lab-flood" => flood::flood_main(arguments),
        "lab-newcomers" => newcomers::newcomers_main(arguments),
        "lab-server" => server::server_main(arguments),
        "lab-cgi" => experiments::cgi_sandbox::cgi_main(arguments),
        "lab-background" => experiments::guest_servers::background_main(),
        "lab-serves" => experiments::cpu::serve_main(),
        "lab-receives" => experiments::cpu::receive_main(),
        "lab-sends" => experiments::cpu::send_main(arguments),
        "lab-player" => experiments::media::player_main(arguments),
        "lab-display" => experiments::media::display_main(arguments),
        "lab-spin" => experiments::cpu::spin_main(),
        "lab-client" => stage::client_main(arguments),
        "lab-isolating" => experiments::syn_flood::isolating_main(arguments),
        "lab-workers" => workers::workers_main(arguments),
        "lab-primitives" => experiments::primitives::child_main(arguments),
        "lab-rebind" => experiments::rebind::child_main(arguments),
        "lab-switches" => experiments::switch_cost::child_main(),
        "lab-holder" => experiments::service::holder_main(),
        "lab-tenants" => experiments::metrics::tenants_main(arguments),
        "lab-accounting" => experiments::accounting::child_main(arguments),
        word if word.starts_with("lab-") => Err(Error::new(Kind::Usage, "no such command")),
        _ => return None,
    };
    Some(match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("fief {word}: {error}");
            ExitCode::FAILURE
        }
    })
}
