// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Finds references that no hook saw end, and releases them: marks the references of sockets and threads, then compares.
//!
//! A descriptor's hook sits on its creator's cgroup; if that is removed before the last close, nothing reports the close. The
//! iterators of the core object (`bpf/core/sweep.bpf.h`) record each holder's container. A reference counts as lost if two
//! walks agree on it while the container's word did not change at all.

use std::collections::{HashMap, HashSet};
use std::fs::File;
use std::io::Read;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};

use libbpf_rs::{MapCore, MapHandle};

use crate::abi;
use crate::admin;
use crate::error::{Context, Result};
use crate::pin::{Pins, remove_tree};
use crate::record::{self, Record};
use crate::table::{Row, Table};
use crate::{link, managed};

/// The iterators, with the storage that they walk; none: all threads.
const WALKS: [(&str, Option<&str>); 3] =
    [("sweep_fds", Some("descriptors")), ("sweep_labels", Some("labels")), ("sweep_tasks", None)];

/// References of one container.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Holds {
    handles: u64,
    threads: u64,
}

/// A container with more references than anybody holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Lost {
    container: (u32, u32),
    refs: u64,
    holds: Holds,
}

/// Lets go of lost references; returns how many there were.
pub fn sweep(pins: &Pins) -> Result<usize> {
    let table = Table::open(pins)?;
    let kernel = Kernel { pins, table: &table };
    let first = lost(&kernel)?;
    if first.is_empty() {
        return Ok(0);
    }
    let second = lost(&kernel)?;
    let release = pins.open_program("admin_lost")?;
    let mut gone = 0;
    for one in first.into_iter().filter(|one| second.contains(one)) {
        let container = abi::fief_ref { id: one.container.0, generation: one.container.1 };
        let mut refs = one.refs;
        let units = [(one.holds.threads, abi::FIEF_THREAD), (one.holds.handles, abi::FIEF_HANDLE)];
        for unit in units.into_iter().flat_map(|(count, unit)| (0..count).map(move |_| u64::from(unit))) {
            let mut args = abi::fief_admin { container, value: refs, flags: unit as u32, ..Default::default() };
            // refused if somebody used the container meanwhile: the next sweep looks again
            if admin::run(&release, &mut args).is_err() {
                break;
            }
            gone += 1;
            refs -= unit;
        }
    }
    Ok(gone)
}

/// Removes labels of files that no socket stands for any more; returns how many there were.
pub fn sweep_files(pins: &Pins) -> Result<usize> {
    let first = lost_files(pins)?;
    if first.is_empty() {
        return Ok(0);
    }
    let second = lost_files(pins)?;
    let forget = pins.open_program("admin_unlabel")?;
    let mut gone = 0;
    for key in first.intersection(&second) {
        let (flags, slot) = (key.device, key.generation);
        let mut args = abi::fief_admin { value: key.inode, flags, slot, ..Default::default() };
        // refused if its socket was closed meanwhile
        gone += usize::from(admin::run(&forget, &mut args).is_ok());
    }
    Ok(gone)
}

/// Entries of the table without a socket. A socket has its record before the table has its entry, so the table is read
/// first.
fn lost_files(pins: &Pins) -> Result<HashSet<abi::fief_file_key>> {
    let table = pins.open_map("labelled_files")?;
    let mut lost: HashSet<_> = table.keys().filter_map(|key| abi::fief_file_key::from_bytes(&key)).collect();
    if lost.is_empty() {
        return Ok(lost);
    }
    for held in walk::<abi::fief_file_key>(pins, "sweep_files", Some("file_labels"))? {
        lost.remove(&held);
    }
    Ok(lost)
}

/// Whether a thread of the caller's PID namespace has a record: threads outside of it are not seen.
pub fn has_threads(pins: &Pins) -> Result<bool> {
    Ok(!walk::<abi::fief_mark>(pins, "sweep_tasks", None)?.is_empty())
}

