// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Who can push a level of overload: honest work alone. What the front door refuses, and what anybody can forge, leaves a
//! listener as calm as it was.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use fief_bpf::abi;
use fief_testkit::segment::{ACK, SYN, Segment};
use fief_testkit::{Family, ORDINARY_OPTIONS, RawClients, wait_until};
use fief_tests_netns::front::{Door, Front, plain, ready};
use fief_tests_netns::{SOON, one_installation};
use nix::errno::Errno;

/// How long each attack goes on: longer than a level needs to rise (FIEF_LOAD_SMOOTH_NS).
const PULSE: Duration = Duration::from_millis(800);

/// Busy by drops alone. What is secret is refused always; what is dear while the listener is busy.
const POLICY: &str = "[overload]\nbusy = { drops = 10 }\noverloaded = { drops = 1000000 }\nhold = \"1s\"\n\
     [container.web]\n[listener.plain]\naddress = \"0.0.0.0:80\"\n\
     [[listener.plain.client]]\nfrom = [\"10.89.0.0/16\"]\ncontainer = \"web\"\nsyn = { rate = 1, burst = 1 }\n\
     [[listener.plain.client]]\nfrom = [\"any\"]\ncontainer = \"web\"\n\
     [[listener.plain.request]]\npath = \"/secret\"\nrefuse = \"reset\"\n\
     [[listener.plain.request]]\npath = \"/dear\"\nrefuse = \"503\"\nwhen = \"busy\"\n";

/// Goes on with `attack` for a while, beside honest requests that would be refused if the listener were busy.
fn withstands(door: Door, reasons: &[abi::fief_reason], attack: impl Fn(&Front, &RawClients, u16)) {
    if !ready() {
        return;
    }
    let front = Front::new(door, POLICY);
    front.server_with_queue(2).send(()).unwrap();
    let clients = RawClients::new(&front.topology).unwrap();
    assert_eq!(front.status("/dear"), Ok(200));
    let end = Instant::now() + PULSE;
    let mut turn = 0;
    while Instant::now() < end || turn < 3 {
        attack(&front, &clients, turn);
        turn += 1;
        assert_eq!(front.status("/dear"), Ok(200), "{door:?}, turn {turn}: {:?}", front.verdicts());
    }
    assert_eq!(front.level(), "always", "{door:?}");
    let refused: u64 = reasons.iter().map(|reason| front.verdicts().count(*reason)).sum();
    assert!(refused >= 30, "{door:?}: {:?}", front.verdicts());
}

fn address(n: u16) -> SocketAddr {
    (RawClients::address(Family::V4, n), 2000).into()
}

#[test]
fn forged_acks_raise_no_level() {
    let _one = one_installation();
    for door in Door::GUARDS {
        withstands(door, &[abi::FIEF_ACK_BAD, abi::FIEF_ACK_LIMIT], |_, clients, turn| {
            for n in 0..50 {
                let mut forged = Segment::new(address(turn % 500 * 100 + n), plain(Family::V4), ACK);
                (forged.sequence, forged.acknowledgment, forged.payload) = (7, 0x1234_5678, b"GET / HTTP/1.0".to_vec());
                clients.send(&forged).unwrap();
            }
        });
    }
}

#[test]
fn connection_requests_above_a_rate_raise_no_level() {
    let _one = one_installation();
    for door in Door::GUARDS {
        withstands(door, &[abi::FIEF_SYN_RATE], |_, clients, turn| {
            for n in 0..50 {
                let mut syn = Segment::new(address(turn % 500 * 100 + n), plain(Family::V4), SYN);
                syn.options = ORDINARY_OPTIONS.to_vec();
                clients.send(&syn).unwrap();
            }
        });
    }
}

#[test]
fn refused_requests_raise_no_level() {
    let _one = one_installation();
    for door in Door::GUARDS {
        withstands(door, &[abi::FIEF_REQUEST_REFUSED], |front, _, _| {
            for _ in 0..10 {
                assert_eq!(front.status("/secret"), Err(Errno::ECONNRESET));
            }
        });
    }
}

#[test]
fn connections_that_find_the_queue_full_make_a_listener_busy_until_they_are_served() {
    if !ready() {
        return;
    }
    let _one = one_installation();
    let front = Front::new(Door::Own, POLICY);
    let let_it = front.server_with_queue(2);
    let mut waiting: Vec<_> = (0..3).map(|_| front.ask("/dear")).collect();
    wait_until(SOON, || {
        waiting.push(front.ask("/dear"));
        front.level() == "busy"
    })
    .unwrap_or_else(|_| panic!("{:?}", front.verdicts()));
    assert!(front.verdicts().count(abi::FIEF_SYN_QUEUE) > 0, "{:?}", front.verdicts());
    drop(waiting);
    let_it.send(()).unwrap();
    wait_until(SOON, || front.status("/dear") == Ok(200)).expect("calm again");
}
