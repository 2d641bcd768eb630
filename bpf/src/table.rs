// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The container table and the CPUs' records as the kernel has them now, mapped read-only.

use std::ffi::CStr;

use crate::abi;
use crate::error::Result;
use crate::pin::Pins;
use crate::view::View;

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

/// The container table.
#[derive(Debug)]
pub struct Table {
    containers: View<abi::fief_container>,
    cpus: View<abi::fief_cpu>,
    controls: View<abi::fief_control>,
}

impl Table {
    /// Maps the tables of an installation.
    pub fn open(pins: &Pins) -> Result<Self> {
        Ok(Self {
            containers: View::open(pins, "containers")?,
            cpus: View::open(pins, "cpus")?,
            controls: View::open(pins, "controls")?,
        })
    }

    /// The container in a slot, unless it is free.
    pub fn row(&self, id: u32) -> Option<Row> {
        let record = self.containers.get(id)?;
        (record.state != abi::FIEF_FREE)
            .then_some(Row { container: abi::fief_ref { id, generation: record.generation }, record })
    }

    /// Every container, ended ones that still have children included.
    pub fn rows(&self) -> impl Iterator<Item = Row> {
        (0..self.containers.count()).filter_map(|id| self.row(id))
    }

    /// The policy slot in force, and how many policies have been applied.
    pub fn policy(&self) -> (u32, u32) {
        self.controls.get(0).map_or((0, 0), |control| (control.slot & 1, control.epoch))
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
        self.containers.count()
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
