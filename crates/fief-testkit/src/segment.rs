// SPDX-License-Identifier: Apache-2.0 OR MIT
//! TCP segments as bytes: what a test sends past its own kernel, and what came back.
//!
//! [`Segment`] is the well-formed case. Odd ones are made from the same parts: [`Segment::tcp`] is the TCP part alone, and
//! [`ipv4`], [`ipv6`] and [`frame`] put around it what the test wants.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

pub const FIN: u8 = 1;
pub const SYN: u8 = 2;
pub const RST: u8 = 4;
pub const PSH: u8 = 8;
pub const ACK: u8 = 16;
pub const URG: u8 = 32;
pub const ECE: u8 = 64;
pub const CWR: u8 = 128;

pub const TCP: u8 = 6;
pub const IPV4: u16 = 0x0800;
pub const IPV6: u16 = 0x86dd;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Segment {
    pub source: SocketAddr,
    pub destination: SocketAddr,
    pub sequence: u32,
    pub acknowledgment: u32,
    pub flags: u8,
    pub window: u16,
    /// As on the wire, padded to words when the segment is written.
    pub options: Vec<u8>,
    pub payload: Vec<u8>,
}

impl Segment {
    /// Nothing but addresses and flags.
    pub fn new(source: SocketAddr, destination: SocketAddr, flags: u8) -> Segment {
        let (options, payload) = (Vec::new(), Vec::new());
        Segment { source, destination, sequence: 0, acknowledgment: 0, flags, window: 65535, options, payload }
    }

    pub fn has(&self, flags: u8) -> bool {
        self.flags & flags == flags
    }

    /// How much sequence space it takes.
    pub fn length(&self) -> u32 {
        let flags = u32::from(self.has(SYN)) + u32::from(self.has(FIN));
        u32::try_from(self.payload.len()).expect("a packet is short") + flags
    }

    /// The value of an option; `None` if it is not there or cut off.
    pub fn option(&self, kind: u8) -> Option<&[u8]> {
        let mut rest = &self.options[..];
        loop {
            match *rest {
                [] | [0, ..] => return None,
                [1, ..] => rest = &rest[1..],
                [found, length, ..] => {
                    let value = rest.get(2..usize::from(length))?;
                    if found == kind {
                        return Some(value);
                    }
                    rest = &rest[usize::from(length)..];
                }
                [_] => return None,
            }
        }
    }

    /// Header and payload, with a good checksum.
    pub fn tcp(&self) -> Vec<u8> {
        let mut options = self.options.clone();
        options.resize(options.len().next_multiple_of(4), 0);
        let words = u8::try_from(5 + options.len() / 4).expect("options are short");
        let mut bytes = Vec::new();
        bytes.extend(self.source.port().to_be_bytes());
        bytes.extend(self.destination.port().to_be_bytes());
        bytes.extend(self.sequence.to_be_bytes());
        bytes.extend(self.acknowledgment.to_be_bytes());
        bytes.extend([words << 4, self.flags]);
        bytes.extend(self.window.to_be_bytes());
        bytes.extend([0; 4]);
        bytes.extend(options);
        bytes.extend(&self.payload);
        set_checksum(&mut bytes, self.source.ip(), self.destination.ip());
        bytes
    }

    /// The whole packet, network header first.
    pub fn packet(&self) -> Vec<u8> {
        self.packet_of(&self.tcp())
    }

    /// The same with these bytes for header and payload.
    pub fn packet_of(&self, tcp: &[u8]) -> Vec<u8> {
        match (self.source.ip(), self.destination.ip()) {
            (IpAddr::V4(from), IpAddr::V4(to)) => ipv4(from, to, &[], 0x4000, TCP, tcp),
            (IpAddr::V6(from), IpAddr::V6(to)) => ipv6(from, to, TCP, tcp),
            _ => panic!("both addresses are of one family"),
        }
    }

    /// Reads a frame; `None` if there is no whole TCP segment in it.
    pub fn parse(frame: &[u8]) -> Option<Segment> {
        let packet = frame.get(14..)?;
        let (from, to, tcp): (IpAddr, IpAddr, &[u8]) = match u16_at(frame, 12)? {
            IPV4 => {
                let header = usize::from(packet.first()? & 15) * 4;
                let address = |at: usize| Some(IpAddr::from(<[u8; 4]>::try_from(packet.get(at..at + 4)?).ok()?));
                let tcp = packet.get(header..usize::from(u16_at(packet, 2)?))?;
                (*packet.get(9)? == TCP).then_some((address(12)?, address(16)?, tcp))?
            }
            IPV6 => {
                let address = |at: usize| Some(IpAddr::from(<[u8; 16]>::try_from(packet.get(at..at + 16)?).ok()?));
                let tcp = packet.get(40..40 + usize::from(u16_at(packet, 4)?))?;
                (*packet.get(6)? == TCP).then_some((address(8)?, address(24)?, tcp))?
            }
            _ => return None,
        };
        let header = usize::from(tcp.get(12)? >> 4) * 4;
        Some(Segment {
            source: (from, u16_at(tcp, 0)?).into(),
            destination: (to, u16_at(tcp, 2)?).into(),
            sequence: u32_at(tcp, 4)?,
            acknowledgment: u32_at(tcp, 8)?,
            flags: *tcp.get(13)?,
            window: u16_at(tcp, 14)?,
            options: tcp.get(20..header)?.to_vec(),
            payload: tcp.get(header..)?.to_vec(),
        })
    }
}

