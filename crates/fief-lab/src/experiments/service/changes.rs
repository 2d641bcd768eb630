// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Policies, and Fief's own programs, that change while clients are served: what the clients lose, whether one policy or the other is
//! in force all the time, whether accounts and what applications hold are kept, and how long a change takes.

use super::application::Application;
use super::classes::Class;
use super::crowd::{Answered, Crowd, place};
use super::probe::{self, Probe};
use super::unit::{Start, Unit};
use super::upgrades::Programs;
use super::{Plan, accounts, policy};
use crate::command::{PolicyFile, Used, usage};
use crate::error::{Error, Result};
use crate::installation::{Installation, change_in};
use crate::progress::Progress;
use fief_testkit::{Client, Topology, cpus};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

/// What changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum What {
    Policies,
    /// With each of them the policy, too, while an application holds containers.
    Programs,
}

impl What {
    pub fn times(self, plan: &Plan) -> usize {
        match self {
            Self::Policies => plan.reloads,
            Self::Programs => plan.upgrades,
        }
    }
}

#[derive(Debug, Default)]
pub struct Changes {
    /// From the start of `fief apply` to its end.
    pub ms: Vec<f64>,
    pub accounts_lost_ns: u64,
    /// What all accounts together got over each change, beyond what the CPUs had, as a part of that.
    pub beyond_clock: Vec<f64>,
    /// The least that a tenant without clients had when a policy changed.
    pub quiet_ns: Option<u64>,
    pub answered: Answered,
    pub probes: Vec<Probe>,
    pub classes: Vec<Class>,
    /// Containers that the application held and lost, by its numbers, and why.
    pub held_lost: BTreeMap<usize, String>,
    /// Looks of the application at what it holds, and those of them that found less than it had worked.
    pub held_looks: (u64, u64),
}

pub fn measure(plan: &Plan, topology: &Topology, what: What, progress: &mut Progress) -> Result<Changes> {
    let installation = Installation::apply_in(&PolicyFile::new(&policy::text(0))?, &topology.server)?;
    let unit = Unit::start(topology, Start::DropIn)?;
    let mut application = (what == What::Programs).then(|| Application::start(&installation)).transpose()?;
    let crowd = Crowd::start(topology)?;
    std::thread::sleep(plan.rest);
    let ended = AtomicBool::new(false);
    let (changes, probes) = std::thread::scope(|scope| {
        let probing = scope.spawn(|| topology.clients.run(|| probe::until(&ended)));
        let changes = change(plan, topology, application.as_mut(), progress);
        ended.store(true, Ordering::Relaxed);
        (changes, probing.join())
    });
    let mut changes = changes?;
    changes.probes = probes.map_err(|_| Error::failed("the prober broke"))???;
    std::thread::sleep(plan.rest);
    changes.answered = crowd.end()?;
    changes.classes = classes(&usage()?, &changes.answered, what.times(plan));
    drop((application, unit));
    installation.down()?;
    Ok(changes)
}

/// With an application, its programs change too.
fn change(
    plan: &Plan,
    topology: &Topology,
    mut application: Option<&mut Application>,
    progress: &mut Progress,
) -> Result<Changes> {
    let mut changes = Changes::default();
    let what = if application.is_some() { What::Programs } else { What::Policies };
    for number in 1..=what.times(plan) {
        let words = if what == What::Programs { "change of programs" } else { "policy" };
        progress.step(&format!("{words} {number} of {}", what.times(plan)))?;
        let begun = Instant::now();
        let next = PolicyFile::new(&policy::text(number))?;
        let before = usage()?;
        let old = application.is_some().then(Programs::become_old).transpose()?;
        let asked = Instant::now();
        change_in(&next, &topology.server)?;
        changes.ms.push(asked.elapsed().as_secs_f64() * 1e3);
        let after = usage()?;
        old.map_or(Ok(()), |old| old.are_replaced())?;
        let moved = policy::moved(number);
        changes.accounts_lost_ns += accounts::lost_ns(&before, &after, &moved);
        changes.beyond_clock.push(accounts::beyond_clock(&before, &after, cpus().len().max(1)));
        if let Some(application) = &mut application {
            for (number, why) in application.lost(&before, &after)? {
                changes.held_lost.entry(number).or_insert(why);
            }
            changes.held_looks = application.looks();
        }
        let quiet = before.iter().filter(|one| policy::is_quiet(&one.container)).map(|one| one.thread_ns);
        changes.quiet_ns = changes.quiet_ns.into_iter().chain(quiet).min();
        std::thread::sleep(match what {
            What::Policies => plan.reload_every.saturating_sub(begun.elapsed()),
            // it takes about as long as that itself
            What::Programs => plan.rest,
        });
    }
    Ok(changes)
}

/// What the clients of the two classes that stay saw, beside what their containers have; the policy with this number is in force.
pub fn classes(used: &[Used], answered: &Answered, number: usize) -> Vec<Class> {
    let class = |(client, path): (Client, String)| {
        let seen = &answered.classes[place(client)];
        let account = used.iter().find(|one| one.container == path);
        Class {
            requests: seen.latency.count() + seen.refused,
            connections: seen.connections,
            lost: seen.lost(),
            accepts: account.map_or(0, |one| one.accepts),
            thread_ns: account.map_or(0, |one| one.thread_ns),
        }
    };
    [(Client::High, policy::gold(number)), (Client::Low, policy::browse(number))].map(class).into()
}
