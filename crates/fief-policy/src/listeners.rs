// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Reads `[listener.…]` with its client rules.
//!
//! A rule whose addresses could not be read takes no part in what is said about the others: it is an error already, and
//! guesses about what it would have matched would be noise.

use std::ops::Range;

use ipnet::IpNet;
use toml::de::DeValue;

use crate::address::{self, Listening};
use crate::containers::Containers;
use crate::diagnostic::{Findings, Kind};
use crate::model::{AcceptOrder, Client, From, Listener, Serve};
use crate::prefix::{self, Source};
use crate::quantity::Refused;
use crate::reader::{View, bare_or_quoted};
use crate::{name, reach};

/// Listeners of a policy; the kernel side has room for so many.
pub(crate) const MOST_LISTENERS: usize = 1024;
/// Classes of a listener.
pub(crate) const MOST_CLASSES: usize = 32;
/// Rules of a listener: the kernel side counts them in 16 bits, of which one value means none.
pub(crate) const MOST_RULES: usize = 65_535;

/// A rule as far as it could be read.
pub(crate) struct Rule {
    pub(crate) from: Option<From>,
    container: Option<(String, Range<usize>)>,
    accept: AcceptOrder,
    /// Its header.
    pub(crate) span: Range<usize>,
    /// The addresses, or the header.
    pub(crate) from_span: Range<usize>,
}

pub(crate) fn read(
    policy: &View<'_, '_>,
    containers: &Containers,
    findings: &mut Findings,
) -> Vec<Listener> {
    let mut listeners = Vec::new();
    let mut listening = Vec::new();
    for (index, (name, name_span, view)) in
        policy.named("listener", findings).into_iter().enumerate()
    {
        if let Err(Refused { message, remedy }) = name::check_name(name) {
            findings.add(
                Kind::Name,
                name_span.clone(),
                message,
                name::EXPECTED_NAME,
                remedy,
            );
        }
        if index == MOST_LISTENERS {
            findings.add(
                Kind::Limit,
                name_span,
                format!("`{name}` is listener {} of this policy", index + 1),
                format!("at most {MOST_LISTENERS} listeners"),
                "remove this one and those after it, or use a wildcard address for several",
            );
        }
        let address = address_of(&view, findings);
        let rules: Vec<Rule> = view
            .list("client", findings)
            .iter()
            .map(|client| rule(client, containers, findings))
            .collect();
        reach::check(
            name,
            &view.span,
            address.as_ref().map(|(address, _)| address.ip()),
            &rules,
            findings,
        );
        let classes = check_classes(&view, &rules, findings);
        let serve = serve(&view, classes, findings);
        let clients = rules.into_iter().filter_map(Rule::into_client).collect();
        if let Some((address, span)) = address {
            listening.push(Listening {
                name,
                address,
                span,
            });
            listeners.push(Listener {
                name: name.to_owned(),
                address,
                serve,
                clients,
            });
        }
    }
    address::check_conflicts(&listening, findings);
    listeners
}

impl Rule {
    fn into_client(self) -> Option<Client> {
        Some(Client {
            from: self.from?,
            container: self.container?.0,
            accept: self.accept,
        })
    }
}

fn address_of(
    view: &View<'_, '_>,
    findings: &mut Findings,
) -> Option<(std::net::SocketAddr, Range<usize>)> {
    if view.get("address").is_none() {
        view.missing("address", findings);
        return None;
    }
    let (text, span) = view.text("address", findings)?;
    match address::listening(text) {
        Ok(address) => Some((address, span)),
        Err(Refused { message, remedy }) => {
            let expected = crate::vocabulary::Shape::Address.expected();
            findings.add(Kind::Address, span, message, expected, remedy);
            None
        }
    }
}

fn rule(view: &View<'_, '_>, containers: &Containers, findings: &mut Findings) -> Rule {
    let from = sources(view, findings);
    let from_span = ["from", "not-from"]
        .iter()
        .find_map(|key| view.get(key))
        .map_or(view.span.clone(), |value| value.span());
    let container = if view.get("container").is_none() {
        view.missing("container", findings);
        None
    } else {
        view.text("container", findings)
            .map(|(path, span)| (path.to_owned(), span))
    };
    if let Some((path, span)) = &container
        && !containers.knows(path)
    {
        let section = format!("[container.{}]", bare_or_quoted(path));
        let remedy = match (containers.nearest(path), name::check_path(path)) {
            (Some(meant), _) => format!("write \"{meant}\", or add {section}"),
            (None, Ok(())) => format!("add {section}"),
            (None, Err(Refused { remedy, .. })) => remedy,
        };
        let message = format!("there is no container `{path}`");
        findings.add(
            Kind::UnknownContainer,
            span.clone(),
            message,
            "the path of a container of this policy",
            remedy,
        );
    }
    let accept = match view.choice("accept", findings) {
        Some("after") => AcceptOrder::After,
        _ => AcceptOrder::Before,
    };
    Rule {
        from,
        container,
        accept,
        span: view.span.clone(),
        from_span,
    }
}

