// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Reads tables of the TOML document against the vocabulary.
//!
//! What is wrong becomes a finding and reads as absent, so that one mistake never hides the next. Why not serde: its
//! deserialiser stops at the first error.

use std::ops::{Range, RangeInclusive};

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use crate::diagnostic::{Findings, Kind};
use crate::nearest::nearest;
use crate::vocabulary::{Section, Shape};

pub(crate) type Value<'i> = Spanned<DeValue<'i>>;

/// One table, its keys checked.
pub(crate) struct View<'a, 'i> {
    entries: &'a DeTable<'i>,
    section: &'static Section,
    /// As the operator wrote it: `[listener.web]`.
    pub(crate) title: String,
    /// Its header.
    pub(crate) span: Range<usize>,
}

impl<'a, 'i> View<'a, 'i> {
    /// Looks at the keys of a table: those that are not in the vocabulary, and those of later versions, are findings.
    pub(crate) fn of_table(
        entries: &'a DeTable<'i>,
        span: Range<usize>,
        section: &'static Section,
        title: String,
        findings: &mut Findings,
    ) -> Self {
        let view = Self {
            entries,
            section,
            title,
            span,
        };
        for (key, value) in entries.iter() {
            view.check_key(key.get_ref(), key.span(), value, findings);
        }
        view
    }

    fn check_key(&self, key: &str, span: Range<usize>, value: &Value<'_>, findings: &mut Findings) {
        let title = &self.title;
        let known = self.section.key(key);
        if let Some(Shape::Later(remedy)) = known.map(|known| &known.shape) {
            let message = format!("`{key}` is not supported by this version");
            findings.add(Kind::Unsupported, span, message, self.keys(), *remedy);
            return;
        }
        if known.is_some() {
            return;
        }
        let synonym = self
            .section
            .synonyms
            .iter()
            .find(|(word, _)| word.eq_ignore_ascii_case(key))
            .map(|&(_, meant)| meant);
        let supported = |name: &&str| self.section.names().any(|known| known == *name);
        let remedy = match synonym.or_else(|| nearest(key, self.section.names())) {
            Some(meant) if supported(&meant) => format!("write `{meant}`"),
            Some(meant) => format!("remove it; `{meant}` is not supported by this version"),
            None if matches!(value.get_ref(), DeValue::Table(_))
                && title.starts_with("[container.") =>
            {
                let path = title
                    .trim_start_matches("[container.")
                    .trim_end_matches(']')
                    .trim_matches('"');
                format!(
                    "write [container.\"{path}/{key}\"] for a container below `{path}`, or remove it"
                )
            }
            None => "remove it".to_owned(),
        };
        findings.add(
            Kind::UnknownKey,
            span,
            format!("unknown key `{key}` in {title}"),
            self.keys(),
            remedy,
        );
    }

    /// "one of ..., ..." for errors about keys.
    fn keys(&self) -> String {
        let names: Vec<_> = self
            .section
            .names()
            .map(|name| format!("`{name}`"))
            .collect();
        if names.len() == 1 {
            names.join("")
        } else {
            format!("one of {}", names.join(", "))
        }
    }

    pub(crate) fn get(&self, key: &str) -> Option<&'a Value<'i>> {
        debug_assert!(
            self.section.key(key).is_some(),
            "the vocabulary has no {key}"
        );
        self.entries.get(key)
    }

    fn shape(&self, key: &str) -> (&'static Shape, &'static str) {
        let key = self
            .section
            .key(key)
            .expect("the reader asks for keys of the vocabulary");
        (&key.shape, key.example)
    }

    /// A finding about a value of the right type.
    pub(crate) fn refuse(
        &self,
        key: &str,
        span: Range<usize>,
        message: String,
        remedy: String,
        findings: &mut Findings,
    ) {
        findings.add(
            Kind::Value,
            span,
            message,
            self.shape(key).0.expected(),
            remedy,
        );
    }

    /// A finding about a value of the wrong type.
    pub(crate) fn mistyped(&self, key: &str, value: &Value<'_>, findings: &mut Findings) {
        let (shape, example) = self.shape(key);
        let message = format!("`{key}` in {} is {}", self.title, type_of(value.get_ref()));
        let remedy = remedy_for_type(key, shape, example, value.get_ref());
        findings.add(Kind::Type, value.span(), message, shape.expected(), remedy);
    }

