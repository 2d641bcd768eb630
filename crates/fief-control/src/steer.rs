// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Steer: which listening socket a new connection reaches, by the class of its client.
//!
//! The policy's listeners become three tables: addresses, the prefix lengths that their rules use, and the prefixes. They
//! are written into the slot that is not in force; [`Tables::fill`] changes nothing that a connection sees.
//!
//! The sockets behind the classes register themselves when the server listens (`bpf/front/register.bpf.h`), under the
//! index of the listener. So an address keeps its index from policy to policy ([`index`]), and a policy can be replaced
//! under a running server.

mod index;
mod records;
mod shim;

use std::collections::HashMap;
use std::net::SocketAddr;

use fief_bpf::record::Record;
use fief_bpf::{Context, Error, ErrorKind, Result, abi, batch};
use fief_policy::{Listener, Serve};
use libbpf_rs::{MapCore, MapFlags, MapHandle};

pub(crate) use index::Indexed;
pub use shim::{Shim, environment};

use crate::blooms::Blooms;
use crate::police::ClientRate;

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
    pub clients: MapHandle,
}

impl Tables {
    /// Writes the listeners into `slot`, after clearing what an earlier policy left there. Returns their indexes.
    ///
    /// `place` finds the container of a path, `rates` the rates of a listener's client rules, by its position. Addresses
    /// that the other slot has keep their index.
    /// Errors: [`ErrorKind::NotFound`] for a path without a container, [`ErrorKind::Full`] for too many listeners,
    /// classes or prefixes.
    pub(crate) fn fill(
        &self,
        slot: u8,
        listeners: &[Listener],
        place: impl Fn(&str) -> Option<Place>,
        rates: &[Vec<ClientRate>],
        blooms: &mut Blooms,
    ) -> Result<Vec<u16>> {
        self.clear(slot)?;
        let addresses: Vec<_> = listeners.iter().map(|listener| listener.address).collect();
        let indexes = index::assign(&addresses, &self.indexes(other(slot))?)?;
        for ((listener, index), rates) in listeners.iter().zip(&indexes).zip(rates) {
            self.fill_listener(slot, *index, listener, &place, rates, blooms)
                .map_err(|error| Error::new(error.kind(), format!("listener {}: {error}", listener.name)))?;
        }
        Ok(indexes)
    }

    fn fill_listener(
        &self,
        slot: u8,
        index: u16,
        listener: &Listener,
        place: &impl Fn(&str) -> Option<Place>,
        rates: &[ClientRate],
        blooms: &mut Blooms,
    ) -> Result<()> {
        let table = listener.table();
        let places = table
            .classes
            .iter()
            .map(|class| {
                place(&class.container).ok_or_else(|| {
                    Error::new(ErrorKind::NotFound, format!("there is no container {}", class.container))
                })
            })
            .collect::<Result<Vec<_>>>()?;
        let clients: Vec<_> = table
            .entries
            .iter()
            .map(|entry| {
                let rate = rates.get(usize::from(entry.rule)).copied().unwrap_or_default();
                records::client(slot, index, entry, places[usize::from(entry.class)], rate)
            })
            .collect();
        batch::update(&self.clients, &clients)?;
        let mut lengths = records::prefix_lengths(table.entries.iter().map(|entry| entry.prefix.prefix_len()));
        // without room for a filter every prefix length is looked up
        if let Some(placed) = blooms.place(&table.filter()) {
            (lengths.filtered, lengths.bloom, lengths.bloom_mask) = (1, placed.first, placed.mask);
        }
        let at = u32::from(slot) * abi::FIEF_MAX_LISTENERS + u32::from(index);
        self.prefix_lengths
            .update(&at.to_ne_bytes(), lengths.bytes(), MapFlags::ANY)
            .context(|| "cannot write the prefix lengths".into())?;
        let record = records::listener(index, serve(listener.serve, places.len()), &table.classes, &places)?;
        let addresses: Vec<_> =
            listener.addresses().map(|address| (records::listener_key(slot, address), record)).collect();
        batch::update(&self.listeners, &addresses)
    }

    /// Empties a slot. Only for the one that is not in force.
    pub fn clear(&self, slot: u8) -> Result<()> {
        let listeners: Vec<(abi::fief_listener_key, abi::fief_listener)> = batch::entries(&self.listeners)?;
        let old: Vec<_> = listeners.into_iter().map(|(key, _)| key).filter(|key| key.slot == slot).collect();
        batch::delete(&self.listeners, &old)?;
        let clients: Vec<(abi::fief_client_key, abi::fief_client)> = batch::entries(&self.clients)?;
        let old: Vec<_> = clients.into_iter().map(|(key, _)| key).filter(|key| key.slot == slot).collect();
        batch::delete(&self.clients, &old)?;
        let first = u32::from(slot) * abi::FIEF_MAX_LISTENERS;
        let none = abi::fief_prefix_lengths::default();
        let lengths: Vec<_> = (first..first + abi::FIEF_MAX_LISTENERS).map(|at| (at, none)).collect();
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
    pub container: u32,
    /// Several sockets can serve one class: a group of SO_REUSEPORT, an old server beside the new one.
    pub turn: u16,
    /// The kernel's number of the socket (`ss -e` shows it as `sk`).
    pub cookie: u64,
}

/// The class listeners that servers have registered now, by listener and container.
pub fn registered(class_listeners: &MapHandle) -> Result<Vec<ClassListener>> {
    let mut found = Vec::new();
    for bytes in class_listeners.keys() {
        let Some(key) = abi::fief_class_key::from_bytes(&bytes) else { continue };
        // A server that closes meanwhile takes its entry along.
        let value = class_listeners.lookup(&bytes, MapFlags::ANY).context(|| "cannot read a class listener".into())?;
        let Some(cookie) = value.and_then(|value| value.try_into().ok()).map(u64::from_ne_bytes) else { continue };
        found.push(ClassListener { listener: key.listener, container: key.container, turn: key.turn, cookie });
    }
    found.sort_by_key(|socket| (socket.listener, socket.container, socket.turn));
    Ok(found)
}
