// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What the answer to a SYN offers is what the kernel would have offered: the segment size by the link, selective
//! acknowledgments, timestamps, window scale and ECN, each as client and machine have them.

use std::time::Duration;

use fief_bpf::abi;
use fief_testkit::segment::{ACK, CWR, ECE, SYN, Segment};
use fief_testkit::{Family, ORDINARY_OPTIONS, PlainServer, RawClients, RawConnection, Topology, run, wait_until};
use fief_tests_netns::front::{Door, Front, GUARDED, plain, ready};
use fief_tests_netns::{SOON, one_installation};

const SIZE: [u8; 4] = [2, 4, 5, 0xb4];
const SACK: [u8; 2] = [4, 2];
const STAMP: [u8; 10] = [8, 10, 0, 0, 0x10, 0, 0, 0, 0, 0];
const SCALE: [u8; 3] = [3, 3, 7];

/// A SYN-ACK, as far as it must not depend on who sends it. The window scale is the sender's own.
#[derive(Debug, PartialEq)]
struct Offer {
    ecn: bool,
    segment_size: Option<Vec<u8>>,
    sack: bool,
    /// The client's clock as it comes back.
    echo: Option<Vec<u8>>,
    scale: bool,
}

struct Rig {
    front: Front,
    clients: RawClients,
    next: std::cell::Cell<u16>,
    server: PlainServer,
}

impl Rig {
    fn new(door: Door) -> Self {
        let front = Front::new(door, GUARDED);
        let server = front.plain_server();
        let clients = RawClients::new(&front.topology).unwrap();
        Self { front, clients, next: 2000.into(), server }
    }

    fn offer(&self, family: Family, flags: u8, options: &[&[u8]]) -> Offer {
        let port = self.next.replace(self.next.get() + 1);
        let client = (RawClients::address(family, 5), port).into();
        let mut syn = Segment::new(client, plain(family), SYN | flags);
        (syn.sequence, syn.options) = (u32::from(port) << 8, options.concat());
        self.clients.send(&syn).unwrap();
        let answer = self.clients.receive(client, SOON).expect("an answer");
        assert!(answer.has(SYN | ACK) && answer.acknowledgment == syn.sequence + 1, "{answer:?}");
        Offer {
            ecn: answer.has(ECE),
            segment_size: answer.option(2).map(<[u8]>::to_vec),
            sack: answer.option(4).is_some(),
            echo: answer.option(8).map(|stamp| stamp[4..].to_vec()),
            scale: answer.option(3).is_some(),
        }
    }

    fn set(&self, name: &str, value: &str) {
        self.front.topology.server.sysctl(&format!("net.ipv4.{name}"), value).unwrap();
    }
}

/// Every choice of options; a cookie of the kernel's keeps what its timestamp has room for, and nothing without one.
fn choices(door: Door) -> Vec<Vec<&'static [u8]>> {
    let all: [&'static [u8]; 4] = [&SIZE, &SACK, &STAMP, &SCALE];
    let choices = (0..1 << all.len()).map(|bits: usize| {
        let taken = all.iter().enumerate().filter(|(n, _)| bits & 1 << n != 0);
        taken.map(|(_, &option)| option).collect::<Vec<_>>()
    });
    choices.filter(|choice| door != Door::Kernel || choice.contains(&&STAMP[..])).collect()
}

/// Holds the answers of both doors against the kernel's own, under one setting after the other.
fn compare<T: Copy + std::fmt::Debug>(
    settings: &[T],
    prepare: impl Fn(&Rig, T),
    families: impl Fn(T) -> &'static [Family],
) {
    let stock = Rig::new(Door::Stock);
    for door in Door::GUARDS {
        let rig = Rig::new(door);
        for &setting in settings {
            prepare(&stock, setting);
            prepare(&rig, setting);
            for &family in families(setting) {
                for options in choices(door) {
                    let offers = [&rig, &stock].map(|rig| rig.offer(family, 0, &options));
                    assert_eq!(offers[0], offers[1], "{door:?}, {setting:?}, {family:?}, {options:?}");
                }
            }
        }
        prepare(&stock, settings[0]);
    }
}

const FAMILIES: &[Family] = &[Family::V4, Family::V6];

#[test]
fn the_segment_size_is_the_links() {
    if !ready() {
        return;
    }
    let _one = one_installation();
    // IPv6 needs 1280, and clients of it that nobody routes to any more cannot be asked again.
    let families = |mtu| if mtu < 1280 { &FAMILIES[..1] } else { FAMILIES };
    for mtus in [&[9000, 1500, 1280][..], &[576]] {
        compare(mtus, |rig, mtu| rig.front.topology.set_mtu(mtu).unwrap(), families);
    }
}

#[test]
fn an_option_that_the_machine_has_switched_off_is_not_taken_up() {
    if !ready() {
        return;
    }
    let _one = one_installation();
    // The kernel's cookies need its timestamps, so that they are not switched off here.
    let settings = [("tcp_sack", "0"), ("tcp_sack", "1"), ("tcp_window_scaling", "0"), ("tcp_window_scaling", "1")];
    compare(&settings, |rig, (name, value)| rig.set(name, value), |_| FAMILIES);
}

