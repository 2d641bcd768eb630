// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Another version of Fief takes over the installation in force, without a gap but the scheduler's.

use fief_bpf::upgrade::{self, Upgraded};
use fief_bpf::{Result, ingress, open};

use crate::front::Others;
use crate::{Fief, made, namespace};

impl Fief {
    /// Replaces the programs in force by this binary's; containers, bindings, descriptors and usage go on.
    pub fn upgrade(&self) -> Result<Upgraded> {
        let _lock = self.lock()?;
        self.require_installed()?;
        let done = upgrade::upgrade(self.pins())?;
        self.complete_doors()?;
        self.attach_orders_again()?;
        self.settle_charging(None)?;
        Ok(done)
    }

    /// Attaches what the version before did not know to the interfaces that are guarded, and to the top of the cgroups.
    fn complete_doors(&self) -> Result<()> {
        let names = self.names()?;
        let Some((policy, netns)) = names.policy().zip(open::steered(self.pins())) else { return Ok(()) };
        let guarded = ingress::attached(self.pins()).into_iter().filter(|place| place.0 == netns.inode);
        let interfaces: Vec<u32> = guarded.map(|(_, index)| index).collect();
        if made::wanted(policy) {
            self.keep_made()?;
        }
        let stands = Others::of(policy).stands(netns.inode, &interfaces);
        namespace::within(netns, || ingress::attach(self.pins(), &stands)).map(drop)
    }
}
