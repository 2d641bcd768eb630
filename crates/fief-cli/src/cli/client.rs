// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The words about clients: why the front door decides as it does, and what an operator decides by name.

use std::net::{IpAddr, SocketAddr};
use std::num::NonZeroU32;
use std::path::PathBuf;
use std::time::Duration;

use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};
use clap::{ArgGroup, Args, ValueHint};
use fief::Reason;
use ipnet::IpNet;

use super::seconds;

/// One of the words for a reason.
fn reason() -> impl TypedValueParser<Value = Reason> {
    let words = Reason::ALL.iter().map(|reason| PossibleValue::new(reason.as_str()).help(reason.means()));
    let of = |word: String| Reason::ALL.iter().copied().find(|reason| reason.as_str() == word);
    PossibleValuesParser::new(words).map(move |word| of(word).expect("it is one of them"))
}

/// Tell what the front door decided, and why
///
/// Without options: how often each verdict fell, by listener, container, rule and reason, also what monitor mode would have
/// refused; how loaded the listeners are; who is shut out. With --follow: drops and refusals as they happen, and
/// requests that begin to wait in a queue or are released, at most one line in 10 ms for each rule and reason, with the number that it
/// stands for. With --from: what is known of one client now (isolated,
/// penalised, proven, how much is left of its rates, what of it waits), whether its next connection request is refused, and what
/// the policy says about it and its request; with --policy, the latter alone. With --charge: by which threads, ports and kernel threads
/// a container, with all below it, was charged for a second from now, the most first. With --costliest: which clients CPU time was
/// spent on for a second from now, and since that is counted, the most first.
#[derive(Debug, Args)]
#[command(group = ArgGroup::new("looks").args(["charge", "costliest"]))]
#[command(group = ArgGroup::new("again").args(["follow", "interval"]).multiple(true))]
pub struct Explain {
    /// Only this listener
    pub listener: Option<String>,
    /// Drops and refusals as they happen, and what waits in queues and is released, until Ctrl-C
    #[arg(long, short, conflicts_with = "from")]
    pub follow: bool,
    /// End after so many lines, or looks
    #[arg(long, short = 'n', value_name = "N", requires = "again")]
    pub count: Option<NonZeroU32>,
    /// Only these reasons, as refused-queue-wait; can be given several times
    #[arg(long, value_name = "REASON", requires = "follow", value_parser = reason())]
    pub reason: Vec<Reason>,
    /// Address of a client: how it stands with it now, which rules match it, and what becomes of its request
    #[arg(long, value_name = "ADDRESS")]
    pub from: Option<IpAddr>,
    /// A container, by path: by whom it is charged, and why
    #[arg(long, value_name = "CONTAINER", conflicts_with_all = ["listener", "follow", "from"])]
    pub charge: Option<String>,
    /// The clients that cost most CPU time, and their networks; they are counted from now on, until ten minutes after the last look
    #[arg(long, conflicts_with_all = ["listener", "follow", "from", "charge"])]
    pub costliest: bool,
    /// Show so many of them
    #[arg(long, value_name = "N", requires = "costliest", default_value = "10")]
    pub most: NonZeroU32,
    /// Look again and again, for so many seconds each
    #[arg(long, short, value_name = "SECS", requires = "looks", value_parser = seconds)]
    pub interval: Option<Duration>,
    /// Address and port that it connects to; without it, the listener that is named, or the only one
    #[arg(long, value_name = "ADDRESS:PORT", requires = "from")]
    pub to: Option<SocketAddr>,
    /// The request's first line, as in 'GET /cgi-bin/x'
    #[arg(long, value_name = "LINE", requires = "from")]
    pub request: Option<String>,
    /// A header of the request, as in 'Host: shop.example'; can be given several times
    #[arg(long, value_name = "HEADER", requires = "request")]
    pub header: Vec<String>,
    /// TLS: the name of the server that the client asks for
    #[arg(long, value_name = "NAME", requires = "from", conflicts_with = "request")]
    pub server_name: Option<String>,
    /// TLS: a protocol that the client offers; can be given several times
    #[arg(long, value_name = "PROTOCOL", requires = "from", conflicts_with = "request")]
    pub alpn: Vec<String>,
    /// As while the listener is so loaded; without it, as it is now or, with --policy, as while it is not loaded
    #[arg(long, requires = "from", value_name = "LEVEL")]
    #[arg(value_parser = ["always", "busy", "overloaded"])]
    pub level: Option<String>,
    /// A policy (TOML) instead of the one in force, which is all that is asked then; needs no privilege
    #[arg(long, value_name = "FILE", requires = "from", value_hint = ValueHint::FilePath)]
    pub policy: Option<PathBuf>,
    /// One JSON object a line
    #[arg(long)]
    pub json: bool,
}

/// Shut a client or a network out for a while
///
/// From now on all packets of it to guarded listeners are dropped and counted (`banned`), those on open connections too. It ends
/// by itself; a ban that is there already ends as is said now. Bans stay over `fief apply` and go with `fief down`.
#[derive(Debug, Args)]
pub struct Ban {
    /// An address or a prefix, as 192.0.2.7 or 2001:db8::/48
    #[arg(value_name = "ADDRESS|PREFIX", required_unless_present = "list", value_parser = fief_policy::parse_prefix)]
    pub prefix: Option<IpNet>,
    /// For how long, as 90s, 10m, 12h or 7d
    #[arg(long = "for", value_name = "DURATION", default_value = "1h", value_parser = while_banned)]
    pub time: Duration,
    /// List the bans that have not ended
    #[arg(long, conflicts_with_all = ["prefix", "time"])]
    pub list: bool,
    /// One JSON object, with --list one a line
    #[arg(long)]
    pub json: bool,
}

/// Let a client or a network in again
///
/// Ends at once what keeps it out: bans of it and in it, penalties, and isolations around it and in it. Who sends too much is
/// isolated again; `isolate.except` in the policy keeps a network from that for good.
#[derive(Debug, Args)]
pub struct Pardon {
    /// An address or a prefix, as 192.0.2.7 or 2001:db8::/48
    #[arg(value_name = "ADDRESS|PREFIX", value_parser = fief_policy::parse_prefix)]
    pub prefix: IpNet,
    /// One JSON object
    #[arg(long)]
    pub json: bool,
}

/// Whole seconds, minutes, hours or days: from a second to a year.
fn while_banned(text: &str) -> Result<Duration, String> {
    let expected = || "expected a time as in 90s, 10m, 12h or 7d".to_owned();
    let unit_at = text.find(|character: char| !character.is_ascii_digit()).ok_or_else(expected)?;
    let (number, unit) = text.split_at(unit_at);
    let scale = match unit {
        "s" => 1,
        "m" => 60,
        "h" => 3600,
        "d" => 86_400,
        _ => return Err(expected()),
    };
    let seconds = number.parse::<u64>().ok().and_then(|number| number.checked_mul(scale)).ok_or_else(expected)?;
    match seconds {
        1..=31_536_000 => Ok(Duration::from_secs(seconds)),
        _ => Err("expected 1s to 365d".to_owned()),
    }
}
