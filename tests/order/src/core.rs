// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A CPU, two threads and a table of eight containers, with interrupts at any point where the kernel's side calls a helper.

use std::sync::{Mutex, MutexGuard};

unsafe extern "C" {
    fn core_reset();
    fn core_create(parent: u32) -> i32;
    fn core_adopt(id: u32, parent: u32) -> i32;
    fn core_close(id: u32);
    fn core_references(id: u32) -> u64;
    fn core_free() -> u32;
    fn core_thread(number: u32, home: u32) -> i32;
    fn core_switch(number: u32);
    fn core_end(storage_busy: bool);
    fn core_bind(id: u32) -> i32;
    fn core_unbind() -> i32;
    fn core_request(number: u32, id: u32) -> i32;
    fn core_softirq();
    fn core_binding() -> u32;
    fn core_midst_request(at: u32, id: u32, preempted: bool);
    fn core_midst_end(at: u32, id: u32);
    fn core_met() -> bool;
}

/// The tables are the process's: one machine at a time.
static ONE: Mutex<()> = Mutex::new(());

/// What a container's word counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct References {
    pub handles: u64,
    pub threads: u64,
    pub children: u64,
}

/// Held by the test alone.
pub const OURS: References = References { handles: 1, threads: 0, children: 0 };

#[derive(Debug)]
pub struct Core {
    _one: MutexGuard<'static, ()>,
}

impl Core {
    /// With the idle thread on the CPU, which has number 0.
    #[allow(clippy::new_without_default)]
    pub fn new() -> Self {
        let one = ONE.lock().unwrap_or_else(|broken| broken.into_inner());
        // SAFETY: the lock keeps every other user of the tables away.
        unsafe { core_reset() };
        Self { _one: one }
    }

    /// A new child of a container, which the test holds; 0 is the root. Or the error.
    pub fn create(&mut self, parent: u32) -> Result<u32, i32> {
        // SAFETY: as in `new`; what is out of bounds is no container.
        let id = unsafe { core_create(parent) };
        u32::try_from(id).map_err(|_| id)
    }

    /// Moves a container.
    pub fn adopt(&mut self, id: u32, parent: u32) -> Result<(), i32> {
        // SAFETY: as in `new`; what is out of bounds is no container.
        done(unsafe { core_adopt(id, parent) })
    }

    /// The test holds it no longer.
    pub fn close(&mut self, id: u32) {
        // SAFETY: as in `new`; what is out of bounds is no container.
        unsafe { core_close(id) }
    }

    pub fn references(&self, id: u32) -> References {
        // SAFETY: as in `new`; what is out of bounds is no container.
        let word = unsafe { core_references(id) };
        References { handles: word & 0xf_ffff, threads: word >> 20 & 0x3f_ffff, children: word >> 42 }
    }

    /// Slots that no container has.
    pub fn free(&self) -> u32 {
        // SAFETY: as in `new`; what is out of bounds is no container.
        unsafe { core_free() }
    }

    /// A managed thread is born, of number 1 or 2.
    pub fn thread(&mut self, number: u32, home: u32) {
        // SAFETY: as in `new`; what is out of bounds is no container.
        done(unsafe { core_thread(number, home) }).expect("its record");
    }

    /// The CPU switches to a thread.
    pub fn switch(&mut self, number: u32) {
        // SAFETY: as in `new`; what is out of bounds is no container.
        unsafe { core_switch(number) }
    }

    /// The running thread ends. `storage_busy`: the kernel does not delete its record at first.
    pub fn end(&mut self, storage_busy: bool) {
        // SAFETY: as in `new`; what is out of bounds is no container.
        unsafe { core_end(storage_busy) }
    }

    /// The running thread binds itself.
    pub fn bind(&mut self, id: u32) -> Result<(), i32> {
        // SAFETY: as in `new`; what is out of bounds is no container.
        done(unsafe { core_bind(id) })
    }

    pub fn unbind(&mut self) -> Result<(), i32> {
        // SAFETY: as in `new`; what is out of bounds is no container.
        done(unsafe { core_unbind() })
    }

    /// Another process binds the thread.
    pub fn request(&mut self, number: u32, id: u32) -> Result<(), i32> {
        // SAFETY: as in `new`; what is out of bounds is no container.
        done(unsafe { core_request(number, id) })
    }

    pub fn softirq(&mut self) {
        // SAFETY: as in `new`; what is out of bounds is no container.
        unsafe { core_softirq() }
    }

    /// What the running thread works for.
    pub fn binding(&self) -> u32 {
        // SAFETY: as in `new`; what is out of bounds is no container.
        unsafe { core_binding() }
    }

    /// In `work`, at point `at`, another process binds the running thread to `id`, and a softirq comes, or a switch away and back.
    /// What `work` returned; `None`: it has no such point.
    pub fn with_request<T>(&mut self, at: u32, id: u32, by: By, work: impl FnOnce(&mut Self) -> T) -> Option<T> {
        // SAFETY: as in `new`; what is out of bounds is no container.
        unsafe { core_midst_request(at, id, by == By::Switch) };
        let result = work(self);
        // SAFETY: as in `new`; what is out of bounds is no container.
        unsafe { core_met() }.then_some(result)
    }

    /// In `work`, at point `at`, the test closes `id`, and others take all free slots but one.
    pub fn with_end<T>(&mut self, at: u32, id: u32, work: impl FnOnce(&mut Self) -> T) -> Option<T> {
        // SAFETY: as in `new`; what is out of bounds is no container.
        unsafe { core_midst_end(at, id) };
        let result = work(self);
        // SAFETY: as in `new`; what is out of bounds is no container.
        unsafe { core_met() }.then_some(result)
    }
}

/// What comes in the midst of a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum By {
    Softirq,
    Switch,
}

fn done(err: i32) -> Result<(), i32> {
    if err == 0 { Ok(()) } else { Err(err) }
}
