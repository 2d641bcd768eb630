// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A tap device whose other side the test plays, as the host of a virtual machine does: frames may be merged ones, with
//! a segment size and no count of segments (a virtio network header). Or a TUN device, as of a VPN: its frames are packets.

use crate::segment::{Segment, TCP};
use crate::{Error, NetNs, Result};
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use std::fs::{File, OpenOptions};
use std::io::{Read, Write};
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::fs::OpenOptionsExt;
use std::time::{Duration, Instant};

/// Bytes of `struct virtio_net_hdr`.
const HEADER: usize = 10;
const NEEDS_CHECKSUM: u8 = 1; // VIRTIO_NET_HDR_F_NEEDS_CSUM
const MERGED_TCP4: u8 = 1; // VIRTIO_NET_HDR_GSO_TCPV4
const ETHERNET: usize = 14;
const CHECKSUM_AT: u16 = 16; // of a TCP header

/// The device lives as long as this.
#[derive(Debug)]
pub struct Tap {
    file: File,
    /// Bytes of a frame before its packet.
    link: usize,
}

impl Tap {
    /// Makes the device in a network namespace; it is down and has no address.
    pub fn new(namespace: &NetNs, name: &str) -> Result<Tap> {
        Tap::of(namespace, name, libc::IFF_TAP, ETHERNET)
    }

    /// The same without link addresses.
    pub fn tunnel(namespace: &NetNs, name: &str) -> Result<Tap> {
        Tap::of(namespace, name, libc::IFF_TUN, 0)
    }

    fn of(namespace: &NetNs, name: &str, kind: libc::c_int, link: usize) -> Result<Tap> {
        let made = namespace.run(|| open(name, kind))?;
        made.map(|file| Tap { file, link }).map_err(|e| Error::errno("make a tap device", e))
    }

    /// What the network sends to the machine: one frame.
    pub fn send(&self, frame: &[u8]) -> Result<()> {
        self.write([0; HEADER], frame)
    }

    /// The same for a frame of IPv4 and TCP that stands for several of `size` bytes of payload each.
    pub fn send_merged(&self, frame: &[u8], size: u16) -> Result<()> {
        let ip = usize::from(frame[self.link] & 15) * 4;
        let tcp = usize::from(frame[self.link + ip + 12] >> 4) * 4;
        let word = |value: usize| u16::try_from(value).expect("headers are short").to_ne_bytes();
        // what the checksum begins with; the rest of it is for whoever cuts the frame
        let length = u16::try_from(frame.len() - self.link - ip).expect("a frame is short");
        let pseudo = [&frame[self.link + 12..self.link + 20], &[0, TCP], &length.to_be_bytes()].concat();
        let mut sum: u32 = pseudo.chunks(2).map(|pair| u32::from(pair[0]) << 8 | u32::from(pair[1])).sum();
        sum = (sum & 0xffff) + (sum >> 16);
        sum = (sum & 0xffff) + (sum >> 16);
        let mut frame = frame.to_vec();
        let at = self.link + ip + usize::from(CHECKSUM_AT);
        frame[at..at + 2].copy_from_slice(&u16::try_from(sum).expect("folded").to_be_bytes());
        let mut header = [0; HEADER];
        header[0] = NEEDS_CHECKSUM;
        header[1] = MERGED_TCP4;
        header[2..4].copy_from_slice(&word(self.link + ip + tcp));
        header[4..6].copy_from_slice(&size.to_ne_bytes());
        header[6..8].copy_from_slice(&word(self.link + ip));
        header[8..10].copy_from_slice(&CHECKSUM_AT.to_ne_bytes());
        self.write(header, &frame)
    }

    fn write(&self, header: [u8; HEADER], frame: &[u8]) -> Result<()> {
        let bytes = [&header[..], frame].concat();
        (&self.file).write_all(&bytes).map_err(|e| Error::errno("send to a tap device", errno(&e)))
    }

    /// The next TCP segment that the machine sends there; none within the time.
    pub fn receive(&self, time: Duration) -> Option<Segment> {
        let end = Instant::now() + time;
        let mut buffer = vec![0; HEADER + (1 << 16)];
        loop {
            let left = end.saturating_duration_since(Instant::now());
            let wait = PollTimeout::try_from(left).unwrap_or(PollTimeout::MAX);
            let mut ready = [PollFd::new(self.file.as_fd(), PollFlags::POLLIN)];
            if poll(&mut ready, wait).unwrap_or(0) > 0
                && let Ok(length) = (&self.file).read(&mut buffer)
                && let Some(segment) = buffer.get(HEADER..length).and_then(|frame| self.parse(frame))
            {
                return Some(segment);
            }
            if Instant::now() >= end {
                return None;
            }
        }
    }
}

impl Tap {
    fn parse(&self, frame: &[u8]) -> Option<Segment> {
        if self.link == ETHERNET {
            return Segment::parse(frame);
        }
        let kind: u16 = if frame.first()? >> 4 == 6 { 0x86dd } else { 0x0800 };
        Segment::parse(&[&[0; 12][..], &kind.to_be_bytes(), frame].concat())
    }
}

fn errno(error: &std::io::Error) -> Errno {
    Errno::from_raw(error.raw_os_error().unwrap_or_default())
}

fn open(name: &str, kind: libc::c_int) -> nix::Result<File> {
    let mut options = OpenOptions::new();
    options.read(true).write(true).custom_flags(libc::O_NONBLOCK | libc::O_CLOEXEC);
    let file = options.open("/dev/net/tun").map_err(|e| errno(&e))?;
    // SAFETY: all zeros are a valid request.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    for (to, from) in request.ifr_name.iter_mut().zip(name.bytes()).take(libc::IFNAMSIZ - 1) {
        *to = from.cast_signed();
    }
    request.ifr_ifru.ifru_flags = (kind | libc::IFF_NO_PI | libc::IFF_VNET_HDR) as libc::c_short;
    // SAFETY: the kernel reads and writes the request, which lives until the call returns.
    Errno::result(unsafe { libc::ioctl(file.as_raw_fd(), libc::TUNSETIFF, &raw mut request) })?;
    Ok(file)
}
