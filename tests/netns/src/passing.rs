// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Descriptors over UNIX sockets.

use std::io::{IoSlice, IoSliceMut};
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd, RawFd};

use nix::sys::socket::{ControlMessage, ControlMessageOwned, MsgFlags, recvmsg, sendmsg};

/// Sends a descriptor.
pub fn send(over: impl AsFd, what: impl AsFd) {
    let fds = [what.as_fd().as_raw_fd()];
    let sent = sendmsg::<()>(
        over.as_fd().as_raw_fd(),
        &[IoSlice::new(b"f")],
        &[ControlMessage::ScmRights(&fds)],
        MsgFlags::empty(),
        None,
    );
    assert_eq!(sent, Ok(1));
}

/// Receives one.
pub fn receive(over: impl AsFd) -> OwnedFd {
    let mut byte = [0];
    let mut room = nix::cmsg_space!(RawFd);
    let mut into = [IoSliceMut::new(&mut byte)];
    let message =
        recvmsg::<()>(over.as_fd().as_raw_fd(), &mut into, Some(&mut room), MsgFlags::MSG_CMSG_CLOEXEC).expect("sent");
    let fd = message.cmsgs().expect("not cut").find_map(|message| match message {
        ControlMessageOwned::ScmRights(fds) => fds.first().copied(),
        _ => None,
    });
    // SAFETY: the kernel made this descriptor for the message, and nobody else took it.
    unsafe { OwnedFd::from_raw_fd(fd.expect("a descriptor was sent")) }
}
