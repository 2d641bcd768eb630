// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Threads that are born while the kernel has no storage for their records: whose they are then, and what is told of that.

use fief_tests_order::core::Core;

const ROOT: u32 = 0;
/// What the kernel says of a thread that has no record.
const NOBODY: u32 = u32::MAX;

/// A thread of this home runs, which works for that class.
fn creator(core: &mut Core) -> [u32; 2] {
    let [home, class] = [core.create(ROOT).unwrap(), core.create(ROOT).unwrap()];
    core.thread(1, home);
    core.switch(1);
    core.bind(class).unwrap();
    [home, class]
}

#[test]
fn a_thread_of_a_unit_that_had_no_record_gets_its_home_at_a_switch() {
    let mut core = Core::new();
    let [home, class] = creator(&mut core);
    core.born(2, Some(home), true);
    assert_eq!(core.without_records(), [1, 0]);
    core.switch(2);
    assert_eq!(core.binding(), home, "not {class}, which its creator works for");
    assert_eq!(core.without_records(), [1, 0]);
}

#[test]
fn a_thread_of_no_unit_that_has_no_record_stays_without() {
    let mut core = Core::new();
    creator(&mut core);
    core.born(2, None, true);
    for _ in 0..2 {
        core.switch(2);
        assert_eq!((core.binding(), core.without_records()), (NOBODY, [0, 1]));
        core.switch(0);
    }
}

#[test]
fn a_thread_with_a_record_works_for_whom_its_creator_does() {
    for in_unit in [true, false] {
        let mut core = Core::new();
        let [home, class] = creator(&mut core);
        core.born(2, in_unit.then_some(home), false);
        core.switch(2);
        assert_eq!((core.binding(), core.without_records()), (class, [0, 0]), "{in_unit}");
    }
}
