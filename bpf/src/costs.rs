// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What clients cost, counted in the kernel while somebody asks (`bpf/core/costly.bpf.h`).

use std::os::fd::OwnedFd;
use std::time::Duration;

use libbpf_rs::{MapCore, MapFlags, MapHandle};

use crate::admin::run;
use crate::error::{Context, Error, ErrorKind, Result};
use crate::pin::Pins;
use crate::record::{self, Record};
use crate::{abi, batch};

/// A set that is told at every moment is read so often,
const TRIES: usize = 64;
/// and after this, which is longer than a set is told.
const PAUSE: Duration = Duration::from_micros(100);

/// The tables and the program of the count.
#[derive(Debug)]
pub struct Costs {
    program: OwnedFd,
    sets: MapHandle,
    controls: MapHandle,
    rooms: MapHandle,
}

impl Costs {
    /// Errors: [`crate::ErrorKind::NotFound`] what is in force is of a version without it.
    pub fn open(pins: &Pins) -> Result<Self> {
        Ok(Self {
            program: pins.open_program("admin_costs")?,
            sets: pins.open_map("costs")?,
            controls: pins.open_map("cost_controls")?,
            rooms: pins.open_map("cost_rooms")?,
        })
    }

    /// Until when is counted, and since when.
    pub fn control(&self) -> Result<abi::fief_cost_control> {
        Ok(record::lookup(&self.controls, 0u32.bytes())?.unwrap_or_default())
    }

    /// Counts from nothing, from now on until CLOCK_MONOTONIC is `until_ns`.
    pub fn begin(&self, until_ns: u64) -> Result<()> {
        self.place(true, until_ns)
    }

    /// Counts on until then at least.
    pub fn extend(&self, until_ns: u64) -> Result<()> {
        self.place(false, until_ns)
    }

    fn place(&self, fresh: bool, until_ns: u64) -> Result<()> {
        let args = abi::fief_admin { flags: fresh.into(), value: until_ns, ..Default::default() };
        run(&self.program, &mut { args }).context(|| "cannot count what clients cost".into())
    }

    /// Every set of clients, then of networks, each as it was at one moment.
    pub fn sets(&self) -> Result<Vec<abi::fief_cost_set>> {
        let mut sets: Vec<(u32, abi::fief_cost_set)> = batch::entries(&self.sets)?;
        for (at, set) in &mut sets {
            let mut tries = 0;
            while set.done != set.begun {
                if tries == TRIES {
                    return Err(Error::new(ErrorKind::Other, "what clients cost changes faster than it can be read"));
                }
                tries += 1;
                std::thread::sleep(PAUSE);
                *set = record::lookup(&self.sets, at.bytes())?.unwrap_or_default();
            }
        }
        sets.sort_unstable_by_key(|(at, _)| *at);
        Ok(sets.into_iter().map(|(_, set)| set).collect())
    }

    /// What found no place because its set was in use: of clients, and of networks.
    pub fn unplaced_ns(&self) -> Result<[u64; 2]> {
        let rooms = self.rooms.lookup_percpu(0u32.bytes(), MapFlags::ANY);
        let rooms = rooms.context(|| "cannot read what a CPU has counted".into())?.unwrap_or_default();
        let rooms = rooms.iter().filter_map(|bytes| abi::fief_cost_room::from_bytes(bytes));
        Ok(rooms.fold([0, 0], |sum, room| [0, 1].map(|of| sum[of] + room.unplaced_ns[of])))
    }
}
