// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `guest-servers`: three sites on one core, each a lighttpd with static and CGI requests and a share of the CPU, beside programs in
//! the background (Banga et al. 1999, section 5.8; "Virtual Services", 2000, figure 11).
//!
//! Site A always has the same clients, while the other sites and the background want more from step to step. The kernel's clocks of
//! processes tell what each had of the core.

mod background;
mod host;
mod outcome;
mod parts;
mod policy;

pub use background::background_main;

use fief_testkit::Feature;

use crate::bench::Bench;
use crate::cgi_server::can_compress;
use crate::effort::is_least;
use crate::error::{Error, Kind, Result};
use crate::experiments::Outcome;
use crate::noise::measure_again;
use crate::progress::Progress;
use crate::vm;
use crate::wanted::Wanted;
use host::Host;
use policy::SITES;

/// A way to keep the sites apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// Nothing: the kernel's own scheduler, without Fief.
    Uncontrolled,
    /// The servers' own limits of connections, in proportion to the shares, without Fief.
    OwnLimits,
    Fief,
}

const WAYS: [Way; 3] = [Way::Uncontrolled, Way::OwnLimits, Way::Fief];

impl Way {
    pub fn name(self) -> &'static str {
        match self {
            Way::Uncontrolled => "uncontrolled",
            Way::OwnLimits => "limits",
            Way::Fief => "fief",
        }
    }
}

/// The load of a step: what clients and programs want of the core.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wants {
    /// Clients of the text at a site.
    texts: usize,
    /// Clients of the program there.
    programs: usize,
}

/// What site A always has to do.
const OF_A: Wants = Wants { texts: 8, programs: 2 };

/// What the others want meanwhile.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Step {
    /// At each of the other sites.
    of_others: Wants,
    /// Threads that compute in the background.
    background: usize,
}

impl Step {
    const fn new(texts: usize, programs: usize, background: usize) -> Step {
        Step { of_others: Wants { texts, programs }, background }
    }

    fn at(&self, site: usize) -> Wants {
        if site == 0 { OF_A } else { self.of_others }
    }

    /// Of each of the other sites.
    fn clients(&self) -> usize {
        self.of_others.texts + self.of_others.programs
    }
}

/// In the first one A is alone; from the second one on everybody wants more than its share.
const STEPS: [Step; 5] =
    [Step::new(0, 0, 0), Step::new(4, 1, 1), Step::new(8, 2, 2), Step::new(16, 4, 5), Step::new(32, 8, 10)];

/// What a site did in a window.
#[derive(Clone, Copy, Debug, Default)]
pub struct Done {
    /// Texts a second.
    texts: f64,
    /// Percent of the core that the server itself had.
    server: f64,
    /// Percent of the core that its programs had.
    programs: f64,
}

/// One window.
#[derive(Clone, Debug)]
pub struct Measured {
    way: Way,
    step: Step,
    round: usize,
    sites: [Done; SITES.len()],
    /// Percent of the core.
    background: f64,
    is_disturbed: bool,
}

#[derive(Debug)]
struct Plan {
    rounds: usize,
    seconds: f64,
    warm_up: f64,
    steps: Vec<Step>,
    retries: usize,
}

fn plan(quick: bool) -> Plan {
    let [alone, .., most] = STEPS;
    let rounds = vm::rounds(3);
    match quick {
        _ if is_least() => Plan { rounds: 1, seconds: 0.5, warm_up: 0.5, steps: vec![alone, most], retries: 0 },
        true => {
            Plan { rounds: 1, seconds: 10.0, warm_up: 2.0, steps: vec![alone, STEPS[1], STEPS[3], most], retries: 0 }
        }
        false => Plan { rounds, seconds: 10.0, warm_up: 2.0, steps: STEPS.to_vec(), retries: 2 },
    }
}

pub fn run(quick: bool) -> Result<Outcome> {
    if !Feature::Lighttpd.is_there() || !can_compress() {
        let what = "lighttpd is not there, which the sites have: install it, with lighttpd-mod-deflate";
        return Err(Error::new(Kind::Missing, what));
    }
    let plan = plan(quick);
    let wanted = Wanted::from_env();
    let ways: Vec<Way> = WAYS.into_iter().filter(|way| wanted.any(&[way.name()])).collect();
    let bench = Bench::new()?;
    let mut progress = Progress::new("guest-servers", plan.rounds * ways.len() * plan.steps.len());
    let (mut sample, mut holder) = (Vec::new(), None);
    for round in 0..plan.rounds {
        for turn in 0..ways.len() {
            let way = ways[(turn + round) % ways.len()];
            let mut host = Host::start(&bench, way)?;
            holder = host.holder().map(str::to_owned).or(holder);
            for &step in &plan.steps {
                let (clients, background) = (step.clients(), step.background);
                let load = format!("{clients} clients of each other site, {background} in the background");
                progress.step(&format!("round {}, {}, {load}", round + 1, way.name()))?;
                sample.push(best(&plan, &mut host, step, round)?);
            }
            host.stop()?;
        }
    }
    Ok(outcome::of(&sample, holder.as_deref()))
}

/// Of several windows the first one in which nobody else used the CPU, or the last.
fn best(plan: &Plan, host: &mut Host<'_>, step: Step, round: usize) -> Result<Measured> {
    let measure = || host.measure(step, round, plan.seconds, plan.warm_up);
    measure_again(plan.retries, |one| one.is_disturbed, |_, _| true, measure)
}
