// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Frames on an interface of a testbed, below the network stack: many at once to send, and what arrives to count.
//!
//! Sent frames bypass the queueing discipline and the sender's own stack, so that a flood costs its core little. A spoofed
//! frame must never leave the testbed, so a sender opens only in a namespace that a living process made with this crate,
//! and only on one end of a virtual pair; a physical interface that somebody moved there is refused.

use crate::namespace::living_testbed;
use crate::{Error, Kind, Result, run};
use nix::errno::Errno;
use std::io::IoSlice;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::process::Command;

/// Sends frames from the network namespace of the thread that opened it.
#[derive(Debug)]
pub struct PacketSender {
    socket: OwnedFd,
}

/// More than all queues of a testbed hold.
const SEND_BUFFER: libc::c_int = 64 << 20;

impl PacketSender {
    /// Frames that leave with one system call, at most.
    pub const BATCH: usize = 64;

    pub fn open(interface: &str) -> Result<PacketSender> {
        check_owned(interface)?;
        let sender = PacketSender { socket: open(interface, 0)? };
        let on: libc::c_int = 1;
        set_option(&sender.socket, libc::SOL_PACKET, libc::PACKET_QDISC_BYPASS, &on)
            .map_err(|errno| Error::errno("bypass the queueing discipline", errno))?;
        // Frames count against it until the receiver frees them: one that lets them lie would hold up the sender.
        set_option(&sender.socket, libc::SOL_SOCKET, libc::SO_SNDBUFFORCE, &SEND_BUFFER)
            .map_err(|errno| Error::errno("enlarge the send buffer", errno))?;
        Ok(sender)
    }

    /// Sends up to [`PacketSender::BATCH`] frames; how many the interface took. A full queue is no error: it takes none.
    pub fn send(&self, frames: &[impl AsRef<[u8]>]) -> Result<usize> {
        let slices: Vec<IoSlice<'_>> =
            frames.iter().take(PacketSender::BATCH).map(|frame| IoSlice::new(frame.as_ref())).collect();
        let mut messages: Vec<libc::mmsghdr> = slices.iter().map(message).collect();
        // SAFETY: each message points to one slice, whose bytes the kernel only reads; all of them outlive the call.
        let sent = unsafe {
            libc::sendmmsg(self.socket.as_raw_fd(), messages.as_mut_ptr(), messages.len() as libc::c_uint, 0)
        };
        match Errno::result(sent) {
            Ok(sent) => Ok(usize::try_from(sent).unwrap_or_default()),
            Err(Errno::ENOBUFS | Errno::EAGAIN | Errno::EINTR) => Ok(0),
            Err(errno) => Err(Error::errno("send frames", errno)),
        }
    }
}

/// Counts what arrives at an interface and passes a classic filter. Nothing is kept, so nothing needs to be read.
#[derive(Debug)]
pub struct PacketCounter {
    socket: OwnedFd,
}

impl PacketCounter {
    /// `filter`: code, jump if true, jump if false, operand; it sees the packet from the Ethernet header on.
    pub fn open(interface: &str, filter: &[(u16, u8, u8, u32)]) -> Result<PacketCounter> {
        let socket = open(interface, libc::ETH_P_ALL as u16)?;
        // What fits into the smallest buffer is enough: a packet that was dropped for the lack of room is counted too.
        let least: libc::c_int = 1;
        set_option(&socket, libc::SOL_SOCKET, libc::SO_RCVBUF, &least)
            .map_err(|errno| Error::errno("shrink a receive buffer", errno))?;
        let mut steps: Vec<libc::sock_filter> =
            filter.iter().map(|&(code, jt, jf, k)| libc::sock_filter { code, jt, jf, k }).collect();
        let program = libc::sock_fprog { len: steps.len() as u16, filter: steps.as_mut_ptr() };
        set_option(&socket, libc::SOL_SOCKET, libc::SO_ATTACH_FILTER, &program)
            .map_err(|errno| Error::errno("attach a filter", errno))?;
        let counter = PacketCounter { socket };
        // Whatever came before the filter was there.
        counter.take()?;
        Ok(counter)
    }

    /// How many there were since the last call.
    pub fn take(&self) -> Result<u64> {
        let mut statistics = libc::tpacket_stats { tp_packets: 0, tp_drops: 0 };
        let mut length = size_of::<libc::tpacket_stats>() as libc::socklen_t;
        // SAFETY: the kernel writes at most `length` bytes into the record, which lives until the call returns.
        let result = unsafe {
            libc::getsockopt(
                self.socket.as_raw_fd(),
                libc::SOL_PACKET,
                libc::PACKET_STATISTICS,
                (&raw mut statistics).cast(),
                &raw mut length,
            )
        };
        Errno::result(result).map_err(|errno| Error::errno("count packets", errno))?;
        Ok(u64::from(statistics.tp_packets))
    }
}

