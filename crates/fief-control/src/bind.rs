// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Gives running units or single processes their container.

mod keep;
mod listeners;
mod target;
mod unit;

use std::collections::{BTreeSet, HashSet};
use std::net::{Ipv6Addr, SocketAddr};
use std::os::fd::{AsFd, AsRawFd};
use std::path::{Path, PathBuf};

use fief_bpf::abi;
use fief_bpf::admin::Admin;
use fief_bpf::map::{MapCore, MapFlags};
use fief_bpf::record::{self, Record};
use fief_bpf::table::{self, Row, Table};
use fief_bpf::{Context, Error, ErrorKind, Result};
use fief_bpf::{managed, sweep};

use listeners::Found;
pub use target::Target;

use crate::charge::UnitView;
use crate::tree::Tree;
use crate::{Fief, cgroup, sockets};

/// How to manage it.
#[derive(Debug, Clone, Default)]
pub struct ManageOptions {
    /// Home of its threads; `None`: a container of its own, named after the target.
    pub container: Option<String>,
    /// Its threads take the container of the socket they work on.
    pub follow: bool,
}

/// What is managed now.
#[derive(Debug, Clone)]
pub struct Managed {
    /// Path of the home.
    pub container: String,
    /// The cgroup that the hooks sit on.
    pub cgroup: PathBuf,
    /// Threads that were given their home.
    pub threads: usize,
    /// Listening sockets that were found and labelled.
    pub listeners: usize,
    /// What whoever asked for it should know.
    pub notes: Vec<String>,
}

/// What was bound.
#[derive(Debug, Clone, Copy)]
pub struct Bound {
    /// Threads of the process.
    pub threads: usize,
}

/// What a label says that the policy alone gave a listening socket.
const LISTENERS_OWN: u32 = abi::FIEF_LABEL_LISTENER | abi::FIEF_LABEL_IPV4;

/// A cgroup of ours for a process that had none, and its number.
const MANAGED: &str = "managed-";

const NOT_ALL: &str = "its processes have more descriptors open than are looked at, or hold up who copies their sockets: where they \
                       listen, connections may have no classes; start the server by `fief exec`";

/// As [`home_of`], of a table that is read only as far as the policy's container of this path, which is before those of others.
pub(crate) fn home_in(table: &Table, path: &str) -> Result<abi::fief_ref> {
    let name = path.rsplit('/').next().unwrap_or(path);
    let is_it = |row: &Row| {
        let is_policys = row.record.flags & abi::FIEF_CONTAINER_POLICY != 0 && row.record.state == abi::FIEF_ALIVE;
        is_policys && row.name() == name && Tree::above(table, *row).path(row) == path
    };
    match table.rows().find(is_it) {
        Some(row) => Ok(row.container),
        None => home_of(&Tree::read(table), path),
    }
}

/// A container that threads can be in: one of a policy, of a unit or of an application, or the root.
pub(crate) fn home_of(tree: &Tree, path: &str) -> Result<abi::fief_ref> {
    let home = tree.require(path)?.container;
    if home.id != abi::FIEF_ROOT && home.id < abi::FIEF_FIRST_ID {
        return Err(Error::new(ErrorKind::Permission, format!("no thread can be in the container {path}"))
            .remedy("Fief itself keeps it; name one of the policy, or root"));
    }
    Ok(home)
}

/// The container that is called so already, if there is one. Errors: a cgroup's own cannot be called so.
fn namesake(tree: &Tree, name: &str, cgroup: &Path) -> Result<Option<abi::fief_ref>> {
    let refused = |kind, why: String| {
        let what = format!("cannot name a container after {}: {why}", cgroup.display());
        Err(Error::new(kind, what).remedy("name one by --container"))
    };
    if name.is_empty() {
        // in the table it would be one that was never named, and one more each time
        return refused(ErrorKind::Other, "nothing of its name can be in a container's".to_owned());
    }
    match tree.find(name).map(|row| row.container) {
        Some(own) if own.id < abi::FIEF_FIRST_ID => {
            refused(ErrorKind::Permission, format!("{name} is one that Fief itself keeps"))
        }
        found => Ok(found),
    }
}

/// Whether this is the cgroup of the systemd unit.
pub(crate) fn is_cgroup_of(unit: &str, folder: &Path) -> bool {
    cgroup::mount_point().and_then(|top| unit::cgroup(&top, unit)).is_ok_and(|own| own == folder)
}

impl Fief {
    /// Manages what already runs: its cgroup gets the hooks, its threads their home.
    pub fn manage(&self, target: &Target, options: &ManageOptions) -> Result<Managed> {
        let _lock = self.lock()?;
        self.require_installed()?;
        let (cgroup, name) = self.cgroup_of(target)?;
        self.manage_as(cgroup, &name, options)
    }

