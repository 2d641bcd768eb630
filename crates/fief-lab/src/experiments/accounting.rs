// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `accounting`: whether every nanosecond is charged to whom it belongs, and what that costs.
//!
//! Three stages. A worker under `fief run` receives packets of two classes, rebinds its threads and is read while it
//! runs, and its containers are held against its own clocks. Then the whole machine is held against the kernel's
//! accounts. Then an unmodified nginx, and a server that makes a container per request, are loaded without and with.
//!
//! Fief runs in a scope of its own, so a policy that is in force meanwhile stays; its cost would then be on both sides.

mod binding;
mod lag;
mod misattribution;
mod nginx;
mod packets;
mod per_request;
mod pingpong;
mod request_server;
mod split;
mod stage;
mod switch;
mod total;
mod worker;

use crate::effort::is_least;
use crate::error::{Error, Kind, Result};
use crate::experiments::Outcome;
use crate::progress::Progress;
use crate::wanted::Wanted;

const ABOUT: &str = "Containers against clocks that Fief does not touch: packets of two classes against each class \
alone, threads against their own CPU clock, the machine against the wall clock and the kernel's accounts. And what the \
accounting costs a saturated server.";

/// How long and how often.
#[derive(Clone, Copy, Debug)]
struct Plan {
    /// Of streams of packets, each so short that the next one finds the machine as fast.
    rounds: usize,
    stream_seconds: f64,
    binding_runs: usize,
    binding_seconds: f64,
    lag_seconds: f64,
    total_seconds: f64,
    /// Alternating measurements of nginx, and of the server with containers.
    pairs: usize,
    load_seconds: f64,
    /// Of the stage without wake-ups, and batches of 5 ms in each.
    stage_rounds: usize,
    batches: usize,
    switch_rounds: usize,
    split_rounds: usize,
    split_seconds: f64,
}

impl Plan {
    fn of(quick: bool) -> Plan {
        match quick {
            _ if is_least() => Plan {
                rounds: 2,
                stream_seconds: 0.018,
                binding_runs: 1,
                binding_seconds: 0.1,
                lag_seconds: 0.3,
                total_seconds: 0.3,
                pairs: 1,
                load_seconds: 0.1,
                stage_rounds: 1,
                batches: 3,
                switch_rounds: 2,
                split_rounds: 1,
                split_seconds: 0.1,
            },
            true => Plan {
                rounds: 30,
                stream_seconds: 0.018,
                binding_runs: 1,
                binding_seconds: 1.0,
                lag_seconds: 5.0,
                total_seconds: 10.0,
                pairs: 5,
                load_seconds: 1.5,
                stage_rounds: 5,
                batches: 200,
                switch_rounds: 11,
                split_rounds: 5,
                split_seconds: 1.5,
            },
            false => Plan {
                rounds: 300,
                stream_seconds: 0.018,
                binding_runs: 3,
                binding_seconds: 1.0,
                lag_seconds: 5.0,
                total_seconds: 10.0,
                pairs: 17,
                load_seconds: 1.5,
                stage_rounds: 15,
                batches: 200,
                switch_rounds: 31,
                split_rounds: 15,
                split_seconds: 1.5,
            },
        }
    }

    fn steps(&self) -> usize {
        let workers = misattribution::STEPS
            + binding::steps(self)
            + 1
            + total::STEPS
            + switch::steps(self)
            + per_request::steps(self);
        workers + split::steps(self) + nginx::throughput_steps(self) + nginx::cpu_steps(self)
    }
}

pub fn run(quick: bool) -> Result<Outcome> {
    crate::command::can_run()?;
    let plan = Plan::of(quick);
    let mut progress = Progress::new("accounting", plan.steps());
    let mut outcome = Outcome { name: "accounting", about: ABOUT.to_owned(), ..Outcome::default() };
    let wanted = Wanted::from_env();
    let of_worker =
        ["misattribution", "thread_error", "reader_lag_ms", "total_error", "switch_ns", "container_per_request"];
    if wanted.any(&of_worker) {
        let mut stage = stage::Stage::start()?;
        if wanted.any(&["misattribution"]) {
            misattribution::run(&plan, &mut stage, &mut progress, &mut outcome)?;
        }
        if wanted.any(&["thread_error"]) {
            binding::run(&plan, &mut stage, &mut progress, &mut outcome)?;
        }
        if wanted.any(&["reader_lag_ms"]) {
            lag::run(&plan, &mut stage, &mut progress, &mut outcome)?;
        }
        if wanted.any(&["total_error"]) {
            total::run(&plan, &mut stage, &mut progress, &mut outcome)?;
        }
        if wanted.any(&["switch_ns"]) {
            switch::run(&plan, &mut stage, &mut progress, &mut outcome)?;
        }
        if wanted.any(&["container_per_request"]) {
            per_request::run(&plan, &mut stage, &mut progress, &mut outcome)?;
        }
        stage.stop()?;
    }
    if wanted.any(&["nginx_split"]) {
        split::run(&plan, &mut progress, &mut outcome)?;
    }
    if wanted.any(&["nginx_throughput"]) {
        nginx::throughput(&plan, &mut progress, &mut outcome)?;
    }
    if wanted.any(&["nginx_cpu", "pipe_pingpong"]) {
        nginx::cpu(&plan, &mut progress, &mut outcome)?;
    }
    Ok(outcome)
}

/// The child's main: a role and what it needs.
pub fn child_main(arguments: &[String]) -> Result<()> {
    match arguments.first().map(String::as_str) {
        Some("worker") => worker::worker_main(),
        _ => Err(Error::new(Kind::Usage, "lab-accounting takes the word worker")),
    }
}
