// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The front door's place: the network namespace of the caller and its interfaces.
//!
//! Without `front.interfaces` it is every interface that is up at the apply, except the loopback; one that comes up later is
//! guarded from the next apply on. Packets that arrive at a port of a bridge or a bond arrive at the master once more, and only
//! the master's door judges them: two doors would use up rates twice.

use std::collections::{BTreeSet, HashMap};

use fief_bpf::ingress::{self, Part, Stand};
use fief_bpf::{Error, ErrorKind, Result};
use fief_policy::{Listener, Policy};
use nix::net::if_::{if_indextoname, if_nametoindex};

use crate::links::{self, Link};
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
    pub(crate) notes: bool,
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
    let mut found = found(names, !named.is_empty())?;
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

/// What was up a moment ago, and has gone since, needs no guard; what the policy names has to be there.
fn found(names: Vec<String>, all: bool) -> Result<Vec<Interface>> {
    let found = names.into_iter().map(find);
    if all { found.collect() } else { Ok(found.filter_map(Result::ok).collect()) }
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

/// The name of an interface of the caller's network namespace. For many of them there is [`Labels`].
pub(crate) fn name(index: u32) -> Option<String> {
    #[cfg(test)]
    tests::NAMED.with(|named| named.set(named.get() + 1));
    // nix takes the lack of one for a name without letters
    if_indextoname(index).ok()?.into_string().ok().filter(|name| !name.is_empty())
}

/// What to call the interfaces of all network namespaces: those of the caller's by their names, which are read once.
pub(crate) struct Labels {
    here: u64,
    names: HashMap<u32, String>,
}

impl Labels {
    pub(crate) fn read() -> Self {
        let links = links::list().unwrap_or_default();
        Self {
            here: Namespace::of_caller().map_or(0, |namespace| namespace.inode),
            names: links.into_iter().map(|link| (link.index, link.name)).collect(),
        }
    }

    /// Of an interface with this index in the namespace with this inode.
    pub(crate) fn of(&self, (netns, index): (u64, u32)) -> String {
        let name = self.names.get(&index).filter(|_| netns == self.here);
        name.map_or_else(|| format!("#{index}"), Clone::clone)
    }
}

/// Names of the interfaces that are up, without the loopback.
fn up() -> Result<Vec<String>> {
    Ok(ways_in()?.into_iter().filter(|(_, is_loopback)| !is_loopback).map(|(name, _)| name).collect())
}

/// Names of the interfaces that are up, and whether one is the loopback. What comes out of a pair of Fief's own has passed the front
/// door before.
pub(crate) fn ways_in() -> Result<Vec<(String, bool)>> {
    let links = links::list()?;
    // after these: such a pair comes up once its receiving end is known
    let own = ingress::own_ends(Namespace::of_caller()?.inode);
    let is_own = |link: &Link| own.contains(&link.index) || link.peer.is_some_and(|peer| own.contains(&peer));
    let ways = links.into_iter().filter(|link| link.is_up && !is_own(link));
    let mut ways: Vec<_> = ways.map(|link| (link.name, link.is_loopback)).collect();
    ways.sort();
    Ok(ways)
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::io::Write;

    use fief_testkit::{Feature, NetNs, require};

    use super::*;

    thread_local! {
        /// How often this thread asked the kernel for one name.
        pub(super) static NAMED: Cell<u32> = const { Cell::new(0) };
    }

    #[test]
    fn the_loopback_is_left_out_unless_it_is_named() {
        assert!(interfaces(&[], &mut Vec::new()).expect("interfaces").iter().all(|interface| interface.name != "lo"));
        let named = interfaces(&["lo".to_owned()], &mut Vec::new()).expect("the loopback");
        assert_eq!(named, [Interface { name: "lo".to_owned(), index: 1 }]);
    }

    #[test]
    fn interfaces_go_by_their_names_here_and_by_their_numbers_elsewhere() {
        let labels = Labels::read();
        let here = Namespace::of_caller().expect("a namespace").inode;
        assert_eq!(labels.of((here, LOOPBACK)), "lo");
        assert_eq!(
            (labels.of((here, u32::MAX)), labels.of((here + 1, LOOPBACK))),
            (format!("#{}", u32::MAX), "#1".into())
        );
        assert_eq!((name(LOOPBACK).as_deref(), name(u32::MAX)), (Some("lo"), None));
    }

    /// What was asked of the kernel is counted: the time that it takes is the machine's.
    #[test]
    fn all_interfaces_are_named_by_one_reading() {
        if !(require(Feature::Root) && require(Feature::NetNs)) {
            return;
        }
        const PAIRS: usize = 100;
        let namespace = NetNs::new("many").expect("a namespace");
        let pair = |number| format!("link add m{number} type veth peer name p{number}\n");
        let batch: String = (0..PAIRS).map(pair).collect();
        let mut file = tempfile::NamedTempFile::new().expect("a file");
        file.write_all(batch.as_bytes()).expect("written");
        namespace.ip(&format!("-batch {}", file.path().display())).expect("interfaces");
        let named = || {
            let links = links::list().expect("the kernel answers");
            let here = Namespace::of_caller().expect("a namespace").inode;
            let asked = || (links::READINGS.with(Cell::get), NAMED.with(Cell::get));
            let before = asked();
            let labels = Labels::read();
            let all: BTreeSet<String> = links.iter().map(|link| labels.of((here, link.index))).collect();
            let now = asked();
            (all, now.0 - before.0, now.1 - before.1)
        };
        let (all, readings, names) = namespace.run(named).expect("in the namespace");
        assert!(all.len() > 2 * PAIRS && all.contains("m99"), "{} names", all.len());
        assert_eq!((readings, names), (1, 0), "of all, and of one");
    }

    #[test]
    fn one_that_has_gone_since_stops_only_a_policy_that_names_it() {
        let names = || ["gone0", "lo"].map(str::to_owned).to_vec();
        assert_eq!(found(names(), true).expect_err("named").kind(), ErrorKind::NotFound);
        let left = found(names(), false).expect("the others");
        assert_eq!(left, [Interface { name: "lo".to_owned(), index: LOOPBACK }]);
    }

    #[test]
    fn an_interface_that_is_not_there_is_refused_with_the_remedy() {
        let error = interfaces(&["nowhere0".to_owned()], &mut Vec::new()).expect_err("no such interface");
        assert_eq!(error.kind(), ErrorKind::NotFound);
        assert!(error.advice().is_some_and(|advice| advice.contains("[front].interfaces")));
    }
}
