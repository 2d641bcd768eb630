// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A policy with so many client filters and as many request patterns of mixed kinds, and whom they match. Pure.
//!
//! Filters have up to 24 prefix lengths, each in a /8 of its own; of each two rules one limits SYNs. Patterns are exact
//! paths, prefixes, types, and paths together with a host, a header or a cookie.

use std::fmt::Write;
use std::net::Ipv4Addr;

const SHORTEST: u32 = 9;
const LENGTHS: u32 = 24;
/// First byte of the addresses of the shortest prefixes; those of the testbed stay outside.
const FIRST: u32 = 100;
/// Rules that the filters, and the patterns, are spread over; half of them limit.
const MOST_RULES: usize = 200;

/// Container of the requests that a pattern matches.
pub const MATCHED: &str = "web/other";

/// Filters and patterns, `count` each, at least two.
#[derive(Debug)]
pub struct Rules {
    count: usize,
    /// Filters of each length.
    of_length: Vec<usize>,
}

impl Rules {
    pub fn new(count: usize) -> Rules {
        let mut left = count.max(2);
        // As even as the space of each length allows, the longest take the rest.
        let mut of_length = vec![0; LENGTHS as usize];
        for (place, filters) in of_length.iter_mut().enumerate() {
            let space = 1usize << (SHORTEST - 8 + place as u32);
            let even = left.div_ceil(LENGTHS as usize - place);
            *filters = even.min(space);
            left -= *filters;
        }
        Rules { count: count.max(2), of_length }
    }

    pub fn len(&self) -> usize {
        self.count
    }

    /// Address and length of the n-th filter.
    fn filter(&self, n: usize) -> (u32, u32) {
        let mut n = n;
        for (place, &filters) in self.of_length.iter().enumerate() {
            if n < filters {
                let length = SHORTEST + place as u32;
                // An odd factor scatters them over the whole space of their length without a collision.
                let within = (n as u32).wrapping_mul(0x9e37_79b1) & ((1 << (length - 8)) - 1);
                return ((FIRST + place as u32) << 24 | within << (32 - length), length);
            }
            n -= filters;
        }
        unreachable!("a filter has a number below their count")
    }

    /// Whether the rule of the n-th filter, or pattern, is one that limits.
    fn limits(n: usize) -> bool {
        n % 2 == 1
    }

    /// An address that some filter matches whose rule limits SYNs, or does not.
    pub fn source(&self, random: u64, limited: bool) -> Ipv4Addr {
        let n = (random as usize % (self.count / 2)) * 2 + usize::from(limited);
        let (address, length) = self.filter(n);
        let host = (random >> 32) as u32 & u32::MAX.checked_shr(length).unwrap_or(0);
        Ipv4Addr::from(address | host)
    }

    /// A request that some pattern matches.
    pub fn request(&self, random: u64) -> String {
        let n = random as usize % self.count;
        let (path, header) = match n % 6 {
            0 => (format!("/exact/{n:07}"), String::new()),
            1 => (format!("/under/{n:07}/{:x}", random >> 40), String::new()),
            2 => (format!("/{:x}/{n:07}.php", random >> 40), String::new()),
            3 => (format!("/hosted/{n:07}"), String::new()),
            4 => ("/header".to_owned(), format!("X-Key: {n:07}\r\n")),
            _ => ("/cookie".to_owned(), format!("Cookie: a=1; tier={n:07}\r\n")),
        };
        let host = if n % 6 == 3 { "shop.example" } else { "server" };
        format!("GET {path} HTTP/1.1\r\nHost: {host}\r\nAccept: */*\r\n{header}\r\n")
    }

    /// What the n-th pattern wants, but for the values of its kind.
    fn pattern(kind: usize, values: &str) -> String {
        match kind {
            0..=2 => format!("path = [{values}]\n"),
            3 => format!("path = [{values}]\nhost = \"shop.example\"\n"),
            4 => format!("header = {{ \"x-key\" = [{values}] }}\n"),
            _ => format!("cookie = {{ \"tier\" = [{values}] }}\n"),
        }
    }

    fn value(n: usize) -> String {
        match n % 6 {
            0 => format!("/exact/{n:07}"),
            1 => format!("/under/{n:07}/*"),
            2 => format!("*/{n:07}.php"),
            3 => format!("/hosted/{n:07}"),
            _ => format!("{n:07}"),
        }
    }

    /// The policy; every handshake is held back until the first bytes.
    pub fn policy(&self, interface: &str, port: u16) -> String {
        let mut text = format!(
            "version = 1\nmode = \"enforce\"\n\n[container.web]\n\n[container.\"web/browse\"]\n\n\
             [container.\"{MATCHED}\"]\n\n[front]\ninterfaces = [\"{interface}\"]\n\n\
             [listener.web]\naddress = \"0.0.0.0:{port}\"\nadmit = true\nqueue = false\n\n"
        );
        let rules = self.count.min(MOST_RULES);
        for rule in 0..rules {
            let filters = (rule..self.count).step_by(rules).map(|n| {
                let (address, length) = self.filter(n);
                format!("{}/{length}", Ipv4Addr::from(address))
            });
            let limit = if Rules::limits(rule) { "syn = { rate = 1, burst = 1 }\n" } else { "" };
            let _ = writeln!(
                text,
                "[[listener.web.client]]\nfrom = [{}]\ncontainer = \"web/browse\"\n{limit}",
                quoted(filters)
            );
        }
        let _ = writeln!(text, "[[listener.web.client]]\nfrom = [\"any\"]\ncontainer = \"web/browse\"\n");
        // Rules of one kind have their patterns in steps of the number of rules, which is a multiple of the kinds.
        let rules = self.count.min(MOST_RULES / 6 * 6);
        for rule in 0..rules {
            let values = quoted((rule..self.count).step_by(rules).map(Rules::value));
            let _ = writeln!(
                text,
                "[[listener.web.request]]\n{}container = \"{MATCHED}\"\n",
                Rules::pattern(rule % 6, &values)
            );
        }
        text
    }
}

fn quoted(values: impl Iterator<Item = String>) -> String {
    values.map(|value| format!("\"{value}\"")).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn filters_are_distinct_and_of_24_lengths() {
        for count in [2, 1000, 100_000, 1_000_000] {
            let rules = Rules::new(count);
            let filters: HashSet<_> = (0..count).map(|n| rules.filter(n)).collect();
            assert_eq!(filters.len(), count);
            let lengths: HashSet<_> = filters.iter().map(|filter| filter.1).collect();
            assert_eq!(lengths.len(), count.min(LENGTHS as usize));
        }
    }

    #[test]
    fn a_source_is_inside_a_filter_of_the_wanted_kind() {
        let rules = Rules::new(1000);
        for random in (0..2000u64).map(|n| n.wrapping_mul(0x9e37_79b9_7f4a_7c15)) {
            for limited in [false, true] {
                let source = u32::from(rules.source(random, limited));
                let matching = (0..1000).filter(|&n| {
                    let (address, length) = rules.filter(n);
                    (address ^ source) >> (32 - length) == 0
                });
                let limits: Vec<bool> = matching.map(|n| Rules::limits(n % MOST_RULES)).collect();
                assert_eq!(limits, [limited]);
            }
        }
    }

    #[test]
    fn one_filter_is_one_of_either_kind() {
        let rules = Rules::new(1);
        assert_ne!(rules.source(7, false).octets()[0], rules.source(7, true).octets()[0]);
    }
}
