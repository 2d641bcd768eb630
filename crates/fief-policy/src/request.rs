// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The checked model of request rules: what a request is matched by, and what happens to it.

use serde::{Deserialize, Serialize};

use crate::model::{ClassQueue, Level, Mode, Per};

/// A rule for requests.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Request {
    /// All of them have to be met; none: every request.
    pub conditions: Vec<Condition>,
    /// None: the class of the client stays.
    pub container: Option<String>,
    pub rate: Option<RequestRate>,
    /// With a rate: of what is above it; without: of all that matches. None: it lets pass.
    pub refusal: Option<Refusal>,
    /// In the answer 503 or 429; 0: nothing is said.
    pub retry_after_s: u16,
    /// The listener's if the rule names none; 0: none.
    pub penalty_ns: u64,
    /// Below this level the rule is as if it were not there.
    pub when: Level,
    /// It waits in no queue, and takes no place there.
    pub unqueued: bool,
    /// Of the class that it names.
    pub queue: ClassQueue,
    /// Monitor: what it would do is counted, and the next rule that matches decides.
    pub mode: Mode,
}

impl Request {
    /// Does it refuse whatever matches?
    pub fn refuses_all(&self) -> bool {
        self.rate.is_none() && self.refusal.is_some()
    }
}

/// A field of a request, and the patterns of which one has to match it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Condition {
    pub field: Field,
    pub any_of: Vec<Pattern>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Field {
    /// HTTP.
    Method,
    /// HTTP: decoded, dot segments and double slashes resolved, without the query.
    Path,
    /// HTTP: lower case, without the port.
    Host,
    /// TLS: lower case.
    ServerName,
    /// TLS: any of the protocols that the client offers.
    Alpn,
    /// HTTP: the first header of this name, in lower case.
    Header(String),
    /// HTTP: the first cookie of this name.
    Cookie(String),
}

impl Field {
    /// Is it a part of TLS's ClientHello, and not of an HTTP request?
    pub fn is_tls(&self) -> bool {
        matches!(self, Self::ServerName | Self::Alpn)
    }
}

/// What a field is compared with, byte by byte.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Pattern {
    Exact(String),
    /// `/cgi-bin/*`
    Prefix(String),
    /// `*.php`
    Suffix(String),
    /// `/img/*.png`: the two do not overlap.
    Around(String, String),
    /// `*`: the field is there.
    Present,
}

impl Pattern {
    pub fn matches(&self, value: &[u8]) -> bool {
        match self {
            Self::Exact(text) => value == text.as_bytes(),
            Self::Prefix(start) => value.starts_with(start.as_bytes()),
            Self::Suffix(end) => value.ends_with(end.as_bytes()),
            Self::Around(start, end) => {
                value.len() >= start.len() + end.len()
                    && value.starts_with(start.as_bytes())
                    && value.ends_with(end.as_bytes())
            }
            Self::Present => true,
        }
    }
}

/// Most of a rule's requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum RequestRate {
    Requests {
        per_second: u32,
        burst: u32,
        per: Per,
    },
    /// Charged to the rule's container, in parts per million of the machine.
    Cpu {
        ppm: u32,
        burst_ns: u64,
    },
}

/// How a request is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Refusal {
    /// No answer.
    Drop,
    Reset,
    /// 503; what is not HTTP is reset.
    #[serde(rename = "503")]
    Unavailable,
    /// 429, likewise.
    #[serde(rename = "429")]
    TooMany,
}

impl Refusal {
    /// An answer, which no client of TLS understands.
    pub fn is_http(self) -> bool {
        matches!(self, Self::Unavailable | Self::TooMany)
    }
}