/// `from` or `not-from`, exactly one of them.
fn sources(view: &View<'_, '_>, findings: &mut Findings) -> Option<From> {
    match (view.get("from"), view.get("not-from")) {
        (None, None) => {
            findings.add(
                Kind::Missing,
                view.span.clone(),
                format!("{} has neither `from` nor `not-from`", view.title),
                "one of `from` and `not-from`",
                "add from = [\"10.1.0.0/16\"], or from = [\"any\"] for all other clients",
            );
            None
        }
        (Some(_), Some(not_from)) => {
            // Both are read for what is wrong inside of them.
            net_list(view, "from", findings);
            net_list(view, "not-from", findings);
            findings.add(
                Kind::Contradiction,
                not_from.span(),
                format!("{} has both `from` and `not-from`", view.title),
                "one of `from` and `not-from`",
                "remove one of them; to except some of `from`, put a rule for those before this one",
            );
            None
        }
        (Some(_), None) => {
            let (nets, any) = net_list(view, "from", findings)?;
            Some(if any { From::Any } else { From::In(nets) })
        }
        (None, Some(value)) => {
            let (nets, any) = net_list(view, "not-from", findings)?;
            if any {
                findings.add(
                    Kind::Unreachable,
                    value.span(),
                    format!("{} excepts every client", view.title),
                    "prefixes that leave some clients",
                    "remove the rule",
                );
                return None;
            }
            Some(From::NotIn(nets))
        }
    }
}

/// The prefixes of a list, and whether it is `any`; none if something in it is wrong.
fn net_list(view: &View<'_, '_>, key: &str, findings: &mut Findings) -> Option<(Vec<IpNet>, bool)> {
    let value = view.get(key)?;
    let DeValue::Array(items) = value.get_ref() else {
        view.mistyped(key, value, findings);
        return None;
    };
    if items.is_empty() {
        let message = format!("`{key}` of {} is empty", view.title);
        let remedy = format!("add a prefix, as in {key} = [\"10.1.0.0/16\"], or remove the rule");
        findings.add(
            Kind::Prefix,
            value.span(),
            message,
            prefix::EXPECTED,
            remedy,
        );
        return None;
    }
    let mut nets = Vec::new();
    let mut any = None;
    let mut all_read = true;
    for item in items.iter() {
        let DeValue::String(text) = item.get_ref() else {
            let message = format!(
                "`{key}` of {} has {} in it",
                view.title,
                crate::reader::type_of(item.get_ref())
            );
            findings.add(
                Kind::Type,
                item.span(),
                message,
                prefix::EXPECTED,
                "write it as a text, in quotes",
            );
            all_read = false;
            continue;
        };
        match prefix::source(text) {
            Ok(Source::Any) => any = Some(item.span()),
            Ok(Source::Net(net)) => nets.push(net),
            Err(Refused { message, remedy }) => {
                findings.add(Kind::Prefix, item.span(), message, prefix::EXPECTED, remedy);
                all_read = false;
            }
        }
    }
    if let (Some(span), false) = (&any, items.len() == 1) {
        findings.add(
            Kind::Contradiction,
            span.clone(),
            format!(
                "`{key}` of {} has \"any\" beside other elements",
                view.title
            ),
            "\"any\" alone, or prefixes alone",
            format!("write {key} = [\"any\"], or remove \"any\""),
        );
        return None;
    }
    all_read.then_some((nets, any.is_some()))
}

/// Counts the classes, and reports what the kernel side cannot tell apart or has no room for.
fn check_classes(view: &View<'_, '_>, rules: &[Rule], findings: &mut Findings) -> usize {
    let mut classes: Vec<(&str, AcceptOrder, &Range<usize>)> = Vec::new();
    let mut reported = false;
    for rule in rules {
        let Some((container, span)) = &rule.container else {
            continue;
        };
        match classes.iter().find(|(other, ..)| other == container) {
            None => classes.push((container, rule.accept, span)),
            Some(&(_, accept, first)) if accept != rule.accept => {
                let word = |accept| {
                    if accept == AcceptOrder::After {
                        "after"
                    } else {
                        "before"
                    }
                };
                findings
                    .add(
                        Kind::Contradiction,
                        span.clone(),
                        format!("new connections of `{container}` go both before and after the others of {}", view.title),
                        format!("accept = \"{}\", as in the first rule of this container", word(accept)),
                        format!("write accept = \"{}\", or name another container", word(accept)),
                    )
                    .also(first.clone(), format!("accept = \"{}\" here", word(accept)));
            }
            Some(_) => {}
        }
        if classes.len() > MOST_CLASSES && !reported {
            reported = true;
            findings.add(
                Kind::Limit,
                span.clone(),
                format!("`{container}` is class {} of {}", classes.len(), view.title),
                format!("at most {MOST_CLASSES} containers for the clients of one listener"),
                "name one container for several rules",
            );
        }
    }
    if let Some(rule) = rules.get(MOST_RULES) {
        findings.add(
            Kind::Limit,
            rule.span.clone(),
            format!("{} has {} rules", view.title, rules.len()),
            format!("at most {MOST_RULES} rules for one listener"),
            "put the prefixes of rules for one container into one rule",
        );
    }
    classes.len()
}

fn serve(view: &View<'_, '_>, classes: usize, findings: &mut Findings) -> Serve {
    let shared = view.choice("classes", findings);
    let copies = view.choice("copies", findings);
    if let (Some(_), Some(_), Some(value)) = (shared, copies, view.get("copies")) {
        findings.add(
            Kind::Contradiction,
            value.span(),
            format!("{} has both `copies` and `classes`", view.title),
            "one of `copies` and `classes`",
            "remove classes = \"shared\" for a copy of the server per class, or copies for one listening socket",
        );
    }
    match (copies, shared) {
        (Some(_), _) => Serve::CopiesPerClass,
        (None, Some(_)) => Serve::Shared,
        (None, None) if classes < 2 => Serve::Shared,
        (None, None) => Serve::Shim,
    }
}
