// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `cgi-sandbox`: what static requests keep of one core beside 1 to 5 CGI programs of 2 seconds, uncontrolled and with the programs
//! limited to 30 % and 10 % (Banga et al. 1999, figures 12 and 13).
//!
//! lighttpd and its programs share the server's core. What the programs got is told by the kernel's clocks of processes: of those
//! that run, and of those that lighttpd has buried.

mod outcome;
mod program;
mod site;

pub use program::cgi_main;

use fief_testkit::Feature;

use crate::bench::Bench;
use crate::effort::is_least;
use crate::error::{Error, Kind, Result};
use crate::experiments::Outcome;
use crate::noise::measure_again;
use crate::progress::Progress;
use crate::vm;
use site::Site;

/// What holds the programs.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Way {
    pub name: &'static str,
    /// Percent of the core; `None`: they and the server are left to the kernel, without Fief.
    pub limit: Option<f64>,
}

const WAYS: [Way; 3] = [
    Way { name: "uncontrolled", limit: None },
    Way { name: "limit30", limit: Some(30.0) },
    Way { name: "limit10", limit: Some(10.0) },
];

/// One window.
#[derive(Clone, Copy, Debug)]
pub struct Measured {
    pub way: Way,
    pub programs: usize,
    pub round: usize,
    /// Static requests a second.
    pub throughput: f64,
    /// Percent of the core that all programs had.
    pub share: f64,
    pub is_disturbed: bool,
}

#[derive(Debug)]
struct Plan {
    rounds: usize,
    seconds: f64,
    warm_up: f64,
    programs: &'static [usize],
    retries: usize,
}

fn plan(quick: bool) -> Plan {
    let rounds = vm::rounds(3);
    match quick {
        _ if is_least() => Plan { rounds: 1, seconds: 0.5, warm_up: 0.2, programs: &[0, 1, 5], retries: 0 },
        true => Plan { rounds: 1, seconds: 10.0, warm_up: 2.0, programs: &[0, 1, 3, 5], retries: 0 },
        false => Plan { rounds, seconds: 10.0, warm_up: 2.0, programs: &[0, 1, 2, 3, 4, 5], retries: 2 },
    }
}

pub fn run(quick: bool) -> Result<Outcome> {
    if !Feature::Lighttpd.is_there() {
        return Err(Error::new(Kind::Missing, "lighttpd is not there, which runs the CGI programs: install it"));
    }
    let plan = plan(quick);
    let bench = Bench::new()?;
    let mut progress = Progress::new("cgi-sandbox", plan.rounds * WAYS.len() * plan.programs.len());
    let mut sample = Vec::new();
    for round in 0..plan.rounds {
        for turn in 0..WAYS.len() {
            let way = WAYS[(turn + round) % WAYS.len()];
            let site = Site::start(&bench, way)?;
            for &programs in plan.programs {
                progress.step(&format!("round {}, {}, {programs} programs", round + 1, way.name))?;
                sample.push(best(&plan, &site, programs, round)?);
            }
            site.stop()?;
        }
    }
    Ok(outcome::of(&sample))
}

/// Of several windows the first one in which nobody else used the CPU, or the last.
fn best(plan: &Plan, site: &Site<'_>, programs: usize, round: usize) -> Result<Measured> {
    let measure = || site.measure(programs, round, plan.seconds, plan.warm_up);
    measure_again(plan.retries, |one| one.is_disturbed, |_, _| true, measure)
}
