// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A thread that waits alone, and lines that have none for the CPU that chooses.

use crate::Machine;

unsafe extern "C" {
    fn order_chooser(cpu: u32);
    fn order_misfits(id: u32);
    fn threads_late(thread: u32);
    fn threads_enter(thread: u32, id: u32) -> bool;
    fn threads_leave(thread: u32) -> bool;
    fn threads_woken(thread: u32);
}

impl Machine {
    /// The n-th thread, which works for the container, comes to wait; whether it is at the front, since nobody else waits.
    pub fn enter(&mut self, thread: u32, id: u32) -> bool {
        // SAFETY: the machine has the tables, and the tests stay below their size.
        unsafe { threads_enter(thread, id) }
    }

    /// It begins to run; whether it was at the front yet, and not counted in a line.
    pub fn leave(&mut self, thread: u32) -> bool {
        // SAFETY: as above.
        unsafe { threads_leave(thread) }
    }

    /// It wakes up, having run.
    pub fn woken(&mut self, thread: u32) {
        // SAFETY: as above.
        unsafe { threads_woken(thread) }
    }

    /// It waits in its line no longer, where it is counted, but to be let in for a moment.
    pub fn late(&mut self, thread: u32) {
        // SAFETY: as above.
        unsafe { threads_late(thread) }
    }

    /// From now on that CPU chooses.
    pub fn chooser(&mut self, cpu: u32) {
        // SAFETY: as above.
        unsafe { order_chooser(cpu) }
    }

    /// It has seen that none of those that wait in the container's line may run on it.
    pub fn misfits(&mut self, id: u32) {
        // SAFETY: as above.
        unsafe { order_misfits(id) }
    }
}
