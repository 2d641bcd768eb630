// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Packets that cost what a test wants: a socket filter that works on each of them and lets all pass.
//!
//! The kernel runs the filter of a socket in the context that received the packet, so it is receive work like any other.
//! It is a loop of a hundred bytes: a long classic filter took the instruction cache from the packets that came after it,
//! of whatever class, and made each of them 200 ns dearer.

use crate::{Error, Result};
use libbpf_sys::{
    BPF_ADD, BPF_ALU64, BPF_EXIT, BPF_JMP, BPF_JNE, BPF_K, BPF_MOV, BPF_MUL, BPF_PROG_TYPE_SOCKET_FILTER, BPF_X,
};
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};

/// Each waits for the one before it, 3 cycles: a step is some 25 ns.
const MULTIPLICATIONS: usize = 24;

/// Attaches a filter of so many steps. It needs the right to load programs.
pub fn attach_work(socket: &impl AsFd, steps: u16) -> Result<()> {
    let program = load(&filter(steps))?;
    let raw = program.as_raw_fd();
    // SAFETY: the kernel reads one number, which outlives the call.
    let result = unsafe {
        libc::setsockopt(
            socket.as_fd().as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_ATTACH_BPF,
            (&raw const raw).cast(),
            size_of_val(&raw) as libc::socklen_t,
        )
    };
    nix::errno::Errno::result(result).map(drop).map_err(|errno| Error::errno("attach a socket filter", errno))
}

/// Returns the length up to which the packet is taken: all of it.
fn filter(steps: u16) -> Vec<libbpf_sys::bpf_insn> {
    const ALL: u8 = 0;
    const PRODUCT: u8 = 1;
    const LEFT: u8 = 2;
    let set = BPF_ALU64 | BPF_MOV | BPF_K;
    let multiply = instruction(BPF_ALU64 | BPF_MUL | BPF_X, PRODUCT, PRODUCT, 0, 0);
    let mut filter = vec![
        instruction(set, ALL, 0, 0, i32::MAX),
        instruction(set, PRODUCT, 0, 0, 3),
        instruction(set, LEFT, 0, 0, i32::from(steps.max(1))),
    ];
    filter.extend([multiply; MULTIPLICATIONS]);
    let back = -(MULTIPLICATIONS as i16 + 2);
    filter.push(instruction(BPF_ALU64 | BPF_ADD | BPF_K, LEFT, 0, 0, -1));
    filter.push(instruction(BPF_JMP | BPF_JNE | BPF_K, LEFT, 0, back, 0));
    filter.push(instruction(BPF_JMP | BPF_EXIT, 0, 0, 0, 0));
    filter
}

fn instruction(code: u32, to: u8, from: u8, jump: i16, number: i32) -> libbpf_sys::bpf_insn {
    let mut made = libbpf_sys::bpf_insn { code: code as u8, off: jump, imm: number, ..Default::default() };
    made.set_dst_reg(to);
    made.set_src_reg(from);
    made
}

fn load(filter: &[libbpf_sys::bpf_insn]) -> Result<OwnedFd> {
    // SAFETY: the kernel copies the instructions, which outlive the call, as do both names; no options are passed.
    let raw = unsafe {
        libbpf_sys::bpf_prog_load(
            BPF_PROG_TYPE_SOCKET_FILTER,
            c"fief_work".as_ptr(),
            c"Dual MIT/GPL".as_ptr(),
            filter.as_ptr(),
            filter.len() as _,
            std::ptr::null_mut(),
        )
    };
    if raw < 0 {
        return Err(Error::io("load a socket filter", std::io::Error::from_raw_os_error(-raw)));
    }
    // SAFETY: the descriptor is new, and nobody else's.
    Ok(unsafe { OwnedFd::from_raw_fd(raw) })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Feature, require};
    use std::net::UdpSocket;

    #[test]
    fn a_socket_with_work_receives_all_the_same() {
        if !require(Feature::NetNs) {
            return;
        }
        let receiver = UdpSocket::bind("127.0.0.1:0").expect("a socket");
        attach_work(&receiver, 4000).expect("attached");
        let sender = UdpSocket::bind("127.0.0.1:0").expect("a socket");
        sender.send_to(b"hello", receiver.local_addr().expect("an address")).expect("sent");
        let mut buffer = [0; 8];
        assert_eq!(receiver.recv(&mut buffer).expect("received"), 5);
    }
}