/// A managed cgroup is gone, or could not be managed: its home is let go, and what sits on it. Errors:
/// [`ErrorKind::NotFound`](crate::ErrorKind) it had none.
pub fn forget_unit(pins: &Pins, cgroup: u64) -> Result<()> {
    let mut args = abi::fief_admin { value: cgroup, ..Default::default() };
    let forgotten = admin::run(&pins.open_program("admin_forget")?, &mut args)
        .context(|| format!("cannot forget the cgroup {cgroup}"));
    remove_tree(&pins.unit(cgroup))?;
    // a unit that is being built holds the lock, so there is none
    if pins.units().read_dir().is_ok_and(|mut units| units.next().is_none()) {
        managed::detach(pins)?;
    }
    forgotten
}

/// References of each container, by slot and generation.
type Held = HashMap<(u32, u32), Holds>;

/// What counts references, and what holds them.
trait References {
    /// The living containers that references keep.
    fn living(&self) -> Vec<Row>;
    fn row(&self, id: u32) -> Option<Row>;
    /// Waits until every program that runs now has ended.
    fn settle(&self);
    fn held(&self) -> Result<Held>;
}

struct Kernel<'a> {
    pins: &'a Pins,
    table: &'a Table,
}

impl References for Kernel<'_> {
    fn living(&self) -> Vec<Row> {
        let lives = |row: &Row| row.container.id >= abi::FIEF_FIRST_ID && row.record.state == abi::FIEF_ALIVE;
        self.table.rows().filter(lives).collect()
    }

    fn row(&self, id: u32) -> Option<Row> {
        self.table.row(id)
    }

    /// Where the kernel refuses to wait (nohz_full), two walks have to agree all the same.
    fn settle(&self) {
        // SAFETY: takes no pointers. MEMBARRIER_CMD_GLOBAL waits for a grace period of RCU (kernel/sched/membarrier.c).
        unsafe { libc::syscall(libc::SYS_membarrier, 1, 0, 0) };
    }

    fn held(&self) -> Result<Held> {
        held(self.pins)
    }
}

/// Containers whose word counts more than is held. The word is read before and after the walk. A reference that a program had counted when
/// the word was read, and not yet stored where the walks find it, is stored once that program has ended: the walk begins then.
fn lost(of: &impl References) -> Result<Vec<Lost>> {
    let before = of.living();
    of.settle();
    let held = of.held()?;
    let counted = |id: u32| of.row(id).map(|row| row.record);
    Ok(before
        .into_iter()
        .filter(|row| {
            counted(row.container.id)
                .is_some_and(|now| now.refs == row.record.refs && now.generation == row.container.generation)
        })
        .filter_map(|row| {
            let container = (row.container.id, row.container.generation);
            let mut holds = held.get(&container).copied().unwrap_or_default();
            holds.handles += own_handles(row.record.flags);
            let refs = row.record.refs;
            let handles = refs & u64::from(abi::FIEF_HANDLES_MASK);
            let threads = (refs & abi::FIEF_HOLDERS_MASK) / u64::from(abi::FIEF_THREAD);
            // While there is a handle, threads and CPUs pass references on to each other, and the word does not change
            // (`bpf/core/kept.bpf.h`); one that is lost is found once the last handle has gone.
            let threads = if handles == 0 { threads.saturating_sub(holds.threads) } else { 0 };
            let more = Holds { handles: handles.saturating_sub(holds.handles), threads };
            (more != Holds::default()).then_some(Lost { container, refs, holds: more })
        })
        .collect())
}

/// Removes the entries of users that have no containers any more; returns how many there were.
pub fn sweep_users(pins: &Pins) -> Result<usize> {
    let forget = pins.open_program("admin_userless")?;
    let mut gone = 0;
    for key in pins.open_map("users")?.keys() {
        let Ok(uid) = key.try_into().map(u32::from_ne_bytes) else { continue };
        let mut args = abi::fief_admin { value: uid.into(), ..Default::default() };
        // refused while the user has containers
        gone += usize::from(admin::run(&forget, &mut args).is_ok());
    }
    Ok(gone)
}

/// A policy, a unit made without a name of the policy, the table of users, and a user by its folder each hold what they made.
fn own_handles(flags: u32) -> u64 {
    let makers =
        [abi::FIEF_CONTAINER_POLICY, abi::FIEF_CONTAINER_UNIT, abi::FIEF_CONTAINER_USER, abi::FIEF_CONTAINER_FOLDER];
    makers.into_iter().filter(|maker| flags & maker != 0).count() as u64
}

