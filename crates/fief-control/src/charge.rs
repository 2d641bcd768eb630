// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The containers with their usage up to now.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::path::PathBuf;

use fief::{Attributes, Usage};
use fief_bpf::abi;
use fief_bpf::admin::Admin;
use fief_bpf::table::{Row, Table};
use fief_bpf::{Context, Result, charging};
use nix::time::{ClockId, clock_gettime};
use serde::{Deserialize, Serialize};

use crate::tree::Tree;
use crate::{Fief, steer, wire};

/// Names of failures, in the order of `enum fief_error`.
const FAILURES: [&str; abi::FIEF_ERRORS as usize] = [
    "no_storage",
    "table_full",
    "lock_held",
    "switch_missed",
    "door_incomplete",
    "verdict_uncounted",
    "ring_unread",
    "thread_unbound",
];
/// Names of the kinds of time that the system container was charged, in the order of `enum fief_system_kind`.
pub(crate) const SYSTEM_KINDS: [&str; 15] = [
    "softirq_hi",
    "softirq_timer",
    "softirq_net_tx",
    "softirq_net_rx",
    "softirq_block",
    "softirq_irq_poll",
    "softirq_tasklet",
    "softirq_sched",
    "softirq_hrtimer",
    "softirq_rcu",
    "hardirq",
    "kworker",
    "ksoftirqd",
    "napi",
    "kthread",
];

/// One container at the moment of a snapshot.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct ContainerView {
    /// Components joined by `/`; `#` and the slot where there is no name.
    pub path: String,
    /// Slot in the table.
    pub id: u32,
    /// Generation of the slot.
    pub generation: u32,
    /// Slot of the parent, if that lives.
    pub parent: Option<u32>,
    /// `alive`, `orphan` (its parent has ended) or `ended` (only descendants live).
    #[serde(deserialize_with = "wire::word")]
    pub state: wire::Word,
    /// Named by the policy in force.
    pub policy: bool,
    /// Home of a managed unit.
    pub unit: bool,
    /// Descriptors, labels, homes, the policy.
    pub handles: u32,
    /// Threads bound to it, as of when they last left their CPU.
    pub threads: u32,
    /// Processes whose main thread is one of these.
    pub processes: u32,
    /// Labelled sockets that are open.
    pub sockets: u32,
    /// Labelled files.
    pub files: u32,
    /// Packets that were dropped since receive work exceeded its part of the limit.
    #[serde(default)]
    pub discarded: u64,
    /// Children.
    pub children: u32,
    /// Attributes in force.
    pub attributes: Attributes,
    /// Usage since it was made.
    pub usage: Usage,
}

/// A managed cgroup.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct UnitView {
    /// Its folder; `None` if it is gone.
    #[serde(serialize_with = "wire::some_path")]
    pub cgroup: Option<PathBuf>,
    /// The home of its threads.
    pub container: String,
}

/// A listening socket that serves one class.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct ClassListenerView {
    /// Address of the policy's listener.
    pub address: Option<SocketAddr>,
    /// The class's container.
    pub container: String,
    /// The kernel's number of the socket (`ss -e` shows it as `sk`).
    pub cookie: u64,
}

