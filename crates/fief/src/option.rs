// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Socket options at Fief's level: the only place of this crate that calls the kernel by hand, since no library knows
//! the level.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use crate::abi;

/// Records that may cross the border: plain integers, every bit pattern valid.
///
/// # Safety
/// Implemented for types made of integers and arrays of them only.
pub(crate) unsafe trait Plain: Copy + Default {}

macro_rules! plain {
    ($($name:ty),* $(,)?) => {
        // SAFETY: integers, or generated from abi.h, which holds integers and arrays of them only.
        $(unsafe impl Plain for $name {})*
    };
}

plain!(
    u32,
    abi::fief_ref,
    abi::fief_create,
    abi::fief_bind,
    abi::fief_ring_open,
    abi::fief_set_attribute,
    abi::fief_usage,
    abi::fief_attributes,
    abi::fief_info,
    abi::fief_filter,
    abi::fief_drops,
);

fn setsockopt(fd: BorrowedFd<'_>, option: u32, value: *const u8, length: usize) -> io::Result<()> {
    // SAFETY: value and length describe memory that the caller borrows for the call; length 0 reads nothing.
    let err = unsafe {
        libc::setsockopt(fd.as_raw_fd(), abi::FIEF_SOL as i32, option as i32, value.cast(), length as libc::socklen_t)
    };
    if err == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Sets an option that takes no value.
pub(crate) fn call(fd: BorrowedFd<'_>, option: u32) -> io::Result<()> {
    setsockopt(fd, option, std::ptr::null(), 0)
}

/// Sets an option to a record.
pub(crate) fn set<T: Plain>(fd: BorrowedFd<'_>, option: u32, value: &T) -> io::Result<()> {
    setsockopt(fd, option, std::ptr::from_ref(value).cast(), size_of::<T>())
}

/// Sets an option to a string of bytes.
pub(crate) fn set_bytes(fd: BorrowedFd<'_>, option: u32, value: &[u8]) -> io::Result<()> {
    setsockopt(fd, option, value.as_ptr(), value.len())
}

/// Reads a record.
pub(crate) fn get<T: Plain>(fd: BorrowedFd<'_>, option: u32) -> io::Result<T> {
    let mut value = T::default();
    let mut length = size_of::<T>() as libc::socklen_t;
    // SAFETY: the kernel writes at most `length` bytes into `value`, for which every bit pattern is valid.
    let err = unsafe {
        libc::getsockopt(
            fd.as_raw_fd(),
            abi::FIEF_SOL as i32,
            option as i32,
            std::ptr::from_mut(&mut value).cast(),
            &mut length,
        )
    };
    if err == 0 {
        return Ok(value);
    }
    let error = io::Error::last_os_error();
    // IPv4's own answer to a level that it does not know; none of ours to a question
    let unknown = error.raw_os_error() == Some(libc::EOPNOTSUPP);
    Err(if unknown { io::Error::from_raw_os_error(libc::ENOPROTOOPT) } else { error })
}

/// A socket that can become a container's descriptor; closed on exec, as every descriptor of the standard library.
pub(crate) fn fresh_socket() -> io::Result<OwnedFd> {
    // SAFETY: no pointers are passed.
    let fd = unsafe { libc::socket(libc::AF_INET, libc::SOCK_DGRAM | libc::SOCK_CLOEXEC, 0) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the call returned a new descriptor that nobody else owns.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}
