// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Policies that change while clients are served: what the clients lose, whether one policy or the other is in force all the time,
//! whether accounts are kept, and how long a change takes.

use super::classes::Class;
use super::crowd::{Answered, Crowd, place};
use super::probe::{self, Probe};
use super::unit::{Start, Unit};
use super::{Plan, accounts, policy};
use crate::command::{PolicyFile, Used, usage};
use crate::error::{Error, Result};
use crate::installation::Installation;
use crate::progress::Progress;
use fief_testkit::{Client, Topology};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

#[derive(Debug, Default)]
pub struct Reloads {
    /// From the start of `fief apply` to its end.
    pub ms: Vec<f64>,
    pub accounts_lost_ns: u64,
    /// The least that a tenant without clients had when a policy changed.
    pub quiet_ns: Option<u64>,
    pub answered: Answered,
    pub probes: Vec<Probe>,
    pub classes: Vec<Class>,
}

pub fn measure(plan: &Plan, topology: &Topology, progress: &mut Progress) -> Result<Reloads> {
    let installation = Installation::apply_in(&PolicyFile::new(&policy::text(0))?, &topology.server)?;
    let unit = Unit::start(topology, Start::DropIn)?;
    let crowd = Crowd::start(topology)?;
    std::thread::sleep(plan.rest);
    let ended = AtomicBool::new(false);
    let (reloads, probes) = std::thread::scope(|scope| {
        let probing = scope.spawn(|| topology.clients.run(|| probe::until(&ended)));
        let reloads = reload(plan, topology, &installation, progress);
        ended.store(true, Ordering::Relaxed);
        (reloads, probing.join())
    });
    let mut reloads = reloads?;
    reloads.probes = probes.map_err(|_| Error::failed("the prober broke"))???;
    std::thread::sleep(plan.rest);
    reloads.answered = crowd.end()?;
    reloads.classes = classes(&usage()?, &reloads.answered, plan.reloads);
    drop(unit);
    installation.down()?;
    Ok(reloads)
}

fn reload(plan: &Plan, topology: &Topology, installation: &Installation, progress: &mut Progress) -> Result<Reloads> {
    let mut reloads = Reloads::default();
    for number in 1..=plan.reloads {
        progress.step(&format!("policy {number} of {}", plan.reloads))?;
        let begun = Instant::now();
        let next = PolicyFile::new(&policy::text(number))?;
        let before = usage()?;
        let asked = Instant::now();
        installation.change_in(&next, &topology.server)?;
        reloads.ms.push(asked.elapsed().as_secs_f64() * 1e3);
        let moved = policy::moved(number);
        reloads.accounts_lost_ns += accounts::lost_ns(&before, &usage()?, &moved);
        let quiet = before.iter().filter(|one| policy::is_quiet(&one.container)).map(|one| one.thread_ns);
        reloads.quiet_ns = reloads.quiet_ns.into_iter().chain(quiet).min();
        std::thread::sleep(plan.reload_every.saturating_sub(begun.elapsed()));
    }
    Ok(reloads)
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
