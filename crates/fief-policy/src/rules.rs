// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Reads one client rule: whose connections, to which container, in which order of accept.

use std::ops::Range;

use ipnet::IpNet;
use toml::de::DeValue;

use crate::class_queue::{self, ClassRule};
use crate::containers::Containers;
use crate::diagnostic::{Findings, Kind};
use crate::mistyped::type_of;
use crate::model::{AcceptOrder, Client, From, Mode, SynRate};
use crate::prefix::{self, Source};
use crate::quantity::Refused;
use crate::reader::{View, bare_or_quoted};
use crate::{name, syn_rates};

/// A rule as far as it could be read.
pub(crate) struct Rule {
    pub(crate) from: Option<From>,
    pub(crate) container: Option<(String, Range<usize>)>,
    pub(crate) accept: AcceptOrder,
    pub(crate) says_accept: bool,
    syn: Option<SynRate>,
    /// What it says of its class where that waits.
    pub(crate) queue: Option<ClassRule>,
    mode: Mode,
    /// Its header.
    pub(crate) span: Range<usize>,
    /// The addresses, or the header where there are none.
    pub(crate) from_span: Range<usize>,
}

impl Rule {
    /// `around`: the listener's mode.
    pub(crate) fn read(view: &View<'_, '_>, around: Mode, containers: &Containers, findings: &mut Findings) -> Self {
        let from = sources(view, findings);
        let from_value = ["from", "not-from"].iter().find_map(|key| view.get(key));
        let from_span = from_value.map_or(view.span.clone(), |value| value.span());
        if view.get("container").is_none() {
            view.missing("container", findings);
        }
        let container = container(view, containers, findings);
        let accept = match view.choice("accept", findings) {
            Some("after") => AcceptOrder::After,
            _ => AcceptOrder::Before,
        };
        let syn = syn_rates::rate(view, "syn", findings);
        let queue = class_queue::read(view, findings);
        let mode = syn_rates::mode(view, around, findings);
        if let (Some(value), None, false) = (view.get("mode"), view.get("syn"), view.is_misspelt("syn")) {
            let message = format!("{} has a `mode`, but no rate that it could be the mode of", view.title);
            let remedy = "add syn = { rate = 300 }, or remove `mode`";
            findings.add(Kind::Contradiction, value.span(), message, "`mode` beside `syn`", remedy);
        }
        let says_accept = view.get("accept").is_some() || view.is_misspelt("accept");
        Self { from, container, accept, says_accept, syn, queue, mode, span: view.span.clone(), from_span }
    }

    /// In the place of something that is no table.
    pub(crate) fn unread(span: Range<usize>) -> Self {
        let (accept, mode) = (AcceptOrder::Before, Mode::Enforce);
        Self {
            from: None,
            container: None,
            accept,
            says_accept: false,
            syn: None,
            queue: None,
            mode,
            from_span: span.clone(),
            span,
        }
    }

    pub(crate) fn into_client(self) -> Option<Client> {
        let Self { accept, syn, mode, .. } = self;
        let queue = self.queue.map(|rule| rule.says).unwrap_or_default();
        Some(Client { from: self.from?, container: self.container?.0, accept, syn, queue, mode })
    }
}

/// The container that a rule names, and where; one that the policy does not have is reported.
pub(crate) fn container(
    view: &View<'_, '_>,
    containers: &Containers,
    findings: &mut Findings,
) -> Option<(String, Range<usize>)> {
    container_at(view, "container", containers, findings)
}

/// The same under another key.
pub(crate) fn container_at(
    view: &View<'_, '_>,
    key: &str,
    containers: &Containers,
    findings: &mut Findings,
) -> Option<(String, Range<usize>)> {
    let (path, span) = view.text(key, findings)?;
    if !containers.knows(path) {
        unknown_container(path, span.clone(), containers, findings);
    }
    Some((path.to_owned(), span))
}

