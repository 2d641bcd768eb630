// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Cgroups by the numbers by which the kernel side knows them. To walk over all cgroups of a machine takes some ten microseconds for
//! each of them, and a machine with systemd has hundreds.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

/// The kernel's type of handles that are such a number (FILEID_KERNFS; include/linux/exportfs.h).
const NUMBER: libc::c_int = 0xfe;

/// struct file_handle with its bytes.
#[repr(C)]
struct Handle {
    head: libc::file_handle,
    number: [u8; 8],
}

/// The folder of a cgroup, to ask about and not to read; `None`: it is gone. `mount`: any folder of the hierarchy.
///
/// Errors: `EPERM` without CAP_DAC_READ_SEARCH.
pub fn open(mount: BorrowedFd<'_>, id: u64) -> io::Result<Option<OwnedFd>> {
    let head = libc::file_handle { handle_bytes: 8, handle_type: NUMBER, f_handle: [] };
    let mut handle = Handle { head, number: id.to_ne_bytes() };
    let flags = libc::O_PATH | libc::O_CLOEXEC;
    // SAFETY: the kernel reads a head and as many bytes as it says, which are those of `handle`.
    let fd = unsafe { libc::open_by_handle_at(mount.as_raw_fd(), (&raw mut handle).cast(), flags) };
    if fd >= 0 {
        // SAFETY: the call returned a new descriptor that nobody else owns.
        return Ok(Some(unsafe { OwnedFd::from_raw_fd(fd) }));
    }
    match io::Error::last_os_error() {
        error if error.raw_os_error() == Some(libc::ESTALE) => Ok(None),
        error => Err(error),
    }
}
