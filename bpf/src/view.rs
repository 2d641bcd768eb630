// SPDX-License-Identifier: Apache-2.0 OR MIT
//! An array map as the kernel has it now, mapped read-only.

use std::num::NonZeroUsize;
use std::os::fd::{AsFd, AsRawFd};
use std::ptr::NonNull;

use libbpf_rs::MapCore;
use nix::sys::mman::{MapFlags, ProtFlags, mmap, munmap};

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
        let count = map.max_entries();
        let bytes = size_of::<T>() * count as usize;
        let length = NonZeroUsize::new(bytes).expect("maps are not empty");
        // SAFETY: a fresh mapping at an address of the kernel's choice; the kernel refuses a length beyond the map.
        let start = unsafe { mmap(None, length, ProtFlags::PROT_READ, MapFlags::MAP_SHARED, map.as_fd(), 0) }
            .context(|| format!("cannot map {name} (descriptor {})", map.as_fd().as_raw_fd()))?;
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

impl<T> Drop for View<T> {
    fn drop(&mut self) {
        // SAFETY: the mapping is ours and nothing borrowed from it is left; a failure leaves it mapped, no more.
        let _ = unsafe { munmap(self.start.cast(), self.bytes) };
    }
}

// SAFETY: the mapping is read-only and belongs to the process, not to a thread.
unsafe impl<T: Send> Send for View<T> {}
