// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The lanes before a policy is staged, so that one that does not come into force leaves none of its own.

use fief_bpf::{Result, lane};

use super::devices;
use crate::Fief;
use crate::namespace::Namespace;

/// What there is of lanes while the former policy is in force.
#[derive(Debug)]
pub(crate) struct FormerLanes {
    places: Vec<u64>,
    /// The interfaces from which packets are sorted into them.
    sorted: Vec<u32>,
    /// Those of the lanes in the caller's network namespace.
    ends: Vec<u32>,
}

impl Fief {
    /// What there is now, for [`Fief::retire_new_lanes`].
    pub(crate) fn former_lanes(&self) -> Result<FormerLanes> {
        let ends = devices::ends(self.pins().scope())?.into_iter().map(|end| end.index).collect();
        Ok(FormerLanes { places: self.places(), sorted: lane::sorted(self.pins()), ends })
    }

    /// After a policy that did not come into force: removes what was not there before.
    pub(crate) fn retire_new_lanes(&self, former: &FormerLanes) -> Result<()> {
        let here = Namespace::of_caller()?.inode;
        if !self.places().contains(&here) {
            return Ok(());
        }
        lane::detach_sorters(self.pins(), &former.sorted)?;
        self.remove_ends(here, |end| former.ends.contains(&end.index))?;
        lane::forget_ends(self.pins())?;
        self.write_places(&former.places)
    }
}
