// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Which declarations applications see, and what one is made of.

const PARTS: [&str; 6] = [
    include_str!("../../../bpf/abi/container.h"),
    include_str!("../../../bpf/abi/descriptor.h"),
    include_str!("../../../bpf/abi/steer.h"),
    include_str!("../../../bpf/abi/verdict.h"),
    include_str!("../../../bpf/abi/ring.h"),
    include_str!("../../../bpf/abi/turn.h"),
];

/// In the order in which they use each other.
const SEEN: [&str; 34] = [
    "#define FIEF_NAME_LEN",
    "#define FIEF_NO_ID",
    "enum fief_known_id",
    "struct fief_ref",
    "enum fief_container_state",
    "struct fief_usage",
    "enum fief_attribute",
    "enum fief_policy",
    "#define FIEF_POLICY_OBJECT",
    "struct fief_attributes",
    "#define FIEF_SOL",
    "enum fief_option",
    "#define FIEF_RIGHT_USE",
    "#define FIEF_RIGHT_READ",
    "#define FIEF_RIGHT_CHILDREN",
    "#define FIEF_RIGHT_ADMINISTER",
    "#define FIEF_RIGHTS_ALL",
    "struct fief_create",
    "#define FIEF_CREATE_PASS_UP",
    "struct fief_bind",
    "struct fief_set_attribute",
    "struct fief_info",
    "enum fief_reason",
    "struct fief_drops",
    "struct fief_filter",
    "#define FIEF_MAX_DEPTH",
    "#define FIEF_MAX_CLASSES",
    "#define FIEF_RING_RECORDS",
    "#define FIEF_RING_PLACES",
    "#define FIEF_RING_PLACE_BITS",
    "#define FIEF_RING_HOME",
    "#define FIEF_RING_ALIGN",
    "struct fief_ring_page",
    "struct fief_ring_open",
];

/// What orders see that are built outside of Fief.
const SEEN_BY_ORDERS: [&str; 3] = ["#define FIEF_TURN_VERSION", "enum fief_turn_verb", "struct fief_turn"];

/// Names of what applications see.
pub fn names() -> impl Iterator<Item = &'static str> {
    SEEN.iter().map(|of| of.split_once(' ').expect("a kind and a name").1)
}

/// One of them as it stands in its header.
pub struct Declaration {
    pub name: &'static str,
    pub kind: Kind,
    /// Lines of the comment right above, with its marks.
    above: Vec<&'static str>,
    lines: Vec<&'static str>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    Constant,
    Enumeration,
    Record,
}

pub fn seen() -> impl Iterator<Item = Declaration> {
    SEEN.iter().map(|of| Declaration::find(of))
}

pub fn seen_by_orders() -> impl Iterator<Item = Declaration> {
    SEEN_BY_ORDERS.iter().map(|of| Declaration::find(of))
}

impl Declaration {
    fn find(of: &'static str) -> Self {
        let (kind, name) = of.split_once(' ').expect("a kind and a name");
        let kind = match kind {
            "#define" => Kind::Constant,
            "enum" => Kind::Enumeration,
            _ => Kind::Record,
        };
        let begins = |line: &&str| line.strip_prefix(of).is_some_and(|rest| rest.starts_with([' ', '\t']));
        for part in PARTS {
            let lines: Vec<&str> = part.lines().collect();
            let Some(at) = lines.iter().position(begins) else { continue };
            let last = match kind {
                Kind::Constant => at,
                _ => at + lines[at..].iter().position(|line| *line == "};").expect("a declaration has an end"),
            };
            let first = match lines[..at].last() {
                Some(line) if line.starts_with("/*") && line.ends_with("*/") => at - 1,
                Some(&" */") => lines[..at].iter().rposition(|line| line.starts_with("/*")).expect("a comment begins"),
                _ => at,
            };
            return Self { name, kind, above: lines[first..at].to_vec(), lines: lines[at..=last].to_vec() };
        }
        panic!("{of} is not among the shared records");
    }

    /// With the comment above.
    pub fn text(&self) -> String {
        [self.above.as_slice(), &self.lines].concat().join("\n")
    }

