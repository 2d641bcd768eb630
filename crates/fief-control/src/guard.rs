// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What stands before the listeners of a policy, written into the slot that is not in force: guards, the ports they
//! are at, buckets, thresholds, request rules. Nothing that a packet meets changes before the flip.
//!
//! Buckets that both policies have keep how full they are, so that applying a policy again opens no door for a burst.

use std::collections::HashMap;

use fief_bpf::record;
use fief_bpf::{Error, ErrorKind, Result, abi, batch, inner};
use fief_policy::{Listener, Mode, Policy};
use libbpf_rs::MapHandle;

use crate::handshake::Plan;
use crate::police::{self, Buckets};
use crate::staging::Staging;
use crate::steer::Indexed;
use crate::{Fief, admit};

/// Words of `guarded_ports` for one slot: a bit for each port.
const PORT_WORDS: u32 = 1024;

/// The tables of the front door, both slots.
#[derive(Debug)]
pub(crate) struct Tables {
    guards: MapHandle,
    guarded_ports: MapHandle,
    bucket_tables: MapHandle,
    thresholds: MapHandle,
}

/// The guards of a policy on their way into a slot.
#[derive(Debug)]
pub(crate) struct Staged {
    guards: Vec<(u32, abi::fief_guard)>,
    ports: Vec<u64>,
    thresholds: abi::fief_thresholds,
}

impl Fief {
    pub(crate) fn guard_tables(&self) -> Result<Tables> {
        Ok(Tables {
            guards: self.map("guards")?,
            guarded_ports: self.map("guarded_ports")?,
            bucket_tables: self.map("bucket_tables")?,
            thresholds: self.map("thresholds")?,
        })
    }
}

/// What guards the listeners of a policy, as records.
pub(crate) fn stage(
    policy: &Policy,
    listeners: &[Indexed<'_>],
    plan: &Plan,
    staging: &mut Staging,
    container: impl Fn(&str) -> Option<abi::fief_ref>,
) -> Result<Staged> {
    let mut guards = Vec::new();
    let mut ports = vec![0u64; PORT_WORDS as usize];
    for &Indexed { index, listener } in listeners {
        // levels of overload are found out where connection requests are looked at
        if !listener.is_guarded() && listener.lrp.is_none() {
            continue;
        }
        let mut guard = guard(policy, listener, plan, &container)?;
        admit::stage(policy, listener, &mut guard, staging, &container)?;
        guards.push((staging.slot * abi::FIEF_MAX_LISTENERS + u32::from(index), guard));
        for address in listener.addresses() {
            ports[usize::from(address.port()) / 64] |= 1 << (address.port() % 64);
        }
    }
    Ok(Staged { guards, ports, thresholds: police::thresholds(policy) })
}

impl Tables {
    pub(crate) fn write(&self, slot: u32, staged: &Staged, buckets: Buckets) -> Result<()> {
        self.write_buckets(slot, buckets)?;
        batch::update(&self.guards, &staged.guards)?;
        record::update(&self.thresholds, slot, &staged.thresholds)?;
        self.write_ports(slot, &staged.ports)
    }

    /// Empties a slot that is not in force.
    pub(crate) fn clear(&self, slot: u32) -> Result<()> {
        self.write_ports(slot, &vec![0; PORT_WORDS as usize])?;
        let guards: Vec<(u32, abi::fief_guard)> = batch::entries(&self.guards)?;
        let old = guards.into_iter().map(|(key, _)| key).filter(|key| key / abi::FIEF_MAX_LISTENERS == slot);
        batch::delete(&self.guards, &old.collect::<Vec<u32>>())
    }

    fn write_ports(&self, slot: u32, ports: &[u64]) -> Result<()> {
        let words: Vec<(u32, u64)> = (slot * PORT_WORDS..).zip(ports.iter().copied()).collect();
        batch::update(&self.guarded_ports, &words)
    }

    fn write_buckets(&self, slot: u32, buckets: Buckets) -> Result<()> {
        let in_force: Vec<(u32, abi::fief_bucket)> = match inner::get(&self.bucket_tables, 1 - slot)? {
            Some(table) => batch::entries(&table)?,
            None => Vec::new(),
        };
        let before = in_force.into_iter().map(|(_, bucket)| (bucket.identity, bucket)).collect();
        let carried = buckets.records.into_iter().map(|fresh| carried_over(fresh, &before));
        let records: Vec<_> = std::iter::once(abi::fief_bucket::default()).chain(carried).collect();
        inner::put(&self.bucket_tables, slot, &inner::array("bucket_table", &records)?)
    }
}

/// How full the same bucket of the policy in force is.
fn carried_over(mut fresh: abi::fief_bucket, before: &HashMap<u64, abi::fief_bucket>) -> abi::fief_bucket {
    let Some(old) = before.get(&fresh.identity).filter(|old| old.container == fresh.container) else { return fresh };
    fresh.arrival_ns = old.arrival_ns;
    fresh.used_ns = old.used_ns;
    fresh.looked_ns = old.looked_ns;
    fresh
}

fn guard(
    policy: &Policy,
    listener: &Listener,
    plan: &Plan,
    container: &impl Fn(&str) -> Option<abi::fief_ref>,
) -> Result<abi::fief_guard> {
    let path = listener.clients.last().map_or("", |client| client.container.as_str());
    let fallback = container(path)
        .ok_or_else(|| Error::new(ErrorKind::NotFound, format!("listener {}: no container {path}", listener.name)))?;
    let mut guard = abi::fief_guard { fallback, ..Default::default() };
    police::guard(listener, &mut guard);
    let admits = listener.admit && listener.addresses().all(|address| plan.admits(address));
    for (is_set, flag) in [
        (admits, abi::FIEF_GUARD_ADMIT),
        (admits && plan.kernel, abi::FIEF_GUARD_KERNEL),
        (admits && listener.later_requests, abi::FIEF_GUARD_LATER),
        (listener.forward, abi::FIEF_GUARD_FORWARD),
        ([policy.mode, listener.mode].contains(&Mode::Monitor), abi::FIEF_GUARD_MONITOR),
    ] {
        guard.flags |= if is_set { flag } else { 0 };
    }
    guard.admit_level = police::level(listener.admit_from).into();
    Ok(guard)
}
