// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Counters of verdicts: there is a bound to their number, and what is not counted for it is told.

use std::time::Duration;

use fief_bpf::abi;
use fief_bpf::record::Record;
use fief_testkit::wait_until;
use fief_tests_netns::front::{Door, Front, ready};
use fief_tests_netns::{SOON, refusing};
use libbpf_rs::{MapCore, MapFlags, MapHandle};

const POLICY: &str = refusing!("/secret/*", "503");

const REFILL: Duration = Duration::from_secs(3);

/// Takes all the room with counters of a container that has ended.
fn fill(front: &Front) {
    let map = MapHandle::from_pinned_path(front.installation().fief().pins().map("verdicts")).unwrap();
    let counts = vec![1u64.to_ne_bytes().to_vec(); libbpf_rs::num_possible_cpus().unwrap()];
    let container = abi::fief_ref { id: 4000, generation: u32::MAX };
    let mut key = abi::fief_verdict_key { container, ..Default::default() };
    // The kernel refills its memory for such maps behind the caller's back, and refuses meanwhile.
    let put = |key: &abi::fief_verdict_key| map.update_percpu(key.bytes(), &counts, MapFlags::NO_EXIST).is_ok();
    while put(&key) || wait_until(REFILL, || put(&key)).is_ok() {
        key.rule += 1;
    }
    assert!(key.rule > 60_000, "{}", key.rule);
}

#[test]
fn what_is_not_counted_is_told_and_a_new_policy_makes_room() {
    if !ready() {
        return;
    }
    let front = Front::new(Door::Own, POLICY);
    let _server = front.plain_server();
    fill(&front);
    assert_eq!(front.status("/secret/1"), Ok(503));
    let view = || front.topology.server.run(|| front.installation().fief().front().unwrap()).unwrap();
    let told = || view().notes.iter().any(|note| note.contains("verdicts were not counted"));
    wait_until(SOON, told).unwrap_or_else(|_| panic!("{:?}", view().notes));
    let failures = front.installation().fief().snapshot().unwrap().failures;
    assert!(failures.iter().any(|&(name, count)| name == "verdict_uncounted" && count > 0), "{failures:?}");
    assert_eq!(front.verdicts().count(abi::FIEF_REQUEST_REFUSED), 0);
    front.apply(POLICY).unwrap();
    assert!(view().verdicts.len() < 100);
    let before = front.verdicts();
    assert_eq!(front.status("/secret/1"), Ok(503));
    let refused = || front.verdicts().since(&before).count(abi::FIEF_REQUEST_REFUSED);
    wait_until(SOON, || refused() > 0).unwrap();
    assert!(front.is_counted(refused(), 1));
    // what is of this policy stays
    front.apply(POLICY).unwrap();
    assert!(refused() > 0 && front.is_counted(refused(), 1));
}
