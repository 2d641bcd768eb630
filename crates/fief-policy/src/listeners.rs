// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Reads `[listener.…]` with its client and request rules.
//!
//! A rule whose addresses could not be read takes no part in what is said about the others: it is an error already, and
//! guesses about what it would have matched would be noise.

use std::net::SocketAddr;
use std::ops::Range;

use ipnet::IpNet;

use crate::address::{self, Listening};
use crate::containers::Containers;
use crate::diagnostic::{Findings, Kind};
use crate::model::{AcceptOrder, Front, Level, Listener, Lrp, Mode, Queue, Serve, SynRate};
use crate::quantity::{self, Refused};
use crate::reader::{Named, View};
use crate::requests::{Defaults, RequestRule};
use crate::rules::Rule;
use crate::syn_rates::Isolation;
use crate::vocabulary::Shape;
use crate::{class_queue, covered, forward, name, queue, reach, syn_rates, unread};

/// Listeners of a policy; the kernel side has room for so many.
const MOST_LISTENERS: usize = 1024;
/// Classes of a listener.
const MOST_CLASSES: usize = 32;
/// Request rules of a listener: as many as the kernel side has room for patterns.
const MOST_REQUESTS: usize = 1_048_576;
/// Rules of a listener: the kernel side counts them in 16 bits.
const MOST_RULES: usize = 65_535;

pub(crate) fn read(
    policy: &View<'_, '_>,
    mode: Mode,
    front: &Front,
    containers: &Containers,
    findings: &mut Findings,
) -> Vec<Listener> {
    let mut listeners = Vec::new();
    let mut listening = Vec::new();
    let mut patterns = 0;
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
        let local = address.as_ref().map(|(address, ..)| address.ip());
        let mode = syn_rates::mode(&view, mode, findings);
        let rules = rules(&view, mode, containers, findings);
        if let Some(rules) = &rules {
            reach::check(name, &view, local, rules, findings);
        }
        let rules = rules.unwrap_or_default();
        let requests = requests(&view, mode, containers, findings);
        covered::check(&view, &requests, &mut patterns, findings);
        let isolation = syn_rates::isolate(&view, containers, findings);
        let classes = check_classes(&view, &rules, &requests, &isolation, findings);
        let forward = forward::read(&view, findings);
        let accepts = rules.iter().any(|rule| rule.says_accept);
        let at = address.as_ref().map(|(address, last_port, _)| (*address, *last_port));
        let waits = classes >= 2
            && !forward
            && at.is_none_or(|at| queue::is_default(&view, at, accepts))
            && !front.guards_loopback();
        let guarding = Guarding::read(&view, isolation, waits, findings);
        queue::check_order(&view, guarding.queue, accepts, findings);
        let of_clients = rules.iter().map(|rule| (&rule.container, &rule.queue));
        let of_requests = requests.iter().map(|rule| (&rule.container, &rule.queue));
        class_queue::check(&view, guarding.queue, accepts, of_clients.chain(of_requests), findings);
        let named = rules.iter().filter_map(|rule| rule.container.as_ref());
        let named = named.chain(requests.iter().filter_map(|rule| rule.container.as_ref()));
        syn_rates::check_into(&view, &guarding.isolation, guarding.admit, containers, named, findings);
        let has_queue = guarding.queue.is_some() && view.get("copies").is_none();
        let serve = serve(&view, classes, findings);
        let serve = if forward || has_queue { Serve::Shared } else { serve };
        let clients = rules.into_iter().filter_map(Rule::into_client).collect();
        let requests: Vec<_> = requests.into_iter().filter_map(|rule| rule.request).collect();
        let unread_refused = unread::read(&view, mode, &requests, findings);
        let bodies_read = unread::bodies(&view, findings);
        let proxies = unread::proxies(&view, findings);
        if let Some((address, last_port, span)) = address {
            check_ports(&view, address, last_port, serve, &span, findings);
            listening.push(Listening { name, address, last_port, forward, span });
            let listener = Listener {
                last_port,
                serve,
                mode,
                forward,
                unread_refused,
                bodies_read,
                proxies,
                clients,
                requests,
                ..Listener::new(name, address)
            };
            let listener = guarding.fill(listener);
            forward::check(&view, &listener, findings);
            listeners.push(listener);
        }
    }
    address::check_conflicts(&listening, findings);
    listeners
}

