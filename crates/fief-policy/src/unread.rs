// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Reads `unread`, `bodies` and `proxy` of a listener: what becomes of bytes that cannot be read as a request, whether the server
//! reads every body, and which peers say in a PROXY head whom they speak for.
//!
//! A rule that refuses or rates can be gone round by whoever sends what only the server can read. So where there is such a
//! rule, what cannot be read is refused unless the policy says otherwise; where there is none, nothing can be gone round.

use ipnet::IpNet;

use crate::diagnostic::{Findings, Kind};
use crate::fields::Unread;
use crate::model::{From, Mode};
use crate::reader::View;
use crate::request::Request;
use crate::rules;

/// Prefixes of `proxy.from`; the kernel side has room for so many.
const MOST_PROXIES: usize = 16;

impl Unread {
    /// All of them, in the order of the kernel side's numbers.
    pub const ALL: [Self; 7] =
        [Self::Malformed, Self::TooLong, Self::Upgrade, Self::Http2, Self::Proxy, Self::NoRoom, Self::Other];

    /// The key in the policy.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Malformed => "malformed",
            Self::TooLong => "too-long",
            Self::Upgrade => "upgrade",
            Self::Http2 => "http2",
            Self::Proxy => "proxy",
            Self::NoRoom => "no-room",
            Self::Other => "other",
        }
    }
}

/// The kinds that are refused, in their order.
pub(crate) fn read(view: &View<'_, '_>, mode: Mode, requests: &[Request], findings: &mut Findings) -> Vec<Unread> {
    let has_requests = view.get("request").is_some() || view.is_misspelt("request");
    if let (false, Some(value)) = (has_requests, view.get("unread")) {
        let message = format!("{} has `unread`, but no request rules: nothing is read", view.title);
        let remedy = "remove `unread`, or add [[listener.NAME.request]]";
        findings.add(Kind::Contradiction, value.span(), message, "`unread` beside request rules", remedy);
    }
    let default = refuses(mode, requests);
    let of = |word: Option<&str>, default: bool| word.map_or(default, |word| word == "refuse");
    if !view.is_table("unread") {
        let refused = of(view.choice("unread", findings), default);
        return if refused { Unread::ALL.to_vec() } else { Vec::new() };
    }
    let Some(kinds) = view.table("unread", findings) else { return Vec::new() };
    Unread::ALL.into_iter().filter(|kind| of(kinds.choice(kind.as_str(), findings), default)).collect()
}

/// Whether the server reads the bodies of all methods.
pub(crate) fn bodies(view: &View<'_, '_>, findings: &mut Findings) -> bool {
    let has_requests = view.get("request").is_some() || view.is_misspelt("request");
    if let (false, Some(value)) = (has_requests, view.get("bodies")) {
        let message = format!("{} has `bodies`, but no request rules: no body is read", view.title);
        let remedy = "remove `bodies`, or add [[listener.NAME.request]]";
        findings.add(Kind::Contradiction, value.span(), message, "`bodies` beside request rules", remedy);
    }
    view.choice("bodies", findings) == Some("read")
}

/// Does a rule in force refuse something, always or above a rate? Of a listener on trial: would it?
fn refuses(mode: Mode, requests: &[Request]) -> bool {
    let in_force = |request: &&Request| mode == Mode::Monitor || request.mode == Mode::Enforce;
    requests.iter().filter(in_force).any(|request| request.refusal.is_some() || request.rate.is_some())
}

/// Peers whose connections begin with a PROXY head.
pub(crate) fn proxies(view: &View<'_, '_>, findings: &mut Findings) -> Vec<IpNet> {
    let Some(table) = view.table("proxy", findings) else { return Vec::new() };
    let Some(value) = table.get("from") else {
        table.missing("from", findings);
        return Vec::new();
    };
    match rules::nets(&table, "from", findings) {
        Some(From::In(nets)) if nets.len() <= MOST_PROXIES => nets,
        Some(From::In(nets)) => {
            let message = format!("`proxy.from` in {} has {} prefixes", view.title, nets.len());
            let expected = format!("at most {MOST_PROXIES} prefixes");
            findings.add(Kind::Limit, value.span(), message, expected, "put neighbouring prefixes into one");
            Vec::new()
        }
        Some(From::Any | From::NotIn(_)) => {
            let message = format!("`proxy.from` in {} names everybody", view.title);
            let expected = "addresses and prefixes of the balancers";
            let remedy = "write the addresses of your balancers: whoever may send a PROXY head says who they are";
            findings.add(Kind::Contradiction, value.span(), message, expected, remedy);
            Vec::new()
        }
        None => Vec::new(),
    }
}
