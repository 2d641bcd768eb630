// SPDX-License-Identifier: Apache-2.0 OR MIT
//! By which sources one container is charged, summed in the kernel while a watch lasts (`bpf/core/watch.bpf.h`).

use std::os::fd::OwnedFd;

use libbpf_rs::{MapCore, MapFlags, MapHandle};

use crate::abi;
use crate::admin::run;
use crate::batch;
use crate::error::{Context, Result};
use crate::pin::Pins;
use crate::record::{self, Record};

/// The tables and the program of a watch. Who has it decides which container is watched: there is one watch at a time.
#[derive(Debug)]
pub struct Watch {
    program: OwnedFd,
    sums: MapHandle,
}

/// Until when something is watched, by CLOCK_MONOTONIC; 0: nothing is. A reader that was killed leaves it to end by itself.
pub fn lasts_until(pins: &Pins) -> Result<u64> {
    if !pins.map("watches").exists() {
        return Ok(0);
    }
    let watch: Option<abi::fief_watch> = record::lookup(&pins.open_map("watches")?, &0u32.to_ne_bytes())?;
    Ok(watch.map_or(0, |watch| watch.until_ns))
}

impl Watch {
    /// Errors: [`crate::ErrorKind::NotFound`] what is in force is of a version without it.
    pub fn open(pins: &Pins) -> Result<Self> {
        Ok(Self { program: pins.open_program("admin_watch")?, sums: pins.open_map("watch_sums")? })
    }

    /// Whatever another reader has left is gone.
    pub fn clear(&self) -> Result<()> {
        batch::delete(&self.sums, &batch::keys::<abi::fief_charge_source>(&self.sums)?)?;
        (0..2).try_for_each(|turn| self.reset_rest(turn))
    }

    /// What has no place of its own always has this one, however full the table is.
    fn reset_rest(&self, turn: u32) -> Result<()> {
        let rest = abi::fief_charge_source { turn, why: abi::FIEF_WHY_REST, number: 0 };
        let none = abi::fief_charge_sum::default();
        let set = self.sums.update(rest.bytes(), none.bytes(), MapFlags::ANY);
        set.context(|| "cannot begin a turn of the watched charges".into())
    }

    /// From now on charges of this container, and with `below` of those below it, are added to the sums of this turn (0 or 1), until
    /// CLOCK_MONOTONIC is `until_ns`. Errors: [`crate::ErrorKind::NotFound`] the container has ended.
    pub fn place(&self, container: abi::fief_ref, below: bool, turn: u32, until_ns: u64) -> Result<()> {
        let args =
            abi::fief_admin { container, flags: below.into(), slot: turn, value: until_ns, ..Default::default() };
        run(&self.program, &mut { args }).context(|| format!("cannot watch container {}", container.id))
    }

    /// Nothing is watched any more.
    pub fn end(&self) -> Result<()> {
        run(&self.program, &mut abi::fief_admin::default()).context(|| "cannot end the watch".into())
    }

    /// The sums of both turns.
    pub fn sums(&self) -> Result<Vec<(abi::fief_charge_source, abi::fief_charge_sum)>> {
        batch::entries(&self.sums)
    }

    /// Makes room for a turn that is to come: what was summed in it before is forgotten. A CPU may still add to the turn that has just
    /// ended; to the one before that, none does.
    pub fn forget(&self, turn: u32) -> Result<()> {
        let mut sources = batch::keys::<abi::fief_charge_source>(&self.sums)?;
        sources.retain(|source| source.turn == turn && source.why != abi::FIEF_WHY_REST);
        batch::delete(&self.sums, &sources)?;
        self.reset_rest(turn)
    }
}
