// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The way back from a policy that fails before it comes into force: what stood before it was staged is noted, and what was made for it,
//! or changed, is taken away again.
//!
//! Limits: requests that a queue of the former policy let go, to make room for another one, are with the server.

use std::fs::File;
use std::os::fd::AsFd;

use fief_bpf::admin::Admin;
use fief_bpf::ingress::{self, Stand};
use fief_bpf::table::Table;
use fief_bpf::{Context, Result, abi, open, top};

use crate::lrp::FormerLanes;
use crate::queue::FormerQueue;
use crate::sysctls::Before;
use crate::tree::Tree;
use crate::{Fief, namespace};

/// What stands while the former policy is in force, but for its containers.
#[derive(Debug)]
pub(crate) struct Former {
    stands: Vec<Stand>,
    /// The network namespace whose connections are steered.
    steered: Option<u64>,
    queues: Vec<FormerQueue>,
    lanes: FormerLanes,
    /// The programs at the top of the cgroups are attached.
    made_stands: bool,
    sysctls: Vec<Before>,
}

impl Fief {
    /// What stands now, for [`Fief::go_back`].
    pub(crate) fn former(&self) -> Result<Former> {
        Ok(Former {
            stands: ingress::standing(self.pins()),
            steered: open::steered(self.pins()),
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
            self.steer_again(former.steered),
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
        ];
    }

    /// Steers this network namespace in the place of the one that a policy was to move to, unless it is gone.
    fn steer_again(&self, former: Option<u64>) -> Result<()> {
        let Some(netns) = former.filter(|netns| open::steered(self.pins()) != Some(*netns)) else { return Ok(()) };
        let Some(path) = namespace::place(netns) else { return Ok(()) };
        let file = File::open(&path).context(|| format!("cannot open {}", path.display()))?;
        open::attach_netns(self.pins(), file.as_fd(), netns)
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
