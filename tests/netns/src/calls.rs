// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The socket options that are the calls, as a program without our library makes them.

use std::net::TcpStream;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};

use fief_bpf::abi;
use nix::errno::Errno;
use nix::sys::socket::{AddressFamily, SockFlag, SockType, socket};

/// Sets an option at our level, with whatever value.
pub fn set_option(fd: impl AsFd, option: u32, value: &[u8]) -> Result<(), Errno> {
    let (level, length) = (abi::FIEF_SOL as i32, value.len() as u32);
    // SAFETY: value and length describe memory that is borrowed for the call.
    let err = unsafe { libc::setsockopt(fd.as_fd().as_raw_fd(), level, option as i32, value.as_ptr().cast(), length) };
    Errno::result(err).map(drop)
}

/// What an option at our level says in a buffer of so many bytes: as many of them as it fills.
pub fn get_option(fd: impl AsFd, option: u32, length: usize) -> Result<Vec<u8>, Errno> {
    let mut said = vec![0; length];
    let mut filled = length as u32;
    // SAFETY: the kernel writes at most `filled` bytes, for which there is room.
    let err = unsafe {
        let (level, value) = (abi::FIEF_SOL as i32, said.as_mut_ptr().cast());
        libc::getsockopt(fd.as_fd().as_raw_fd(), level, option as i32, value, &raw mut filled)
    };
    Errno::result(err)?;
    said.truncate(filled as usize);
    Ok(said)
}

/// Bytes that the peer's kernel has not acknowledged yet.
pub fn unacknowledged(stream: &TcpStream) -> i32 {
    let mut bytes = 0;
    // SAFETY: SIOCOUTQ writes one int.
    let done = unsafe { libc::ioctl(stream.as_raw_fd(), libc::TIOCOUTQ, &raw mut bytes) };
    Errno::result(done).expect("a socket");
    bytes
}

/// A socket of the kind that a descriptor can be made of.
pub fn fresh_socket() -> OwnedFd {
    socket(AddressFamily::Inet, SockType::Datagram, SockFlag::SOCK_CLOEXEC, None).expect("a socket")
}

/// A socket of multipath TCP.
pub fn multipath_socket(family: i32) -> std::io::Result<OwnedFd> {
    // SAFETY: no pointers are passed.
    let fd = unsafe { libc::socket(family, libc::SOCK_STREAM | libc::SOCK_CLOEXEC, libc::IPPROTO_MPTCP) };
    if fd < 0 {
        return Err(std::io::Error::last_os_error());
    }
    // SAFETY: the call returned a new descriptor that nobody else owns.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}
