// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The log of drops and refusals, read by any number of readers, each at its own place (`bpf/include/maps/notices.bpf.h`).

use std::sync::atomic::{Ordering, fence};

use crate::abi;
use crate::error::Result;
use crate::pin::Pins;
use crate::view::View;

/// One reader.
#[derive(Debug)]
pub struct Notices {
    log: View<abi::fief_told>,
    head: View<u64>,
    next: u64,
}

impl Notices {
    /// A reader of what comes from now on.
    pub fn open(pins: &Pins) -> Result<Self> {
        let (log, head) = (View::open(pins, "notice_log")?, View::open(pins, "notice_heads")?);
        let next = head.get(0).unwrap_or(0) + 1;
        Ok(Self { log, head, next })
    }

    /// A reader of all that the log still has.
    pub fn open_at_oldest(pins: &Pins) -> Result<Self> {
        Ok(Self { next: 1, ..Self::open(pins)? })
    }

    /// Number of the newest one that was read.
    pub fn newest(&self) -> u64 {
        self.next - 1
    }

    /// The notices that came since the last call, each with its number, and the count of those that were overwritten before.
    pub fn read(&mut self) -> (Vec<(u64, abi::fief_notice)>, u64) {
        let newest = self.head.get(0).unwrap_or(0);
        let size = u64::from(self.log.count());
        let oldest = (newest + 1).saturating_sub(size).max(self.next);
        let (mut found, mut lost) = (Vec::new(), oldest - self.next);
        self.next = oldest;
        while self.next <= newest {
            match self.look(self.next) {
                Look::There(notice) => found.push((self.next, notice)),
                Look::Overwritten => lost += 1,
                Look::NotYet => break, // a CPU writes it at this moment
            }
            self.next += 1;
        }
        (found, lost)
    }

    /// A record that reads the same twice, with its number, was whole.
    fn look(&self, number: u64) -> Look {
        let at = (number % u64::from(self.log.count())) as u32;
        let first = self.log.get(at).unwrap_or_default();
        fence(Ordering::Acquire);
        let second = self.log.get(at).unwrap_or_default();
        match first.number.max(second.number) {
            seen if seen > number => Look::Overwritten,
            _ if first == second && first.number == number => Look::There(first.notice),
            _ => Look::NotYet,
        }
    }
}

enum Look {
    There(abi::fief_notice),
    Overwritten,
    NotYet,
}
