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
use fief_bpf::{Context, Error, ErrorKind, Result, abi};
use fief_policy::{Listener, Serve};
use libbpf_rs::{MapCore, MapFlags, MapHandle};

pub use shim::{Shim, environment};

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
    /// Writes the listeners into `slot`, after clearing what an earlier policy left there.
    ///
    /// `place` finds the container of a path. Addresses that the other slot has keep their index.
    /// Errors: [`ErrorKind::NotFound`] for a path without a container, [`ErrorKind::Full`] for too many listeners,
    /// classes or prefixes.
    pub fn fill(&self, slot: u8, listeners: &[Listener], place: impl Fn(&str) -> Option<Place>) -> Result<()> {
        self.clear(slot)?;
        let addresses: Vec<_> = listeners.iter().map(|listener| listener.address).collect();
        let indexes = index::assign(&addresses, &self.indexes(other(slot))?)?;
        for (listener, index) in listeners.iter().zip(indexes) {
            self.fill_listener(slot, index, listener, &place)
                .map_err(|error| Error::new(error.kind(), format!("listener {}: {error}", listener.name)))?;
        }
        Ok(())
    }

    fn fill_listener(
        &self,
        slot: u8,
        index: u16,
        listener: &Listener,
        place: &impl Fn(&str) -> Option<Place>,
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
        for entry in &table.entries {
            let (key, client) = records::client(slot, index, entry, places[usize::from(entry.class)]);
            write(&self.clients, &key, &client).context(|| format!("cannot write the prefix {}", entry.prefix))?;
        }
        let lengths = records::prefix_lengths(table.entries.iter().map(|entry| entry.prefix.prefix_len()));
        let at = u32::from(slot) * abi::FIEF_MAX_LISTENERS + u32::from(index);
        self.prefix_lengths
            .update(&at.to_ne_bytes(), lengths.bytes(), MapFlags::ANY)
            .context(|| "cannot write the prefix lengths".into())?;
        let key = records::listener_key(slot, listener.address);
        let record = records::listener(index, serve(listener.serve, places.len()), &table.classes, &places)?;
        write(&self.listeners, &key, &record).context(|| format!("cannot write the address {}", listener.address))
    }

    /// Empties a slot. Only for the one that is not in force.
    pub fn clear(&self, slot: u8) -> Result<()> {
        clear(&self.listeners, |key: &abi::fief_listener_key| key.slot == slot)?;
        clear(&self.clients, |key: &abi::fief_client_key| key.slot == slot)?;
        let none = abi::fief_prefix_lengths::default();
        for index in 0..abi::FIEF_MAX_LISTENERS {
            let at = u32::from(slot) * abi::FIEF_MAX_LISTENERS + index;
            self.prefix_lengths
                .update(&at.to_ne_bytes(), none.bytes(), MapFlags::ANY)
                .context(|| "cannot clear the prefix lengths".into())?;
        }
        Ok(())
    }

    /// The addresses in a slot with their indexes.
    pub fn indexes(&self, slot: u8) -> Result<HashMap<SocketAddr, u16>> {
        let mut found = HashMap::new();
        for bytes in self.listeners.keys() {
            let Some(key) = abi::fief_listener_key::from_bytes(&bytes).filter(|key| key.slot == slot) else { continue };
            let value = self.listeners.lookup(&bytes, MapFlags::ANY).context(|| "cannot read a listener".into())?;
            let Some(listener) = value.as_deref().and_then(abi::fief_listener::from_bytes) else { continue };
            found.insert(records::address(&key), u16::try_from(listener.index).unwrap_or(u16::MAX));
        }
        Ok(found)
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

fn write<K: Record, V: Record>(map: &MapHandle, key: &K, value: &V) -> libbpf_rs::Result<()> {
    map.update(key.bytes(), value.bytes(), MapFlags::ANY)
}

fn clear<K: Record>(map: &MapHandle, ours: impl Fn(&K) -> bool) -> Result<()> {
    // Deleting while walking makes the walk start again, so the keys are taken first.
    let keys: Vec<_> = map.keys().filter(|bytes| K::from_bytes(bytes).is_some_and(|key| ours(&key))).collect();
    for key in keys {
        map.delete(&key).context(|| "cannot clear a table of the policy".into())?;
    }
    Ok(())
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
