// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The keys of a policy: the one place that names them.
//!
//! The reader knows unknown keys by it, errors take what they expected from it, and the JSON schema for editors is made
//! of it. What the values mean is read in `containers` and `listeners`.

pub(crate) const VERSION: u32 = 1;
pub(crate) const WEIGHT: std::ops::RangeInclusive<u64> = 1..=10_000;
pub(crate) const PRIORITY: std::ops::RangeInclusive<u64> = 0..=65_535;
pub(crate) const DESCENDANTS: std::ops::RangeInclusive<u64> = 1..=1_048_576;
/// One page: less than that cannot hold a thread.
pub(crate) const LEAST_MEMORY: u64 = 4096;

/// A kind of table.
pub(crate) struct Section {
    pub(crate) doc: &'static str,
    pub(crate) keys: &'static [Key],
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
    Weight,
    Priority,
    Bytes,
    BitRate,
    Count,
    Flag,
    Address,
    Prefixes,
    Path,
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
            Self::PercentOrMax => "a percentage of the machine between \"0.0001%\" and \"100%\", or \"max\"".into(),
            Self::Weight => "an integer from 1 to 10000".into(),
            Self::Priority => "an integer from 0 to 65535".into(),
            Self::Bytes => "bytes, from 4096, as an integer or with K, M, G or T, as in \"512M\", or \"max\"".into(),
            Self::BitRate => "bits per second with their unit, as in \"100Mbit\", or \"max\"".into(),
            Self::Count => "an integer from 1 to 1048576, or \"max\"".into(),
            Self::Flag => "true or false".into(),
            Self::Address => "an address and a port, as in \"0.0.0.0:80\" or \"[2001:db8::1]:80\"".into(),
            Self::Prefixes => "an array of prefixes, as in [\"10.1.0.0/16\", \"2001:db8::/32\"]".into(),
            Self::Path => "the path of a container, as in \"shop/gold\"".into(),
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

pub(crate) static POLICY: Section = Section {
    doc: "Policy of Fief: resource containers, and whose connections belong to which of them.",
    keys: &[
        Key { name: "version", shape: Shape::Version, example: "1", doc: "Version of the policy language. Required." },
        Key {
            name: "mode",
            shape: Shape::Choice(&["enforce"]),
            example: "\"enforce\"",
            doc: "What happens with verdicts: they are carried out. Default \"enforce\".",
        },
        Key {
            name: "container",
            shape: Shape::Named(&CONTAINER),
            example: "",
            doc: "Resource containers by path, as in [container.\"shop/gold\"]. Parents that are not named are implied.",
        },
        Key {
            name: "listener",
            shape: Shape::Named(&LISTENER),
            example: "",
            doc: "Addresses that servers listen on, by a name of your choice, with the classes of their clients.",
        },
        Key {
            name: "gate",
            shape: Shape::Later("remove it: this version hands work on by inheritance alone"),
            example: "",
            doc: "",
        },
    ],
    synonyms: &[("containers", "container"), ("listeners", "listener"), ("listen", "listener"), ("server", "listener")],
};

pub(crate) static CONTAINER: Section = Section {
    doc: "A resource principal. Every key has a default.",
    keys: &[
        Key { name: "cpu", shape: Shape::Table(&CPU), example: "", doc: "CPU time." },
        Key { name: "memory", shape: Shape::Table(&MEMORY), example: "", doc: "Memory." },
        Key { name: "network", shape: Shape::Table(&NETWORK), example: "", doc: "Packets that are sent." },
        Key {
            name: "pass-up",
            shape: Shape::Flag,
            example: "true",
            doc: "Add the usage to the parent's when the container ends. Default false.",
        },
        Key {
            name: "descendants",
            shape: Shape::Table(&DESCENDANTS_SECTION),
            example: "",
            doc: "Containers below this one.",
        },
        Key {
            name: "processes",
            shape: Shape::Later("remove it: this version does not limit the number of processes"),
            example: "",
            doc: "",
        },
    ],
    synonyms: &[("pids", "processes"), ("mem", "memory"), ("net", "network")],
};

pub(crate) static CPU: Section = Section {
    doc: "CPU time of a container, with all that is below it.",
    keys: &[
        Key {
            name: "share",
            shape: Shape::Percent,
            example: "\"60%\"",
            doc: "Guaranteed, in percent of the machine. Default: nothing, or the sum of the children's shares.",
        },
        Key {
            name: "limit",
            shape: Shape::PercentOrMax,
            example: "\"30%\"",
            doc: "At most, in percent of the machine, or \"max\". Default \"max\".",
        },
        Key {
            name: "weight",
            shape: Shape::Weight,
            example: "100",
            doc: "Part of what is free, among siblings. Default 100.",
        },
        Key {
            name: "priority",
            shape: Shape::Priority,
            example: "100",
            doc: "Higher goes first; 0: only when nothing else wants the CPU. Default 100.",
        },
    ],
    synonyms: &[("max", "limit"), ("quota", "limit"), ("min", "share"), ("guarantee", "share"), ("nice", "priority")],
};

pub(crate) static MEMORY: Section = Section {
    doc: "Memory of a container, with all that is below it.",
    keys: &[Key {
        name: "max",
        shape: Shape::Bytes,
        example: "\"512M\"",
        doc: "At most, in bytes (K, M, G, T: powers of 1024), or \"max\". Default \"max\".",
    }],
    synonyms: &[("limit", "max"), ("high", "max")],
};

pub(crate) static NETWORK: Section = Section {
    doc: "Packets that a container sends, with all that is below it.",
    keys: &[
        Key {
            name: "max",
            shape: Shape::BitRate,
            example: "\"100Mbit\"",
            doc: "At most, in bits per second (kbit, Mbit, Gbit: powers of 1000), or \"max\". Default \"max\".",
        },
        Key {
            name: "weight",
            shape: Shape::Weight,
            example: "100",
            doc: "Part of what is free, among siblings. Default 100.",
        },
    ],
    synonyms: &[("limit", "max"), ("rate", "max")],
};

pub(crate) static DESCENDANTS_SECTION: Section = Section {
    doc: "Containers below a container.",
    keys: &[Key {
        name: "max",
        shape: Shape::Count,
        example: "1000",
        doc: "At most so many containers below, at any depth, or \"max\". Default \"max\".",
    }],
    synonyms: &[("limit", "max")],
};

pub(crate) static LISTENER: Section = Section {
    doc: "An address that a server listens on.",
    keys: &[
        Key {
            name: "address",
            shape: Shape::Address,
            example: "\"0.0.0.0:80\"",
            doc: "Address and port. 0.0.0.0: every IPv4 address; [::]: every address of both families. Required.",
        },
        Key {
            name: "classes",
            shape: Shape::Choice(&["shared"]),
            example: "\"shared\"",
            doc: "One listening socket for all classes, which are told apart for accounting only. Default: one for each class.",
        },
        Key {
            name: "copies",
            shape: Shape::Choice(&["per-class"]),
            example: "\"per-class\"",
            doc: "A copy of the server for each class, in the class's container. Default: one server for all classes.",
        },
        Key {
            name: "client",
            shape: Shape::List(&CLIENT),
            example: "",
            doc: "Whose connections belong to which container. The first match wins; the last rule is from = [\"any\"].",
        },
        Key {
            name: "syn",
            shape: Shape::Later("remove it: this version does not limit the rate of connections"),
            example: "",
            doc: "",
        },
        Key {
            name: "request",
            shape: Shape::Later("remove it: this version decides by the client's address alone"),
            example: "",
            doc: "",
        },
    ],
    synonyms: &[
        ("listen", "address"),
        ("addr", "address"),
        ("port", "address"),
        ("rule", "client"),
        ("class", "client"),
    ],
};

pub(crate) static CLIENT: Section = Section {
    doc: "A rule: clients and their container. It has one of from and not-from.",
    keys: &[
        Key {
            name: "from",
            shape: Shape::Prefixes,
            example: "[\"10.1.0.0/16\"]",
            doc: "Source addresses and prefixes of both families, or [\"any\"].",
        },
        Key {
            name: "not-from",
            shape: Shape::Prefixes,
            example: "[\"10.1.0.0/16\"]",
            doc: "Every source address but these.",
        },
        Key { name: "container", shape: Shape::Path, example: "\"shop/gold\"", doc: "Path of a container. Required." },
        Key {
            name: "accept",
            shape: Shape::Choice(&["before", "after"]),
            example: "\"before\"",
            doc: "New connections of the class go before or after those that are being served. Default \"before\".",
        },
        Key {
            name: "syn",
            shape: Shape::Later("remove it: this version does not limit the rate of connections"),
            example: "",
            doc: "",
        },
    ],
    synonyms: &[("source", "from"), ("to", "container"), ("class", "container")],
};
