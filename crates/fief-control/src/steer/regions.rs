// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Regions: which prefix lengths to look up for a source, by the first bits of its address.
//!
//! A policy of many prefixes has some of every length, but few lengths in one place. The word of a region has a bit for each
//! length (two for a bit where there are more than 64) of a prefix in it or around it.
//!
//! ```text
//! IPv4  a.b.c.d       region a.b              IPv6  aaaa:bbbb:...   region aaaa ^ bbbb
//!                     word   region & mask
//! ```

use std::collections::BTreeMap;
use std::net::Ipv6Addr;

use fief_bpf::abi;
use fief_policy::ClassEntry;
use ipnet::Ipv6Net;

const WORD_BITS: usize = u64::BITS as usize;
/// Of an IPv4 address as an IPv6 one.
const MAPPED_BITS: u8 = 96;
/// From this length on an IPv4 prefix is in the words of all its regions, of which there are at most 256.
const IPV4_LISTED: u8 = MAPPED_BITS + 8;

/// The words of a listener's prefixes.
#[derive(Debug)]
pub(super) struct Regions {
    /// A power of two of them.
    pub(super) words: Vec<u64>,
    pub(super) everywhere: u64,
    pub(super) bit_shift: u32,
    lengths: usize,
}

impl Regions {
    /// `lengths` are those of the entries.
    pub(super) fn of(entries: &[ClassEntry], lengths: &abi::fief_prefix_lengths) -> Self {
        let used = &lengths.length[..usize::from(lengths.count)];
        let bit_shift = u32::from(used.len() > WORD_BITS);
        let mut bits = [0; 129];
        for (at, &length) in used.iter().enumerate() {
            bits[usize::from(length)] = 1 << (at >> bit_shift);
        }
        let mut everywhere = 0;
        let mut regions: BTreeMap<u32, u64> = BTreeMap::new();
        for prefix in entries.iter().map(|entry| entry.prefix) {
            let bit = bits[usize::from(prefix.prefix_len())];
            match around(&prefix) {
                Some(around) => around.for_each(|region| *regions.entry(region).or_default() |= bit),
                None => everywhere |= bit,
            }
        }
        // IPv4 regions side by side, as networks mostly are, have words of their own.
        let mut words = vec![0; regions.len().next_power_of_two().min(1 << abi::FIEF_REGION_IPV4)];
        let mask = words.len() - 1;
        for (region, bits) in regions {
            words[region as usize & mask] |= bits;
        }
        Self { words, everywhere, bit_shift, lengths: used.len() }
    }

    /// The bits of all lengths.
    pub(super) fn all(&self) -> u64 {
        match self.lengths.div_ceil(1 << self.bit_shift) {
            0 => 0,
            bits => u64::MAX >> (WORD_BITS - bits),
        }
    }
}

/// The regions that have an address in common with a prefix; `None`: very many.
fn around(prefix: &Ipv6Net) -> Option<std::ops::RangeInclusive<u32>> {
    let length = prefix.prefix_len();
    let ipv4 = Ipv6Addr::from(0xffff << 32);
    if length >= MAPPED_BITS && prefix.network().to_ipv4_mapped().is_some() {
        return (length >= IPV4_LISTED).then(|| region(prefix.network())..=region(prefix.broadcast()));
    }
    let own = region(prefix.network());
    (u32::from(length) >= abi::FIEF_REGION_IPV6 && !prefix.contains(&ipv4)).then_some(own..=own)
}

fn region(address: Ipv6Addr) -> u32 {
    match (address.to_ipv4_mapped(), address.segments()) {
        (Some(ipv4), _) => u32::from(ipv4) >> (32 - abi::FIEF_REGION_IPV4),
        (None, [first, second, ..]) => u32::from(first ^ second),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::records::prefix_lengths;
    use super::*;

    /// Of few networks of every length, so that prefixes lie in each other and addresses in them.
    fn prefix() -> impl Strategy<Value = Ipv6Net> {
        let four = (8u128..12, any::<u32>()).prop_map(|(a, rest)| 0xffff << 32 | a << 24 | u128::from(rest >> 8));
        let six = (0u128..3, any::<u64>()).prop_map(|(a, rest)| 0xfd77 << 112 | a << 96 | u128::from(rest));
        let other = prop_oneof![Just(0u128), any::<u128>()];
        (prop_oneof![four, six, other], 0u8..=128)
            .prop_map(|(address, length)| Ipv6Net::new(address.into(), length).expect("a length of IPv6").trunc())
    }

    fn bits(regions: &Regions, address: Ipv6Addr) -> u64 {
        regions.words[region(address) as usize & (regions.words.len() - 1)] | regions.everywhere
    }

    fn regions(prefixes: &[Ipv6Net]) -> (Regions, Vec<u8>) {
        let entries: Vec<_> = prefixes.iter().map(|&prefix| ClassEntry { prefix, rule: 0, class: 0 }).collect();
        let lengths = prefix_lengths(prefixes.iter().map(Ipv6Net::prefix_len));
        (Regions::of(&entries, &lengths), lengths.length[..usize::from(lengths.count)].to_vec())
    }

    proptest! {
        #[test]
        fn the_region_of_an_address_names_every_prefix_around_it(
            prefixes in prop::collection::vec(prefix(), 0..200),
            host in any::<u128>(),
        ) {
            let (regions, lengths) = regions(&prefixes);
            prop_assert!(regions.words.len().is_power_of_two());
            for prefix in prefixes.iter().filter(|prefix| prefix.prefix_len() > 0) {
                let mask = u128::from(prefix.hostmask());
                for host in [0, host, u128::MAX] {
                    let address = Ipv6Addr::from(u128::from(prefix.network()) | host & mask);
                    let at = lengths.iter().position(|&length| length == prefix.prefix_len()).expect("in use");
                    prop_assert_ne!(bits(&regions, address) & 1 << (at >> regions.bit_shift), 0, "{}", prefix);
                }
            }
            let named = (0..lengths.len()).fold(0, |bits, at| bits | 1u64 << (at >> regions.bit_shift));
            prop_assert_eq!(regions.all(), named);
        }
    }

    #[test]
    fn a_source_elsewhere_is_spared_the_lengths() {
        let prefixes =
            ["::ffff:10.1.0.0/112", "::ffff:10.2.3.4/128", "fd77::/64"].map(|text| text.parse().expect("one"));
        let (regions, lengths) = regions(&prefixes);
        assert_eq!(lengths, [128, 112, 64]);
        let of = |text: &str| bits(&regions, text.parse().expect("an address"));
        assert_eq!([of("::ffff:10.1.9.9"), of("::ffff:10.2.9.9"), of("::ffff:10.4.9.9")], [0b010, 0b001, 0]);
        assert_eq!((regions.everywhere, regions.words.len()), (0, 4));
    }
}
