// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What is wrong with a policy, in a form for people and in one for programs.
//!
//! A diagnostic has four parts that are always there: the place, what is wrong, what was expected, and the remedy.
//! How they look on a terminal is `render`'s.

use std::fmt;
use std::ops::Range;

use serde::Serialize;

/// Everything that is wrong with one policy file, in the order of the file. Never empty as an error of `parse`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Diagnostics {
    pub(crate) file: String,
    pub(crate) text: String,
    pub(crate) list: Vec<Diagnostic>,
}

/// One error. It serialises without the span: `line` and `column` are what editors want.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Diagnostic {
    pub kind: Kind,
    /// Bytes of the file.
    #[serde(skip)]
    pub span: Range<usize>,
    /// From 1.
    pub line: usize,
    /// From 1, in characters.
    pub column: usize,
    pub message: String,
    pub expected: String,
    pub remedy: String,
    /// Other places that have to do with it.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub related: Vec<Related>,
}

/// A second place of an error.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Related {
    #[serde(skip)]
    pub span: Range<usize>,
    pub line: usize,
    pub column: usize,
    pub message: String,
}

/// What sort of error it is; the names are those of the table in `docs/policy.md`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum Kind {
    /// Not TOML.
    Syntax,
    /// A version that this program does not know.
    Version,
    UnknownKey,
    /// A key or value of a later version.
    Unsupported,
    /// A number where a text should be, and the like.
    Type,
    /// Out of range, or not in its unit.
    Value,
    /// A key that has to be there is not.
    Missing,
    /// Keys that exclude each other.
    Contradiction,
    /// Not a name or path for a container or listener.
    Name,
    /// More promised than there is.
    Share,
    /// Not an address to listen on.
    Address,
    /// Not a source address or prefix.
    Prefix,
    /// Not what a field of a request could be.
    Pattern,
    UnknownContainer,
    /// Some clients would have no class.
    CatchAll,
    /// A rule that can never match.
    Unreachable,
    /// Two listeners for the same connections.
    Conflict,
    /// Too many of something.
    Limit,
}

impl Diagnostics {
    /// The name that was given to `parse`.
    pub fn file(&self) -> &str {
        &self.file
    }

    pub fn iter(&self) -> std::slice::Iter<'_, Diagnostic> {
        self.list.iter()
    }

    pub fn len(&self) -> usize {
        self.list.len()
    }

    pub fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    /// One JSON object per error, each on its line: `file`, `kind`, `line`, `column`, `message`, `expected`, `remedy`
    /// and, if there are other places, `related`.
    pub fn to_json_lines(&self) -> String {
        #[derive(Serialize)]
        struct Line<'a> {
            file: &'a str,
            #[serde(flatten)]
            diagnostic: &'a Diagnostic,
        }
        let mut lines = String::new();
        for diagnostic in &self.list {
            let line = serde_json::to_string(&Line { file: &self.file, diagnostic })
                .expect("texts and numbers always serialise");
            lines.push_str(&line);
            lines.push('\n');
        }
        lines
    }
}

impl<'a> IntoIterator for &'a Diagnostics {
    type Item = &'a Diagnostic;
    type IntoIter = std::slice::Iter<'a, Diagnostic>;

    fn into_iter(self) -> Self::IntoIter {
        self.iter()
    }
}

impl fmt::Display for Diagnostics {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.render(false))
    }
}

impl std::error::Error for Diagnostics {}

/// Gathers errors while the policy is read; lines and columns are found at the end.
pub(crate) struct Findings {
    list: Vec<Diagnostic>,
}

impl Findings {
    pub(crate) fn new() -> Self {
        Self { list: Vec::new() }
    }

    pub(crate) fn add(
        &mut self,
        kind: Kind,
        span: Range<usize>,
        message: impl Into<String>,
        expected: impl Into<String>,
        remedy: impl Into<String>,
    ) -> &mut Diagnostic {
        self.list.push(Diagnostic {
            kind,
            span,
            line: 0,
            column: 0,
            message: message.into(),
            expected: expected.into(),
            remedy: remedy.into(),
            related: Vec::new(),
        });
        self.list.last_mut().expect("it was just put there")
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    pub(crate) fn retain(&mut self, keep: impl FnMut(&Diagnostic) -> bool) {
        self.list.retain(keep);
    }

    /// In the order of the file, with places.
    pub(crate) fn finish(mut self, file: &str, text: &str) -> Diagnostics {
        let places = Places::new(text);
        for diagnostic in &mut self.list {
            diagnostic.span = places.clamp(&diagnostic.span);
            (diagnostic.line, diagnostic.column) = places.of(diagnostic.span.start);
            for related in &mut diagnostic.related {
                related.span = places.clamp(&related.span);
                (related.line, related.column) = places.of(related.span.start);
            }
        }
        self.list.sort_by_key(|diagnostic| (diagnostic.span.start, diagnostic.span.end));
        Diagnostics { file: file.to_owned(), text: text.to_owned(), list: self.list }
    }
}

impl Diagnostic {
    pub(crate) fn also(&mut self, span: Range<usize>, message: impl Into<String>) -> &mut Self {
        self.related.push(Related { span, line: 0, column: 0, message: message.into() });
        self
    }
}

/// Finds lines and columns of byte offsets.
struct Places<'t> {
    text: &'t str,
    starts: Vec<usize>,
}

impl<'t> Places<'t> {
    fn new(text: &'t str) -> Self {
        let after_newlines = text.match_indices('\n').map(|(at, _)| at + 1);
        Self { text, starts: std::iter::once(0).chain(after_newlines).collect() }
    }

    fn of(&self, offset: usize) -> (usize, usize) {
        let line = self.starts.partition_point(|&start| start <= offset);
        let start = self.starts[line - 1];
        (line, self.text[start..offset].chars().count() + 1)
    }

    /// Onto the text and onto borders of characters, whatever the TOML parser said.
    fn clamp(&self, span: &Range<usize>) -> Range<usize> {
        let down = |offset: usize| {
            (0..=offset.min(self.text.len())).rev().find(|&at| self.text.is_char_boundary(at)).unwrap_or(0)
        };
        let start = down(span.start);
        let end = down(span.end).max(start);
        start..end
    }
}
