// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Finds request rules that never match, and rules that the kernel side has no room for.
//!
//! Every pattern of a rule is looked up among the earlier rules as if it were a request: what it says of the fields is
//! all that is known of them. If an earlier rule is found, that one takes every request with the pattern; if that is so
//! for all patterns of a rule, it never matches. So a rule behind an equal or more general one is found, also if several
//! earlier rules take one pattern each; that several take a pattern only together is not.

use std::collections::{BTreeSet, HashMap};

use crate::diagnostic::{Findings, Kind};
use crate::patterns::{Comparison, PatternHash, ShapeCondition};
use crate::reader::View;
use crate::request_table::pattern_hash;
use crate::requests::RequestRule;
use crate::shapes::{self, Form, Names};

/// Of one listener; `struct fief_guard` has room for so many.
const MOST_SHAPES: usize = 64;
const MOST_NAMES: usize = 8;
/// Patterns of a policy: half of the kernel's table, the other half is for the policy that replaces this one.
const MOST_PATTERNS: usize = 1_048_576;
/// Earlier rules that an error names; more explain nothing.
const MOST_SHOWN: usize = 8;
/// Nobody attacks a file of one's own.
const KEYS: [u64; 2] = [0x243f_6a88_85a3_08d3, 0x1319_8a2e_0370_7344];

/// Checks the request rules of one listener. `total`: patterns of the listeners before it.
pub(crate) fn check(view: &View<'_, '_>, rules: &[RequestRule], total: &mut usize, findings: &mut Findings) {
    for rule in rules {
        let Some(request) = &rule.request else { continue };
        let count = shapes::pattern_count(request).unwrap_or(usize::MAX);
        *total = total.saturating_add(count);
        if *total > MOST_PATTERNS {
            let message =
                format!("with this rule of {} the policy compares requests with {total} patterns", view.title);
            let expected = format!("at most {MOST_PATTERNS}: of several arrays in a rule, each value with each");
            let remedy = "name fewer values, or only the conditions that are needed";
            findings.add(Kind::Limit, rule.span.clone(), message, expected, remedy);
            return;
        }
    }
    let mut seen = Seen::default();
    for (position, rule) in rules.iter().enumerate() {
        let Some(request) = &rule.request else { continue };
        let mut winners = BTreeSet::new();
        let mut is_covered = true;
        let mut names = std::mem::take(&mut seen.names);
        let before = (seen.shapes.len(), names.list.len());
        shapes::each_pattern(request, &mut names, |form, bytes| {
            match seen.first(form, bytes).filter(|&first| first < position) {
                Some(first) => drop(winners.insert(first)),
                None => is_covered = false,
            }
            seen.insert(form, bytes, position);
        });
        seen.names = names;
        let title = format!("request rule {} of {}", position + 1, view.title);
        if is_covered && !winners.is_empty() {
            unreachable(&title, rules, rule, &winners, findings);
        }
        if before.0 <= MOST_SHAPES && seen.shapes.len() > MOST_SHAPES {
            let message = format!("with {title} its conditions are of {} different forms", seen.shapes.len());
            let expected = format!("at most {MOST_SHAPES} for a listener");
            let remedy = "let rules compare the same fields, with prefixes and suffixes of the same length";
            findings.add(Kind::Limit, rule.span.clone(), message, expected, remedy);
            return;
        }
        if before.1 <= MOST_NAMES && seen.names.list.len() > MOST_NAMES {
            let message = format!("with {title} the rules look at {} headers and cookies", seen.names.list.len());
            let expected = format!("at most {MOST_NAMES} for a listener");
            findings.add(Kind::Limit, rule.span.clone(), message, expected, "let rules look at the same ones");
            return;
        }
    }
}

fn unreachable(
    title: &str,
    rules: &[RequestRule],
    rule: &RequestRule,
    winners: &BTreeSet<usize>,
    findings: &mut Findings,
) {
    let first = winners.first().map_or(0, |first| first + 1);
    let why = match winners.len() {
        1 => format!("request rule {first} takes all its requests"),
        count => format!("{count} earlier ones, the first of them request rule {first}, take all its requests"),
    };
    let remedy = format!("remove it, or, if it is to win, move it before request rule {first}");
    let expected = "requests that no earlier rule takes";
    let message = format!("{title} can never match: {why}");
    let finding = findings.add(Kind::Unreachable, rule.span.clone(), message, expected, remedy);
    for &winner in winners.iter().take(MOST_SHOWN) {
        finding.also(rules[winner].span.clone(), format!("request rule {} is before it", winner + 1));
    }
}

/// The patterns of the rules so far.
struct Seen {
    hash: PatternHash,
    names: Names,
    /// First rule by pattern, for each form.
    shapes: Vec<(Form, HashMap<u64, usize>)>,
    position: HashMap<Form, usize>,
}

impl Default for Seen {
    fn default() -> Self {
        let hash = PatternHash::new(KEYS);
        Self { hash, names: Names::default(), shapes: Vec::new(), position: HashMap::new() }
    }
}

impl Seen {
    fn insert(&mut self, form: &Form, bytes: &[&[u8]], rule: usize) {
        let position = *self.position.entry(*form).or_insert_with(|| {
            self.shapes.push((*form, HashMap::new()));
            self.shapes.len() - 1
        });
        let hash = pattern_hash(&self.hash, form.conditions(), bytes);
        self.shapes[position].1.entry(hash).or_insert(rule);
    }

    /// The first rule that takes every request with this pattern.
    fn first(&self, form: &Form, bytes: &[&[u8]]) -> Option<usize> {
        let in_force =
            |shape: &&(Form, HashMap<u64, usize>)| shape.0.when <= form.when && (!shape.0.monitor || form.monitor);
        let find = |(shape, rules): &(Form, HashMap<u64, usize>)| {
            let mut hash = self.hash.start();
            for wanted in shape.conditions() {
                hash = self.hash.add(hash, wanted, implied(wanted, form.conditions(), bytes)?);
            }
            rules.get(&hash).copied()
        };
        self.shapes.iter().filter(in_force).filter_map(find).min()
    }
}

/// The bytes that every field has for this condition which meets those conditions.
fn implied<'b>(wanted: &ShapeCondition, conditions: &[ShapeCondition], bytes: &[&'b [u8]]) -> Option<&'b [u8]> {
    let (length, least) = (usize::from(wanted.length), usize::from(wanted.least));
    let same_field = |condition: &ShapeCondition| condition.part == wanted.part && condition.name == wanted.name;
    let known = conditions.iter().zip(bytes).filter(|(condition, _)| same_field(condition));
    let mut implied = known.filter_map(|(condition, &bytes)| {
        let at_least = bytes.len().max(usize::from(condition.least));
        match (wanted.comparison, condition.comparison) {
            (Comparison::Present, _) => Some(&bytes[..0]),
            _ if at_least < least => None,
            (Comparison::Exact, Comparison::Exact) => Some(bytes),
            (Comparison::Prefix, Comparison::Exact | Comparison::Prefix) => bytes.get(..length),
            (Comparison::Suffix, Comparison::Exact | Comparison::Suffix) => {
                bytes.len().checked_sub(length).map(|at| &bytes[at..])
            }
            _ => None,
        }
    });
    implied.next()
}
