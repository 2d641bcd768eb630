// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Who reads a long answer slowly has it whole, and holds up nobody in the queue.

use std::io::Read;

use fief_testkit::pattern;
use fief_tests_netns::front::{self, Door};
use fief_tests_netns::one_installation;
use fief_tests_netns::queued::{Queued, answer_on, ask_on, high, lasting, length_of, low, status};

const LONG: usize = 10_000_000;

fn who_reads_slowly_holds_up_nobody(door: Door) {
    if !front::ready() {
        return;
    }
    let rig = Queued::new(door, &lasting());
    let first = rig.ask(low(1), "/first");
    rig.got_all(1);
    let mut slow = rig.connect(low(2));
    ask_on(&mut slow, &format!("/slow/{LONG}"));
    rig.wait_for(1);
    rig.let_go(3);
    assert_eq!(status(first), 200);
    let head = answer_on(&mut slow);
    let (length, mut body) = (length_of(&head), Vec::<u8>::new());
    let mut piece = [0; 1 << 16];
    let held = || rig.queue().class.iter().map(|class| class.held).sum::<u64>();
    let before = held();
    for n in 0.. {
        let count = slow.read(&mut piece).unwrap();
        body.extend(&piece[..count]);
        // between its pieces others are served, of its class and of a better one
        if n % 50 == 0 {
            rig.let_go(1);
            let other = if n % 100 == 0 { low(3) } else { high(1) };
            assert_eq!(status(rig.ask(other, "/other")), 200, "{door:?}");
            assert_eq!(held(), before, "{door:?}: it waited");
        }
        if body.len() == length {
            break;
        }
        assert_ne!(count, 0, "{door:?}: {} of {length}", body.len());
    }
    assert!(body == pattern(LONG), "{door:?}");
    rig.wait_for_peace();
}

#[test]
fn who_reads_slowly_holds_up_nobody_where_fief_answers() {
    let _one = one_installation();
    who_reads_slowly_holds_up_nobody(Door::Own);
}

#[test]
fn who_reads_slowly_holds_up_nobody_where_the_kernel_answers() {
    let _one = one_installation();
    who_reads_slowly_holds_up_nobody(Door::Kernel);
}
