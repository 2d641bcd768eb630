// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Diagnostics as a person reads them: the line, a caret, what was expected there, and the remedy below.

use std::ops::Range;

use annotate_snippets::{Annotation, AnnotationKind, Level, Renderer, Snippet};

use crate::diagnostic::{Diagnostic, Diagnostics};

impl Diagnostics {
    /// The errors one after the other, and their number at the end; with colours for a terminal.
    pub fn render(&self, colours: bool) -> String {
        let renderer = if colours {
            Renderer::styled()
        } else {
            Renderer::plain()
        };
        let mut page = String::new();
        for diagnostic in self {
            page.push_str(&self.render_one(diagnostic, &renderer));
            page.push_str("\n\n");
        }
        let errors = if self.len() == 1 {
            "1 error".to_owned()
        } else {
            format!("{} errors", self.len())
        };
        page.push_str(&format!(
            "{}: {errors}; nothing was changed\n",
            printable(&self.file)
        ));
        page
    }

    fn render_one(&self, diagnostic: &Diagnostic, renderer: &Renderer) -> String {
        let expected = format!("expected {}", printable(&diagnostic.expected));
        let mut group = Level::ERROR
            .primary_title(printable(&diagnostic.message))
            .element(self.snippet(
                diagnostic.line,
                &diagnostic.span,
                AnnotationKind::Primary,
                expected,
            ));
        for related in &diagnostic.related {
            let message = printable(&related.message);
            group = group.element(self.snippet(
                related.line,
                &related.span,
                AnnotationKind::Context,
                message,
            ));
        }
        let group = group.element(Level::HELP.message(printable(&diagnostic.remedy)));
        renderer.render(&[group])
    }

    /// Only the lines of the span are handed on, so that the cost of an error does not grow with the file.
    fn snippet(
        &self,
        line: usize,
        span: &Range<usize>,
        kind: AnnotationKind,
        label: String,
    ) -> Snippet<'_, Annotation<'_>> {
        let start = self.text[..span.start]
            .rfind('\n')
            .map_or(0, |newline| newline + 1);
        let end = self.text[span.start..]
            .find('\n')
            .map_or(self.text.len(), |newline| span.start + newline);
        let source = self.text[start..end].trim_end_matches('\r');
        // What goes on in the next line is marked to the end of this one.
        let within = |offset: usize| offset.clamp(start, start + source.len()) - start;
        Snippet::source(source)
            .line_start(line)
            .path(self.file.as_str())
            .annotation(kind.span(within(span.start)..within(span.end)).label(label))
    }
}

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
