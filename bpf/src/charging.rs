// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The programs that charge CPU time: attached while somebody needs them, which the control plane knows.
//!
//! The kernel side's part is `bpf/core/pause.bpf.h`. Killed between two steps, this leaves some of the programs attached, or a pause while
//! all of them are: who needs them next finds that they do not all charge, and attaches them afresh; who needs them no more detaches
//! the rest. The pause is told first, from which time on whoever comes to need them finds that, and waits for the lock; CPUs that have not closed
//! their records go on as before. Who needed them earlier is found then, before anything of it ends: no kill takes their time from them.

use std::path::PathBuf;

use crate::admin;
use crate::attachment::{self, Attachment, When};
use crate::error::{Context, Result};
use crate::pin::Pins;
use crate::{abi, link, managed, record, ring};

/// The kernel's program that closes the record of the CPU that it runs on.
const CLOSES: &str = "cpu_closes";
/// The one that begins a pause and ends it.
const PAUSES: &str = "admin_pauses";

/// What the latter is told.
const PAUSE: u32 = 0;
const GO_ON: u32 = 1;

/// Whether CPU time is charged.
pub fn is_on(pins: &Pins) -> Result<bool> {
    Ok(programs(pins).all(|row| pins.links().join(row.program).exists()) && !is_paused(pins)?)
}

/// Whether any of the programs is attached.
pub fn is_begun(pins: &Pins) -> bool {
    !links(pins).is_empty()
}

/// Whether this can be ended at all: what is in force may be of a version that always charges.
pub fn can_pause(pins: &Pins) -> bool {
    pins.program(PAUSES).exists()
}

fn is_paused(pins: &Pins) -> Result<bool> {
    if !pins.map("charge_pauses").exists() {
        return Ok(false);
    }
    let paused: Option<u32> = record::lookup(&pins.open_map("charge_pauses")?, &0u32.to_ne_bytes())?;
    Ok(paused.is_some_and(|paused| paused != 0))
}

/// Those of what is in force, which may be of a version that had not all of them.
fn programs(pins: &Pins) -> impl Iterator<Item = &'static Attachment> {
    attachment::traces(When::Charged).filter(move |row| pins.program(row.program).exists())
}

/// In the order in which they are attached.
fn links(pins: &Pins) -> Vec<PathBuf> {
    attachment::traces(When::Charged).flat_map(|row| row.links(pins)).collect()
}

/// Before somebody needs to know who has the CPUs. Where CPU time is charged, that goes on.
pub fn attach(pins: &Pins) -> Result<()> {
    if is_on(pins)? {
        return Ok(());
    }
    // what a killed one left may have missed events of the others
    detach(pins)?;
    tell(pins, GO_ON)?;
    for (place, row) in programs(pins).enumerate() {
        managed::attach_trace(pins, row)?;
        if place == 0 {
            wake_every_cpu();
        }
    }
    // again: a look at a listener's load between the two may have seen some of the CPUs
    tell(pins, GO_ON)
}

/// The end of it, if nobody needs to know who has the CPUs. `is_needed` asks who has come to need it without the lock.
pub fn end(pins: &Pins, is_needed: impl FnOnce() -> Result<bool>) -> Result<()> {
    tell(pins, PAUSE)?;
    let needed = is_needed();
    if matches!(needed, Ok(false)) {
        return close(pins);
    }
    tell(pins, GO_ON)?;
    needed?;
    attach(pins)
}

/// Where nobody needs it. CPU time is charged up to now, and none after that.
pub fn detach(pins: &Pins) -> Result<()> {
    tell(pins, PAUSE)?;
    close(pins)
}

/// The pause is told.
fn close(pins: &Pins) -> Result<()> {
    let closes = pins.open_program(CLOSES)?;
    let cpus = libbpf_rs::num_possible_cpus().context(|| "cannot count the CPUs".into())?;
    (0..cpus as u32).for_each(|cpu| ring::run_on(&closes, cpu));
    links(pins).iter().rev().try_for_each(|pin| link::remove(pin))
}

fn tell(pins: &Pins, what: u32) -> Result<()> {
    let mut args = abi::fief_admin { flags: what, ..Default::default() };
    admin::run(&pins.open_program(PAUSES)?, &mut args).context(|| "cannot say whether CPU time is charged".into())
}

/// A CPU is charged from its first event on, and should that be an interrupt, nobody knows which thread it interrupted: give each one a
/// switch.
fn wake_every_cpu() {
    use nix::sched::{CpuSet, sched_getaffinity, sched_setaffinity};
    let me = nix::unistd::Pid::from_raw(0);
    let Ok(before) = sched_getaffinity(me) else { return };
    for cpu in 0..CpuSet::count() {
        let mut one = CpuSet::new();
        if before.is_set(cpu).unwrap_or(false) && one.set(cpu).is_ok() && sched_setaffinity(me, &one).is_ok() {
            std::thread::yield_now();
        }
    }
    // the old mask was ours a moment ago, so it can be set again
    let _ = sched_setaffinity(me, &before);
}
