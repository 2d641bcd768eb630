// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Requests that wait for a server of multipath TCP, Go's default, whose connections the kernel makes.

use std::time::{Duration, Instant};

use fief_testkit::wait_until;
use fief_tests_netns::SOON;
use fief_tests_netns::front::{Door, ready};
use fief_tests_netns::queued::{Queued, lasting, low, status};

/// For so long the door remembers that a packet has passed it.
const PASSED: Duration = Duration::from_secs(1);

/// Where a rule refuses something, a listener takes no packets that have passed no door.
const RULE: &str = "[[listener.plain.request]]\npath = \"/secret\"\nrefuse = \"reset\"\n";

#[test]
fn what_has_waited_for_long_has_passed_the_door() {
    if !ready() {
        return;
    }
    for door in Door::GUARDS {
        let rig = Queued::multipath(door, &format!("{}{RULE}", lasting()));
        let first = rig.ask(low(1), "/first");
        rig.got_all(1);
        let second = rig.ask(low(2), "/second");
        rig.wait_for(1);
        let waits = Instant::now();
        wait_until(SOON, || waits.elapsed() > PASSED).unwrap();
        rig.let_go(2);
        assert_eq!((status(first), status(second)), (200, 200), "{door:?}, {:?}", rig.front.verdicts());
    }
}
