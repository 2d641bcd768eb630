// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Who waited too long is let in, in steps, and who is to wait elsewhere as soon as a CPU chooses.

use fief_tests_order::{Late, Machine};

const MS: u64 = 1_000_000;
const SLICE: u64 = 3 * MS;
const BEAT: u64 = 20 * MS;
const SINCE: u64 = 1000 * MS;

#[test]
fn who_is_to_wait_elsewhere_is_let_in_at_once() {
    let mut machine = Machine::new();
    machine.is_late(Late::Waited);
    assert_eq!(machine.lets_in(SINCE), Some(Late::Waited));
    machine.is_late(Late::Waited);
    assert_eq!(machine.lets_in(SINCE), None, "the next step");
    machine.is_late(Late::Prompt);
    assert_eq!(machine.lets_in(SINCE), Some(Late::Prompt));
    assert_eq!(machine.lets_in(SINCE), None);
    assert_eq!(machine.lets_in(SINCE + BEAT), Some(Late::Waited));
}

/// The kernel removes a scheduler under which a thread waits for 30 s, and 6 of them have passed.
#[test]
fn who_waited_too_long_is_let_in_beside_those_who_are_to_wait_elsewhere_each_beat() {
    let mut machine = Machine::new();
    machine.is_late(Late::Waited);
    let mut let_in = Vec::new();
    for beat in 0..2 {
        machine.is_late(Late::Prompt);
        let_in.extend((0..BEAT / SLICE).filter_map(|slice| machine.lets_in(SINCE + beat * BEAT + slice * SLICE)));
    }
    let_in.sort_unstable();
    assert_eq!(let_in, [Late::Waited, Late::Prompt, Late::Prompt]);
}

#[test]
fn many_who_are_to_wait_elsewhere_put_nobody_off() {
    let mut machine = Machine::new();
    machine.is_late(Late::Waited);
    for _ in 0..50 {
        machine.is_late(Late::Prompt);
    }
    let let_in: Vec<_> = (0..51).map_while(|turn| machine.lets_in(SINCE + turn * MS)).collect();
    assert_eq!(let_in.len(), 51);
    assert_eq!(let_in[50], Late::Waited);
}
