// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A listener with a queue whose classes have lanes (lazy receiver processing), too.

use std::sync::atomic::{AtomicBool, Ordering};

use fief_testkit::segment::{ACK, PSH, frame};
use fief_testkit::{
    Family, Feature, Mac, ORDINARY_OPTIONS, PacketSender, RawClients, RawConnection, Topology, require, wait_until,
};
use fief_tests_netns::SOON;
use fief_tests_netns::front::{Door, plain, ready};
use fief_tests_netns::queued::{Queued, answer_on, ask_on, lasting, low, status};

/// Turns of which some come while the lane is full.
const TURNS: usize = 5;
/// How often as many frames as can be are sent at once, at most, while one turn comes.
const FLOODS: usize = 100_000;
const REQUEST: &[u8] = b"GET /flooder HTTP/1.1\r\nHost: server\r\n\r\n";

/// What the lane of a class has discarded.
fn discarded(rig: &Queued, container: &str) -> u64 {
    let lanes = rig.front.installation().fief().lanes().unwrap();
    lanes.into_iter().find(|lane| lane.container == container).expect("a lane").discarded
}

/// A client floods its class's lane with acknowledgements. Who waited was told that the server has the request, and does not send it again.
#[test]
fn a_full_lane_discards_no_request_that_has_waited() {
    if !ready() || !require(Feature::ThreadedNapi) {
        return;
    }
    for door in Door::GUARDS {
        let rig = Queued::new(door, &format!("{}[listener.plain.lrp]\nwhen = \"always\"\n", lasting()));
        let topology = &rig.front.topology;
        let mut client = rig.connect(low(2));
        rig.let_go(2);
        ask_on(&mut client, "/before");
        assert!(answer_on(&mut client).starts_with("HTTP/1.1 200"), "{door:?}");
        let raw = RawClients::new(topology).unwrap();
        let ends = [(RawClients::address(Family::V4, 5), 4000).into(), plain(Family::V4)];
        let flooder = RawConnection::open(&raw, ends, 77, &ORDINARY_OPTIONS, SOON).unwrap().expect("an answer");
        raw.send(&flooder.segment(PSH | ACK, 0, REQUEST)).unwrap();
        rig.got_all(2);
        rig.wait_for_peace();
        let [to, from] = [topology.link.near_mac, topology.link.far_mac].map(Mac::octets);
        let frames = vec![frame(to, from, &[], &flooder.segment(ACK, REQUEST.len() as u32, &[]).packet()); PacketSender::BATCH];
        let sender = topology.clients.run(|| PacketSender::open(Topology::CLIENTS)).unwrap().unwrap();
        for turn in 0..TURNS {
            let seen = rig.got().len();
            let first = rig.ask(low(1), "/first");
            rig.got_all(seen + 1);
            ask_on(&mut client, "/held");
            rig.wait_for(1);
            let (before, ends) = (discarded(&rig, "low"), AtomicBool::new(false));
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    for _ in (0..FLOODS).take_while(|_| !ends.load(Ordering::Relaxed)) {
                        sender.send(&frames).unwrap();
                    }
                });
                let full = wait_until(SOON, || discarded(&rig, "low") > before);
                rig.let_go(2);
                let gone = wait_until(SOON, || rig.queue().waiting == 0);
                ends.store(true, Ordering::Relaxed);
                full.unwrap_or_else(|e| panic!("{door:?}, turn {turn}: the lane was never full: {e}"));
                gone.unwrap_or_else(|e| panic!("{door:?}, turn {turn}: {e}"));
            });
            assert_eq!(status(first), 200, "{door:?}, turn {turn}");
            assert!(answer_on(&mut client).starts_with("HTTP/1.1 200"), "{door:?}, turn {turn}");
        }
    }
}
