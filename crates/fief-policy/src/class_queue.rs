// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Reads `queue` of client and request rules: what holds for their class, and not for all that wait.

use std::ops::Range;

use toml::de::DeValue;

use crate::diagnostic::{Findings, Kind};
use crate::model::{ClassQueue, Queue};
use crate::reader::View;
use crate::{quantity, vocabulary};

/// What a rule says of its class where that waits, and where in the file.
pub(crate) struct ClassRule {
    pub(crate) says: ClassQueue,
    span: Range<usize>,
}

/// `queue` of a client or request rule. A flag is the request rule's own.
pub(crate) fn read(rule: &View<'_, '_>, findings: &mut Findings) -> Option<ClassRule> {
    let value = rule.get("queue")?;
    let DeValue::Table(_) = value.get_ref() else {
        if !(rule.takes_flag("queue") && matches!(value.get_ref(), DeValue::Boolean(_))) {
            rule.mistyped("queue", value, findings);
        }
        return None;
    };
    let table = rule.table("queue", findings)?;
    let count = |key: &str, findings: &mut Findings| {
        table.integer(key, vocabulary::QUEUE_LENGTH, findings).map(|count| count as u32)
    };
    let says = ClassQueue {
        length: count("length", findings),
        wait_ns: table.quantity("wait", quantity::duration, findings).map(|(wait, _)| wait),
        reserve: count("reserve", findings),
    };
    Some(ClassRule { says, span: value.span() })
}

/// What a request rule says of a class needs a class.
pub(crate) fn check_named(rule: &View<'_, '_>, queue: Option<&ClassRule>, findings: &mut Findings) {
    let Some(ClassRule { span, .. }) = queue else { return };
    if rule.get("container").is_some() || rule.is_misspelt("container") {
        return;
    }
    let message = format!("{} says how its class waits, but names no container", rule.title);
    let remedy = "add `container`, or write `queue` at the rules of the clients";
    findings.add(Kind::Contradiction, span.clone(), message, "`container` beside a table `queue`", remedy);
}

/// Checks what rules say of classes that wait: only where something waits, of one class the same, and within what there is. `accepts`:
/// a rule says `accept`.
pub(crate) fn check<'a>(
    view: &View<'_, '_>,
    queue: Option<Queue>,
    accepts: bool,
    rules: impl Iterator<Item = (&'a Option<(String, Range<usize>)>, &'a Option<ClassRule>)>,
    findings: &mut Findings,
) {
    let mut classes: Vec<(&str, ClassQueue, &Range<usize>)> = Vec::new();
    for (container, rule) in rules {
        let Some(ClassRule { says, span }) = rule else { continue };
        if queue.is_none() {
            // a queue that could not be read is an error already
            let has_none = match view.get("queue").map(|value| value.get_ref()) {
                None => !view.is_misspelt("queue"),
                Some(value) => matches!(value, DeValue::Boolean(false)),
            };
            if has_none {
                let message = format!("a rule of {} says how its class waits, but nothing waits there", view.title);
                let expected = "`queue` of a rule beside `queue` of the listener";
                let says = ["classes", "copies", "admit", "admit-from"].into_iter().find(|key| view.get(key).is_some());
                let says = says.or(accepts.then_some("accept"));
                let instead = says.map(|key| format!(" in the place of `{key}`")).unwrap_or_default();
                let remedy =
                    format!("write queue = true{instead} into {}, or remove `queue` from the rule", view.title);
                findings.add(Kind::Contradiction, span.clone(), message, expected, remedy);
            }
            continue;
        }
        let Some((path, _)) = container else { continue };
        match classes.iter_mut().find(|(other, ..)| other == path) {
            None => classes.push((path, *says, span)),
            Some((_, before, first)) => {
                if before.or(*says) != says.or(*before) {
                    let message = format!("two rules of {} say how `{path}` waits, and not the same", view.title);
                    let remedy = "write `queue` at one of the rules of this container";
                    findings
                        .add(Kind::Contradiction, span.clone(), message, "one length, wait and reserve", remedy)
                        .also((*first).clone(), "the first one");
                }
                *before = before.or(*says);
            }
        }
    }
    if let Some(queue) = queue {
        check_lengths(view, queue, &classes, findings);
    }
}

fn check_lengths(
    view: &View<'_, '_>,
    queue: Queue,
    classes: &[(&str, ClassQueue, &Range<usize>)],
    findings: &mut Findings,
) {
    let whole = queue.length;
    let mut reserved = 0;
    for &(path, ClassQueue { length, reserve, .. }, span) in classes {
        if let Some(length) = length.filter(|&length| length > whole) {
            let message = format!("{length} of `{path}` may wait in {}, where {whole} can", view.title);
            let remedy = format!("write queue.length = {whole}, or a greater length into {}", view.title);
            findings.add(Kind::Contradiction, span.clone(), message, format!("at most {whole}"), remedy);
        }
        let Some(reserve) = reserve else { continue };
        if let Some(length) = length.filter(|&length| length < reserve) {
            let message = format!("{reserve} places are reserved for `{path}`, of which {length} may wait");
            let remedy = format!("write queue.reserve = {length}, or a greater length");
            findings.add(Kind::Contradiction, span.clone(), message, "a `reserve` within `length`", remedy);
        }
        let before = reserved;
        reserved += reserve;
        if before <= whole && reserved > whole {
            let message = format!("{reserved} places of {} are reserved, and there are {whole}", view.title);
            let remedy = format!("reserve fewer, or write queue.length = {reserved} into {}", view.title);
            let expected = "reserves of all classes within the queue's `length`";
            findings.add(Kind::Contradiction, span.clone(), message, expected, remedy);
        }
    }
}
