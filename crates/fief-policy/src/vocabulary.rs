// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The keys of a policy: the one place that names them.
//!
//! The reader knows unknown keys by it, errors take what they expected from it, and the JSON schema for editors is made
//! of it. What the values mean is read in `containers`, `listeners` and beside them.

use crate::nearest::nearest;

mod front;
mod listener;
mod policy;
mod queue;
mod request;

pub(crate) use policy::{CONTAINER, POLICY};
pub(crate) use queue::{IN_SERVICE, QUEUE_LENGTH};

pub(crate) const VERSION: u32 = 1;
pub(crate) const WEIGHT: std::ops::RangeInclusive<u64> = 1..=10_000;
pub(crate) const PRIORITY: std::ops::RangeInclusive<u64> = 0..=65_535;
pub(crate) const DESCENDANTS: std::ops::RangeInclusive<u64> = 1..=1_048_576;
/// One page: less than that cannot hold a thread.
pub(crate) const LEAST_MEMORY: u64 = 4096;
/// SYNs or requests a second, and how many at once. Intervals are whole nanoseconds: at the upper end they are off by
/// less than a thousandth.
pub(crate) const RATE: std::ops::RangeInclusive<u64> = 1..=1_000_000;
pub(crate) const LEVELS: &[&str] = &["always", "busy", "overloaded"];
pub(crate) const UNREAD: &[&str] = &["refuse", "pass"];
pub(crate) const MODES: &[&str] = &["enforce", "monitor"];
pub(crate) const CPU_POLICIES: &[&str] = &["fair", "fifo", "rr", "edf", "lottery"];
pub(crate) const SCHEDULES: &[&str] = &["auto", "cgroup", "off"];

/// Words of other programs for values here.
const VALUE_SYNONYMS: &[(&str, &str)] =
    &[("ip", "source"), ("address", "source"), ("client", "source"), ("user", "source"), ("deny", "503")];

/// The value of these that somebody had in mind who wrote another one.
pub(crate) fn meant<'a>(written: &str, values: &[&'a str]) -> Option<&'a str> {
    let synonyms = VALUE_SYNONYMS.iter().filter(|(word, _)| word.eq_ignore_ascii_case(written));
    let known = |value: &str| values.iter().copied().find(|&known| known == value);
    synonyms.filter_map(|&(_, value)| known(value)).next().or_else(|| nearest(written, values.iter().copied()))
}

/// A kind of table.
pub(crate) struct Section {
    pub(crate) doc: &'static str,
    pub(crate) keys: &'static [Key],
    /// Keys that have to be there.
    pub(crate) required: &'static [&'static str],
    /// Words of other programs, and the key here that does the same.
    pub(crate) synonyms: &'static [(&'static str, &'static str)],
}

pub(crate) struct Key {
    pub(crate) name: &'static str,
    pub(crate) shape: Shape,
    /// A value as one would write it.
    pub(crate) example: &'static str,
    pub(crate) doc: &'static str,
}

