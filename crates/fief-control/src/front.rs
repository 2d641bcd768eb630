// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The front door's place: the network namespace of the caller and its interfaces.
//!
//! Without `front.interfaces` it is every interface that is up at the apply, except the loopback; one that comes up later is
//! guarded from the next apply on. Packets that arrive at a port of a bridge or a bond arrive at the master once more, and only
//! the master's door judges them: two doors would use up rates twice.

use std::collections::{BTreeMap, BTreeSet};

use fief_bpf::ingress::{Part, Stand};
use fief_bpf::{Context, Error, ErrorKind, Result};
use fief_policy::{Listener, Policy};
use nix::ifaddrs::getifaddrs;
use nix::net::if_::{InterfaceFlags, if_nameindex, if_nametoindex};

use crate::links;
use crate::namespace::Namespace;

/// How the names of interfaces begin that Fief makes.
pub(crate) const OWN_INTERFACES: &str = "fief-";

/// In every network namespace.
pub(crate) const LOOPBACK: u32 = 1;

/// What a policy wants of the network namespace.
#[derive(Debug)]
pub(crate) struct Doors {
    pub(crate) netns: Namespace,
    pub(crate) interfaces: Vec<u32>,
    pub(crate) others: Others,
    /// Where the queues' time comes from.
    pub(crate) ticks: Option<u32>,
    /// Numbers of the queues that it names.
    pub(crate) queues: Vec<u32>,
    /// Sysctls that are set for them.
    pub(crate) sysctls: Vec<&'static str>,
    /// Sentences: whether the kernel or the front door answers connection requests, and why.
    pub(crate) answers: Vec<String>,
}

impl Doors {
    /// Which programs stand where.
    pub(crate) fn stands(&self) -> Vec<Stand> {
        let netns = self.netns.inode;
        let guards = self.interfaces.iter().map(|&interface| Stand { netns, interface, part: Part::Guards });
        let ticks = self.ticks.map(|interface| Stand { netns, interface, part: Part::Ticks });
        guards.chain(self.others.stands(netns, &self.interfaces)).chain(ticks).collect()
    }
}

/// What a policy wants at interfaces beside the guards.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Others {
    /// At the guarded ones: some listener's upgrades have to be confirmed.
    confirms: bool,
    /// At the loopback: some listener refuses or counts what passed no guard.
    notes: bool,
    /// At the guarded ones: some listener has a queue.
    pub(crate) clocks: bool,
}

impl Others {
    pub(crate) fn of(policy: &Policy) -> Self {
        let counts = |listener: &Listener| {
            listener.is_guarded() && !listener.forward && policy.front.refuses_unguarded(listener).is_some()
        };
        Self {
            confirms: policy.listeners.iter().any(Listener::confirms_upgrades),
            notes: policy.listeners.iter().any(counts),
            clocks: policy.listeners.iter().any(|listener| listener.queue.is_some()),
        }
    }

    /// Where the guards are at these interfaces.
    pub(crate) fn stands(self, netns: u64, guarded: &[u32]) -> Vec<Stand> {
        let confirms = guarded.iter().filter(|_| self.confirms).map(|&interface| (interface, Part::Confirms));
        let notes = (self.notes && !guarded.contains(&LOOPBACK)).then_some((LOOPBACK, Part::Notes));
        let clocks = guarded.iter().filter(|_| self.clocks).map(|&interface| (interface, Part::Clocks));
        confirms.chain(clocks).chain(notes).map(|(interface, part)| Stand { netns, interface, part }).collect()
    }
}

/// An interface of the caller's network namespace.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Interface {
    pub(crate) name: String,
    pub(crate) index: u32,
}

