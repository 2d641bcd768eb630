// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Reads `queue` of a listener: how many requests its server has at once, and how many wait for that.

use toml::de::DeValue;

use crate::diagnostic::{Findings, Kind};
use crate::model::{Level, Queue, Until};
use crate::quantity;
use crate::reader::View;
use crate::vocabulary::{self, LEAST_MEMORY};

pub(crate) fn read(listener: &View<'_, '_>, findings: &mut Findings) -> Option<Queue> {
    let value = listener.get("queue")?;
    let mut queue = Queue::default();
    match value.get_ref() {
        DeValue::Boolean(wanted) => return wanted.then_some(queue),
        DeValue::Table(_) => {}
        _ => {
            listener.mistyped("queue", value, findings);
            return None;
        }
    }
    let table = listener.table("queue", findings)?;
    queue.in_service = in_service(&table, findings);
    if let Some(length) = table.integer("length", vocabulary::QUEUE_LENGTH, findings) {
        queue.length = length as u32;
    }
    if let Some((wait, _)) = table.quantity("wait", quantity::duration, findings) {
        queue.wait_ns = wait;
    }
    if let Some((stale, _)) = table.quantity("stale", quantity::stale, findings) {
        queue.stale_ns = stale;
    }
    queue.turns = table.flag("turns", findings).unwrap_or(true);
    queue.until = match table.choice("until", findings) {
        Some("response") => Until::Response,
        Some("close") => Until::Close,
        _ => Until::FirstByte,
    };
    queue.fair = table.choice("fair", findings) == Some("source");
    if let Some(memory) = memory(&table, findings) {
        queue.memory = memory;
    }
    check_until(&table, queue, findings);
    Some(queue)
}

/// `None`: Fief finds it out.
fn in_service(table: &View<'_, '_>, findings: &mut Findings) -> Option<u32> {
    let value = table.get("in-service")?;
    match value.get_ref() {
        DeValue::String(_) => {
            table.choice("in-service", findings);
            None
        }
        _ => table.integer("in-service", vocabulary::IN_SERVICE, findings).map(|count| count as u32),
    }
}

fn memory(table: &View<'_, '_>, findings: &mut Findings) -> Option<u64> {
    let value = table.get("memory")?;
    match value.get_ref() {
        DeValue::String(text) if text == "max" => Some(u64::MAX),
        DeValue::String(_) => {
            table.quantity("memory", |text| quantity::bytes(text, LEAST_MEMORY), findings).map(|(bytes, _)| bytes)
        }
        _ => table.integer("memory", LEAST_MEMORY..=u64::MAX, findings),
    }
}

/// How many connections a server is best with does not show in its answers.
fn check_until(table: &View<'_, '_>, queue: Queue, findings: &mut Findings) {
    let (Until::Close, None, Some(value)) = (queue.until, queue.in_service, table.get("until")) else { return };
    if table.get("in-service").is_some_and(|value| !matches!(value.get_ref(), DeValue::String(_))) {
        return; // a number that is wrong is an error already
    }
    let message = format!("`queue` in {} counts connections, and leaves their number to Fief", table.title);
    let remedy = "write in-service = 4: how many connections the server serves at once";
    findings.add(
        Kind::Contradiction,
        value.span(),
        message,
        "a number for `in-service` beside until = \"close\"",
        remedy,
    );
}

/// A queue needs connections that are held.
pub(crate) fn check(view: &View<'_, '_>, queue: Option<Queue>, admit: bool, from: Level, findings: &mut Findings) {
    let (Some(_), Some(value)) = (queue, view.get("queue")) else { return };
    if !admit {
        let message = format!("{} has a `queue`, but lets connections in before their request", view.title);
        findings.add(Kind::Contradiction, value.span(), message, "`queue` beside admit = true", "remove `admit`");
    } else if from != Level::Always {
        let message = format!("{} has a `queue`, but admits connections only from a level on", view.title);
        let expected = "`queue` beside admit-from = \"always\"";
        findings.add(Kind::Contradiction, value.span(), message, expected, "remove `admit-from`");
    }
}
