// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Keys of the whole policy and of containers.

use super::front::{FRONT, OVERLOAD};
use super::listener::LISTENER;
use super::{CPU_POLICIES, Key, MODES, SCHEDULES, Section, Shape};

pub(crate) static POLICY: Section = Section {
    required: &["version"],
    doc: "Policy of Fief: resource containers, and whose connections belong to which of them.",
    keys: &[
        Key { name: "version", shape: Shape::Version, example: "1", doc: "Version of the policy language. Required." },
        Key {
            name: "mode",
            shape: Shape::Choice(MODES),
            example: "\"enforce\"",
            doc: "Verdicts on connections and requests are carried out, or (\"monitor\") only counted. Default \"enforce\".",
        },
        Key {
            name: "label-files",
            shape: Shape::Flag,
            example: "true",
            doc: "Programs can label files with containers; reads and writes through the page cache are watched for it. \
                  Default false.",
        },
        Key {
            name: "schedule",
            shape: Shape::Choice(SCHEDULES),
            example: "\"auto\"",
            doc: "Fief divides the CPU where a container has a cpu.share, cpu.limit, cpu.weight or cpu.policy, or has a cpu.priority \
                  and is no class of a listener: by its scheduler, or by cgroups where the kernel takes none (\"auto\"); by cgroups \
                  (\"cgroup\"); or never (\"off\"). Default \"off\".",
        },
        Key {
            name: "front",
            shape: Shape::Table(&FRONT),
            example: "",
            doc: "What the control of connections and requests needs from the machine.",
        },
        Key {
            name: "overload",
            shape: Shape::Table(&OVERLOAD),
            example: "{ hold = \"5s\" }",
            doc: "When a listener counts as busy and as overloaded.",
        },
        Key {
            name: "container",
            shape: Shape::Named(&CONTAINER),
            example: "",
            doc: "Resource containers by path, as in [container.\"shop/gold\"]. Parents that are not named are implied.",
        },
        Key {
            name: "cpu-policy",
            shape: Shape::Named(&CPU_POLICY),
            example: "",
            doc: "Orders among a container's own threads that are built outside of Fief, by a name of your choice; at most 4.",
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
    synonyms: &[
        ("containers", "container"),
        ("listeners", "listener"),
        ("listen", "listener"),
        ("server", "listener"),
        ("files", "label-files"),
    ],
};

pub(crate) static CPU_POLICY: Section = Section {
    required: &["object"],
    doc: "An order that containers can have as their cpu.policy.",
    keys: &[Key {
        name: "object",
        shape: Shape::File,
        example: "\"/etc/fief/lifo.bpf.o\"",
        doc: "The object file, built with fief_policy.h. Required.",
    }],
    synonyms: &[("file", "object"), ("path", "object"), ("program", "object")],
};

pub(crate) static CONTAINER: Section = Section {
    required: &[],
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
            name: "programs",
            shape: Shape::Path,
            example: "\"shop/cgi\"",
            doc: "Programs that a server starts for a client of this container or below (CGI) get a container each below this \
                  one. Default: as the container above says.",
        },
        Key {
            name: "latency",
            shape: Shape::Latency,
            example: "\"99% in 20ms\"",
            doc: "How soon its requests are answered where a queue orders them: the classes below it get fewer at once while \
                  that does not hold. 50% to 99.9%, 1ms to 60s.",
        },
        Key {
            name: "was",
            shape: Shape::Path,
            example: "\"shop/old\"",
            doc: "The path that this container had in the policy before: it keeps its usage and whoever is in it, and what is below \
                  it comes along.",
        },
        Key {
            name: "processes",
            shape: Shape::Later("remove it: this version does not limit the number of processes"),
            example: "",
            doc: "",
        },
    ],
    synonyms: &[
        ("pids", "processes"),
        ("mem", "memory"),
        ("net", "network"),
        ("cgi", "programs"),
        ("children", "programs"),
        ("renamed-from", "was"),
        ("formerly", "was"),
        ("old-path", "was"),
    ],
};

pub(crate) static CPU: Section = Section {
    required: &[],
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
        Key {
            name: "policy",
            shape: Shape::ChoiceOrName(CPU_POLICIES, "cpu-policy"),
            example: "\"edf\"",
            doc: "Which of its own threads goes first: by their nice values (fair), who woke up first (fifo), in turn (rr), whose \
                  period ends first (edf), drawn by tickets as the nice values say (lottery); or a [cpu-policy] by its name. Default \"fair\".",
        },
        Key {
            name: "period",
            shape: Shape::Duration,
            example: "\"40ms\"",
            doc: "Of edf: how often each thread has a budget, from 1ms to 1s. Default \"100ms\".",
        },
        Key {
            name: "budget",
            shape: Shape::Duration,
            example: "\"8ms\"",
            doc: "Of edf: what each thread has in a period, from 1ms to the period. Default \"10ms\".",
        },
    ],
    synonyms: &[
        ("max", "limit"),
        ("quota", "limit"),
        ("min", "share"),
        ("guarantee", "share"),
        ("nice", "priority"),
        ("prio", "priority"),
        ("order", "policy"),
        ("scheduler", "policy"),
        ("runtime", "budget"),
        ("deadline", "period"),
    ],
};

pub(crate) static MEMORY: Section = Section {
    required: &[],
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
    required: &[],
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
    required: &[],
    doc: "Containers below a container.",
    keys: &[Key {
        name: "max",
        shape: Shape::Count,
        example: "1000",
        doc: "At most so many containers below, at any depth, or \"max\". Default \"max\".",
    }],
    synonyms: &[("limit", "max")],
};
