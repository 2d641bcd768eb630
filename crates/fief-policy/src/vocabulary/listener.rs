// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Keys of a listener and of its client rules.

use super::queue::{CLASS_QUEUE, QUEUE};
use super::request::REQUEST;
use super::{Key, LEVELS, MODES, Section, Shape, UNREAD};

pub(crate) static LISTENER: Section = Section {
    required: &["address", "client"],
    doc: "An address that a server listens on.",
    keys: &[
        Key {
            name: "address",
            shape: Shape::Address,
            example: "\"0.0.0.0:80\"",
            doc: "Address and port, or ports (\"0.0.0.0:8000-8099\"). 0.0.0.0: every IPv4 address; [::]: every address of both \
                  families. Required.",
        },
        Key {
            name: "classes",
            shape: Shape::Choice(&["listeners", "shared"]),
            example: "\"listeners\"",
            doc: "How classes reach the server, where no queue orders them: by a listening socket each, behind the server's own, or \
                  all by its one socket, and are told apart for accounting only. Default: a queue.",
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
            name: "mode",
            shape: Shape::Choice(MODES),
            example: "\"enforce\"",
            doc: "Of this listener. \"monitor\": verdicts are only counted. Default: the policy's.",
        },
        Key {
            name: "forward",
            shape: Shape::Flag,
            example: "true",
            doc: "Connections to this address pass through this machine to others: limit their connection requests. Default: \
                  false.",
        },
        Key {
            name: "admit",
            shape: Shape::Flag,
            example: "true",
            doc: "Keep connections from the server until their first bytes are there. Default: true with request rules or a queue.",
        },
        Key {
            name: "admit-from",
            shape: Shape::Choice(LEVELS),
            example: "\"busy\"",
            doc: "Level of overload from which on admission is in force. Default \"always\".",
        },
        Key {
            name: "later-requests",
            shape: Shape::Flag,
            example: "true",
            doc: "Rule the second and later requests of a connection too. Default: true with request rules or a queue.",
        },
        Key {
            name: "penalty",
            shape: Shape::DurationOrTable(&PENALTY),
            example: "\"5s\"",
            doc: "A client whose request is refused gets no connection for so long. Default of the rules that refuse; none. A \
                  table says too who never has one.",
        },
        Key {
            name: "isolate",
            shape: Shape::Table(&ISOLATE),
            example: "{ above = 1000, for = \"10s\" }",
            doc: "Shut out sources that ask for too many connections.",
        },
        Key {
            name: "restart",
            shape: Shape::Duration,
            example: "\"5s\"",
            doc: "While the server is started anew, and for so long at most, connection requests are not refused: they are \
                  dropped, and clients send them again a second later. Default: the kernel refuses them.",
        },
        Key {
            name: "unproven",
            shape: Shape::Table(&UNPROVEN),
            example: "{ rate = 5000, burst = 500 }",
            doc: "Most connection requests that are answered to sources that have not shown yet that they receive the answer.",
        },
        Key {
            name: "proven",
            shape: Shape::Table(&PROVEN),
            example: "{ rate = 1000, burst = 1000 }",
            doc: "Most connection requests of each source that has shown that it receives the answer.",
        },
        Key {
            name: "request",
            shape: Shape::List(&REQUEST),
            example: "",
            doc: "What happens with which requests. The first match wins; without a match the client's class stays.",
        },
        Key {
            name: "unread",
            shape: Shape::ChoiceOrTable(UNREAD, &KINDS),
            example: "\"refuse\"",
            doc: "What becomes of bytes that cannot be read as a request, all together or by kind. \"refuse\": a reset; \"pass\": \
                  into the class of the client. Default: \"refuse\" where a request rule refuses or rates, else \"pass\".",
        },
        Key {
            name: "bodies",
            shape: Shape::Choice(&["ruled", "read"]),
            example: "\"read\"",
            doc: "\"ruled\": a body of another method than POST, PUT and PATCH that spells a request is ruled as one, since some \
                  servers do not read it. \"read\": the server, and what stands behind it, reads every body to its end. Default: \
                  \"ruled\".",
        },
        Key {
            name: "proxy",
            shape: Shape::Table(&PROXY),
            example: "{ from = [\"10.0.0.5\"] }",
            doc: "Balancers whose connections begin with a PROXY head.",
        },
        Key {
            name: "queue",
            shape: Shape::FlagOrTable(&QUEUE),
            example: "true",
            doc: "Requests wait in front of the server, in the order of their classes, until it has room for one more. \
                  true: with the defaults. Default: true with several classes.",
        },
        Key {
            name: "lrp",
            shape: Shape::Table(&LRP),
            example: "",
            doc: "Receive work in a thread of the class (lazy receiver processing).",
        },
    ],
    synonyms: &[
        ("listen", "address"),
        ("addr", "address"),
        ("port", "address"),
        ("rule", "client"),
        ("class", "client"),
        ("rules", "request"),
        ("location", "request"),
        ("syn", "unproven"),
    ],
};

pub(crate) static CLIENT: Section = Section {
    required: &["container"],
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
            doc: "With a listening socket for each class: its new connections go before or after those that are being served. Default \
                  \"before\".",
        },
        Key {
            name: "syn",
            shape: Shape::Table(&SYN),
            example: "{ rate = 300, burst = 300 }",
            doc: "Most connection requests.",
        },
        Key {
            name: "queue",
            shape: Shape::Table(&CLASS_QUEUE),
            example: "{ length = 100, wait = \"2s\" }",
            doc: "How many requests of the class wait, and for how long, where the listener has a queue.",
        },
        Key {
            name: "mode",
            shape: Shape::Choice(MODES),
            example: "\"monitor\"",
            doc: "Of the rate. \"monitor\": what is above it is only counted. Default: the listener's.",
        },
        Key {
            name: "from-port",
            shape: Shape::Later(
                "remove it, or write syn.from-port: the class of a client is told by its address alone",
            ),
            example: "",
            doc: "",
        },
    ],
    synonyms: &[("source", "from"), ("to", "container"), ("class", "container"), ("rate", "syn"), ("limit", "syn")],
};