    /// A finding about a key that is not there.
    pub(crate) fn missing(&self, key: &str, findings: &mut Findings) {
        let (shape, example) = self.shape(key);
        let message = format!("{} has no `{key}`", self.title);
        let remedy = format!("add {key} = {example}");
        findings.add(
            Kind::Missing,
            self.span.clone(),
            message,
            shape.expected(),
            remedy,
        );
    }

    pub(crate) fn text(
        &self,
        key: &str,
        findings: &mut Findings,
    ) -> Option<(&'a str, Range<usize>)> {
        let value = self.get(key)?;
        match value.get_ref() {
            DeValue::String(text) => Some((text.as_ref(), value.span())),
            _ => {
                self.mistyped(key, value, findings);
                None
            }
        }
    }

    pub(crate) fn flag(&self, key: &str, findings: &mut Findings) -> Option<bool> {
        let value = self.get(key)?;
        match value.get_ref() {
            DeValue::Boolean(flag) => Some(*flag),
            _ => {
                self.mistyped(key, value, findings);
                None
            }
        }
    }

    pub(crate) fn integer(
        &self,
        key: &str,
        range: RangeInclusive<u64>,
        findings: &mut Findings,
    ) -> Option<u64> {
        let value = self.get(key)?;
        let DeValue::Integer(digits) = value.get_ref() else {
            self.mistyped(key, value, findings);
            return None;
        };
        let number = u64::from_str_radix(digits.as_str(), digits.radix()).ok();
        let within = number.filter(|number| range.contains(number));
        if within.is_none() {
            let message = format!("`{key}` = {digits} is out of range");
            let bound = match number {
                Some(number) if number < *range.start() => range.start(),
                None if digits.as_str().starts_with('-') => range.start(),
                _ => range.end(),
            };
            self.refuse(
                key,
                value.span(),
                message,
                format!("write {key} = {bound}, or remove it for the default"),
                findings,
            );
        }
        within
    }

    /// One of the words of the vocabulary.
    pub(crate) fn choice(&self, key: &str, findings: &mut Findings) -> Option<&'static str> {
        let (text, span) = self.text(key, findings)?;
        let Shape::Choice(words) = self.shape(key).0 else {
            unreachable!("`{key}` is a choice in the vocabulary")
        };
        let chosen = words.iter().copied().find(|&word| word == text);
        if chosen.is_none() {
            let remedy = match nearest(text, words.iter().copied()) {
                Some(meant) => format!("write {key} = \"{meant}\""),
                None => format!(
                    "write {key} = {}, or remove it for the default",
                    self.shape(key).1
                ),
            };
            self.refuse(
                key,
                span,
                format!("`{key}` cannot be \"{text}\""),
                remedy,
                findings,
            );
        }
        chosen
    }

    /// A table below this one; absent reads as empty.
    pub(crate) fn table(&self, key: &str, findings: &mut Findings) -> Option<View<'a, 'i>> {
        let value = self.get(key)?;
        let Shape::Table(section) = self.shape(key).0 else {
            unreachable!("`{key}` is a table in the vocabulary")
        };
        let DeValue::Table(entries) = value.get_ref() else {
            self.mistyped(key, value, findings);
            return None;
        };
        let title = format!("`{key}` of {}", self.title);
        Some(View::of_table(
            entries,
            value.span(),
            section,
            title,
            findings,
        ))
    }

    /// The tables under the names that the operator gave, in the order of the file.
    pub(crate) fn named(
        &self,
        key: &str,
        findings: &mut Findings,
    ) -> Vec<(&'a str, Range<usize>, View<'a, 'i>)> {
        let Shape::Named(section) = self.shape(key).0 else {
            unreachable!("`{key}` has names in the vocabulary")
        };
        let Some(value) = self.get(key) else {
            return Vec::new();
        };
        let DeValue::Table(entries) = value.get_ref() else {
            self.mistyped(key, value, findings);
            return Vec::new();
        };
        let mut tables = Vec::new();
        for (name, value) in entries.iter() {
            let title = format!("[{key}.{}]", bare_or_quoted(name.get_ref()));
            if let DeValue::Table(entries) = value.get_ref() {
                let view = View::of_table(entries, value.span(), section, title, findings);
                tables.push((name.get_ref().as_ref(), name.span(), view));
            } else {
                let message = format!(
                    "`{}` in [{key}] is {}",
                    name.get_ref(),
                    type_of(value.get_ref())
                );
                let remedy = format!("put the keys of one {key} under a header {title}");
                findings.add(
                    Kind::Type,
                    value.span(),
                    message,
                    format!("a table for each {key}"),
                    remedy,
                );
            }
        }
        tables.sort_by_key(|(_, span, _)| span.start);
        tables
    }

    /// The tables of an array.
    pub(crate) fn list(&self, key: &str, findings: &mut Findings) -> Vec<View<'a, 'i>> {
        let Shape::List(section) = self.shape(key).0 else {
            unreachable!("`{key}` is a list in the vocabulary")
        };
        let Some(value) = self.get(key) else {
            return Vec::new();
        };
        let header = format!("[{}.{key}]", self.title.trim_matches(['[', ']']));
        let DeValue::Array(items) = value.get_ref() else {
            let message = format!("`{key}` in {} is {}", self.title, type_of(value.get_ref()));
            let remedy =
                format!("write the header [{header}], in double brackets, above each of them");
            findings.add(
                Kind::Type,
                value.span(),
                message,
                self.shape(key).0.expected(),
                remedy,
            );
            return Vec::new();
        };
        let mut tables = Vec::new();
        for (index, item) in items.iter().enumerate() {
            let title = format!("{key} {} of {}", index + 1, self.title);
            if let DeValue::Table(entries) = item.get_ref() {
                tables.push(View::of_table(
                    entries,
                    item.span(),
                    section,
                    title,
                    findings,
                ));
            } else {
                let remedy =
                    format!("write the header [{header}] and below it the keys of one {key}");
                let message = format!("{title} is {}", type_of(item.get_ref()));
                findings.add(
                    Kind::Type,
                    item.span(),
                    message,
                    self.shape(key).0.expected(),
                    remedy,
                );
            }
        }
        tables
    }
}

