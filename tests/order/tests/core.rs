// SPDX-License-Identifier: Apache-2.0 OR MIT
//! References of containers, when threads end, are bound from outside and find that a parent has ended.

use fief_tests_order::core::{By, Core, OURS, References};

const ESTALE: i32 = -116;
const ROOT: u32 = 0;
/// Of the table.
const SLOTS: u32 = 8;
/// More than any call has; fewer are an error of the test.
const POINTS: std::ops::Range<u32> = 0..10_000;

/// What the kernel cannot delete now, a thread's end finds again when its structure is freed (core.md C5).
#[test]
fn a_thread_that_ends_lets_go_once_also_where_its_storage_stays() {
    for storage_busy in [false, true] {
        let mut core = Core::new();
        let [home, class] = [core.create(ROOT).unwrap(), core.create(ROOT).unwrap()];
        core.thread(1, home);
        core.switch(1);
        core.bind(class).unwrap();
        assert_eq!(core.references(home), References { handles: 2, ..OURS }, "{storage_busy}");
        assert_eq!(core.references(class), References { threads: 1, ..OURS }, "{storage_busy}");
        core.end(storage_busy);
        assert_eq!([home, class].map(|id| core.references(id)), [OURS; 2], "{storage_busy}");
    }
}

/// On 6.12 interrupts cannot be off while a thread binds itself (core.md C7).
#[test]
fn a_request_that_comes_in_the_midst_of_a_bind_takes_and_leaves_one_reference() {
    type Call = fn(&mut Core, u32) -> Result<(), i32>;
    let calls: [Call; 2] = [Core::bind, |core, _| core.unbind()];
    for (by, call) in [By::Softirq, By::Switch].into_iter().flat_map(|by| calls.map(|call| (by, call))) {
        let mut met = 0;
        for at in POINTS {
            let mut core = Core::new();
            let [home, was, to, asked] = [(); 4].map(|()| core.create(ROOT).unwrap());
            core.thread(1, home);
            core.switch(1);
            core.bind(was).unwrap();
            let Some(bound) = core.with_request(at, asked, by, |core| call(core, to)) else { break };
            met += 1;
            bound.unwrap();
            // what has to wait is taken at the next boundary
            core.softirq();
            let now = core.binding();
            assert!([home, to, asked].contains(&now), "point {at} of {by:?}: {now}");
            core.end(false);
            for id in [home, was, to, asked] {
                // the CPU keeps the reference of a thread that left by itself
                let kept = References { threads: 1, ..OURS };
                let left = core.references(id);
                assert!(left == OURS || left == kept, "point {at} of {by:?}: {id} has {left:?}");
                core.close(id);
            }
            assert_eq!(core.free(), SLOTS, "point {at} of {by:?}");
        }
        assert!(met > 5 && met < POINTS.end, "{met}");
    }
}

/// Between the lookup of a parent and the reference on it, it may end, and its slot be another's (core.md C8).
#[test]
fn a_parent_that_ends_while_a_child_is_made_has_it_or_the_child_is_refused() {
    child_comes_to("made", |core, parent, _| core.create(parent));
}

#[test]
fn a_parent_that_ends_while_a_child_is_moved_to_it_has_it_or_the_child_is_refused() {
    child_comes_to("moved", |core, parent, child| core.adopt(child, parent).map(|()| child));
}

/// `come`: a child of the second container, perhaps the third one.
fn child_comes_to(how: &str, come: impl Fn(&mut Core, u32, u32) -> Result<u32, i32>) {
    let mut refused = 0;
    for at in POINTS {
        let mut core = Core::new();
        let [parent, child] = [core.create(ROOT).unwrap(), core.create(ROOT).unwrap()];
        let Some(came) = core.with_end(at, parent, |core| come(core, parent, child)) else {
            assert!(refused > 3 && at > 10, "{refused} of {at} points");
            return;
        };
        let all = 8..8 + SLOTS;
        let children: u64 = all.clone().map(|id| core.references(id).children).sum();
        match came {
            // the parent's slot stays, and nobody else has it
            Ok(_) => {
                assert_eq!(core.references(parent), References { handles: 0, threads: 0, children: 1 }, "{how}, {at}")
            }
            Err(why) => {
                assert_eq!((why, children), (ESTALE, 0), "{how}, {at}");
                refused += 1;
            }
        }
        for id in all {
            if core.references(id).handles > 0 {
                assert_eq!(core.references(id), OURS, "{how}, {at}: {id}");
                core.close(id);
            }
        }
        assert_eq!(core.free(), SLOTS, "{how}, {at}");
    }
    panic!("no end of points");
}
