// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Excepts: whom isolation and penalties of a listener do not hold for, as keys of the kernel side's trie
//! (`bpf/front/excepted.bpf.h`). Each policy slot has its own; nobody looks into the one that is not in force.

use fief_bpf::map::{MapCore, MapFlags, MapHandle};
use fief_bpf::record::Record;
use fief_bpf::{Context, Error, ErrorKind, Result, abi};
use fief_policy::Listener;
use ipnet::IpNet;

use crate::client::mapped_prefix;

/// What a listener's guard says of them.
pub(crate) fn flags(listener: &Listener) -> u32 {
    let isolation = listener.isolate.as_ref().is_some_and(|isolate| !isolate.except.is_empty());
    let penalties = !listener.penalty_except.is_empty();
    let of = |is_set: bool, flag: u32| if is_set { flag } else { 0 };
    of(isolation, abi::FIEF_GUARD_NO_ISOLATE) | of(penalties, abi::FIEF_GUARD_NO_PENALTY)
}

/// The keys of a listener.
pub(crate) fn keys(listener: &Listener, index: u16, slot: u32) -> impl Iterator<Item = abi::fief_except_key> + '_ {
    let isolation = listener.isolate.iter().flat_map(|isolate| &isolate.except);
    let isolation = isolation.map(|net| (abi::FIEF_EXCEPT_ISOLATE, net));
    let penalties = listener.penalty_except.iter().map(|net| (abi::FIEF_EXCEPT_PENALTY, net));
    isolation.chain(penalties).map(move |(from, net)| key(slot, index, from, net))
}

fn key(slot: u32, listener: u16, from: abi::fief_except, net: &IpNet) -> abi::fief_except_key {
    let (address, bits) = mapped_prefix(net);
    abi::fief_except_key { bits: abi::FIEF_EXCEPT_BITS + bits, slot: slot as u8, from: from as u8, listener, address }
}

/// Puts those of a policy into its slot, in place of what is there.
pub(crate) fn write(map: &MapHandle, slot: u32, keys: &[abi::fief_except_key]) -> Result<()> {
    let most = abi::FIEF_EXCEPTS / 2;
    if keys.len() > most as usize {
        let what =
            format!("{} exceptions from isolation and penalties are too many; a policy can have {most}", keys.len());
        return Err(Error::new(ErrorKind::Full, what).remedy("put neighbouring prefixes into one"));
    }
    clear(map, slot)?;
    let what = || "cannot write exceptions from isolation and penalties".to_owned();
    keys.iter().try_for_each(|key| map.update(key.bytes(), 1u32.bytes(), MapFlags::ANY).context(what))
}

fn clear(map: &MapHandle, slot: u32) -> Result<()> {
    let is_of = |key: &Vec<u8>| abi::fief_except_key::from_bytes(key).is_some_and(|key| u32::from(key.slot) == slot);
    let old: Vec<_> = map.keys().filter(is_of).collect();
    let what = || "cannot remove exceptions of an older policy".to_owned();
    old.iter().try_for_each(|key| map.delete(key).context(what))
}

#[cfg(test)]
mod tests {
    use super::*;
    use fief_policy::Isolate;

    #[test]
    fn a_prefix_is_behind_its_slot_listener_and_control() {
        let mut listener = Listener::new("web", "0.0.0.0:80".parse().expect("an address"));
        assert_eq!((flags(&listener), keys(&listener, 3, 1).count()), (0, 0));
        let nets = |text: &str| vec![text.parse().expect("a prefix")];
        listener.penalty_except = nets("fd77:1::/48");
        listener.isolate = Some(Isolate {
            above: 1,
            for_ns: 1,
            when: fief_policy::Level::Always,
            into: None,
            except: nets("10.0.0.0/8"),
        });
        assert_eq!(flags(&listener), abi::FIEF_GUARD_NO_ISOLATE | abi::FIEF_GUARD_NO_PENALTY);
        let keys: Vec<_> = keys(&listener, 3, 1).collect();
        let heads: Vec<_> = keys.iter().map(|key| (key.bits, key.slot, key.from, key.listener)).collect();
        assert_eq!(
            heads,
            [(32 + 104, 1, abi::FIEF_EXCEPT_ISOLATE as u8, 3), (32 + 48, 1, abi::FIEF_EXCEPT_PENALTY as u8, 3)]
        );
        assert_eq!((keys[0].address[10..13].to_vec(), keys[1].address[0]), (vec![0xff, 0xff, 10], 0xfd));
    }
}
