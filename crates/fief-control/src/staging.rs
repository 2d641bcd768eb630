// SPDX-License-Identifier: Apache-2.0 OR MIT
//! State that client rules and request rules share while they are written into the policy slot that is not in force.

use fief_bpf::map::MapHandle;
use fief_bpf::{Result, abi, inner, record};

use crate::Fief;
use crate::blooms::Blooms;
use crate::police::Buckets;
use crate::queue::Queues;
use crate::rule_table::RuleTable;

#[derive(Debug)]
pub(crate) struct Staging {
    pub(crate) slot: u32,
    /// Of the hashes of patterns and prefixes.
    pub(crate) secret: [u64; 2],
    pub(crate) buckets: Buckets,
    pub(crate) blooms: Blooms,
    pub(crate) rules: RuleTable,
    pub(crate) queues: Queues,
    rule_tables: MapHandle,
    bucket_tables: MapHandle,
}

impl Staging {
    /// `clock`: the interface that gives queues time, or 0. `interfaces`: those that will be guarded.
    pub(crate) fn open(fief: &Fief, slot: u32, clock: u32, interfaces: &[u32]) -> Result<Self> {
        let secret: abi::fief_secret = record::lookup(&fief.map("secrets")?, &0u32.to_ne_bytes())?.unwrap_or_default();
        Ok(Self {
            slot,
            secret: secret.pattern,
            buckets: Buckets::default(),
            blooms: Blooms::open(fief, slot)?,
            rules: RuleTable::new(),
            queues: Queues::open(fief, clock, interfaces)?,
            rule_tables: fief.map("rule_tables")?,
            bucket_tables: fief.map("bucket_tables")?,
        })
    }

    /// Writes rules, filters and buckets over those of an earlier policy. Nothing may lead there any more: its listeners
    /// and guards are cleared. Returns the queues that it names.
    pub(crate) fn write(self, fief: &Fief) -> Result<Vec<u32>> {
        self.blooms.write()?;
        let rules = self.rules.array()?;
        let buckets = self.buckets.array(&self.bucket_tables, self.slot)?;
        inner::put(self.slot, &[(&self.rule_tables, rules), (&self.bucket_tables, buckets)])?;
        self.queues.write(fief)
    }
}
