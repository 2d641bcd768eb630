// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Keys about the machine: where the front stands, and what counts as overload.

use super::{Key, Section, Shape};

pub(super) static FRONT: Section = Section {
    doc: "What the control of connections and requests needs from the machine.",
    required: &[],
    keys: &[
        Key {
            name: "interfaces",
            shape: Shape::Interfaces,
            example: "[\"eth0\"]",
            doc: "Where connections come in. Default: every interface that is up, but lo; of a bridge or bond itself, not its ports.",
        },
        Key {
            name: "handshake",
            shape: Shape::Choice(&["auto", "own", "kernel"]),
            example: "\"auto\"",
            doc: "Who answers connection requests: Fief before the firewall, or the kernel with its own cookies behind it. \
                  Default \"auto\": what goes together with the firewall of the machine.",
        },
        Key {
            name: "unguarded",
            shape: Shape::Choice(&["refuse", "pass"]),
            example: "\"refuse\"",
            doc: "What becomes of a new connection to a guarded listener that came in where nothing guards: at an interface that \
                  came up later, or through a redirected port. Default: refused where a rule of the listener refuses or \
                  rates, unless `interfaces` says where connections come in.",
        },
    ],
    synonyms: &[
        ("interface", "interfaces"),
        ("devices", "interfaces"),
        ("device", "interfaces"),
        ("cookies", "handshake"),
    ],
};

pub(super) static OVERLOAD: Section = Section {
    doc: "When a listener counts as busy and as overloaded. Controls with `when` are in force from that level on.",
    required: &[],
    keys: &[
        Key {
            name: "busy",
            shape: Shape::Table(&THRESHOLDS),
            example: "{ queue = \"25%\" }",
            doc: "Any of these reached: busy. Default { queue = \"25%\", cpu = \"80%\", drops = 100 }.",
        },
        Key {
            name: "overloaded",
            shape: Shape::Table(&THRESHOLDS),
            example: "{ queue = \"75%\" }",
            doc: "Any of these reached: overloaded. Default { queue = \"75%\", cpu = \"95%\", drops = 1000 }.",
        },
        Key {
            name: "hold",
            shape: Shape::Duration,
            example: "\"5s\"",
            doc: "A level is left after so long below it. Default \"5s\".",
        },
    ],
    synonyms: &[("overload", "overloaded"), ("hysteresis", "hold")],
};

static THRESHOLDS: Section = Section {
    doc: "Thresholds of a level of overload. What is not named is not looked at.",
    required: &[],
    keys: &[
        Key {
            name: "queue",
            shape: Shape::WholePercent,
            example: "\"25%\"",
            doc: "Connections that wait for accept, of the listen queue's length.",
        },
        Key {
            name: "cpu",
            shape: Shape::WholePercent,
            example: "\"80%\"",
            doc: "CPU time of the machine that is not idle.",
        },
        Key {
            name: "drops",
            shape: Shape::Rate,
            example: "100",
            doc: "Connection requests a second that were dropped at this listener.",
        },
    ],
    synonyms: &[("backlog", "queue"), ("load", "cpu"), ("drop", "drops")],
};
