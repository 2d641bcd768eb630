// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Every way to wrap a segment, and to break one.

use std::net::IpAddr;

use fief_testkit::segment::{RST, Segment, TCP, ipv4, ipv6, set_checksum};

use crate::rig::Packet;

pub type Shape = (&'static str, Vec<Packet>);

/// Every way to wrap a segment that leaves the segment itself as it is.
pub fn wrapped(segment: &Segment) -> Vec<Shape> {
    let tcp = segment.tcp();
    // IPv6 wants the whole header in the first piece; pieces have multiples of eight bytes.
    let cut = if tcp.len() > 24 { 24 } else { 16 };
    let mut shapes = tagged(&segment.packet());
    shapes.extend(match (segment.source.ip(), segment.destination.ip()) {
        (IpAddr::V4(from), IpAddr::V4(to)) => {
            let options = |bytes: &[u8]| vec![(vec![], ipv4(from, to, bytes, 0x4000, TCP, &tcp))];
            let pieces = |at: usize| {
                let rest = (at / 8) as u16;
                vec![
                    (vec![], ipv4(from, to, &[], 0x2000, TCP, &tcp[..at])),
                    (vec![], ipv4(from, to, &[], rest, TCP, &tcp[at..])),
                ]
            };
            vec![
                ("no-operation options", options(&[1; 4])),
                ("the most options that there can be", options(&[1; 40])),
                ("record route", options(&[7, 7, 4, 0, 0, 0, 0, 1])),
                ("a timestamp option", options(&[68, 12, 5, 0, 0, 0, 0, 0, 0, 0, 0, 0])),
                ("router alert", options(&[148, 4, 0, 0])),
                ("fragments, the first as short as can be", pieces(8)),
                ("fragments, the first with another header behind its end", {
                    // The kernel cuts off what a frame holds behind the packet.
                    let mut pieces = pieces(8);
                    pieces[0].1.extend([0, 0, 0, 0, 0x50, RST, 0, 0, 0, 0, 0, 0]);
                    pieces
                }),
                ("fragments", pieces(cut)),
                ("fragments, the last first", pieces(cut).into_iter().rev().collect()),
            ]
        }
        (IpAddr::V6(from), IpAddr::V6(to)) => {
            let headers = |first: u8, bytes: &[u8]| vec![(vec![], ipv6(from, to, first, &[bytes, &tcp].concat()))];
            let pad = |next: u8| [next, 0, 1, 4, 0, 0, 0, 0];
            let piece = |at: std::ops::Range<usize>, more: u16| {
                let offset = (at.start as u16 & !7) | more;
                let header = [&[TCP, 0][..], &offset.to_be_bytes(), &[0, 0, 47, 11]].concat();
                (vec![], ipv6(from, to, 44, &[&header, &tcp[at]].concat()))
            };
            vec![
                ("hop-by-hop options", headers(0, &pad(TCP))),
                ("destination options", headers(60, &pad(TCP))),
                ("a routing header", headers(43, &[TCP, 0, 0, 0, 0, 0, 0, 0])),
                ("a lone fragment", headers(44, &[TCP, 0, 0, 0, 0, 0, 47, 11])),
                (
                    "one header after the other",
                    headers(0, &[pad(60), pad(43), [44, 0, 0, 0, 0, 0, 0, 0], [TCP, 0, 0, 0, 0, 0, 0, 9]].concat()),
                ),
                ("more headers than anybody needs", headers(60, &[pad(60).repeat(20), pad(TCP).to_vec()].concat())),
                ("fragments", vec![piece(0..cut, 1), piece(cut..tcp.len(), 0)]),
                ("hop-by-hop options and no length", {
                    let mut packets = headers(0, &pad(TCP));
                    packets[0].1[4..6].fill(0);
                    packets
                }),
                (BLIND, {
                    let whole = [&pad(60)[..], &pad(TCP), &tcp].concat();
                    let piece = |at: std::ops::Range<usize>, more: u16| {
                        let offset = (at.start as u16 & !7) | more;
                        let header = [&[60, 0][..], &offset.to_be_bytes(), &[0, 0, 47, 12]].concat();
                        (vec![], ipv6(from, to, 44, &[&header, &whole[at]].concat()))
                    };
                    vec![piece(0..8, 1), piece(8..whole.len(), 0)]
                }),
            ]
        }
        _ => unreachable!("one family"),
    });
    shapes
}

fn tagged(packet: &[u8]) -> Vec<Shape> {
    vec![
        ("a priority tag", vec![(vec![0], packet.to_vec())]),
        ("two priority tags", vec![(vec![0, 0], packet.to_vec())]),
        ("three priority tags", vec![(vec![0, 0, 0], packet.to_vec())]),
        ("more priority tags than anybody needs", vec![(vec![0; 30], packet.to_vec())]),
        (FOREIGN, vec![(vec![5], packet.to_vec())]),
        (FOREIGN, vec![(vec![0, 5], packet.to_vec())]),
    ]
}

/// Whose port it is for nobody can tell from the first piece.
pub const BLIND: &str = "fragments, the first without the port";

/// No device is there for it, so the kernel drops it behind the door.
pub const FOREIGN: &str = "a tag of a VLAN";

/// SYNs whose lengths or options do not fit.
pub fn broken(syn: &Segment) -> Vec<Shape> {
    let words = |count: u8| {
        let mut tcp = syn.tcp();
        tcp[12] = count << 4;
        set_checksum(&mut tcp, syn.source.ip(), syn.destination.ip());
        syn.packet_of(&tcp)
    };
    let options = |bytes: &[u8]| Segment { options: bytes.to_vec(), ..syn.clone() }.packet();
    let one = |packet| vec![(vec![], packet)];
    let length = |change: i32| {
        let mut packet = syn.packet();
        let at = if syn.source.is_ipv4() { 2 } else { 4 };
        let told = i32::from(u16::from_be_bytes([packet[at], packet[at + 1]])) + change;
        packet[at..at + 2].copy_from_slice(&u16::try_from(told).unwrap().to_be_bytes());
        one(packet)
    };
    vec![
        ("a header of four words", one(words(4))),
        ("a header of no words", one(words(0))),
        ("a header longer than the packet", one(words(15))),
        ("an option of no length", one(options(&[2, 0, 5, 0xb4]))),
        ("an option that ends behind the header", one(options(&[1, 1, 2, 40]))),
        ("an option without a length", one(options(&[1, 1, 1, 8]))),
        ("a maximum segment size of three bytes", one(options(&[2, 3, 5, 1]))),
        ("a maximum segment size of zero", one(options(&[2, 4, 0, 0]))),
        ("a window scale beyond the most", one(options(&[3, 3, 200, 1]))),
        ("forty unknown options", one(options(&[253, 2].repeat(20)))),
        ("a packet that says it is longer", length(100)),
        ("a packet that says it is shorter than its header", length(-30)),
        ("half a header", one(syn.packet_of(&syn.tcp()[..10]))),
    ]
}

/// The segment with its urgent pointer at one byte of its payload, or behind it.
pub fn urgent(segment: &Segment, byte: u16) -> Packet {
    let mut tcp = segment.tcp();
    tcp[18..20].copy_from_slice(&(byte + 1).to_be_bytes());
    set_checksum(&mut tcp, segment.source.ip(), segment.destination.ip());
    (vec![], segment.packet_of(&tcp))
}