/// An IPv4 packet; `options` in whole words, `fragment` as in the header (0x4000: do not fragment, 0x2000: more follow).
pub fn ipv4(from: Ipv4Addr, to: Ipv4Addr, options: &[u8], fragment: u16, protocol: u8, payload: &[u8]) -> Vec<u8> {
    assert_eq!(options.len() % 4, 0, "options in whole words");
    let header = 20 + options.len();
    let mut bytes = vec![0x40 | u8::try_from(header / 4).expect("options are short"), 0];
    bytes.extend(u16::try_from(header + payload.len()).expect("a packet is short").to_be_bytes());
    bytes.extend(0x4711u16.to_be_bytes());
    bytes.extend(fragment.to_be_bytes());
    bytes.extend([64, protocol, 0, 0]);
    bytes.extend(from.octets());
    bytes.extend(to.octets());
    bytes.extend(options);
    let checksum = !folded(&bytes, 0);
    bytes[10..12].copy_from_slice(&checksum.to_be_bytes());
    bytes.extend(payload);
    bytes
}

/// An IPv6 packet; `next` is the first of whatever headers `payload` begins with.
pub fn ipv6(from: Ipv6Addr, to: Ipv6Addr, next: u8, payload: &[u8]) -> Vec<u8> {
    let mut bytes = vec![0x60, 0, 0, 0];
    bytes.extend(u16::try_from(payload.len()).expect("a packet is short").to_be_bytes());
    bytes.extend([next, 64]);
    bytes.extend(from.octets());
    bytes.extend(to.octets());
    bytes.extend(payload);
    bytes
}

/// A frame with these VLAN tags (their identifiers), outermost first.
pub fn frame(to: [u8; 6], from: [u8; 6], tags: &[u16], packet: &[u8]) -> Vec<u8> {
    let kind = if packet.first().is_some_and(|first| first >> 4 == 6) { IPV6 } else { IPV4 };
    let mut bytes = [to, from].concat();
    for tag in tags {
        bytes.extend(0x8100u16.to_be_bytes());
        bytes.extend(tag.to_be_bytes());
    }
    bytes.extend(kind.to_be_bytes());
    bytes.extend(packet);
    bytes
}

/// Writes the checksum of a TCP header and what follows it.
pub fn set_checksum(tcp: &mut [u8], from: IpAddr, to: IpAddr) {
    tcp[16..18].fill(0);
    let mut pseudo = Vec::new();
    for address in [from, to] {
        match address {
            IpAddr::V4(address) => pseudo.extend(address.octets()),
            IpAddr::V6(address) => pseudo.extend(address.octets()),
        }
    }
    pseudo.extend(u32::from(TCP).to_be_bytes());
    pseudo.extend(u32::try_from(tcp.len()).expect("a packet is short").to_be_bytes());
    let checksum = !folded(tcp, folded(&pseudo, 0));
    tcp[16..18].copy_from_slice(&checksum.to_be_bytes());
}

/// The Internet checksum's sum (RFC 1071), not yet complemented.
fn folded(bytes: &[u8], begin: u16) -> u16 {
    let words = bytes.chunks(2).map(|pair| u32::from(pair[0]) << 8 | pair.get(1).copied().map_or(0, u32::from));
    let mut sum = u32::from(begin) + words.sum::<u32>();
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    u16::try_from(sum).expect("folded")
}

fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_be_bytes(bytes.get(at..at + 2)?.try_into().ok()?))
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_be_bytes(bytes.get(at..at + 4)?.try_into().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn segment(from: &str, to: &str) -> Segment {
        let mut segment = Segment::new(from.parse().expect("an address"), to.parse().expect("an address"), SYN | ECE);
        segment.options = vec![2, 4, 5, 0xb4, 1, 3, 3, 7];
        segment.payload = b"odd".to_vec();
        (segment.sequence, segment.acknowledgment) = (0xfedc_ba98, 7);
        segment
    }

    #[test]
    fn a_segment_comes_back_as_it_was_written() {
        for segment in [segment("10.0.0.1:80", "10.0.0.2:81"), segment("[fd00::1]:80", "[fd00::2]:81")] {
            let frame = frame([1; 6], [2; 6], &[], &segment.packet());
            assert_eq!(Segment::parse(&frame), Some(segment.clone()));
            assert_eq!(segment.option(3), Some(&[7u8][..]));
            assert_eq!(segment.option(8), None);
            assert_eq!(segment.length(), 4);
        }
    }

    #[test]
    fn a_packet_sums_up_to_all_ones() {
        let segment = segment("10.0.0.1:80", "10.0.0.2:81");
        let packet = segment.packet();
        assert_eq!(folded(&packet[..20], 0), 0xffff);
        let pseudo = [&packet[12..20], &[0, TCP, 0, u8::try_from(packet.len() - 20).expect("short")]].concat();
        assert_eq!(folded(&packet[20..], folded(&pseudo, 0)), 0xffff);
    }

    #[test]
    fn what_is_cut_off_is_no_segment() {
        let whole = frame([1; 6], [2; 6], &[], &segment("10.0.0.1:80", "10.0.0.2:81").packet());
        for length in 0..whole.len() {
            assert_eq!(Segment::parse(&whole[..length]), None, "{length}");
        }
    }
}