    /// `name`: of the container that is made for it, if it has none. The state is locked.
    pub(crate) fn manage_as(&self, mut cgroup: PathBuf, name: &str, options: &ManageOptions) -> Result<Managed> {
        let admin = Admin::open(self.pins())?;
        let table = Table::open(self.pins())?;
        let (home, path, is_new) = match &options.container {
            Some(path) => (home_in(&table, path)?, path.clone(), false),
            None => match namesake(&Tree::read(&table), name, &cgroup)? {
                Some(home) => (home, name.to_owned(), false),
                None => {
                    let root = abi::fief_ref { id: abi::FIEF_ROOT, generation: 0 };
                    (admin.create(root, name, abi::FIEF_CONTAINER_UNIT)?, name.to_owned(), true)
                }
            },
        };
        let flags = if options.follow { abi::FIEF_TASK_FOLLOW } else { 0 };
        cgroup = self.settle(cgroup, (home.id != abi::FIEF_ROOT).then_some(path.as_str()))?;
        let managed = self.manage_cgroup(&cgroup, home, flags);
        if managed.is_err() && is_new {
            // the first error is the one to tell
            let _ = admin.release(home, abi::FIEF_CONTAINER_UNIT, None);
        }
        managed?;
        let mut notes = Vec::new();
        // A service's cgroup goes with each of its ends, and nobody else hears of that. After this one is managed, so that a container
        // of the unit's own has a holder all the time, and the machine's tracepoints a unit: to attach them again takes as long as
        // the kernel waits for those that may still run.
        if let Err(error) = self.forget_removed() {
            notes.push(format!("removed cgroups are not forgotten yet: {error}"));
        }
        let processes = cgroup::processes(&cgroup);
        // a thread that ended meanwhile needs no home
        let is_placed = |tid: &i32| admin.place_task(*tid, home, flags | abi::FIEF_TASK_MANAGED).is_ok();
        let threads = processes.iter().flat_map(|pid| cgroup::threads(*pid)).filter(is_placed).count();
        let found = listeners::find(&processes, &cgroup, sockets::MOST);
        let labelled = self.label_listeners(&found)?;
        notes.extend(unseen_note(&found.unseen));
        notes.extend(found.is_cut.then(|| NOT_ALL.to_owned()));
        self.refresh_groups(&mut notes);
        Ok(Managed { container: path, cgroup, threads, listeners: labelled, notes })
    }

    /// Where cgroups of version 2 divide the CPU, one of ours has to be in the group of its home.
    fn settle(&self, cgroup: PathBuf, home: Option<&str>) -> Result<PathBuf> {
        let (own, folder) = (cgroup::own(self.pins().scope())?, self.unit_folder(home)?);
        let name = cgroup.file_name().filter(|name| name.to_string_lossy().starts_with(MANAGED));
        let Some(name) = name.filter(|_| cgroup.starts_with(&own) && !cgroup.starts_with(&folder)) else {
            return Ok(cgroup);
        };
        let there = folder.join(name);
        cgroup::create(&there)?;
        cgroup::join_all(&there, || cgroup::processes(&cgroup))?;
        // cgroups within it keep it
        let _ = std::fs::remove_dir(&cgroup);
        Ok(there)
    }

    /// Attaches the hooks to a cgroup and tells the kernel side the home of its threads. What fails leaves nothing of it.
    pub(crate) fn manage_cgroup(&self, path: &Path, home: abi::fief_ref, flags: u32) -> Result<()> {
        let id = cgroup::id(path)?;
        self.refuse_nesting(path, id)?;
        let is_new = !self.pins().unit(id).exists();
        let managed = self.place_cgroup(path, id, home, flags);
        if managed.is_err() && is_new {
            // that it had no home yet is no news
            let _ = sweep::forget_unit(self.pins(), id);
            let _ = self.settle_charging(None);
        }
        managed
    }

    /// The hooks of a cgroup run for all that is below it: a managed cgroup within another one would run each hook twice,
    /// and every descriptor, packet and accept would count double.
    fn refuse_nesting(&self, path: &Path, id: u64) -> Result<()> {
        let units = self.map("units")?;
        let managed: HashSet<u64> =
            units.keys().filter_map(|key| Some(u64::from_ne_bytes(key.try_into().ok()?))).collect();
        if managed.contains(&id) || managed.is_empty() {
            return Ok(());
        }
        let top = cgroup::mount_point()?;
        let mut above = path.ancestors().skip(1).take_while(|above| above.starts_with(&top));
        if let Some(above) = above.find(|above| cgroup::id(above).is_ok_and(|id| managed.contains(&id))) {
            return Err(Error::new(
                ErrorKind::Exists,
                format!("{} is below {}, which is managed with all that is in it", path.display(), above.display()),
            )
            .remedy("manage either of them; a process within can be bound: fief bind PID CONTAINER"));
        }
        match find_cgroup(path, &|below| cgroup::id(below).is_ok_and(|id| managed.contains(&id))) {
            Some(below) => Err(Error::new(
                ErrorKind::Exists,
                format!("{} is managed already, and it is below {}", below.display(), path.display()),
            )
            .remedy("end what runs there or take its management back by `fief down`, then manage the whole")),
            None => Ok(()),
        }
    }

