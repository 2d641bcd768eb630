// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What stands in front of the server while it is flooded.

use super::PORT;
use super::measure::forget_request_sockets;
use crate::command::{self, PolicyFile, nft};
use crate::error::{Error, Kind, Result};
use crate::installation::Installation;
use fief_testkit::{Topology, run};

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Way {
    /// The kernel with SYN cookies, as every distribution ships it.
    Stock,
    /// The packet filter at the interface, which drops what one prefix sends above a rate.
    Limit,
    /// The packet filter answers SYNs with cookies and opens the connection behind them.
    Synproxy,
    Fief,
}

impl Way {
    pub const ALL: [Way; 4] = [Way::Stock, Way::Limit, Way::Synproxy, Way::Fief];

    /// Part of its figures' names.
    pub fn name(self) -> &'static str {
        match self {
            Way::Stock => "stock",
            Way::Limit => "nft",
            Way::Synproxy => "synproxy",
            Way::Fief => "useful",
        }
    }

    pub fn title(self) -> &'static str {
        match self {
            Way::Stock => "stock",
            Way::Limit => "nft limit",
            Way::Synproxy => "nft synproxy",
            Way::Fief => "Fief",
        }
    }

    /// Whether the machine can do it.
    pub fn check(self) -> Result<()> {
        match self {
            Way::Stock => Ok(()),
            Way::Fief => command::can_run().and_then(|()| PolicyFile::new(&policy(LIMITS))?.check()),
            Way::Limit | Way::Synproxy => run(std::process::Command::new("nft").arg("--version"))
                .map(drop)
                .map_err(|error| Error::new(Kind::Missing, format!("nftables does not work: {error}"))),
        }
    }

    /// Puts it in front of the server of the testbed, until the guard ends.
    pub fn start(self, topology: &Topology) -> Result<Front<'_>> {
        forget_request_sockets(&topology.server);
        let rules = match self {
            Way::Stock => None,
            Way::Limit => Some(limit()),
            Way::Synproxy => {
                // A packet without a connection must not open one: it would pass the proxy by.
                topology.server.sysctl("net.netfilter.nf_conntrack_tcp_loose", "0")?;
                // The clients end with RST; their entries would fill the table.
                topology.server.sysctl("net.netfilter.nf_conntrack_tcp_timeout_close", "1")?;
                Some(synproxy())
            }
            Way::Fief => return Front::fief(topology, &policy(LIMITS)),
        };
        if let Some(rules) = &rules {
            nft(&topology.server, rules)?;
        }
        Ok(Front { topology, has_rules: rules.is_some(), _installation: None })
    }
}

/// It ends with the guard.
#[derive(Debug)]
pub struct Front<'a> {
    topology: &'a Topology,
    has_rules: bool,
    _installation: Option<(Installation, PolicyFile)>,
}

impl Front<'_> {
    /// Fief with a policy of its own.
    pub fn fief<'a>(topology: &'a Topology, policy: &str) -> Result<Front<'a>> {
        forget_request_sockets(&topology.server);
        let file = PolicyFile::new(policy)?;
        let installation = Installation::apply_in(&file, &topology.server)?;
        Ok(Front { topology, has_rules: false, _installation: Some((installation, file)) })
    }
}

impl Drop for Front<'_> {
    fn drop(&mut self) {
        if self.has_rules {
            // The namespace, and with it its rules, may be gone already.
            let _ = nft(&self.topology.server, "flush ruleset");
        }
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

/// A policy that holds every handshake back until the first bytes, with these limits.
pub fn policy(limits: &str) -> String {
    format!(
        "version = 1\nmode = \"enforce\"\n\n[container.web]\n\n[container.\"web/browse\"]\n\n\
         [front]\ninterfaces = [\"{}\"]\n\n\
         [listener.web]\naddress = \"0.0.0.0:{PORT}\"\nadmit = true\n{limits}\n\
         [[listener.web.client]]\nfrom = [\"any\"]\ncontainer = \"web/browse\"\n",
        Topology::SERVER
    )
}
