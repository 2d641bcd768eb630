// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The chain of tcx programs at an interface.

use std::ffi::CStr;
use std::os::fd::AsFd;

use crate::attachment;
use crate::error::{Context, Result};
use crate::ingress::INGRESS_PROGRAM;
use crate::pin::Pins;
use crate::runs;

/// What the kernel takes (BPF_MPROG_MAX).
const LONGEST: usize = 64;

/// What it keeps of a name (BPF_OBJ_NAME_LEN).
const NAME_MOST: usize = 15;

/// The names of the programs that see a packet after the front door's, at an interface of the caller's network namespace.
pub fn behind_guards(pins: &Pins, interface: u32) -> Result<Vec<String>> {
    let guards = runs::info(pins.open_program(INGRESS_PROGRAM)?.as_fd())?.id;
    let programs = programs(interface).context(|| format!("cannot list the programs at interface {interface}"))?;
    let behind = programs.iter().skip_while(|id| **id != guards).skip(1);
    // one that has gone meanwhile has no name; those of any installation of Fief's let the chain go on
    let is_ours =
        |name: &String| attachment::TABLE.iter().any(|row| row.program.bytes().take(NAME_MOST).eq(name.bytes()));
    Ok(behind.filter_map(|id| name(*id).ok()).filter(|name| !is_ours(name)).collect())
}

/// At ingress, in the order in which they run.
fn programs(interface: u32) -> std::io::Result<Vec<u32>> {
    let mut ids = vec![0; LONGEST];
    let mut opts = libbpf_sys::bpf_prog_query_opts {
        sz: size_of::<libbpf_sys::bpf_prog_query_opts>() as _,
        prog_ids: ids.as_mut_ptr(),
        __bindgen_anon_1: libbpf_sys::bpf_prog_query_opts__bindgen_ty_1 { count: LONGEST as u32 },
        ..Default::default()
    };
    // SAFETY: the record, its length and what it points to are ours alone for the call.
    let err = unsafe { libbpf_sys::bpf_prog_query_opts(interface as i32, libbpf_sys::BPF_TCX_INGRESS, &raw mut opts) };
    if err < 0 {
        return Err(std::io::Error::from_raw_os_error(-err));
    }
    // SAFETY: both members are the same number.
    ids.truncate(unsafe { opts.__bindgen_anon_1.count } as usize);
    Ok(ids)
}

fn name(id: u32) -> Result<String> {
    let info = runs::info(runs::open(id)?.as_fd())?;
    // SAFETY: the kernel ends the name with NUL, within the record.
    let name = unsafe { CStr::from_ptr(info.name.as_ptr()) }.to_string_lossy().into_owned();
    Ok(if name.is_empty() { format!("program {id}") } else { name })
}
