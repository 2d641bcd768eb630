// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Reads `[front]` and `[overload]`: what the control of connections and requests needs from the machine, and when it is
//! overloaded.

use std::collections::HashMap;

use toml::de::DeValue;

use crate::diagnostic::{Findings, Kind};
use crate::mistyped::type_of;
use crate::model::{Front, Handshake, Overload, Thresholds, Unguarded};
use crate::quantity;
use crate::reader::View;
use crate::vocabulary::{self, Shape};

pub(crate) fn front(policy: &View<'_, '_>, findings: &mut Findings) -> Front {
    let Some(front) = policy.table("front", findings) else {
        return Front::default();
    };
    let handshake = match front.choice("handshake", findings) {
        Some("own") => Handshake::Own,
        Some("kernel") => Handshake::Kernel,
        _ => Handshake::Auto,
    };
    let unguarded = front.choice("unguarded", findings).map(|word| match word {
        "refuse" => Unguarded::Refuse,
        _ => Unguarded::Pass,
    });
    Front { interfaces: interfaces(&front, findings), handshake, unguarded }
}

/// The kernel's record has room for 16 with a final NUL.
const LONGEST_INTERFACE: usize = 15;

fn interfaces(front: &View<'_, '_>, findings: &mut Findings) -> Vec<String> {
    let Some(value) = front.get("interfaces") else {
        return Vec::new();
    };
    let DeValue::Array(items) = value.get_ref() else {
        front.mistyped("interfaces", value, findings);
        return Vec::new();
    };
    let expected = Shape::Interfaces.expected();
    if items.is_empty() {
        let message = "`front.interfaces` is empty: nothing would be guarded";
        let remedy = "name an interface, or remove it for every interface that is up";
        findings.add(Kind::Value, value.span(), message, expected, remedy);
        return Vec::new();
    }
    let mut first_at = HashMap::new();
    let mut names = Vec::new();
    for item in items.iter() {
        let DeValue::String(name) = item.get_ref() else {
            let message = format!("`front.interfaces` has {} in it", type_of(item.get_ref()));
            findings.add(Kind::Type, item.span(), message, expected.clone(), "write the interface's name in quotes");
            continue;
        };
        let is_name = (1..=LONGEST_INTERFACE).contains(&name.len())
            && !matches!(name.as_ref(), "." | "..")
            && !name.contains(|character: char| character == '/' || character == ':' || character.is_whitespace());
        if !is_name {
            let message = format!("\"{}\" is not the name of a network interface", name.escape_debug());
            let remedy = "write a name as `ip link` shows it, of 1 to 15 bytes";
            findings.add(Kind::Value, item.span(), message, expected.clone(), remedy);
            continue;
        }
        if let Some(first) = first_at.insert(name.as_ref(), item.span()) {
            let message = format!("interface \"{name}\" stands here for the second time");
            findings
                .add(Kind::Contradiction, item.span(), message, "each interface once", "remove it")
                .also(first, "it stands here already");
            continue;
        }
        names.push(name.to_string());
    }
    names
}

pub(crate) fn overload(policy: &View<'_, '_>, findings: &mut Findings) -> Overload {
    let mut overload = Overload::default();
    let Some(view) = policy.table("overload", findings) else {
        return overload;
    };
    let busy = view.table("busy", findings);
    let overloaded = view.table("overloaded", findings);
    if let Some(busy) = &busy {
        overload.busy = thresholds(busy, "busy", findings);
    }
    if let Some(overloaded) = &overloaded {
        overload.overloaded = thresholds(overloaded, "overloaded", findings);
    }
    if let Some((hold, _)) = view.quantity("hold", quantity::duration, findings) {
        overload.hold_ns = hold;
    }
    check_order(&overload, busy.as_ref(), overloaded.as_ref(), findings);
    overload
}

fn thresholds(view: &View<'_, '_>, level: &str, findings: &mut Findings) -> Thresholds {
    let percent = |key: &str, findings: &mut Findings| {
        view.quantity(key, quantity::whole_percent, findings).map_or(0, |(percent, _)| percent)
    };
    let queue_percent = percent("queue", findings);
    let cpu_percent = percent("cpu", findings);
    let drops = view.integer("drops", vocabulary::RATE, findings).and_then(|drops| u32::try_from(drops).ok());
    if ["queue", "cpu", "drops"].iter().all(|key| view.get(key).is_none() && !view.is_misspelt(key)) {
        let message = format!("`overload.{level}` names no threshold: the level could never be reached");
        let expected = "at least one of `queue`, `cpu` and `drops`";
        findings.add(Kind::Missing, view.span.clone(), message, expected, "name one, or remove it for the default");
    }
    Thresholds { queue_percent, cpu_percent, drops: drops.unwrap_or(0) }
}

/// Who is overloaded is busy: a higher level has no lower threshold.
fn check_order(
    overload: &Overload,
    busy: Option<&View<'_, '_>>,
    overloaded: Option<&View<'_, '_>>,
    findings: &mut Findings,
) {
    let Overload { busy: low, overloaded: high, .. } = overload;
    let pairs = [
        ("queue", low.queue_percent, high.queue_percent, "%"),
        ("cpu", low.cpu_percent, high.cpu_percent, "%"),
        ("drops", low.drops, high.drops, " a second"),
    ];
    for (key, low, high, unit) in pairs {
        let written = |view: Option<&View<'_, '_>>| view.and_then(|view| view.get(key)).map(|value| value.span());
        let Some(span) = written(overloaded).or_else(|| written(busy)) else {
            continue;
        };
        if low == 0 || high == 0 || low <= high {
            continue;
        }
        let message = format!("`{key}`: overloaded from {high}{unit} on, but busy only from {low}{unit} on");
        let expected = "a threshold of overloaded that is not below busy's";
        let remedy = format!("exchange the two, or name both: `overload.busy.{key}` and `overload.overloaded.{key}`");
        findings.add(Kind::Contradiction, span, message, expected, remedy);
    }
}
