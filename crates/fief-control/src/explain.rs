// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Explain: which rules of a policy match a client and its request, and what becomes of them. Of the policy in force, with how it
//! stands with the client now ([`ClientView`]).
//!
//! Of a policy that is not in force rates are told, and the answer is that of a client that is within them.

use std::net::{IpAddr, SocketAddr};

use fief_bpf::{Error, ErrorKind, Result};
use fief_policy::{Fields, Level, Listener, Met, Policy, Refusal, RequestRate, SynRate};
use serde::{Deserialize, Serialize};

use crate::{ClientView, Fief, wire};

/// What somebody wants to know.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Question {
    /// Of the client.
    pub from: IpAddr,
    /// The name of one; without it the one at `to`, or the only one.
    #[serde(default)]
    pub listener: Option<String>,
    /// Where the client connects to.
    #[serde(default)]
    pub to: Option<SocketAddr>,
    /// What it sends first.
    #[serde(default)]
    pub sent: Option<Sent>,
    /// While the listener is so loaded; without it, as it is.
    #[serde(default)]
    pub level: Option<Level>,
}

/// The begin of a connection.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub enum Sent {
    /// The head of a request of HTTP.
    Http(String),
    /// TLS: the server that it asks for, and the protocols that it offers.
    #[allow(missing_docs)]
    Tls { server_name: Option<String>, alpn: Vec<String> },
}

impl Sent {
    fn fields(&self) -> Fields {
        match self {
            Self::Http(head) => Fields::of_http(head.as_bytes()),
            Self::Tls { server_name, alpn } => {
                let alpn: Vec<&str> = alpn.iter().map(String::as_str).collect();
                Fields::of_tls(server_name.as_deref(), &alpn)
            }
        }
    }
}

/// The answer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Explanation {
    /// The client.
    pub from: IpAddr,
    /// The listener's name.
    pub listener: String,
    /// Its address.
    pub address: SocketAddr,
    /// Position of the client rule that matches.
    pub client_rule: usize,
    /// The container of that rule.
    pub client_container: String,
    /// Its rate of connection requests.
    pub syn: Option<SynRate>,
    /// The listener has rules for requests.
    pub rules_requests: bool,
    /// `None`: nothing was said about a request, or none is ruled.
    pub request: Option<ExplainedRequest>,
    /// Whose the connection is, unless it is refused.
    pub container: String,
    /// How it stands with the client; `None`: the policy is not in force.
    pub now: Option<ClientView>,
}

/// The verdict of the rules on a request.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExplainedRequest {
    /// As the kernel's counters have it.
    #[serde(deserialize_with = "wire::word")]
    pub reason: wire::Word,
    /// Position of the rule that decides; `None`: the client's class.
    pub rule: Option<usize>,
    /// Position of a rule on trial that would have decided.
    pub trial: Option<usize>,
    /// How it is refused.
    pub refusal: Option<Refusal>,
    /// The rate of the rule; a request above it is refused.
    pub rate: Option<RequestRate>,
    /// Conditions that were met.
    pub because: Vec<Met>,
}

impl Fief {
    /// Of the policy in force. Errors: [`ErrorKind::Usage`], [`ErrorKind::NotFound`] as [`Explanation::of`]; its text is gone.
    pub fn explain(&self, question: &Question) -> Result<Explanation> {
        self.require_installed()?;
        let gone = || {
            Error::new(ErrorKind::NotFound, "the text of the policy in force is gone")
                .remedy("name a file by --policy, or apply the policy again")
        };
        let text = self.policy_text()?.ok_or_else(gone)?;
        let policy = fief_policy::parse(&text, "the policy in force")
            // its lines are root's to see, and members of the agent's group ask too
            .map_err(|errors| {
                let what = format!("the policy in force has {} errors for this version", errors.len());
                Error::new(ErrorKind::Other, what).remedy("root sees them by `fief check`")
            })?;
        let sent = question.sent.as_ref().map(Sent::fields);
        let listener = listener(&policy, question)?;
        let evaluate = |level| listener.evaluate(question.from, sent.as_ref(), question.level.unwrap_or(level));
        let now = self.client(listener, question.from, |level| Some(evaluate(level)?.request?.rule?.1))?;
        explain(listener, question, sent.as_ref(), Some(now))
    }
}

impl Explanation {
    /// Of a policy that is not in force. Errors: [`ErrorKind::Usage`] a listener has to be named; [`ErrorKind::NotFound`] there is none
    /// such.
    pub fn of(policy: &Policy, question: &Question) -> Result<Self> {
        let sent = question.sent.as_ref().map(Sent::fields);
        explain(listener(policy, question)?, question, sent.as_ref(), None)
    }
}

