// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Keys of a request rule.

use super::queue::CLASS_QUEUE;
use super::{Key, LEVELS, MODES, Section, Shape};

pub(super) static REQUEST: Section = Section {
    doc: "A rule for requests: all of its conditions have to be met. Without conditions it is for every request.",
    required: &[],
    keys: &[
        Key { name: "method", shape: Shape::Words, example: "\"POST\"", doc: "HTTP: one of these methods." },
        Key {
            name: "path",
            shape: Shape::Patterns,
            example: "[\"/cgi-bin/*\", \"*.php\"]",
            doc: "HTTP: the path, decoded and without the query.",
        },
        Key {
            name: "host",
            shape: Shape::Patterns,
            example: "\"shop.example\"",
            doc: "HTTP: the host that is asked, in any case and without the port.",
        },
        Key {
            name: "header",
            shape: Shape::NamedPatterns,
            example: "{ \"user-agent\" = \"Bad*\" }",
            doc: "HTTP: the first header of that name; \"*\": there is one.",
        },
        Key {
            name: "cookie",
            shape: Shape::NamedPatterns,
            example: "{ \"tier\" = \"gold\" }",
            doc: "HTTP: the first cookie of that name; \"*\": there is one.",
        },
        Key {
            name: "server-name",
            shape: Shape::Patterns,
            example: "\"shop.example\"",
            doc: "TLS: the name that the client asks for (SNI).",
        },
        Key {
            name: "alpn",
            shape: Shape::Words,
            example: "\"h2\"",
            doc: "TLS: one of the protocols that the client offers.",
        },
        Key {
            name: "container",
            shape: Shape::Path,
            example: "\"shop/cgi\"",
            doc: "Path of a container that the connection goes to. Default: the class of its client.",
        },
        Key {
            name: "rate",
            shape: Shape::Table(&RATE),
            example: "{ per-second = 10, burst = 2 }",
            doc: "Most requests, or most CPU time of the rule's container; what is above it is refused.",
        },
        Key {
            name: "refuse",
            shape: Shape::Choice(&["drop", "reset", "503", "429"]),
            example: "\"503\"",
            doc: "How to refuse: without an answer, by a reset, or by an answer of HTTP. Without a rate it refuses whatever \
                  matches. Default with a rate: \"503\", for TLS \"reset\".",
        },
        Key {
            name: "retry-after",
            shape: Shape::Seconds,
            example: "\"2s\"",
            doc: "In the answer 503 or 429: when the client may come again. Default: nothing is said.",
        },
        Key {
            name: "queue",
            shape: Shape::FlagOrTable(&CLASS_QUEUE),
            example: "false",
            doc: "false: what matches waits in no queue and takes no place there, as long polls and streams should. A table \
                  says how many requests of the rule's container wait, and for how long. Default: true.",
        },
        Key {
            name: "penalty",
            shape: Shape::Duration,
            example: "\"5s\"",
            doc: "A client that is refused gets no connection for so long. Default: the listener's.",
        },
        Key {
            name: "when",
            shape: Shape::Choice(LEVELS),
            example: "\"busy\"",
            doc: "Level of overload from which on the rule is there. Default \"always\".",
        },
        Key {
            name: "mode",
            shape: Shape::Choice(MODES),
            example: "\"monitor\"",
            doc: "\"monitor\": what the rule would do is counted, and the next rule decides. Default: the listener's.",
        },
    ],
    synonyms: &[
        ("url", "path"),
        ("uri", "path"),
        ("location", "path"),
        ("sni", "server-name"),
        ("limit", "rate"),
        ("class", "container"),
        ("to", "container"),
        ("action", "refuse"),
        ("deny", "refuse"),
        ("status", "refuse"),
        ("level", "when"),
    ],
};

static RATE: Section = Section {
    doc: "Most requests, or most CPU time.",
    required: &[],
    keys: &[
        Key { name: "per-second", shape: Shape::Rate, example: "10", doc: "Requests a second." },
        Key {
            name: "cpu",
            shape: Shape::Percent,
            example: "\"20%\"",
            doc: "Instead of per-second: CPU time that is charged to the rule's container, in percent of the machine.",
        },
        Key {
            name: "burst",
            shape: Shape::Burst,
            example: "2",
            doc: "As much at once: requests (default: the rate), or CPU time (\"50ms\"; default \"100ms\").",
        },
        Key {
            name: "per",
            shape: Shape::Choice(&["rule", "source"]),
            example: "\"rule\"",
            doc: "Of requests: one rate for all, or one for each IPv4 address and IPv6 /64. Default \"rule\".",
        },
    ],
    synonyms: &[("rate", "per-second"), ("requests", "per-second"), ("limit", "per-second"), ("time", "cpu")],
};
