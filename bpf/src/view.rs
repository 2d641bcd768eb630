// SPDX-License-Identifier: Apache-2.0 OR MIT
//! An array map as the kernel has it now, mapped read-only.

use std::num::NonZeroUsize;
use std::os::fd::{AsFd, AsRawFd};
use std::ptr::NonNull;

use libbpf_rs::{MapCore, MapHandle};
use nix::sys::mman::{MapFlags, ProtFlags, mmap, munmap};

use crate::abi;
use crate::error::{Context, Result};
use crate::pin::Pins;

/// A read-only view of an array map of records.
#[derive(Debug)]
pub(crate) struct View<T> {
    start: NonNull<T>,
    bytes: usize,
    count: u32,
}

impl<T> View<T> {
    pub(crate) fn open(pins: &Pins, name: &str) -> Result<Self> {
        let map = pins.open_map(name)?;
        Self::of(&map, 0, map.max_entries())
            .context(|| format!("cannot map {name} (descriptor {})", map.as_fd().as_raw_fd()))
    }

    /// `first` begins a page.
    pub(crate) fn of(map: &MapHandle, first: u32, count: u32) -> nix::Result<Self> {
        let bytes = size_of::<T>() * count as usize;
        let length = NonZeroUsize::new(bytes).expect("maps are not empty");
        let offset = size_of::<T>() as i64 * i64::from(first);
        // SAFETY: a fresh mapping at an address of the kernel's choice; the kernel refuses what is beyond the map.
        let start = unsafe { mmap(None, length, ProtFlags::PROT_READ, MapFlags::MAP_SHARED, map.as_fd(), offset) }?;
        Ok(Self { start: start.cast(), bytes, count })
    }

    pub(crate) fn count(&self) -> u32 {
        self.count
    }

    pub(crate) fn get(&self, index: u32) -> Option<T> {
        if index >= self.count {
            return None;
        }
        // SAFETY: index is inside the mapping; the records are plain integers, of which a torn one is still valid.
        Some(unsafe { self.start.add(index as usize).read_volatile() })
    }
}

impl View<abi::fief_container> {
    /// Without the rest of the record: most slots of a large table are free.
    pub(crate) fn is_free(&self, index: u32) -> bool {
        // SAFETY: index is below count, so inside the mapping; the field is a plain integer.
        index < self.count
            && unsafe { (&raw const (*self.start.as_ptr().add(index as usize)).state).read_volatile() }
                == abi::FIEF_FREE
    }
}

impl View<abi::fief_cpu> {
    /// Whether this CPU has nothing of a container: no counters in its cache, and no time that runs. False: it has, or its record
    /// changed meanwhile. A record of a CPU is too large to be copied for each container.
    pub(crate) fn has_nothing_of(&self, cpu: u32, id: u32) -> bool {
        if cpu >= self.count {
            return true;
        }
        // SAFETY: cpu is below count, so inside the mapping.
        let record = unsafe { self.start.as_ptr().add(cpu as usize) };
        let line = (id & (abi::FIEF_CACHE_SLOTS - 1)) as usize;
        // SAFETY: fields of a record inside the mapping, and a line inside its array; plain integers.
        let sequence = || unsafe { (&raw const (*record).sequence).read_volatile() };
        let before = sequence();
        // SAFETY: as above.
        let ids = unsafe {
            [
                (&raw const (*record).cache[line].container.id).read_volatile(),
                (&raw const (*record).current_.id).read_volatile(),
                (&raw const (*record).task.home.id).read_volatile(),
            ]
        };
        before.is_multiple_of(2) && !ids.contains(&id) && sequence() == before
    }
}

impl<T> Drop for View<T> {
    fn drop(&mut self) {
        // SAFETY: the mapping is ours and nothing borrowed from it is left; a failure leaves it mapped, no more.
        let _ = unsafe { munmap(self.start.cast(), self.bytes) };
    }
}

// SAFETY: the mapping is read-only and belongs to the process, not to a thread.
unsafe impl<T: Send> Send for View<T> {}
