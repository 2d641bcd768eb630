// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A SYN as an Ethernet frame, with the options that a Linux client sends, and how one becomes the next. Pure.

use std::net::{Ipv4Addr, SocketAddrV4};

pub const LENGTH: usize = IP + 20 + TCP_LENGTH;
const IP: usize = 14;
const TCP: usize = IP + 20;
const TCP_LENGTH: usize = 40;

const SOURCE: usize = IP + 12;
const DESTINATION: usize = IP + 16;
const IP_CHECKSUM: usize = IP + 10;
const TCP_CHECKSUM: usize = TCP + 16;

/// MSS 1460, SACK permitted, timestamps, window scale 7.
const OPTIONS: [u8; 20] = [2, 4, 5, 0xb4, 4, 2, 8, 10, 0, 0, 0, 1, 0, 0, 0, 0, 1, 3, 3, 7];

/// A valid frame, whose checksums follow each change.
#[derive(Clone, Debug)]
pub struct Syn {
    bytes: [u8; LENGTH],
}

impl AsRef<[u8]> for Syn {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl Syn {
    pub fn new(server_mac: [u8; 6], server: SocketAddrV4) -> Syn {
        let mut bytes = [0; LENGTH];
        bytes[..6].copy_from_slice(&server_mac);
        // A locally administered address of no host: nothing is ever sent back to it.
        bytes[6] = 2;
        bytes[12..14].copy_from_slice(&0x0800u16.to_be_bytes());
        bytes[IP] = 0x45;
        bytes[IP + 2..IP + 4].copy_from_slice(&((LENGTH - IP) as u16).to_be_bytes());
        bytes[IP + 8] = 64;
        bytes[IP + 9] = 6;
        bytes[DESTINATION..DESTINATION + 4].copy_from_slice(&server.ip().octets());
        bytes[TCP + 2..TCP + 4].copy_from_slice(&server.port().to_be_bytes());
        bytes[TCP + 12] = (TCP_LENGTH / 4 * 16) as u8;
        bytes[TCP + 13] = 2;
        bytes[TCP + 14..TCP + 16].copy_from_slice(&64240u16.to_be_bytes());
        bytes[TCP + 20..TCP + 40].copy_from_slice(&OPTIONS);
        let mut syn = Syn { bytes };
        syn.put(IP_CHECKSUM, !sum(&syn.bytes[IP..TCP], 0));
        // The pseudo header: both addresses, the protocol and the length.
        let pseudo = sum(&syn.bytes[SOURCE..TCP], 6 + TCP_LENGTH as u32);
        syn.put(TCP_CHECKSUM, !sum(&syn.bytes[TCP..], pseudo.into()));
        syn
    }

    /// Makes it come from there.
    pub fn set(&mut self, source: Ipv4Addr, port: u16, sequence: u32) {
        let [a, b, c, d] = source.octets();
        for (at, value) in [(SOURCE, [a, b]), (SOURCE + 2, [c, d])] {
            let value = u16::from_be_bytes(value);
            self.adjust(IP_CHECKSUM, at, value);
            self.replace(at, value);
        }
        self.replace(TCP, port);
        self.replace(TCP + 4, (sequence >> 16) as u16);
        self.replace(TCP + 6, sequence as u16);
    }

    /// Puts a word that the TCP checksum covers.
    fn replace(&mut self, at: usize, value: u16) {
        self.adjust(TCP_CHECKSUM, at, value);
        self.put(at, value);
    }

    /// A checksum for when the word at `at` becomes `value` (RFC 1624, equation 3).
    fn adjust(&mut self, checksum: usize, at: usize, value: u16) {
        let changed = u32::from(!self.get(checksum)) + u32::from(!self.get(at)) + u32::from(value);
        self.put(checksum, !fold(changed));
    }

    fn get(&self, at: usize) -> u16 {
        u16::from_be_bytes([self.bytes[at], self.bytes[at + 1]])
    }

    fn put(&mut self, at: usize, value: u16) {
        self.bytes[at..at + 2].copy_from_slice(&value.to_be_bytes());
    }
}

/// The ones' complement sum of 16-bit words; what is left over at the end counts as the upper half of one.
pub fn sum(bytes: &[u8], start: u32) -> u16 {
    let word = |two: &[u8]| u32::from(u16::from_be_bytes([two[0], two.get(1).copied().unwrap_or(0)]));
    fold(bytes.chunks(2).fold(start, |total, two| total + word(two)))
}

fn fold(mut total: u32) -> u16 {
    while total > 0xffff {
        total = (total & 0xffff) + (total >> 16);
    }
    total as u16
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn the_checksums_are_right_whatever_it_became(steps in prop::collection::vec(any::<(u32, u16, u32)>(), 1..20)) {
            let server = SocketAddrV4::new(Ipv4Addr::new(10, 77, 0, 1), 80);
            let mut syn = Syn::new([2, 0, 0, 0, 0, 1], server);
            for (source, port, sequence) in steps {
                syn.set(Ipv4Addr::from(source), port, sequence);
                // A sum over what a right checksum covers, the checksum included, is all ones.
                prop_assert_eq!(sum(&syn.bytes[IP..TCP], 0), 0xffff);
                let pseudo = sum(&syn.bytes[SOURCE..TCP], 6 + TCP_LENGTH as u32);
                prop_assert_eq!(sum(&syn.bytes[TCP..], pseudo.into()), 0xffff);
                prop_assert_eq!(&syn.bytes[SOURCE..SOURCE + 4], &source.to_be_bytes()[..]);
                prop_assert_eq!(&syn.bytes[TCP + 4..TCP + 8], &sequence.to_be_bytes()[..]);
            }
        }
    }
}
