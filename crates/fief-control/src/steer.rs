// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Steer: which listening socket a new connection reaches, by the class of its client.
//!
//! The policy's listeners become three tables: addresses, the prefix lengths that their rules use, and the prefixes
//! ([`rule_table`](crate::rule_table)). They are written into the slot that is not in force, which changes nothing that a
//! connection sees.
//!
//! The sockets behind the classes register themselves when the server listens (`bpf/front/register.bpf.h`), under the
//! index of the listener. So an address keeps its index from policy to policy ([`index`]), and a policy can be replaced
//! under a running server.

mod index;
mod records;
mod regions;
mod shim;
mod stands;

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::net::SocketAddr;

use fief_bpf::map::{MapCore, MapFlags, MapHandle};
use fief_bpf::record::Record;
use fief_bpf::{Context, Error, ErrorKind, Result, abi, batch};
use fief_policy::{ClassEntry, ClassSpec, ClassTable, Listener, Serve};

pub(crate) use index::{Indexed, Indexes};
use regions::Regions;
pub(crate) use shim::is_shim;
pub use shim::{Shim, environment};

use crate::blooms::Blooms;
use crate::police::ClientRate;
use crate::rule_table::RuleTable;
use crate::staging::Staging;

/// The container that a class of clients belongs to, as the kernel has it.
#[derive(Clone, Copy, Debug)]
pub struct Place {
    pub container: abi::fief_ref,
    /// Of the container; accept takes the higher one first.
    pub priority: u32,
}

/// The tables of listeners and clients, both slots.
#[derive(Debug)]
pub struct Tables {
    pub listeners: MapHandle,
    pub prefix_lengths: MapHandle,
}

impl Tables {
    /// The listeners as records.
    ///
    /// `place` finds the container of a path, `rates` the rates of a listener's client rules, by its position. Addresses
    /// that the other slot or an earlier policy has had keep their index.
    /// Errors: [`ErrorKind::NotFound`] for a path without a container, [`ErrorKind::Full`] for too many listeners,
    /// classes or prefixes.
    pub(crate) fn stage(
        &self,
        listeners: &[Listener],
        place: impl Fn(&str) -> Option<Place>,
        rates: &[Vec<ClientRate>],
        indexes: &mut Indexes,
        staging: &mut Staging,
    ) -> Result<Staged> {
        let addresses: Vec<_> = listeners.iter().map(|listener| listener.address).collect();
        let slot = staging.slot as u8;
        let mut staged = Staged { slot, ..Staged::default() };
        let in_force = self.indexes(other(slot))?;
        staged.indexes = indexes.assign(&addresses, &in_force)?;
        staged.fresh.extend(staged.indexes.iter().filter(|index| !in_force.values().any(|own| own == *index)));
        for (at, (listener, rates)) in listeners.iter().zip(rates).enumerate() {
            staged
                .add(staged.indexes[at], listener, &place, rates, staging)
                .map_err(|error| Error::new(error.kind(), format!("listener {}: {error}", listener.name)))?;
        }
        Ok(staged)
    }

    pub(crate) fn write(&self, staged: &Staged) -> Result<()> {
        batch::update(&self.prefix_lengths, &staged.lengths)?;
        batch::update(&self.listeners, &staged.listeners)
    }

    /// Empties a slot that is not in force.
    pub(crate) fn clear(&self, slot: u32) -> Result<()> {
        let listeners: Vec<(abi::fief_listener_key, abi::fief_listener)> = batch::entries(&self.listeners)?;
        let old: Vec<_> = listeners.into_iter().map(|(key, _)| key).filter(|key| u32::from(key.slot) == slot).collect();
        batch::delete(&self.listeners, &old)?;
        let none = abi::fief_prefix_lengths::default();
        let lengths: Vec<_> = (0..abi::FIEF_MAX_LISTENERS).map(|index| (at(slot, index), none)).collect();
        batch::update(&self.prefix_lengths, &lengths)
    }

    /// The addresses in a slot with their indexes.
    pub fn indexes(&self, slot: u8) -> Result<HashMap<SocketAddr, u16>> {
        let listeners: Vec<(abi::fief_listener_key, abi::fief_listener)> = batch::entries(&self.listeners)?;
        let own = listeners.into_iter().filter(|(key, _)| key.slot == slot);
        Ok(own
            .map(|(key, listener)| (records::address(&key), u16::try_from(listener.index).unwrap_or(u16::MAX)))
            .collect())
    }
}

