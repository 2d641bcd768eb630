// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Reads tables of the TOML document against the vocabulary.
//!
//! What is wrong becomes a finding and reads as absent, so that one mistake never hides the next. Why not serde: its
//! deserialiser stops at the first error.

use std::ops::{Range, RangeInclusive};

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use crate::diagnostic::{Findings, Kind};
use crate::mistyped::{self, type_of};
use crate::nearest::nearest;
use crate::quantity::Refused;
use crate::vocabulary::{self, Key, Section, Shape};

pub(crate) type Value<'i> = Spanned<DeValue<'i>>;

/// One table, its keys checked.
pub(crate) struct View<'a, 'i> {
    entries: &'a DeTable<'i>,
    section: &'static Section,
    /// As the operator wrote it: `[listener.web]`.
    pub(crate) title: String,
    /// What stands before the keys of a table within that: `cpu.`.
    prefix: String,
    /// Its header.
    pub(crate) span: Range<usize>,
}

/// A table under a name of the operator's.
pub(crate) struct Named<'a, 'i> {
    pub(crate) name: &'a str,
    pub(crate) name_span: Range<usize>,
    pub(crate) view: View<'a, 'i>,
}

impl<'a, 'i> View<'a, 'i> {
    /// The whole document.
    pub(crate) fn of_document(
        entries: &'a DeTable<'i>,
        section: &'static Section,
        first_line: Range<usize>,
        findings: &mut Findings,
    ) -> Self {
        let (title, prefix) = ("the policy".to_owned(), String::new());
        Self { entries, section, title, prefix, span: first_line }.checked(findings)
    }

    /// Reports keys that are not in the vocabulary, and those of later versions.
    fn checked(self, findings: &mut Findings) -> Self {
        for (key, value) in self.entries.iter() {
            match self.section.key(key.get_ref()).map(|known| &known.shape) {
                None => self.unknown(key.get_ref(), key.span(), value, findings),
                Some(Shape::Later(remedy)) => {
                    let message = format!("`{}` is not supported by this version", self.full(key.get_ref()));
                    findings.add(Kind::Unsupported, key.span(), message, self.keys(), *remedy);
                }
                Some(_) => {}
            }
        }
        self
    }

    fn unknown(&self, key: &str, span: Range<usize>, value: &Value<'_>, findings: &mut Findings) {
        let title = &self.title;
        let container = title.strip_prefix("[container.").map(|name| name.trim_matches(['"', ']']));
        let remedy = match (self.meant(key), value.get_ref(), container) {
            (Some(Key { name, shape: Shape::Later(_), .. }), ..) => {
                format!("remove it; `{name}` is not supported by this version")
            }
            (Some(meant), ..) => format!("write `{}`", self.full(meant.name)),
            (None, DeValue::Table(_), Some(path)) if self.prefix.is_empty() => {
                format!("write [container.\"{path}/{key}\"] for a container below `{path}`, or remove it")
            }
            _ => "remove it".to_owned(),
        };
        let message = format!("unknown key `{}` in {title}", self.full(key));
        findings.add(Kind::UnknownKey, span, message, self.keys(), remedy);
    }

