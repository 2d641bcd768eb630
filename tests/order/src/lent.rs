// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A queue of requests before a server, and whose turn the server's thread has.

use crate::Machine;

unsafe extern "C" {
    fn requests_class(id: u32) -> u32;
    fn requests_line(class: u32, waits: bool);
    fn requests_handed(class: u32, at_ns: u64, until_ns: u64);
    fn requests_limit(class: u32, again_ns: u64);
    fn requests_open(open: bool, monitor: bool);
    fn requests_worked(id: u32, now: u64);
    fn requests_runs(id: u32);
    fn requests_lent(id: u32);
    fn requests_served(ran_ns: u64) -> bool;
    fn requests_lend(listener: u32, bound: u32, now: u64) -> u32;
    fn requests_took(now: u64) -> u64;
}

/// The queue of the listener 0; the tables are the machine's.
#[derive(Debug)]
pub struct Requests<'a>(&'a Machine);

impl<'a> Requests<'a> {
    /// With classes of these containers.
    pub fn new(machine: &'a Machine, classes: &[u32]) -> Self {
        for &id in classes {
            // SAFETY: the machine keeps every other user of the tables away; a queue has 32 classes.
            unsafe { requests_class(id) };
        }
        Self(machine)
    }

    /// Whether requests of a class stand in the line.
    pub fn line(&self, class: u32, waits: bool) {
        // SAFETY: as in `new`.
        unsafe { requests_line(class, waits) }
    }

    /// The server got a request of the class `ago_ns` ago, whose place runs out in `left_ns`.
    pub fn handed(&self, class: u32, ago_ns: u64, left_ns: u64) {
        // SAFETY: as in `new`.
        unsafe { requests_handed(class, self.0.now() - ago_ns, self.0.now() + left_ns) }
    }

    /// The class has used up its limit for so long.
    pub fn limit(&self, class: u32, left_ns: u64) {
        // SAFETY: as in `new`.
        unsafe { requests_limit(class, self.0.now() + left_ns) }
    }

    /// Whether it lets everybody pass, or only counts.
    pub fn open(&self, open: bool, monitor: bool) {
        // SAFETY: as in `new`.
        unsafe { requests_open(open, monitor) }
    }

    /// Some thread was seen to work for the container so long ago.
    pub fn worked(&self, id: u32, ago_ns: u64) {
        // SAFETY: as in `new`.
        unsafe { requests_worked(id, self.0.now() - ago_ns) }
    }

    /// One of the container's own threads has the other CPU.
    pub fn runs(&self, id: u32) {
        // SAFETY: as in `new`.
        unsafe { requests_runs(id) }
    }

    /// A thread on the other CPU has the container's turn, and works for another one.
    pub fn lent(&self, id: u32) {
        // SAFETY: as in `new`.
        unsafe { requests_lent(id) }
    }

    /// Whether a thread still serves the listener that had so much of the CPU since it received from a client of it.
    pub fn served(&self, ran_ns: u64) -> bool {
        // SAFETY: as in `new`.
        unsafe { requests_served(ran_ns) }
    }

    /// Whose turn a thread has that serves a listener and works for `bound`.
    pub fn lend(&self, listener: u32, bound: u32) -> u32 {
        // SAFETY: as in `new`.
        unsafe { requests_lend(listener, bound, self.0.now()) }
    }

    /// How long it took to find that out.
    pub fn took_ns(&self) -> u64 {
        // SAFETY: as in `new`.
        unsafe { requests_took(self.0.now()) }
    }
}