/// The listeners of a policy on their way into a slot.
#[derive(Debug, Default)]
pub(crate) struct Staged {
    slot: u8,
    indexes: Vec<u16>,
    /// Those of them that no listener in force has.
    pub(crate) fresh: Vec<u16>,
    lengths: Vec<(u32, abi::fief_prefix_lengths)>,
    listeners: Vec<(abi::fief_listener_key, abi::fief_listener)>,
}

impl Staged {
    /// The listeners that were staged, with their numbers.
    pub(crate) fn indexed<'p>(&self, listeners: &'p [Listener]) -> Vec<Indexed<'p>> {
        self.indexes.iter().zip(listeners).map(|(&index, listener)| Indexed { index, listener }).collect()
    }

    fn add(
        &mut self,
        index: u16,
        listener: &Listener,
        place: &impl Fn(&str) -> Option<Place>,
        rates: &[ClientRate],
        staging: &mut Staging,
    ) -> Result<()> {
        let table = listener.table();
        let places = places(&table, place)?;
        let mut lengths = records::prefix_lengths(table.entries.iter().map(|entry| entry.prefix.prefix_len()));
        lengths.secret = staging.secret[0];
        let client = |entry: &ClassEntry| {
            let rate = rates.get(usize::from(entry.rule)).copied().unwrap_or_default();
            records::client(entry, places[usize::from(entry.class)], rate)
        };
        (lengths.prefixes, lengths.any) = stage_prefixes(&table, lengths.secret, client, &mut staging.rules)?;
        stage_filters(&table, &mut lengths, &mut staging.blooms);
        self.lengths.push((at(self.slot.into(), index.into()), lengths));
        let record = records::listener(index, serve(listener.serve, places.len()), &table.classes, &places)?;
        self.listeners.extend(listener.addresses().map(|address| (records::listener_key(self.slot, address), record)));
        Ok(())
    }
}

fn places(table: &ClassTable, place: &impl Fn(&str) -> Option<Place>) -> Result<Vec<Place>> {
    let of_class = |class: &ClassSpec| {
        let missing = || Error::new(ErrorKind::NotFound, format!("there is no container {}", class.container));
        place(&class.container).ok_or_else(missing)
    };
    table.classes.iter().map(of_class).collect()
}

/// Adds the entries of a listener to the rule table, those of one rule with one record. Returns where they are, and the
/// record of every address that no prefix is around.
fn stage_prefixes(
    table: &ClassTable,
    secret: u64,
    client: impl Fn(&ClassEntry) -> abi::fief_client,
    rules: &mut RuleTable,
) -> Result<(abi::fief_lines, u32)> {
    let (mut records, mut keys, mut any) = (HashMap::new(), Vec::new(), 0);
    for entry in &table.entries {
        let record = match records.entry(entry.rule) {
            Entry::Occupied(there) => *there.get(),
            Entry::Vacant(vacant) => *vacant.insert(rules.add_record(&client(entry))?),
        };
        match entry.prefix.prefix_len() {
            0 => any = record,
            _ => keys.push((entry.hash(secret), record)),
        }
    }
    Ok((rules.add_keys(&keys)?, any))
}

/// What spares looks into the rule table; without room for it every prefix length is looked up.
fn stage_filters(table: &ClassTable, lengths: &mut abi::fief_prefix_lengths, blooms: &mut Blooms) {
    let regions = Regions::of(&table.entries, lengths);
    (lengths.bit_shift, lengths.everywhere) = (regions.bit_shift, regions.everywhere);
    match (blooms.place(&regions.words), blooms.place(&table.filter(lengths.secret))) {
        (Some(regions), Some(filter)) => {
            (lengths.regions, lengths.region_mask) = (regions.first, regions.mask);
            (lengths.filtered, lengths.bloom, lengths.bloom_mask) = (1, filter.first, filter.mask);
        }
        _ => lengths.everywhere = regions.all(),
    }
}

/// Place of a listener's prefix lengths.
fn at(slot: u32, index: u32) -> u32 {
    slot * abi::FIEF_MAX_LISTENERS + index
}

fn other(slot: u8) -> u8 {
    1 - slot.min(1)
}

/// One class needs no listeners of its own.
fn serve(serve: Serve, classes: usize) -> u32 {
    match serve {
        Serve::CopiesPerClass => abi::FIEF_SERVE_COPIES,
        Serve::Shim if classes > 1 => abi::FIEF_SERVE_SHIM,
        Serve::Shim | Serve::Shared => abi::FIEF_SERVE_SHARED,
    }
}