/// The interfaces with these names, or, without names, every one that is up but the loopback; of them none whose master is
/// one too.
fn interfaces(named: &[String], notes: &mut Vec<String>) -> Result<Vec<Interface>> {
    let names = if named.is_empty() { up()? } else { named.to_vec() };
    let mut found: Vec<Interface> = names.into_iter().map(find).collect::<Result<_>>()?;
    let links = links::list()?;
    let masters = links::masters(&links);
    let guarded: BTreeSet<String> = found.iter().map(|interface| interface.name.clone()).collect();
    found.retain(|Interface { name, .. }| {
        let Some(master) = masters.get(name.as_str()).filter(|master| guarded.contains(**master)) else { return true };
        if !named.is_empty() {
            notes.push(format!("what comes in at {name} is guarded at {master}, whose port it is"));
        }
        false
    });
    Ok(found)
}

/// Whether the front door has anything to look at.
pub(crate) fn stands_before_some(policy: &Policy) -> bool {
    policy.listeners.iter().any(|listener| listener.is_guarded() || listener.lrp.is_some())
}

/// The indexes of the interfaces that a policy guards: none if it guards no listener.
pub(crate) fn doors(policy: &Policy, notes: &mut Vec<String>) -> Result<Vec<u32>> {
    if !stands_before_some(policy) {
        return Ok(Vec::new());
    }
    let interfaces = interfaces(&policy.front.interfaces, notes)?;
    if interfaces.is_empty() {
        notes.push(
            "no connection is guarded: no interface but lo is up; bring one up and apply again, or name some in \
             [front].interfaces"
                .to_owned(),
        );
    }
    Ok(interfaces.into_iter().map(|interface| interface.index).collect())
}

fn find(name: String) -> Result<Interface> {
    match if_nametoindex(name.as_str()) {
        Ok(index) => Ok(Interface { name, index }),
        Err(_) => {
            let up = up()?.join(", ");
            let what = format!("this network namespace has no interface {name}");
            Err(Error::new(ErrorKind::NotFound, what)
                .remedy(format!("name others in [front].interfaces, or leave it out; up are: {up}")))
        }
    }
}

/// The name of an interface of the caller's network namespace.
pub(crate) fn name(index: u32) -> Option<String> {
    let all = if_nameindex().ok()?;
    all.iter().find(|interface| interface.index() == index)?.name().to_str().ok().map(str::to_owned)
}

/// Names of the interfaces that are up, without the loopback.
fn up() -> Result<Vec<String>> {
    Ok(ways_in()?.into_iter().filter(|(_, is_loopback)| !is_loopback).map(|(name, _)| name).collect())
}

/// Names of the interfaces that are up, and whether one is the loopback.
pub(crate) fn ways_in() -> Result<Vec<(String, bool)>> {
    let addresses = getifaddrs().context(|| "cannot list the network interfaces".into())?;
    // an interface is there once for each of its addresses, and once without
    // by the label of the address (eth0:1), where that has one
    let real = |name: String| name.split(':').next().unwrap_or_default().to_owned();
    let flags: BTreeMap<_, _> = addresses.map(|entry| (real(entry.interface_name), entry.flags)).collect();
    // what comes out of a lane has passed the front door before
    let outside = |name: &str| !name.starts_with(OWN_INTERFACES);
    let ways = flags.into_iter().filter(|(name, flags)| flags.contains(InterfaceFlags::IFF_UP) && outside(name));
    Ok(ways.map(|(name, flags)| (name, flags.contains(InterfaceFlags::IFF_LOOPBACK))).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_loopback_is_left_out_unless_it_is_named() {
        assert!(interfaces(&[], &mut Vec::new()).expect("interfaces").iter().all(|interface| interface.name != "lo"));
        let named = interfaces(&["lo".to_owned()], &mut Vec::new()).expect("the loopback");
        assert_eq!(named, [Interface { name: "lo".to_owned(), index: 1 }]);
    }

    #[test]
    fn an_interface_that_is_not_there_is_refused_with_the_remedy() {
        let error = interfaces(&["nowhere0".to_owned()], &mut Vec::new()).expect_err("no such interface");
        assert_eq!(error.kind(), ErrorKind::NotFound);
        assert!(error.advice().is_some_and(|advice| advice.contains("[front].interfaces")));
    }
}
