// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Policies with marks: `⟦` and `⟧` stand around what the error must point at.

use fief_policy::{Diagnostic, Kind, parse};

/// Parses the text without its marks and expects exactly one error, of that kind and at the marks.
#[track_caller]
pub fn only_error(marked: &str, kind: Kind) -> Diagnostic {
    let (text, span) = unmark(marked);
    let diagnostics = parse(&text, "test.toml").expect_err("the policy has an error");
    assert_eq!(diagnostics.len(), 1, "one error was expected:\n{diagnostics}");
    let diagnostic = diagnostics.iter().next().expect("there is one").clone();
    assert_eq!(diagnostic.kind, kind, "{diagnostics}");
    assert_eq!(&text[diagnostic.span.clone()], &text[span.clone()], "{diagnostics}");
    assert_eq!(diagnostic.span, span, "{diagnostics}");
    let before = &text[..span.start];
    assert_eq!(diagnostic.line, before.matches('\n').count() + 1, "{diagnostics}");
    let line = before.rsplit('\n').next().unwrap_or_default();
    assert_eq!(diagnostic.column, line.chars().count() + 1, "{diagnostics}");
    assert!(!diagnostic.expected.is_empty() && !diagnostic.remedy.is_empty(), "{diagnostics}");
    diagnostic
}

/// Like `only_error`, and the message and remedy have these texts in them.
#[track_caller]
pub fn refuses(marked: &str, kind: Kind, message: &str, remedy: &str) {
    let diagnostic = only_error(marked, kind);
    assert!(diagnostic.message.contains(message), "message: {}", diagnostic.message);
    assert!(diagnostic.remedy.contains(remedy), "remedy: {}", diagnostic.remedy);
}

#[track_caller]
fn unmark(marked: &str) -> (String, std::ops::Range<usize>) {
    let start = marked.find('⟦').expect("a mark at the start of the error");
    let end = marked.find('⟧').expect("a mark at the end of the error");
    (marked.replace(['⟦', '⟧'], ""), start..end - '⟦'.len_utf8())
}
