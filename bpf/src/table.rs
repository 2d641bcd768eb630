// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The container table and the CPUs' records as the kernel has them now, mapped read-only; the container table, which may have some
//! hundred megabytes, part by part.

use std::cell::RefCell;
use std::ffi::CStr;
use std::os::fd::{AsFd, AsRawFd};

use libbpf_rs::{MapCore, MapHandle};

use crate::abi;
use crate::error::{Context, Result};
use crate::pin::Pins;
use crate::record::Record;
use crate::view::View;

/// Records of a part: as many fill whole pages, whatever their size is.
const PART: u32 = 4096;

/// The same of a large map, of which one part is mapped at a time: all of it would count as memory of each reader.
#[derive(Debug)]
struct Parts<T> {
    map: MapHandle,
    count: u32,
    /// Which, and itself.
    mapped: RefCell<(u32, View<T>)>,
}

impl<T> Parts<T> {
    fn open(pins: &Pins, name: &str) -> Result<Self> {
        let map = pins.open_map(name)?;
        let count = map.max_entries();
        let first = View::of(&map, 0, count.min(PART))
            .context(|| format!("cannot map {name} (descriptor {})", map.as_fd().as_raw_fd()))?;
        Ok(Self { map, count, mapped: RefCell::new((0, first)) })
    }

    /// The result of `look` at the record of an index; `None`: there is no such record.
    fn look<R>(&self, index: u32, look: impl FnOnce(&View<T>, u32) -> Option<R>) -> Option<R> {
        if index >= self.count {
            return None;
        }
        let (part, at) = (index / PART, index % PART);
        let mut mapped = self.mapped.borrow_mut();
        if mapped.0 != part {
            let begin = part * PART;
            // as with memory of its own, a process cannot go on where the machine has none left
            let view = View::of(&self.map, begin, (self.count - begin).min(PART));
            *mapped = (part, view.expect("a map of which one part was mapped has others"));
        }
        look(&mapped.1, at)
    }
}

/// The records of a large array map for which this holds, with their index: looked at in place. The map's programs keep writing them.
///
/// To have the kernel copy all of them first took two fifths of a scrape, of which nearly all records were none.
pub fn entries_in_place<T: Record>(pins: &Pins, name: &str, keep: impl Fn(&T) -> bool) -> Result<Vec<(u32, T)>> {
    let parts = Parts::open(pins, name)?;
    let kept = |index| Some((index, parts.look(index, |view, at| view.get(at)).filter(&keep)?));
    Ok((0..parts.count).filter_map(kept).collect())
}

/// One container as the table has it.
#[derive(Debug, Clone, Copy)]
pub struct Row {
    /// Slot and generation.
    pub container: abi::fief_ref,
    /// The record, whose usage lacks what CPUs still cache; [`crate::admin::Admin::usage`] has it all.
    pub record: abi::fief_container,
}

impl Row {
    /// The attributes in force while policy slot `slot` is.
    pub fn attributes(&self, slot: u32) -> abi::fief_attributes {
        let by_policy = self.record.flags & abi::FIEF_CONTAINER_SLOTS != 0;
        let mut attributes = self.record.attributes[if by_policy { slot as usize & 1 } else { 0 }];
        attributes.reserved_ppm += self.record.reserved_ppm;
        attributes
    }

    /// The last component of its path; empty if it was never named.
    pub fn name(&self) -> &str {
        component(&self.record.name)
    }
}

/// A name field up to its NUL.
pub fn component(name: &[std::ffi::c_char; abi::FIEF_NAME_LEN as usize]) -> &str {
    // SAFETY: c_char and u8 have the same layout.
    let bytes = unsafe { &*std::ptr::from_ref(name).cast::<[u8; abi::FIEF_NAME_LEN as usize]>() };
    CStr::from_bytes_until_nul(bytes).ok().and_then(|name| name.to_str().ok()).unwrap_or("")
}

/// What an installation is told, for who needs nothing else: to map the tables takes as long as to read a hundred containers.
pub fn control(pins: &Pins) -> Result<abi::fief_control> {
    let controls = pins.open_map("controls")?;
    Ok(crate::record::lookup(&controls, &0u32.to_ne_bytes())?.unwrap_or_default())
}

/// The slot of the policy in force, for who needs nothing else.
pub fn policy_slot(pins: &Pins) -> Result<u32> {
    control(pins).map(|control| slot_of(&control))
}

