// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What a policy says about a client and its request, from the policy alone: no kernel is asked and nothing is counted.
//!
//! It reads the rules from the first to the last, as the language says, and knows nothing of shapes and hashes: the tables
//! are held to it by a property test, and so is the kernel.
//! Limits: rates depend on what came before, so a request that a rule with a rate matches passes here.

use std::net::{IpAddr, SocketAddr};

use ipnet::IpNet;
use serde::{Deserialize, Serialize};

use crate::fields::{Fields, Unread};
use crate::model::{Client, From, Level, Listener, Mode, Policy};
use crate::request::{Condition, Field, Refusal, Request, RequestRate};

/// What happens to a client and its request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Verdict<'p> {
    pub listener: &'p str,
    /// Position of the client rule.
    pub client_rule: usize,
    pub client: &'p Client,
    /// None: nothing was asked about a request, or the listener rules none.
    pub request: Option<RequestVerdict<'p>>,
    /// Whose the connection is, unless it is refused.
    pub container: &'p str,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct RequestVerdict<'p> {
    pub reason: Reason,
    /// Position of the rule that decides, and the rule; none: the client's class.
    pub rule: Option<(usize, &'p Request)>,
    /// Position of a rule on trial that would have decided, and the rule.
    pub trial: Option<(usize, &'p Request)>,
    pub refusal: Option<Refusal>,
    /// Of the rule: what is above it is refused.
    pub rate: Option<RequestRate>,
    /// What the rule that decides looked at: each condition, and the value that met it.
    pub because: Vec<Met>,
}

/// Why; the words are those of the kernel's counters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Reason {
    /// A rule lets it pass, perhaps into another container.
    RequestRule,
    /// No rule matches: the class of its client.
    RequestClient,
    /// A rule refuses it.
    RequestRefused,
    /// It cannot be read, no rule refuses it, and the policy lets such bytes pass: the class of its client.
    Passed(Unread),
    /// It cannot be read, and the policy refuses such bytes: a reset.
    Refused(Unread),
}

impl Reason {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::RequestRule => "request-rule",
            Self::RequestClient => "request-client",
            Self::RequestRefused => "request-refused",
            Self::Passed(Unread::Malformed) => "passed-malformed",
            Self::Passed(Unread::TooLong) => "passed-too-long",
            Self::Passed(Unread::Upgrade) => "passed-upgrade",
            Self::Passed(Unread::Http2) => "passed-http2",
            Self::Passed(Unread::Proxy) => "passed-proxy",
            Self::Passed(Unread::NoRoom) => "passed-no-room",
            Self::Passed(Unread::Other) => "passed-other",
            Self::Refused(Unread::Malformed) => "refused-malformed",
            Self::Refused(Unread::TooLong) => "refused-too-long",
            Self::Refused(Unread::Upgrade) => "refused-upgrade",
            Self::Refused(Unread::Http2) => "refused-http2",
            Self::Refused(Unread::Proxy) => "refused-proxy",
            Self::Refused(Unread::NoRoom) => "refused-no-room",
            Self::Refused(Unread::Other) => "refused-other",
        }
    }
}

impl Serialize for Reason {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.as_str())
    }
}

/// A condition that was met, and by which value.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Met {
    pub field: Field,
    /// As it is compared; what is not text is shown by `U+FFFD`.
    pub value: String,
}

impl Policy {
    /// The listener that connections to this address reach: the exact one, else the wildcard of its family, else that of
    /// both.
    pub fn listener_at(&self, local: SocketAddr) -> Option<&Listener> {
        let local = SocketAddr::new(local.ip().to_canonical(), local.port());
        let wildcards = match local.ip() {
            IpAddr::V4(_) => ["0.0.0.0", "::"],
            IpAddr::V6(_) => ["::", "::"],
        };
        let wildcards = wildcards.into_iter().filter_map(|wildcard| wildcard.parse::<IpAddr>().ok());
        std::iter::once(local.ip()).chain(wildcards).find_map(|ip| {
            let is_it = |listener: &&Listener| {
                let ports = listener.address.port()..=listener.last_port;
                listener.address.ip() == ip && ports.contains(&local.port())
            };
            self.listeners.iter().find(is_it)
        })
    }
}

impl Listener {
    /// The position of the client rule for this address and the rule; none: the listener has no catch-all.
    pub fn client_of(&self, from: IpAddr) -> Option<(usize, &Client)> {
        let from = from.to_canonical();
        self.clients.iter().enumerate().find(|(_, client)| is_from(&client.from, from))
    }

