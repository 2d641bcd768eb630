// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What an operator does with single containers by hand, beside a policy: makes and ends them, sets an attribute, binds a process.
//!
//! A container made so is held as a unit's is, so it stays until it is ended or everything is taken down. The kernel side checks what
//! it checks of an application's calls: a policy's containers have the attributes that the policy gives them.

use std::io;
use std::os::fd::AsFd;

use fief_bpf::admin::Admin;
use fief_bpf::table::{Row, Table};
use fief_bpf::{Context, Error, ErrorKind, Result, abi, charging, process};
use nix::errno::Errno;

use crate::schedule::policy_number;
use crate::tree::Tree;
use crate::{Bound, ContainerView, Fief, cgroup, charge};

const KERNEL_THREAD: &str =
    "a kernel thread works for many; what it does is charged to them, or shown by name under system";

/// A container for good: a slot, and its generation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Reference {
    pub id: u32,
    pub generation: u32,
}

/// Where a container stands, without what it has used.
#[derive(Debug, Clone)]
pub struct Node {
    pub container: Reference,
    /// Slot of the parent, dead or alive; `None`: it stands at the top.
    pub parent: Option<u32>,
    /// Last component of its path; empty if it was never named.
    pub name: String,
    /// Named by a policy.
    pub policy: bool,
    pub holder: Holder,
}

/// Who made a container, and can change it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Holder {
    /// Fief itself, which keeps accounts there.
    Fief,
    /// The root, the home of threads outside of every unit.
    Root,
    /// `user`, where each user can have a place.
    Users,
    /// An operator, by a policy, a unit or by hand; threads can have it for their home.
    Operator,
    /// The place of this user, `user/<uid>`.
    Place(u32),
    /// This user, by a folder.
    Folder(u32),
    /// An application of this user; `None`: of an operator.
    Application(Option<u32>),
}

impl Holder {
    fn of(row: &Row) -> Self {
        let (record, owner) = (&row.record, row.record.owner_uid);
        match row.container.id {
            abi::FIEF_ROOT => Self::Root,
            abi::FIEF_USERS => Self::Users,
            id if id < abi::FIEF_FIRST_ID => Self::Fief,
            _ if record.flags & (abi::FIEF_CONTAINER_POLICY | abi::FIEF_CONTAINER_UNIT) != 0 => Self::Operator,
            _ if record.flags & abi::FIEF_CONTAINER_FOLDER != 0 => Self::Folder(owner),
            // the kernel side gives it its user's number for a name
            _ if record.flags & abi::FIEF_CONTAINER_USER != 0 => row.name().parse().map_or(Self::Fief, Self::Place),
            _ if owner == abi::FIEF_OWNER_OPERATOR => Self::Application(None),
            // of a program that was started for a client, whose home it is
            _ if record.flags & abi::FIEF_CONTAINER_PROGRAM != 0 => Self::Operator,
            _ if owner == abi::FIEF_OWNER_USER_PARENT => Self::Operator, // the same, made by an older version
            _ => Self::Application(Some(owner)),
        }
    }
}

/// An attribute, in the units of [`fief::Attributes`]; 0 is no limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Attribute {
    CpuShare(u32),
    CpuLimit(u32),
    CpuWeight(u32),
    CpuPriority(u32),
    MemoryMax(u64),
    NetworkMax(u64),
    NetworkWeight(u32),
    DescendantsMax(u32),
    CpuPolicy(fief_policy::CpuPolicy),
    /// Nanoseconds, of `edf`.
    CpuPeriod(u64),
    CpuBudget(u64),
}

