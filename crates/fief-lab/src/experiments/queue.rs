// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The request queue: how long one client of a better class waits at servers of all kinds, unmodified, beside 0 to 1000
//! others, and what the server does in all; beside what else could be done for it.
//!
//! Each round measures every server by every way, in an order that turns from round to round, so that a slow minute of the
//! machine hits all of them alike. Flatness is T(200)/T(5) and not T(200)/T(0): without any load the core goes idle between
//! requests, and waking up is slower than a short queue.

mod borrowed;
mod case;
mod cost;
mod figures;
mod goodput;
mod kind;
mod memory;
mod objective;
mod outcome;
mod pick;
mod places;
mod plan;
mod postgres;
mod ready;
mod sample;
mod shares;
mod stand;
mod stranger;
mod way;

use crate::effort::is_least;
use crate::error::Result;
use crate::experiments::Outcome;
use crate::noise::quietest;
use crate::progress::Progress;
use crate::wanted::{Wanted, usable};
pub use case::{Case, Connections, Measured};
pub use cost::work;
pub use kind::Kind;
pub use outcome::of as outcome_of;
pub use plan::Plan;
pub use sample::Sample;
pub use stand::Stand;
pub use way::Way;

use fief_testkit::Topology;
use plan::chosen;
use std::collections::HashMap;
use std::collections::hash_map::Entry;

const PARTS: [&str; 8] = ["closed", "goodput", "shares", "places", "objective", "loopback", "memory", "pick"];

pub fn run(quick: bool) -> Result<Outcome> {
    let plan = match quick {
        _ if is_least() => Plan::least(),
        true => Plan::quick(),
        false => Plan::full(),
    };
    let is_full = !quick && !is_least();
    let wanted = Wanted::from_env();
    let mut plan = plan.only(&wanted);
    let topology = Topology::new()?;
    let (kinds, mut notes) = usable(plan.kinds, |kind| kind.check(), |kind| kind.title().to_owned());
    let (ways, more) = usable(plan.ways, |way| way.check(), |way| way.title());
    (plan.kinds, plan.ways) = (kinds, ways);
    notes.extend(more);
    let parts = chosen(&wanted, PARTS.to_vec(), |part| (*part).to_owned());
    let is_wanted = |part: &str| parts.contains(&part);
    let sample = match is_wanted("closed") {
        true => closed(&plan, &topology)?,
        false => Sample::default(),
    };
    let mut outcome = outcome::of(&plan, &sample, notes);
    if is_wanted("goodput") {
        goodput::run(&plan, &topology, is_full, &mut outcome)?;
    }
    if is_wanted("shares") {
        shares::run(&plan, &topology, &mut outcome)?;
    }
    if is_wanted("places") {
        places::run(&plan, &topology, &mut outcome)?;
    }
    if is_wanted("objective") {
        objective::run(&plan, &topology, is_full, &mut outcome)?;
    }
    if is_wanted("loopback") {
        stranger::run(&plan, &topology, &mut outcome)?;
    }
    if is_wanted("memory") {
        memory::run(&plan, &topology, &mut outcome)?;
    }
    if is_wanted("pick") {
        pick::run(&plan, &mut outcome)?;
    }
    Ok(outcome)
}

/// Closed-loop clients at every server by every way.
fn closed(plan: &Plan, topology: &Topology) -> Result<Sample> {
    let stands = plan.stands();
    let mut works = HashMap::new();
    for Case { kind, connections, cost_us, .. } in stands.iter().map(|stand| stand[0]) {
        if let Entry::Vacant(place) = works.entry((kind, connections, cost_us)) {
            place.insert(work(topology, (kind, connections), cost_us, plan.seconds.min(0.5))?);
        }
    }
    let steps: usize = stands.iter().map(Vec::len).sum();
    let mut progress = Progress::new("queue", plan.rounds * steps);
    let mut sample = Sample::default();
    for round in 0..plan.rounds {
        for turn in 0..stands.len() {
            let cases = &stands[(turn + round) % stands.len()];
            let Case { kind, way, connections, cost_us, .. } = cases[0];
            let stand = Stand::start(topology, kind, way, works[&(kind, connections, cost_us)])?;
            for &case in cases {
                let [kind, connections] = [kind.title(), connections.title()];
                let title = format!("{kind}, {}, {connections}, {} others", way.title(), case.low);
                progress.step(&format!("round {}, {title}", round + 1))?;
                sample.push(best(plan, topology, case, round)?);
            }
            stand.stop()?;
        }
    }
    Ok(sample)
}

fn best(plan: &Plan, topology: &Topology, case: Case, round: usize) -> Result<Measured> {
    let once = || case.measure(topology, round, (plan.seconds, plan.warm_up), |_| ());
    quietest(plan.retries, |measured: &Measured| &measured.noise, once)
}
