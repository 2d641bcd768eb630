// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Packets that cost what a test wants: a classic socket filter that works on each of them and lets all pass.
//!
//! The kernel runs the filter of a socket in the context that received the packet, so it is receive work like any other.

use crate::{Error, Result};
use std::os::fd::{AsFd, AsRawFd};

/// The ancillary load "offset of the payload": it dissects the packet, which takes some 50 ns in two bytes of code, so
/// that a long filter does not empty the instruction cache as arithmetic would.
const SKF_AD_PAY_OFFSET: i32 = -0x1000 + 52;

/// Attaches a filter of so many steps, 4,000 at most.
pub fn attach_work(socket: &impl AsFd, steps: u16) -> Result<()> {
    let step = libc::sock_filter {
        code: (libc::BPF_LD | libc::BPF_W | libc::BPF_ABS) as u16,
        jt: 0,
        jf: 0,
        k: SKF_AD_PAY_OFFSET.cast_unsigned(),
    };
    let pass = libc::sock_filter { code: (libc::BPF_RET | libc::BPF_K) as u16, jt: 0, jf: 0, k: u32::MAX };
    let mut filter = vec![step; usize::from(steps.min(4000))];
    filter.push(pass);
    let program = libc::sock_fprog { len: filter.len() as u16, filter: filter.as_mut_ptr() };
    // SAFETY: the kernel copies the program, whose instructions live until the call returns.
    let result = unsafe {
        libc::setsockopt(
            socket.as_fd().as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_ATTACH_FILTER,
            (&raw const program).cast(),
            size_of::<libc::sock_fprog>() as libc::socklen_t,
        )
    };
    nix::errno::Errno::result(result).map(drop).map_err(|errno| Error::errno("attach a socket filter", errno))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::UdpSocket;

    #[test]
    fn a_socket_with_work_receives_all_the_same() {
        let receiver = UdpSocket::bind("127.0.0.1:0").expect("a socket");
        attach_work(&receiver, 300).expect("attached");
        let sender = UdpSocket::bind("127.0.0.1:0").expect("a socket");
        sender.send_to(b"hello", receiver.local_addr().expect("an address")).expect("sent");
        let mut buffer = [0; 8];
        assert_eq!(receiver.recv(&mut buffer).expect("received"), 5);
    }
}
