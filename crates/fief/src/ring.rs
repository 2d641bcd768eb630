// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Binding without a system call: a thread writes whom it works for into a page of its own, and the kernel reads that before
//! it charges the thread's time.

use std::marker::PhantomData;
use std::os::fd::{AsFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::atomic::{Ordering, compiler_fence};

use crate::abi;
use crate::clock::{Clock, monotonic_ns};
use crate::container::Container;
use crate::error::{Error, Result};
use crate::option;

const RECORDS: u32 = abi::FIEF_RING_RECORDS;
const PAGE_BYTES: usize = abi::FIEF_RING_ALIGN as usize;
const _: () = assert!(size_of::<abi::fief_ring_page>() <= PAGE_BYTES);

/// A container's place in a ring.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Place(u8);

impl Place {
    /// The thread's home, which is in every ring.
    pub const HOME: Self = Self(abi::FIEF_RING_HOME as u8);
}

/// The calling thread's ring: it binds the thread for the price of a few stores, about a tenth of a system call. For threads
/// that work for another container with each request, as an event loop does.
///
/// A record holds a [`Place`] and a moment, in ns of CLOCK_MONOTONIC. Whenever the thread leaves its CPU, is interrupted, makes a
/// call on a container or ends, the kernel divides the time since then by the records. 256 of them fit; the record behind
/// them costs one system call, which empties the ring. Usage is exact to about a microsecond. Faults, bytes of the disk, and the
/// kernel's split of the time into user and system, are samples: they are the container's that the thread worked for when the
/// kernel looked.
///
/// A ring can name 63 containers and home. It holds each of them as a bound thread does, until it is taken out or the
/// ring ends. Calls that bind ([`Container::bind`], [`unbind`](crate::unbind)) can be mixed with it: the last one of all counts.
/// A thread with a ring does not follow its sockets. The ring is its thread's own: a thread that it makes has none, nor has the
/// child of a fork; `exec` ends it, and what was written before counts. Another thread that reads a container's usage does not
/// see what this one has used since the kernel looked last; `fief usage`, and the thread itself, see all of it.
///
/// ```
/// use fief::{Container, ErrorKind, Place, Ring};
///
/// # fn main() -> Result<(), fief::Error> {
/// let (gold, free) = match (Container::create(), Container::create()) {
///     (Err(e), _) if e.kind() == ErrorKind::NotManaged => return Ok(()), // serve without
///     (gold, free) => (gold?, free?),
/// };
/// let mut ring = Ring::open()?;
/// let (to_gold, to_free) = (ring.add(&gold)?, ring.add(&free)?);
/// for request in 0..1000 {
///     ring.bind(if request % 10 == 0 { to_gold } else { to_free })?;
///     // ... serve the request ...
/// }
/// ring.bind(Place::HOME)?;
/// # Ok(())
/// # }
/// ```
///
/// After Banga, Druschel and Mogul, "Resource Containers" (OSDI 1999), section 4.2, whose resource binding of a thread is a system
/// call; in the kernel `ring_take` (`bpf/core/ring.bpf.h`).
#[derive(Debug)]
pub struct Ring {
    page: NonNull<abi::fief_ring_page>,
    /// Any socket of the unit: what the calls are made on.
    socket: OwnedFd,
    clock: Clock,
    head: u32,
    flushed: u32,
    /// A bit for each place that is taken.
    taken: u64,
    // a ring is its thread's
    _thread: PhantomData<*const ()>,
}

/// How far apart two looks at the clock may be for the kernel to know the thread's clock by the first.
const SURE_NS: u64 = 200_000;
const TRIES: u32 = 16;

/// Tells the kernel of the page. A thread that loses the CPU on the way there would have a clock that is late for good: then again.
fn tell(page: NonNull<abi::fief_ring_page>, socket: &OwnedFd) -> std::io::Result<()> {
    for _ in 0..TRIES {
        let open = abi::fief_ring_open { address: page.as_ptr() as u64, now_ns: monotonic_ns() };
        option::set(socket.as_fd(), abi::FIEF_RING, &open)?;
        if monotonic_ns() - open.now_ns < SURE_NS {
            return Ok(());
        }
        option::set_bytes(socket.as_fd(), abi::FIEF_RING, &[])?;
    }
    Err(std::io::Error::from_raw_os_error(libc::EAGAIN))
}

impl Ring {
    /// Gives the calling thread its ring. The thread stays bound to what it is bound to.
    ///
    /// Errors: denied (but for root that may administer the machine, who may give the thread's rights up afterwards); not managed;
    /// conflict (the thread has a ring); full (1024 threads of the machine have one): bind by calls.
    pub fn open() -> Result<Self> {
        let fail = |e| Error::new("cannot open a ring", e);
        let socket = option::fresh_socket().map_err(fail)?;
        let clock = Clock::new();
        let page = page().map_err(fail)?;
        // SAFETY: the page is ours and mapped.
        unsafe { (&raw mut (*page.as_ptr()).live).write_volatile(1) };
        if let Err(error) = tell(page, &socket) {
            release(page);
            return Err(fail(error));
        }
        Ok(Self { page, socket, clock, head: 0, flushed: 0, taken: 1 << abi::FIEF_RING_HOME, _thread: PhantomData })
    }

    /// Puts a container in a free place.
    ///
    /// Errors: denied without the right to use it; the container has ended; full (63 are in); no ring.
    pub fn add(&mut self, container: &Container) -> Result<Place> {
        let fail = |e| Error::new("cannot put a container in a ring", e);
        self.check_live().map_err(fail)?;
        let place = (!self.taken).trailing_zeros();
        if place >= abi::FIEF_RING_PLACES {
            return Err(fail(std::io::Error::from_raw_os_error(libc::ENOSPC)));
        }
        option::set(container.as_fd(), abi::FIEF_RING_PLACE, &place).map_err(fail)?;
        self.flushed = self.head;
        self.taken |= 1 << place;
        Ok(Place(place as u8))
    }

    /// Takes what is in a place out. What was bound to it before keeps its time, and a thread that is bound to it now stays so.
    ///
    /// Errors: invalid (home stays); no ring.
    pub fn remove(&mut self, place: Place) -> Result<()> {
        self.check_live()
            .and_then(|()| option::set(self.socket.as_fd(), abi::FIEF_RING_CLEAR, &u32::from(place.0)))
            .map_err(|e| Error::new("cannot take a container out of a ring", e))?;
        self.flushed = self.head;
        self.taken &= !(1 << place.0);
        Ok(())
    }

    /// Binds the thread from now on. No system call but for one in 256.
    ///
    /// Errors: no ring (after a fork); not managed any more. A place that was taken out, or is another ring's, binds to
    /// nothing: the thread goes on working for what it worked for.
    #[inline]
    pub fn bind(&mut self, place: Place) -> Result<()> {
        let live = self.is_live();
        // before the flush, which is this place's work then: the kernel charges up to the last record, not up to the flush
        let record = self.clock.now() << abi::FIEF_RING_PLACE_BITS | u64::from(place.0);
        if !live || self.head.wrapping_sub(self.flushed) >= RECORDS {
            self.make_room()?;
        }
        let page = self.page.as_ptr();
        // SAFETY: the page is ours and mapped as long as we are; the index is below the length.
        unsafe { (&raw mut (*page).records[(self.head % RECORDS) as usize]).write_volatile(record) };
        // the kernel reads on this CPU, in the midst of us
        compiler_fence(Ordering::Release);
        self.head = self.head.wrapping_add(1);
        // SAFETY: as above.
        unsafe { (&raw mut (*page).head).write_volatile(self.head) };
        Ok(())
    }

    /// Has the kernel take all records now, so that other threads see the usage up to here. One system call.
    ///
    /// Errors: no ring; not managed any more.
    pub fn flush(&mut self) -> Result<()> {
        self.check_live()
            .and_then(|()| option::call(self.socket.as_fd(), abi::FIEF_RING_FLUSH))
            .map_err(|e| Error::new("cannot flush a ring", e))?;
        self.flushed = self.head;
        Ok(())
    }

    #[cold]
    fn make_room(&mut self) -> Result<()> {
        self.flush()
    }

    /// Not in the child of a fork, where the page is empty; a ring that the child has is another one.
    #[inline]
    fn is_live(&self) -> bool {
        // SAFETY: the page is ours and mapped as long as we are.
        unsafe { (&raw const (*self.page.as_ptr()).live).read_volatile() != 0 }
    }

    fn check_live(&self) -> std::io::Result<()> {
        if self.is_live() { Ok(()) } else { Err(std::io::Error::from_raw_os_error(libc::ENXIO)) }
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        if self.is_live() {
            // where Fief was taken down there is none to end
            let _ = option::call(self.socket.as_fd(), abi::FIEF_RING);
        }
        release(self.page);
    }
}

/// A page that a fork's child gets empty, and that stays in memory if the user may keep one there.
fn page() -> std::io::Result<NonNull<abi::fief_ring_page>> {
    let (access, kind) =
        (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_POPULATE);
    // SAFETY: a fresh mapping at an address of the kernel's choice.
    let start = unsafe { libc::mmap(std::ptr::null_mut(), PAGE_BYTES, access, kind, -1, 0) };
    if start == libc::MAP_FAILED {
        return Err(std::io::Error::last_os_error());
    }
    let page = NonNull::new(start.cast()).expect("no mapping begins at 0");
    // SAFETY: the mapping is ours alone.
    if unsafe { libc::madvise(start, PAGE_BYTES, libc::MADV_WIPEONFORK) } != 0 {
        let error = std::io::Error::last_os_error();
        release(page);
        return Err(error);
    }
    // SAFETY: likewise. A page that is not in memory counts as empty until it is: seldom, and no error.
    let _swappable = unsafe { libc::mlock(start, PAGE_BYTES) };
    Ok(page)
}

fn release(page: NonNull<abi::fief_ring_page>) {
    // SAFETY: the mapping is ours, and who calls uses it no more.
    unsafe { libc::munmap(page.as_ptr().cast(), PAGE_BYTES) };
}
