// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The way back from a policy that fails before it comes into force: what stood before it was staged is noted, and what was made for it,
//! or changed, is taken away again.
//!
//! Limits: requests that a queue of the former policy let go, to make room for another one, are with the server, or were refused, as the
//! error says.

use std::os::fd::AsFd;

use fief_bpf::admin::Admin;
use fief_bpf::ingress::{self, Stand};
use fief_bpf::table::Table;
use fief_bpf::{Result, abi, open, top};

use crate::Fief;
use crate::lrp::FormerLanes;
use crate::namespace::{self, Namespace};
use crate::queue::FormerQueue;
use crate::sysctls::Before;
use crate::tree::Tree;

/// What stands while the former policy is in force, but for its containers.
#[derive(Debug)]
pub(crate) struct Former {
    stands: Vec<Stand>,
    /// Its network namespace.
    steered: Option<abi::fief_netns>,
    /// Connections there are steered.
    steers: bool,
    queues: Vec<FormerQueue>,
    lanes: FormerLanes,
    /// The programs at the top of the cgroups are attached.
    made_stands: bool,
    sysctls: Vec<Before>,
}

impl Fief {
    /// What stands now, for [`Fief::go_back`].
    pub(crate) fn former(&self) -> Result<Former> {
        let steered = open::steered(self.pins());
        Ok(Former {
            stands: ingress::standing(self.pins()),
            steered,
            steers: steered.is_some_and(|netns| open::steers(self.pins(), netns.inode)),
            queues: self.former_queues()?,
            lanes: self.former_lanes()?,
            made_stands: top::stands(self.pins()),
            sysctls: self.sysctls_before(),
        })
    }

    /// Before the flip: leaves nothing of the policy that was staged. `tree`: the containers before it.
    ///
    /// The error that stopped that policy is the one to tell: what fails here stays, and goes with the next policy.
    pub(crate) fn go_back(&self, admin: &Admin, table: &Table, tree: &Tree, former: &Former) {
        let _tried = [
            // what stands where the former policy has nothing follows its rules there
            ingress::detach_others(self.pins(), &former.stands),
            self.steer_again(former),
            self.restore_queues(&former.queues),
            self.retire_new_orders(tree.slot),
            // their threads are in containers
            self.retire_new_lanes(&former.lanes),
        ];
        unmake(admin, tree, &Tree::read(table));
        let _tried = [
            self.retire_files(),
            self.retire_new_ticks(),
            if former.made_stands { Ok(()) } else { top::detach(self.pins()) },
            self.unset_sysctls(&former.sysctls),
            self.settle_charging(None),
        ];
    }

    /// Goes back to the former policy's network namespace, if a policy was to move to another one, unless it is gone; and to whether
    /// connections there are steered.
    fn steer_again(&self, former: &Former) -> Result<()> {
        if !former.steers {
            open::detach_netns(self.pins())?;
        }
        let Some(netns) = former.steered.filter(|netns| open::steered(self.pins()) != Some(*netns)) else {
            return Ok(());
        };
        let back = || open::steer(self.pins(), Namespace::of_caller()?.file.as_fd(), netns, former.steers);
        namespace::within(netns, back).map(drop)
    }
}

/// Lets go of the containers that were made since.
fn unmake(admin: &Admin, before: &Tree, now: &Tree) {
    let mut made: Vec<_> = now
        .rows()
        .iter()
        .filter(|row| row.record.flags & abi::FIEF_CONTAINER_POLICY != 0)
        .filter(|row| !before.rows().iter().any(|old| old.container == row.container))
        .collect();
    made.sort_by_key(|row| std::cmp::Reverse(now.depth(row)));
    for row in made {
        // what stays is released by the next policy
        let _ = admin.release(row.container, abi::FIEF_CONTAINER_POLICY, None);
    }
}
