// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Takes request rules apart into patterns: one for each way to meet a rule, each of one shape.
//!
//! `path = ["/a/*", "*.php"]` with `method = ["GET", "HEAD"]` is four patterns of two shapes. Rules of different level or
//! mode never share a shape: the kernel side keeps the first rule of each pattern, and a rule that is not in force now must
//! not hide the one behind it.

use std::collections::HashMap;

use crate::model::{Level, Mode};
use crate::patterns::{Comparison, Part, ShapeCondition};
use crate::request::{Condition, Field, Pattern, Request};

/// Conditions of a pattern; a rule that needs more is refused.
pub(crate) const MOST_CONDITIONS: usize = 4;

/// What patterns of one shape have in common.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Form {
    pub(crate) when: Level,
    pub(crate) monitor: bool,
    count: u8,
    conditions: [ShapeCondition; MOST_CONDITIONS],
}

impl Form {
    pub(crate) fn conditions(&self) -> &[ShapeCondition] {
        &self.conditions[..usize::from(self.count)]
    }
}

const NONE: ShapeCondition =
    ShapeCondition { part: Part::Method, name: 0, comparison: Comparison::Exact, length: 0, least: 0 };

/// Headers and cookies by number, in the order of their first rule.
#[derive(Clone, Debug, Default)]
pub(crate) struct Names {
    numbers: HashMap<Field, u8>,
    pub(crate) list: Vec<Field>,
}

impl Names {
    /// Of fields without a name: 0.
    fn number(&mut self, field: &Field) -> u8 {
        if !matches!(field, Field::Header(_) | Field::Cookie(_)) {
            return 0;
        }
        if let Some(&number) = self.numbers.get(field) {
            return number;
        }
        let number = u8::try_from(self.list.len()).unwrap_or(u8::MAX);
        self.numbers.insert(field.clone(), number);
        self.list.push(field.clone());
        number
    }
}

pub(crate) fn part(field: &Field) -> Part {
    match field {
        Field::Method => Part::Method,
        Field::Path => Part::Path,
        Field::Host => Part::Host,
        Field::ServerName => Part::ServerName,
        Field::Alpn => Part::Alpn,
        Field::Header(_) => Part::Header,
        Field::Cookie(_) => Part::Cookie,
    }
}

/// How many patterns a rule is; none: more than can be counted.
pub(crate) fn pattern_count(request: &Request) -> Option<usize> {
    request.conditions.iter().try_fold(1usize, |count, condition| count.checked_mul(condition.any_of.len()))
}

/// Calls `visit` with the form and the bytes of every pattern of a rule.
///
/// Conditions of a form stand in the order of their parts, so that the order in the file makes no difference. A rule with
/// more conditions than there is room for has no patterns; `parse` refuses it.
pub(crate) fn each_pattern<'r>(request: &'r Request, names: &mut Names, mut visit: impl FnMut(&Form, &[&'r [u8]])) {
    let mut conditions: Vec<(Part, u8, &Condition)> = request
        .conditions
        .iter()
        .map(|condition| (part(&condition.field), names.number(&condition.field), condition))
        .collect();
    conditions.sort_by_key(|&(part, name, _)| (part, name));
    let mut building = Building {
        form: Form { when: request.when, monitor: request.mode == Mode::Monitor, count: 0, conditions: [NONE; 4] },
        bytes: [&[]; MOST_CONDITIONS],
    };
    building.each(&conditions, &mut visit);
}

struct Building<'r> {
    form: Form,
    bytes: [&'r [u8]; MOST_CONDITIONS],
}

impl<'r> Building<'r> {
    fn each(&mut self, rest: &[(Part, u8, &'r Condition)], visit: &mut impl FnMut(&Form, &[&'r [u8]])) {
        let Some((&(part, name, condition), rest)) = rest.split_first() else {
            visit(&self.form, &self.bytes[..usize::from(self.form.count)]);
            return;
        };
        let before = self.form.count;
        for pattern in &condition.any_of {
            let fits = match pattern {
                Pattern::Exact(text) => self.push(part, name, Comparison::Exact, text, 0),
                Pattern::Prefix(start) => self.push(part, name, Comparison::Prefix, start, start.len()),
                Pattern::Suffix(end) => self.push(part, name, Comparison::Suffix, end, end.len()),
                Pattern::Around(start, end) => {
                    let least = start.len() + end.len();
                    self.push(part, name, Comparison::Prefix, start, least)
                        && self.push(part, name, Comparison::Suffix, end, least)
                }
                Pattern::Present => self.push(part, name, Comparison::Present, "", 0),
            };
            if fits {
                self.each(rest, visit);
            }
            // What is behind the end is as it was, so that equal forms are equal byte by byte.
            self.form.conditions[usize::from(before)..].fill(NONE);
            self.form.count = before;
        }
    }

    fn push(&mut self, part: Part, name: u8, comparison: Comparison, text: &'r str, least: usize) -> bool {
        let at = usize::from(self.form.count);
        if at == MOST_CONDITIONS {
            return false;
        }
        let of_part = matches!(comparison, Comparison::Prefix | Comparison::Suffix);
        let narrow = |length: usize| u16::try_from(length).unwrap_or(u16::MAX);
        let length = if of_part { narrow(text.len()) } else { 0 };
        self.form.conditions[at] = ShapeCondition { part, name, comparison, length, least: narrow(least) };
        self.bytes[at] = text.as_bytes();
        self.form.count += 1;
        true
    }
}