/// A listening socket of one class.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClassListener {
    /// Index of the listener, see [`Tables::indexes`].
    pub listener: u16,
    /// Slot of the class's container; of a filtered listener its own number.
    pub container: u32,
    /// As much of the container's generation as its key has room for.
    pub generation: u32,
    /// Several sockets can serve one class: a group of SO_REUSEPORT, an old server beside the new one.
    pub turn: u16,
    /// The kernel's number of the socket (`ss -e` shows it as `sk`).
    pub cookie: u64,
}

/// What a key keeps of a generation: the low bits beside the slot, the next ones beside the turn (abi/steer.h).
const LOW_BITS: u32 = u32::BITS - abi::FIEF_CLASS_SLOT_BITS;
const GENERATION_BITS: u32 = LOW_BITS + u16::BITS - abi::FIEF_CLASS_TURN_BITS;

impl ClassListener {
    fn new(key: abi::fief_class_key, cookie: u64) -> Self {
        let abi::fief_class_key { listener, turn, container } = key;
        if u32::from(listener) == abi::FIEF_NO_LISTENER {
            return Self { listener, container, generation: 0, turn, cookie };
        }
        let (slots, turns) = (1 << abi::FIEF_CLASS_SLOT_BITS, 1 << abi::FIEF_CLASS_TURN_BITS);
        let generation = (u32::from(turn / turns) << LOW_BITS) | (container / slots);
        Self { listener, container: container % slots, generation, turn: turn % turns, cookie }
    }

    /// Whether it was made for this container, and not for one that had the slot before.
    pub(crate) fn is_of(&self, container: abi::fief_ref) -> bool {
        u32::from(self.listener) != abi::FIEF_NO_LISTENER
            && self.container == container.id
            && self.generation == container.generation % (1 << GENERATION_BITS)
    }
}

/// The class listeners that servers have registered now, by listener and container.
pub fn registered(class_listeners: &MapHandle) -> Result<Vec<ClassListener>> {
    let mut found = Vec::new();
    for bytes in class_listeners.keys() {
        let Some(key) = abi::fief_class_key::from_bytes(&bytes) else { continue };
        // A server that closes meanwhile takes its entry along.
        let value = class_listeners.lookup(&bytes, MapFlags::ANY).context(|| "cannot read a class listener".into())?;
        let Some(cookie) = value.and_then(|value| value.try_into().ok()).map(u64::from_ne_bytes) else { continue };
        found.push(ClassListener::new(key, cookie));
    }
    found.sort_by_key(|socket| (socket.listener, socket.container, socket.generation, socket.turn));
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As the kernel side writes it (bpf/include/maps/class_listeners.bpf.h).
    fn key(container: abi::fief_ref, turn: u16) -> abi::fief_class_key {
        let abi::fief_ref { id, generation } = container;
        abi::fief_class_key {
            listener: 3,
            turn: (generation >> 12 << 2) as u16 + turn,
            container: generation << 20 | id,
        }
    }

    #[test]
    fn a_class_listener_is_its_containers_and_no_other_ones_of_the_slot() {
        for generation in [0, 1, 4095, 4096, 0x3ff_ffff] {
            let container = abi::fief_ref { id: abi::FIEF_MAX_CONTAINERS - 1, generation };
            let socket = ClassListener::new(key(container, 3), 7);
            assert_eq!((socket.container, socket.generation, socket.turn), (container.id, generation, 3));
            assert!(socket.is_of(container));
            for other in [generation ^ 1, generation ^ 0x1000, generation ^ 0x200_0000] {
                assert!(!socket.is_of(abi::fief_ref { generation: other, ..container }), "{generation} {other}");
            }
            assert!(!socket.is_of(abi::fief_ref { id: 8, ..container }));
        }
    }

    #[test]
    fn a_generation_that_no_key_has_room_for_is_told_by_its_low_bits() {
        let container = abi::fief_ref { id: 9, generation: u32::MAX };
        assert!(ClassListener::new(key(container, 0), 7).is_of(container));
    }

    #[test]
    fn the_number_of_a_filtered_listener_is_no_container() {
        let filtered = abi::fief_class_key { listener: abi::FIEF_NO_LISTENER as u16, turn: 0, container: 0x1234_5678 };
        let socket = ClassListener::new(filtered, 7);
        assert_eq!(socket.container, 0x1234_5678);
        assert!(!socket.is_of(abi::fief_ref { id: 0x1234_5678, generation: 0 }));
    }
}
