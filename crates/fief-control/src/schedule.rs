// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The order of containers on the CPU: by Fief's scheduler where the policy divides the CPU and the kernel takes schedulers, and
//! by cgroups where it takes none. In any case a copy of a server runs at the nice value of its container's priority.

use std::collections::HashMap;

use fief_bpf::admin::Admin;
use fief_bpf::order;
use fief_bpf::schedule::{self, Scheduler};
use fief_bpf::{Error, ErrorKind, Result, abi};
use fief_policy::{CpuPolicy, Policy, Schedule};
use serde::{Deserialize, Serialize};

use crate::groups::{GroupsView, Hierarchy, beyond_groups};
use crate::priorities::some_of;
use crate::squeezed::squeezed;
use crate::tree::Tree;
use crate::{Fief, least, others_limits, wire};

/// Who holds shares, weights and limits of the CPU now.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum SchedulerView {
    /// No policy asked for it, or it could not be turned on.
    Off,
    /// It has them.
    On {
        /// What it did, by name, since it was turned on.
        #[serde(deserialize_with = "wire::counts")]
        counts: Vec<(&'static str, u64)>,
        /// Threads that have the CPU of other containers than they work for, which is of the moment: no record and no reader of the
        /// agent has them.
        #[serde(skip)]
        combined: Vec<CombinedView>,
    },
    /// The kernel took it out, with its reason.
    Ejected(String),
    /// Cgroups hold them for whole processes.
    Groups(GroupsView),
}

/// A thread that is scheduled for all of the containers that it served lately (its scheduler binding), or by a turn that is lent.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CombinedView {
    /// Its number.
    pub thread: u32,
    /// The number of its process.
    pub process: u32,
    /// Their paths.
    pub containers: Vec<String>,
    /// Path of the container whose turn it has, since a request of that one waits for it.
    pub lent: Option<String>,
}

/// Who can hold shares, weights and limits on this machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Enforcer {
    /// Fief's scheduler.
    Scheduler {
        /// What of the policy it cannot hold, a sentence each.
        beyond: Vec<String>,
    },
    /// Cgroups, for whole processes.
    Groups {
        /// Their hierarchy.
        hierarchy: Hierarchy,
        /// Why it is not the scheduler; `None`: the policy wants it so.
        why: Option<String>,
        /// What of the policy they cannot hold, a sentence each.
        beyond: Vec<String>,
    },
    /// Nobody, and why; with what to do.
    Nobody(String),
}

impl Enforcer {
    /// Who would hold what the policy says of the CPU, as far as that is known without trying it; `None`: it says nothing of it
    /// that would have to be held.
    pub fn of(policy: &Policy) -> Option<Self> {
        if !policy.divides_cpu() {
            return None;
        }
        Some(match policy.schedule {
            Schedule::Off => Self::Nobody("schedule is \"off\"; write schedule = \"auto\"".to_owned()),
            Schedule::Auto => match schedule::here() {
                Ok(()) => Self::Scheduler { beyond: least::below_least(policy).into_iter().collect() },
                Err(e) => Self::after(policy, e),
            },
            Schedule::Cgroup => match schedule::foreign() {
                Ok(()) => Self::groups(policy, None),
                Err(e) => Self::Nobody(e.to_string()),
            },
        })
    }

    /// Without the scheduler. Another one has its own idea of cgroups, or none.
    fn after(policy: &Policy, why: Error) -> Self {
        match why.kind() {
            ErrorKind::Exists => Self::Nobody(why.to_string()),
            _ => Self::groups(policy, Some(why.what().to_owned())),
        }
    }

    fn groups(policy: &Policy, why: Option<String>) -> Self {
        match Hierarchy::find() {
            Ok(hierarchy) => {
                let beyond = beyond_groups(policy, crate::charge::online_cpus());
                Self::Groups { hierarchy, why, beyond }
            }
            Err(e) => Self::Nobody(match why {
                Some(why) => format!("{why}, and {e}"),
                None => e.to_string(),
            }),
        }
    }

