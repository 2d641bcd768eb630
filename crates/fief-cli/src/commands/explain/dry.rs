// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What a policy says about one client and its request: which rules match and what becomes of it. Of the policy in force, what
//! is known of the client now stands before that (`live`).
//!
//! Of a policy in a file rates are told, and the answer is that of a client that is within them.

use std::net::IpAddr;

use fief_policy::{Client, Fields, Level, Listener, Policy, Refusal, Request, RequestRate, Verdict};
use serde::Serialize;

use super::live::{self, Live};
use crate::cli::Explain;
use crate::failure::{Failure, Result};
use crate::look;
use crate::output::{Output, printable};
use crate::policy_file;
use crate::quantity::percent;
use fief_control::{ClientView, Fief};

pub fn run(args: &Explain, from: IpAddr, output: &mut Output) -> Result<()> {
    let (fief, policy) = match &args.policy {
        Some(file) => (None, policy_file::load(file)?.policy),
        None => {
            let (fief, policy) = in_force()?;
            (Some(fief), policy)
        }
    };
    let listener = listener(&policy, args)?;
    let sent = sent(args);
    let said = args.level.as_deref().map(|level| match level {
        "busy" => Level::Busy,
        "overloaded" => Level::Overloaded,
        _ => Level::Always,
    });
    let evaluate = |level: Level| listener.evaluate(from, sent.as_ref(), said.unwrap_or(level));
    let rule = |level| Some(evaluate(level)?.request?.rule?.1);
    let now = fief.map(|fief| fief.client(listener, from, rule)).transpose()?;
    let verdict = evaluate(now.as_ref().map_or(Level::Always, |now| now.level))
        .ok_or_else(|| Failure::new(format!("listener {} has no rule for {from}", listener.name)))?;
    let explained = Explained { from, listener, verdict: &verdict, now: now.as_ref() };
    match args.json {
        true => output.json(&explained.record()),
        false => output.text(page(&explained)),
    }
}

fn in_force() -> Result<(Fief, Policy)> {
    let fief = Fief::from_env()?;
    if !fief.installed() {
        return Err(look::nothing());
    }
    let text = fief.policy_text()?.ok_or_else(|| {
        Failure::new("the text of the policy in force is gone; name a file by --policy, or apply the policy again")
    })?;
    let policy = fief_policy::parse(&text, "the policy in force")?;
    Ok((fief, policy))
}

/// The one that is named, that the client connects to, or that is the only one.
fn listener<'p>(policy: &'p Policy, args: &Explain) -> Result<&'p Listener> {
    let names = || policy.listeners.iter().map(|listener| listener.name.as_str()).collect::<Vec<_>>().join(", ");
    if let Some(name) = &args.listener {
        let all: Vec<&str> = policy.listeners.iter().map(|listener| listener.name.as_str()).collect();
        return policy.listener(name).ok_or_else(|| look::no_listener(name, &all, "the policy"));
    }
    if let Some(to) = args.to {
        return policy.listener_at(to).ok_or_else(|| {
            Failure::new(format!("no listener of the policy is at {to}: what comes there is let through"))
        });
    }
    match policy.listeners.as_slice() {
        [only] => Ok(only),
        [] => Err(Failure::new("the policy has no listener: everything is let through")),
        _ => Err(Failure::usage(format!("the policy has several listeners; name one of {}, or say --to", names()))),
    }
}

/// What the client sends first, as the command line says it.
fn sent(args: &Explain) -> Option<Fields> {
    if let Some(line) = &args.request {
        // as curl does it: who asks for `GET /x` means a request of today
        let version = if line.split_whitespace().count() < 3 { " HTTP/1.1" } else { "" };
        let headers: String = args.header.iter().map(|header| format!("{header}\r\n")).collect();
        return Some(Fields::of_http(format!("{}{version}\r\n{headers}\r\n", line.trim_end()).as_bytes()));
    }
    let alpn: Vec<&str> = args.alpn.iter().map(String::as_str).collect();
    (args.server_name.is_some() || !alpn.is_empty()).then(|| Fields::of_tls(args.server_name.as_deref(), &alpn))
}

struct Explained<'a> {
    from: IpAddr,
    listener: &'a Listener,
    verdict: &'a Verdict<'a>,
    /// Of the policy in force.
    now: Option<&'a ClientView>,
}

/// The names are a promise to programs; `docs/cli.md` lists them. Rules are counted from 1.
#[derive(Serialize)]
struct Record<'a> {
    from: IpAddr,
    listener: &'a str,
    client_rule: usize,
    request_rule: Option<usize>,
    /// A rule in monitor mode that would have decided.
    monitored_rule: Option<usize>,
    reason: Option<&'static str>,
    refusal: Option<Refusal>,
    rate: Option<RequestRate>,
    container: &'a str,
    because: &'a [fief_policy::Met],
    live: Option<Live<'a>>,
}