impl Attribute {
    pub(crate) fn number_and_value(self) -> (u32, u64) {
        match self {
            Self::CpuShare(ppm) => (abi::FIEF_ATTR_SHARE, ppm.into()),
            Self::CpuLimit(ppm) => (abi::FIEF_ATTR_LIMIT, ppm.into()),
            Self::CpuWeight(weight) => (abi::FIEF_ATTR_WEIGHT, weight.into()),
            Self::CpuPriority(priority) => (abi::FIEF_ATTR_PRIORITY, priority.into()),
            Self::MemoryMax(bytes) => (abi::FIEF_ATTR_MEMORY_MAX, bytes),
            Self::NetworkMax(bits) => (abi::FIEF_ATTR_NET_MAX, bits),
            Self::NetworkWeight(weight) => (abi::FIEF_ATTR_NET_WEIGHT, weight.into()),
            Self::DescendantsMax(count) => (abi::FIEF_ATTR_DESCENDANTS_MAX, count.into()),
            Self::CpuPolicy(policy) => (abi::FIEF_ATTR_POLICY, policy_number(policy, 0).into()),
            Self::CpuPeriod(ns) => (abi::FIEF_ATTR_PERIOD, ns / 1000),
            Self::CpuBudget(ns) => (abi::FIEF_ATTR_BUDGET, ns / 1000),
        }
    }
}

impl From<Reference> for abi::fief_ref {
    fn from(reference: Reference) -> Self {
        Self { id: reference.id, generation: reference.generation }
    }
}

impl From<abi::fief_ref> for Reference {
    fn from(reference: abi::fief_ref) -> Self {
        Self { id: reference.id, generation: reference.generation }
    }
}

impl Fief {
    /// Every container's place, ended ones included that still have children.
    pub fn nodes(&self) -> Result<Vec<Node>> {
        self.require_installed()?;
        let tree = Tree::read(&Table::open(self.pins())?);
        let node = |row: &Row| Node {
            container: row.container.into(),
            parent: tree.parent(row).map(|parent| parent.container.id).filter(|&id| id != abi::FIEF_ROOT),
            name: row.name().to_owned(),
            policy: row.record.flags & abi::FIEF_CONTAINER_POLICY != 0,
            holder: Holder::of(row),
        };
        Ok(tree.rows().iter().map(node).collect())
    }

    /// All about one container, and the path of its parent; the others are read only as far as both paths need it. `None`: it has ended.
    pub fn container(&self, container: Reference) -> Result<Option<(ContainerView, Option<String>)>> {
        self.require_installed()?;
        let table = Table::open(self.pins())?;
        let Some(row) = table.row(container.id).filter(|row| row.container == container.into()) else {
            return Ok(None);
        };
        let tree = Tree::above(&table, row);
        fief_bpf::ring::settle(self.pins(), &table)?;
        let admin = Admin::open(self.pins())?;
        let view = charge::view(&tree, &row, |container| admin.usage(container).ok());
        let parent = tree.parent(&row).filter(|parent| parent.record.state == abi::FIEF_ALIVE);
        Ok(view.map(|view| (view, parent.map(|parent| tree.path(parent)))))
    }

    /// Makes a container below another one. Errors: [`ErrorKind::Exists`], [`ErrorKind::Full`], too deep.
    pub fn make(&self, parent: Reference, name: &str) -> Result<Reference> {
        let _lock = self.lock()?;
        self.require_installed()?;
        let tree = Tree::read(&Table::open(self.pins())?);
        let above = can_hold(&tree, parent)?;
        let is_named_so = |row: &&Row| {
            row.name() == name && tree.parent(row).is_some_and(|parent| parent.container == above.container)
        };
        if tree.rows().iter().any(|row| is_named_so(&row) && row.record.state == abi::FIEF_ALIVE) {
            return Err(Error::new(ErrorKind::Exists, format!("there is a container {name} there")));
        }
        let made = Admin::open(self.pins())?.create(parent.into(), name, abi::FIEF_CONTAINER_UNIT)?;
        Ok(made.into())
    }

