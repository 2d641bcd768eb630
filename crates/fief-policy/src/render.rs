// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Diagnostics as a person reads them: the line, a caret, what was expected there, and the remedy below.

use std::ops::Range;

use annotate_snippets::{AnnotationKind, Group, Level, Origin, Renderer, Snippet};

use crate::diagnostic::{Diagnostic, Diagnostics, Related};

/// Who has more errors than this has one above all: the file is something else.
const SHOWN: usize = 20;

impl Diagnostics {
    /// The first errors one after the other, and the number of all at the end; with colours for a terminal.
    pub fn render(&self, colours: bool) -> String {
        let renderer = if colours { Renderer::styled() } else { Renderer::plain() };
        let mut page = String::new();
        for diagnostic in self.iter().take(SHOWN) {
            page.push_str(&self.render_one(diagnostic, &renderer));
            page.push_str("\n\n");
        }
        if self.len() > SHOWN {
            page.push_str(&format!("and {} more; `fief check --json` tells all of them\n\n", self.len() - SHOWN));
        }
        let errors = if self.len() == 1 { "1 error".to_owned() } else { format!("{} errors", self.len()) };
        page.push_str(&format!("{}: {errors}; nothing was changed\n", printable(&self.file)));
        page
    }

    fn render_one(&self, diagnostic: &Diagnostic, renderer: &Renderer) -> String {
        let mut group = Group::with_title(Level::ERROR.primary_title(printable(&diagnostic.message)));
        let label = format!("expected {}", printable(&diagnostic.expected));
        let (line, column) = (diagnostic.line, diagnostic.column);
        group = self.show(group, (line, column), &diagnostic.span, AnnotationKind::Primary, label);
        for Related { span, line, column, message } in &diagnostic.related {
            let label = printable(message);
            group = self.show(group, (*line, *column), span, AnnotationKind::Context, label);
        }
        renderer.render(&[group.element(Level::HELP.message(printable(&diagnostic.remedy)))])
    }

    /// Only the line of the span is handed on, and of a very long one what is near, so that the cost of an error does
    /// not grow with the file.
    fn show<'a>(
        &'a self,
        group: Group<'a>,
        (line, column): (usize, usize),
        span: &Range<usize>,
        kind: AnnotationKind,
        label: String,
    ) -> Group<'a> {
        let (before, after) = self.text.split_at(span.start);
        let before = before.rsplit('\n').next().unwrap_or_default();
        let after = after.split('\n').next().unwrap_or_default().trim_end_matches('\r');
        let lead = before.char_indices().rev().nth(NEAR).map_or(before.len(), |(at, _)| before.len() - at);
        let tail = after.char_indices().nth(NEAR).map_or(after.len(), |(at, _)| at);
        let start = span.start - lead;
        // What goes on in the next line is marked to the end of this one.
        let end = span.end.min(span.start + tail);
        let snippet = Snippet::source(&self.text[start..span.start + tail])
            .line_start(line)
            .annotation(kind.span(lead..end - start).label(label));
        let file = printable(&self.file);
        if lead == before.len() {
            group.element(snippet.path(file))
        } else {
            // The snippet would count the column from where the line was cut.
            group.element(Origin::path(file).line(line).char_column(column)).element(snippet)
        }
    }
}

/// Characters of a line that are shown on either side of where an error begins.
const NEAR: usize = 500;

/// Names come from the file; control characters in them must not reach the terminal.
fn printable(text: &str) -> String {
    let mut clean = String::with_capacity(text.len());
    for character in text.chars() {
        if character.is_control() && character != '\n' {
            clean.extend(character.escape_default());
        } else {
            clean.push(character);
        }
    }
    clean
}
