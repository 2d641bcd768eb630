// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What the machine has changed since a policy was applied, as far as the front door does less for it than it would after
//! another apply. Nobody watches meanwhile; whoever looks at the front door is told.

use fief_bpf::{Result, abi, batch, ingress, open};
use fief_policy::{Handshake, Policy};

use crate::handshake::{COOKIES, choose, read};
use crate::names::Names;
use crate::{Fief, front, namespace};

/// How the front door was made by the apply.
struct Made {
    /// Indexes of the interfaces that it is at.
    interfaces: Vec<u32>,
    admits: bool,
    kernel_answers: bool,
}

impl Fief {
    /// What is to be said of the front door in force, a sentence each; nothing if the policy's text is gone.
    pub(crate) fn outdated(&self, names: &Names) -> Result<Vec<String>> {
        let places = ingress::attached(self.pins());
        let Some((policy, netns)) = names.policy().zip(open::steered(self.pins())) else { return Ok(Vec::new()) };
        let guards: Vec<(u32, abi::fief_guard)> = batch::entries(&self.map("guards")?)?;
        let mut flags = guards
            .iter()
            .filter(|(at, _)| at / abi::FIEF_MAX_LISTENERS == names.slot())
            .map(|(_, guard)| guard.flags)
            .filter(|flags| flags & abi::FIEF_GUARD_ADMIT != 0);
        let first = flags.next();
        let made = Made {
            interfaces: places.into_iter().filter(|place| place.0 == netns).map(|(_, index)| index).collect(),
            admits: first.is_some(),
            kernel_answers: first.is_some_and(|flags| flags & abi::FIEF_GUARD_KERNEL != 0),
        };
        Ok(namespace::within(netns, || Ok(since(policy, &made)))?.unwrap_or_default())
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
        said.push(format!("what comes in at {} is not guarded: it came up after the policy", new.join(", ")));
    }
    if made.admits && !made.kernel_answers && policy.front.handshake == Handshake::Auto {
        let (kernel, why) = choose(policy.front.handshake);
        if kernel {
            said.push(format!(
                "the front door answers connection requests itself, and since then {why}: it may drop whole connections"
            ));
        }
    }
    let cookies = read(COOKIES).unwrap_or_default();
    if made.admits && (cookies == "0" || made.kernel_answers && cookies != "2") {
        said.push(format!("{COOKIES} is {cookies} now: the kernel no longer takes every connection that is admitted"));
    }
    for sentence in &mut said {
        sentence.push_str("; apply the policy again");
    }
    said
}
