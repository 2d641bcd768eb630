// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Ticks: time for queues in which requests wait (`bpf/front/ticks.bpf.h`). A pair of virtual interfaces whose sending end lets
//! one small packet go in each [`TICK`]: a packet that the kernel side sends round there comes back when that has passed.
//!
//! ```text
//! fief-clock ~~~~~~~~~> fief-ticks     alias: fief clock SCOPE
//! token bucket filter   program
//! ```

use std::time::Duration;

use fief_bpf::ingress::{self, Part, Stand};
use fief_bpf::{Context, Result};
use fief_policy::Policy;
use nix::sys::socket::SockProtocol;

use crate::Fief;
use crate::front::OWN_INTERFACES;
use crate::links;
use crate::namespace::{Namespace, within};
use crate::netlink::{self, NESTED, attribute_bytes, terminated};
use crate::veth::{self, Pair, tag};

/// Between two packets of all queues together.
const TICK: Duration = Duration::from_millis(2);
/// A packet of the kernel side's with its link header (`CARRIER_LEAST`).
const BYTES: u32 = 128;
/// The interfaces need no larger packets, and the kernel has no IPv6 on such.
const MTU: u32 = BYTES - 14;
/// Packets that may wait for their turn.
const PACKETS: u32 = 4096;

const NEW_QDISC: u16 = 36;
const CREATE_REPLACE: u16 = 0x500; // NLM_F_CREATE | NLM_F_REPLACE
const AT_ROOT: u32 = u32::MAX;
const QDISC_KIND: u16 = 1;
const QDISC_OPTIONS: u16 = 2;
const TBF_PARAMETERS: u16 = 1;
const TBF_BURST: u16 = 6;
const LINK_LAYER_ETHERNET: u8 = 1;

/// Who sends, who receives.
fn names(scope: &str) -> [String; 2] {
    let tag = tag(scope);
    ["clock", "ticks"].map(|end| format!("{OWN_INTERFACES}{end}{tag}"))
}

fn alias(scope: &str) -> String {
    format!("fief clock {scope}")
}

impl Fief {
    /// Time for the queues of a policy, if it has some. Without it they go on, as packets come.
    pub(crate) fn stage_ticks(&self, policy: &Policy, notes: &mut Vec<String>) -> Option<Pair> {
        policy.listeners.iter().find(|listener| listener.queue.is_some())?;
        let pair = self.ticks();
        if let Err(error) = &pair {
            notes.push(format!("requests that wait are looked after only when packets come: {error}"));
        }
        pair.ok()
    }

    /// The pair in the caller's network namespace: as it is, or made.
    fn ticks(&self) -> Result<Pair> {
        let scope = self.pins().scope();
        let there = find(scope)?;
        let pair = match there {
            Some(pair) => pair, // somebody may have changed it
            None => {
                self.remove_ticks_here(None)?; // half of one
                veth::make(names(scope), MTU)?
            }
        };
        // before it is up: by this it is known for Fief's own (front::ways_in)
        let receives = Stand { netns: Namespace::of_caller()?.inode, interface: pair.receives, part: Part::Ticks };
        let done = ingress::attach(self.pins(), &[receives])
            .and_then(|()| slow_down(pair.sends))
            .and_then(|()| veth::raise(pair, &alias(scope)));
        if done.is_err() && there.is_none() {
            // the error that stopped it is the one to tell; what was there gives the policy in force its time
            let _ = veth::remove(pair.sends);
        }
        done.map(|()| pair)
    }

    /// After a policy that did not come into force: removes what the one before does not use.
    pub(crate) fn retire_new_ticks(&self) -> Result<()> {
        let here = Namespace::of_caller()?.inode;
        let used = |stand: &Stand| stand.part == Part::Ticks && stand.netns == here;
        self.remove_ticks_here(ingress::standing(self.pins()).into_iter().find(used).map(|stand| stand.interface))
    }

    /// Removes the pairs of this scope but the one that receives at `keep` in the caller's network namespace.
    pub(crate) fn retire_ticks(&self, keep: Option<u32>) -> Result<()> {
        let here = Namespace::of_caller()?.inode;
        let elsewhere = ingress::standing(self.pins()).into_iter().filter(|stand| stand.part == Part::Ticks);
        for stand in elsewhere.filter(|stand| stand.netns != here) {
            within(stand.netns, || self.remove_ticks_here(None))?;
        }
        self.remove_ticks_here(keep)
    }

    fn remove_ticks_here(&self, keep: Option<u32>) -> Result<()> {
        let scope = self.pins().scope();
        let names = names(scope);
        let ours = |link: &links::Link| {
            let is_ours = link.alias.is_empty() || link.alias == alias(scope);
            link.is_of_pair() && names.contains(&link.name) && is_ours
        };
        let there: Vec<_> = links::list()?.into_iter().filter(ours).collect();
        if there.iter().any(|link| Some(link.index) == keep) {
            return Ok(());
        }
        there.iter().try_for_each(|link| veth::remove(link.index))
    }
}

/// A pair that is whole.
fn find(scope: &str) -> Result<Option<Pair>> {
    let links = links::list()?;
    let index = |name: &String| {
        let ours = |link: &&links::Link| link.is_of_pair() && link.name == *name && link.alias == alias(scope);
        links.iter().find(ours).map(|link| link.index)
    };
    let [sends, receives] = names(scope);
    Ok(index(&sends).zip(index(&receives)).map(|(sends, receives)| Pair { sends, receives }))
}

/// Has an interface send one packet a tick.
fn slow_down(interface: u32) -> Result<()> {
    let rate = (f64::from(BYTES) / TICK.as_secs_f64()) as u32;
    // struct tc_ratespec twice, of which the second is not used; then limit, buffer and mtu
    let mut parameters = vec![0, LINK_LAYER_ETHERNET, 0, 0, 0, 0, 0, 0];
    parameters.extend(rate.to_ne_bytes());
    parameters.extend([0; 12]);
    parameters.extend((PACKETS * BYTES).to_ne_bytes());
    parameters.extend([0; 8]);
    let options = [
        attribute_bytes(TBF_PARAMETERS, &parameters),
        attribute_bytes(TBF_BURST, &(2 * BYTES).to_ne_bytes()), // the kernel warns of less than a packet
    ];
    // struct tcmsg: family, interface, handle, parent, info
    let mut request = vec![0; 4];
    request.extend(interface.to_ne_bytes());
    request.extend(0u32.to_ne_bytes());
    request.extend(AT_ROOT.to_ne_bytes());
    request.extend(0u32.to_ne_bytes());
    request.extend(attribute_bytes(QDISC_KIND, &terminated("tbf")));
    request.extend(attribute_bytes(QDISC_OPTIONS | NESTED, &options.concat()));
    netlink::change(SockProtocol::NetlinkRoute, NEW_QDISC, CREATE_REPLACE, &request)
        .context(|| format!("cannot give the interface {interface} a token bucket filter (sch_tbf)"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_fit_into_what_the_kernel_allows() {
        for scope in ["fief", "ff-123456-7"] {
            assert!(names(scope).iter().all(|name| name.len() < 16));
        }
    }
}
