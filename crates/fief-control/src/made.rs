// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Segments of a connection begin no other one (bpf/front/made): a program at the top of the cgroups, which every packet to a socket of the
//! machine passes while some listener counts or rules connections.
//!
//! Limits: what stands behind the door at an interface, and ends its chain with OK, takes the mark that this program goes by. So it is said.

use std::fs::File;
use std::os::fd::AsFd;

use fief_bpf::{Context, Result, chain, top};
use fief_policy::Policy;
use nix::sys::socket::SockProtocol;

use crate::netlink::{attribute, dump, text};
use crate::{Fief, cgroup, links};

const GET_FILTERS: u16 = 46; // RTM_GETTFILTER
const FILTER: usize = 20; // struct tcmsg
const FILTER_KIND: u16 = 1;
/// TC_H_CLSACT, TC_H_MIN_INGRESS
const INGRESS: u32 = 0xffff_fff2;

/// Whether a listener of the policy needs it. A server of multipath TCP, at which the kernel makes connections of its cookies, may begin to
/// listen at any time.
pub(crate) fn wanted(policy: &Policy) -> bool {
    policy.listeners.iter().any(|listener| listener.is_guarded() && !listener.forward && !policy.watches(listener))
}

impl Fief {
    pub(crate) fn keep_made(&self) -> Result<()> {
        let path = cgroup::mount_point()?;
        let folder = File::open(&path).context(|| format!("cannot open {}", path.display()))?;
        top::attach(self.pins(), folder.as_fd())
    }

    /// The same; what cannot be is said, and stops nothing.
    pub(crate) fn try_to_keep_made(&self) -> Option<String> {
        let error = self.keep_made().err()?;
        Some(format!("{CONSEQUENCE}: {error}"))
    }

    /// A sentence for those that may take the mark, somebody else's programs and filters at guarded interfaces.
    pub(crate) fn takers_of_marks(&self, guarded: &[u32]) -> Option<String> {
        // an interface that has gone meanwhile has none
        let behind = |interface: u32| {
            let programs = chain::behind_guards(self.pins(), interface).unwrap_or_default();
            (interface, behind(programs, &filters(interface)))
        };
        let found: Vec<_> =
            guarded.iter().map(|&interface| behind(interface)).filter(|(_, who)| !who.is_empty()).collect();
        let (first, who) = found.first()?;
        let links = links::list().unwrap_or_default();
        let name = links.iter().find(|link| link.index == *first).map_or("an interface", |link| link.name.as_str());
        let more = match found.len() - 1 {
            0 => String::new(),
            more => format!(", and others at {more} more interfaces"),
        };
        Some(format!(
            "{name}: behind the door stands {who}{more}. Where one ends the chain with OK, {CONSEQUENCE}: let it return TC_ACT_UNSPEC, or \
             attach it before the door"
        ))
    }
}

const CONSEQUENCE: &str = "a cookie of the kernel's that comes back in one batch with what ends its connection is not counted, and its bytes are not ruled";

/// The kinds of the filters at an interface (`flower`, `bpf`): a kernel or an interface without any refuses to answer.
fn filters(interface: u32) -> Vec<String> {
    let mut request = [0; FILTER];
    request[4..8].copy_from_slice(&interface.to_ne_bytes());
    request[12..16].copy_from_slice(&INGRESS.to_ne_bytes());
    let all = dump(SockProtocol::NetlinkRoute, GET_FILTERS, &request).unwrap_or_default();
    let mut kinds: Vec<_> = all
        .iter()
        .filter_map(|payload| attribute(payload.get(FILTER..)?, FILTER_KIND))
        .map(|kind| text(kind).to_owned())
        .collect();
    kinds.sort();
    kinds.dedup();
    kinds
}

/// For people; empty: nobody stands there.
fn behind(programs: Vec<String>, filters: &[String]) -> String {
    let program = |name| format!("the tcx program {name}");
    let filter = |kind| format!("a tc filter of the kind {kind}");
    programs.into_iter().map(program).chain(filters.iter().map(filter)).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_stands_behind_is_named() {
        assert_eq!(behind(Vec::new(), &[]), "");
        let found = behind(vec!["from_netdev".into()], &["bpf".into()]);
        assert_eq!(found, "the tcx program from_netdev, a tc filter of the kind bpf");
    }
}
