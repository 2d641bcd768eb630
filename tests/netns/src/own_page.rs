// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A ring as a program without our library has it, which writes what it likes.

use std::os::fd::{AsFd, OwnedFd};
use std::ptr::NonNull;

use fief_bpf::abi;
use fief_bpf::record::Record;
use nix::errno::Errno;
use nix::time::{ClockId, clock_gettime};

use crate::calls::{fresh_socket, set_option};

const BYTES: usize = abi::FIEF_RING_ALIGN as usize;

/// The page, and the socket that calls are made on. Dropped, the page goes; the ring is the thread's until it closes it or ends.
#[derive(Debug)]
pub struct OwnPage {
    page: NonNull<abi::fief_ring_page>,
    socket: OwnedFd,
    mapped: bool,
}

impl OwnPage {
    /// A page that the kernel knows nothing of.
    #[allow(clippy::new_without_default, reason = "it takes memory and a descriptor")]
    pub fn new() -> Self {
        let (access, kind) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        // SAFETY: a fresh mapping at an address of the kernel's choice.
        let start = unsafe { libc::mmap(std::ptr::null_mut(), BYTES, access, kind | libc::MAP_POPULATE, -1, 0) };
        assert_ne!(start, libc::MAP_FAILED);
        Self { page: NonNull::new(start.cast()).expect("a mapping"), socket: fresh_socket(), mapped: true }
    }

    /// Makes it the calling thread's ring.
    pub fn open(&self) -> Result<(), Errno> {
        self.open_at(self.page.as_ptr() as u64, now_ns())
    }

    /// As [`OwnPage::open`], with whatever address, by a clock of the caller's.
    pub fn open_at(&self, address: u64, now_ns: u64) -> Result<(), Errno> {
        set_option(&self.socket, abi::FIEF_RING, abi::fief_ring_open { address, now_ns }.bytes())
    }

    /// Ends the calling thread's ring.
    pub fn close(&self) -> Result<(), Errno> {
        set_option(&self.socket, abi::FIEF_RING, &[])
    }

    /// Puts a container in a place.
    pub fn put(&self, container: impl AsFd, place: u32) -> Result<(), Errno> {
        set_option(container, abi::FIEF_RING_PLACE, &place.to_ne_bytes())
    }

    /// Empties a place.
    pub fn clear(&self, place: u32) -> Result<(), Errno> {
        set_option(&self.socket, abi::FIEF_RING_CLEAR, &place.to_ne_bytes())
    }

    /// Has the records taken.
    pub fn flush(&self) -> Result<(), Errno> {
        set_option(&self.socket, abi::FIEF_RING_FLUSH, &[])
    }

    /// Writes a record as it should be, with whatever moment.
    pub fn write(&self, place: u64, at_ns: u64) {
        self.write_raw(at_ns << abi::FIEF_RING_PLACE_BITS | place);
    }

    /// Writes a record of any bits.
    pub fn write_raw(&self, record: u64) {
        let head = self.head();
        // SAFETY: the page is mapped, and the index below the length.
        unsafe {
            (&raw mut (*self.page.as_ptr()).records[(head % abi::FIEF_RING_RECORDS) as usize]).write_volatile(record);
        }
        self.set_head(head.wrapping_add(1));
    }

    /// How many records the page says there have been.
    pub fn head(&self) -> u32 {
        // SAFETY: the page is mapped.
        unsafe { (&raw const (*self.page.as_ptr()).head).read_volatile() }
    }

    /// Says that there have been so many.
    pub fn set_head(&self, head: u32) {
        // SAFETY: the page is mapped.
        unsafe { (&raw mut (*self.page.as_ptr()).head).write_volatile(head) }
    }

    /// Where it is, as a number, for another thread that writes there.
    pub fn address(&self) -> usize {
        self.page.as_ptr() as usize
    }

    /// Takes the page away from under the ring.
    pub fn unmap(&mut self) {
        if std::mem::replace(&mut self.mapped, false) {
            // SAFETY: the mapping is ours, and is not used from here on.
            unsafe { libc::munmap(self.page.as_ptr().cast(), BYTES) };
        }
    }
}

impl Drop for OwnPage {
    fn drop(&mut self) {
        self.unmap();
    }
}

/// CLOCK_MONOTONIC.
pub fn now_ns() -> u64 {
    let now = clock_gettime(ClockId::CLOCK_MONOTONIC).expect("every machine has it");
    now.tv_sec().cast_unsigned() * 1_000_000_000 + now.tv_nsec().cast_unsigned()
}
