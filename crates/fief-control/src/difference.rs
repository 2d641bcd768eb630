// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What applying a policy would change of what is in force: containers, listeners and who serves them, homes of managed units.
//! Nothing is changed for it, and nothing is locked: it holds for the moment of the question.

use std::collections::BTreeSet;

use fief_bpf::table::{Row, Table};
use fief_bpf::{Result, abi, ingress, open};
use fief_policy::{Listener, Policy};

use crate::homes::LostHome;
use crate::namespace::Namespace;
use crate::renamed::There;
use crate::status::{Here, Kernel};
use crate::tree::Tree;
use crate::{Fief, ListenerStatus, ServerStatus, front, namespace};

/// What applying would change.
#[derive(Debug, Clone, Default)]
pub struct Difference {
    /// The policy in force; `None`: there is none, or its text was removed.
    pub before: Option<Policy>,
    /// Whether anything is in force.
    pub in_force: bool,
    /// Paths of containers that would be new.
    pub made: Vec<String>,
    /// Paths of containers that are there; their usage goes on.
    pub kept: Vec<String>,
    /// Old and new paths of containers that would be renamed; their usage goes on.
    pub renamed: Vec<(String, String)>,
    /// Containers that the policy no longer names, the deepest first.
    pub ended: Vec<Ending>,
    /// Listeners that are not the same in both.
    pub listeners: Vec<ListenerChange>,
    /// The programs in force are of another version, and this one's would take over.
    pub programs: bool,
    /// Interfaces that would be guarded from then on.
    pub guarded: Vec<String>,
    /// Interfaces that would be guarded no longer.
    pub unguarded: Vec<String>,
    /// Managed cgroups whose home would end.
    pub units: Vec<LostHome>,
}

/// A container that a policy no longer names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ending {
    /// Its path.
    pub path: String,
    /// Somebody holds it: it would live until they let go.
    pub held: bool,
    /// Path of the container that it would live below, and that its usage goes to if it passes it up.
    pub below: String,
}

/// A listener that would be another one.
#[derive(Debug, Clone)]
pub struct ListenerChange {
    /// As it is in force; `None`: it is new.
    pub before: Option<Listener>,
    /// As it would be; `None`: it is lost.
    pub now: Option<Listener>,
    /// Who listens now at the addresses that it would have, or had if it is lost.
    pub servers: Vec<ServerStatus>,
}

impl Fief {
    /// What [`apply`](Fief::apply) of this policy would change. Changes nothing.
    pub fn difference(&self, policy: &Policy) -> Result<Difference> {
        if !self.installed() {
            let made = policy.containers.iter().map(|container| container.path.clone()).collect();
            let listeners = changes(&[], policy, &Here::look(policy, &Kernel::default()).listeners, &[]);
            return Ok(Difference { made, listeners, ..Difference::default() });
        }
        let snapshot = self.snapshot()?;
        let names = self.names()?;
        let kernel = Kernel::read(self, &names, &snapshot)?;
        let before = names.policy();
        let serve = |policy| Here::look(policy, &kernel).listeners;
        let listeners = match before {
            None => Vec::new(),
            Some(before) => {
                let netns = open::steered(self.pins()).unwrap_or_default();
                let then = namespace::within(netns, || Ok(serve(before)))?.unwrap_or_default();
                changes(&before.listeners, policy, &serve(policy), &then)
            }
        };
        let table = Table::open(self.pins())?;
        let tree = Tree::read(&table);
        let (guarded, unguarded) = self.interfaces_change(policy)?;
        let there = There::of(policy, &tree);
        let is_renamed = |path: &String| there.renamed.iter().any(|(_, new)| new == path);
        let paths = policy.containers.iter().map(|of| of.path.clone()).filter(|path| !is_renamed(path));
        let (kept, made) = paths.partition(|path| there.get(path).is_some());
        Ok(Difference {
            in_force: true,
            made,
            kept,
            units: self.lost_homes(policy)?,
            ended: ended(&tree, &there),
            listeners,
            programs: table.build() != fief_bpf::build(),
            guarded,
            unguarded,
            renamed: there.renamed,
            before: before.cloned(),
        })
    }
}

