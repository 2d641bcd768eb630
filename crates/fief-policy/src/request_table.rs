// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Request tables: the request rules of a listener as what the kernel side looks up.
//!
//! A request is looked up once for each shape; the pattern found names the first rule that has it, and of the rules found
//! the first wins. Patterns that an earlier rule has already are left out. Like class tables, request tables are plain
//! data: `fief-control` turns them into records.

use std::collections::{HashMap, HashSet};

use serde::Serialize;

use crate::bloom;
use crate::fields::Fields;
use crate::model::{Level, Listener};
use crate::patterns::{Comparison, Part, PatternHash, ShapeCondition};
use crate::request::Field;
use crate::shapes::{self, Form, Names};

/// The compiled request rules of one listener.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct RequestTable {
    /// Hashes of the names of headers and cookies.
    pub names: Vec<u64>,
    /// In the order of their first rules.
    pub shapes: Vec<Shape>,
    pub patterns: Vec<PatternEntry>,
    /// Filter before the patterns: words of 64 bits, a power of two of them.
    pub bloom: Vec<u64>,
}

/// A combination of conditions that some rules have in common.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Shape {
    pub conditions: Vec<ShapeCondition>,
    /// Position of the first rule that has it.
    pub first_rule: u32,
    /// Of all rules that have it.
    pub when: Level,
    /// All rules that have it are on trial.
    pub monitor: bool,
}

/// A pattern and the first rule that has it. The kernel looks for it by [`PatternEntry::key`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct PatternEntry {
    pub hash: u64,
    /// Position of its shape.
    pub shape: u8,
    /// Position of the rule in [`Listener::requests`].
    pub rule: u32,
}

impl PatternEntry {
    /// In the kernel's table. Shapes can have patterns in common, of rules in force and on trial.
    pub fn key(&self) -> u64 {
        self.hash ^ u64::from(self.shape)
    }
}

impl Listener {
    /// Compiles the request rules, under the two secret words of the patterns' hash.
    pub fn request_table(&self, secret: [u64; 2]) -> RequestTable {
        let hash = PatternHash::new(secret);
        let mut names = Names::default();
        let mut shapes: Vec<Shape> = Vec::new();
        let mut shape_of: HashMap<Form, usize> = HashMap::new();
        let mut known: HashSet<(usize, u64)> = HashSet::new();
        let mut patterns = Vec::new();
        for (rule, request) in self.requests.iter().enumerate() {
            shapes::each_pattern(request, &mut names, |form, bytes| {
                let shape = *shape_of.entry(*form).or_insert_with(|| {
                    let Form { when, monitor, .. } = *form;
                    let conditions = form.conditions().to_vec();
                    shapes.push(Shape { conditions, first_rule: narrow(rule), when, monitor });
                    shapes.len() - 1
                });
                let pattern = pattern_hash(&hash, form.conditions(), bytes);
                if known.insert((shape, pattern)) {
                    let shape = u8::try_from(shape).unwrap_or(u8::MAX);
                    patterns.push(PatternEntry { hash: pattern, shape, rule: narrow(rule) });
                }
            });
        }
        let names = names.list.iter().map(|field| name_hash(&hash, field)).collect();
        let bloom = bloom::filter(patterns.iter().map(|entry| entry.hash));
        RequestTable { names, shapes, patterns, bloom }
    }
}

pub(crate) fn pattern_hash(hash: &PatternHash, conditions: &[ShapeCondition], bytes: &[&[u8]]) -> u64 {
    conditions.iter().zip(bytes).fold(hash.start(), |state, (condition, bytes)| hash.add(state, condition, bytes))
}

fn name_hash(hash: &PatternHash, field: &Field) -> u64 {
    match field {
        Field::Header(name) => hash.name(Part::Header, name.as_bytes()),
        Field::Cookie(name) => hash.name(Part::Cookie, name.as_bytes()),
        _ => unreachable!("only headers and cookies have names"),
    }
}

/// Rules have 32 bits in the kernel; `parse` refuses far less.
fn narrow(position: usize) -> u32 {
    u32::try_from(position).unwrap_or(u32::MAX)
}

/// What the kernel finds for a request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Found {
    /// Position of the rule that decides.
    pub rule: Option<u32>,
    /// Position of a rule on trial that would have decided.
    pub trial: Option<u32>,
}

impl RequestTable {
    /// Does some condition look at a header (or cookie)?
    pub fn compares(&self, part: Part) -> bool {
        self.shapes.iter().flat_map(|shape| &shape.conditions).any(|condition| condition.part == part)
    }

    /// Looks a request up as the kernel does: once for each shape, by hash, behind the filter.
    pub fn lookup(&self, secret: [u64; 2], request: &Fields, level: Level) -> Found {
        let hash = PatternHash::new(secret);
        let by_key: HashMap<(u8, u64), u32> =
            self.patterns.iter().map(|entry| ((entry.shape, entry.hash), entry.rule)).collect();
        let mut found = Found::default();
        for (index, shape) in self.shapes.iter().enumerate() {
            if shape.when > level {
                continue;
            }
            let index = u8::try_from(index).unwrap_or(u8::MAX);
            let mut states = vec![hash.start()];
            for condition in &shape.conditions {
                let values = self.values(&hash, request, condition);
                let bytes: Vec<&[u8]> = values.into_iter().filter_map(|value| compared(condition, value)).collect();
                let with = |state: u64| bytes.iter().map(move |bytes| hash.add(state, condition, bytes));
                states = states.into_iter().flat_map(with).collect();
            }
            let known = states.iter().filter(|&&state| bloom::admits(&self.bloom, state));
            let rules = known.filter_map(|&state| by_key.get(&(index, state)).copied());
            let Some(rule) = rules.min() else { continue };
            let kept = if shape.monitor { &mut found.trial } else { &mut found.rule };
            *kept = Some(kept.map_or(rule, |other| other.min(rule)));
        }
        // On trial, only what would have been first counts.
        found.trial = found.trial.filter(|&trial| found.rule.is_none_or(|rule| trial < rule));
        found
    }

    /// Values of the part that a condition is about: none, one, or with ALPN several.
    fn values<'f>(&self, hash: &PatternHash, request: &'f Fields, condition: &ShapeCondition) -> Vec<&'f [u8]> {
        let named = |pairs: &'f [(Vec<u8>, Vec<u8>)]| {
            let wanted = self.names.get(usize::from(condition.name));
            let is_it = |name: &[u8]| wanted == Some(&hash.name(condition.part, name));
            pairs.iter().find(|(name, _)| is_it(name)).map(|(_, value)| value.as_slice()).into_iter().collect()
        };
        let one = |value: &'f Option<Vec<u8>>| value.as_deref().into_iter().collect();
        match condition.part {
            Part::Method => one(&request.method),
            Part::Path => one(&request.path),
            Part::Host => one(&request.host),
            Part::ServerName => one(&request.server_name),
            Part::Alpn => request.alpn.iter().map(Vec::as_slice).collect(),
            Part::Header => named(&request.headers),
            Part::Cookie => named(&request.cookies),
        }
    }
}

/// The bytes of a value that a condition hashes; none: the value is too short or too long for it.
fn compared<'v>(condition: &ShapeCondition, value: &'v [u8]) -> Option<&'v [u8]> {
    let length = usize::from(condition.length);
    if value.len() < usize::from(condition.least) {
        return None;
    }
    match condition.comparison {
        Comparison::Exact => Some(value),
        Comparison::Prefix => value.get(..length),
        Comparison::Suffix => value.len().checked_sub(length).map(|at| &value[at..]),
        Comparison::Present => Some(&[]),
    }
}
