// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Single bytes, the end of the stream, where segments begin, and how fast they follow each other.

use fief_testkit::Dice;

use super::replace;
use crate::vector::Case;

/// Cuts of a slow case: with more it would take seconds.
const MOST_SLOW: usize = 30;

/// A byte more, less, or another; or a part twice.
pub fn bytes(bytes: &mut Vec<u8>, dice: &mut Dice) {
    // What is at the front has more meaning than what is far behind.
    let reach = bytes.len().min(400);
    if reach == 0 {
        bytes.push(dice.roll(256) as u8);
        return;
    }
    let at = dice.roll(reach);
    let odd = [0, 9, 10, 11, 13, 32, b':', b'/', b'%', b';', b',', b'?', b'#', 127, 128, 255];
    let byte = if dice.roll(2) == 0 { odd[dice.roll(odd.len())] } else { dice.roll(256) as u8 };
    match dice.roll(6) {
        0 => replace(bytes, at..at + 1, &[byte]),
        1 => replace(bytes, at..at, &[byte]),
        2 => replace(bytes, at..at + 1, b""),
        3 => bytes[at] ^= 1 << dice.roll(8),
        4 => {
            let part = bytes[at..(at + 1 + dice.roll(40)).min(bytes.len())].to_vec();
            let place = dice.roll(reach);
            replace(bytes, place..place, &part);
        }
        _ => {
            let stop = (at + 1 + dice.roll(20)).min(bytes.len());
            replace(bytes, at..stop, b"");
        }
    }
}

/// The stream ends here, or before.
pub fn end(case: &mut Case, dice: &mut Dice) {
    case.ends = true;
    if dice.roll(2) == 0 {
        let shorter = [1, 2, 3, 4, 10, 30][dice.roll(6)];
        case.bytes.truncate(case.bytes.len().saturating_sub(shorter).max(1)); // nobody answers nothing
    }
}

pub fn pieces(case: &mut Case, dice: &mut Dice) {
    let length = case.bytes.len();
    if length < 2 {
        return;
    }
    match dice.roll(5) {
        0 => case.cuts.extend(1..length.min(120)),
        1 => {
            let size = 1 + dice.roll(length.min(600));
            case.cuts.extend((size..length).step_by(size).take(60));
        }
        _ => {
            for _ in 0..=dice.roll(4) {
                case.cuts.push(1 + dice.roll(length - 1));
            }
        }
    }
    case.cuts.sort_unstable();
    case.cuts.dedup();
    case.slow = case.cuts.len() <= MOST_SLOW && dice.roll(2) == 0;
}
