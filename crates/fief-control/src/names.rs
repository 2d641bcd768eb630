// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Names for the kernel side's numbers, from the policy in force.

use std::collections::BTreeMap;

use fief::abi;
use fief_bpf::Result;
use fief_bpf::table::Table;
use fief_policy::Policy;

use crate::Fief;
use crate::tree::Tree;

/// Listeners and containers by number.
#[derive(Debug)]
pub(crate) struct Names {
    listeners: BTreeMap<u16, String>,
    tree: Tree,
    policy: Option<Policy>,
}

impl Names {
    pub(crate) fn read(fief: &Fief, table: &Table) -> Result<Self> {
        let tree = Tree::read(table);
        // the text is for people; without it listeners go by their addresses
        let policy = fief.policy_text()?.and_then(|text| fief_policy::parse(&text, "policy").ok());
        let indexes = fief.steer_tables()?.indexes(tree.slot as u8)?;
        let mut listeners = BTreeMap::new();
        for (address, index) in indexes {
            let named = policy.as_ref().and_then(|policy| listener_of(policy, address));
            listeners.insert(index, named.unwrap_or_else(|| address.to_string()));
        }
        Ok(Self { listeners, tree, policy })
    }

    /// The policy in force, if its text is there.
    pub(crate) fn policy(&self) -> Option<&Policy> {
        self.policy.as_ref()
    }

    /// All containers.
    pub(crate) fn tree(&self) -> &Tree {
        &self.tree
    }

    /// The slot of the policy in force.
    pub(crate) fn slot(&self) -> u32 {
        self.tree.slot
    }

    /// Those of the policy in force, by number.
    pub(crate) fn listeners(&self) -> impl Iterator<Item = (u16, &str)> {
        self.listeners.iter().map(|(index, name)| (*index, name.as_str()))
    }

    pub(crate) fn listener(&self, index: u16) -> String {
        let unknown = || match u32::from(index) {
            abi::FIEF_NO_LISTENER => "(none)".to_owned(),
            _ => format!("#{index}"),
        };
        self.listeners.get(&index).cloned().unwrap_or_else(unknown)
    }

    /// Whether the policy in force has it; what belongs to none is there always.
    pub(crate) fn has_listener(&self, index: u16) -> bool {
        u32::from(index) == abi::FIEF_NO_LISTENER || self.listeners.contains_key(&index)
    }

    /// Whether it has not ended; likewise.
    pub(crate) fn has_container(&self, container: abi::fief_ref) -> bool {
        container.id == abi::FIEF_NO_ID || self.tree.has(container)
    }

    pub(crate) fn container(&self, container: abi::fief_ref) -> String {
        match self.tree.row(container) {
            Some(row) => self.tree.path(row),
            None if container.id == abi::FIEF_NO_ID => "(none)".to_owned(),
            None => format!("#{}", container.id),
        }
    }
}

fn listener_of(policy: &Policy, address: std::net::SocketAddr) -> Option<String> {
    policy.listeners.iter().find(|listener| listener.address == address).map(|listener| listener.name.clone())
}