    fn place_cgroup(&self, path: &Path, id: u64, home: abi::fief_ref, flags: u32) -> Result<()> {
        self.steer_for_units()?;
        managed::attach(self.pins(), flags & abi::FIEF_TASK_FOLLOW != 0)?;
        Admin::open(self.pins())?.place_unit(id, home, flags)?;
        managed::attach_unit(self.pins(), cgroup::open(path)?.as_fd(), id)
    }

    /// Binds every thread of a running process to a container.
    pub fn bind(&self, pid: i32, path: &str) -> Result<Bound> {
        let _lock = self.lock()?;
        self.require_installed()?;
        let to = home_in(&Table::open(self.pins())?, path)?;
        self.bind_threads(pid, to)
    }

    /// Labels the listening sockets that processes had before they were managed, but those that no hook sees; returns how many.
    fn label_listeners(&self, found: &Found) -> Result<usize> {
        let Found { own, unseen, .. } = found;
        if own.is_empty() {
            return Ok(0);
        }
        let labels = self.map("labels")?;
        let slot = table::policy_slot(self.pins())?;
        let indexes = self.steer_tables()?.indexes(slot as u8)?;
        let mut labelled = 0;
        for (socket, address) in own.iter().filter(|(_, address)| !unseen.contains(address)) {
            let Some(listener) = indexes
                .get(address)
                .or_else(|| indexes.get(&listeners::any_of(*address)))
                .or_else(|| indexes.get(&SocketAddr::from((Ipv6Addr::UNSPECIFIED, address.port()))))
            else {
                continue;
            };
            let key = socket.as_raw_fd().to_ne_bytes();
            let was: Option<abi::fief_label> = record::lookup(&labels, &key)?;
            if was.is_some_and(|label| label.flags & !LISTENERS_OWN != 0) {
                continue; // an application assigned it, or it is a class's: what it holds would be lost
            }
            let label = abi::fief_label { listener: *listener, flags: abi::FIEF_LABEL_LISTENER, ..Default::default() };
            labels
                .update(&key, label.bytes(), MapFlags::ANY)
                .context(|| format!("cannot label the listener on {address}"))?;
            labelled += 1;
        }
        Ok(labelled)
    }

    /// The managed cgroups, with what the kernel side knows of them; one that is gone has no folder.
    fn managed_cgroups(&self) -> Result<Vec<(Option<PathBuf>, abi::fief_unit)>> {
        let map = self.map("units")?;
        let mut units = Vec::new();
        for key in map.keys() {
            let Some(unit) = record::lookup::<abi::fief_unit>(&map, &key)? else { continue };
            units.push((u64::from_ne_bytes(key.try_into().unwrap_or_default()), unit));
        }
        let mut folders = cgroup::folders(&units.iter().map(|(id, _)| *id).collect())?;
        Ok(units.into_iter().map(|(id, unit)| (folders.remove(&id), unit)).collect())
    }

    /// Those that are there.
    pub(crate) fn living_units(&self) -> Result<Vec<(PathBuf, abi::fief_unit)>> {
        Ok(self.managed_cgroups()?.into_iter().filter_map(|(folder, unit)| Some((folder?, unit))).collect())
    }

    /// The homes of those that are there.
    pub(crate) fn unit_homes(&self) -> Result<Vec<(PathBuf, abi::fief_ref)>> {
        Ok(self.living_units()?.into_iter().map(|(folder, unit)| (folder, unit.home)).collect())
    }

    /// The managed cgroups.
    pub(crate) fn units(&self, tree: &Tree) -> Result<Vec<UnitView>> {
        let view = |(cgroup, unit): (Option<PathBuf>, abi::fief_unit)| {
            let home = tree.rows().iter().find(|row| row.container == unit.home);
            UnitView { cgroup, container: home.map_or_else(|| "(ended)".to_owned(), |row| tree.path(row)) }
        };
        Ok(self.managed_cgroups()?.into_iter().map(view).collect())
    }
}

fn unseen_note(unseen: &BTreeSet<SocketAddr>) -> Option<String> {
    let addresses: Vec<String> = unseen.iter().map(SocketAddr::to_string).collect();
    (!addresses.is_empty()).then(|| {
        format!(
            "it listens at {} by sockets that were made in another cgroup, whose hooks see them: their connections have \
             no classes, and their packets are not charged; restart the server by `fief exec`, or in the cgroup that is \
             managed, and without a socket unit",
            addresses.join(", ")
        )
    })
}

fn find_cgroup(below: &Path, wanted: &dyn Fn(&Path) -> bool) -> Option<PathBuf> {
    for child in cgroup::children(below) {
        if wanted(&child) {
            return Some(child);
        }
        if let Some(found) = find_cgroup(&child, wanted) {
            return Some(found);
        }
    }
    None
}
