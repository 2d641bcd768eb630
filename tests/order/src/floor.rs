// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The queue of those that are let in for a moment.

use crate::Machine;

unsafe extern "C" {
    fn floor_late(prompt: bool);
    fn floor_chooses(now: u64) -> u32;
}

/// Who is let in for a moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Late {
    /// It has waited too long.
    Waited,
    /// It is to wait elsewhere.
    Prompt,
}

impl Machine {
    /// A thread comes to wait to be let in; fewer than 64 do.
    pub fn is_late(&mut self, late: Late) {
        // SAFETY: the machine keeps every other user of the queue away.
        unsafe { floor_late(late == Late::Prompt) }
    }

    /// The CPU chooses at this time; whom it lets in.
    pub fn lets_in(&mut self, now_ns: u64) -> Option<Late> {
        // SAFETY: as above.
        match unsafe { floor_chooses(now_ns) } {
            0 => None,
            1 => Some(Late::Waited),
            _ => Some(Late::Prompt),
        }
    }
}
