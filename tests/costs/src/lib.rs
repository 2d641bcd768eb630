// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The kernel side's table of clients by cost, with the truth beside it.

#![allow(unsafe_code)]

use std::collections::BTreeMap;

unsafe extern "C" {
    fn costs_reset();
    fn costs_set(client: u64, of: u32) -> u32;
    fn costs_add(client: u64, of: u32, ns: u64, now: u64);
    fn costs_of(client: u64, of: u32, ns: *mut u64, receive_ns: *mut u64) -> bool;
    fn costs_forgotten(set: u32) -> u64;
    fn costs_shown() -> u64;
}

/// Of the table; one at a time in a thread.
#[derive(Debug)]
pub struct Costs {
    sets: u32,
    pub now_ns: u64,
    /// What each client has really cost.
    pub truth: BTreeMap<u64, u64>,
}

impl Costs {
    pub fn new(sets: u32) -> Self {
        // SAFETY: the table is this thread's.
        unsafe { costs_reset() };
        Self { sets, now_ns: 1_000_000_000, truth: BTreeMap::new() }
    }

    /// A client costs so much, in as much time of one CPU.
    pub fn add(&mut self, client: u64, ns: u64) {
        self.now_ns += ns;
        *self.truth.entry(client).or_default() += ns;
        // SAFETY: the table is this thread's; a client's set is in it.
        unsafe { costs_add(client, self.sets, ns, self.now_ns) };
    }

    /// What is shown of it, if it has a place.
    pub fn shown(&self, client: u64) -> Option<u64> {
        let (mut ns, mut receive_ns) = (0, 0);
        // SAFETY: both are written while they live.
        let has = unsafe { costs_of(client, self.sets, &raw mut ns, &raw mut receive_ns) };
        assert!(receive_ns <= ns);
        has.then_some(ns)
    }

    pub fn set(&self, client: u64) -> u32 {
        // SAFETY: of numbers.
        unsafe { costs_set(client, self.sets) }
    }

    /// What the set of a client has forgotten.
    pub fn forgotten(&self, client: u64) -> u64 {
        // SAFETY: a set of the table.
        unsafe { costs_forgotten(self.set(client)) }
    }

    /// All that is shown and forgotten.
    pub fn all(&self) -> u64 {
        // SAFETY: sets of the table.
        unsafe { costs_shown() + (0..self.sets).map(|set| costs_forgotten(set)).sum::<u64>() }
    }
}
