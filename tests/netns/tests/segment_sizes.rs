// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Where the kernel answers, the door remembers from the SYN what size of segments a client takes, if it is not the usual one
//! (VPNs, tunnels). A flood of such SYNs makes it forget only clients that have not proven themselves.

use fief_bpf::abi;
use fief_testkit::segment::{ACK, SYN, Segment};
use fief_testkit::{Family, ORDINARY_OPTIONS, RawClients, wait_until};
use fief_tests_netns::SOON;
use fief_tests_netns::front::{Door, plain, ready};
use fief_tests_netns::refusing;
use fief_tests_netns::rig::{Rig, whole};

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

#[test]
fn a_flood_does_not_make_the_door_forget_what_size_a_proven_client_takes() {
    if !ready() {
        return;
    }
    let rig = Rig::new(Door::Kernel, POLICY);
    for (port, size) in [(3000, 536), (3002, 1300), (3004, 1440)] {
        let open = |port| rig.open_with((RawClients::address(Family::V4, 5), port).into(), 1, &options(size));
        let mut first = open(port);
        first.acknowledge().unwrap();
        first.converse(SECRET, &whole(SECRET), SOON).unwrap();
        let before = rig.verdicts();
        let again = open(port + 1);
        flood(&rig);
        // Once: who is remembered need not repeat it.
        rig.clients.send(&again.segment(ACK, 0, SECRET)).unwrap();
        wait_until(SOON, || rig.verdicts().since(&before).count(abi::FIEF_REQUEST_REFUSED) == 1)
            .unwrap_or_else(|_| panic!("{size}: {:?}", rig.verdicts().since(&before)));
    }
}