    /// What machines call it.
    pub fn word(&self) -> Option<&'static str> {
        match self {
            Self::Scheduler { .. } => Some(SCHEDULER),
            Self::Groups { hierarchy, .. } => Some(hierarchy.word()),
            Self::Nobody(_) => None,
        }
    }
}

/// What machines call Fief's scheduler.
const SCHEDULER: &str = "scheduler";

impl SchedulerView {
    /// What machines call who holds shares, weights and limits; `None`: nobody does.
    pub fn word(&self) -> Option<&'static str> {
        match self {
            Self::On { .. } => Some(SCHEDULER),
            Self::Groups(groups) => Some(groups.hierarchy.word()),
            Self::Off | Self::Ejected(_) => None,
        }
    }

    /// What people call it.
    pub fn title(&self) -> Option<String> {
        match self {
            Self::On { .. } => Some("Fief's scheduler".to_owned()),
            Self::Groups(groups) => Some(format!("{}, for whole processes", groups.hierarchy.name())),
            Self::Off | Self::Ejected(_) => None,
        }
    }

    /// The same for one container.
    pub fn word_for(&self, container: &str) -> Option<&'static str> {
        match self {
            Self::Groups(groups) if !groups.containers.contains(container) => None,
            _ => self.word(),
        }
    }
}

impl CombinedView {
    fn of(told: &abi::fief_combined, tree: &Tree) -> Self {
        let served = told.served.iter().take(told.count as usize);
        let containers = served.filter_map(|container| tree.row(*container).map(|row| tree.path(row))).collect();
        let lent = tree.row(told.lent).map(|row| tree.path(row));
        Self { thread: told.thread, process: told.process, containers, lent }
    }
}

/// Priority 100 is nice 0; every 5 steps of priority are one of nice, within what nice knows.
pub fn nice_of(priority: u32) -> i32 {
    ((100 - i64::from(priority)) / 5).clamp(-20, 19) as i32
}

/// The policy among a container's own threads, as the scheduler knows it. Attributes are of a slot of policies, which has objects
/// of its own.
pub(crate) fn policy_number(policy: CpuPolicy, slot: u32) -> u32 {
    match policy {
        CpuPolicy::Fair => abi::FIEF_POLICY_FAIR,
        CpuPolicy::Fifo => abi::FIEF_POLICY_FIFO,
        CpuPolicy::Rr => abi::FIEF_POLICY_RR,
        CpuPolicy::Edf => abi::FIEF_POLICY_EDF,
        CpuPolicy::Lottery => abi::FIEF_POLICY_LOTTERY,
        CpuPolicy::Object(place) => abi::FIEF_POLICY_OBJECT + object_number(slot, place.into()),
    }
}

/// A slot has room for as many as a policy can name.
const _: () = assert!(fief_policy::ORDERS_MOST == abi::FIEF_OBJECTS as usize);

fn order_numbers(policy: &Policy, slot: u32) -> std::ops::Range<u32> {
    object_number(slot, 0)..object_number(slot, policy.orders.len() as u32)
}

/// The scheduler's number of a policy's object.
fn object_number(slot: u32, place: u32) -> u32 {
    slot * abi::FIEF_OBJECTS + place
}

