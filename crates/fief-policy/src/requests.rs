// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Reads one request rule: what it is for, and what happens then.

use std::ops::Range;

use toml::de::DeValue;

use crate::class_queue::{self, ClassRule};
use crate::containers::Containers;
use crate::diagnostic::{Findings, Kind};
use crate::mistyped::type_of;
use crate::model::{Mode, Per};
use crate::pattern;
use crate::quantity::{self, Refused};
use crate::reader::{Value, View};
use crate::request::{Condition, Field, Pattern, Refusal, Request, RequestRate};
use crate::shapes::MOST_CONDITIONS;
use crate::{rules, syn_rates};

/// Of CPU time that has no burst of its own.
const CPU_BURST_NS: u64 = 100_000_000;

/// What a listener says for all of its rules.
#[derive(Clone, Copy)]
pub(crate) struct Defaults {
    pub(crate) mode: Mode,
    pub(crate) penalty_ns: u64,
}

/// A rule as far as it could be read.
pub(crate) struct RequestRule {
    /// None: its conditions could not be read, so nothing can be said about what it matches.
    pub(crate) request: Option<Request>,
    /// Its container in the file.
    pub(crate) container: Option<(String, Range<usize>)>,
    /// What it says of that class where it waits.
    pub(crate) queue: Option<ClassRule>,
    /// Its header.
    pub(crate) span: Range<usize>,
}

impl RequestRule {
    pub(crate) fn read(
        view: &View<'_, '_>,
        defaults: Defaults,
        containers: &Containers,
        findings: &mut Findings,
    ) -> Self {
        let conditions = conditions(view, findings);
        let container = rules::container(view, containers, findings);
        let rate = rate(view, findings);
        let is_tls = conditions.iter().flatten().any(|condition| condition.field.is_tls());
        let refusal = refusal(view, is_tls, findings);
        let retry_after = view.quantity("retry-after", quantity::seconds, findings).map(|(seconds, _)| seconds);
        let penalty = view.quantity("penalty", quantity::duration, findings).map(|(ns, _)| ns);
        check_refusal(view, refusal, is_tls, findings);
        let queue = class_queue::read(view, findings);
        class_queue::check_named(view, queue.as_ref(), findings);

        let is_refusing = refusal.is_some() || view.get("rate").is_some();
        let default = if is_tls { Refusal::Reset } else { Refusal::Unavailable };
        let request = conditions.map(|conditions| Request {
            conditions,
            container: container.as_ref().map(|(path, _)| path.clone()),
            rate,
            refusal: is_refusing.then(|| refusal.unwrap_or(default)),
            retry_after_s: retry_after.unwrap_or(0),
            penalty_ns: if is_refusing { penalty.unwrap_or(defaults.penalty_ns) } else { 0 },
            when: syn_rates::level(view, "when", findings),
            unqueued: matches!(view.get("queue").map(|value| value.get_ref()), Some(DeValue::Boolean(false))),
            queue: queue.as_ref().map(|rule| rule.says).unwrap_or_default(),
            mode: syn_rates::mode(view, defaults.mode, findings),
        });
        Self { request, container, queue, span: view.span.clone() }
    }

    /// In the place of something that is no table.
    pub(crate) fn unread(span: Range<usize>) -> Self {
        Self { request: None, container: None, queue: None, span }
    }
}

/// None: something in them is wrong.
fn conditions(view: &View<'_, '_>, findings: &mut Findings) -> Option<Vec<Condition>> {
    let mut conditions: Vec<Option<Condition>> = Vec::new();
    let plain = [
        ("method", Field::Method),
        ("path", Field::Path),
        ("host", Field::Host),
        ("server-name", Field::ServerName),
        ("alpn", Field::Alpn),
    ];
    for (key, field) in plain {
        if let Some(value) = view.get(key) {
            conditions.push(condition(view, key, field, value, findings));
        }
    }
    for key in ["header", "cookie"] {
        let pairs = view.pairs(key, findings);
        if pairs.is_empty() && view.get(key).is_some() {
            // A wrong type has been reported.
            conditions.push(None);
        }
        for (name, span, value) in pairs {
            let field = named_field(view, key, name, span, findings);
            conditions.push(field.and_then(|field| condition(view, key, field, value, findings)));
        }
    }
    check_protocol(view, findings);
    let conditions = conditions.into_iter().collect::<Option<Vec<_>>>()?;
    let most = |condition: &Condition| condition.any_of.iter().map(parts).max().unwrap_or(0);
    let count: usize = conditions.iter().map(most).sum();
    if count > MOST_CONDITIONS {
        let message = format!("{} compares {count} parts of requests", view.title);
        let expected = format!("at most {MOST_CONDITIONS}; what stands before and after a `*` are two");
        let remedy = "leave out a condition, or put the rarer ones into a rule of their own";
        findings.add(Kind::Limit, view.span.clone(), message, expected, remedy);
    }
    Some(conditions)
}