/// Reports a path that the policy has no container of, with the nearest one.
pub(crate) fn unknown_container(path: &str, span: Range<usize>, containers: &Containers, findings: &mut Findings) {
    let section = format!("[container.{}]", bare_or_quoted(path));
    let remedy = match (containers.nearest(path), name::check_path(path)) {
        (Some(meant), Ok(())) => format!("write \"{meant}\", or add {section}"),
        (Some(meant), Err(_)) => format!("write \"{meant}\""),
        (None, Ok(())) => format!("add {section}"),
        (None, Err(Refused { remedy, .. })) => remedy,
    };
    let message = format!("there is no container `{path}`");
    let expected = "the path of a container of this policy";
    findings.add(Kind::UnknownContainer, span, message, expected, remedy);
}

/// `from` or `not-from`, exactly one of them.
fn sources(view: &View<'_, '_>, findings: &mut Findings) -> Option<From> {
    const EXPECTED: &str = "one of `from` and `not-from`";
    match (view.get("from"), view.get("not-from")) {
        (None, None) => {
            if !view.is_misspelt("from") && !view.is_misspelt("not-from") {
                let message = format!("{} has neither `from` nor `not-from`", view.title);
                let remedy = "add from = [\"10.1.0.0/16\"], or from = [\"any\"] for all clients";
                findings.add(Kind::Missing, view.span.clone(), message, EXPECTED, remedy);
            }
            None
        }
        (Some(_), Some(not_from)) => {
            // Both are read for what is wrong inside of them.
            nets(view, "from", findings);
            nets(view, "not-from", findings);
            let message = format!("{} has both `from` and `not-from`", view.title);
            let remedy = "remove one of them; to except some clients of `from`, put a rule for those before this one";
            findings.add(Kind::Contradiction, not_from.span(), message, EXPECTED, remedy);
            None
        }
        (Some(_), None) => nets(view, "from", findings),
        (None, Some(value)) => match nets(view, "not-from", findings)? {
            From::In(nets) => Some(From::NotIn(nets)),
            From::Any | From::NotIn(_) => {
                let message = format!("{} can never match: it excepts every client", view.title);
                let expected = "prefixes that leave some clients";
                findings.add(Kind::Unreachable, value.span(), message, expected, "remove the rule");
                None
            }
        },
    }
}

/// The elements of a list; none if something in it is wrong.
pub(crate) fn nets(view: &View<'_, '_>, key: &str, findings: &mut Findings) -> Option<From> {
    let value = view.get(key)?;
    let DeValue::Array(items) = value.get_ref() else {
        view.mistyped(key, value, findings);
        return None;
    };
    if items.is_empty() {
        let message = format!("`{key}` of {} is empty", view.title);
        let remedy = format!("add a prefix, as in {key} = [\"10.1.0.0/16\"], or remove the rule");
        findings.add(Kind::Prefix, value.span(), message, prefix::EXPECTED, remedy);
        return None;
    }
    let mut nets: Vec<IpNet> = Vec::new();
    let mut any = None;
    let mut all_read = true;
    for item in items.iter() {
        let read = match item.get_ref() {
            DeValue::String(text) => prefix::source(text),
            other => Err(Refused {
                message: format!("`{key}` of {} has {} in it", view.title, type_of(other)),
                remedy: "write an address or prefix in quotes".to_owned(),
            }),
        };
        match read {
            Ok(Source::Any) => any = Some(item.span()),
            Ok(Source::Nets(some)) => nets.extend(some),
            Err(Refused { message, remedy }) => {
                let kind = match item.get_ref() {
                    DeValue::String(_) => Kind::Prefix,
                    _ => Kind::Type,
                };
                findings.add(kind, item.span(), message, prefix::EXPECTED, remedy);
                all_read = false;
            }
        }
    }
    match any {
        Some(_) if items.len() == 1 => Some(From::Any),
        Some(span) => {
            let message = format!("`{key}` of {} has \"any\" beside other elements", view.title);
            let expected = "\"any\" alone, or prefixes alone";
            let remedy = format!("write {key} = [\"any\"], or remove \"any\"");
            findings.add(Kind::Contradiction, span, message, expected, remedy);
            None
        }
        None => all_read.then_some(From::In(nets)),
    }
}
