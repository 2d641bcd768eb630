// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Names for the kernel side's numbers, from the policy in force.

use std::collections::BTreeMap;

use fief_bpf::Result;
use fief_bpf::abi;
use fief_bpf::table::Table;
use fief_policy::Policy;

use crate::Fief;
use crate::tree::Tree;

/// The listeners of the policy in force, by number.
#[derive(Debug)]
pub(crate) struct Listeners {
    by_number: BTreeMap<u16, String>,
    policy: Option<Policy>,
}

impl Listeners {
    /// `slot`: of the policy in force.
    pub(crate) fn read(fief: &Fief, slot: u32) -> Result<Self> {
        // the text is for people; without it listeners go by their addresses
        let policy = fief.policy_text_of(slot)?.and_then(|text| fief_policy::parse(&text, "policy").ok());
        let indexes = fief.steer_tables()?.indexes(slot as u8)?;
        let mut by_number = BTreeMap::new();
        for (address, index) in indexes {
            let named = policy.as_ref().and_then(|policy| listener_of(policy, address));
            by_number.insert(index, named.unwrap_or_else(|| address.to_string()));
        }
        Ok(Self { by_number, policy })
    }

    /// The policy in force, if its text is there.
    pub(crate) fn policy(&self) -> Option<&Policy> {
        self.policy.as_ref()
    }

    pub(crate) fn all(&self) -> impl Iterator<Item = (u16, &str)> {
        self.by_number.iter().map(|(index, name)| (*index, name.as_str()))
    }
}

/// Listeners and containers by number.
#[derive(Debug)]
pub(crate) struct Names {
    listeners: Listeners,
    tree: Tree,
}

impl Names {
    pub(crate) fn read(fief: &Fief, table: &Table) -> Result<Self> {
        let tree = Tree::read(table);
        Ok(Self { listeners: Listeners::read(fief, tree.slot)?, tree })
    }

    /// The policy in force, if its text is there.
    pub(crate) fn policy(&self) -> Option<&Policy> {
        self.listeners.policy()
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
        self.listeners.all()
    }

    pub(crate) fn listener(&self, index: u16) -> String {
        let unknown = || match u32::from(index) {
            abi::FIEF_NO_LISTENER => "(none)".to_owned(),
            _ => format!("#{index}"),
        };
        self.listeners.by_number.get(&index).cloned().unwrap_or_else(unknown)
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
