// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The order of containers on the CPU: by Fief's scheduler where the policy divides the CPU and the kernel takes schedulers. In
//! any case a copy of a server runs at the nice value of its container's priority.

use std::collections::HashMap;

use fief_bpf::admin::Admin;
use fief_bpf::schedule::{self, Scheduler};
use fief_bpf::{Result, abi};
use fief_policy::Policy;

use crate::Fief;

/// Whether Fief's scheduler has the CPUs, and so holds shares, weights, limits and priorities.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SchedulerView {
    /// No policy asked for it, or it could not be turned on.
    Off,
    /// It has them.
    On {
        /// What it did, by name, since it was turned on.
        counts: Vec<(&'static str, u64)>,
    },
    /// The kernel took it out, with its reason.
    Ejected(String),
}

/// Whether this machine's kernel takes Fief's scheduler, as far as that is known without loading it. Errors: why not, and what to
/// do.
pub fn scheduler_here() -> Result<()> {
    schedule::here()
}

/// Priority 100 is nice 0; every 5 steps of priority are one of nice, within what nice knows.
pub fn nice_of(priority: u32) -> i32 {
    ((100 - i64::from(priority)) / 5).clamp(-20, 19) as i32
}

impl Fief {
    /// What the containers below the root have of the machine, for the policy that is being built in `slot`.
    pub(crate) fn stage_root(
        &self,
        policy: &Policy,
        admin: &Admin,
        containers: &HashMap<String, abi::fief_ref>,
        slot: u32,
    ) -> Result<()> {
        let top = policy.containers.iter().filter(|container| containers.contains_key(&container.path));
        let reserved_ppm = top.filter(|container| container.parent().is_none()).map(|c| c.cpu.share_ppm).sum();
        let attributes = abi::fief_attributes { weight: 100, priority: 100, reserved_ppm, ..Default::default() };
        admin.stage_attributes(abi::fief_ref { id: abi::FIEF_ROOT, generation: 0 }, slot, attributes)
    }

    /// Turns the scheduler on or off, as the policy that has come into force wants it. What is not enforced is no error: the
    /// rest of the policy is in force, and the operator is told.
    pub(crate) fn schedule(&self, policy: &Policy, notes: &mut Vec<String>) -> Result<()> {
        if !policy.wants_scheduler() {
            return schedule::remove(self.pins());
        }
        if let Ok(Scheduler::Ejected(why)) = schedule::state(self.pins()) {
            notes.push(format!("the kernel had taken the scheduler out ({why}); it is turned on again"));
        }
        if let Err(e) = schedule::install(self.pins()) {
            notes.push(format!("shares, weights and limits of the CPU are kept and not enforced: {e}"));
        }
        Ok(())
    }

    /// Whether the scheduler has the CPUs now.
    pub(crate) fn scheduler(&self) -> Result<SchedulerView> {
        Ok(match schedule::state(self.pins())? {
            Scheduler::Off => SchedulerView::Off,
            Scheduler::Ejected(why) => SchedulerView::Ejected(why),
            Scheduler::On(told) => SchedulerView::On {
                counts: vec![
                    ("picked", told.picked),
                    ("kept", told.kept),
                    ("held", told.held),
                    ("floored", told.floored),
                    ("preempted", told.preempted),
                    ("unqueued", told.unqueued),
                    ("lock_failed", told.lock_failed),
                ],
            },
        })
    }
}

#[cfg(test)]
mod tests {
    use super::nice_of;

    #[test]
    fn maps_the_default_priority_to_nice_0_and_stays_within_nice() {
        assert_eq!(nice_of(100), 0);
        assert_eq!(nice_of(200), -20);
        assert_eq!(nice_of(50), 10);
        assert_eq!(nice_of(0), 19);
        assert_eq!(nice_of(65535), -20);
    }
}