const RATE: Key =
    Key { name: "rate", shape: Shape::Rate, example: "300", doc: "Connection requests a second. Required." };
const BURST: Key =
    Key { name: "burst", shape: Shape::Rate, example: "300", doc: "As many at once. Default: the rate." };
const WHEN: Key = Key {
    name: "when",
    shape: Shape::Choice(LEVELS),
    example: "\"busy\"",
    doc: "Level of overload from which on it is in force. Default \"always\".",
};

static SYN: Section = Section {
    doc: "Rate of connection requests of the clients of a rule.",
    required: &["rate"],
    keys: &[
        RATE,
        BURST,
        Key {
            name: "per",
            shape: Shape::Choice(&["rule", "source"]),
            example: "\"rule\"",
            doc: "One rate for all clients of the rule, or one for each IPv4 address and IPv6 /64. Default \"rule\".",
        },
        Key {
            name: "from-port",
            shape: Shape::Ports,
            example: "\"1024-65535\"",
            doc: "Only from these ports of the clients; others are not limited by it. Default: from all.",
        },
        WHEN,
    ],
    synonyms: &[("limit", "rate"), ("per-second", "rate")],
};

static UNPROVEN: Section = Section {
    doc: "Connection requests that are answered to sources that have not returned a cookie yet.",
    required: &["rate"],
    keys: &[RATE, BURST, WHEN],
    synonyms: &[("limit", "rate"), ("per-second", "rate")],
};

static PROVEN: Section = Section {
    doc: "Connection requests of each source that has returned a cookie.",
    required: &["rate"],
    keys: &[RATE, BURST],
    synonyms: &[("limit", "rate"), ("per-second", "rate")],
};

static ISOLATE: Section = Section {
    doc: "Sources that ask for too many connections are shut out, or served last: an IPv4 /24 or IPv6 /64 together, proven \
          sources excepted.",
    required: &["above", "for"],
    keys: &[
        Key {
            name: "above",
            shape: Shape::Rate,
            example: "1000",
            doc: "Connection requests a second from one prefix, of sources that have not returned a cookie. Required.",
        },
        Key { name: "for", shape: Shape::Duration, example: "\"10s\"", doc: "For how long. Required." },
        Key {
            name: "into",
            shape: Shape::Path,
            example: "\"shop/isolated\"",
            doc: "Serve them last instead: a connection of a source that proves itself only while it is isolated is of this \
                  container, whose cpu.priority should be 0. Needs admit and unproven. Default: they are shut out.",
        },
        EXCEPT,
        WHEN,
    ],
    synonyms: &[
        ("rate", "above"),
        ("threshold", "above"),
        ("time", "for"),
        ("interval", "for"),
        ("container", "into"),
        ("class", "into"),
        ("exempt", "except"),
        ("allow", "except"),
        ("whitelist", "except"),
        ("not-from", "except"),
    ],
};

static PENALTY: Section = Section {
    doc: "For how long a client gets no connection whose request is refused, and who always does.",
    required: &[],
    keys: &[
        Key {
            name: "for",
            shape: Shape::Duration,
            example: "\"5s\"",
            doc: "For how long. Default of the rules that refuse; none.",
        },
        EXCEPT,
    ],
    synonyms: &[
        ("time", "for"),
        ("duration", "for"),
        ("exempt", "except"),
        ("allow", "except"),
        ("whitelist", "except"),
        ("not-from", "except"),
    ],
};

const EXCEPT: Key = Key {
    name: "except",
    shape: Shape::Prefixes,
    example: "[\"192.0.2.0/24\"]",
    doc: "Addresses and prefixes that this never holds for, as of your own monitoring or a CDN.",
};

macro_rules! kind {
    ($name:literal, $doc:literal) => {
        Key { name: $name, shape: Shape::Choice(UNREAD), example: "\"pass\"", doc: $doc }
    };
}

static KINDS: Section = Section {
    doc: "What becomes of bytes that cannot be read as a request, by kind.",
    required: &[],
    keys: &[
        kind!("malformed", "Heads that break their form, or end within it."),
        kind!("too-long", "Heads that are longer than 16 kB."),
        kind!("upgrade", "What follows Upgrade or CONNECT before the server has confirmed it, and is no request."),
        kind!("http2", "HTTP/2 without TLS (h2c, gRPC)."),
        kind!("proxy", "PROXY heads of other peers than those of `proxy.from`."),
        kind!("no-room", "Unfinished heads beyond the room for them."),
        kind!("other", "What is neither HTTP nor TLS."),
    ],
    synonyms: &[("upgrades", "upgrade"), ("websocket", "upgrade"), ("h2c", "http2"), ("long", "too-long")],
};

static PROXY: Section = Section {
    doc: "Balancers whose connections begin with a PROXY head (version 1 or 2).",
    required: &["from"],
    keys: &[Key {
        name: "from",
        shape: Shape::Prefixes,
        example: "[\"10.0.0.5\"]",
        doc: "Their addresses and prefixes. Required.",
    }],
    synonyms: &[("source", "from"), ("peers", "from")],
};

static LRP: Section = Section {
    doc: "Receive work in a thread of the class, bounded and in the order of priority.",
    required: &[],
    keys: &[WHEN],
    synonyms: &[("from", "when"), ("level", "when")],
};
