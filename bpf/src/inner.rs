// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Arrays inside of an array of maps: each is made in the needed size and filled before any program sees it. An inner array has
//! no pin; it lives while the outer one, or a program that still uses it, holds it.

use std::num::NonZeroUsize;
use std::os::fd::{AsFd, AsRawFd};

use libbpf_rs::{MapCore, MapFlags, MapHandle, MapType};
use nix::sys::mman::{self, ProtFlags, mmap, munmap};

use crate::error::{Context, Error, ErrorKind, Result};
use crate::record::Record;

/// An array of these records, at least one.
pub fn array<R: Record>(name: &str, records: &[R]) -> Result<MapHandle> {
    let opts = libbpf_sys::bpf_map_create_opts {
        sz: size_of::<libbpf_sys::bpf_map_create_opts>() as _,
        // as in the outer map's definition
        map_flags: libbpf_sys::BPF_F_MMAPABLE | libbpf_sys::BPF_F_INNER_MAP,
        ..Default::default()
    };
    let what = || format!("cannot make a table of {} lines of {} bytes", records.len(), size_of::<R>());
    let (key, value) = (size_of::<u32>() as u32, size_of::<R>() as u32);
    let count = u32::try_from(records.len()).unwrap_or(u32::MAX);
    let array = MapHandle::create(MapType::Array, Some(name), key, value, count, &opts).context(what)?;
    fill(&array, records).context(what)?;
    Ok(array)
}

fn fill<R: Record>(array: &MapHandle, records: &[R]) -> nix::Result<()> {
    let Some(bytes) = NonZeroUsize::new(size_of_val(records)) else { return Ok(()) };
    let protection = ProtFlags::PROT_READ | ProtFlags::PROT_WRITE;
    // SAFETY: a fresh mapping at an address of the kernel's choice; the kernel refuses a length beyond the map.
    let start = unsafe { mmap(None, bytes, protection, mman::MapFlags::MAP_SHARED, array.as_fd(), 0) }?;
    // SAFETY: source and mapping have that many bytes and do not overlap; nobody else knows the map.
    unsafe { std::ptr::copy_nonoverlapping(records.as_ptr().cast::<u8>(), start.cast::<u8>().as_ptr(), bytes.get()) };
    // SAFETY: the mapping is ours and nothing borrowed from it is left.
    unsafe { munmap(start, bytes.get()) }
}

/// The array at element `at` of the outer map; none was put there yet.
pub fn get(outer: &MapHandle, at: u32) -> Result<Option<MapHandle>> {
    let what = || format!("cannot read the table at place {at}");
    let Some(id) = outer.lookup(&at.to_ne_bytes(), MapFlags::ANY).context(what)? else { return Ok(None) };
    let id = id.try_into().map(u32::from_ne_bytes).map_err(|_| Error::new(ErrorKind::Unsupported, what()))?;
    MapHandle::from_map_id(id).context(what).map(Some)
}

/// Puts arrays at element `at` of their outer maps, which let go of what was there.
///
/// Each time the kernel waits until no program can use that any more (`maybe_wait_bpf_programs`), for some 10 ms: for all of them at
/// once.
pub fn put(at: u32, arrays: &[(&MapHandle, MapHandle)]) -> Result<()> {
    let put = |(outer, array): &(&MapHandle, MapHandle)| {
        let descriptor = array.as_fd().as_raw_fd();
        outer
            .update(&at.to_ne_bytes(), &descriptor.to_ne_bytes(), MapFlags::ANY)
            .context(|| format!("cannot put a table at place {at}"))
    };
    let Some((last, others)) = arrays.split_last() else { return Ok(()) };
    std::thread::scope(|scope| {
        let others: Vec<_> = others.iter().map(|one| scope.spawn(move || put(one))).collect();
        let last = put(last);
        let others = others.into_iter().map(|one| one.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)));
        others.chain([last]).collect()
    })
}