    /// What happens to a client from that address, and to what it sent, at this level of overload.
    pub fn evaluate(&self, from: IpAddr, sent: Option<&Fields>, level: Level) -> Option<Verdict<'_>> {
        let (client_rule, client) = self.client_of(from)?;
        let is_ruling = self.admit && self.admit_from <= level && !self.requests.is_empty();
        let request = sent.filter(|_| is_ruling).map(|sent| self.evaluate_request(sent, level));
        let moved = request.as_ref().and_then(|request| request.rule?.1.container.as_deref());
        let container = moved.unwrap_or(&client.container);
        Some(Verdict { listener: &self.name, client_rule, client, request, container })
    }

    /// The first rule that a reading of the request meets, and the first one on trial before it.
    fn first_rules(&self, fields: &Fields, level: Level) -> (Found<'_>, Found<'_>) {
        let mut trial = None;
        for (position, request) in self.requests.iter().enumerate() {
            if request.when > level || !request.conditions.iter().all(|condition| meets(fields, condition).is_some()) {
                continue;
            }
            if request.mode == Mode::Enforce {
                return (Some((position, request)), trial);
            }
            trial = trial.or(Some((position, request)));
        }
        (None, trial)
    }

    /// The strictest verdict upon what servers may read in it, of equals the first one's.
    fn evaluate_request(&self, fields: &Fields, level: Level) -> RequestVerdict<'_> {
        let readings = fields.readings();
        let mut all = readings.iter().map(|reading| (reading, self.first_rules(reading, level)));
        let (mut fields, (mut rule, mut trial)) = all.next().unwrap_or((fields, (None, None)));
        for (reading, (other_rule, other_trial)) in all {
            if strictness(other_rule) > strictness(rule) {
                (fields, rule) = (reading, other_rule);
            }
            if strictness(other_trial) > strictness(trial) {
                trial = other_trial;
            }
        }
        // A rule that would let it pass may have read another request than the server will.
        if let Some(kind) = fields.unread.filter(|kind| self.unread_refused.contains(kind))
            && !rule.is_some_and(|(_, request)| request.refuses_all())
        {
            let refusal = (self.mode == Mode::Enforce).then_some(Refusal::Reset);
            let reason = Reason::Refused(kind);
            return RequestVerdict { reason, rule: None, trial, refusal, rate: None, because: Vec::new() };
        }
        let refusal = rule.filter(|(_, request)| request.refuses_all()).and_then(|(_, request)| request.refusal);
        let refusal = refusal.map(|refusal| refusal.to(fields));
        let reason = match (rule, refusal, fields.unread) {
            (Some(_), Some(_), _) => Reason::RequestRefused,
            (Some(_), None, _) => Reason::RequestRule,
            (None, _, Some(unread)) => Reason::Passed(unread),
            (None, _, None) => Reason::RequestClient,
        };
        let met = |condition: &Condition| {
            let value = String::from_utf8_lossy(meets(fields, condition)?).into_owned();
            Some(Met { field: condition.field.clone(), value })
        };
        let because = rule.iter().flat_map(|(_, request)| &request.conditions).filter_map(met).collect();
        RequestVerdict { reason, rule, trial, refusal, rate: rule.and_then(|(_, request)| request.rate), because }
    }
}

/// A rule with its position.
type Found<'p> = Option<(usize, &'p Request)>;

/// A refusal comes before a rate, and that before a rule that lets pass, or none.
fn strictness(found: Found<'_>) -> u8 {
    match found {
        Some((_, rule)) if rule.refuses_all() => 2,
        Some((_, rule)) => u8::from(rule.rate.is_some()),
        None => 0,
    }
}

impl Refusal {
    /// A client of TLS understands no answer of HTTP.
    fn to(self, fields: &Fields) -> Self {
        if self.is_http() && fields.is_tls { Self::Reset } else { self }
    }
}

fn is_from(from: &From, address: IpAddr) -> bool {
    let covers = |net: &IpNet| match (net, address) {
        (IpNet::V4(net), IpAddr::V4(address)) => net.contains(&address),
        (IpNet::V6(net), IpAddr::V6(address)) => net.contains(&address),
        _ => false,
    };
    match from {
        From::Any => true,
        From::In(nets) => nets.iter().any(covers),
        From::NotIn(nets) => !nets.iter().any(covers),
    }
}

/// The value that meets the condition.
fn meets<'f>(fields: &'f Fields, condition: &Condition) -> Option<&'f [u8]> {
    let named = |pairs: &'f [(Vec<u8>, Vec<u8>)], wanted: &str| {
        pairs.iter().find(|(name, _)| name == wanted.as_bytes()).map(|(_, value)| value.as_slice())
    };
    let value = match &condition.field {
        Field::Method => fields.method.as_deref(),
        Field::Path => fields.path.as_deref(),
        Field::Host => fields.host.as_deref(),
        Field::ServerName => fields.server_name.as_deref(),
        Field::Alpn => {
            let offered = fields.alpn.iter().map(Vec::as_slice);
            return offered.into_iter().find(|protocol| is_any(condition, protocol));
        }
        Field::Header(name) => named(&fields.headers, name),
        Field::Cookie(name) => named(&fields.cookies, name),
    };
    value.filter(|value| is_any(condition, value))
}

fn is_any(condition: &Condition, value: &[u8]) -> bool {
    condition.any_of.iter().any(|pattern| pattern.matches(value))
}
