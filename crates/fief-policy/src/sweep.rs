// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Which rules match where: the one computation behind class tables and the search for rules that never match.
//!
//! All prefixes of all rules, brought into one 128-bit space, are nested or disjoint. The *region* of a prefix is what
//! remains of it without the longer prefixes inside. On a region every rule says the same thing of every address, so
//! one walk over the sorted prefixes, adding and removing rules at their edges, knows the matching rules everywhere,
//! exactly, and whether a region has any address at all.
//!
//! ```text
//! ::/0 ─┬─ ::ffff:0:0/96 (IPv4) ─┬─ 10.0.0.0/8 ── 10.1.0.0/16
//!       │                        └─ 192.168.0.0/16
//!       └─ 2001:db8::/32
//! ```
//!
//! IPv6 prefixes stop at the edge of IPv4: `::/0` in a rule means every IPv6 address and no IPv4-mapped one.

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv6Addr};

use ipnet::{IpNet, Ipv6Net};

use crate::model::From as Source;

/// An IPv6 prefix, ordered so that a prefix comes right before everything inside of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Prefix {
    bits: u128,
    length: u8,
}

impl Prefix {
    pub(crate) const ALL: Self = Self { bits: 0, length: 0 };
    /// Where IPv4 lies: ::ffff:0:0/96.
    pub(crate) const IPV4: Self = Self { bits: 0xffff << 32, length: 96 };

    pub(crate) fn contains(&self, other: &Self) -> bool {
        self.length <= other.length && (self.bits ^ other.bits) & mask(self.length) == 0
    }

    /// How many addresses it has; 2^128 wraps to 0.
    fn size(&self) -> u128 {
        1u128.checked_shl(128 - u32::from(self.length)).unwrap_or(0)
    }
}

fn mask(length: u8) -> u128 {
    u128::MAX.checked_shl(128 - u32::from(length)).unwrap_or(0)
}

impl From<&IpNet> for Prefix {
    fn from(net: &IpNet) -> Self {
        let (address, length) = match net {
            IpNet::V4(v4) => (v4.addr().to_ipv6_mapped(), v4.prefix_len() + 96),
            IpNet::V6(v6) => (v6.addr(), v6.prefix_len()),
        };
        Self { bits: u128::from(address) & mask(length), length }
    }
}

impl From<Prefix> for Ipv6Net {
    fn from(prefix: Prefix) -> Self {
        Ipv6Net::new(Ipv6Addr::from(prefix.bits), prefix.length).expect("the length of a prefix is at most 128")
    }
}

/// The addresses that can reach a listener at all.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Universe {
    Both,
    Ipv4,
    Ipv6,
}

impl Universe {
    pub(crate) fn of(local: IpAddr) -> Self {
        match local {
            IpAddr::V4(_) => Self::Ipv4,
            IpAddr::V6(v6) if v6.to_ipv4_mapped().is_some() => Self::Ipv4,
            IpAddr::V6(v6) if v6.is_unspecified() => Self::Both,
            IpAddr::V6(_) => Self::Ipv6,
        }
    }

    /// The prefix that encloses it.
    pub(crate) fn root(self) -> Prefix {
        match self {
            Self::Ipv4 => Prefix::IPV4,
            Self::Both | Self::Ipv6 => Prefix::ALL,
        }
    }

    fn admits(self, prefix: &Prefix) -> bool {
        match self {
            Self::Both => true,
            Self::Ipv4 => Prefix::IPV4.contains(prefix),
            Self::Ipv6 => !Prefix::IPV4.contains(prefix),
        }
    }
}

/// What remains of a prefix without the longer ones inside of it.
pub(crate) struct Region {
    pub(crate) prefix: Prefix,
    /// No address of the universe lies in it.
    pub(crate) is_empty: bool,
}