/// How many conditions of the kernel side a pattern is.
fn parts(pattern: &Pattern) -> usize {
    if matches!(pattern, Pattern::Around(..)) { 2 } else { 1 }
}

fn named_field(
    view: &View<'_, '_>,
    key: &str,
    name: &str,
    span: Range<usize>,
    findings: &mut Findings,
) -> Option<Field> {
    if let Err(Refused { message, remedy }) = pattern::check_field_name(name) {
        findings.add(Kind::Pattern, span, message, "the name of a header or cookie", remedy);
        return None;
    }
    if key == "cookie" {
        return Some(Field::Cookie(name.to_owned()));
    }
    let name = name.to_ascii_lowercase();
    if name == "host" || name == "cookie" {
        let message = format!("{} has a condition on the header `{name}`", view.title);
        let example = if name == "host" { "host = \"shop.example\"" } else { "cookie = { \"tier\" = \"gold\" }" };
        let remedy = format!("write {example}");
        findings.add(Kind::Contradiction, span, message, format!("the key `{name}`"), remedy);
        return None;
    }
    Some(Field::Header(name))
}

fn condition(
    view: &View<'_, '_>,
    key: &str,
    field: Field,
    value: &Value<'_>,
    findings: &mut Findings,
) -> Option<Condition> {
    let items = match value.get_ref() {
        DeValue::String(_) => std::slice::from_ref(value),
        DeValue::Array(items) if items.is_empty() => {
            let message = format!("`{key}` in {} is empty: the rule could never match", view.title);
            let remedy = format!("add a value, or remove `{key}` for any");
            findings.add(Kind::Pattern, value.span(), message, "at least one value", remedy);
            return None;
        }
        DeValue::Array(items) => items.as_ref(),
        _ => {
            view.mistyped(key, value, findings);
            return None;
        }
    };
    let mut any_of = Vec::with_capacity(items.len());
    let mut all_read = true;
    for item in items {
        let DeValue::String(text) = item.get_ref() else {
            let message = format!("`{key}` in {} has {} in it", view.title, type_of(item.get_ref()));
            findings.add(Kind::Type, item.span(), message, view.expected(key), "write the value in quotes");
            all_read = false;
            continue;
        };
        match pattern::pattern(&field, text) {
            Ok(pattern) => any_of.push(pattern),
            Err(Refused { message, remedy }) => {
                let message = format!("`{key}` in {}: {message}", view.title);
                findings.add(Kind::Pattern, item.span(), message, view.expected(key), remedy);
                all_read = false;
            }
        }
    }
    all_read.then_some(Condition { field, any_of })
}

/// What TLS shows first is its ClientHello, and HTTP's request comes encrypted after it.
fn check_protocol(view: &View<'_, '_>, findings: &mut Findings) {
    let tls = ["server-name", "alpn"].into_iter().find_map(|key| Some((key, view.get(key)?)));
    let http = ["method", "path", "host", "header", "cookie"].into_iter().find_map(|key| Some((key, view.get(key)?)));
    let (Some((tls, value)), Some((http, other))) = (tls, http) else {
        return;
    };
    let message = format!("{} can never match: it asks for `{http}` of HTTP and `{tls}` of TLS", view.title);
    let expected = "conditions on HTTP or conditions on TLS";
    let remedy = format!("remove `{tls}`, or `{http}`; in TLS the request itself is encrypted");
    findings
        .add(Kind::Contradiction, value.span(), message, expected, remedy)
        .also(other.span(), format!("`{http}` is a part of an HTTP request"));
}

