// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Records of `abi.h` as bytes and back, for maps and program runs.

use libbpf_rs::{MapCore, MapFlags, MapHandle};

use crate::abi;
use crate::error::{Context, Error, ErrorKind, Result};

/// A record of `abi.h`: plain integers, every bit pattern valid.
///
/// # Safety
/// Implemented for types made of integers and arrays of them only.
pub unsafe trait Record: Copy + Default {
    /// Its bytes, padding included.
    fn bytes(&self) -> &[u8] {
        // SAFETY: plain integers; the records of abi.h spell their padding out.
        unsafe { std::slice::from_raw_parts(std::ptr::from_ref(self).cast(), size_of::<Self>()) }
    }

    /// Its bytes to write to.
    fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above, and every bit pattern is valid.
        unsafe { std::slice::from_raw_parts_mut(std::ptr::from_mut(self).cast(), size_of::<Self>()) }
    }

    /// The record that `bytes` hold; `None` if they are too few.
    fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let mut record = Self::default();
        let room = record.bytes_mut();
        room.copy_from_slice(bytes.get(..room.len())?);
        Some(record)
    }
}

macro_rules! records {
    ($($name:ident),* $(,)?) => {
        // SAFETY: generated from abi.h, which holds integers and arrays of them only.
        $(unsafe impl Record for abi::$name {})*
    };
}

records!(
    fief_ref,
    fief_usage,
    fief_attributes,
    fief_container,
    fief_descriptor,
    fief_label,
    fief_flow_key,
    fief_file_key,
    fief_file,
    fief_listener_key,
    fief_listener,
    fief_client,
    fief_line,
    fief_class_key,
    fief_netns,
    fief_prefix_lengths,
    fief_task,
    fief_object,
    fief_ring_open,
    fief_control,
    fief_sched,
    fief_combined,
    fief_user,
    fief_unit,
    fief_admin,
    fief_info,
    fief_ban_key,
    fief_ban,
    fief_bucket,
    fief_source,
    fief_meter,
    fief_except_key,
    fief_guard,
    fief_sightings,
    fief_thresholds,
    fief_load,
    fief_request,
    fief_secret,
    fief_source_bucket,
    fief_verdict_key,
    fief_lane,
    fief_lane_key,
    fief_notice,
    fief_mark,
    fief_queue,
    fief_served,
    fief_program,
    fief_program_group,
    fief_charge_source,
    fief_charge_sum,
    fief_cost,
    fief_cost_set,
    fief_cost_control,
    fief_cost_room,
    fief_watch,
);

// SAFETY: bytes and integers.
unsafe impl Record for [u8; 16] {}
// SAFETY: an integer.
unsafe impl Record for u32 {}
// SAFETY: an integer.
unsafe impl Record for u64 {}

/// Writes element `index` of an array map.
pub fn update<T: Record>(map: &MapHandle, index: u32, record: &T) -> Result<()> {
    map.update(&index.to_ne_bytes(), record.bytes(), MapFlags::ANY).context(|| format!("cannot write element {index}"))
}

/// Writes zeroes into the records that all CPUs have of one index.
pub fn clear_of_all_cpus(map: &MapHandle, index: u32) -> Result<()> {
    let cpus = libbpf_rs::num_possible_cpus().context(|| "cannot count the CPUs".into())?;
    let none = vec![vec![0; map.value_size() as usize]; cpus];
    map.update_percpu(&index.to_ne_bytes(), &none, MapFlags::ANY).context(|| format!("cannot write element {index}"))
}

/// Reads what is under `key`.
pub fn lookup<T: Record>(map: &MapHandle, key: &[u8]) -> Result<Option<T>> {
    let Some(bytes) = map.lookup(key, MapFlags::ANY).context(|| "cannot read a map".into())? else { return Ok(None) };
    T::from_bytes(&bytes)
        .map(Some)
        .ok_or_else(|| Error::new(ErrorKind::Drift, "a map's value is shorter than its record"))
}
