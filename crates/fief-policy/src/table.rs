// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Class tables: the client rules of a listener as entries of a longest-prefix lookup.
//!
//! The kernel finds the longest matching prefix; the policy says that the first matching rule wins. The two agree because
//! all prefixes that the rules name, of both families, form a tree: on what remains of a prefix without the longer ones
//! inside of it, no rule changes its mind. So each prefix gets the first rule that holds there (`sweep`), and an entry
//! that says what the next shorter one says already is left out.
//!
//! The table decides nothing about the kernel's keys: `fief-control` turns entries into records.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv6Addr};

use ipnet::Ipv6Net;
use serde::Serialize;

use crate::bloom::{self, prefix_hash};
use crate::model::{AcceptOrder, Client, From, Listener};
use crate::reach::Reach;
use crate::sweep::{self, Prefix, Universe};

/// The compiled client rules of one listener.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ClassTable {
    /// Rules that name the same container with the same order of accept share a class. The containers of request rules
    /// stand after those of clients.
    pub classes: Vec<ClassSpec>,
    /// By address, shorter prefixes first; `::/0` is always there and always first.
    pub entries: Vec<ClassEntry>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ClassSpec {
    pub container: String,
    pub accept: AcceptOrder,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct ClassEntry {
    /// IPv4 is mapped: 10.0.0.0/8 is ::ffff:10.0.0.0/104.
    pub prefix: Ipv6Net,
    /// Position of the rule in [`Listener::clients`].
    pub rule: u16,
    /// Position of its class in [`ClassTable::classes`].
    pub class: u16,
}

impl ClassTable {
    /// A filter before the entries: words of 64 bits, a power of two of them. The entry for every address is not in it.
    pub fn filter(&self, secret: u64) -> Vec<u64> {
        let prefixes = self.entries.iter().filter(|entry| entry.prefix.prefix_len() > 0);
        let hashes: Vec<u64> = prefixes.map(|entry| entry.hash(secret)).collect();
        bloom::filter(hashes.into_iter())
    }

    /// What the kernel finds for a client: the entry with the longest prefix around its address.
    pub fn lookup(&self, address: IpAddr) -> Option<&ClassEntry> {
        let address = mapped(address);
        self.entries
            .iter()
            .filter(|entry| entry.prefix.contains(&address))
            .max_by_key(|entry| entry.prefix.prefix_len())
    }
}

impl ClassEntry {
    /// Of its prefix: what the kernel looks for, in the filter and in its table.
    pub fn hash(&self, secret: u64) -> u64 {
        prefix_hash(&self.prefix, secret)
    }
}

fn mapped(address: IpAddr) -> Ipv6Addr {
    match address {
        IpAddr::V4(v4) => v4.to_ipv6_mapped(),
        IpAddr::V6(v6) => v6,
    }
}

impl Listener {
    /// Compiles the client rules.
    ///
    /// Rules that never match take no part, and addresses that cannot reach the listener (IPv6 at an IPv4 address) no
    /// entries of their own. A listener built by hand without a catch-all gives what no rule matches to the last rule
    /// that matches at all; one without rules has an empty table.
    pub fn table(&self) -> ClassTable {
        let universe = Universe::of(self.address.ip());
        let sources: Vec<&From> = self.clients.iter().map(|client| &client.from).collect();
        let reach = Reach::of(&sources, universe);
        let mut alive: Vec<usize> = (0..sources.len()).filter(|rule| !reach.shadowed.contains_key(rule)).collect();
        if alive.is_empty() {
            alive.extend(sources.len().checked_sub(1));
        }
        let Some(&last) = alive.last() else {
            return ClassTable { classes: Vec::new(), entries: Vec::new() };
        };
        let (classes, class_of_rule) = self.classes(&alive);

        let sources: Vec<&From> = alive.iter().map(|&rule| sources[rule]).collect();
        let mut entries: Vec<ClassEntry> = Vec::new();
        let mut around: Vec<(Prefix, usize)> = Vec::new();
        sweep::walk(&sources, universe, |region, matching| {
            let is_root = region.prefix == universe.root();
            if region.is_empty && !is_root {
                return;
            }
            while around.pop_if(|(outer, _)| !outer.contains(&region.prefix)).is_some() {}
            let rule = matching.first().map_or(last, |&first| alive[first]);
            if around.last().is_some_and(|&(_, outer)| outer == rule) {
                return;
            }
            around.push((region.prefix, rule));
            let prefix = if is_root { Prefix::ALL } else { region.prefix };
            entries.push(ClassEntry { prefix: prefix.into(), rule: narrow(rule), class: class_of_rule[&rule] });
        });
        ClassTable { classes, entries }
    }

    /// The classes of these rules, of the request rules and of the isolated, in their order, and each client rule's class.
    fn classes(&self, rules: &[usize]) -> (Vec<ClassSpec>, HashMap<usize, u16>) {
        let mut classes: Vec<ClassSpec> = Vec::new();
        let mut class_of_rule = HashMap::new();
        for &rule in rules {
            let Client { container, accept, .. } = &self.clients[rule];
            let same = |class: &ClassSpec| class.container == *container && class.accept == *accept;
            let class = classes.iter().position(same).unwrap_or_else(|| {
                classes.push(ClassSpec { container: container.clone(), accept: *accept });
                classes.len() - 1
            });
            class_of_rule.insert(rule, narrow(class));
        }
        let isolated = self.isolate.iter().filter_map(|isolate| isolate.into.as_ref());
        for container in self.requests.iter().filter_map(|request| request.container.as_ref()).chain(isolated) {
            if !classes.iter().any(|class| class.container == *container) {
                classes.push(ClassSpec { container: container.clone(), accept: AcceptOrder::Before });
            }
        }
        (classes, class_of_rule)
    }
}

/// Positions of rules and classes have 16 bits in the kernel; `parse` refuses what needs more.
fn narrow(position: usize) -> u16 {
    u16::try_from(position).unwrap_or(u16::MAX)
}