fn address(view: &View<'_, '_>, findings: &mut Findings) -> Option<(SocketAddr, u16, Range<usize>)> {
    if view.get("address").is_none() {
        view.missing("address", findings);
    }
    let (text, span) = view.text("address", findings)?;
    match address::listening(text) {
        Ok((address, last_port)) => Some((address, last_port, span)),
        Err(Refused { message, remedy }) => {
            findings.add(Kind::Address, span, message, Shape::Address.expected(), remedy);
            None
        }
    }
}

/// A listening socket of a class is for one port.
fn check_ports(
    view: &View<'_, '_>,
    address: SocketAddr,
    last_port: u16,
    serve: Serve,
    span: &Range<usize>,
    findings: &mut Findings,
) {
    if serve == Serve::Shared || last_port == address.port() {
        return;
    }
    let message = format!("{} has several ports and a listening socket for each class", view.title);
    let expected = "one port, queue = true, or classes = \"shared\"";
    let remedy = "write queue = true or classes = \"shared\", or make a listener for each port";
    findings.add(Kind::Contradiction, span.clone(), message, expected, remedy);
}

/// What stands before the server, beside the rules.
struct Guarding {
    admit: bool,
    admit_from: Level,
    later_requests: bool,
    penalty: Penalty,
    isolation: Isolation,
    restart_ns: u64,
    unproven: Option<SynRate>,
    proven: Option<SynRate>,
    lrp: Option<Lrp>,
    queue: Option<Queue>,
}

impl Guarding {
    /// `waits`: also where it does not say so.
    fn read(view: &View<'_, '_>, isolation: Isolation, waits: bool, findings: &mut Findings) -> Self {
        let has_requests = view.get("request").is_some() || view.is_misspelt("request");
        let admit = view.flag("admit", findings);
        let queue = match view.get("queue") {
            Some(_) => queue::read(view, findings),
            None => waits.then(Queue::default),
        };
        let is_queued = queue.is_some() || view.get("queue").is_some();
        let later_requests = view.flag("later-requests", findings);
        if let (Some(false), true, Some(value)) = (admit, has_requests, view.get("admit")) {
            let message = format!("{} has request rules, but lets connections in before their request", view.title);
            let remedy = "remove `admit`, or the request rules; to try them without effect write mode = \"monitor\"";
            findings.add(Kind::Contradiction, value.span(), message, "admit = true beside request rules", remedy);
        }
        if let (Some(true), false, Some(value)) =
            (later_requests, has_requests || is_queued, view.get("later-requests"))
        {
            let message = format!("{} has no request rules that later requests could meet", view.title);
            let remedy = "remove `later-requests`, or add [[listener.NAME.request]]";
            findings.add(Kind::Contradiction, value.span(), message, "`later-requests` beside request rules", remedy);
        }
        if let (false, Some(value)) = (admit.unwrap_or(has_requests || is_queued), view.get("admit-from")) {
            let message = format!("{} has `admit-from`, but no admission", view.title);
            let remedy = "add admit = true, or remove `admit-from`";
            findings.add(Kind::Contradiction, value.span(), message, "`admit-from` beside admit = true", remedy);
        }
        let admit = admit.unwrap_or(has_requests || queue.is_some());
        let admit_from = syn_rates::level(view, "admit-from", findings);
        queue::check(view, queue, admit, admit_from, findings);
        Self {
            admit,
            admit_from,
            later_requests: later_requests.unwrap_or(has_requests || queue.is_some()),
            penalty: penalty(view, findings),
            isolation,
            restart_ns: restart(view, findings),
            unproven: syn_rates::rate(view, "unproven", findings),
            proven: syn_rates::rate(view, "proven", findings),
            lrp: syn_rates::lrp(view, findings),
            queue,
        }
    }

    fn fill(self, listener: Listener) -> Listener {
        let Self { admit, admit_from, later_requests, penalty, isolation, restart_ns, unproven, proven, lrp, queue } =
            self;
        let isolate = isolation.isolate;
        let (penalty_ns, penalty_except) = (penalty.ns, penalty.except);
        let listener = Listener { penalty_ns, penalty_except, ..listener };
        Listener { admit, admit_from, later_requests, isolate, restart_ns, unproven, proven, lrp, queue, ..listener }
    }
}

/// Below a second it would only delay: clients send again no sooner.
fn restart(view: &View<'_, '_>, findings: &mut Findings) -> u64 {
    const LEAST_NS: u64 = 1_000_000_000;
    let Some((ns, span)) = view.quantity("restart", quantity::duration, findings) else { return 0 };
    if ns < LEAST_NS {
        let message = format!("{} has a `restart` below one second", view.title);
        let remedy = "write as long as the server takes to start, as restart = \"5s\"";
        findings.add(Kind::Value, span, message, "\"1s\" or more", remedy);
    }
    ns
}