/// An error unless a testbed owns the thread's namespace and the interface is one end of a virtual pair.
fn check_owned(interface: &str) -> Result<()> {
    let refuse = |why: &str| Error::new(Kind::Permission, format!("will not send frames on {interface}: {why}"));
    living_testbed().ok_or_else(|| refuse("this network namespace was not made by a running test or lab"))?;
    let text = run(Command::new("ip").args(["-details", "-oneline", "link", "show", "dev", interface]))?;
    let is_pair = text.split_whitespace().any(|word| word == "veth");
    // The other end is in another namespace of the testbed; a link to the machine's first one would say so.
    if is_pair { Ok(()) } else { Err(refuse("it is not one end of a virtual Ethernet pair")) }
}

fn open(interface: &str, protocol: u16) -> Result<OwnedFd> {
    let index = nix::net::if_::if_nametoindex(interface)
        .map_err(|errno| Error::errno(format!("find interface {interface}"), errno))?;
    let fail = |errno| Error::errno(format!("open a packet socket on {interface}"), errno);
    // SAFETY: socket() takes no pointers; a descriptor that it returns is nobody else's.
    let socket = unsafe {
        let raw = libc::socket(libc::AF_PACKET, libc::SOCK_RAW | libc::SOCK_CLOEXEC, 0);
        Errno::result(raw).map_err(fail)?;
        OwnedFd::from_raw_fd(raw)
    };
    let address = libc::sockaddr_ll {
        sll_family: libc::AF_PACKET as u16,
        sll_protocol: protocol.to_be(),
        sll_ifindex: index.cast_signed(),
        sll_hatype: 0,
        sll_pkttype: 0,
        sll_halen: 0,
        sll_addr: [0; 8],
    };
    // SAFETY: the kernel reads the address, as long as said, which lives until the call returns.
    let result = unsafe {
        libc::bind(socket.as_raw_fd(), (&raw const address).cast(), size_of::<libc::sockaddr_ll>() as libc::socklen_t)
    };
    Errno::result(result).map_err(fail)?;
    Ok(socket)
}

fn set_option<T>(socket: &OwnedFd, level: libc::c_int, option: libc::c_int, value: &T) -> nix::Result<()> {
    // SAFETY: the kernel copies the value, as long as said, before the call returns.
    let result = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            level,
            option,
            std::ptr::from_ref(value).cast(),
            size_of::<T>() as libc::socklen_t,
        )
    };
    Errno::result(result).map(drop)
}

fn message(slice: &IoSlice<'_>) -> libc::mmsghdr {
    libc::mmsghdr {
        msg_hdr: libc::msghdr {
            msg_name: std::ptr::null_mut(),
            msg_namelen: 0,
            // An IoSlice is an iovec by its documentation, and the kernel only reads what it is to send.
            msg_iov: std::ptr::from_ref(slice).cast_mut().cast(),
            msg_iovlen: 1,
            msg_control: std::ptr::null_mut(),
            msg_controllen: 0,
            msg_flags: 0,
        },
        msg_len: 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Feature, Topology, require, wait_until};
    use std::time::Duration;

    /// Of the first byte of the source's hardware address, which nothing but the test sends.
    const MARK: u8 = 0x5e;
    const OF_THE_TEST: [(u16, u8, u8, u32); 4] =
        [(0x30, 0, 0, 6), (0x15, 0, 1, MARK as u32), (0x06, 0, 0, u32::MAX), (0x06, 0, 0, 0)];

    #[test]
    fn every_frame_that_was_sent_arrives_and_is_counted() {
        if !require(Feature::NetNs) {
            return;
        }
        let topology = Topology::new().expect("a topology");
        let counter =
            topology.server.run(|| PacketCounter::open("sv", &OF_THE_TEST)).expect("inside").expect("a counter");
        let sender = topology.clients.run(|| PacketSender::open("cv")).expect("inside").expect("a sender");
        let mut frame = [0; 60];
        frame[..6].fill(0xff);
        frame[6] = MARK;
        // A protocol that nobody handles.
        frame[12..14].copy_from_slice(&[0x88, 0xb5]);
        assert_eq!(sender.send(&[frame; 50]).expect("sent"), 50);
        frame[6] = 0;
        sender.send(&[frame]).expect("sent");
        let mut counted = 0;
        let all = wait_until(Duration::from_secs(5), || {
            counted += counter.take().unwrap_or_default();
            counted >= 50
        });
        assert!(all.is_ok(), "{counted} of 50");
        assert_eq!(counted, 50);
    }

    #[test]
    fn the_machines_own_interfaces_are_refused() {
        if !require(Feature::NetNs) {
            return;
        }
        let error = PacketSender::open("lo").expect_err("not a testbed");
        assert_eq!(error.kind(), Kind::Permission);
        let topology = Topology::new().expect("a topology");
        let inside = topology.clients.run(|| PacketSender::open("lo")).expect("inside");
        assert_eq!(inside.expect_err("not a pair").kind(), Kind::Permission);
    }
}
