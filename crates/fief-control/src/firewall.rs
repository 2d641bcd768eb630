// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Whether a firewall of this network namespace has to see connection requests.
//!
//! The front door stands before netfilter. If it answers a connection request itself, no rule of nftables or iptables has seen
//! the request: a rule that forbids it is too late for the answer, and a rule that tracks connections never learns of it. So
//! any rule at all is reason enough to let the kernel answer, behind the firewall.

use nix::sys::socket::SockProtocol;

use crate::netlink::{attribute, attributes, dump, text};

/// What was found, for people: `the nftables table inet filter`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Firewall {
    None,
    /// Rules on packets.
    Rules(String),
    /// Rules that know connections.
    Stateful(String),
}

const NFT_RULES: u16 = (10 << 8) | 7; // NFNL_SUBSYS_NFTABLES, NFT_MSG_GETRULE
const NFT_CHAINS: u16 = (10 << 8) | 4; // NFT_MSG_GETCHAIN
const GENERIC: usize = 4; // struct nfgenmsg: family, version, resource
const RULE_TABLE: u16 = 1;
const RULE_EXPRESSIONS: u16 = 4;
const EXPRESSION_NAME: u16 = 1;
const EXPRESSION_DATA: u16 = 2;
const MATCH_NAME: u16 = 1; // of an extension of iptables
const CHAIN_TABLE: u16 = 1;
const CHAIN_POLICY: u16 = 5;

/// Expressions of nftables that make the kernel track connections.
const TRACKING: [&str; 7] = ["ct", "connlimit", "synproxy", "nat", "masq", "redir", "flow_offload"];
/// Extensions of iptables that do.
const TRACKING_MATCHES: [&str; 5] = ["conntrack", "state", "connlimit", "connmark", "connbytes"];
/// Legacy tables of iptables that are in use, IPv4 and IPv6.
const LEGACY: [&str; 2] = ["/proc/thread-self/net/ip_tables_names", "/proc/thread-self/net/ip6_tables_names"];
/// Connections that are tracked in this namespace.
const TRACKED: &str = "/proc/sys/net/netfilter/nf_conntrack_count";

/// Looks at nftables (iptables-nft's rules too), legacy iptables and connection tracking.
pub(crate) fn find() -> Firewall {
    match nftables() {
        Firewall::None => legacy(),
        found => found,
    }
}

/// A kernel without nftables refuses to answer: then there are no rules.
fn nftables() -> Firewall {
    let rules = dump(SockProtocol::NetlinkNetFilter, NFT_RULES, &[0; GENERIC]).unwrap_or_default();
    let chains = dump(SockProtocol::NetlinkNetFilter, NFT_CHAINS, &[0; GENERIC]).unwrap_or_default();
    let named = |table: &str| format!("the nftables table {table}");
    let table = |payload: &[u8], kind| {
        let name = attribute(payload.get(GENERIC..)?, kind).map(text)?;
        Some(format!("{} {name}", family(payload[0])))
    };
    let tracks = |rule: &&Vec<u8>| tracks(rule.get(GENERIC..).unwrap_or_default());
    if let Some(table) = rules.iter().find(tracks).and_then(|rule| table(rule, RULE_TABLE)) {
        return Firewall::Stateful(named(&table));
    }
    if let Some(table) = rules.first().and_then(|rule| table(rule, RULE_TABLE)) {
        return Firewall::Rules(named(&table));
    }
    let refuses = |chain: &&Vec<u8>| {
        attribute(chain.get(GENERIC..).unwrap_or_default(), CHAIN_POLICY).is_some_and(|policy| policy == [0; 4])
    };
    match chains.iter().find(refuses).and_then(|chain| table(chain, CHAIN_TABLE)) {
        Some(table) => Firewall::Rules(named(&table)),
        None => Firewall::None,
    }
}

/// Whether a rule has an expression that needs the state of connections.
fn tracks(rule: &[u8]) -> bool {
    let expressions = attribute(rule, RULE_EXPRESSIONS).unwrap_or_default();
    attributes(expressions).any(|(_, expression)| {
        let name = attribute(expression, EXPRESSION_NAME).map_or("", text);
        let extension = || {
            let data = attribute(expression, EXPRESSION_DATA)?;
            attribute(data, MATCH_NAME).map(text)
        };
        TRACKING.contains(&name)
            || (name == "match" && extension().is_some_and(|extension| TRACKING_MATCHES.contains(&extension)))
    })
}

fn family(number: u8) -> &'static str {
    match number {
        1 => "inet",
        2 => "ip",
        3 => "arp",
        5 => "netdev",
        7 => "bridge",
        10 => "ip6",
        _ => "?",
    }
}

/// Legacy tables come into use with their first rule or look; what they hold is not told without the tool.
fn legacy() -> Firewall {
    let tables: String = LEGACY.iter().filter_map(|path| std::fs::read_to_string(path).ok()).collect();
    if let Some(table) = tables.lines().next() {
        return Firewall::Rules(format!("the iptables table {table}"));
    }
    let tracked = std::fs::read_to_string(TRACKED).ok().and_then(|text| text.trim().parse::<u64>().ok());
    match tracked {
        Some(count) if count > 0 => Firewall::Stateful(format!("connection tracking ({count} connections)")),
        _ => Firewall::None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn nested(kind: u16, parts: &[Vec<u8>]) -> Vec<u8> {
        let value: Vec<u8> = parts.concat();
        let mut bytes = ((4 + value.len()) as u16).to_ne_bytes().to_vec();
        bytes.extend(kind.to_ne_bytes());
        bytes.extend(value);
        bytes.resize(bytes.len().next_multiple_of(4), 0);
        bytes
    }

    fn rule(expression: &str, data: &[Vec<u8>]) -> Vec<u8> {
        let name = nested(EXPRESSION_NAME, &[format!("{expression}\0").into_bytes()]);
        let data = nested(EXPRESSION_DATA, data);
        nested(RULE_EXPRESSIONS, &[nested(1, &[name, data])])
    }

    #[test]
    fn a_rule_on_the_state_of_connections_tracks() {
        assert!(tracks(&rule("ct", &[])));
        assert!(tracks(&rule("masq", &[])));
        let name = |extension: &str| nested(MATCH_NAME, &[format!("{extension}\0").into_bytes()]);
        assert!(tracks(&rule("match", &[name("conntrack")])));
        assert!(!tracks(&rule("match", &[name("multiport")])));
        assert!(!tracks(&rule("payload", &[])));
        assert!(!tracks(&[]));
    }
}
