// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A body ends at the same byte however it comes, and what stands behind its bytes does not matter. The first byte is the
//! length of the pieces.
//!
//!     cargo +nightly fuzz run body_follow fuzz/corpus/body_follow fuzz/seeds/body_follow -- -max_len=2000 -max_total_time=60

#![no_main]

use fief_tests_parser::{Followed, Follower, Parser};
use libfuzzer_sys::fuzz_target;

fn follow(body: &[u8], piece: usize, rest: u8) -> (Followed, usize) {
    let mut parser = Parser::new([1, 2], &[]);
    let (mut follower, mut at) = (Follower::new(None), 0);
    for part in body.chunks(piece) {
        at += parser.follow(part, rest, &mut follower);
        if follower.said() != Followed::Within {
            break;
        }
    }
    (follower.said(), at)
}

fuzz_target!(|input: &[u8]| {
    let Some((&piece, body)) = input.split_first() else { return };
    let whole = follow(body, 16_384, 0);
    assert!(whole.1 <= body.len());
    for (piece, rest) in [(usize::from(piece).max(1), 0), (1, b'\n'), (16_384, b'0')] {
        let (said, at) = follow(body, piece, rest);
        assert_eq!(said, whole.0);
        assert!(said == Followed::Odd || at == whole.1, "{at} and {}", whole.1);
    }
});