pub(crate) enum Shape {
    Version,
    Choice(&'static [&'static str]),
    Percent,
    PercentOrMax,
    Latency,
    Weight,
    Priority,
    Bytes,
    BitRate,
    Count,
    Flag,
    Address,
    /// Of clients.
    Ports,
    Prefixes,
    Path,
    /// SYNs, requests or drops: a second or at once.
    Rate,
    /// As many requests, or as much CPU time at once.
    Burst,
    WholePercent,
    Duration,
    /// As HTTP's Retry-After.
    Seconds,
    /// Names of network interfaces.
    Interfaces,
    /// A word of the protocol or several of them.
    Words,
    /// A value with at most one `*`, or several of them.
    Patterns,
    /// Patterns by the name of a header or cookie.
    NamedPatterns,
    /// One word for all of them, or a table with a word for each key.
    ChoiceOrTable(&'static [&'static str], &'static Section),
    /// true or false, or a table with keys of its own.
    FlagOrTable(&'static Section),
    /// A time, or a table with keys of its own.
    DurationOrTable(&'static Section),
    /// A word, or an integer of this range.
    ChoiceOrCount(&'static [&'static str], std::ops::RangeInclusive<u64>),
    /// A word, or the name of a table of this kind.
    ChoiceOrName(&'static [&'static str], &'static str),
    /// The full path of a file.
    File,
    /// An integer of this range.
    Integer(std::ops::RangeInclusive<u64>),
    /// A table with keys of its own.
    Table(&'static Section),
    /// A table of tables, each under a name that the operator gives.
    Named(&'static Section),
    /// An array of tables.
    List(&'static Section),
    /// Known, but not to this version; with what to do instead.
    Later(&'static str),
}

impl Section {
    pub(crate) fn key(&self, name: &str) -> Option<&'static Key> {
        self.keys.iter().find(|key| key.name == name)
    }

    /// Names of the keys that this version takes.
    pub(crate) fn names(&self) -> impl Iterator<Item = &'static str> {
        self.keys.iter().filter(|key| !matches!(key.shape, Shape::Later(_))).map(|key| key.name)
    }
}

impl Shape {
    /// What the value should be, to stand after "expected".
    pub(crate) fn expected(&self) -> String {
        match self {
            Self::Version => format!("{VERSION}"),
            Self::Choice(words) => quoted_list(words),
            Self::Percent => "a percentage of the machine between \"0.0001%\" and \"100%\"".into(),
            Self::Latency => "a part of requests and a time, as in \"99% in 20ms\"".into(),
            Self::PercentOrMax => "a percentage of the machine between \"0.0001%\" and \"100%\", or \"max\"".into(),
            Self::Weight => "an integer from 1 to 10000".into(),
            Self::Priority => "an integer from 0 to 65535".into(),
            Self::Bytes => "bytes, from 4096, as an integer or with K, M, G or T, as in \"512M\", or \"max\"".into(),
            Self::BitRate => "bits per second with their unit, as in \"100Mbit\", or \"max\"".into(),
            Self::Count => "an integer from 1 to 1048576, or \"max\"".into(),
            Self::Flag => "true or false".into(),
            Self::Address => {
                "an address and a port, as in \"0.0.0.0:80\" or \"[2001:db8::1]:80\", or a range of ports".into()
            }
            Self::Ports => "a port or a range of ports, as in \"1024-65535\"".into(),
            Self::Prefixes => "an array of prefixes, as in [\"10.1.0.0/16\", \"2001:db8::/32\"]".into(),
            Self::Path => "the path of a container, as in \"shop/gold\"".into(),
            Self::Rate => "an integer from 1 to 1000000".into(),
            Self::Burst => "an integer from 1 to 1000000, or with `cpu` a time as in \"50ms\"".into(),
            Self::WholePercent => "a whole percentage between \"1%\" and \"100%\"".into(),
            Self::Duration => "a time from \"1ms\" to \"24h\", with ms, s, m or h".into(),
            Self::Seconds => "whole seconds from \"1s\" to \"18h\", with s, m or h".into(),
            Self::Interfaces => "an array of network interfaces, as in [\"eth0\"]".into(),
            Self::Words => "a word, or an array of words of which one has to be met".into(),
            Self::Patterns => "a value with at most one `*`, or an array of values of which one has to be met".into(),
            Self::NamedPatterns => "a table from names to values, as in { \"user-agent\" = \"Bad*\" }".into(),
            Self::ChoiceOrTable(words, _) => {
                format!("{}, or a table with one of them for each kind", quoted_list(words))
            }
            Self::FlagOrTable(_) => "true or false, or a table of keys".into(),
            Self::DurationOrTable(_) => "a time from \"1ms\" to \"24h\", with ms, s, m or h, or a table of keys".into(),
            Self::ChoiceOrCount(words, range) => {
                format!("{}, or an integer from {} to {}", quoted_list(words), range.start(), range.end())
            }
            Self::ChoiceOrName(words, table) => format!("{}, or the name of a [{table}]", quoted_list(words)),
            Self::File => "the full path of a file, as in \"/etc/fief/lifo.bpf.o\"".into(),
            Self::Integer(range) => format!("an integer from {} to {}", range.start(), range.end()),
            Self::Table(_) => "a table of keys".into(),
            Self::Named(_) => "a table for each name".into(),
            Self::List(_) => "an array of tables, each under a header in double brackets".into(),
            Self::Later(_) => "no such key in this version".into(),
        }
    }
}

fn quoted_list(words: &[&str]) -> String {
    words.iter().map(|word| format!("\"{word}\"")).collect::<Vec<_>>().join(" or ")
}
