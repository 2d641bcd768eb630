// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Whole frames to and from one interface (AF_PACKET), for what no socket of the kernel would send.
//!
//! It works on an interface of a test's namespace only, since it is opened through one. What it sends itself it does not
//! see.

use crate::{Error, NetNs, Result};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::time::{Duration, Instant};

const EVERY_PROTOCOL: u16 = 3; // ETH_P_ALL
const PACKET_IGNORE_OUTGOING: i32 = 23;
/// For a full queue.
const PATIENCE: Duration = Duration::from_secs(60);

#[derive(Debug)]
pub struct Wire {
    socket: OwnedFd,
}

impl Wire {
    /// Listens on an interface, also to frames for other stations.
    pub fn open(namespace: &NetNs, interface: &str) -> Result<Wire> {
        let socket = namespace.run(|| open(interface))?.map_err(|error| {
            Error::io(format!("open the interface {interface} of {} for raw frames", namespace.name()), error)
        })?;
        Ok(Wire { socket })
    }

    /// Sends one frame, link header first; waits while the receiver's queue is full.
    pub fn send(&self, frame: &[u8]) -> Result<()> {
        let end = Instant::now() + PATIENCE;
        loop {
            // SAFETY: pointer and length are those of `frame`, which lives until the call returns.
            let sent = unsafe { libc::send(self.socket.as_raw_fd(), frame.as_ptr().cast(), frame.len(), 0) };
            if sent >= 0 {
                return Ok(());
            }
            let error = io::Error::last_os_error();
            if error.raw_os_error() != Some(libc::ENOBUFS) || Instant::now() > end {
                return Err(Error::io(format!("send a frame of {} bytes", frame.len()), error));
            }
            std::thread::yield_now();
        }
    }

    /// The next frame, its length in `buffer`; none within the time.
    pub fn receive(&self, buffer: &mut [u8], time: Duration) -> Option<usize> {
        let time = PollTimeout::try_from(time.max(Duration::from_millis(1))).unwrap_or(PollTimeout::MAX);
        let mut ready = [PollFd::new(self.socket.as_fd(), PollFlags::POLLIN)];
        if poll(&mut ready, time).unwrap_or(0) == 0 {
            return None;
        }
        self.receive_now(buffer)
    }

    /// The next frame if there is one.
    pub fn receive_now(&self, buffer: &mut [u8]) -> Option<usize> {
        // SAFETY: the kernel writes at most as many bytes as `buffer` has.
        let length = unsafe {
            libc::recv(self.socket.as_raw_fd(), buffer.as_mut_ptr().cast(), buffer.len(), libc::MSG_DONTWAIT)
        };
        usize::try_from(length).ok()
    }
}

impl AsFd for Wire {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

fn open(interface: &str) -> io::Result<OwnedFd> {
    let index = nix::net::if_::if_nametoindex(interface)?.cast_signed();
    // No protocol yet: until it is bound it would hear every interface.
    // SAFETY: socket() takes no pointers; a descriptor that it returns is nobody else's.
    let socket = unsafe {
        match libc::socket(libc::AF_PACKET, libc::SOCK_RAW | libc::SOCK_CLOEXEC, 0) {
            -1 => return Err(io::Error::last_os_error()),
            raw => OwnedFd::from_raw_fd(raw),
        }
    };
    let everybody = libc::packet_mreq {
        mr_ifindex: index,
        mr_type: libc::PACKET_MR_PROMISC as u16,
        mr_alen: 0,
        mr_address: [0; 8],
    };
    let room = 8i32 << 20;
    set(&socket, libc::SOL_SOCKET, libc::SO_RCVBUFFORCE, &room)?;
    set(&socket, libc::SOL_PACKET, PACKET_IGNORE_OUTGOING, &1i32)?;
    set(&socket, libc::SOL_PACKET, libc::PACKET_ADD_MEMBERSHIP, &everybody)?;
    // SAFETY: all zero is a valid sockaddr_ll.
    let mut address: libc::sockaddr_ll = unsafe { std::mem::zeroed() };
    address.sll_family = libc::AF_PACKET as u16;
    address.sll_protocol = EVERY_PROTOCOL.to_be();
    address.sll_ifindex = index;
    let length = size_of_val(&address) as u32;
    // SAFETY: address and length describe a record that lives until the call returns.
    match unsafe { libc::bind(socket.as_raw_fd(), (&raw const address).cast(), length) } {
        -1 => Err(io::Error::last_os_error()),
        _ => Ok(socket),
    }
}

fn set<T>(socket: &OwnedFd, level: i32, option: i32, value: &T) -> io::Result<()> {
    let length = size_of::<T>() as u32;
    // SAFETY: value and length describe a record that lives until the call returns.
    match unsafe { libc::setsockopt(socket.as_raw_fd(), level, option, (&raw const *value).cast(), length) } {
        -1 => Err(io::Error::last_os_error()),
        _ => Ok(()),
    }
}
