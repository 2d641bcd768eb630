// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Whether this kernel takes a scheduler from a program (sched_ext): an operation of one is loaded, and let go unused.

use std::os::fd::FromRawFd;

use crate::error::{Context, Error, ErrorKind, Result};

/// `r0 = 0; exit`: the first operation, which chooses a CPU, may answer with any number.
const ANSWERS_ZERO: [u64; 2] = [0xb7, 0x95];
const FIRST: u32 = 0;

/// Loads the operation. Errors: [`ErrorKind::Unsupported`] the kernel knows no such scheduler.
pub fn try_scheduler() -> Result<()> {
    let mut opts = libbpf_sys::bpf_prog_load_opts {
        sz: size_of::<libbpf_sys::bpf_prog_load_opts>() as _,
        expected_attach_type: FIRST,
        attach_btf_id: operations()?,
        ..Default::default()
    };
    // SAFETY: the kernel reads as many instructions as said, two names that end with zero, and the options.
    let loaded = unsafe {
        libbpf_sys::bpf_prog_load(
            libbpf_sys::BPF_PROG_TYPE_STRUCT_OPS,
            c"fief_probe".as_ptr(),
            c"GPL".as_ptr(),
            ANSWERS_ZERO.as_ptr().cast(),
            ANSWERS_ZERO.len() as _,
            &raw mut opts,
        )
    };
    if loaded < 0 {
        return Err(std::io::Error::from_raw_os_error(-loaded))
            .context(|| "cannot load a scheduler's operation".into());
    }
    // SAFETY: it is the program's descriptor, which nobody else has.
    drop(unsafe { std::os::fd::OwnedFd::from_raw_fd(loaded) });
    Ok(())
}

/// The kernel's number of the structure of operations.
fn operations() -> Result<u32> {
    let missing = || Error::new(ErrorKind::Unsupported, "this kernel was built without sched_ext");
    // SAFETY: reads the kernel's description of its types; a null pointer says that there is none.
    let types = unsafe { libbpf_sys::btf__load_vmlinux_btf() };
    if types.is_null() {
        return Err(missing());
    }
    // SAFETY: the description is there, and is used no more after it was freed.
    let found = unsafe {
        let kind = libbpf_sys::BTF_KIND_STRUCT;
        let found = libbpf_sys::btf__find_by_name_kind(types, c"sched_ext_ops".as_ptr(), kind);
        libbpf_sys::btf__free(types);
        found
    };
    u32::try_from(found).map_err(|_| missing())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The folder is there where the kernel has it; the probe must not go by it.
    #[test]
    fn a_scheduler_can_be_loaded_where_the_kernel_has_the_extension() {
        if nix::unistd::geteuid().is_root() {
            let tried = try_scheduler();
            assert_eq!(tried.is_ok(), std::path::Path::new("/sys/kernel/sched_ext").exists(), "{tried:?}");
        }
    }
}
