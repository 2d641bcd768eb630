// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The lanes before a policy is staged, so that one that does not come into force leaves none of its own, and those in force.

use fief_bpf::{Result, abi, lane};

use super::devices;
use crate::Fief;
use crate::namespace::{Known, Namespace};

/// What there is of lanes while the former policy is in force.
#[derive(Debug)]
pub(crate) struct FormerLanes {
    places: Vec<Known>,
    /// The interfaces from which packets are sorted into them: inode of the network namespace and index.
    sorted: Vec<(u64, u32)>,
    /// Those of the lanes in the caller's network namespace, by index, which nothing of a policy that fails is of.
    ends: Vec<u32>,
    /// The containers that have lanes there.
    laned: Vec<abi::fief_ref>,
}

impl Fief {
    /// What there is now, for [`Fief::retire_new_lanes`].
    pub(crate) fn former_lanes(&self) -> Result<FormerLanes> {
        let ends = devices::ends(self.pins().scope())?.into_iter().map(|end| end.index).collect();
        let laned = self.laned(Namespace::of_caller()?.inode)?;
        Ok(FormerLanes { places: self.places(), sorted: lane::sorted(self.pins()), ends, laned })
    }

    /// After a policy that did not come into force: removes what was not there before. A lane of the former policy's whose interfaces
    /// had gone, and that was made anew, stays.
    pub(crate) fn retire_new_lanes(&self, former: &FormerLanes) -> Result<()> {
        let here = Namespace::of_caller()?.known;
        if !self.places().iter().any(|place| place.is(here)) {
            return Ok(());
        }
        let stays = |end: &devices::End| {
            former.ends.contains(&end.index) || end.container.is_some_and(|of| former.laned.contains(&of))
        };
        // a failure must not keep the rest, nor hide from the next command where it is
        let detached = lane::detach_sorters(self.pins(), &former.sorted);
        let removed = self.remove_ends(here, stays);
        let forgotten = lane::forget_ends(self.pins());
        detached.and(removed).and(forgotten).and_then(|()| self.write_places(&former.places))
    }
}