fn slot_of(control: &abi::fief_control) -> u32 {
    control.slot & 1
}

/// The container table.
#[derive(Debug)]
pub struct Table {
    containers: Parts<abi::fief_container>,
    cpus: View<abi::fief_cpu>,
    controls: View<abi::fief_control>,
}

impl Table {
    /// Maps the tables of an installation. Errors: [`ErrorKind::Drift`] their records are another version's.
    pub fn open(pins: &Pins) -> Result<Self> {
        crate::upgrade::require_own_records(pins)?;
        Ok(Self {
            containers: Parts::open(pins, "containers")?,
            cpus: View::open(pins, "cpus")?,
            controls: View::open(pins, "controls")?,
        })
    }

    /// The container in a slot, unless it is free.
    pub fn row(&self, id: u32) -> Option<Row> {
        let used = |view: &View<abi::fief_container>, at| if view.is_free(at) { None } else { view.get(at) };
        let record = self.containers.look(id, used)?;
        (record.state != abi::FIEF_FREE)
            .then_some(Row { container: abi::fief_ref { id, generation: record.generation }, record })
    }

    /// The usage of a container that neither a thread nor a CPU has anything of, up to now; `None`: [`crate::admin::Admin::usage`]
    /// tells it.
    ///
    /// Of many containers few have work at a time, and a call for each of them was a third of a scrape. A CPU's cache is written back
    /// between two counts (`flushes_begun`, `flushes_done`): while they stay, nothing of it has moved into what was read before.
    pub fn usage_at_rest(&self, container: abi::fief_ref) -> Option<abi::fief_usage> {
        let is_moving = container.id < abi::FIEF_FIRST_ID;
        let record = self.row(container.id).filter(|row| !is_moving && row.container == container)?.record;
        let has_threads = record.members != 0 || record.flushes_begun != record.flushes_done;
        let is_at_rest = !has_threads && (0..self.cpus.count()).all(|cpu| self.cpus.has_nothing_of(cpu, container.id));
        let now = self.row(container.id).filter(|_| is_at_rest)?;
        let is_same = now.container == container && now.record.flushes_begun == record.flushes_begun;
        is_same.then_some(record.usage)
    }

    /// Every container, ended ones that still have children included.
    pub fn rows(&self) -> impl Iterator<Item = Row> {
        (0..self.containers.count).filter_map(|id| self.row(id))
    }

    /// The policy slot in force, and how many policies have been applied.
    pub fn policy(&self) -> (u32, u32) {
        self.controls.get(0).map_or((0, 0), |control| (slot_of(&control), control.epoch))
    }

    /// Whose programs are in force.
    pub fn build(&self) -> u32 {
        self.controls.get(0).map_or(0, |control| control.build)
    }

    /// Which programs charge labelled files under the policy of a slot; 0: none, files have no labels.
    pub fn file_instance(&self, slot: u32) -> u32 {
        self.controls.get(0).map_or(0, |control| control.file_instance[slot as usize & 1])
    }

    /// What the kernel side could not do, by `fief_error`.
    pub fn failures(&self) -> [u64; abi::FIEF_ERRORS as usize] {
        let errors = self.controls.get(0).map_or([0; 8], |control| control.errors);
        std::array::from_fn(|which| errors[which])
    }

    /// Size of the table.
    pub fn size(&self) -> u32 {
        self.containers.count
    }

    /// CPUs whose running thread has a ring.
    pub(crate) fn ringed_cpus(&self) -> impl Iterator<Item = u32> {
        let has_ring = |cpu: &abi::fief_cpu| cpu.has_task != 0 && cpu.task.ring != 0;
        (0..self.cpus.count()).filter(move |&cpu| self.cpus.get(cpu).as_ref().is_some_and(has_ring))
    }

    /// Time of the system container by kind, over all CPUs, in nanoseconds.
    pub fn system_kinds(&self) -> [u64; abi::FIEF_SYSTEM_KINDS as usize] {
        let mut sum = [0; abi::FIEF_SYSTEM_KINDS as usize];
        for cpu in (0..self.cpus.count()).filter_map(|cpu| self.cpus.get(cpu)) {
            for (to, from) in sum.iter_mut().zip(cpu.system_kind_ns) {
                *to += from;
            }
        }
        sum
    }
}
