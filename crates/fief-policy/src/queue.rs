// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Reads `queue` of a listener: how many requests its server has at once, and how many wait for that.

use std::net::SocketAddr;

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
        (queue.wait_ns, queue.adapts) = (wait, false);
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

/// Where the server usually speaks first, and its client waits for that (IANA's registry of ports).
pub const SERVER_SPEAKS_FIRST: [(u16, &str); 14] = [
    (21, "FTP"),
    (22, "SSH"),
    (23, "Telnet"),
    (24, "LMTP"),
    (25, "SMTP"),
    (110, "POP3"),
    (119, "NNTP"),
    (143, "IMAP"),
    (587, "SMTP"),
    (3306, "MySQL"),
    (3690, "Subversion"),
    (4190, "ManageSieve"),
    (5900, "VNC"),
    (6600, "MPD"),
];

/// Whether a listener of several classes that says nothing of a `queue` has one: not where it says how else its classes reach the
/// server (`accepts`: a rule says `accept`), or lets connections in before their request; nor at the loopback, where the door is only if
/// the policy says so, and a queue changes sysctls.
pub(crate) fn is_default(listener: &View<'_, '_>, at: (SocketAddr, u16), accepts: bool) -> bool {
    let (address, last_port) = at;
    let speaks_first = |port: u16| SERVER_SPEAKS_FIRST.iter().any(|(first, _)| *first == port);
    let admits_before = listener.get("admit").is_some_and(|value| matches!(value.get_ref(), DeValue::Boolean(false)));
    let says = |key: &str| listener.get(key).is_some() || listener.is_misspelt(key);
    let admits_always = match listener.get("admit-from").map(|value| value.get_ref()) {
        None => !listener.is_misspelt("admit-from"),
        Some(value) => matches!(value, DeValue::String(level) if level == "always"),
    };
    !admits_before
        && admits_always
        && !["queue", "classes", "copies"].into_iter().any(says)
        && !accepts
        && !address.ip().is_loopback()
        && (last_port != address.port() || !speaks_first(last_port))
}

/// A listener whose requests wait before the server's one socket has no others behind it. `accepts`: a rule says `accept`.
pub(crate) fn check_order(listener: &View<'_, '_>, queue: Option<Queue>, accepts: bool, findings: &mut Findings) {
    let (Some(_), Some(value)) = (queue, listener.get("queue")) else { return };
    let by_listeners = listener
        .get("classes")
        .is_some_and(|value| matches!(value.get_ref(), DeValue::String(how) if how == "listeners"));
    let (key, remedy) = if by_listeners {
        ("classes = \"listeners\"", "remove one of the two")
    } else if accepts {
        ("`accept` in a rule", "remove `accept`: the queue has its own order")
    } else {
        return;
    };
    let message = format!("{} has a `queue`, and {key}", listener.title);
    let expected = "a queue, or a listening socket for each class";
    findings.add(Kind::Contradiction, value.span(), message, expected, remedy);
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