/// Calls `visit` with every region, in the order of prefixes, the root's first, and with the rules that match there.
pub(crate) fn walk(rules: &[&Source], universe: Universe, mut visit: impl FnMut(Region, &BTreeSet<usize>)) {
    let edges = edges(rules, universe);
    let mut empty = empty_regions(&edges, universe).into_iter();

    // How often each rule's list covers the current prefix, and what that makes of the rule.
    let mut covers = vec![0i64; rules.len()];
    let mut matching: BTreeSet<usize> = BTreeSet::new();
    let mut change = |matching: &mut BTreeSet<usize>, rule: usize, by: i64| {
        covers[rule] += by;
        let listed = covers[rule] > 0;
        if listed != matches!(rules[rule], Source::NotIn(_)) {
            matching.insert(rule);
        } else {
            matching.remove(&rule);
        }
    };
    for rule in 0..rules.len() {
        change(&mut matching, rule, 0);
    }

    let mut inside: Vec<(Prefix, &[Edge])> = Vec::new();
    for changes in edges.chunk_by(|left, right| left.prefix == right.prefix) {
        let prefix = changes[0].prefix;
        while let Some((outer, left)) = inside.pop_if(|(outer, _)| !outer.contains(&prefix)) {
            debug_assert!(outer < prefix);
            for edge in moving(left) {
                change(&mut matching, edge.rule, -edge.by);
            }
        }
        for edge in moving(changes) {
            change(&mut matching, edge.rule, edge.by);
        }
        inside.push((prefix, changes));
        let is_empty = empty.next().expect("as many answers as prefixes");
        visit(Region { prefix, is_empty }, &matching);
    }
}

/// A rule's list begins to cover at this prefix, or (at the edge of IPv4) ceases to.
#[derive(Clone, Copy)]
struct Edge {
    prefix: Prefix,
    rule: usize,
    by: i64,
}

/// Without those that are only there to make a prefix known.
fn moving(edges: &[Edge]) -> impl Iterator<Item = &Edge> {
    edges.iter().filter(|edge| edge.by != 0)
}

/// In the order of prefixes, those of one prefix together.
fn edges(rules: &[&Source], universe: Universe) -> Vec<Edge> {
    // Both are there whether or not a rule names them.
    let bounds = [universe.root(), Prefix::IPV4];
    let mut edges: Vec<Edge> = bounds.map(|prefix| Edge { prefix, rule: 0, by: 0 }).to_vec();
    for (rule, source) in rules.iter().enumerate() {
        let nets = match source {
            Source::Any => {
                edges.push(Edge { prefix: universe.root(), rule, by: 1 });
                continue;
            }
            Source::In(nets) | Source::NotIn(nets) => nets,
        };
        for prefix in nets.iter().map(Prefix::from).filter(|prefix| universe.admits(prefix)) {
            edges.push(Edge { prefix, rule, by: 1 });
            if prefix.contains(&Prefix::IPV4) && prefix != Prefix::IPV4 {
                edges.push(Edge { prefix: Prefix::IPV4, rule, by: -1 });
            }
        }
    }
    edges.sort_by_key(|edge| edge.prefix);
    edges
}

/// For each prefix in order: do the longer ones, and what lies outside of the universe, leave nothing of it?
fn empty_regions(edges: &[Edge], universe: Universe) -> Vec<bool> {
    let mut prefixes: Vec<Prefix> = edges.iter().map(|edge| edge.prefix).collect();
    prefixes.dedup();
    let mut covered = vec![0u128; prefixes.len()];
    let mut has_inner = vec![false; prefixes.len()];
    let mut inside: Vec<usize> = Vec::new();
    for (index, prefix) in prefixes.iter().enumerate() {
        while inside.pop_if(|outer| !prefixes[*outer].contains(prefix)).is_some() {}
        if let Some(&outer) = inside.last() {
            covered[outer] = covered[outer].wrapping_add(prefix.size());
            has_inner[outer] = true;
        }
        inside.push(index);
    }
    prefixes
        .iter()
        .enumerate()
        .map(|(index, prefix)| {
            let is_outside = universe == Universe::Ipv6 && Prefix::IPV4.contains(prefix);
            is_outside || (has_inner[index] && covered[index] == prefix.size())
        })
        .collect()
}