fn explain(
    listener: &Listener,
    question: &Question,
    sent: Option<&Fields>,
    now: Option<ClientView>,
) -> Result<Explanation> {
    let level = question.level.or(now.as_ref().map(|now| now.level)).unwrap_or(Level::Always);
    let no_rule = || {
        let what = format!("listener {} has no rule for {}", listener.name, question.from);
        Error::new(ErrorKind::NotFound, what)
    };
    let verdict = listener.evaluate(question.from, sent, level).ok_or_else(no_rule)?;
    let last = listener.isolate.as_ref().and_then(|isolate| isolate.into.as_deref());
    let last = last.filter(|_| now.as_ref().is_some_and(|now| now.last));
    let request = verdict.request.map(|request| ExplainedRequest {
        reason: request.reason.as_str(),
        rule: request.rule.map(|(position, _)| position),
        trial: request.trial.map(|(position, _)| position),
        refusal: request.refusal,
        rate: request.rate,
        because: request.because,
    });
    Ok(Explanation {
        from: question.from,
        listener: listener.name.clone(),
        address: listener.address,
        client_rule: verdict.client_rule,
        client_container: verdict.client.container.clone(),
        syn: verdict.client.syn,
        rules_requests: !listener.requests.is_empty(),
        request,
        container: last.unwrap_or(verdict.container).to_owned(),
        now,
    })
}

/// The one that is named, that the client connects to, or that is the only one.
fn listener<'p>(policy: &'p Policy, question: &Question) -> Result<&'p Listener> {
    let names: Vec<&str> = policy.listeners.iter().map(|listener| listener.name.as_str()).collect();
    let missing = |what: String| Error::new(ErrorKind::NotFound, what);
    if let Some(name) = &question.listener {
        return policy.listener(name).ok_or_else(|| missing(no_listener(name, &names, "the policy")));
    }
    if let Some(to) = question.to {
        let none = || missing(format!("no listener of the policy is at {to}: what comes there is let through"));
        return policy.listener_at(to).ok_or_else(none);
    }
    match policy.listeners.as_slice() {
        [only] => Ok(only),
        [] => Err(missing("the policy has no listener: everything is let through".to_owned())),
        _ => {
            let what = format!("the policy has several listeners; name one of {}, or say --to", names.join(", "));
            Err(Error::new(ErrorKind::Usage, what))
        }
    }
}

/// Of listeners of this policy, after a name that is none of them.
pub fn no_listener(wanted: &str, names: &[&str], policy: &str) -> String {
    let advice = match fief_policy::nearest(wanted, names.iter().copied()) {
        _ if names.is_empty() => format!("{policy} has none"),
        Some(near) => format!("did you mean {near}? {policy} has {}", names.join(", ")),
        None => format!("{policy} has {}", names.join(", ")),
    };
    format!("no listener is called {}; {advice}", wanted.escape_debug())
}

#[cfg(test)]
mod tests {
    use super::*;

    const POLICY: &str = r#"
version = 1
[container.shop]
[container.cgi]
[listener.web]
address = "0.0.0.0:80"
[[listener.web.client]]
from = ["10.0.0.0/8"]
container = "shop"
syn = { rate = 5, burst = 7, per = "source" }
[[listener.web.client]]
from = ["any"]
container = "shop"
[[listener.web.request]]
path = "/cgi/*"
header = { "user-agent" = "Bad*" }
container = "cgi"
rate = { cpu = "40%" }
"#;

    fn question(from: &str) -> Question {
        Question { from: from.parse().expect("an address"), listener: None, to: None, sent: None, level: None }
    }

    fn policy() -> Policy {
        fief_policy::parse(POLICY, "policy").unwrap_or_else(|errors| panic!("{errors}"))
    }

    #[test]
    fn an_explanation_comes_over_as_it_is() {
        let head = "GET /cgi/x HTTP/1.1\r\nUser-Agent: Bad\r\n\r\n".to_owned();
        let asked = Question { sent: Some(Sent::Http(head)), level: Some(Level::Busy), ..question("10.1.2.3") };
        let over = |text: String| serde_json::from_str::<Question>(&text).expect("the same");
        assert_eq!(over(serde_json::to_string(&asked).expect("texts")), asked);
        let explained = Explanation::of(&policy(), &asked).expect("one listener");
        let request = explained.request.as_ref().expect("it is ruled");
        assert_eq!((request.rule, request.because.len(), explained.container.as_str()), (Some(0), 2, "cgi"));
        assert_eq!(explained.syn.map(|syn| syn.burst), Some(7));
        let text = serde_json::to_string(&explained).expect("texts and numbers");
        assert_eq!(serde_json::from_str::<Explanation>(&text).expect("the same"), explained);
    }

    #[test]
    fn the_least_question_is_an_address_and_one_with_more_than_is_known_is_none() {
        let read = |text: &str| serde_json::from_str::<Question>(text);
        assert_eq!(read(r#"{"from":"10.1.2.3"}"#).expect("a question"), question("10.1.2.3"));
        for wrong in ["{}", r#"{"from":"10.1.2"}"#, r#"{"from":"10.1.2.3","file":"/etc/shadow"}"#, "[", "0"] {
            assert!(read(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_listener_that_is_not_there_comes_with_the_nearest() {
        let wrong = Question { listener: Some("wbe".into()), ..question("10.1.2.3") };
        let error = Explanation::of(&policy(), &wrong).expect_err("no such listener");
        assert_eq!(error.to_string(), "no listener is called wbe; did you mean web? the policy has web");
        assert_eq!(error.kind(), ErrorKind::NotFound);
    }
}