    /// The key that somebody had in mind who wrote another one.
    fn meant(&self, written: &str) -> Option<&'static Key> {
        let synonyms = self.section.synonyms.iter();
        let synonym = synonyms.filter(|(word, _)| word.eq_ignore_ascii_case(written));
        let meant = synonym.map(|&(_, meant)| meant).next();
        meant.or_else(|| nearest(written, self.section.names())).and_then(|meant| self.section.key(meant))
    }

    /// Is the key there under a wrong name? Then it is not missing as well.
    pub(crate) fn is_misspelt(&self, key: &str) -> bool {
        let mut unknown = self.entries.keys().filter(|written| self.section.key(written.get_ref()).is_none());
        unknown.any(|written| self.meant(written.get_ref()).is_some_and(|meant| meant.name == key))
    }

    /// The keys there are, to stand after "expected".
    fn keys(&self) -> String {
        let names: Vec<_> = self.section.names().map(|name| format!("`{}`", self.full(name))).collect();
        match &names[..] {
            [only] => only.clone(),
            _ => format!("one of {}", names.join(", ")),
        }
    }

    /// The key as it is written under the nearest header.
    fn full(&self, key: &str) -> String {
        format!("{}{key}", self.prefix)
    }

    /// Does the vocabulary have this key here?
    pub(crate) fn has(&self, key: &str) -> bool {
        self.section.key(key).is_some()
    }

    /// Does the vocabulary take true and false there?
    pub(crate) fn takes_flag(&self, key: &str) -> bool {
        matches!(self.key(key).shape, Shape::Flag | Shape::FlagOrTable(_))
    }

    /// Is the value a table?
    pub(crate) fn is_table(&self, key: &str) -> bool {
        self.get(key).is_some_and(|value| matches!(value.get_ref(), DeValue::Table(_)))
    }

    pub(crate) fn get(&self, key: &str) -> Option<&'a Value<'i>> {
        self.entries.get(key)
    }

    fn key(&self, key: &str) -> &'static Key {
        self.section.key(key).expect("the reader asks for keys of the vocabulary")
    }

    /// What the value of a key should be.
    pub(crate) fn expected(&self, key: &str) -> String {
        self.key(key).shape.expected()
    }

    /// A finding about a value of the right type.
    pub(crate) fn refuse(&self, key: &str, span: Range<usize>, what: &str, remedy: String, findings: &mut Findings) {
        let message = format!("`{}` in {}: {what}", self.full(key), self.title);
        findings.add(Kind::Value, span, message, self.key(key).shape.expected(), remedy);
    }

    /// A finding about a value of the wrong type.
    pub(crate) fn mistyped(&self, key: &str, value: &Value<'_>, findings: &mut Findings) {
        let full = self.full(key);
        let message = format!("`{full}` in {} is {}", self.title, type_of(value.get_ref()));
        let remedy = mistyped::remedy(&full, self.key(key), value.get_ref());
        findings.add(Kind::Type, value.span(), message, self.key(key).shape.expected(), remedy);
    }

    /// A finding about a key that is not there.
    pub(crate) fn missing(&self, key: &str, findings: &mut Findings) {
        if self.is_misspelt(key) {
            return;
        }
        let (message, remedy) = match self.prefix.strip_suffix('.') {
            None => (format!("{} has no `{key}`", self.title), format!("add {key} = {}", self.key(key).example)),
            Some(table) => {
                let message = format!("`{table}` in {} has no `{key}`", self.title);
                (message, format!("add {key} = {} to `{table}`", self.key(key).example))
            }
        };
        let expected = format!("{key} = {}", self.key(key).shape.expected());
        findings.add(Kind::Missing, self.span.clone(), message, expected, remedy);
    }

    /// The value, if it is of the type that `read` takes.
    fn typed<T>(
        &self,
        key: &str,
        findings: &mut Findings,
        read: impl FnOnce(&'a DeValue<'i>) -> Option<T>,
    ) -> Option<(T, Range<usize>)> {
        let value = self.get(key)?;
        let typed = read(value.get_ref());
        if typed.is_none() {
            self.mistyped(key, value, findings);
        }
        Some((typed?, value.span()))
    }

    pub(crate) fn text(&self, key: &str, findings: &mut Findings) -> Option<(&'a str, Range<usize>)> {
        self.typed(key, findings, |value| match value {
            DeValue::String(text) => Some(text.as_ref()),
            _ => None,
        })
    }

    pub(crate) fn flag(&self, key: &str, findings: &mut Findings) -> Option<bool> {
        let flag = self.typed(key, findings, |value| match value {
            DeValue::Boolean(flag) => Some(*flag),
            _ => None,
        });
        flag.map(|(flag, _)| flag)
    }

    pub(crate) fn integer(&self, key: &str, range: RangeInclusive<u64>, findings: &mut Findings) -> Option<u64> {
        let (digits, span) = self.typed(key, findings, |value| match value {
            DeValue::Integer(digits) => Some(digits),
            _ => None,
        })?;
        let number = u64::from_str_radix(digits.as_str(), digits.radix()).ok();
        let within = number.filter(|number| range.contains(number));
        if within.is_none() {
            let is_low = digits.as_str().starts_with('-') || number.is_some_and(|number| number < *range.start());
            let bound = if is_low { range.start() } else { range.end() };
            let or_default = if self.section.required.contains(&key) { "" } else { ", or remove it for the default" };
            let remedy = format!("write {} = {bound}{or_default}", self.full(key));
            self.refuse(key, span, &format!("{digits} is out of range"), remedy, findings);
        }
        within
    }

    /// A text with a unit.
    pub(crate) fn quantity<T>(
        &self,
        key: &str,
        read: impl Fn(&str) -> Result<T, Refused>,
        findings: &mut Findings,
    ) -> Option<(T, Range<usize>)> {
        let (text, span) = self.text(key, findings)?;
        match read(text) {
            Ok(quantity) => Some((quantity, span)),
            Err(Refused { message, remedy }) => {
                self.refuse(key, span, &message, remedy, findings);
                None
            }
        }
    }

    /// One of the words of the vocabulary, or the place of one of the names that the operator gave.
    pub(crate) fn choice_or_name(
        &self,
        key: &str,
        names: &[&str],
        findings: &mut Findings,
    ) -> Option<Result<&'static str, usize>> {
        let (text, span) = self.text(key, findings)?;
        let Shape::ChoiceOrName(words, table) = self.key(key).shape else {
            unreachable!("`{key}` is a choice or a name in the vocabulary")
        };
        if let Some(word) = words.iter().find(|word| **word == text) {
            return Some(Ok(word));
        }
        if let Some(at) = names.iter().position(|name| *name == text) {
            return Some(Err(at));
        }
        let remedy = match nearest(text, words.iter().chain(names).copied()) {
            Some(meant) => format!("write {key} = \"{meant}\""),
            None => format!("write {key} = {}, or add [{table}.{}]", self.key(key).example, bare_or_quoted(text)),
        };
        self.refuse(key, span, &format!("\"{text}\" is unknown"), remedy, findings);
        None
    }

    /// One of the words of the vocabulary.
    pub(crate) fn choice(&self, key: &str, findings: &mut Findings) -> Option<&'static str> {
        let (text, span) = self.text(key, findings)?;
        let (Shape::Choice(words) | Shape::ChoiceOrTable(words, _) | Shape::ChoiceOrCount(words, _)) =
            self.key(key).shape
        else {
            unreachable!("`{key}` is a choice in the vocabulary")
        };
        let chosen = words.iter().copied().find(|&word| word == text);
        if chosen.is_none() {
            let remedy = match vocabulary::meant(text, words) {
                Some(meant) => format!("write {key} = \"{meant}\""),
                None => format!("write {key} = {}, or remove it", self.key(key).example),
            };
            self.refuse(key, span, &format!("\"{text}\" is unknown"), remedy, findings);
        }
        chosen
    }

    /// A table within this one.
    pub(crate) fn table(&self, key: &str, findings: &mut Findings) -> Option<View<'a, 'i>> {
        let (Shape::Table(section)
        | Shape::ChoiceOrTable(_, section)
        | Shape::FlagOrTable(section)
        | Shape::DurationOrTable(section)) = self.key(key).shape
        else {
            unreachable!("`{key}` is a table in the vocabulary")
        };
        let (entries, span) = self.typed(key, findings, |value| match value {
            DeValue::Table(entries) => Some(entries),
            _ => None,
        })?;
        let (title, prefix) = (self.title.clone(), format!("{}.", self.full(key)));
        Some(View { entries, section, title, prefix, span }.checked(findings))
    }

    /// The tables under the names that the operator gave, in the order of the file.
    pub(crate) fn named(&self, key: &str, findings: &mut Findings) -> Vec<Named<'a, 'i>> {
        let Shape::Named(section) = self.key(key).shape else { unreachable!("`{key}` has names in the vocabulary") };
        let tables = self.typed(key, findings, |value| match value {
            DeValue::Table(entries) => Some(entries),
            _ => None,
        });
        let Some((tables, _)) = tables else {
            return Vec::new();
        };
        let mut named = Vec::new();
        for (name, value) in tables.iter() {
            let (name_span, name) = (name.span(), name.get_ref().as_ref());
            let title = format!("[{key}.{}]", bare_or_quoted(name));
            if let DeValue::Table(entries) = value.get_ref() {
                let (prefix, span) = (String::new(), value.span());
                let view = View { entries, section, title, prefix, span }.checked(findings);
                named.push(Named { name, name_span, view });
            } else {
                let message = format!("{title} is {}", type_of(value.get_ref()));
                let remedy = format!("write the header {title} above the keys of one {key}");
                let expected = format!("a table for each {key}");
                findings.add(Kind::Type, value.span(), message, expected, remedy);
            }
        }
        named.sort_by_key(|named| named.name_span.start);
        named
    }

    /// Names of the operator's with their values, in the order of the file.
    pub(crate) fn pairs(&self, key: &str, findings: &mut Findings) -> Vec<(&'a str, Range<usize>, &'a Value<'i>)> {
        let pairs = self.typed(key, findings, |value| match value {
            DeValue::Table(pairs) => Some(pairs),
            _ => None,
        });
        let pairs = pairs.into_iter().flat_map(|(pairs, _)| pairs.iter());
        let mut pairs: Vec<_> = pairs.map(|(name, value)| (name.get_ref().as_ref(), name.span(), value)).collect();
        pairs.sort_by_key(|(_, span, _)| span.start);
        pairs
    }

    /// The tables of an array of rules; none in the place of one that is not a table.
    pub(crate) fn rules(&self, key: &str, findings: &mut Findings) -> Option<Vec<Option<View<'a, 'i>>>> {
        let Shape::List(section) = self.key(key).shape else { unreachable!("`{key}` is a list in the vocabulary") };
        let value = self.get(key)?;
        let header = format!("[[{}.{key}]]", self.title.trim_matches(['[', ']']));
        let DeValue::Array(items) = value.get_ref() else {
            let message = format!("`{key}` in {} is {}", self.title, type_of(value.get_ref()));
            let remedy = format!("write the header {header}, in double brackets, above each rule");
            let expected = self.key(key).shape.expected();
            findings.add(Kind::Type, value.span(), message, expected, remedy);
            return None;
        };
        let kind = if key == "client" { String::new() } else { format!("{key} ") };
        let rule = |(index, item): (usize, &'a Value<'i>)| {
            let title = format!("{kind}rule {} of {}", index + 1, self.title);
            let DeValue::Table(entries) = item.get_ref() else {
                let message = format!("{title} is {}", type_of(item.get_ref()));
                let remedy = format!("write the header {header} and below it the keys of one rule");
                let expected = self.key(key).shape.expected();
                findings.add(Kind::Type, item.span(), message, expected, remedy);
                return None;
            };
            let (prefix, span) = (String::new(), item.span());
            Some(View { entries, section, title, prefix, span }.checked(findings))
        };
        Some(items.iter().enumerate().map(rule).collect())
    }
}

/// How a name is written in a TOML header.
pub(crate) fn bare_or_quoted(name: &str) -> String {
    let is_bare = |character: char| character.is_ascii_alphanumeric() || matches!(character, '_' | '-');
    if !name.is_empty() && name.chars().all(is_bare) { name.to_owned() } else { format!("\"{name}\"") }
}