impl Fief {
    /// Interfaces that applying would guard, and that it would leave, by name.
    fn interfaces_change(&self, policy: &Policy) -> Result<(Vec<String>, Vec<String>)> {
        let here = Namespace::of_caller()?.inode;
        let now: BTreeSet<_> = ingress::attached(self.pins()).into_iter().collect();
        let then: BTreeSet<_> = front::doors(policy, &mut Vec::new())?.into_iter().map(|index| (here, index)).collect();
        let labels = front::Labels::read();
        let only = |of: &BTreeSet<(u64, u32)>, other: &BTreeSet<(u64, u32)>| -> Vec<String> {
            of.difference(other).map(|at| labels.of(*at)).collect()
        };
        Ok((only(&then, &now), only(&now, &then)))
    }
}

fn ended(tree: &Tree, there: &There) -> Vec<Ending> {
    let stays = |row: &Row| there.keeps(row);
    let now = |of| tree.rows().iter().find(|row| row.container == of).map_or_else(String::new, |row| tree.path(row));
    let path = |of| there.path_of(of).map_or_else(|| now(of), str::to_owned);
    let ending = |row: &Row| Ending {
        path: tree.path(row),
        // the policy itself has one handle
        held: row.record.refs & abi::FIEF_HOLDERS_MASK != u64::from(abi::FIEF_HANDLE),
        below: path(tree.nearest_above(row, stays)),
    };
    tree.of_policy().into_iter().filter(|row| !stays(row)).map(ending).collect()
}

/// `now` and `then`: who serves the listeners of the new policy and of the old one.
fn changes(old: &[Listener], policy: &Policy, now: &[ListenerStatus], then: &[ListenerStatus]) -> Vec<ListenerChange> {
    let servers = |of: &[ListenerStatus], listener: &Listener| {
        let status = of.iter().find(|status| status.name == listener.name);
        status.map(|status| status.servers.clone()).unwrap_or_default()
    };
    let mut changes = Vec::new();
    for listener in &policy.listeners {
        let before = old.iter().find(|before| before.name == listener.name);
        if before != Some(listener) {
            let servers = servers(now, listener);
            changes.push(ListenerChange { before: before.cloned(), now: Some(listener.clone()), servers });
        }
    }
    for lost in old.iter().filter(|before| policy.listener(&before.name).is_none()) {
        changes.push(ListenerChange { before: Some(lost.clone()), now: None, servers: servers(then, lost) });
    }
    changes
}

#[cfg(test)]
mod tests {
    use super::*;

    fn policy(listeners: &[(&str, u16)]) -> Policy {
        let listener = |(name, port): &(&str, u16)| {
            format!(
                "[listener.{name}]\naddress = \"0.0.0.0:{port}\"\n\
                 [[listener.{name}.client]]\nfrom = [\"any\"]\ncontainer = \"a\"\n"
            )
        };
        let text = format!("version = 1\n[container.a]\n{}", listeners.iter().map(listener).collect::<String>());
        fief_policy::parse(&text, "policy").unwrap_or_else(|errors| panic!("{errors}"))
    }

    #[test]
    fn listeners_are_won_lost_or_changed_and_those_that_stay_are_not_told() {
        let old = policy(&[("stays", 80), ("moves", 81), ("goes", 82)]);
        let new = policy(&[("comes", 83), ("moves", 84), ("stays", 80)]);
        let served = |name: &str| {
            let address = "0.0.0.0:82".parse().expect("an address");
            let server = ServerStatus {
                address,
                class: None,
                pid: Some(7),
                program: "nginx".into(),
                unit: None,
                managed: false,
            };
            ListenerStatus {
                name: name.into(),
                address,
                serve: fief_policy::Serve::Shared,
                mode: fief_policy::Mode::Enforce,
                classes: crate::Classes::default(),
                servers: vec![server],
            }
        };
        let changes = changes(&old.listeners, &new, &[served("comes")], &[served("goes"), served("moves")]);
        let port = |listener: &Option<Listener>| listener.as_ref().map(|listener| listener.address.port());
        let told: Vec<_> = changes.iter().map(|of| (port(&of.before), port(&of.now), of.servers.len())).collect();
        assert_eq!(told, [(None, Some(83), 1), (Some(81), Some(84), 0), (Some(82), None, 1)]);
    }
}
