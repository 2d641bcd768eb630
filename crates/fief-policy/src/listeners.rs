// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Reads `[listener.…]` with its client rules.
//!
//! A rule whose addresses could not be read takes no part in what is said about the others: it is an error already, and
//! guesses about what it would have matched would be noise.

use std::net::SocketAddr;
use std::ops::Range;

use crate::address::{self, Listening};
use crate::containers::Containers;
use crate::diagnostic::{Findings, Kind};
use crate::model::{AcceptOrder, Listener, Serve};
use crate::quantity::Refused;
use crate::reader::{Named, View};
use crate::rules::Rule;
use crate::vocabulary::Shape;
use crate::{name, reach};

/// Listeners of a policy; the kernel side has room for so many.
const MOST_LISTENERS: usize = 1024;
/// Classes of a listener.
const MOST_CLASSES: usize = 32;
/// Rules of a listener: the kernel side counts them in 16 bits.
const MOST_RULES: usize = 65_535;

pub(crate) fn read(policy: &View<'_, '_>, containers: &Containers, findings: &mut Findings) -> Vec<Listener> {
    let mut listeners = Vec::new();
    let mut listening = Vec::new();
    for (index, named) in policy.named("listener", findings).into_iter().enumerate() {
        let Named { name, name_span, view } = named;
        if let Err(Refused { message, remedy }) = name::check_name(name) {
            let span = name_span.clone();
            findings.add(Kind::Name, span, message, name::EXPECTED_NAME, remedy);
        }
        if index == MOST_LISTENERS {
            let message = format!("`{name}` is listener {} of this policy", index + 1);
            let expected = format!("at most {MOST_LISTENERS} listeners");
            let remedy = "remove this one and those after it, or use a wildcard address for several";
            findings.add(Kind::Limit, name_span, message, expected, remedy);
        }
        let address = address(&view, findings);
        let local = address.as_ref().map(|(address, _)| address.ip());
        let rules = rules(&view, containers, findings);
        if let Some(rules) = &rules {
            reach::check(name, &view, local, rules, findings);
        }
        let rules = rules.unwrap_or_default();
        let classes = check_classes(&view, &rules, findings);
        let serve = serve(&view, classes, findings);
        let clients = rules.into_iter().filter_map(Rule::into_client).collect();
        if let Some((address, span)) = address {
            listening.push(Listening { name, address, span });
            listeners.push(Listener { name: name.to_owned(), address, serve, clients });
        }
    }
    address::check_conflicts(&listening, findings);
    listeners
}

fn address(view: &View<'_, '_>, findings: &mut Findings) -> Option<(SocketAddr, Range<usize>)> {
    if view.get("address").is_none() {
        view.missing("address", findings);
    }
    let (text, span) = view.text("address", findings)?;
    match address::listening(text) {
        Ok(address) => Some((address, span)),
        Err(Refused { message, remedy }) => {
            findings.add(Kind::Address, span, message, Shape::Address.expected(), remedy);
            None
        }
    }
}

/// None: the rules are somewhere, but could not be read.
fn rules(view: &View<'_, '_>, containers: &Containers, findings: &mut Findings) -> Option<Vec<Rule>> {
    let Some(value) = view.get("client") else {
        return if view.is_misspelt("client") { None } else { Some(Vec::new()) };
    };
    let clients = view.rules("client", findings)?;
    let rule = |client: &Option<View<'_, '_>>| match client {
        Some(client) => Rule::read(client, containers, findings),
        None => Rule::unread(value.span()),
    };
    Some(clients.iter().map(rule).collect())
}

/// Counts the classes, and reports what the kernel side cannot tell apart or has no room for.
fn check_classes(view: &View<'_, '_>, rules: &[Rule], findings: &mut Findings) -> usize {
    let word = |accept: AcceptOrder| match accept {
        AcceptOrder::Before => "before",
        AcceptOrder::After => "after",
    };
    let mut classes: Vec<(&str, AcceptOrder, &Range<usize>)> = Vec::new();
    for rule in rules {
        let Some((container, span)) = &rule.container else {
            continue;
        };
        match classes.iter().find(|(other, ..)| other == container) {
            Some(&(_, accept, _)) if accept == rule.accept => {}
            // The class listeners are found by container.
            Some(&(_, accept, first)) => {
                let accept = word(accept);
                let message =
                    format!("new connections of `{container}` go both before and after the others of {}", view.title);
                let expected = format!("accept = \"{accept}\", as in its first rule");
                let remedy = format!("write accept = \"{accept}\", or name another container");
                findings
                    .add(Kind::Contradiction, span.clone(), message, expected, remedy)
                    .also(first.clone(), format!("accept = \"{accept}\" here"));
            }
            None => {
                classes.push((container, rule.accept, span));
                if classes.len() == MOST_CLASSES + 1 {
                    let message = format!("`{container}` is class {} of {}", classes.len(), view.title);
                    let expected = format!("at most {MOST_CLASSES} containers for the clients of a listener");
                    let remedy = "name one container in several rules";
                    findings.add(Kind::Limit, span.clone(), message, expected, remedy);
                }
            }
        }
    }
    if let Some(rule) = rules.get(MOST_RULES) {
        let message = format!("{} has {} rules", view.title, rules.len());
        let expected = format!("at most {MOST_RULES} rules for a listener");
        let remedy = "put the prefixes of neighbouring rules for one container into one rule";
        findings.add(Kind::Limit, rule.span.clone(), message, expected, remedy);
    }
    classes.len()
}

fn serve(view: &View<'_, '_>, classes: usize, findings: &mut Findings) -> Serve {
    let shared = view.choice("classes", findings);
    let copies = view.choice("copies", findings);
    if let (Some(_), Some(_), Some(value)) = (shared, copies, view.get("copies")) {
        let message = format!("{} has both `copies` and `classes`", view.title);
        let expected = "one of `copies` and `classes`";
        let remedy = "remove `classes` for a copy of the server per class, or `copies` for one listening socket";
        findings.add(Kind::Contradiction, value.span(), message, expected, remedy);
    }
    match (copies, shared) {
        (Some(_), _) => Serve::CopiesPerClass,
        (None, None) if classes >= 2 => Serve::Shim,
        (None, _) => Serve::Shared,
    }
}