/// Everything at one moment.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Snapshot {
    /// When, by CLOCK_MONOTONIC.
    pub taken_ns: u64,
    /// CPUs of the machine.
    pub cpus: u32,
    /// Containers in the order of their slots, the known ones first.
    pub containers: Vec<ContainerView>,
    /// Time of the system container by kind.
    #[serde(deserialize_with = "wire::counts")]
    pub system_kinds: Vec<(&'static str, u64)>,
    /// What the kernel side could not do, by kind, since the installation.
    #[serde(deserialize_with = "wire::counts")]
    pub failures: Vec<(&'static str, u64)>,
    /// Managed cgroups.
    pub units: Vec<UnitView>,
    /// Listening sockets that servers registered for the classes.
    pub class_listeners: Vec<ClassListenerView>,
    /// Who holds shares, weights and limits of the CPU.
    pub scheduler: crate::SchedulerView,
    /// CPU time is charged. While nobody needs it, no counter of it moves, not even those of idle time. A record does not have this.
    #[serde(default = "wire::yes", serialize_with = "wire::now", deserialize_with = "wire::now_or_yes")]
    pub charged: bool,
}

impl Fief {
    /// Reads everything. Changes nothing.
    pub fn snapshot(&self) -> Result<Snapshot> {
        self.require_installed()?;
        let table = Table::open(self.pins())?;
        self.snapshot_of(&table, &Tree::read(&table))
    }

    /// What the kernel side could not do, by kind, since the installation.
    pub fn failures(&self) -> Result<Vec<(&'static str, u64)>> {
        self.require_installed()?;
        Ok(FAILURES.into_iter().zip(Table::open(self.pins())?.failures()).collect())
    }

    pub(crate) fn snapshot_of(&self, table: &Table, tree: &Tree) -> Result<Snapshot> {
        let admin = Admin::open(self.pins())?;
        fief_bpf::ring::settle(self.pins(), table)?;
        let usage = |container| match table.usage_at_rest(container) {
            Some(usage) => Some(usage),
            None => admin.usage(container).ok(),
        };
        let around = self.around(table, tree)?;
        let containers = tree.rows().iter().filter_map(|row| view(tree, row, usage)).collect();
        Ok(Snapshot { containers, ..around })
    }

    /// All of a snapshot but the containers, which are most of it.
    pub(crate) fn around(&self, table: &Table, tree: &Tree) -> Result<Snapshot> {
        Ok(Snapshot {
            taken_ns: now_ns()?,
            cpus: online_cpus(),
            containers: Vec::new(),
            system_kinds: SYSTEM_KINDS.into_iter().zip(table.system_kinds()).collect(),
            failures: FAILURES.into_iter().zip(table.failures()).collect(),
            units: self.units(tree)?,
            class_listeners: self.class_listeners(tree)?,
            scheduler: self.scheduler(tree)?,
            charged: charging::is_on(self.pins())?,
        })
    }

    fn class_listeners(&self, tree: &Tree) -> Result<Vec<ClassListenerView>> {
        let map = |name: &str| self.map(name);
        let tables = self.steer_tables()?;
        let addresses: HashMap<u16, SocketAddr> =
            tables.indexes(tree.slot as u8)?.into_iter().map(|(address, index)| (index, address)).collect();
        let rows = tree.rows();
        let registered = steer::registered(&map("class_listeners")?)?;
        let view = |listener: steer::ClassListener| ClassListenerView {
            address: addresses.get(&listener.listener).copied(),
            container: rows
                .iter()
                .find(|row| listener.is_of(row.container))
                .map_or_else(|| format!("#{}", listener.container), |row| tree.path(row)),
            cookie: listener.cookie,
        };
        Ok(registered.into_iter().map(view).collect())
    }

    /// Addresses of the policy in force and, by number, the classes that sockets of their own listen for there.
    pub(crate) fn class_addresses(&self) -> Result<Vec<(SocketAddr, u32)>> {
        let slot = fief_bpf::table::policy_slot(self.pins())?;
        let indexes = self.steer_tables()?.indexes(slot as u8)?;
        let registered = steer::registered(&self.map("class_listeners")?)?;
        let at = |index| indexes.iter().filter(move |(_, own)| **own == index).map(|(address, _)| *address);
        Ok(registered.iter().flat_map(|class| at(class.listener).map(|address| (address, class.container))).collect())
    }

    /// The tables of the policy's listeners.
    pub(crate) fn steer_tables(&self) -> Result<steer::Tables> {
        Ok(steer::Tables { listeners: self.map("listeners")?, prefix_lengths: self.map("prefix_lengths")? })
    }
}

/// `None`: it ended while the table was read, and has no usage.
pub(crate) fn view(
    tree: &Tree,
    row: &Row,
    usage: impl Fn(abi::fief_ref) -> Option<abi::fief_usage>,
) -> Option<ContainerView> {
    let record = &row.record;
    let parent = tree.parent(row).filter(|parent| parent.record.state == abi::FIEF_ALIVE);
    let known = row.container.id < abi::FIEF_FIRST_ID;
    let attributes = row.attributes(tree.slot);
    Some(ContainerView {
        path: tree.path(row),
        id: row.container.id,
        generation: row.container.generation,
        parent: parent.map(|p| p.container.id),
        state: match record.state {
            abi::FIEF_ALIVE if parent.is_none() && !known => "orphan",
            abi::FIEF_ALIVE => "alive",
            _ => "ended",
        },
        policy: record.flags & abi::FIEF_CONTAINER_POLICY != 0 && attributes.named != 0,
        unit: record.flags & abi::FIEF_CONTAINER_UNIT != 0,
        handles: (record.refs & u64::from(abi::FIEF_HANDLES_MASK)) as u32,
        threads: (record.members % abi::FIEF_MEMBER_PROCESS) as u32,
        processes: (record.members / abi::FIEF_MEMBER_PROCESS) as u32,
        sockets: record.sockets,
        files: record.files,
        discarded: record.discarded,
        children: (record.refs >> 42) as u32,
        attributes: attributes.into(),
        usage: usage(row.container)?.into(),
    })
}

/// CLOCK_MONOTONIC, which the kernel side counts in.
pub(crate) fn now_ns() -> Result<u64> {
    let now = clock_gettime(ClockId::CLOCK_MONOTONIC).context(|| "cannot read the clock".into())?;
    Ok(now.tv_sec() as u64 * 1_000_000_000 + now.tv_nsec() as u64)
}

pub(crate) fn online_cpus() -> u32 {
    std::fs::read_to_string("/proc/stat")
        .unwrap_or_default()
        .lines()
        .filter(|line| line.starts_with("cpu") && !line.starts_with("cpu "))
        .count() as u32
}
