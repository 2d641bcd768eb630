// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A listener with a queue whose classes have lanes (lazy receiver processing), too.

use std::net::TcpStream;
use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicBool, Ordering};

use fief_control::LaneView;
use fief_testkit::segment::{ACK, PSH, frame};
use fief_testkit::{
    Family, Feature, Mac, ORDINARY_OPTIONS, PacketSender, RawClients, RawConnection, Topology, pin, require, set_idle,
    wait_until,
};
use fief_tests_netns::SOON;
use fief_tests_netns::front::{Door, plain, ready};
use fief_tests_netns::queued::{Queued, answer_on, ask_on, lasting, low, status};

/// Turns of which some come while the lane is full.
const TURNS: usize = 5;
/// How often as many frames as can be are sent at once, at most, while one turn comes.
const FLOODS: usize = 100_000;
/// Requests that come while the lane is full.
const REQUESTS: u32 = 20;
const REQUEST: &[u8] = b"GET /flooder HTTP/1.1\r\nHost: server\r\n\r\n";

/// The lane of the class that is flooded.
fn lane(rig: &Queued) -> LaneView {
    let lanes = rig.front.installation().fief().lanes().unwrap();
    lanes.into_iter().find(|lane| lane.container == "low").expect("a lane")
}

/// A listener with a queue and lanes, and who floods the lane of `low`.
struct Flooded<'a> {
    rig: &'a Queued,
    /// Whose the connection of the flooder is.
    _raw: RawClients,
    sender: PacketSender,
    frames: Vec<Vec<u8>>,
}

impl<'a> Flooded<'a> {
    /// By acknowledgements on a connection of the flooder's own. The server has had its one request.
    fn new(rig: &'a Queued) -> Self {
        let topology = &rig.front.topology;
        let raw = RawClients::new(topology).unwrap();
        let ends = [(RawClients::address(Family::V4, 5), 4000).into(), plain(Family::V4)];
        let flooder = RawConnection::open(&raw, ends, 77, &ORDINARY_OPTIONS, SOON).unwrap().expect("an answer");
        let before = rig.got().len();
        rig.let_go(1);
        raw.send(&flooder.segment(PSH | ACK, 0, REQUEST)).unwrap();
        rig.got_all(before + 1);
        rig.wait_for_peace();
        // it takes up next to nothing as long as packets come
        let thread = lane(rig).thread.expect("a lane has a thread");
        pin(thread.cast_unsigned(), Topology::server_cpu()).unwrap();
        set_idle(thread.cast_unsigned()).unwrap();
        let [to, from] = [topology.link.near_mac, topology.link.far_mac].map(Mac::octets);
        let frame = frame(to, from, &[], &flooder.segment(ACK, REQUEST.len() as u32, &[]).packet());
        flooder.vanish();
        let sender = topology.clients.run(|| PacketSender::open(Topology::CLIENTS)).unwrap().unwrap();
        Self { rig, _raw: raw, sender, frames: vec![frame; PacketSender::BATCH] }
    }

    /// Does this once the lane is full, and while the flood goes on.
    fn meanwhile(&self, action: impl FnOnce()) {
        let (before, ends) = (lane(self.rig).discarded, AtomicBool::new(false));
        let (sender, frames) = (&self.sender, &self.frames);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for _ in (0..FLOODS).take_while(|_| !ends.load(Ordering::Relaxed)) {
                    sender.send(frames).unwrap();
                }
            });
            let _end = End(&ends);
            wait_until(SOON, || lane(self.rig).discarded > before).expect("a full lane");
            action();
        });
    }
}

/// The flood ends, also where its test has failed.
struct End<'a>(&'a AtomicBool);

impl Drop for End<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

fn rig(door: Door) -> Queued {
    Queued::new(door, &format!("{}[listener.plain.lrp]\nwhen = \"always\"\n", lasting()))
}

/// A client that has been answered.
fn answered(rig: &Queued) -> TcpStream {
    let mut client = rig.connect(low(2));
    rig.let_go(1);
    ask_on(&mut client, "/before");
    assert!(answer_on(&mut client).starts_with("HTTP/1.1 200"));
    client
}

/// Who waited was told that the server has the request, and does not send it again.
#[test]
fn a_full_lane_discards_no_request_that_has_waited() {
    if !ready() || !require(Feature::ThreadedNapi) {
        return;
    }
    for door in Door::GUARDS {
        let rig = rig(door);
        let mut client = answered(&rig);
        let flooded = Flooded::new(&rig);
        for turn in 0..TURNS {
            let seen = rig.got().len();
            let first = rig.ask(low(1), "/first");
            rig.got_all(seen + 1);
            ask_on(&mut client, "/held");
            rig.wait_for(1);
            flooded.meanwhile(|| {
                rig.let_go(2);
                wait_until(SOON, || rig.queue().waiting == 0).unwrap_or_else(|_| panic!("{door:?}, turn {turn}"));
            });
            assert_eq!(status(first), 200, "{door:?}, turn {turn}");
            assert!(answer_on(&mut client).starts_with("HTTP/1.1 200"), "{door:?}, turn {turn}");
        }
    }
}

/// Segments that its kernel has sent again.
fn sent_again(client: &TcpStream) -> u32 {
    // SAFETY: all of it are numbers.
    let mut info: libc::tcp_info = unsafe { std::mem::zeroed() };
    let mut length = size_of::<libc::tcp_info>() as libc::socklen_t;
    let (level, option) = (libc::IPPROTO_TCP, libc::TCP_INFO);
    // SAFETY: the kernel writes so many bytes at most.
    let done = unsafe { libc::getsockopt(client.as_raw_fd(), level, option, (&raw mut info).cast(), &raw mut length) };
    assert_eq!(done, 0);
    info.tcpi_total_retrans
}

/// It would hold its place for nothing until its client sends it again. While a virtual CPU stands still a client does so, too.
#[test]
fn a_full_lane_discards_no_request_that_has_its_place() {
    if !ready() || !require(Feature::ThreadedNapi) {
        return;
    }
    for door in Door::GUARDS {
        let rig = rig(door);
        let mut client = answered(&rig);
        let flooded = Flooded::new(&rig);
        let before = sent_again(&client);
        for _ in 0..REQUESTS {
            flooded.meanwhile(|| {
                rig.let_go(1);
                ask_on(&mut client, "/enters");
                assert!(answer_on(&mut client).starts_with("HTTP/1.1 200"), "{door:?}");
            });
        }
        let again = sent_again(&client) - before;
        assert!(again < REQUESTS, "{door:?}: {again} of {REQUESTS}");
    }
}
