// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The rule table of a policy: prefixes of clients and patterns of requests, by their hash, with their rules, in lines as
//! `bpf/include/rule_table.bpf.h` reads them.
//!
//! ```text
//! line 0      1 ..                  first ..             first + count ..
//!     +------+---------------------+--------------------+-------------------+---
//!     | none | records of listener | its keys, by       | those that fit in | the next
//!     |      | A's client rules    | (key >> 32) * count| no line of theirs | listener ..
//!     |      |                     | >> 32              |                   |
//!     +------+---------------------+--------------------+-------------------+---
//! ```
//!
//! A key stands in its own line or in the first line after it that has room, and every line that it passed says so. With four
//! of five places in use that is nearly always its own or the next; a table of 100,000 keys is half of a CPU's second-level
//! cache.

use fief_bpf::map::MapHandle;
use fief_bpf::record::Record;
use fief_bpf::{Error, ErrorKind, Result, abi, inner};

/// Prefixes and patterns of a policy: lines for them have 48 MB.
const KEYS_MAX: usize = 1 << 22;
/// Numbers of records have 24 bits.
const RECORD_BITS: u32 = 24;

/// The table of a policy slot in the making.
#[derive(Debug)]
pub(crate) struct RuleTable {
    lines: Vec<abi::fief_line>,
    keys: usize,
}

impl RuleTable {
    pub(crate) fn new() -> Self {
        Self { lines: vec![abi::fief_line::default()], keys: 0 }
    }

    /// Adds a record, which has at most the size of a line; keys name it by the number that comes back.
    /// Errors: [`ErrorKind::Full`].
    pub(crate) fn add_record(&mut self, record: &impl Record) -> Result<u32> {
        let number = number(self.lines.len())?;
        if number >> RECORD_BITS != 0 {
            return Err(full());
        }
        let mut line = abi::fief_line::default();
        line.bytes_mut()[..record.bytes().len()].copy_from_slice(record.bytes());
        self.lines.push(line);
        Ok(number)
    }

    /// Adds the keys of a listener with their records. Errors: [`ErrorKind::Full`].
    pub(crate) fn add_keys(&mut self, keys: &[(u64, u32)]) -> Result<abi::fief_lines> {
        self.keys += keys.len();
        if self.keys > KEYS_MAX {
            return Err(Error::new(
                ErrorKind::Full,
                format!(
                    "{} prefixes of clients and patterns of requests are too many; a policy can have {KEYS_MAX}",
                    self.keys
                ),
            )
            .remedy("use fewer and wider prefixes, and `*` in patterns"));
        }
        // four of five places
        self.place(keys, (keys.len() * 5).div_ceil(abi::FIEF_LINE_KEYS as usize * 4))
    }

    fn place(&mut self, keys: &[(u64, u32)], count: usize) -> Result<abi::fief_lines> {
        let first = self.lines.len();
        self.lines.resize(first + count, abi::fief_line::default());
        let lines = abi::fief_lines { first: number(first)?, count: number(count)? };
        for &(key, record) in keys {
            self.place_key(line_of(lines, key), key, record);
        }
        Ok(lines)
    }

    fn place_key(&mut self, mut at: usize, key: u64, record: u32) {
        loop {
            if at == self.lines.len() {
                self.lines.push(abi::fief_line::default());
            }
            let line = &mut self.lines[at];
            if let Some(free) = (0..line.key.len()).find(|&n| record_of(line, n) == 0) {
                line.key[free] = low_bits(key) | u64::from(record) << abi::FIEF_KEY_BITS;
                line.record_high[free] = (record >> (u64::BITS - abi::FIEF_KEY_BITS)) as u8;
                return;
            }
            line.more = 1;
            at += 1;
        }
    }

    /// The table as the kernel side reads it.
    pub(crate) fn array(&self) -> Result<MapHandle> {
        inner::array("rule_table", &self.lines)
    }
}

/// The line that a key belongs to.
fn line_of(lines: abi::fief_lines, key: u64) -> usize {
    lines.first as usize + (((key >> 32) * u64::from(lines.count)) >> 32) as usize
}

