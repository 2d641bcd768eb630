// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Changes of the machine since a policy was applied, if another apply would make the front door do more. No process watches
//! for them; commands that show the front door report them.

use std::collections::{BTreeMap, BTreeSet};

use fief_bpf::{Result, abi, batch, ingress, open};
use fief_policy::{Handshake, Listener, Policy};

use crate::handshake::{choose, multipath, multipath_note};
use crate::listening::{self, Listening};
use crate::names::Names;
use crate::sysctls::{COOKIES, LOOPBACK_QUEUES, read};
use crate::{Fief, front, namespace};

/// Of a guard that holds connections: it admits, and does more than watch.
const HOLDS: u32 = abi::FIEF_GUARD_ADMIT | abi::FIEF_GUARD_MONITOR;

/// How the front door was made by the apply.
struct Made {
    /// Indexes of the interfaces that it is at.
    interfaces: BTreeSet<u32>,
    /// Listeners that are admitted, and whether the kernel answers for them.
    admitted: BTreeMap<String, bool>,
}

impl Fief {
    /// What is to be said of the front door in force, a sentence each; nothing if the policy's text is gone.
    pub(crate) fn outdated(&self, names: &Names) -> Result<Vec<String>> {
        let Some((policy, netns)) = names.policy().zip(open::steered(self.pins())) else { return Ok(Vec::new()) };
        let made = self.made(names, netns.inode)?;
        Ok(namespace::within(netns, || Ok(since(policy, &made)))?.unwrap_or_default())
    }

    /// Whether a server listens with multipath TCP, for which another apply would let the kernel answer.
    pub(crate) fn kernel_should_answer(&self, names: &Names) -> Result<bool> {
        let Some((policy, netns)) = names.policy().zip(open::steered(self.pins())) else { return Ok(false) };
        let made = self.made(names, netns.inode)?;
        let is_ours = policy.front.handshake == Handshake::Auto && made.admitted.values().any(|kernel| !kernel);
        Ok(is_ours && namespace::within(netns, || Ok(!made.multipath(policy).is_empty()))?.unwrap_or(false))
    }

    fn made(&self, names: &Names, netns: u64) -> Result<Made> {
        let places = ingress::attached(self.pins());
        let guards: Vec<(u32, abi::fief_guard)> = batch::entries(&self.map("guards")?)?;
        let slot = names.slot();
        let admitted = guards
            .iter()
            .filter(|(at, guard)| at / abi::FIEF_MAX_LISTENERS == slot && guard.flags & HOLDS == abi::FIEF_GUARD_ADMIT)
            .map(|(at, guard)| {
                let index = u16::try_from(at % abi::FIEF_MAX_LISTENERS).expect("listeners are fewer");
                (names.listener(index), guard.flags & abi::FIEF_GUARD_KERNEL != 0)
            })
            .collect();
        let interfaces = places.into_iter().filter(|place| place.0 == netns).map(|(_, index)| index).collect();
        Ok(Made { interfaces, admitted })
    }
}

impl Made {
    /// Listeners that Fief answers for, at which a multipath socket listens; such a server may have started since.
    fn multipath<'a>(&self, policy: &'a Policy) -> Vec<(&'a Listener, Listening)> {
        let sockets = listening::find().unwrap_or_default();
        let ours = policy.listeners.iter().filter(|listener| self.admitted.get(&listener.name) == Some(&false));
        ours.filter_map(|listener| Some((listener, multipath(&sockets, listener)?.clone()))).collect()
    }
}

/// In the network namespace of the front door.
fn since(policy: &Policy, made: &Made) -> Vec<String> {
    let mut said = Vec::new();
    // an interface that is named and gone is missed by whoever looks for it
    let now = front::doors(policy, &mut Vec::new()).unwrap_or_default();
    let new: Vec<String> =
        now.into_iter().filter(|index| !made.interfaces.contains(index)).filter_map(front::name).collect();
    if !new.is_empty() {
        let refuses = |listener: &Listener| {
            listener.is_guarded() && !listener.forward && policy.front.refuses_unguarded(listener) == Some(true)
        };
        let refused: Vec<_> =
            policy.listeners.iter().filter(|listener| refuses(listener)).map(|listener| &*listener.name).collect();
        let becomes = if refused.is_empty() {
            String::new()
        } else {
            format!(", so connections to {} are refused there", refused.join(", "))
        };
        said.push(format!("what comes in at {} is not guarded{becomes}: it came up after the policy", new.join(", ")));
    }
    let [ours, kernels] = [false, true].map(|kernel| made.admitted.values().any(|answers| *answers == kernel));
    if ours && policy.front.handshake == Handshake::Auto {
        let (kernel, why) = choose(policy.front.handshake);
        if kernel {
            said.push(format!(
                "the front door answers connection requests itself, and since then {why}: it may drop whole connections"
            ));
        }
    }
    let cookies = read(COOKIES).unwrap_or_default();
    if ours && cookies == "0" || kernels && cookies != "2" {
        said.push(format!("{COOKIES} is {cookies} now: the kernel no longer takes every connection that is admitted"));
    }
    if policy.queues_at_loopback() {
        for (name, wanted) in LOOPBACK_QUEUES {
            let now = read(name).unwrap_or_default();
            if now != wanted {
                said.push(format!("{name} is {now} now: the kernel drops what comes out of a queue at lo"));
            }
        }
    }
    for sentence in &mut said {
        sentence.push_str("; apply the policy again");
    }
    for (listener, socket) in made.multipath(policy) {
        let again = if policy.front.handshake == Handshake::Auto { ", and apply the policy again" } else { "" };
        said.push(multipath_note(&listener.name, &socket) + again);
    }
    said
}