#[test]
fn congestion_is_notified_where_client_and_machine_want_it() {
    if !ready() {
        return;
    }
    let _one = one_installation();
    let cases =
        [("2", ECE | CWR, true), ("1", ECE | CWR, true), ("0", ECE | CWR, false), ("2", 0, false), ("2", ECE, false)];
    for door in Door::ALL {
        let rig = Rig::new(door);
        for (setting, flags, expected) in cases {
            rig.set("tcp_ecn", setting);
            for &family in FAMILIES {
                // Without timestamps there is no room in a cookie to remember it.
                let offer = rig.offer(family, flags, &[&SIZE, &STAMP]);
                assert_eq!(offer.ecn, expected, "{door:?}, {family:?}, tcp_ecn {setting}: {offer:?}");
            }
        }
    }
}

#[test]
fn a_bare_ack_ends_the_handshake_it_is_of_and_no_other() {
    if !ready() {
        return;
    }
    let _one = one_installation();
    for door in Door::GUARDS {
        let rig = Rig::new(door);
        for (n, family) in [Family::V4, Family::V6].into_iter().enumerate() {
            let ends = [(RawClients::address(family, 6), 1000).into(), plain(family)];
            let before = rig.front.verdicts();
            let bad = || rig.front.verdicts().since(&before).count(abi::FIEF_ACK_BAD);
            let open = |first| {
                let open = RawConnection::open(&rig.clients, ends, first, &ORDINARY_OPTIONS, SOON).unwrap();
                let connection = open.expect("a SYN-ACK");
                connection.acknowledge().unwrap();
                connection
            };
            open(77);
            wait_until(SOON, || rig.front.proven_sources() == n + 1)
                .unwrap_or_else(|_| panic!("{door:?}, {family:?}: {}", rig.front.proven_sources()));
            // Of who is known, the door remembers the ACK that it waits for.
            let connection = open(1 << 20);
            connection.acknowledge().unwrap();
            let right = connection.segment(ACK, 0, b"");
            let mut strange = [right.clone(), right.clone(), right];
            strange[0].acknowledgment ^= 1 << 31;
            strange[1].sequence ^= 1 << 31;
            strange[2].source.set_port(1001);
            for (segment, count) in strange.iter().zip(1..) {
                rig.clients.send(segment).unwrap();
                wait_until(SOON, || bad() == count)
                    .unwrap_or_else(|_| panic!("{door:?}, {family:?}, {segment:?}: {} of {count}", bad()));
            }
            assert_eq!(rig.server.accepted(), 0, "{door:?}, {family:?}");
        }
    }
}

#[test]
fn what_was_agreed_is_kept_to_on_the_connection() {
    if !ready() {
        return;
    }
    const REQUEST: &[u8] = b"GET /close/20000 HTTP/1.1\r\nHost: server\r\n\r\n";
    let _one = one_installation();
    for door in Door::ALL {
        let rig = Rig::new(door);
        // Or segments are seen merged.
        let merging = ["-K", Topology::CLIENTS, "gro", "off"];
        run(rig.front.topology.clients.command("ethtool").args(merging)).unwrap();
        for (n, family) in [Family::V4, Family::V6].into_iter().enumerate() {
            let ends = [(RawClients::address(family, 6), 1000 + n as u16).into(), plain(family)];
            // The server may send segments of this size, and 32 << 7 bytes of them before an acknowledgment.
            let size: u16 = if family == Family::V4 { 536 } else { 1220 };
            let options = [&[2, 4][..], &size.to_be_bytes(), &SACK, &STAMP, &SCALE].concat();
            let open = RawConnection::open(&rig.clients, ends, 77, &options, SOON).unwrap();
            let connection = open.expect("a SYN-ACK");
            // The request ends the handshake: an ACK before it would have opened a wider window.
            let mut request = connection.segment(ACK, 0, REQUEST);
            request.window = 32;
            rig.clients.send(&request).unwrap();
            let (mut room, mut longest) = (0, 0);
            let mut time = SOON;
            while let Some(segment) = rig.clients.receive(ends[0], time) {
                if segment.has(SYN) || segment.payload.is_empty() {
                    continue;
                }
                let end = segment.sequence.wrapping_add(segment.length()).wrapping_sub(connection.expected);
                (room, longest) = (room.max(end), longest.max(segment.payload.len()));
                if room >= u32::from(size) {
                    time = Duration::from_millis(50);
                }
                assert!(segment.option(8).is_some(), "{door:?}: {segment:?}");
            }
            // Timestamps are part of a segment's size (RFC 6691).
            assert_eq!(longest, usize::from(size) - 12, "{door:?}, {family:?}");
            assert!((u32::from(size)..=32 << 7).contains(&room), "{door:?}, {family:?}: {room}");
        }
    }
}
