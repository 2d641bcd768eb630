// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Containers and snapshots as no kernel told them, for the tests of what shows usage: the command and the agent.
//!
//! A crate, since a test module of one crate is not there for another one. It has what all tests begin with; what a test is
//! about, the test sets. fief-control's own tests cannot have it: it is made of their crate.

use fief::abi::{FIEF_FIRST_ID, fief_attributes};
use fief_control::{ContainerView, SchedulerView, Snapshot};

/// An idle container: the policy's, unless it is always there.
pub fn container(path: &str, id: u32, parent: Option<u32>) -> ContainerView {
    ContainerView {
        path: path.to_owned(),
        id,
        generation: 1,
        parent,
        state: "alive",
        policy: id >= FIEF_FIRST_ID,
        unit: false,
        handles: 1,
        threads: 0,
        processes: 0,
        sockets: 0,
        files: 0,
        discarded: 0,
        children: 0,
        attributes: fief_attributes { weight: 100, priority: 100, ..Default::default() }.into(),
        usage: fief::Usage::default(),
    }
}

/// Of a machine of two CPUs without a scheduler of ours, where CPU time is charged.
pub fn snapshot(containers: Vec<ContainerView>) -> Snapshot {
    Snapshot {
        taken_ns: 5_000_000_000,
        cpus: 2,
        containers,
        system_kinds: vec![("timer", 40), ("rcu", 2)],
        failures: Vec::new(),
        class_listeners: Vec::new(),
        units: Vec::new(),
        scheduler: SchedulerView::Off,
        charged: true,
    }
}
