// SPDX-License-Identifier: Apache-2.0 OR MIT
//! How often a program ran, and how long, by the kernel's own count (BPF_ENABLE_STATS).

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use crate::error::{Context, Result};
use crate::ingress::INGRESS_PROGRAM;
use crate::link::owned;
use crate::pin::Pins;

/// Counts as long as it lives; counting itself costs every BPF program of the machine some tens of ns a run.
#[derive(Debug)]
pub struct Runs {
    program: OwnedFd,
    _counting: OwnedFd,
}

/// Since the program was loaded, while somebody counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ran {
    /// Runs.
    pub count: u64,
    /// Of all of them.
    pub time: Duration,
}

impl Runs {
    /// Of the installed program at the interfaces.
    pub fn count(pins: &Pins) -> Result<Self> {
        Self::of(pins.open_program(INGRESS_PROGRAM)?)
    }

    /// Of any program.
    pub fn of(program: OwnedFd) -> Result<Self> {
        // SAFETY: the call takes a number and no pointer.
        let counting = owned(unsafe { libbpf_sys::bpf_enable_stats(libbpf_sys::BPF_STATS_RUN_TIME) })
            .context(|| "cannot count the runs of BPF programs".into())?;
        Ok(Self { program, _counting: counting })
    }

    /// Up to now.
    pub fn so_far(&self) -> Result<Ran> {
        let info = info(self.program.as_fd())?;
        Ok(Ran { count: info.run_cnt, time: Duration::from_nanos(info.run_time_ns) })
    }
}

/// A program by its number.
pub(crate) fn open(id: u32) -> Result<OwnedFd> {
    // SAFETY: the call takes a number and no pointer.
    owned(unsafe { libbpf_sys::bpf_prog_get_fd_by_id(id) }).context(|| format!("cannot open the program {id}"))
}

/// What the kernel says of a program.
pub(crate) fn info(program: BorrowedFd<'_>) -> Result<libbpf_sys::bpf_prog_info> {
    let mut info = libbpf_sys::bpf_prog_info::default();
    let mut length = size_of_val(&info) as u32;
    // SAFETY: the descriptor is open; the record and its length are ours alone for the call.
    let err = unsafe { libbpf_sys::bpf_prog_get_info_by_fd(program.as_raw_fd(), &raw mut info, &raw mut length) };
    if err < 0 {
        return Err(std::io::Error::from_raw_os_error(-err)).context(|| "cannot look at a program".into());
    }
    Ok(info)
}

impl Ran {
    /// What came since an earlier look.
    pub fn since(self, before: Ran) -> Ran {
        Ran { count: self.count - before.count, time: self.time.saturating_sub(before.time) }
    }

    /// ns a run; NaN without any.
    pub fn mean_ns(self) -> f64 {
        self.time.as_nanos() as f64 / self.count as f64
    }
}