/// For an apply that turns the scheduler on: an upgrade may do so too, where a policy has long said what only this version divides the CPU by.
fn turned_on(policy: &Policy) -> String {
    let wanting = policy.dividing().map(|(container, given)| format!("{} ({})", container.path, given.join(", ")));
    let wanting: Vec<String> = wanting.collect();
    let wanting: Vec<&str> = wanting.iter().map(String::as_str).collect();
    format!(
        "the threads of the machine are scheduled by Fief's scheduler (sched_ext) from now on, no longer by the kernel's own, for the sake of \
         {}; schedule = \"off\" leaves them to the kernel's",
        some_of(&wanting)
    )
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

    /// Turns the scheduler or groups on or off, as the policy that has come into force wants it. What is not enforced is no
    /// error: the rest of the policy is in force, and the operator is told.
    pub(crate) fn schedule(
        &self,
        policy: &Policy,
        slot: u32,
        orders_attached: bool,
        notes: &mut Vec<String>,
    ) -> Result<()> {
        let mut enforcer = Enforcer::of(policy).filter(|_| policy.wants_enforcer());
        if let Some(Enforcer::Scheduler { beyond }) = &mut enforcer {
            let beyond = std::mem::take(beyond);
            let before = schedule::state(self.pins());
            if let Ok(Scheduler::Ejected(why)) = &before {
                notes.push(format!("the kernel had taken the scheduler out ({why}); it is turned on again"));
            }
            match schedule::install(self.pins()) {
                Ok(()) => {
                    if matches!(before, Ok(Scheduler::Off)) {
                        notes.push(turned_on(policy));
                    }
                    // those of a scheduler that was on are attached already
                    if !orders_attached {
                        self.attach_orders(policy, slot, notes)?;
                    }
                    order::keep(self.pins(), order_numbers(policy, slot))?;
                    self.remove_groups()?;
                    notes.extend(beyond);
                    notes.extend(others_limits::note());
                    notes.extend(squeezed(policy, true));
                    return Ok(());
                }
                Err(e) => enforcer = Some(Enforcer::after(policy, e)),
            }
        }
        schedule::remove(self.pins())?;
        let not =
            |why: String| format!("shares, weights, limits and priorities of the CPU are kept and not enforced: {why}");
        match enforcer {
            Some(Enforcer::Groups { hierarchy, why, beyond }) => {
                let why = why.map_or_else(String::new, |why| format!(" ({why})"));
                let by = format!(
                    "cpu.share, cpu.weight and cpu.limit of whole processes are held by {}{why}",
                    hierarchy.name()
                );
                let mut told = vec![by];
                told.extend(beyond);
                told.extend(squeezed(policy, false));
                match self.install_groups(hierarchy, &mut told) {
                    Ok(()) => notes.append(&mut told),
                    Err(e) => {
                        // half of them would hold another thing than the policy says
                        let _ = self.remove_groups();
                        notes.push(not(e.to_string()));
                    }
                }
                return Ok(());
            }
            Some(Enforcer::Nobody(why)) => notes.push(not(why)),
            Some(Enforcer::Scheduler { .. }) | None => {}
        }
        self.remove_groups()
    }

    /// Attaches the policy's own orders, those of the former one staying. Without its object a container has its threads in
    /// order of their nice values.
    pub(crate) fn attach_orders(&self, policy: &Policy, slot: u32, notes: &mut Vec<String>) -> Result<()> {
        for (number, one) in order_numbers(policy, slot).zip(&policy.orders) {
            if let Err(e) = order::attach(self.pins(), number, &one.object) {
                notes.push(format!("cpu.policy = \"{}\" is kept and not enforced: {e}", one.name));
            }
        }
        Ok(())
    }

    /// Those of the policy in force again, after the scheduler was replaced. Status tells which of them are not loaded.
    pub(crate) fn attach_orders_again(&self) -> Result<()> {
        let names = self.names()?;
        if let (Some(policy), Scheduler::On(_)) = (names.policy(), schedule::state(self.pins())?) {
            self.attach_orders(policy, names.slot(), &mut Vec::new())?;
        }
        Ok(())
    }

    /// Before the policy of that slot comes into force, if the scheduler is on; whether it is.
    pub(crate) fn attach_orders_early(&self, policy: &Policy, slot: u32, notes: &mut Vec<String>) -> Result<bool> {
        let is_on = policy.wants_enforcer() && matches!(schedule::state(self.pins()), Ok(Scheduler::On(_)));
        if is_on {
            self.attach_orders(policy, slot, notes)?;
        }
        Ok(is_on)
    }

    /// After a policy that did not come into force: lets go of all but the orders of this slot, which is in force.
    pub(crate) fn retire_new_orders(&self, slot: u32) -> Result<()> {
        order::keep(self.pins(), object_number(slot, 0)..object_number(slot + 1, 0))
    }

    /// Of the policy's own orders those that are asked, and what is wrong with the others.
    pub(crate) fn orders(
        &self,
        policy: &Policy,
        slot: u32,
        scheduler: &SchedulerView,
    ) -> Result<(Vec<String>, Vec<String>)> {
        let (mut held, mut problems) = (Vec::new(), Vec::new());
        if !matches!(scheduler, SchedulerView::On { .. }) {
            return Ok((held, problems));
        }
        for (number, one) in order_numbers(policy, slot).zip(&policy.orders) {
            let Some(told) = order::state(self.pins(), number)? else { continue };
            let (name, file) = (&one.name, one.object.display());
            let instead = "threads that have it go by their nice values";
            if !order::is_attached(self.pins(), number) {
                problems.push(format!(
                    "cpu.policy = \"{name}\": {file} is not loaded, so {instead}; `fief apply` loads it, or says why not"
                ));
            } else if told.removed != 0 {
                problems.push(format!(
                    "cpu.policy = \"{name}\": {file} answered too late or beyond its reach ({} times) and is not asked any more, \
                     so {instead}; mend it, and apply the policy again",
                    told.faults
                ));
            } else {
                let abi::fief_object { turns, unanswered, faults, .. } = told;
                held.push(format!(
                    "cpu.policy = \"{name}\", by {file} (asked {turns} times, no answer {unanswered}, faults {faults})"
                ));
            }
        }
        Ok((held, problems))
    }

    /// Who divides the CPU now.
    pub(crate) fn scheduler(&self, tree: &Tree) -> Result<SchedulerView> {
        Ok(match schedule::state(self.pins())? {
            Scheduler::Off => self.groups_view(tree)?.map_or(SchedulerView::Off, SchedulerView::Groups),
            Scheduler::Ejected(why) => SchedulerView::Ejected(why),
            Scheduler::On(told) => SchedulerView::On {
                combined: match told.combined + told.lent {
                    0 => Vec::new(), // none had been, so the threads need not be walked
                    _ => schedule::combined(self.pins())?.iter().map(|one| CombinedView::of(one, tree)).collect(),
                },
                counts: vec![
                    ("picked", told.picked),
                    ("kept", told.kept),
                    ("held", told.held),
                    ("floored", told.floored),
                    ("preempted", told.preempted),
                    ("unqueued", told.unqueued),
                    ("lock_failed", told.lock_failed),
                    ("combined", told.combined),
                    ("lent", told.lent),
                ],
            },
        })
    }
}

