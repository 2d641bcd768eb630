// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Reads how many connections may be asked for: rates of client rules, of proven and of other sources, and isolation.

use std::ops::Range;

use ipnet::IpNet;

use crate::containers::Containers;
use crate::diagnostic::{Findings, Kind};
use crate::model::{From, Isolate, Level, Lrp, Mode, Per, SynRate};
use crate::prefix::has_mapped;
use crate::quantity;
use crate::reader::{View, bare_or_quoted};
use crate::{rules, vocabulary};

/// Prefixes of an `except`: the kernel side has room for 65,536 of all listeners in a policy.
const MOST_EXCEPTIONS: usize = 1024;

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

/// Isolation, and its class in the file.
#[derive(Default)]
pub(crate) struct Isolation {
    pub(crate) isolate: Option<Isolate>,
    pub(crate) into: Option<(String, Range<usize>)>,
}

pub(crate) fn isolate(listener: &View<'_, '_>, containers: &Containers, findings: &mut Findings) -> Isolation {
    let Some(table) = listener.table("isolate", findings) else { return Isolation::default() };
    for key in ["above", "for"] {
        if table.get(key).is_none() {
            table.missing(key, findings);
        }
    }
    let above = count(&table, "above", findings);
    let for_ns = table.quantity("for", quantity::duration, findings).map(|(ns, _)| ns);
    let when = level(&table, "when", findings);
    let into = rules::container_at(&table, "into", containers, findings);
    let except = except(&table, "isolate", findings);
    let path = || into.as_ref().map(|(path, _)| path.clone());
    let of = |(above, for_ns)| Isolate { above, for_ns, when, into: path(), except };
    Isolation { isolate: above.zip(for_ns).map(of), into }
}

/// Whom a control of a listener never holds for; `of`: the control.
pub(crate) fn except(table: &View<'_, '_>, of: &str, findings: &mut Findings) -> Vec<IpNet> {
    let Some(value) = table.get("except") else { return Vec::new() };
    match rules::nets(table, "except", findings) {
        Some(From::In(nets)) if nets.iter().any(has_mapped) => {
            let message = format!("`{of}.except` in {} has a prefix of IPv6 with all of IPv4 in it", table.title);
            findings.add(
                Kind::Value,
                value.span(),
                message,
                "prefixes of one family",
                "write \"2000::/3\" for the Internet of IPv6",
            );
            Vec::new()
        }
        Some(From::In(nets)) if nets.len() <= MOST_EXCEPTIONS => nets,
        Some(From::In(nets)) => {
            let message = format!("`{of}.except` in {} has {} prefixes", table.title, nets.len());
            let expected = format!("at most {MOST_EXCEPTIONS} prefixes");
            findings.add(Kind::Limit, value.span(), message, expected, "put neighbouring prefixes into one");
            Vec::new()
        }
        Some(From::Any | From::NotIn(_)) => {
            let message = format!("`{of}.except` in {} is everybody", table.title);
            let remedy = format!("name prefixes, or remove `{of}`");
            findings.add(Kind::Contradiction, value.span(), message, "addresses and prefixes", remedy);
            Vec::new()
        }
        None => Vec::new(),
    }
}

/// The class of the isolated is told by the cookie that comes back, and answered from what `unproven` leaves; and nobody
/// else is of it, so that a connection can be known by it.
pub(crate) fn check_into<'a>(
    listener: &View<'_, '_>,
    isolation: &Isolation,
    admits: bool,
    containers: &Containers,
    others: impl Iterator<Item = &'a (String, Range<usize>)>,
    findings: &mut Findings,
) {
    let Some((path, span)) = &isolation.into else { return };
    if !admits {
        let message = format!("{} has `isolate.into`, but no admission", listener.title);
        let remedy = "add admit = true, or remove `into`: isolated sources are then shut out";
        findings.add(Kind::Contradiction, span.clone(), message, "`isolate.into` beside admit = true", remedy);
    }
    if listener.get("unproven").is_none() && !listener.is_misspelt("unproven") {
        let message = format!("{} has `isolate.into`, but no budget that something could be left of", listener.title);
        let remedy = "add unproven = { rate = 5000 }, or remove `into`: isolated sources are then shut out";
        findings.add(Kind::Missing, span.clone(), message, "`unproven` beside `isolate.into`", remedy);
    }
    if let Some(declared) = containers.get(path).filter(|declared| declared.container.cpu.priority > 0) {
        let message = format!(
            "isolated sources would be served before others: `{path}` has cpu.priority = {}",
            declared.container.cpu.priority
        );
        let remedy = format!("write cpu.priority = 0 in [container.{}]", bare_or_quoted(path));
        findings
            .add(Kind::Contradiction, span.clone(), message, "a container with cpu.priority = 0", remedy)
            .also(declared.span.clone(), "its container");
    }
    for (other, at) in others {
        if other == path {
            let message = format!("`{path}` is the class of isolated sources, and of others too");
            let expected = "a container that no rule of the listener names";
            let remedy = "make a container of its own for isolated sources, with cpu.priority = 0";
            findings
                .add(Kind::Contradiction, span.clone(), message, expected, remedy)
                .also(at.clone(), "this rule names it");
            return;
        }
    }
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