/// How a name is written in a TOML header.
pub(crate) fn bare_or_quoted(name: &str) -> String {
    let is_bare =
        |character: char| character.is_ascii_alphanumeric() || character == '_' || character == '-';
    if !name.is_empty() && name.chars().all(is_bare) {
        name.to_owned()
    } else {
        format!("\"{name}\"")
    }
}

pub(crate) fn type_of(value: &DeValue<'_>) -> &'static str {
    match value {
        DeValue::String(_) => "a text",
        DeValue::Integer(_) => "an integer",
        DeValue::Float(_) => "a decimal number",
        DeValue::Boolean(_) => "true or false",
        DeValue::Datetime(_) => "a date",
        DeValue::Array(_) => "an array",
        DeValue::Table(_) => "a table",
    }
}

/// The same value as it should have been written, where that can be guessed.
fn remedy_for_type(key: &str, shape: &Shape, example: &str, value: &DeValue<'_>) -> String {
    let is_percent = matches!(shape, Shape::Percent | Shape::PercentOrMax);
    match (shape, value) {
        (_, DeValue::Integer(digits)) if is_percent && digits.radix() == 10 => {
            format!("write {key} = \"{digits}%\"")
        }
        (_, DeValue::Float(digits)) if is_percent => match digits.as_str().parse::<f64>() {
            Ok(part) if part > 0.0 && part <= 1.0 => {
                format!("write {key} = \"{}%\"", round_percent(part * 100.0))
            }
            _ => format!("write {key} = \"{digits}%\""),
        },
        (Shape::Weight | Shape::Priority | Shape::Version, DeValue::String(text))
            if text.parse::<u32>().is_ok() =>
        {
            format!("write {key} = {text}, without the quotes")
        }
        (Shape::Flag, DeValue::String(text)) if text == "true" || text == "false" => {
            format!("write {key} = {text}, without the quotes")
        }
        (Shape::Prefixes, DeValue::String(text)) => format!("write {key} = [\"{text}\"]"),
        (Shape::Address, DeValue::Integer(port)) => format!("write {key} = \"0.0.0.0:{port}\""),
        (Shape::BitRate, DeValue::Integer(bits)) if bits.radix() == 10 => {
            format!("write {key} = \"{bits}bit\"")
        }
        (Shape::Table(section), _) => {
            let first = section.keys.first().expect("a section has keys");
            format!("write {key}.{} = {}", first.name, first.example)
        }
        (Shape::Named(_), _) => format!("write a header [{key}.NAME] above the keys of each {key}"),
        _ => format!("write {key} = {example}"),
    }
}

fn round_percent(percent: f64) -> f64 {
    (percent * 10_000.0).round() / 10_000.0
}
