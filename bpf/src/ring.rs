// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Has the time of threads charged that are bound by a ring, on the CPUs where they run now (`bpf/core/ring.bpf.h`).

use std::os::fd::{AsRawFd, OwnedFd};

use crate::error::{ErrorKind, Result};
use crate::pin::Pins;
use crate::table::Table;

/// Charges it up to now, so that a reader sees all of it. The programs in force may be of a version without rings, and a CPU may go
/// away meanwhile: both have nothing to charge.
pub fn settle(pins: &Pins, table: &Table) -> Result<()> {
    let cpus: Vec<u32> = table.ringed_cpus().collect();
    if cpus.is_empty() {
        return Ok(());
    }
    let program = match pins.open_program("cpu_drains") {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
        opened => opened?,
    };
    cpus.into_iter().for_each(|cpu| run_on(&program, cpu));
    Ok(())
}

/// Nothing is run where there is no such CPU.
pub(crate) fn run_on(program: &OwnedFd, cpu: u32) {
    let mut opts = libbpf_sys::bpf_test_run_opts {
        sz: size_of::<libbpf_sys::bpf_test_run_opts>() as _,
        flags: libbpf_sys::BPF_F_TEST_RUN_ON_CPU,
        cpu,
        ..Default::default()
    };
    // SAFETY: the descriptor is open, and the program takes no context.
    let _gone = unsafe { libbpf_sys::bpf_prog_test_run_opts(program.as_raw_fd(), &mut opts) };
}
