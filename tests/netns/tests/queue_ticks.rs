// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Time passes for a queue although nothing comes, and no client is asked to send anything again for it.

use std::net::TcpStream;
use std::time::Duration;

use fief_testkit::segment::{ACK, PSH};
use fief_testkit::{Family, RawConnection, wait_until};
use fief_tests_netns::front::{Door, ready};
use fief_tests_netns::queued::{POLICY, Queued, clocks, lasting, low, status};
use fief_tests_netns::rig::Rig;
use fief_tests_netns::{SOON, one_installation};

const HEARD: Duration = Duration::from_millis(50);
/// Where the machine stands still, the place of the first runs out before all have come.
const TRIES: usize = 5;
const MUTE: &[u8] = b"GET /mute/10 HTTP/1.1\r\nHost: server\r\n\r\n";
const NEXT: &[u8] = b"GET /next/10 HTTP/1.1\r\nHost: server\r\n\r\n";

/// One has the only place of a server that does not answer, and three wait behind it. All are sent at once: the place lasts two
/// seconds at least.
fn three_wait(rig: &Rig) -> Vec<RawConnection<'_>> {
    let (mute, three) = (rig.open(Family::V4), [0; 3].map(|_| rig.open(Family::V4)));
    rig.clients.send(&mute.segment(PSH | ACK, 0, MUTE)).unwrap();
    wait_until(SOON, || rig.server.seen().len() == 1).unwrap();
    for client in &three {
        rig.clients.send(&client.segment(PSH | ACK, 0, NEXT)).unwrap();
    }
    three.into()
}

#[test]
fn a_place_runs_out_although_nothing_comes() {
    if !ready() {
        return;
    }
    let _one = one_installation();
    for door in Door::GUARDS {
        let rig = Rig::in_order(door, POLICY);
        // who is dropped resets
        let mut three = three_wait(&rig);
        for client in &mut three {
            let all = client.first.wrapping_add(1 + NEXT.len() as u32);
            wait_until(SOON, || {
                client.hear(HEARD).unwrap();
                client.acknowledged == all
            })
            .unwrap();
        }
        wait_until(SOON, || rig.server.seen().len() == 4).unwrap_or_else(|_| panic!("{:?}", rig.server.seen()));
        wait_until(SOON, || rig.front.queue().tick_ns == 0).unwrap();
    }
}

#[test]
fn who_waits_too_long_is_told_although_nothing_comes() {
    if !ready() {
        return;
    }
    let policy = lasting().replace("1m", "200ms");
    assert_ne!(policy, lasting());
    let _one = one_installation();
    for door in Door::GUARDS {
        let rig = Rig::in_order(door, &policy);
        for mut client in three_wait(&rig) {
            wait_until(SOON, || {
                client.hear(HEARD).unwrap();
                client.received().starts_with(b"HTTP/1.1 503 ")
            })
            .unwrap_or_else(|_| panic!("{door:?}: {:?}", String::from_utf8_lossy(client.received())));
        }
        assert_eq!(rig.server.seen().len(), 1, "{door:?}");
    }
}

#[test]
fn the_clock_is_there_while_a_queue_is() {
    if !ready() {
        return;
    }
    let line = POLICY.lines().find(|line| line.starts_with("queue =")).expect("its queue");
    let without = POLICY.replace(line, "queue = false");
    for door in Door::GUARDS {
        let rig = Rig::in_order(door, POLICY);
        assert_eq!(clocks(&rig.front).len(), 2, "{door:?}: {:?}", clocks(&rig.front));
        assert_ne!(rig.front.queue().clock, 0);
        rig.front.apply(&without).unwrap();
        assert_eq!(clocks(&rig.front).len(), 0, "{door:?}: {:?}", clocks(&rig.front));
        rig.front.apply(POLICY).unwrap();
        assert_eq!(clocks(&rig.front).len(), 2, "{door:?}: {:?}", clocks(&rig.front));
        rig.front.installation().fief().down().unwrap();
        assert_eq!(clocks(&rig.front).len(), 0, "{door:?}: {:?}", clocks(&rig.front));
    }
}

/// One has the only place of a server that does not answer, and two wait behind it, after the clock was taken away. The first of these
/// finds that out, and the other one's client is not told that its last byte has come. `None`: the place has run out before.
fn two_wait_without_clock(rig: &Queued) -> Option<[TcpStream; 3]> {
    let wait = |waiting| {
        wait_until(SOON, || rig.has_waiting(waiting) || rig.got().len() > 1)
            .unwrap_or_else(|_| panic!("{waiting}: {:?}", rig.queue()));
        (rig.got().len() == 1).then_some(())
    };
    let end = clocks(&rig.front).pop().expect("a clock");
    rig.front.topology.server.ip(&format!("link del {end}")).unwrap();
    let first = rig.ask(low(1), "/first");
    rig.got_all(1);
    let second = rig.ask(low(2), "/second");
    wait(1)?;
    wait_until(SOON, || rig.queue().clock == 0).unwrap();
    let third = rig.ask(low(3), "/third");
    wait(2)?;
    assert_eq!(rig.queue().clocks, 1);
    Some([first, second, third])
}

#[test]
fn a_place_runs_out_though_the_clock_is_gone() {
    if !ready() {
        return;
    }
    for door in Door::GUARDS {
        let two_wait = |_| {
            let rig = Queued::new(door, POLICY);
            let asked = two_wait_without_clock(&rig)?;
            Some((rig, asked))
        };
        let (rig, asked) = (0..TRIES).find_map(two_wait).expect("they wait while the place lasts");
        // nobody is answered, and nothing comes but what a client sends again
        assert_eq!(rig.got_all(3), ["/first", "/second", "/third"], "{door:?}");
        rig.let_go(3);
        assert_eq!(asked.map(status), [200; 3], "{door:?}");
        rig.wait_for_peace();
        assert_eq!(rig.queue().clocks, 0, "{door:?}");
    }
}

#[test]
fn who_waits_too_long_is_told_though_the_clock_is_gone() {
    if !ready() {
        return;
    }
    for door in Door::GUARDS {
        let rig = Queued::new(door, &lasting().replace("wait = \"1m\"", "wait = \"3s\""));
        let [_first, second, third] = two_wait_without_clock(&rig).expect("the place lasts");
        assert_eq!([second, third].map(status), [503; 2], "{door:?}");
        assert_eq!(rig.got(), ["/first"], "{door:?}");
    }
}