    /// The comment above, without its marks; lines that are drawn keep their spaces.
    pub fn about(&self) -> Vec<&str> {
        let bare = |line: &'static str| {
            let line = line.strip_prefix("/*").or(line.strip_prefix(" *")).unwrap_or(line);
            let line = line.strip_suffix("*/").unwrap_or(line).trim_end();
            line.strip_prefix(' ').unwrap_or(line)
        };
        let lines: Vec<_> = self.above.iter().map(|line| bare(line)).collect();
        let is_outside = |line: &&str| line.is_empty() || *line == "/";
        let first = lines.iter().position(|line| !is_outside(line)).unwrap_or(lines.len());
        let last = lines.iter().rposition(|line| !is_outside(line)).map_or(first, |last| last + 1);
        lines[first..last].to_vec()
    }

    /// What a constant is, and what its line says of it.
    pub fn value(&self) -> (&str, Option<&str>) {
        let (code, comment) = match self.lines[0].split_once("/*") {
            Some((code, comment)) => (code, Some(comment.trim_end_matches("*/").trim())),
            None => (self.lines[0], None),
        };
        let value = code.trim().rsplit_once(['\t', ' ']).expect("a name and a value").1;
        (value.trim_end_matches('u'), comment)
    }

    /// What stands between the braces.
    pub fn entries(&self) -> Vec<Entry> {
        let text = self.lines.join("\n");
        let (_, text) = text.split_once('{').expect("a declaration has a body");
        entries(text.rsplit_once('}').expect("a body has an end").0)
    }

    /// The numbers of an enumeration, which count up where none is written.
    pub fn numbers(&self) -> Vec<Entry<(String, u32)>> {
        let mut next = 0;
        let mut number = |code: String| {
            let (name, value) = match code.split_once('=') {
                Some((name, value)) => (name.trim().to_owned(), value.trim().parse().expect("a number")),
                None => (code, next),
            };
            next = value + 1;
            (name, value)
        };
        self.entries().into_iter().map(|entry| entry.map(&mut number)).collect()
    }

    /// The members of a record.
    pub fn members(&self) -> Vec<Entry<Member>> {
        self.entries().into_iter().map(|entry| entry.map(Member::of)).collect()
    }
}

/// A line of a body: a member or a number with the comment behind it, or a comment by itself.
pub enum Entry<Of = String> {
    One { of: Of, about: Option<String> },
    Note(String),
}

impl<Of> Entry<Of> {
    fn map<To>(self, to: impl FnOnce(Of) -> To) -> Entry<To> {
        match self {
            Self::One { of, about } => Entry::One { of: to(of), about },
            Self::Note(text) => Entry::Note(text),
        }
    }
}

pub struct Member {
    pub name: String,
    /// As C has it: `__u32`, `struct fief_ref`.
    pub of: String,
    /// A number or the name of one.
    pub length: Option<String>,
}

impl Member {
    fn of(code: String) -> Self {
        let (of, name) = code.rsplit_once([' ', '\t', '\n']).expect("a type and a name");
        let (name, length) = match name.split_once('[') {
            Some((name, length)) => (name, Some(length.trim_end_matches(']').to_owned())),
            None => (name, None),
        };
        Self { name: name.to_owned(), of: of.trim().to_owned(), length }
    }
}

fn entries(mut rest: &str) -> Vec<Entry> {
    let mut found = Vec::new();
    while let Some(at) = rest.find(['/', ',', ';']) {
        let (code, from) = (rest[..at].trim(), &rest[at..]);
        if !from.starts_with('/') {
            found.push(Entry::One { of: code.to_owned(), about: None });
            rest = &from[1..];
            continue;
        }
        let (comment, behind) = from[2..].split_once("*/").expect("a comment has an end");
        let comment = comment.split_whitespace().collect::<Vec<_>>().join(" ");
        let same_line = !rest[..at].contains('\n');
        match found.last_mut() {
            // the last number has no comma
            _ if !code.is_empty() => found.push(Entry::One { of: code.to_owned(), about: Some(comment) }),
            Some(Entry::One { about, .. }) if same_line => *about = Some(comment),
            _ => found.push(Entry::Note(comment)),
        }
        rest = behind;
    }
    if !rest.trim().is_empty() {
        found.push(Entry::One { of: rest.trim().to_owned(), about: None });
    }
    found
}
