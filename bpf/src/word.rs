// SPDX-License-Identifier: Apache-2.0 OR MIT
//! One word of an array that the kernel side changes all the time. Writing the whole record would bring old values of its other
//! words back, and perhaps the identity of what has made room for another since.

use std::num::NonZeroUsize;
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicU64, Ordering};

use libbpf_rs::{MapCore, MapHandle};
use nix::sys::mman::{MapFlags, ProtFlags, mmap, munmap};

use crate::error::{Context, Error, ErrorKind, Result};

/// Writes the words at byte `offset` of these elements of an array that can be mapped.
pub fn store(map: &MapHandle, elements: &[u32], offset: usize, value: u64) -> Result<()> {
    let size = map.value_size() as usize;
    let fits = offset.is_multiple_of(size_of::<u64>()) && offset + size_of::<u64>() <= size && size.is_multiple_of(8);
    if !fits || elements.iter().any(|at| *at >= map.max_entries()) {
        return Err(Error::new(ErrorKind::Other, format!("word {offset} is outside of a record of {size} bytes")));
    }
    let bytes = NonZeroUsize::new(size * map.max_entries() as usize).expect("maps are not empty");
    let protection = ProtFlags::PROT_READ | ProtFlags::PROT_WRITE;
    // SAFETY: a fresh mapping at an address of the kernel's choice; the kernel refuses a length beyond the map.
    let start = unsafe { mmap(None, bytes, protection, MapFlags::MAP_SHARED, map.as_fd(), 0) }
        .context(|| "cannot map a table to write to".into())?;
    for at in elements {
        // SAFETY: element and offset are inside the mapping, which begins at a page, and the word is aligned, as asked above.
        let word = unsafe { AtomicU64::from_ptr(start.cast::<u8>().add(*at as usize * size + offset).cast().as_ptr()) };
        word.store(value, Ordering::Relaxed);
    }
    // SAFETY: the mapping is ours and nothing borrowed from it is left.
    unsafe { munmap(start, bytes.get()) }.context(|| "cannot unmap a table".into())
}
