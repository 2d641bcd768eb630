// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What a policy says about one client and its request, from the policy alone: which rules match and what becomes of it.
//!
//! Rates depend on what came before, so they are told, and the answer is that of a client that is within them.

use std::net::IpAddr;

use fief_policy::{Client, Fields, Level, Listener, Policy, Refusal, Request, RequestRate, Verdict};
use serde::Serialize;

use crate::cli::Explain;
use crate::failure::{Failure, Result};
use crate::look;
use crate::output::{Output, printable};
use crate::policy_file;
use crate::quantity::percent;
use fief_control::Fief;

pub fn run(args: &Explain, from: IpAddr, output: &mut Output) -> Result<()> {
    let policy = match &args.policy {
        Some(file) => policy_file::load(file)?.policy,
        None => in_force()?,
    };
    let listener = listener(&policy, args)?;
    let sent = sent(args);
    let level = match args.level.as_str() {
        "busy" => Level::Busy,
        "overloaded" => Level::Overloaded,
        _ => Level::Always,
    };
    let verdict = listener
        .evaluate(from, sent.as_ref(), level)
        .ok_or_else(|| Failure::new(format!("listener {} has no rule for {from}", listener.name)))?;
    match args.json {
        true => output.json(&Explained { from, listener, verdict: &verdict }.record()),
        false => output.text(page(from, listener, &verdict)),
    }
}

fn in_force() -> Result<Policy> {
    let fief = Fief::from_env()?;
    if !fief.installed() {
        return Err(look::nothing());
    }
    let text = fief.policy_text()?.ok_or_else(|| {
        Failure::new("the text of the policy in force is gone; name a file by --policy, or apply the policy again")
    })?;
    Ok(fief_policy::parse(&text, "the policy in force")?)
}

/// The one that is named, that the client connects to, or that is the only one.
fn listener<'p>(policy: &'p Policy, args: &Explain) -> Result<&'p Listener> {
    let names = || policy.listeners.iter().map(|listener| listener.name.as_str()).collect::<Vec<_>>().join(", ");
    if let Some(name) = &args.listener {
        return policy.listener(name).ok_or_else(|| {
            Failure::new(format!("no listener is called {}; the policy has {}", printable(name), names()))
        });
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
}

impl<'a> Explained<'a> {
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
            container: self.verdict.container,
            because: request.map_or(&[], |request| &request.because),
        }
    }
}

fn page(from: IpAddr, listener: &Listener, verdict: &Verdict<'_>) -> String {
    let mut lines = vec![format!("{from} at listener {} ({})", listener.name, listener.address)];
    lines.push(format!(
        "  client rule {}: container {}{}",
        verdict.client_rule + 1,
        verdict.client.container,
        rate_of_syns(verdict.client)
    ));
    let Some(request) = &verdict.request else {
        let why = match listener.requests.is_empty() {
            true => "the listener has no rules for requests",
            false => "nothing was said about a request, or admission is not in force at this level",
        };
        lines.push(format!("  no request was ruled: {why}"));
        lines.push(format!("its connection belongs to {}", verdict.container));
        return told(&lines);
    };
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
    lines.push(match request.refusal {
        Some(refusal) => format!("it is refused{}", how(refusal)),
        None => format!("its connection belongs to {}", verdict.container),
    });
    told(&lines)
}

fn told(lines: &[String]) -> String {
    lines.iter().map(|line| format!("{}\n", printable(line))).collect()
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
