// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Another version of Fief takes over what is in force, without a gap.

use fief_bpf::Result;
use fief_bpf::upgrade::{self, Upgraded};

use crate::Fief;

impl Fief {
    /// Replaces the programs in force by this binary's; containers, bindings, descriptors and usage go on.
    pub fn upgrade(&self) -> Result<Upgraded> {
        let _lock = self.lock()?;
        self.require_installed()?;
        upgrade::upgrade(self.pins())
    }
}
