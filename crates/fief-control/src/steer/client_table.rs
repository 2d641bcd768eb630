// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The client table of a policy: prefixes of all its listeners with what their rules say, in lines as
//! `bpf/include/client_table.bpf.h` reads them.
//!
//! ```text
//! line 0      1 ..                          first ..              first + lines ..
//!     +------+-----------------------------+---------------------+-------------------+---
//!     | none | client records of listener  | its prefixes, by    | those that fit in | the next
//!     |      | A, one for each rule in use | (hash >> 32) * lines| no line of theirs | listener
//!     |      |                             | >> 32               |                   |
//!     +------+-----------------------------+---------------------+-------------------+---
//! ```
//!
//! A prefix stands in the first line from its own on that has room, and every line that it passed says so. With two
//! prefixes for a line, one in ten stands behind its own, and that is nearly always the next.

use std::collections::HashMap;
use std::collections::hash_map::Entry;

use fief_bpf::record::Record;
use fief_bpf::{Error, ErrorKind, Result, abi, inner};
use fief_policy::ClassEntry;
use libbpf_rs::MapHandle;

/// Prefixes of a policy: lines for them have 64 MB.
const PREFIXES_MAX: usize = 1 << 21;
/// Of the three that a line has room for.
const PREFIXES_A_LINE: usize = 2;

/// The table of a policy slot in the making.
#[derive(Debug)]
pub(super) struct ClientTable {
    lines: Vec<abi::fief_prefix_line>,
    prefixes: usize,
}

/// Where the entries of a listener are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Placed {
    /// Line at which its prefixes begin.
    pub(super) first: u32,
    /// Lines that a prefix can belong to.
    pub(super) lines: u32,
    /// Line of the client record of every address that no prefix is around.
    pub(super) any: u32,
}

impl ClientTable {
    pub(super) fn new() -> Self {
        Self { lines: vec![abi::fief_prefix_line::default()], prefixes: 0 }
    }

    /// Adds the entries of a listener; those of one rule have one client record. Errors: [`ErrorKind::Full`].
    pub(super) fn add(
        &mut self,
        entries: &[ClassEntry],
        record: impl Fn(&ClassEntry) -> abi::fief_client,
    ) -> Result<Placed> {
        self.prefixes += entries.len();
        if self.prefixes > PREFIXES_MAX {
            return Err(Error::new(
                ErrorKind::Full,
                format!("{} prefixes of clients are too many; a policy can have {PREFIXES_MAX}", self.prefixes),
            )
            .remedy("use fewer and wider prefixes"));
        }
        self.place(entries, record, entries.len().div_ceil(PREFIXES_A_LINE))
    }

    fn place(
        &mut self,
        entries: &[ClassEntry],
        record: impl Fn(&ClassEntry) -> abi::fief_client,
        lines: usize,
    ) -> Result<Placed> {
        let clients = self.add_clients(entries, record)?;
        let first = self.lines.len();
        self.lines.resize(first + lines, abi::fief_prefix_line::default());
        let mut placed = Placed { first: number(first)?, lines: number(lines)?, any: 0 };
        for entry in entries {
            let client = clients[&entry.rule];
            if entry.prefix.prefix_len() == 0 {
                placed.any = client;
            } else {
                let line = ((entry.hash() >> 32) * lines as u64) >> 32;
                self.add_prefix(first + line as usize, entry, client);
            }
        }
        Ok(placed)
    }

    /// The lines of the rules' client records.
    fn add_clients(
        &mut self,
        entries: &[ClassEntry],
        record: impl Fn(&ClassEntry) -> abi::fief_client,
    ) -> Result<HashMap<u16, u32>> {
        let mut clients = HashMap::new();
        for entry in entries {
            if let Entry::Vacant(vacant) = clients.entry(entry.rule) {
                vacant.insert(number(self.lines.len())?);
                let mut line = abi::fief_prefix_line::default();
                line.bytes_mut()[..size_of::<abi::fief_client>()].copy_from_slice(record(entry).bytes());
                self.lines.push(line);
            }
        }
        Ok(clients)
    }

    fn add_prefix(&mut self, mut at: usize, entry: &ClassEntry, client: u32) {
        loop {
            if at == self.lines.len() {
                self.lines.push(abi::fief_prefix_line::default());
            }
            let line = &mut self.lines[at];
            if let Some(free) = line.length.iter().position(|&length| length == 0) {
                line.address[free] = words(entry.prefix.network().octets());
                line.length[free] = entry.prefix.prefix_len();
                line.client[free] = client;
                return;
            }
            line.more = 1;
            at += 1;
        }
    }

    /// The table in the kernel, which nobody sees yet.
    pub(super) fn load(&self) -> Result<MapHandle> {
        inner::array("client_table", &self.lines)
    }
}

/// As the kernel loads them.
fn words(octets: [u8; 16]) -> [u64; 2] {
    let (high, low) = octets.split_at(8);
    [high, low].map(|half| u64::from_ne_bytes(half.try_into().expect("a half has 8 bytes")))
}

