// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Keys of a queue: of a listener, and of the rules that name its classes.

use super::{Key, Section, Shape};

/// Requests that a server has at once.
pub(crate) const IN_SERVICE: std::ops::RangeInclusive<u64> = 1..=4096;
/// Requests that wait: the kernel side has room for so many in all queues together.
pub(crate) const QUEUE_LENGTH: std::ops::RangeInclusive<u64> = 1..=16_383;

pub(super) static QUEUE: Section = Section {
    doc: "Requests that wait in front of the server, in the order of their classes.",
    required: &[],
    keys: &[
        Key {
            name: "in-service",
            shape: Shape::ChoiceOrCount(&["auto"], IN_SERVICE),
            example: "1",
            doc: "Requests that the server has at once, each until the first byte of its answer leaves (`until`). \"auto\": \
                  as many as it answers most with, which Fief finds out. Default \"auto\".",
        },
        Key {
            name: "until",
            shape: Shape::Choice(&["first-byte", "response", "close"]),
            example: "\"response\"",
            doc: "\"response\": the server has a request until all of its answer has left: up to the connection's next request \
                  or its end, or until nothing more leaves for a moment. \"close\": until its connection ends. Default \"first-byte\".",
        },
        Key {
            name: "length",
            shape: Shape::Integer(QUEUE_LENGTH),
            example: "1000",
            doc: "Most requests that wait. Default 10000.",
        },
        Key {
            name: "wait",
            shape: Shape::Duration,
            example: "\"5s\"",
            doc: "Who waits longer is refused. Default \"5s\".",
        },
        Key {
            name: "stale",
            shape: Shape::Duration,
            example: "\"2s\"",
            doc: "A request that the server does not answer for so long counts no longer: it gets another one. 16ms to \
                  30s. Default \"2s\".",
        },
        Key {
            name: "turns",
            shape: Shape::Flag,
            example: "false",
            doc: "Where requests cannot be read (TLS, PostgreSQL, Redis) each turn waits: the client's bytes after the server's \
                  last, until the server's first. false: a connection waits once. Default: true.",
        },
        Key {
            name: "fair",
            shape: Shape::Choice(&["none", "source"]),
            example: "\"source\"",
            doc: "\"source\": within a class the clients take turns, by address. \"none\": in the order in which they come. \
                  Default \"none\".",
        },
        Key {
            name: "memory",
            shape: Shape::Bytes,
            example: "\"32M\"",
            doc: "Most memory for requests that wait; none is taken before. Default \"32M\".",
        },
    ],
    synonyms: &[
        ("concurrency", "in-service"),
        ("maxconn", "in-service"),
        ("places", "in-service"),
        ("size", "length"),
        ("timeout", "wait"),
    ],
};

/// Of a rule that names the class.
pub(super) static CLASS_QUEUE: Section = Section {
    doc: "What holds for the class of a rule where the listener has a queue.",
    required: &[],
    keys: &[
        Key {
            name: "length",
            shape: Shape::Integer(QUEUE_LENGTH),
            example: "100",
            doc: "Most requests of the class that wait. Default: the queue's length.",
        },
        Key {
            name: "wait",
            shape: Shape::Duration,
            example: "\"2s\"",
            doc: "Who of the class waits longer is refused. Default: the queue's.",
        },
        Key {
            name: "reserve",
            shape: Shape::Integer(QUEUE_LENGTH),
            example: "20",
            doc: "So many of the queue's length no other class can take. Default: none.",
        },
    ],
    synonyms: &[
        ("size", "length"),
        ("timeout", "wait"),
        ("guarantee", "reserve"),
        ("min", "reserve"),
        ("max", "length"),
    ],
};
