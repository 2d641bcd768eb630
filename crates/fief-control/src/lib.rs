// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The control plane: puts a compiled policy into the kernel, runs servers under it, reads usage out.
//!
//! Everything it builds lives in the kernel, pinned, and needs no process of ours. A lock serialises changes of the state, and
//! each comes into force in one step, so that a kill at any moment leaves the old or the new state.

// it panics where nobody reads, or the disk is full
#![cfg_attr(not(test), warn(clippy::print_stderr))]

mod activation;
mod admit;
mod agent;
mod apply;
mod ask;
mod back;
mod ban;
mod bind;
mod blooms;
mod cgroup;
mod charge;
mod charged;
mod children;
mod client;
mod costs;
mod difference;
mod down;
mod excepts;
mod exec;
mod explain;
mod files;
mod firewall;
mod fresh;
mod front;
mod groups;
mod guard;
mod handshake;
mod heirs;
mod homes;
mod least;
mod links;
mod listening;
mod lrp;
mod made;
mod moment;
mod mount_table;
mod mounts;
mod names;
mod namespace;
mod netlink;
mod noted;
mod notices;
mod operate;
mod origin;
mod others_limits;
mod outdated;
mod patience;
mod plan;
mod police;
mod priorities;
mod probe;
mod promises;
mod queue;
mod renamed;
mod rule_table;
mod run;
mod run_folder;
mod schedule;
mod servers;
mod service;
mod shell;
mod sockets;
mod squeezed;
mod staging;
mod started;
mod state;
mod status;
pub mod steer;
mod sweep;
mod sysctls;
mod tree;
mod upgrade;
mod verdicts;
mod veth;
mod watch;
mod wire;

pub use agent::AgentPlace;
pub use apply::{Applied, ApplyOptions};
pub use ask::Asker;
pub use ban::{Ban, Banned, Pardoned, name as ban_name};
pub use bind::{Bound, ManageOptions, Managed, Target};
pub use charge::{ClassListenerView, ContainerView, Snapshot, UnitView};
pub use children::{Tell, exec_main};
pub use client::{Budget, ClientView, Isolation, Left, Proven};
pub use costs::{COSTS_GO_ON, ClientCost, CostView, Costliest, Costly, Ranking};
pub use difference::{Difference, Ending, ListenerChange};
pub use down::Down;
pub use exec::ExecOptions;
pub use explain::{ExplainedRequest, Explanation, Question, Sent, no_listener};
pub use fief_bpf::abi::FIEF_ABI_VERSION as ABI_VERSION;
pub use fief_bpf::{Error, ErrorKind, Result};
pub use groups::{GroupsView, Hierarchy, Version, move_main};
pub use heirs::Heirs;
pub use homes::{LetGo, LostHome, NewHome, refuse_lost};
pub use lrp::LaneView;
pub use moment::Moment;
pub use mounts::{Mounted, mounted_at};
pub use notices::{Notice, Recent, Told};
pub use operate::{Attribute, Holder, Node, Reference};
pub use origin::Origin;
pub use patience::cpu_spent;
pub use priorities::classes_alone;
pub use probe::{Feature, Probe};
pub use queue::{LatencyView, QUEUE_PLACES, QueueClassView, QueueView, Waits};
pub use run::{RunOptions, guard_main};
pub use run_folder::open_lock;
pub use schedule::{CombinedView, Enforcer, SchedulerView};
pub use service::{Change, DropIn, DropInOptions, DropInText};
pub use squeezed::squeezed;
pub use status::{Classes, ListenerStatus, ServerStatus, Status, UnguardedInterface, WhyUnguarded, not_yet_enforced};
pub use sysctls::LOOPBACK_QUEUES;
pub use verdicts::{FrontView, LoadView, ShutOut, VerdictView};
pub use watch::{ChargeSource, ChargedThread, Charges, Watch, Why};

use fief_bpf::pin::Pins;

pub(crate) const NO_POLICY: &str = "no policy has come into force: the first `fief apply` was killed, or is at work";
pub(crate) const NO_POLICY_REMEDY: &str = "apply a policy, or take down what is left of it: fief down";

/// One installation of Fief on this machine.
#[derive(Debug, Clone)]
pub struct Fief {
    pins: Pins,
}

impl Fief {
    /// The installation that the environment names by `FIEF_SCOPE`, or the machine's one. Errors: that is no name.
    pub fn from_env() -> Result<Self> {
        Ok(Self { pins: Pins::from_env()? })
    }

    /// The installation of this scope.
    pub fn with_scope(scope: &str) -> Self {
        Self { pins: Pins::new(scope) }
    }

    /// Whether anything is in force.
    pub fn installed(&self) -> bool {
        self.pins.exist()
    }

    /// Whether a policy has come into force: not while the first one is built, nor after that was killed.
    pub fn in_force(&self) -> bool {
        // what cannot be read is another version's
        self.installed() && !matches!(fief_bpf::table::control(&self.pins), Ok(control) if control.epoch == 0)
    }

    /// The same once who is building the first one has done so.
    pub fn comes_in_force(&self) -> Result<bool> {
        if self.in_force() || !self.installed() {
            return Ok(self.in_force());
        }
        let _lock = self.lock()?;
        Ok(self.in_force())
    }

    /// The scopes of all installations in force that this user can see.
    pub fn scopes() -> Vec<String> {
        Pins::all()
    }

    /// Where its state is pinned.
    pub fn pins(&self) -> &Pins {
        &self.pins
    }

    /// Errors: [`ErrorKind::NotFound`] with the remedy, if no policy has come into force.
    pub(crate) fn require_in_force(&self) -> Result<()> {
        self.require_installed()?;
        if self.in_force() { Ok(()) } else { Err(Error::new(ErrorKind::NotFound, NO_POLICY).remedy(NO_POLICY_REMEDY)) }
    }

    /// Errors: [`ErrorKind::NotFound`] with the remedy, if nothing is in force.
    pub(crate) fn require_installed(&self) -> Result<()> {
        if self.installed() {
            return Ok(());
        }
        let remedy = nothing_remedy(self.pins.scope(), &Self::scopes());
        Err(Error::new(ErrorKind::NotFound, "nothing is in force").remedy(remedy))
    }
}

/// What to do where nothing is in force in this scope; `others`: those in which something is.
fn nothing_remedy(scope: &str, others: &[String]) -> String {
    match fief_policy::nearest(scope, others.iter().map(String::as_str)) {
        Some(near) => format!("did you mean the scope {near} (FIEF_SCOPE)? else apply a policy first: fief apply FILE"),
        None if others.is_empty() => "apply a policy first: fief apply FILE".to_owned(),
        None => {
            format!("set FIEF_SCOPE to one that is: {}, or apply a policy first: fief apply FILE", others.join(", "))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_misspelt_scope_is_told_the_nearest_one() {
        let others = ["fief".to_owned(), "stage".to_owned()];
        assert!(nothing_remedy("stag", &others).starts_with("did you mean the scope stage (FIEF_SCOPE)?"));
        assert!(nothing_remedy("production", &others).starts_with("set FIEF_SCOPE to one that is: fief, stage"));
        assert_eq!(nothing_remedy("fief", &[]), "apply a policy first: fief apply FILE");
    }
}