/// What a line has of a key.
fn low_bits(key: u64) -> u64 {
    key & ((1 << abi::FIEF_KEY_BITS) - 1)
}

/// The record that the line's key `n` belongs to; 0: none is there.
fn record_of(line: &abi::fief_line, n: usize) -> u32 {
    let low_bits = (line.key[n] >> abi::FIEF_KEY_BITS) as u32;
    low_bits | u32::from(line.record_high[n]) << (u64::BITS - abi::FIEF_KEY_BITS)
}

fn number(line: usize) -> Result<u32> {
    u32::try_from(line).map_err(|_| full())
}

fn full() -> Error {
    Error::new(ErrorKind::Full, "the rule table has too many lines")
        .remedy("let several prefixes or patterns share a rule")
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use proptest::prelude::*;

    use super::*;

    /// As the kernel side searches.
    fn find(table: &RuleTable, lines: abi::fief_lines, key: u64) -> Option<u32> {
        let mut at = line_of(lines, key);
        while let Some(line) = table.lines.get(at) {
            let is_here = |&n: &usize| low_bits(line.key[n]) == low_bits(key) && record_of(line, n) != 0;
            if let Some(n) = (0..line.key.len()).find(is_here) {
                return Some(record_of(line, n));
            }
            if line.more == 0 {
                break;
            }
            at += 1;
        }
        None
    }

    fn many(count: u64) -> Vec<(u64, u32)> {
        (1..=count).map(|n| (n.wrapping_mul(0x9e37_79b9_7f4a_7c15), 1)).collect()
    }

    proptest! {
        /// Also of a table with too few lines, where keys stand far behind their own; and of one behind it. 0 is a key as
        /// others.
        #[test]
        fn every_key_is_found_in_its_listener_and_no_other(
            two in prop::array::uniform2(prop::collection::hash_map(
                prop_oneof![0u64..4, any::<u64>()], 1u32..1 << RECORD_BITS, 0..60)),
            count in 1usize..40,
            others in prop::collection::vec(prop_oneof![0u64..4, any::<u64>()], 0..40),
        ) {
            let mut table = RuleTable::new();
            let two: [HashMap<u64, u32>; 2] = two;
            let placed = two.each_ref().map(|keys| {
                let keys: Vec<_> = keys.iter().map(|(&key, &record)| (key, record)).collect();
                table.place(&keys, count).expect("room")
            });
            for (lines, keys) in placed.into_iter().zip(&two) {
                for key in keys.keys().chain(&others) {
                    prop_assert_eq!(find(&table, lines, *key), keys.get(key).copied());
                }
            }
        }
    }

    #[test]
    fn a_record_is_where_its_number_says() {
        let mut table = RuleTable::new();
        let numbers = [7, 9].map(|rule| {
            let client = abi::fief_client { rule, ..Default::default() };
            table.add_record(&client).expect("room")
        });
        let rules = numbers.map(|number| {
            abi::fief_client::from_bytes(table.lines[number as usize].bytes()).expect("a line is longer").rule
        });
        assert_eq!((numbers, rules), ([1, 2], [7, 9]), "line 0 is none");
    }

    #[test]
    fn few_keys_stand_behind_their_line() {
        let mut table = RuleTable::new();
        let lines = table.add_keys(&many(100_000)).expect("room");
        let homes = &table.lines[lines.first as usize..][..lines.count as usize];
        let passed = homes.iter().filter(|line| line.more != 0).count();
        assert!(passed * 3 < homes.len(), "{passed} of {}", homes.len());
        assert!(table.lines.len() < lines.first as usize + homes.len() + 100, "{}", table.lines.len());
    }

    #[test]
    fn keys_beyond_the_room_are_refused() {
        let mut table = RuleTable::new();
        table.keys = KEYS_MAX - 9;
        let error = table.add_keys(&many(10)).expect_err("one too many");
        assert_eq!(error.kind(), ErrorKind::Full);
        assert_eq!(table.lines.len(), 1);
    }
}
