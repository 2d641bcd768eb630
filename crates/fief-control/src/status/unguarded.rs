// SPDX-License-Identifier: Apache-2.0 OR MIT
//! By which interfaces connections to a guarded listener come in past the front door, and why it is not there.
//!
//! Limits: whether the routes and the firewall let anything come in by an interface is not asked; one that is up counts.

use std::collections::BTreeSet;

use fief_policy::Policy;
use serde::{Deserialize, Serialize};

use crate::{front, links};

/// An interface that is up, and that the front door is not at.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct UnguardedInterface {
    /// As ip(8) has it.
    pub name: String,
    /// Why not.
    pub why: WhyUnguarded,
}

/// Why the front door is not at an interface.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum WhyUnguarded {
    /// Only this machine's own connections come in by it.
    Loopback,
    /// `front.interfaces` names others.
    NotNamed,
    /// It came up after the policy was applied, or was made anew.
    CameLater,
}

/// In the network namespace of the front door. `guarded`: indexes of the interfaces that it is at.
pub(super) fn find(policy: &Policy, guarded: &[u32]) -> Vec<UnguardedInterface> {
    if !front::stands_before_some(policy) {
        return Vec::new();
    }
    // the interfaces that are guarded are told all the same
    let (ways, links) = (front::ways_in().unwrap_or_default(), links::list().unwrap_or_default());
    let guarded: BTreeSet<u32> = guarded.iter().copied().collect();
    let guarded: BTreeSet<&str> =
        links.iter().filter(|link| guarded.contains(&link.index)).map(|link| link.name.as_str()).collect();
    // what comes in at a port comes in at its master once more, and is judged there
    let masters = links::masters(&links);
    let is_guarded = |name: &str| guarded.contains(name) || masters.get(name).is_some_and(|of| guarded.contains(of));
    let named = &policy.front.interfaces;
    let why = |name: &String, is_loopback: bool| match named.contains(name) {
        true => WhyUnguarded::CameLater,
        false if is_loopback => WhyUnguarded::Loopback,
        false if !named.is_empty() => WhyUnguarded::NotNamed,
        false => WhyUnguarded::CameLater,
    };
    let open = ways.into_iter().filter(|(name, _)| !is_guarded(name));
    open.map(|(name, is_loopback)| UnguardedInterface { why: why(&name, is_loopback), name }).collect()
}