    /// Ends a container that [`make`](Self::make), or a user by a folder, made and that nobody uses.
    pub fn end(&self, container: Reference) -> Result<()> {
        let _lock = self.lock()?;
        self.require_installed()?;
        let tree = Tree::read(&Table::open(self.pins())?);
        let row = tree.row(container.into()).ok_or_else(|| ended(container))?;
        let path = tree.path(row);
        if row.container.id < abi::FIEF_FIRST_ID || row.record.flags & abi::FIEF_CONTAINER_POLICY != 0 {
            let what = format!("{path} is not to be ended by hand");
            return Err(Error::new(ErrorKind::Permission, what).remedy("a policy's containers end with the policy"));
        }
        if row.record.refs >> 42 > 0 {
            return Err(Errno::ENOTEMPTY).context(|| format!("there are containers below {path}"));
        }
        let handles = row.record.refs & u64::from(abi::FIEF_HANDLES_MASK);
        let maker = row.record.flags & (abi::FIEF_CONTAINER_UNIT | abi::FIEF_CONTAINER_FOLDER);
        if maker == 0 || handles > 1 || row.record.members > 0 {
            return Err(Errno::EBUSY).context(|| format!("{path} is held by applications, units or threads"));
        }
        Admin::open(self.pins())?.release(container.into(), maker, None)
    }

    /// Sets an attribute of a container that no policy names.
    pub fn set(&self, container: Reference, attribute: Attribute) -> Result<()> {
        let _lock = self.lock()?;
        self.require_installed()?;
        let (number, value) = attribute.number_and_value();
        let set = Admin::open(self.pins())?.set_attribute(container.into(), number, value);
        set.map_err(|error| match error.kind() {
            ErrorKind::Permission => {
                error.remedy("a policy's containers have what the policy gives them: change it there, and `fief apply`")
            }
            _ => error,
        })?;
        self.refresh_groups(&mut Vec::new());
        Ok(())
    }

    /// Binds every thread of a running process to this container, as [`bind`](Self::bind) to one by its path.
    pub fn bind_to(&self, pid: i32, container: Reference) -> Result<Bound> {
        let _lock = self.lock()?;
        self.require_installed()?;
        let tree = Tree::read(&Table::open(self.pins())?);
        let row = can_hold(&tree, container)?;
        self.bind_threads(pid, row.container)
    }

    /// The state is locked.
    pub(crate) fn bind_threads(&self, pid: i32, to: abi::fief_ref) -> Result<Bound> {
        charging::attach(self.pins())?;
        let bound = self.place_threads(pid, to);
        if !matches!(bound, Ok(Bound { threads: 1.. })) {
            // what is wrong with the process is the error to tell
            let _ = self.settle_charging(None);
        }
        bound
    }

    fn place_threads(&self, pid: i32, to: abi::fief_ref) -> Result<Bound> {
        let admin = Admin::open(self.pins())?;
        let threads = cgroup::threads(pid);
        let known = process::open(pid).and_then(|process| process::identity(process.as_fd()));
        let known = known.context(|| format!("there is no process {pid}"))?;
        let mut bound = 0;
        for tid in threads {
            match admin.bind_task(tid, known, to) {
                Ok(()) => bound += 1,
                Err(e) if e.kind() == ErrorKind::NotFound => {} // the thread has ended
                Err(e) if e.kind() == ErrorKind::Permission => return Err(e.remedy(KERNEL_THREAD)),
                Err(e) => return Err(e),
            }
        }
        Ok(Bound { threads: bound })
    }
}

/// A living container that threads and other containers can be in.
fn can_hold(tree: &Tree, container: Reference) -> Result<&Row> {
    let row = tree.row(container.into()).filter(|row| row.record.state == abi::FIEF_ALIVE);
    let row = row.ok_or_else(|| ended(container))?;
    match row.container.id {
        id if id != abi::FIEF_ROOT && id < abi::FIEF_FIRST_ID => {
            Err(Error::new(ErrorKind::Permission, format!("nothing can be put in the container {}", tree.path(row)))
                .remedy("Fief itself keeps it"))
        }
        _ => Ok(row),
    }
}

fn ended(container: Reference) -> Error {
    let stale = Err::<(), _>(io::Error::from(Errno::ESTALE));
    stale.context(|| format!("the container {} has ended", container.id)).expect_err("an error")
}
