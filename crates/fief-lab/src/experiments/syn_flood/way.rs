// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What stands in front of the server while it is flooded.

use super::PORT;
use crate::command::{self, PolicyFile};
use crate::error::{Error, Kind, Result};
use fief_testkit::{Topology, run};

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Way {
    /// The kernel with SYN cookies, as every distribution ships it: once its queue is full.
    Stock,
    /// The kernel that answers every SYN with a cookie (`tcp_syncookies = 2`).
    Cookies,
    /// The packet filter at the interface, which drops what one prefix sends above a rate.
    Limit,
    /// The packet filter answers SYNs with cookies and opens the connection behind them.
    Synproxy,
    /// A server that isolates by itself (crate fief's example), on a kernel without cookies, as the paper's was.
    Server,
    Fief,
}

impl Way {
    pub const ALL: [Way; 6] = [Way::Stock, Way::Cookies, Way::Limit, Way::Synproxy, Way::Server, Way::Fief];

    /// Part of its figures' names.
    pub fn name(self) -> &'static str {
        match self {
            Way::Stock => "stock",
            Way::Cookies => "syncookies2",
            Way::Limit => "nft",
            Way::Synproxy => "synproxy",
            Way::Server => "by_server",
            Way::Fief => "useful",
        }
    }

    pub fn title(self) -> &'static str {
        match self {
            Way::Stock => "stock",
            Way::Cookies => "tcp_syncookies = 2",
            Way::Limit => "nft limit",
            Way::Synproxy => "nft synproxy",
            Way::Server => "server isolates",
            Way::Fief => "Fief",
        }
    }

    /// Whether the machine can do it.
    pub fn check(self) -> Result<()> {
        match self {
            Way::Stock | Way::Cookies => Ok(()),
            Way::Server => command::can_run(),
            Way::Fief => command::can_run().and_then(|()| PolicyFile::new(&policy(LIMITS))?.check()),
            Way::Limit | Way::Synproxy => run(std::process::Command::new("nft").arg("--version"))
                .map(drop)
                .map_err(|error| Error::new(Kind::Missing, format!("nftables does not work: {error}"))),
        }
    }

    /// Of the server's namespace.
    pub fn sysctls(self) -> &'static [(&'static str, &'static str)] {
        match self {
            Way::Cookies => &[("net.ipv4.tcp_syncookies", "2")],
            // With cookies the kernel drops nothing that a server could be told of.
            Way::Server => &[("net.ipv4.tcp_syncookies", "0"), ("net.ipv4.tcp_synack_retries", "0")],
            Way::Synproxy => &[
                // A packet without a connection must not open one: it would pass the proxy by.
                ("net.netfilter.nf_conntrack_tcp_loose", "0"),
                // The clients end with RST; their entries would fill the table.
                ("net.netfilter.nf_conntrack_tcp_timeout_close", "1"),
            ],
            _ => &[],
        }
    }

    /// Of the server's packet filter.
    pub fn rules(self) -> Option<String> {
        match self {
            Way::Limit => Some(limit()),
            Way::Synproxy => Some(synproxy()),
            Way::Stock | Way::Cookies | Way::Server | Way::Fief => None,
        }
    }

    pub fn policy(self) -> Option<String> {
        (self == Way::Fief).then(|| policy(LIMITS))
    }
}

/// Told the prefix of the flood, which is what such a rule needs, and the cheapest one there is.
fn limit() -> String {
    format!(
        "table netdev flood {{
             chain arriving {{
                 type filter hook ingress device {} priority 0
                 ip saddr 10.88.0.0/16 tcp dport {PORT} tcp flags & (syn | ack) == syn limit rate over 1000/second drop
             }}
         }}",
        Topology::SERVER
    )
}

/// As its manual has it: SYNs are not tracked, what is not tracked goes to the proxy, what is left over is dropped.
fn synproxy() -> String {
    format!(
        "table ip flood {{
             chain arriving {{
                 type filter hook prerouting priority raw
                 tcp dport {PORT} tcp flags syn notrack
             }}
             chain local {{
                 type filter hook input priority filter
                 tcp dport {PORT} ct state invalid,untracked synproxy mss 1460 wscale 7 timestamp sack-perm
                 ct state invalid drop
             }}
         }}"
    )
}

/// No rule names a source: what is above the budget of the unproven is not answered, and a prefix that sends too much is
/// isolated as a whole but for the addresses in it that proved themselves.
pub const LIMITS: &str = "isolate = { above = 100, for = \"10s\" }\n\
                          unproven = { rate = 5000, burst = 500 }\n\
                          proven = { rate = 5000, burst = 1000 }\n";

/// The same without a budget: whatever is not isolated is answered.
pub const NO_BUDGET: &str = "isolate = { above = 100, for = \"10s\" }\nproven = { rate = 5000, burst = 1000 }\n";

/// An isolated prefix's connections are served last instead of not at all, from what is left of the budget.
pub const INTO: &str = "queue = false\nisolate = { above = 100, for = \"10s\", into = \"web/isolated\" }\n\
                        unproven = { rate = 5000, burst = 500 }\n\
                        proven = { rate = 5000, burst = 1000 }\n";

/// A policy that holds every handshake back until the first bytes, with these limits.
pub fn policy(limits: &str) -> String {
    let isolated = if limits == INTO { "[container.\"web/isolated\"]\ncpu.priority = 0\n\n" } else { "" };
    format!(
        "version = 1\nmode = \"enforce\"\n\n[container.web]\n\n[container.\"web/browse\"]\n\n{isolated}\
         [front]\ninterfaces = [\"{}\"]\n\n\
         [listener.web]\naddress = \"0.0.0.0:{PORT}\"\nadmit = true\n{limits}\n\
         [[listener.web.client]]\nfrom = [\"any\"]\ncontainer = \"web/browse\"\n",
        Topology::SERVER
    )
}
