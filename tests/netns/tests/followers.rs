// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Who follows the front door's notices sees all of them, however many others do.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

use fief::Reason;
use fief_bpf::abi;
use fief_control::{Error, Notice, Told};
use fief_testkit::{Topology, wait_until};
use fief_tests_netns::SOON;
use fief_tests_netns::front::{Door, Front, ready};
use fief_tests_netns::rig::Rig;

const POLICY: &str = r#"
[container.web]
[listener.plain]
address = "[::]:80"
[[listener.plain.client]]
from = ["10.89.1.0/24"]
container = "web"
syn = { rate = 1, burst = 1 }
[[listener.plain.client]]
from = ["any"]
container = "web"
"#;

/// A follower's notices, and whether it has begun.
#[derive(Default)]
struct Follower {
    told: Mutex<Vec<Notice>>,
    begun: AtomicBool,
}

impl Follower {
    fn follow(&self, front: &Front, ends: &AtomicBool) {
        let goes_on = || {
            self.begun.store(true, Ordering::Relaxed);
            !ends.load(Ordering::Relaxed)
        };
        let each = |one| {
            let Told::Notice(notice) = one else { panic!("lost") };
            self.told.lock().unwrap().push(notice);
            Ok::<_, Error>(())
        };
        front.topology.server.run(|| front.installation().fief().follow(goes_on, each).unwrap()).unwrap();
    }

    fn told(&self) -> Vec<Notice> {
        self.told.lock().unwrap().clone()
    }

    /// How many refusals its notices stand for.
    fn refusals(&self) -> u64 {
        self.told().iter().map(|notice| notice.verdict.count).sum()
    }
}

/// Asks for connections above the rate until the follower is told so once more.
fn refuse(rig: &Rig, n: u8, by: &Follower) {
    let before = by.told().len();
    let from: SocketAddr = (Ipv4Addr::new(10, 89, 1, n), 1000).into();
    // within 10 ms of the last one it is told with the next
    wait_until(SOON, || {
        rig.syn(from);
        by.told().len() > before
    })
    .unwrap();
}

#[test]
fn two_followers_each_see_all_and_one_of_later_what_is_new() {
    if !ready() {
        return;
    }
    let rig = Rig::new(Door::Own, POLICY);
    let ends = AtomicBool::new(false);
    let [one, other, late] = [(); 3].map(|()| Follower::default());
    std::thread::scope(|scope| {
        let (front, ends) = (&rig.front, &ends);
        let begin = |follower| {
            let _: &Follower = follower;
            scope.spawn(move || follower.follow(front, ends));
            wait_until(SOON, || follower.begun.load(Ordering::Relaxed)).unwrap();
        };
        begin(&one);
        begin(&other);
        (0..10).for_each(|n| refuse(&rig, n, &one));
        let last = one.told().last().map(|notice| notice.time_ns);
        begin(&late);
        (10..20).for_each(|n| refuse(&rig, n, &late));
        wait_until(SOON, || one.told() == other.told() && one.told().ends_with(&late.told()))
            .unwrap_or_else(|_| panic!("{:?}\n{:?}\n{:?}", one.told(), other.told(), late.told()));
        assert!(late.told().iter().all(|notice| Some(notice.time_ns) > last), "nothing of before");
        ends.store(true, Ordering::Relaxed);
    });
    assert!(one.told().len() >= 20 && one.refusals() >= 20, "{:?}", one.told());
    assert!(one.refusals() <= rig.verdicts().count(abi::FIEF_SYN_RATE), "each is told once");
    for notice in one.told() {
        let verdict = &notice.verdict;
        assert_eq!((verdict.reason, verdict.client_rule(), verdict.request_rule()), (Reason::SynRate, Some(1), None));
        assert_eq!(notice.interface.as_deref(), Some(Topology::SERVER), "{notice:?}");
    }
}
