// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Labels of files (`label-files = true`): whether the programs charge labelled files, by policy slot.

use fief_bpf::{Result, files};
use fief_policy::Policy;

use crate::Fief;

impl Fief {
    /// Attaches what a policy wants that is being built in `slot`, where it does nothing yet.
    pub(crate) fn stage_files(&self, policy: &Policy, slot: u32) -> Result<()> {
        if policy.label_files {
            files::install(self.pins())?;
        }
        files::choose(self.pins(), slot, policy.label_files)
    }

    /// Detaches what the policy in force has no use for.
    pub(crate) fn retire_files(&self) -> Result<()> {
        files::retire(self.pins())
    }
}