#[cfg(test)]
mod tests {
    use super::{nice_of, turned_on};

    #[test]
    fn whoever_turns_the_scheduler_on_is_named() {
        let text = "version = 1\nschedule = \"auto\"\n[container.shop]\nprograms = \"shop/cgi\"\n[container.\"shop/gold\"]\n\
                    cpu.priority = 200\n[container.\"shop/cgi\"]\ncpu.priority = 50\n[container.batch]\ncpu.limit = \"10%\"\n\
                    cpu.weight = 50\n[listener.web]\naddress = \"0.0.0.0:80\"\n[[listener.web.client]]\nfrom = [\"any\"]\n\
                    container = \"shop/gold\"\n";
        let said = turned_on(&fief_policy::parse(text, "policy").unwrap_or_else(|errors| panic!("{errors}")));
        let named = "for the sake of shop/cgi (cpu.priority), batch (cpu.limit, cpu.weight); schedule";
        assert!(said.contains(named), "of gold, a class, it orders requests: {said}");
    }

    #[test]
    fn maps_the_default_priority_to_nice_0_and_stays_within_nice() {
        assert_eq!(nice_of(100), 0);
        assert_eq!(nice_of(200), -20);
        assert_eq!(nice_of(50), 10);
        assert_eq!(nice_of(0), 19);
        assert_eq!(nice_of(65535), -20);
    }
}
