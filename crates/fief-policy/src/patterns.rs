// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The hash by which the kernel side finds request rules; `bpf/front/match.bpf.h` is its twin, and both are held to
//! `tests/pattern_vectors.txt`.
//!
//! A shape is a list of conditions (a field, how it is compared, and over how many bytes); a pattern is the bytes of one
//! rule for them. What a client sends is hashed once from the front and once from the back of each field, and the state
//! after n bytes is the value of a prefix or suffix of n bytes: so one pass serves all shapes.
//!
//! ```text
//! field(bytes) = f, from f = P0 on: f = (f ^ byte) * K          K = P1 | 1
//! h = P1; for each condition: h = fmix64((h ^ f) + tag * C)     tag = length << 32 | name << 16 | match << 8 | field
//! ```
//!
//! The keys P0 and P1 are secret: who cannot know the hash cannot look for a request that collides with a pattern.
//! Limits: two patterns of one shape collide by chance once in 2^64 pairs.

use serde::Serialize;

/// Part of a request; the numbers are `enum fief_field`'s.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
#[repr(u8)]
pub enum Part {
    Method = 1,
    Path,
    Host,
    ServerName,
    Alpn,
    Header,
    Cookie,
}

/// How a part is compared; the numbers are `enum fief_match`'s.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
#[repr(u8)]
pub enum Comparison {
    Exact = 1,
    Prefix,
    Suffix,
    Present,
}

/// One condition of a shape: `struct fief_condition`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
pub struct ShapeCondition {
    pub part: Part,
    /// Headers and cookies: position in [`RequestTable::names`](crate::RequestTable).
    pub name: u8,
    pub comparison: Comparison,
    /// Bytes of a prefix or suffix, else 0.
    pub length: u16,
    /// Least bytes of the part: a prefix and a suffix of it do not overlap.
    pub least: u16,
}

impl ShapeCondition {
    fn tag(&self) -> u64 {
        u64::from(self.part as u8)
            | u64::from(self.comparison as u8) << 8
            | u64::from(self.name) << 16
            | u64::from(self.length) << 32
    }
}

/// The hash under its two secret words.
#[derive(Clone, Copy, Debug)]
pub struct PatternHash {
    secret: [u64; 2],
    factor: u64,
}

/// 2^64 by the golden ratio, an odd number without a pattern.
pub(crate) const GOLDEN: u64 = 0x9e37_79b9_7f4a_7c15;

impl PatternHash {
    pub fn new(secret: [u64; 2]) -> Self {
        Self { secret, factor: secret[1] | 1 }
    }

    /// Of bytes in their order.
    pub fn forward(&self, bytes: &[u8]) -> u64 {
        bytes.iter().fold(self.secret[0], |state, &byte| (state ^ u64::from(byte)).wrapping_mul(self.factor))
    }

    /// Of bytes from the last one to the first.
    pub fn backward(&self, bytes: &[u8]) -> u64 {
        bytes.iter().rev().fold(self.secret[0], |state, &byte| (state ^ u64::from(byte)).wrapping_mul(self.factor))
    }

    /// Of a header's or cookie's name; one that both have is two names.
    pub fn name(&self, part: Part, name: &[u8]) -> u64 {
        fmix64(self.forward(name) ^ u64::from(part as u8))
    }

    /// Where the conditions of a pattern begin.
    pub fn start(&self) -> u64 {
        self.secret[1]
    }

    /// Goes on with a condition; `bytes` is the whole value, prefix or suffix, and nothing for presence.
    pub fn add(&self, hash: u64, condition: &ShapeCondition, bytes: &[u8]) -> u64 {
        let state = match condition.comparison {
            Comparison::Exact | Comparison::Prefix => self.forward(bytes),
            Comparison::Suffix => self.backward(bytes),
            Comparison::Present => self.secret[0],
        };
        fmix64((hash ^ state).wrapping_add(condition.tag().wrapping_mul(GOLDEN)))
    }
}

/// Finaliser of MurmurHash3 (Appleby, public domain): every bit of the input changes half of the output.
pub(crate) fn fmix64(mut x: u64) -> u64 {
    x ^= x >> 33;
    x = x.wrapping_mul(0xff51_afd7_ed55_8ccd);
    x ^= x >> 33;
    x = x.wrapping_mul(0xc4ce_b9fe_1a85_ec53);
    x ^ (x >> 33)
}