/// What sockets, threads and managed cgroups hold.
fn held(pins: &Pins) -> Result<Held> {
    let mut held = Held::new();
    for (program, storage) in WALKS {
        for mark in walk::<abi::fief_mark>(pins, program, storage)? {
            let holds = held.entry((mark.container.id, mark.container.generation)).or_default();
            holds.handles += u64::from(mark.handles);
            holds.threads += u64::from(mark.threads);
        }
    }
    let units = pins.open_map("units")?;
    for key in units.keys() {
        if let Some(unit) = record::lookup::<abi::fief_unit>(&units, &key)? {
            held.entry((unit.home.id, unit.home.generation)).or_default().handles += 1;
        }
    }
    Ok(held)
}

/// Runs one iterator to its end.
fn walk<T: Record>(pins: &Pins, program: &str, storage: Option<&str>) -> Result<Vec<T>> {
    let map = storage.map(|name| pins.open_map(name)).transpose()?;
    walk_by(pins.open_program(program)?.as_fd(), program, map.as_ref())
}

/// What an iterator says, which is called `program`.
pub(crate) fn walk_by<T: Record>(fd: BorrowedFd<'_>, program: &str, map: Option<&MapHandle>) -> Result<Vec<T>> {
    let failed = || format!("cannot walk with {program}");
    let mut about = libbpf_sys::bpf_iter_link_info::default();
    if let Some(map) = map {
        about.map.map_fd = map.as_fd().as_raw_fd() as u32;
    }
    let opts = libbpf_sys::bpf_link_create_opts {
        sz: size_of::<libbpf_sys::bpf_link_create_opts>() as _,
        iter_info: if map.is_some() { &raw mut about } else { std::ptr::null_mut() },
        iter_info_len: if map.is_some() { size_of_val(&about) as u32 } else { 0 },
        ..Default::default()
    };
    // SAFETY: the program's descriptor is open; opts and what it points to outlive the call.
    let link = unsafe { libbpf_sys::bpf_link_create(fd.as_raw_fd(), 0, libbpf_sys::BPF_TRACE_ITER, &raw const opts) };
    let link = link::owned(link).context(failed)?;
    // SAFETY: the link's descriptor is open.
    let walk = link::owned(unsafe { libbpf_sys::bpf_iter_create(link.as_raw_fd()) }).context(failed)?;
    let mut bytes = Vec::new();
    File::from(walk).read_to_end(&mut bytes).context(failed)?;
    Ok(bytes.chunks_exact(size_of::<T>()).filter_map(T::from_bytes).collect())
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    const CONTAINER: abi::fief_ref = abi::fief_ref { id: abi::FIEF_FIRST_ID, generation: 1 };

    /// A container with one reference, which its maker's program had counted when the words were read.
    #[derive(Default)]
    struct Made {
        /// The program stores it before it ends; else nobody ever does.
        is_stored: bool,
        was_read: Cell<bool>,
        has_ended: Cell<bool>,
    }

    impl References for Made {
        fn living(&self) -> Vec<Row> {
            self.was_read.set(true);
            self.row(CONTAINER.id).into_iter().collect()
        }

        fn row(&self, _: u32) -> Option<Row> {
            let refs = abi::FIEF_HANDLE.into();
            let record = abi::fief_container { generation: CONTAINER.generation, refs, ..Default::default() };
            Some(Row { container: CONTAINER, record })
        }

        /// Programs that begin later are not waited for.
        fn settle(&self) {
            self.has_ended.set(self.was_read.get());
        }

        fn held(&self) -> Result<Held> {
            let is_found = self.is_stored && self.has_ended.get();
            let holds = Holds { handles: 1, threads: 0 };
            Ok(is_found.then_some(((CONTAINER.id, CONTAINER.generation), holds)).into_iter().collect())
        }
    }

    #[test]
    fn a_reference_that_a_running_program_has_counted_and_not_stored_is_not_lost() {
        let made = Made { is_stored: true, ..Made::default() };
        assert!(lost(&made).expect("compared").is_empty());
    }

    #[test]
    fn a_reference_that_nobody_stores_is_lost() {
        let lost = lost(&Made::default()).expect("compared");
        assert_eq!(lost.iter().map(|lost| lost.holds).collect::<Vec<_>>(), [Holds { handles: 1, threads: 0 }]);
    }
}
