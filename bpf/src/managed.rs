// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Attachments for managed units: the hooks of each unit's cgroup, and machine-wide tracepoints that only units need.
//!
//! Every packet, send and receive of the machine passes these tracepoints, so they are attached only while there is a unit.

use std::os::fd::{AsFd, BorrowedFd};
use std::path::PathBuf;

use crate::attachment::{self, Attachment, When};
use crate::error::{Context, ErrorKind, Result};
use crate::pin::{Pins, make_dir, remove_tree};
use crate::{charging, link};

/// Before a unit is managed; `follows`: its threads follow their sockets. What is attached already stays.
pub fn attach(pins: &Pins, follows: bool) -> Result<()> {
    charging::attach(pins)?;
    attach_traces(pins, When::Managed)?;
    if follows { attach_traces(pins, When::Follows) } else { Ok(()) }
}

/// Attaches the machine's tracepoints of that time and pins their links. What is attached already stays.
pub(crate) fn attach_traces(pins: &Pins, when: When) -> Result<()> {
    attachment::traces(when).try_for_each(|row| attach_trace(pins, row))
}

/// One of them.
pub(crate) fn attach_trace(pins: &Pins, row: &Attachment) -> Result<()> {
    let pin = pins.links().join(row.program);
    if pin.exists() {
        return Ok(());
    }
    let program = pins.open_program(row.program)?;
    let link = link::create_trace(program.as_fd()).context(|| format!("cannot attach {}", row.program))?;
    link::pin(link.as_fd(), &pin)
}

/// After the last unit.
pub(crate) fn detach(pins: &Pins) -> Result<()> {
    let rows = attachment::traces(When::Managed).chain(attachment::traces(When::Follows));
    rows.flat_map(|row| row.links(pins)).try_for_each(|pin| link::remove(&pin))
}

/// Attaches the programs of a managed unit to its cgroup and pins the links below `units/<id>`, at once or not at all.
pub fn attach_unit(pins: &Pins, cgroup: BorrowedFd<'_>, id: u64) -> Result<()> {
    let folder = pins.unit(id);
    if folder.exists() {
        return Ok(());
    }
    sweep_units(pins)?;
    let built = build_unit(pins, cgroup, id).and_then(|building| {
        std::fs::rename(&building, &folder).context(|| format!("cannot put the unit {id} into force"))
    });
    if built.is_err() {
        sweep_units(pins)?;
    }
    built
}

fn build_unit(pins: &Pins, cgroup: BorrowedFd<'_>, id: u64) -> Result<PathBuf> {
    let building = pins.units().join(format!("{id}~{}", std::process::id()));
    make_dir(&building)?;
    for (name, hook) in attachment::of_units() {
        let program = pins.open_program(name)?;
        let link = link::create(program.as_fd(), cgroup, hook)
            .context(|| format!("cannot attach {name} to the cgroup"))
            .map_err(|e| match e.kind() {
                ErrorKind::Permission => e.remedy(
                    "a program that bears no other beside it is attached there, or above; `bpftool cgroup show FOLDER` \
                     tells which",
                ),
                _ => e,
            })?;
        link::pin(link.as_fd(), &building.join(name))?;
    }
    Ok(building)
}

/// Removes what builders of units that failed or were killed left, which is attached.
fn sweep_units(pins: &Pins) -> Result<()> {
    for entry in std::fs::read_dir(pins.units()).into_iter().flatten().flatten() {
        if entry.file_name().to_string_lossy().contains('~') {
            link::remove_below(&entry.path())?;
            remove_tree(&entry.path())?;
        }
    }
    Ok(())
}
