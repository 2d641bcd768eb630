// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The fuzz targets of `fuzz/`, the very files, driven by a plain generator: the seeds and the words of the dictionaries, cut,
//! joined and broken. A bounded number of runs; a fuzzer with coverage finds more, where there is one.
//!
//! `FIEF_FUZZ_SEED` begins elsewhere than the fixed number, `FIEF_FUZZ_RUNS` goes on for longer.

use std::panic::catch_unwind;
use std::path::{Path, PathBuf};

extern crate self as libfuzzer_sys;

macro_rules! fuzz_target {
    (|$input:ident: &[u8]| $body:expr) => {
        pub fn run($input: &[u8]) {
            $body
        }
    };
    (|$input:ident: &str| $body:expr) => {
        pub fn run($input: &[u8]) {
            let Ok($input) = std::str::from_utf8($input) else { return };
            $body
        }
    };
}
pub(crate) use fuzz_target;

#[allow(unused_attributes, unused_imports, reason = "it is a program of its own to the fuzzer")]
#[path = "../../../fuzz/fuzz_targets/body_follow.rs"]
mod body_follow;
#[allow(unused_attributes, unused_imports, reason = "it is a program of its own to the fuzzer")]
#[path = "../../../fuzz/fuzz_targets/policy_parse.rs"]
mod policy_parse;
#[allow(unused_attributes, unused_imports, reason = "it is a program of its own to the fuzzer")]
#[path = "../../../fuzz/fuzz_targets/request_parse.rs"]
mod request_parse;

/// Numbers of a seed (splitmix64).
struct Numbers(u64);

impl Numbers {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ mixed >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ mixed >> 31
    }

    fn below(&mut self, bound: usize) -> usize {
        (self.next() % bound.max(1) as u64) as usize
    }

    fn of<'a>(&mut self, some: &'a [Vec<u8>]) -> &'a [u8] {
        if some.is_empty() { b"" } else { &some[self.below(some.len())] }
    }
}

fn setting(name: &str, otherwise: u64) -> u64 {
    std::env::var(name).ok().map_or(otherwise, |text| text.parse().unwrap_or_else(|e| panic!("{name}: {e}")))
}

fn top() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// What is in the files of a folder.
fn files(folder: &str) -> Vec<Vec<u8>> {
    let mut paths: Vec<_> = std::fs::read_dir(top().join(folder)).unwrap().map(|entry| entry.unwrap().path()).collect();
    paths.sort();
    paths.into_iter().filter(|path| path.is_file()).map(|path| std::fs::read(path).unwrap()).collect()
}

/// The words of a dictionary as libFuzzer reads it: `"word"` or `name="word"`, with \xAB.
fn words(dictionary: &str) -> Vec<Vec<u8>> {
    let text = std::fs::read_to_string(top().join(dictionary)).unwrap();
    let quoted = text.lines().filter(|line| !line.starts_with('#'));
    quoted.filter_map(|line| Some(plain(line.split_once('"')?.1.rsplit_once('"')?.0.as_bytes()))).collect()
}

fn plain(word: &[u8]) -> Vec<u8> {
    let (mut plain, mut rest) = (Vec::new(), word);
    while let Some((&first, behind)) = rest.split_first() {
        let (byte, left) = match behind {
            [b'x', digits @ ..] if first == b'\\' && digits.len() >= 2 => {
                let digits = std::str::from_utf8(&digits[..2]).unwrap();
                (u8::from_str_radix(digits, 16).unwrap(), &behind[3..])
            }
            [escaped, behind @ ..] if first == b'\\' => (*escaped, behind),
            _ => (first, behind),
        };
        plain.push(byte);
        rest = left;
    }
    plain
}

/// Some beginnings, changed in a few places.
fn input(numbers: &mut Numbers, seeds: &[Vec<u8>], words: &[Vec<u8>], longest: usize) -> Vec<u8> {
    let mut bytes = numbers.of(seeds).to_vec();
    for _ in 0..numbers.below(8) {
        let at = numbers.below(bytes.len() + 1);
        let end = (at + 1 + numbers.below(16)).min(bytes.len());
        match numbers.below(7) {
            0 => bytes.truncate(at),
            1 => drop(bytes.splice(at..at, numbers.of(words).to_vec())),
            2 => drop(bytes.splice(at..end, numbers.of(words).to_vec())),
            3 => drop(bytes.drain(at..end)),
            4 if at < end => bytes[at] = numbers.next() as u8,
            5 if at < end => bytes[at] ^= 1 << numbers.below(8),
            _ => {
                let other = numbers.of(seeds);
                let from = numbers.below(other.len() + 1);
                drop(bytes.splice(at..at, other[from..].to_vec()));
            }
        }
    }
    bytes.truncate(longest);
    bytes
}

fn drive(target: fn(&[u8]), seeds: &[Vec<u8>], words: &[Vec<u8>], longest: usize) {
    let seed = setting("FIEF_FUZZ_SEED", 1);
    println!("FIEF_FUZZ_SEED={seed}");
    assert!(!seeds.is_empty());
    let mut numbers = Numbers(seed);
    for run in 0..setting("FIEF_FUZZ_RUNS", 3000) {
        let bytes = input(&mut numbers, seeds, words, longest);
        if catch_unwind(|| target(&bytes)).is_err() {
            panic!("run {run} of FIEF_FUZZ_SEED={seed}: {}", bytes.escape_ascii());
        }
    }
}

#[test]
fn any_text_is_a_policy_or_has_errors() {
    drive(policy_parse::run, &files("examples"), &words("fuzz/policy.dict"), 20_000);
}

#[test]
fn any_bytes_are_one_request_or_none() {
    drive(request_parse::run, &files("fuzz/seeds/request_parse"), &words("fuzz/request.dict"), 20_000);
}

#[test]
fn any_body_ends_at_one_byte_or_is_odd() {
    drive(body_follow::run, &files("fuzz/seeds/body_follow"), &words("fuzz/request.dict"), 2000);
}
