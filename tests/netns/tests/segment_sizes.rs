// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Where the kernel answers, the door remembers from the SYN what size of segments a client takes, if it is not the usual one
//! (VPNs, tunnels). A flood of such SYNs makes it forget only clients that have not proven themselves.

use std::net::SocketAddr;
use std::time::Duration;

use fief_bpf::abi;
use fief_testkit::segment::{ACK, SYN, Segment};
use fief_testkit::{Ending, Family, ORDINARY_OPTIONS, RawClients, RawConnection, wait_until};
use fief_tests_netns::front::{Door, plain, ready};
use fief_tests_netns::refusing;
use fief_tests_netns::rig::{Rig, whole};
use fief_tests_netns::{SOON, one_installation};

const POLICY: &str = refusing!("/secret/*", "reset");

const SECRET: &[u8] = b"GET /secret/1 HTTP/1.1\r\nHost: server\r\n\r\n";

/// Twice the places of the table.
const FLOOD: u16 = 8192;

/// Of a client that takes segments of this size.
fn options(segment_size: u16) -> Vec<u8> {
    let mut options = ORDINARY_OPTIONS.to_vec();
    options[2..4].copy_from_slice(&segment_size.to_be_bytes());
    options
}

fn flood(rig: &Rig) {
    for n in 1000..1000 + FLOOD {
        let mut syn = Segment::new((RawClients::address(Family::V4, n), 2000).into(), plain(Family::V4), SYN);
        syn.options = options(1300);
        rig.clients.send(&syn).unwrap();
    }
}

/// A handshake whose SYN is sent again: the answers to a flood before may fill the clients' end of the link.
fn open(rig: &Rig, port: u16, size: u16) -> RawConnection<'_> {
    let client: SocketAddr = (RawClients::address(Family::V4, 5), port).into();
    let ends = [client, plain(Family::V4)];
    let mut made = None;
    wait_until(SOON, || {
        made = RawConnection::open(&rig.clients, ends, 1, &options(size), Duration::from_secs(1)).unwrap();
        made.is_some()
    })
    .unwrap_or_else(|_| panic!("no SYN-ACK for {client}: {:?}", rig.verdicts()));
    made.expect("it waited for one")
}

#[test]
fn a_flood_does_not_make_the_door_forget_what_size_a_proven_client_takes() {
    if !ready() {
        return;
    }
    let _one = one_installation();
    let rig = Rig::new(Door::Kernel, POLICY);
    for (port, size) in [(3000, 536), (3002, 1300), (3004, 1440)] {
        let mut first = open(&rig, port, size);
        first.acknowledge().unwrap();
        first.converse(SECRET, &whole(SECRET), SOON).unwrap();
        let again = open(&rig, port + 1, size);
        // what the first connection sent again has been counted by now
        let before = rig.verdicts();
        flood(&rig);
        // Once: who is remembered need not repeat it.
        rig.clients.send(&again.segment(ACK, 0, SECRET)).unwrap();
        wait_until(SOON, || rig.verdicts().since(&before).count(abi::FIEF_REQUEST_REFUSED) == 1)
            .unwrap_or_else(|_| panic!("{size}: {:?}", rig.verdicts().since(&before)));
    }
}

const OPEN: &[u8] = b"GET /close/10 HTTP/1.1\r\nHost: server\r\n\r\n";

/// Others send a SYN in a client's name that asks for another size than the client does: before its own, or right behind it.
#[test]
fn a_size_that_others_forge_keeps_no_client_out() {
    if !ready() {
        return;
    }
    let _one = one_installation();
    let rig = Rig::new(Door::Kernel, POLICY);
    let sizes = [(Family::V4, 100), (Family::V4, 1300), (Family::V6, 100), (Family::V6, 1430), (Family::V6, 9000)];
    for (n, (family, size)) in sizes.into_iter().enumerate() {
        for late in [false, true] {
            let client = (RawClients::address(family, 5), 4000 + 2 * n as u16 + u16::from(late)).into();
            let forge = || {
                let mut syn = Segment::new(client, plain(family), SYN);
                (syn.sequence, syn.options) = (77, options(size));
                rig.clients.send(&syn).unwrap();
                assert!(rig.clients.receive(client, SOON).is_some(), "{family:?}, {size}: no SYN-ACK");
            };
            if !late {
                forge();
            }
            let mut connection = rig.open_with(client, 1, &ORDINARY_OPTIONS);
            if late {
                forge();
            }
            connection.acknowledge().unwrap();
            wait_until(SOON, || {
                rig.clients.send(&connection.segment(ACK, 0, OPEN)).unwrap();
                connection.hear(Duration::from_millis(200)).unwrap() == Some(Ending::Closed)
            })
            .unwrap_or_else(|_| panic!("{family:?}, {size}, {late}: {:?}", rig.verdicts()));
            assert!(connection.received().starts_with(b"HTTP/1.1 200"), "{family:?}, {size}, {late}");
        }
    }
}
