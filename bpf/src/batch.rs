// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Many entries of a hash at once. A policy of a million rules takes only seconds this way. A walk also reaches the end of a
//! table that the kernel side changes all the time, which a walk key by key may not.

use std::os::fd::{AsFd, AsRawFd};

use libbpf_rs::{MapCore, MapHandle};

use crate::error::{Context, Result};
use crate::record::Record;

/// Entries in one call.
const ENTRIES: usize = 4096;

/// Every entry of a hash. One that comes or goes meanwhile may be there or not.
pub fn entries<K: Record, V: Record>(map: &MapHandle) -> Result<Vec<(K, V)>> {
    entries_if(map, |_| true)
}

/// Those with such a value, of a table of which few are worth keeping.
pub fn entries_if<K: Record, V: Record>(map: &MapHandle, keep: impl Fn(&V) -> bool) -> Result<Vec<(K, V)>> {
    let mut found = Vec::new();
    walk(map, size_of::<K>(), size_of::<V>(), |key, value| {
        found.extend(K::from_bytes(key).zip(V::from_bytes(value).filter(&keep)));
    })?;
    Ok(found)
}

/// Every key of a hash, whatever its values are; likewise.
pub fn keys<K: Record>(map: &MapHandle) -> Result<Vec<K>> {
    let mut found = Vec::new();
    walk(map, size_of::<K>(), map.value_size() as usize, |key, _| found.extend(K::from_bytes(key)))?;
    Ok(found)
}

/// Every key of a hash of counters per CPU, with their sum.
pub fn sums<K: Record>(map: &MapHandle) -> Result<Vec<(K, u64)>> {
    let cpus = libbpf_rs::num_possible_cpus().context(|| "cannot count the CPUs".into())?;
    let mut found = Vec::new();
    walk(map, size_of::<K>(), cpus * size_of::<u64>(), |key, value| {
        let counters = value.chunks_exact(size_of::<u64>()).filter_map(|bytes| bytes.try_into().ok());
        let sum = counters.map(u64::from_ne_bytes).sum();
        found.extend(K::from_bytes(key).map(|key| (key, sum)));
    })?;
    Ok(found)
}

/// Writes entries, over those that are there.
pub fn update<K: Record, V: Record>(map: &MapHandle, entries: &[(K, V)]) -> Result<()> {
    for chunk in entries.chunks(ENTRIES) {
        let keys: Vec<u8> = chunk.iter().flat_map(|(key, _)| key.bytes()).copied().collect();
        let values: Vec<u8> = chunk.iter().flat_map(|(_, value)| value.bytes()).copied().collect();
        let mut count = chunk.len() as u32;
        assert_size::<K>(map.key_size());
        assert_size::<V>(map.value_size());
        // SAFETY: keys and values hold `count` records each of the map's sizes, which is checked; no options.
        let err = unsafe {
            libbpf_sys::bpf_map_update_batch(
                map.as_fd().as_raw_fd(),
                keys.as_ptr().cast(),
                values.as_ptr().cast(),
                &raw mut count,
                std::ptr::null(),
            )
        };
        result(err).context(|| format!("cannot write {} entries of a table", chunk.len()))?;
    }
    Ok(())
}

/// Removes entries; one that is not there is no error.
pub fn delete<K: Record>(map: &MapHandle, keys: &[K]) -> Result<()> {
    let mut rest = keys;
    while !rest.is_empty() {
        let chunk = &rest[..rest.len().min(ENTRIES)];
        let bytes: Vec<u8> = chunk.iter().flat_map(Record::bytes).copied().collect();
        let mut done = chunk.len() as u32;
        assert_size::<K>(map.key_size());
        // SAFETY: the keys are `done` records of the map's size, which is checked; no options.
        let err = unsafe {
            libbpf_sys::bpf_map_delete_batch(
                map.as_fd().as_raw_fd(),
                bytes.as_ptr().cast(),
                &raw mut done,
                std::ptr::null(),
            )
        };
        rest = match -err {
            0 => &rest[chunk.len()..],
            libc::ENOENT => &rest[done as usize + 1..],
            errno => {
                let failed = Err(std::io::Error::from_raw_os_error(errno));
                return failed.context(|| "cannot remove entries of a table".into());
            }
        };
    }
    Ok(())
}

fn walk(map: &MapHandle, key: usize, value: usize, mut each: impl FnMut(&[u8], &[u8])) -> Result<()> {
    assert_eq!(map.key_size() as usize, key, "the record is not the map's key");
    let mut entries = ENTRIES.min(map.max_entries() as usize);
    let (mut keys, mut values) = (vec![0u8; entries * key], vec![0u8; entries * value]);
    // The kernel's place in the table: four bytes for a hash.
    let mut place: Option<u32> = None;
    loop {
        let (mut next, mut count) = (0u32, entries as u32);
        let from = place.as_mut().map_or(std::ptr::null_mut(), std::ptr::from_mut);
        // SAFETY: keys and values have room for `count` of both; the places are four bytes, as a hash wants; no options.
        let err = unsafe {
            libbpf_sys::bpf_map_lookup_batch(
                map.as_fd().as_raw_fd(),
                from.cast(),
                (&raw mut next).cast(),
                keys.as_mut_ptr().cast(),
                values.as_mut_ptr().cast(),
                &raw mut count,
                std::ptr::null(),
            )
        };
        match -err {
            0 | libc::ENOENT => {}
            libc::ENOSPC => {
                entries *= 2; // one chain of the hash is longer than the room
                (keys, values) = (vec![0u8; entries * key], vec![0u8; entries * value]);
                continue;
            }
            errno => {
                return Err(std::io::Error::from_raw_os_error(errno)).context(|| "cannot read a table".into());
            }
        }
        for (key, value) in keys.chunks_exact(key).zip(values.chunks_exact(value)).take(count as usize) {
            each(key, value);
        }
        if err != 0 {
            return Ok(());
        }
        place = Some(next);
    }
}

fn assert_size<R: Record>(size: u32) {
    assert_eq!(size as usize, size_of::<R>(), "the record is not the map's");
}

fn result(err: i32) -> std::io::Result<()> {
    if err < 0 { Err(std::io::Error::from_raw_os_error(-err)) } else { Ok(()) }
}
