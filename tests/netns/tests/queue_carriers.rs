// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What moves a queue on is lost, as a full backlog loses it (net.core.netdev_max_backlog): the copies of packets that come in with the
//! queue's mark, and the clock's. Nobody is lost with them: the next arrival, answer or end moves all on that wait, and sets the clock going.
//!
//! That bound is the whole machine's. So what comes in with the mark is lost by a program, right behind the backlog and before the door.

use std::net::TcpStream;
use std::time::Duration;

use fief_testkit::{Topology, wait_until};
use fief_tests_netns::front::{Door, ready};
use fief_tests_netns::queued::{POLICY, Queued, clocks, lasting, low, status};
use fief_tests_netns::{Foreign, SOON, now_ns, one_installation};
use libbpf_rs::{MapCore, MapFlags, MapHandle};
use nix::net::if_::if_nametoindex;
use nix::sys::socket::{setsockopt, sockopt};

/// Packets with the queue's mark that come in at these interfaces are lost, while this lives.
struct Losing(Vec<Foreign>);

impl Losing {
    fn at(rig: &Queued, names: &[String]) -> Self {
        let marks = MapHandle::from_pinned_path(rig.front.installation().fief().pins().map("queue_marks")).unwrap();
        let mark = marks.lookup(&0u32.to_ne_bytes(), MapFlags::ANY).unwrap().expect("an array has its element");
        let mark = u32::from_ne_bytes(mark.try_into().unwrap());
        let lose = |name: &String| Foreign::attach_losing(if_nametoindex(name.as_str()).unwrap(), mark);
        Self(rig.front.topology.server.run(|| names.iter().map(lose).collect()).unwrap())
    }

    fn lost(&self) -> u64 {
        self.0.iter().map(Foreign::calls).sum()
    }

    /// Until so many were.
    fn wait_for(&self, lost: u64) {
        wait_until(SOON, || self.lost() >= lost).unwrap_or_else(|_| panic!("{} of {lost}", self.lost()));
    }
}

/// The first event once nothing is lost any more.
#[derive(Clone, Copy, Debug)]
enum Next {
    Request,
    Answer,
    Reset,
}

fn reset(stream: TcpStream) {
    setsockopt(&stream, sockopt::Linger, &libc::linger { l_onoff: 1, l_linger: 0 }).unwrap();
    drop(stream);
}

const WAITING: u8 = 4;

#[test]
fn who_waits_while_what_moves_the_queue_on_is_lost_goes_with_what_comes_next() {
    if !ready() {
        return;
    }
    let policy = lasting().replace("in-service = 1", "in-service = 2");
    assert_ne!(policy, lasting());
    let _one = one_installation();
    for door in Door::GUARDS {
        for next in [Next::Request, Next::Answer, Next::Reset] {
            let what = format!("{door:?}, {next:?}");
            let rig = Queued::new(door, &policy);
            let one = rig.ask(low(1), "/one");
            rig.got_all(1);
            let two = rig.ask(low(2), "/two");
            rig.got_all(2);
            let wait = |n: u8| {
                let stream = rig.ask(low(2 + n), "/waits");
                rig.wait_for(n.into());
                stream
            };
            let mut asked: Vec<_> = (1..=WAITING).map(wait).collect();
            let clock = Losing::at(&rig, &clocks(&rig.front));
            clock.wait_for(1); // the only one that is on its way
            let link = Losing::at(&rig, &[Topology::SERVER.to_owned()]);
            let kicks = rig.queue().kicks;
            rig.let_go(1);
            // to its end, which tells the queue of a free place too
            assert_eq!(status(one), 200, "{what}");
            link.wait_for(1);
            // the last of them may be on its way
            link.wait_for(rig.queue().kicks - kicks);
            drop((clock, link));
            // a place is free, and nobody has been told
            let queue = rig.queue();
            assert_eq!((rig.got().len(), queue.busy, queue.waiting), (2, 1, u32::from(WAITING)), "{what}");
            match next {
                Next::Request => asked.extend([rig.ask(low(9), "/next"), two]),
                Next::Answer => {
                    rig.let_go(1);
                    asked.push(two);
                }
                Next::Reset => reset(two),
            }
            rig.got_all(3);
            rig.let_go(10);
            for stream in asked {
                assert_eq!(status(stream), 200, "{what}");
            }
            // it was lost that would have looked whether the server has what went, and comes again with what comes next
            let sent = rig.queue().tick_ns;
            wait_until(SOON, || u128::from(now_ns() - sent) > ROUND.as_nanos()).unwrap();
            rig.let_go(1);
            assert_eq!(status(rig.ask(low(8), "/last")), 200, "{what}");
            rig.wait_for_peace();
        }
    }
}

/// As long as a packet of the clock may be on its way (`ticks.bpf.h`).
const ROUND: Duration = Duration::from_secs(1);

/// Nobody is answered, so that places only run out: who is next goes by the clock alone.
#[test]
fn a_clock_that_is_lost_goes_on_with_what_comes_next() {
    if !ready() {
        return;
    }
    let _one = one_installation();
    for door in Door::GUARDS {
        let rig = Queued::new(door, POLICY);
        let first = rig.ask(low(1), "/first");
        rig.got_all(1);
        let second = rig.ask(low(2), "/second");
        rig.wait_for(1);
        let losing = Losing::at(&rig, &clocks(&rig.front));
        losing.wait_for(1);
        drop(losing);
        let sent = rig.queue().tick_ns;
        wait_until(SOON, || u128::from(now_ns() - sent) > ROUND.as_nanos()).unwrap();
        assert_eq!(rig.queue().tick_ns, sent, "{door:?}: it goes on by itself");
        let third = rig.ask(low(3), "/third");
        assert_eq!(rig.got_all(3), ["/first", "/second", "/third"], "{door:?}");
        rig.let_go(3);
        assert_eq!([first, second, third].map(status), [200; 3], "{door:?}");
        rig.wait_for_peace();
    }
}
