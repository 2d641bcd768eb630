// SPDX-License-Identifier: Apache-2.0 OR MIT
//! From text to the checked model, or to everything that is wrong with it.

use toml::de::{DeTable, DeValue};

use crate::containers::Containers;
use crate::diagnostic::{Diagnostics, Findings, Kind};
use crate::model::{Mode, Policy, Schedule};
use crate::reader::View;
use crate::vocabulary::{self, VERSION};
use crate::{cpu, listeners, overload, syn_rates};

/// Reads a policy. `file` is its name for the errors; nothing is opened.
///
/// All errors of the file come together, in its order. What is not TOML is reported too, beside what could be read
/// around it, but then nothing is said to be missing: it may stand in the part that could not be read.
pub fn parse(text: &str, file: &str) -> Result<Policy, Diagnostics> {
    let mut findings = Findings::new();
    let policy = read(text, &mut findings);
    match policy {
        Some(policy) if findings.is_empty() => Ok(policy),
        _ => Err(findings.finish(file, text)),
    }
}

fn read(text: &str, findings: &mut Findings) -> Option<Policy> {
    let (document, errors) = DeTable::parse_recoverable(text);
    let start = 0..text.find(['\r', '\n']).unwrap_or(text.len());
    let view = View::of_document(document.get_ref(), &vocabulary::POLICY, start, findings);

    let policy = version(&view, findings).map(|version| {
        let mode = syn_rates::mode(&view, Mode::Enforce, findings);
        let label_files = view.flag("label-files", findings).unwrap_or(false);
        let schedule = match view.choice("schedule", findings) {
            Some("auto") => Schedule::Auto,
            Some("cgroup") => Schedule::Cgroup,
            _ => Schedule::Off,
        };
        let front = overload::front(&view, findings);
        let overload = overload::overload(&view, findings);
        let orders = cpu::read_orders(&view, findings);
        let containers = Containers::read(&view, &orders, findings);
        let listeners = listeners::read(&view, mode, &front, &containers, findings);
        containers.check_latencies(&listeners, findings);
        let containers = containers.tree.into_iter().map(|declared| declared.container).collect();
        Policy { version, mode, label_files, schedule, front, overload, orders, containers, listeners }
    });

    if !errors.is_empty() {
        let broken: Vec<_> = errors.iter().filter_map(|error| error.span()).collect();
        findings.retain(|finding| {
            let follows = matches!(
                finding.kind,
                Kind::Missing | Kind::CatchAll | Kind::UnknownContainer | Kind::UnknownKey | Kind::Version
            );
            let touches = broken.iter().any(|span| span.start <= finding.span.end && finding.span.start <= span.end);
            !follows && !touches
        });
        let mut last_line = None;
        for error in &errors {
            // What follows on the same line follows from the first.
            let start = error.span().map_or(0, |span| span.start);
            let line = text.get(..start).map(|before| before.matches('\n').count());
            if line.is_none() || line != last_line {
                syntax(text, error, findings);
            }
            last_line = line;
        }
    }
    policy
}

/// The version decides what all the rest means: with another one nothing else is read.
fn version(policy: &View<'_, '_>, findings: &mut Findings) -> Option<u32> {
    let Some(value) = policy.get("version") else {
        policy.missing("version", findings);
        return Some(VERSION);
    };
    let DeValue::Integer(digits) = value.get_ref() else {
        policy.mistyped("version", value, findings);
        return Some(VERSION);
    };
    if u32::from_str_radix(digits.as_str(), digits.radix()) == Ok(VERSION) {
        return Some(VERSION);
    }
    findings.retain(|_| false);
    findings.add(
        Kind::Version,
        value.span(),
        format!("version {digits} of the policy language is not supported"),
        format!("{VERSION}"),
        format!("write version = {VERSION} and see docs/policy.md, or use a Fief that knows version {digits}"),
    );
    None
}

/// The TOML parser's words, completed by what we ask of every error.
fn syntax(text: &str, error: &toml::de::Error, findings: &mut Findings) {
    let span = error.span().unwrap_or(0..0);
    let (message, expected) = match error.message().split_once(", expected ") {
        Some((message, expected)) => (message, expected.to_owned()),
        None => (error.message(), "TOML 1.0".to_owned()),
    };
    let broken = text.get(span.clone()).unwrap_or_default();
    let (message, expected, remedy) = if message.contains("duplicate key") {
        (
            format!("`{broken}` stands here for the second time"),
            "each key and each header once".to_owned(),
            "remove one of the two, or put the keys of both under one header",
        )
    } else if message.contains("must be quoted") && broken.trim().is_empty() {
        let message = "there is no value after the equals sign".to_owned();
        (message, "a value".to_owned(), "write the value, or remove the key")
    } else if message.contains("must be quoted") {
        let expected = "a text in quotes, a number, true, false, an array or a table".to_owned();
        (format!("`{broken}` is not a value"), expected, "put it in double quotes")
    } else if message.contains("missing comma") {
        (message.to_owned(), expected, "put a comma before it, or close the array or table")
    } else if message.contains("escape") {
        let remedy =
            "write `\\\\` for a backslash; patterns are no regular expressions: \"*.php\" is a path that ends so";
        (message.to_owned(), expected, remedy)
    } else if message.contains("unclosed") || message.contains("invalid basic string") {
        (message.to_owned(), expected, "close it on the line where it begins")
    } else {
        (message.to_owned(), expected, "write TOML here: key = value, [header], or # comment")
    };
    findings.add(Kind::Syntax, span, message, expected, remedy);
}
