// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Filters before the kernel's tables: a word that lacks one of three bits says that a key is not there, so most looks
//! into a table are spared.
//!
//! Blocked Bloom filters (Putze, Sanders, Singler 2007) with one word of 64 bits for a block: one cache line a look. At
//! about 16 bits a key, one in a hundred of the keys that are not there gets through.
//!
//! ```text
//! word = hash & mask                   bits (hash >> 40) & 63, (hash >> 46) & 63, (hash >> 52) & 63
//! ```

use ipnet::Ipv6Net;

use crate::patterns::{GOLDEN, fmix64};

/// Keys for a word: 16 bits for each.
const KEYS_A_WORD: usize = 4;

/// The filter of keys with these hashes: a power of two of words. Where there is less room for it, the upper half can be
/// laid over the lower one (by `|`), again and again.
pub(crate) fn filter(hashes: impl ExactSizeIterator<Item = u64>) -> Vec<u64> {
    let mut words = vec![0; hashes.len().div_ceil(KEYS_A_WORD).next_power_of_two()];
    let mask = words.len() as u64 - 1;
    for hash in hashes {
        words[(hash & mask) as usize] |= bits(hash);
    }
    words
}

/// May a key with this hash be there?
pub(crate) fn admits(filter: &[u64], hash: u64) -> bool {
    let mask = filter.len() as u64 - 1;
    filter[(hash & mask) as usize] & bits(hash) == bits(hash)
}

fn bits(hash: u64) -> u64 {
    1 << ((hash >> 40) & 63) | 1 << ((hash >> 46) & 63) | 1 << ((hash >> 52) & 63)
}

/// Of a client prefix, in IPv6 bits; those of IPv4 all differ. The secret keeps others from looking for an address that is
/// taken for somebody else's prefix.
pub(crate) fn prefix_hash(prefix: &Ipv6Net, secret: u64) -> u64 {
    let octets = prefix.network().octets();
    let (upper, lower) = octets.split_at(8);
    // as the kernel loads them
    let word = |bytes: &[u8]| bytes.iter().rev().fold(0, |word: u64, &byte| word << 8 | u64::from(byte));
    let mixed = fmix64(word(upper) ^ secret) ^ word(lower);
    fmix64(mixed.wrapping_add(u64::from(prefix.prefix_len()).wrapping_mul(GOLDEN)))
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;
    use std::net::{Ipv4Addr, Ipv6Addr};

    use super::*;

    #[test]
    fn a_key_that_is_there_is_never_denied() {
        for count in [0, 1, 4, 5, 100, 10_000] {
            let filter = filter((0..count).map(fmix64).collect::<Vec<_>>().into_iter());
            assert!(filter.len().is_power_of_two() && filter.len() >= count as usize / 4);
            assert!((0..count).all(|key| admits(&filter, fmix64(key))));
        }
    }

    #[test]
    fn hardly_any_other_key_gets_through() {
        let filter = filter((0..16_384).map(fmix64).collect::<Vec<_>>().into_iter());
        let through = (20_000..120_000).filter(|&other| admits(&filter, fmix64(other))).count();
        assert!(through < 2_000, "{through} of 100000");
        assert!(through > 0, "a filter that lets nothing through was not asked");
    }

    /// Prefixes of every length that lie in each other, and so differ in few bits of address and length.
    #[test]
    fn prefixes_around_an_address_and_its_neighbours_have_hashes_of_their_own() {
        let four = Ipv4Addr::new(10, 1, 2, 3).to_ipv6_mapped();
        let six = Ipv6Addr::new(0x2001, 0xdb8, 1, 2, 0x8000, 0, 0, 1);
        let bits = (0..128).map(|bit| u128::from(six) ^ 1 << bit).chain((0..32).map(|bit| u128::from(four) ^ 1 << bit));
        let prefixes: HashSet<_> = bits
            .flat_map(|address| (1..=128).map(move |length| Ipv6Net::new(address.into(), length).expect("a length")))
            .map(|prefix| prefix.trunc())
            .collect();
        for secret in [0, 7, u64::MAX] {
            let hashes: HashSet<_> = prefixes.iter().map(|prefix| prefix_hash(prefix, secret)).collect();
            assert_eq!(hashes.len(), prefixes.len());
        }
    }

    #[test]
    fn the_hash_of_a_prefix_is_of_its_length_and_the_secret_too() {
        let with = |text: &str, secret| prefix_hash(&text.parse().expect("a prefix"), secret);
        assert_ne!(with("2001:db8::1/128", 1), with("2001:db8::1/128", 2));
        assert_ne!(with("2001:db8::1/128", 1), with("2001:db8::1/127", 1));
    }

    #[test]
    fn a_filter_whose_upper_half_lies_over_the_lower_one_knows_the_same_keys() {
        let whole = filter((0..1000).map(fmix64).collect::<Vec<_>>().into_iter());
        let (low, high) = whole.split_at(whole.len() / 2);
        let half: Vec<u64> = low.iter().zip(high).map(|(low, high)| low | high).collect();
        assert!((0..1000).all(|key| admits(&half, fmix64(key))));
    }
}