/// What a listener says of penalties.
struct Penalty {
    /// Of rules that refuse and name none; 0: none.
    ns: u64,
    except: Vec<IpNet>,
}

fn penalty(view: &View<'_, '_>, findings: &mut Findings) -> Penalty {
    let time = |view: &View<'_, '_>, key: &str, findings: &mut Findings| {
        view.quantity(key, quantity::duration, findings).map_or(0, |(ns, _)| ns)
    };
    if !view.is_table("penalty") {
        return Penalty { ns: time(view, "penalty", findings), except: Vec::new() };
    }
    let Some(table) = view.table("penalty", findings) else { return Penalty { ns: 0, except: Vec::new() } };
    Penalty { ns: time(&table, "for", findings), except: syn_rates::except(&table, "penalty", findings) }
}

fn requests(view: &View<'_, '_>, mode: Mode, containers: &Containers, findings: &mut Findings) -> Vec<RequestRule> {
    let Some(rules) = view.rules("request", findings) else {
        return Vec::new();
    };
    let span = view.get("request").map_or(view.span.clone(), |value| value.span());
    // What is wrong with the listener's penalty is said once, when it is read for the listener.
    let penalty_ns = penalty(view, &mut Findings::new()).ns;
    let defaults = Defaults { mode, penalty_ns };
    let rule = |rule: &Option<View<'_, '_>>| match rule {
        Some(rule) => RequestRule::read(rule, defaults, containers, findings),
        None => RequestRule::unread(span.clone()),
    };
    let rules: Vec<RequestRule> = rules.iter().map(rule).collect();
    if let Some(rule) = rules.get(MOST_REQUESTS) {
        let message = format!("{} has {} request rules", view.title, rules.len());
        let expected = format!("at most {MOST_REQUESTS} request rules for a listener");
        findings.add(Kind::Limit, rule.span.clone(), message, expected, "put several values into one rule");
    }
    rules
}

/// None: the rules are somewhere, but could not be read.
fn rules(view: &View<'_, '_>, mode: Mode, containers: &Containers, findings: &mut Findings) -> Option<Vec<Rule>> {
    let Some(value) = view.get("client") else {
        return if view.is_misspelt("client") { None } else { Some(Vec::new()) };
    };
    let clients = view.rules("client", findings)?;
    let rule = |client: &Option<View<'_, '_>>| match client {
        Some(client) => Rule::read(client, mode, containers, findings),
        None => Rule::unread(value.span()),
    };
    Some(clients.iter().map(rule).collect())
}

/// Counts the classes, and reports what the kernel side cannot tell apart or has no room for.
fn check_classes(
    view: &View<'_, '_>,
    rules: &[Rule],
    requests: &[RequestRule],
    isolation: &Isolation,
    findings: &mut Findings,
) -> usize {
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
                check_class_count(view, container, classes.len(), span, findings);
            }
        }
    }
    for (container, span) in requests.iter().filter_map(|rule| rule.container.as_ref()).chain(&isolation.into) {
        if !classes.iter().any(|(other, ..)| other == container) {
            classes.push((container, AcceptOrder::Before, span));
            check_class_count(view, container, classes.len(), span, findings);
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

fn check_class_count(view: &View<'_, '_>, container: &str, count: usize, span: &Range<usize>, findings: &mut Findings) {
    if count == MOST_CLASSES + 1 {
        let message = format!("`{container}` is class {count} of {}", view.title);
        let expected = format!("at most {MOST_CLASSES} containers for the clients and requests of a listener");
        let remedy = "name one container in several rules";
        findings.add(Kind::Limit, span.clone(), message, expected, remedy);
    }
}

fn serve(view: &View<'_, '_>, classes: usize, findings: &mut Findings) -> Serve {
    let shared = view.choice("classes", findings);
    let copies = view.choice("copies", findings);
    if let (Some(_), Some(_), Some(value)) = (shared, copies, view.get("copies")) {
        let message = format!("{} has both `copies` and `classes`", view.title);
        let expected = "one of `copies` and `classes`";
        let remedy = "remove `classes` for a copy of the server per class, or `copies` for one server";
        findings.add(Kind::Contradiction, value.span(), message, expected, remedy);
    }
    match (copies, shared) {
        (Some(_), _) => Serve::CopiesPerClass,
        (None, None | Some("listeners")) if classes >= 2 => Serve::Shim,
        (None, _) => Serve::Shared,
    }
}
