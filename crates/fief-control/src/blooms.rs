// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Room for the Bloom filters of a policy: one table of words, half of it for each slot.
//!
//! Where room is short, the upper half of a filter is laid over the lower: it lets more requests through in vain, and stays
//! correct. A filter that an earlier policy left in a slot belongs to no guard any more and is overwritten.

use fief_bpf::map::{MapCore, MapHandle};
use fief_bpf::{Result, batch};

use crate::Fief;

/// The filters of a policy on their way into a slot.
#[derive(Debug)]
pub(crate) struct Blooms {
    map: MapHandle,
    first: usize,
    room: usize,
    words: Vec<u64>,
}

/// Where a filter lies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Placed {
    pub(crate) first: u32,
    /// Words of it, less one.
    pub(crate) mask: u32,
}

impl Blooms {
    pub(crate) fn open(fief: &Fief, slot: u32) -> Result<Self> {
        let map = fief.map("blooms")?;
        let room = map.max_entries() as usize / 2;
        Ok(Self { map, first: slot as usize * room, room, words: Vec::new() })
    }

    /// Puts a filter (a power of two of words) into at most half of the room that is left, so that there is some for
    /// those that come later. `None`: none is left.
    pub(crate) fn place(&mut self, filter: &[u64]) -> Option<Placed> {
        let most = (self.room - self.words.len()) / 2;
        if filter.is_empty() || most == 0 {
            return None;
        }
        let first = self.first + self.words.len();
        let filter = folded(filter, most);
        let placed = Placed { first: first as u32, mask: filter.len() as u32 - 1 };
        self.words.extend(filter);
        Some(placed)
    }

    pub(crate) fn write(self) -> Result<()> {
        let words: Vec<(u32, u64)> = (self.first as u32..).zip(self.words).collect();
        batch::update(&self.map, &words)
    }
}

/// The filter in at most so many words.
fn folded(filter: &[u64], most: usize) -> Vec<u64> {
    let mut filter = filter.to_vec();
    while filter.len() > most {
        let upper = filter.split_off(filter.len() / 2);
        filter.iter_mut().zip(upper).for_each(|(word, above)| *word |= above);
    }
    filter
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_filter_that_is_too_long_is_laid_over_itself() {
        assert_eq!(folded(&[1, 2, 4, 8], 4), [1, 2, 4, 8]);
        assert_eq!(folded(&[1, 2, 4, 8], 3), [5, 10]);
        assert_eq!(folded(&[1, 2, 4, 8], 1), [15]);
    }
}