fn rate(view: &View<'_, '_>, findings: &mut Findings) -> Option<RequestRate> {
    let table = view.table("rate", findings)?;
    let per_second = syn_rates::count(&table, "per-second", findings);
    let cpu = table.quantity("cpu", quantity::percent, findings);
    let per = syn_rates::per_whom(&table, findings);
    let title = &view.title;
    match (table.get("per-second"), table.get("cpu")) {
        (Some(_), Some(value)) => {
            let message = format!("the rate of {title} is of requests and of CPU time");
            let remedy = "remove one of the two, or make two rules";
            findings.add(Kind::Contradiction, value.span(), message, "one of `per-second` and `cpu`", remedy);
            None
        }
        (Some(_), None) => {
            let burst = syn_rates::count(&table, "burst", findings);
            let per_second = per_second?;
            Some(RequestRate::Requests { per_second, burst: burst.unwrap_or(per_second), per })
        }
        (None, Some(value)) => {
            let burst = table.quantity("burst", quantity::duration, findings).map(|(ns, _)| ns);
            if view.get("container").is_none() && !view.is_misspelt("container") {
                let message = format!("{title} limits CPU time, but names no container that it would be charged to");
                let expected = "`container` beside a rate of `cpu`";
                let remedy = "add the container that serves these requests, or limit `per-second`";
                findings.add(Kind::Contradiction, value.span(), message, expected, remedy);
            }
            if per == Per::Source {
                let span = table.get("per").map_or(value.span(), |per| per.span());
                let message = format!("the rate of {title} is of CPU time and for each source");
                let expected = "per = \"rule\" beside `cpu`";
                let remedy = "remove `per`, or limit `per-second`; CPU time is charged to containers, not to sources";
                findings.add(Kind::Contradiction, span, message, expected, remedy);
            }
            let (ppm, _) = cpu?;
            Some(RequestRate::Cpu { ppm, burst_ns: burst.unwrap_or(CPU_BURST_NS) })
        }
        (None, None) => {
            if !table.is_misspelt("per-second") && !table.is_misspelt("cpu") {
                let message = format!("`rate` in {title} has neither `per-second` nor `cpu`");
                let remedy = "add per-second = 10, or cpu = \"20%\"";
                findings.add(Kind::Missing, table.span.clone(), message, "one of `per-second` and `cpu`", remedy);
            }
            None
        }
    }
}

fn refusal(view: &View<'_, '_>, is_tls: bool, findings: &mut Findings) -> Option<Refusal> {
    match view.choice("refuse", findings)? {
        "drop" => Some(Refusal::Drop),
        status @ ("503" | "429") if is_tls => {
            let span = view.get("refuse").map_or(view.span.clone(), |value| value.span());
            let message = format!("{} answers {status} to TLS, which no client understands", view.title);
            let expected = "\"reset\" or \"drop\" beside `server-name` and `alpn`";
            findings.add(Kind::Contradiction, span, message, expected, "write refuse = \"reset\"");
            None
        }
        "503" => Some(Refusal::Unavailable),
        "429" => Some(Refusal::TooMany),
        _ => Some(Refusal::Reset),
    }
}

/// Keys about refusing, where nothing is refused or not in that way.
fn check_refusal(view: &View<'_, '_>, refusal: Option<Refusal>, is_tls: bool, findings: &mut Findings) {
    let is_refusing = ["refuse", "rate"].iter().any(|key| view.get(key).is_some() || view.is_misspelt(key));
    for key in ["retry-after", "penalty"] {
        if let Some(value) = view.get(key).filter(|_| !is_refusing) {
            let message = format!("{} has `{key}`, but refuses nothing", view.title);
            let expected = format!("`{key}` beside `refuse` or `rate`");
            let remedy = format!("add refuse = \"503\" or a rate, or remove `{key}`");
            findings.add(Kind::Contradiction, value.span(), message, expected, remedy);
        }
    }
    let is_http = refusal.map_or(!is_tls, Refusal::is_http);
    if let Some(value) = view.get("retry-after").filter(|_| is_refusing && !is_http) {
        let message = format!("{} has `retry-after`, but does not answer 503 or 429", view.title);
        let expected = "`retry-after` beside refuse = \"503\" or \"429\"";
        findings.add(Kind::Contradiction, value.span(), message, expected, "write refuse = \"503\", or remove it");
    }
}
