// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What a policy says about one client and its request: which rules match and what becomes of it. Of the policy in force, what
//! is known of the client now stands before that (`live`).
//!
//! Of a policy in a file rates are told, and the answer is that of a client that is within them.

use std::net::IpAddr;

use fief_policy::{Field, Level, Refusal, RequestRate, SynRate};
use serde::Serialize;

use super::live::{self, Live};
use crate::cli::Explain;
use crate::failure::{Failure, Result};
use crate::look::Reader;
use crate::output::{Output, printable};
use crate::policy_file;
use crate::quantity::percent;
use fief_control::{ExplainedRequest, Explanation, Question, Sent};

pub fn run(args: &Explain, from: IpAddr, output: &mut Output) -> Result<()> {
    let level = args.level.as_deref().map(|level| match level {
        "busy" => Level::Busy,
        "overloaded" => Level::Overloaded,
        _ => Level::Always,
    });
    let question = Question { from, listener: args.listener.clone(), to: args.to, sent: sent(args)?, level };
    let explained = match &args.policy {
        Some(file) => Explanation::of(&policy_file::load(file)?.policy, &question)?,
        None => Reader::open()?.explain(&question)?,
    };
    match args.json {
        true => output.json(&Record::of(&explained)),
        false => output.text(page(&explained)),
    }
}

/// What the client sends first, as the command line says it.
fn sent(args: &Explain) -> Result<Option<Sent>> {
    if let Some(line) = &args.request {
        // an address alone would be a request that no server takes
        if line.trim_start().starts_with('/') || line.contains("://") && !line.contains(' ') {
            let what = format!("a request begins with a method: write --request 'GET {}'", line.trim());
            return Err(Failure::usage(what));
        }
        // as curl does it: who asks for `GET /x` means a request of today
        let version = if line.split_whitespace().count() < 3 { " HTTP/1.1" } else { "" };
        let headers: String = args.header.iter().map(|header| format!("{header}\r\n")).collect();
        return Ok(Some(Sent::Http(format!("{}{version}\r\n{headers}\r\n", line.trim_end()))));
    }
    let is_tls = args.server_name.is_some() || !args.alpn.is_empty();
    Ok(is_tls.then(|| Sent::Tls { server_name: args.server_name.clone(), alpn: args.alpn.clone() }))
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

impl<'a> Record<'a> {
    fn of(explained: &'a Explanation) -> Self {
        let request = explained.request.as_ref();
        let position = |of: fn(&ExplainedRequest) -> Option<usize>| Some(request.and_then(of)? + 1);
        Self {
            from: explained.from,
            listener: &explained.listener,
            client_rule: explained.client_rule + 1,
            request_rule: position(|request| request.rule),
            monitored_rule: position(|request| request.trial),
            reason: request.map(|request| request.reason),
            refusal: request.and_then(|request| request.refusal),
            rate: request.and_then(|request| request.rate),
            container: &explained.container,
            because: request.map_or(&[], |request| &request.because),
            live: explained.now.as_ref().map(Live::of),
        }
    }
}

fn page(explained: &Explanation) -> String {
    let Explanation { from, listener, address, client_rule, client_container, container, now, .. } = explained;
    let mut lines = vec![format!("{from} at listener {listener} ({address})")];
    lines.extend(now.iter().flat_map(live::lines));
    lines.push(format!(
        "  client rule {}: container {client_container}{}",
        client_rule + 1,
        rate_of_syns(explained.syn.as_ref())
    ));
    lines.extend(request_lines(explained));
    let refused = now.as_ref().and_then(live::refusal);
    lines.push(match (&refused, explained.request.as_ref().and_then(|request| request.refusal)) {
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
fn request_lines(explained: &Explanation) -> Vec<String> {
    let Some(request) = &explained.request else {
        let why = match explained.rules_requests {
            false => "the listener has no rules for requests",
            true => "nothing was said about a request, or admission is not in force at this level",
        };
        return vec![format!("  no request was ruled: {why}")];
    };
    let mut lines = Vec::new();
    if let Some(position) = request.trial {
        lines.push(format!("  request rule {} (monitor) would have decided; it is only counted", position + 1));
    }
    match request.rule {
        Some(position) => lines.push(format!("  request rule {}: {}", position + 1, request.reason)),
        None => lines.push(format!("  no request rule matches: {}", request.reason)),
    }
    lines.extend(request.because.iter().map(|met| format!("    {} is \"{}\"", field(&met.field), met.value)));
    if let Some(rate) = request.rate {
        lines.push(format!("    as long as it stays within {}", self::rate(rate)));
    }
    lines
}

fn rate_of_syns(syn: Option<&SynRate>) -> String {
    match syn {
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

fn field(field: &Field) -> String {
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
