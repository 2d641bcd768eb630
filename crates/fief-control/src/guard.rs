// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The control of a policy's listeners, written into the slot that is not in force: guards, their ports, thresholds, request
//! rules. Nothing changes for a packet before the flip.

use std::hash::{DefaultHasher, Hash, Hasher};

use fief_bpf::map::MapHandle;
use fief_bpf::record;
use fief_bpf::{Error, ErrorKind, Result, abi, batch};
use fief_policy::{Listener, Policy, Unread};

use crate::client::mapped_prefix;
use crate::handshake::Plan;
use crate::police;
use crate::staging::Staging;
use crate::steer::Indexed;
use crate::{Fief, admit, excepts, queue};

/// Words of `guarded_ports` for one slot: a bit for each port.
const PORT_WORDS: u32 = 1024;

/// The tables of the front door, both slots.
#[derive(Debug)]
pub(crate) struct Tables {
    guards: MapHandle,
    guarded_ports: MapHandle,
    thresholds: MapHandle,
    excepts: MapHandle,
}

/// The guards of a policy on their way into a slot.
#[derive(Debug)]
pub(crate) struct Staged {
    guards: Vec<(u32, abi::fief_guard)>,
    ports: Vec<u64>,
    excepts: Vec<abi::fief_except_key>,
    thresholds: abi::fief_thresholds,
}

impl Fief {
    pub(crate) fn guard_tables(&self) -> Result<Tables> {
        Ok(Tables {
            guards: self.map("guards")?,
            guarded_ports: self.map("guarded_ports")?,
            thresholds: self.map("thresholds")?,
            excepts: self.map("excepts")?,
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
    let mut spared = Vec::new();
    for &Indexed { index, listener } in listeners {
        // levels of overload are found out where connection requests are looked at
        if !listener.is_guarded() && listener.lrp.is_none() {
            continue;
        }
        let mut guard = guard(policy, listener, plan, &container)?;
        admit::stage(policy, listener, &mut guard, staging, &container)?;
        if let Some(queue) = listener.queue.filter(|_| guard.flags & abi::FIEF_GUARD_ADMIT != 0) {
            guard.queue = staging.queues.add(queue::record(policy, index, listener, queue, &container)?);
            queue::rule_all(&mut guard);
        }
        if listener.is_guarded() && guard.flags & abi::FIEF_GUARD_MONITOR == 0 {
            ports[0] |= 1; // no server has port 0: its bit says that some guard does more than watch
        }
        guard.flags |= excepts::flags(listener);
        spared.extend(excepts::keys(listener, index, staging.slot));
        guards.push((staging.slot * abi::FIEF_MAX_LISTENERS + u32::from(index), guard));
        for address in listener.addresses() {
            ports[usize::from(address.port()) / 64] |= 1 << (address.port() % 64);
        }
    }
    Ok(Staged { guards, ports, excepts: spared, thresholds: police::thresholds(policy) })
}

impl Tables {
    pub(crate) fn write(&self, slot: u32, staged: &Staged) -> Result<()> {
        batch::update(&self.guards, &staged.guards)?;
        record::update(&self.thresholds, slot, &staged.thresholds)?;
        excepts::write(&self.excepts, slot, &staged.excepts)?;
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
    if let Some(path) = listener.isolate.as_ref().and_then(|isolate| isolate.into.as_ref()) {
        let missing = || Error::new(ErrorKind::NotFound, format!("listener {}: no container {path}", listener.name));
        guard.isolate_into = container(path).ok_or_else(missing)?;
        guard.flags |= abi::FIEF_GUARD_INTO;
    }
    let unguarded = policy.front.refuses_unguarded(listener).filter(|_| listener.is_guarded() && !listener.forward);
    let admits = listener.admit && !plan.open;
    for (is_set, flag) in [
        (admits, abi::FIEF_GUARD_ADMIT),
        (admits && plan.kernel_answers(listener), abi::FIEF_GUARD_KERNEL),
        (admits && listener.later_requests, abi::FIEF_GUARD_LATER),
        (listener.bodies_read, abi::FIEF_GUARD_BODIES_READ),
        (listener.queue.is_some_and(|queue| queue.turns), abi::FIEF_GUARD_TURNS),
        (listener.forward, abi::FIEF_GUARD_FORWARD),
        (policy.watches(listener), abi::FIEF_GUARD_MONITOR),
        (unguarded.is_some(), abi::FIEF_GUARD_EVERYWHERE),
        (unguarded == Some(true), abi::FIEF_GUARD_CLOSED),
    ] {
        guard.flags |= if is_set { flag } else { 0 };
    }
    guard.admit_level = police::level(listener.admit_from).into();
    unread(listener, &mut guard);
    guard.rules = rules_hash(policy, listener);
    Ok(guard)
}

/// Of what is said of requests here: what passes unread does so for as long as this stays.
fn rules_hash(policy: &Policy, listener: &Listener) -> u32 {
    let said = (&listener.requests, &listener.unread_refused, &listener.proxies, listener.bodies_read);
    let how = (policy.mode, listener.mode, listener.admit, listener.later_requests);
    let mut hasher = DefaultHasher::new();
    format!("{said:?} {how:?}").hash(&mut hasher);
    hasher.finish() as u32
}

/// What becomes of what cannot be read, and whose PROXY heads are read.
fn unread(listener: &Listener, guard: &mut abi::fief_guard) {
    guard.unread_refused = listener.unread_refused.iter().map(|kind| 1 << kind_number(*kind)).sum();
    guard.proxies = listener.proxies.len() as u32;
    for (to, net) in guard.proxy.iter_mut().zip(&listener.proxies) {
        (to.address, to.bits) = mapped_prefix(net);
    }
}

fn kind_number(kind: Unread) -> u32 {
    match kind {
        Unread::Malformed => abi::FIEF_UNREAD_MALFORMED,
        Unread::TooLong => abi::FIEF_UNREAD_TOO_LONG,
        Unread::Upgrade => abi::FIEF_UNREAD_UPGRADE,
        Unread::Http2 => abi::FIEF_UNREAD_HTTP2,
        Unread::Proxy => abi::FIEF_UNREAD_PROXY,
        Unread::NoRoom => abi::FIEF_UNREAD_NO_ROOM,
        Unread::Other => abi::FIEF_UNREAD_OTHER,
    }
}