fn number(line: usize) -> Result<u32> {
    u32::try_from(line).map_err(|_| Error::new(ErrorKind::Full, "the client table has too many lines"))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

    use fief_policy::ClassTable;
    use ipnet::Ipv6Net;
    use proptest::prelude::*;

    use super::*;

    const OTHER: u16 = 9;

    /// As the kernel side searches.
    fn find(table: &ClientTable, placed: Placed, lengths: &[u8], address: Ipv6Addr) -> u32 {
        for &length in lengths {
            let prefix = Ipv6Net::new(address, length).expect("a length of IPv6").trunc();
            let entry = ClassEntry { prefix, rule: 0, class: 0 };
            let mut at = placed.first + (((entry.hash() >> 32) * u64::from(placed.lines)) >> 32) as u32;
            while let Some(line) = table.lines.get(at as usize) {
                let is_here =
                    |n: &usize| line.length[*n] == length && line.address[*n] == words(prefix.network().octets());
                if let Some(n) = (0..3).find(is_here) {
                    return line.client[n];
                }
                if line.more == 0 {
                    break;
                }
                at += 1;
            }
        }
        placed.any
    }

    fn rule(entry: &ClassEntry) -> abi::fief_client {
        abi::fief_client { rule: entry.rule, class_: entry.class, ..Default::default() }
    }

    fn rule_at(table: &ClientTable, line: u32) -> u16 {
        abi::fief_client::from_bytes(table.lines[line as usize].bytes()).expect("a line is longer").rule
    }

    /// Of few networks, so that prefixes lie in each other and addresses in them.
    fn address() -> impl Strategy<Value = Ipv6Addr> {
        let four =
            (10u8..12, 0u8..3, any::<[u8; 2]>()).prop_map(|(a, b, [c, d])| Ipv4Addr::new(a, b, c, d).to_ipv6_mapped());
        let six = (0u16..2, any::<[u16; 2]>()).prop_map(|(a, [b, c])| Ipv6Addr::new(0xfd77, a, b, 0, 0, 0, 0, c));
        prop_oneof![four, six, any::<[u8; 16]>().prop_map(Ipv6Addr::from)]
    }

    fn entries() -> impl Strategy<Value = Vec<ClassEntry>> {
        let prefix = (address(), prop_oneof![1u8..=128, 104u8..=128])
            .prop_map(|(address, length)| Ipv6Net::new(address, length).expect("a length of IPv6").trunc());
        prop::collection::btree_map(prefix, 0u16..7, 0..60).prop_map(|rules: BTreeMap<Ipv6Net, u16>| {
            let all = ClassEntry { prefix: Ipv6Net::default(), rule: OTHER, class: OTHER };
            let others = rules.into_iter().map(|(prefix, rule)| ClassEntry { prefix, rule, class: rule });
            std::iter::once(all).chain(others).collect()
        })
    }

    proptest! {
        /// Also of a table with too few lines, where prefixes stand far behind their own; and of one behind it.
        #[test]
        fn every_address_finds_what_the_policy_says(
            two in [entries(), entries()],
            lines in 1usize..40,
            outside in prop::collection::vec(address(), 0..40),
        ) {
            let mut table = ClientTable::new();
            for entries in two {
                let placed = table.place(&entries, rule, lines).expect("room");
                let lengths = super::super::records::prefix_lengths(entries.iter().map(|e| e.prefix.prefix_len()));
                let lengths = &lengths.length[..usize::from(lengths.count)];
                let inside: Vec<_> = entries.iter().map(|entry| entry.prefix.addr()).collect();
                let policy = ClassTable { classes: Vec::new(), entries };
                for &address in outside.iter().chain(&inside) {
                    let expected = policy.lookup(IpAddr::V6(address)).expect("every address has an entry").rule;
                    prop_assert_eq!(rule_at(&table, find(&table, placed, lengths, address)), expected);
                }
            }
        }
    }

    fn many(count: u32) -> Vec<ClassEntry> {
        (0..count)
            .map(|n| {
                let prefix = Ipv6Net::new(Ipv4Addr::from(n << 8).to_ipv6_mapped(), 120).expect("a length of IPv6");
                ClassEntry { prefix, rule: 0, class: 0 }
            })
            .collect()
    }

    #[test]
    fn one_prefix_in_ten_stands_behind_its_line() {
        let mut table = ClientTable::new();
        let entries = many(100_000);
        let placed = table.add(&entries, rule).expect("room");
        let homes = &table.lines[placed.first as usize..][..placed.lines as usize];
        let full = homes.iter().filter(|line| line.more != 0).count();
        assert!(full * 4 < homes.len(), "{full} of {}", homes.len());
        assert!(table.lines.len() < placed.first as usize + homes.len() + 100, "{}", table.lines.len());
    }

    #[test]
    fn prefixes_beyond_the_room_are_refused() {
        let mut table = ClientTable::new();
        table.prefixes = PREFIXES_MAX - 9;
        let error = table.add(&many(10), rule).expect_err("one too many");
        assert_eq!(error.kind(), ErrorKind::Full);
        assert_eq!(table.lines.len(), 1);
    }
}
