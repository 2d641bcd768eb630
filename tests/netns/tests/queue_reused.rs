// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A client that makes its next connection from the port of its last one, which the server still remembers (TIME_WAIT), is counted
//! and waits as any other.

use std::io::Write;
use std::net::TcpStream;

use fief_testkit::{Family, wait_until};
use fief_tests_netns::front::{Door, plain, ready};
use fief_tests_netns::queued::{Queued, lasting, low, status};
use fief_tests_netns::{SOON, connect_from, one_installation};
use nix::errno::Errno;

const PORT: u16 = 5555;
const ROUNDS: u64 = 8;
/// As /proc writes it.
const TIME_WAIT: &str = "06";

/// A request on a connection from that port, which the server ends.
fn ask(rig: &Queued) -> TcpStream {
    let mut made = Err(Errno::EADDRNOTAVAIL);
    // its own end of the last connection may still wait for the last ACK
    let again = wait_until(SOON, || {
        made = connect_from(&rig.front.topology.clients, (low(1), PORT).into(), plain(Family::V4));
        !matches!(made, Err(Errno::EADDRNOTAVAIL))
    });
    assert!(again.is_ok(), "{:?}", rig.front.door);
    let mut stream = made.unwrap();
    stream.write_all(b"GET /again HTTP/1.1\r\nHost: server\r\nConnection: close\r\n\r\n").unwrap();
    stream
}

fn who_uses_a_port_again_is_counted_and_waits(door: Door) {
    if !ready() {
        return;
    }
    let rig = Queued::new(door, &lasting());
    let counts = || rig.queue().class[1];
    for round in 0..ROUNDS {
        let seen = rig.got().len();
        let waits = round % 2 == 1;
        let first = waits.then(|| {
            let first = rig.ask(low(2), "/first");
            rig.got_all(seen + 1);
            first
        });
        let stream = ask(&rig);
        if waits {
            rig.wait_for(1);
        }
        rig.let_go(1 + usize::from(waits));
        assert!(first.is_none_or(|first| status(first) == 200), "{door:?}, round {round}");
        assert_eq!(status(stream), 200, "{door:?}, round {round}");
        rig.wait_for_peace();
        let is_remembered = wait_until(SOON, || rig.front.sockets(PORT) == [TIME_WAIT]);
        assert!(is_remembered.is_ok(), "{door:?}, round {round}: {:?}", rig.front.sockets(PORT));
    }
    // half of them waited, each for one that did not
    let (entered, held, released) = (counts().entered, counts().held, counts().released);
    assert_eq!((entered, held, released), (ROUNDS, ROUNDS / 2, ROUNDS / 2), "{door:?}");
    assert_eq!(rig.queue().uncounted, 0, "{door:?}");
}

#[test]
fn who_uses_a_port_again_is_counted_and_waits_where_fief_answers() {
    let _one = one_installation();
    who_uses_a_port_again_is_counted_and_waits(Door::Own);
}

#[test]
fn who_uses_a_port_again_is_counted_and_waits_where_the_kernel_answers() {
    let _one = one_installation();
    who_uses_a_port_again_is_counted_and_waits(Door::Kernel);
}
