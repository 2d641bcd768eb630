// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Reads how many connections may be asked for: rates of client rules, of proven and of other sources, and isolation.

use crate::diagnostic::Findings;
use crate::model::{Isolate, Level, Lrp, Mode, Per, SynRate};
use crate::quantity;
use crate::reader::View;
use crate::vocabulary;

/// `syn` of a client rule, `unproven` or `proven` of a listener.
pub(crate) fn rate(view: &View<'_, '_>, key: &str, findings: &mut Findings) -> Option<SynRate> {
    let table = view.table(key, findings)?;
    if table.get("rate").is_none() {
        table.missing("rate", findings);
    }
    let per_second = count(&table, "rate", findings);
    let burst = count(&table, "burst", findings);
    let per = if table.has("per") { per_whom(&table, findings) } else { Per::Rule };
    let when = if table.has("when") { level(&table, "when", findings) } else { Level::Always };
    let from_port = if table.has("from-port") { table.quantity("from-port", quantity::ports, findings) } else { None };
    let per_second = per_second?;
    let from_port = from_port.map(|(ports, _)| ports);
    Some(SynRate { per_second, burst: burst.unwrap_or(per_second), per, when, from_port })
}

pub(crate) fn isolate(listener: &View<'_, '_>, findings: &mut Findings) -> Option<Isolate> {
    let table = listener.table("isolate", findings)?;
    for key in ["above", "for"] {
        if table.get(key).is_none() {
            table.missing(key, findings);
        }
    }
    let above = count(&table, "above", findings);
    let for_ns = table.quantity("for", quantity::duration, findings).map(|(ns, _)| ns);
    let when = level(&table, "when", findings);
    Some(Isolate { above: above?, for_ns: for_ns?, when })
}

pub(crate) fn lrp(listener: &View<'_, '_>, findings: &mut Findings) -> Option<Lrp> {
    let table = listener.table("lrp", findings)?;
    Some(Lrp { when: level(&table, "when", findings) })
}

/// So many a second, or at once.
pub(crate) fn count(view: &View<'_, '_>, key: &str, findings: &mut Findings) -> Option<u32> {
    view.integer(key, vocabulary::RATE, findings).and_then(|count| u32::try_from(count).ok())
}

pub(crate) fn per_whom(view: &View<'_, '_>, findings: &mut Findings) -> Per {
    match view.choice("per", findings) {
        Some("source") => Per::Source,
        _ => Per::Rule,
    }
}

pub(crate) fn level(view: &View<'_, '_>, key: &str, findings: &mut Findings) -> Level {
    match view.choice(key, findings) {
        Some("busy") => Level::Busy,
        Some("overloaded") => Level::Overloaded,
        _ => Level::Always,
    }
}

/// `around`: the mode of what it stands in. Monitor holds for all within.
pub(crate) fn mode(view: &View<'_, '_>, around: Mode, findings: &mut Findings) -> Mode {
    match view.choice("mode", findings) {
        Some("monitor") => Mode::Monitor,
        _ => around,
    }
}
