// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Just enough of io_uring to have a kernel worker do a write or a socket option.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

const ENTRIES: u32 = 4;
const IORING_OFF_SQES: i64 = 0x1000_0000;
const IOSQE_ASYNC: u8 = 1 << 4;
const ENTER_GETEVENTS: u32 = 1;

/// Operations, by the kernel's numbers.
const OP_WRITE: u8 = 23;
const OP_URING_CMD: u8 = 46;
const SOCKET_URING_OP_SETSOCKOPT: u64 = 3;

#[repr(C)]
#[derive(Debug, Default, Clone, Copy)]
struct Entry {
    opcode: u8,
    flags: u8,
    ioprio: u16,
    fd: i32,
    off: u64,
    addr: u64,
    len: u32,
    rw_flags: u32,
    user_data: u64,
    pad: [u64; 3],
}

#[repr(C)]
#[derive(Debug, Default, Clone, Copy)]
struct Params {
    sq_entries: u32,
    cq_entries: u32,
    flags: u32,
    sq_thread_cpu: u32,
    sq_thread_idle: u32,
    features: u32,
    wq_fd: u32,
    reserved: [u32; 3],
    /// head, tail, ring_mask, ring_entries, flags, dropped, array, ...
    sq_off: [u32; 10],
    /// head, tail, ring_mask, ring_entries, overflow, cqes, ...
    cq_off: [u32; 10],
}

/// A ring whose operations are done by a worker of the kernel, one at a time.
#[derive(Debug)]
pub struct Ring {
    fd: OwnedFd,
    params: Params,
    ring: *mut u8,
    entries: *mut Entry,
    ring_bytes: usize,
}

impl Ring {
    /// A fresh ring; `None`: the kernel does not have it, or forbids it.
    pub fn new() -> Option<Self> {
        let mut params = Params::default();
        // SAFETY: the kernel fills the parameters, which live until the call returns.
        let fd = unsafe { libc::syscall(libc::SYS_io_uring_setup, ENTRIES, &raw mut params) };
        if fd < 0 {
            return None;
        }
        // SAFETY: the call returned a new descriptor that nobody else owns.
        let fd = unsafe { OwnedFd::from_raw_fd(fd as i32) };
        let cq_bytes = params.cq_off[5] as usize + params.cq_entries as usize * 16;
        let sq_bytes = params.sq_off[6] as usize + params.sq_entries as usize * 4;
        let ring_bytes = cq_bytes.max(sq_bytes);
        let ring = map(&fd, ring_bytes, 0)?;
        let entries = map(&fd, size_of::<Entry>() * params.sq_entries as usize, IORING_OFF_SQES)?.cast();
        Some(Self { fd, params, ring, entries, ring_bytes })
    }

    /// Writes by a worker; the result as the kernel gives it.
    pub fn write(&mut self, fd: BorrowedFd<'_>, bytes: &[u8]) -> i32 {
        self.submit(Entry {
            opcode: OP_WRITE,
            fd: fd.as_raw_fd(),
            off: u64::MAX,
            addr: bytes.as_ptr() as u64,
            len: bytes.len() as u32,
            ..Entry::default()
        })
    }

    /// Sets a socket option without a value by a worker.
    pub fn set_option(&mut self, fd: BorrowedFd<'_>, level: i32, option: i32) -> i32 {
        self.submit(Entry {
            opcode: OP_URING_CMD,
            fd: fd.as_raw_fd(),
            off: SOCKET_URING_OP_SETSOCKOPT,
            addr: u64::from(level.cast_unsigned()) | u64::from(option.cast_unsigned()) << 32,
            ..Entry::default()
        })
    }

    fn submit(&mut self, entry: Entry) -> i32 {
        let word = |offset: u32| self.ring.wrapping_add(offset as usize).cast::<u32>();
        // SAFETY: every address is inside the ring as the kernel described it; nobody else submits, and the kernel
        // reads the entry only within the call below, which waits for its end.
        unsafe {
            let tail = word(self.params.sq_off[1]).read_volatile();
            let index = tail & word(self.params.sq_off[2]).read_volatile();
            self.entries.add(index as usize).write_volatile(Entry { flags: IOSQE_ASYNC, ..entry });
            word(self.params.sq_off[6]).add(index as usize).write_volatile(index);
            word(self.params.sq_off[1]).write_volatile(tail.wrapping_add(1));
            loop {
                let done = libc::syscall(
                    libc::SYS_io_uring_enter,
                    self.fd.as_raw_fd(),
                    1,
                    1,
                    ENTER_GETEVENTS,
                    std::ptr::null::<u8>(),
                    0,
                );
                if done >= 0 || io::Error::last_os_error().kind() != io::ErrorKind::Interrupted {
                    break;
                }
            }
            let head = word(self.params.cq_off[0]).read_volatile();
            let mask = word(self.params.cq_off[2]).read_volatile();
            let completion = self.ring.add(self.params.cq_off[5] as usize + (head & mask) as usize * 16);
            let result = completion.add(8).cast::<i32>().read_volatile();
            word(self.params.cq_off[0]).write_volatile(head.wrapping_add(1));
            result
        }
    }
}

fn map(fd: &OwnedFd, bytes: usize, offset: i64) -> Option<*mut u8> {
    // SAFETY: a fresh mapping at an address of the kernel's choice.
    let at = unsafe {
        libc::mmap(
            std::ptr::null_mut(),
            bytes,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_SHARED | libc::MAP_POPULATE,
            fd.as_raw_fd(),
            offset,
        )
    };
    (at != libc::MAP_FAILED).then_some(at.cast())
}

impl Drop for Ring {
    fn drop(&mut self) {
        // SAFETY: both mappings are ours, and nothing borrowed from them is left.
        unsafe {
            libc::munmap(self.ring.cast(), self.ring_bytes);
            libc::munmap(self.entries.cast(), size_of::<Entry>() * self.params.sq_entries as usize);
        }
    }
}