impl<'a> Explained<'a> {
    /// Whose its connection is, unless it is refused.
    fn container(&self) -> &'a str {
        let last = self.listener.isolate.as_ref().and_then(|isolate| isolate.into.as_deref());
        last.filter(|_| self.now.is_some_and(|now| now.last)).unwrap_or(self.verdict.container)
    }

    fn record(&self) -> Record<'a> {
        let request = self.verdict.request.as_ref();
        let position = |rule: Option<(usize, &Request)>| rule.map(|(position, _)| position + 1);
        Record {
            from: self.from,
            listener: &self.listener.name,
            client_rule: self.verdict.client_rule + 1,
            request_rule: request.and_then(|request| position(request.rule)),
            monitored_rule: request.and_then(|request| position(request.trial)),
            reason: request.map(|request| request.reason.as_str()),
            refusal: request.and_then(|request| request.refusal),
            rate: request.and_then(|request| request.rate),
            container: self.container(),
            because: request.map_or(&[], |request| &request.because),
            live: self.now.map(Live::of),
        }
    }
}

fn page(explained: &Explained<'_>) -> String {
    let Explained { from, listener, verdict, now } = *explained;
    let mut lines = vec![format!("{from} at listener {} ({})", listener.name, listener.address)];
    lines.extend(now.into_iter().flat_map(live::lines));
    lines.push(format!(
        "  client rule {}: container {}{}",
        verdict.client_rule + 1,
        verdict.client.container,
        rate_of_syns(verdict.client)
    ));
    lines.extend(request_lines(explained));
    let refused = now.and_then(live::refusal);
    let container = explained.container();
    lines.push(match (&refused, verdict.request.as_ref().and_then(|request| request.refusal)) {
        (_, Some(refusal)) => format!("its request is refused{}", how(refusal)),
        (Some(_), None) => format!("without that its connection would belong to {container}"),
        (None, None) => format!("its connection belongs to {container}"),
    });
    if let Some(refused) = refused {
        lines.insert(lines.len() - 1, refused);
    }
    lines.iter().map(|line| format!("{}\n", printable(line))).collect()
}

/// What becomes of the request, where there is one.
fn request_lines(explained: &Explained<'_>) -> Vec<String> {
    let Some(request) = &explained.verdict.request else {
        let why = match explained.listener.requests.is_empty() {
            true => "the listener has no rules for requests",
            false => "nothing was said about a request, or admission is not in force at this level",
        };
        return vec![format!("  no request was ruled: {why}")];
    };
    let mut lines = Vec::new();
    if let Some((position, _)) = request.trial {
        lines.push(format!("  request rule {} (monitor) would have decided; it is only counted", position + 1));
    }
    match request.rule {
        Some((position, _)) => lines.push(format!("  request rule {}: {}", position + 1, request.reason.as_str())),
        None => lines.push(format!("  no request rule matches: {}", request.reason.as_str())),
    }
    lines.extend(request.because.iter().map(|met| format!("    {} is \"{}\"", field(&met.field), met.value)));
    if let Some(rate) = request.rate {
        lines.push(format!("    as long as it stays within {}", self::rate(rate)));
    }
    lines
}

fn rate_of_syns(client: &Client) -> String {
    match &client.syn {
        Some(syn) => {
            let ports = syn.from_port.map(|(first, last)| format!(" from ports {first} to {last}")).unwrap_or_default();
            format!(", at most {} connection requests a second{ports}, {} at once", syn.per_second, syn.burst)
        }
        None => String::new(),
    }
}

fn rate(rate: RequestRate) -> String {
    match rate {
        RequestRate::Requests { per_second, burst, .. } => format!("{per_second} requests a second, {burst} at once"),
        RequestRate::Cpu { ppm, .. } => format!("{} of the machine's CPU time", percent(ppm)),
    }
}

fn how(refusal: Refusal) -> &'static str {
    match refusal {
        Refusal::Drop => " without an answer",
        Refusal::Reset => " by a reset",
        Refusal::Unavailable => " with 503",
        Refusal::TooMany => " with 429",
    }
}

fn field(field: &fief_policy::Field) -> String {
    use fief_policy::Field;
    match field {
        Field::Method => "the method".to_owned(),
        Field::Path => "the path".to_owned(),
        Field::Host => "the host".to_owned(),
        Field::ServerName => "the server name".to_owned(),
        Field::Alpn => "a protocol offered".to_owned(),
        Field::Header(name) => format!("the header {name}"),
        Field::Cookie(name) => format!("the cookie {name}"),
    }
}
