// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The interfaces of the caller's network namespace, and which of them pass their packets to a master (a bridge, a bond), where
//! these arrive once more.

use std::collections::{BTreeMap, HashMap};

use fief_bpf::{Context, Result};
use nix::sys::socket::SockProtocol;

use crate::netlink::{attribute, dump, text, u16_at, u32_at};

const GET: u16 = 18; // RTM_GETLINK
pub(crate) const HEADER: usize = 16; // struct ifinfomsg
pub(crate) const NAME: u16 = 3;
/// IFLA_LINK: of a pair, the other end.
pub(crate) const PEER: u16 = 5;
/// IFLA_LINK_NETNSID: that one is in another network namespace.
const PEER_ELSEWHERE: u16 = 37;
const MASTER: u16 = 10;
pub(crate) const INFO: u16 = 18;
pub(crate) const ALIAS: u16 = 20;
pub(crate) const INFO_KIND: u16 = 1;
const ETHERNET: u16 = 1;
const UP: u32 = 0x1;
const IS_LOOPBACK: u32 = 0x8;
const PAIR: &str = "veth";
/// Its packets go on as those of their port: no program at the master sees them.
const ROUTING_DOMAIN: &str = "vrf";

/// An interface.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Link {
    pub(crate) name: String,
    pub(crate) index: u32,
    /// Empty: it has none.
    pub(crate) alias: String,
    /// Its packets have a link header of Ethernet.
    pub(crate) ethernet: bool,
    /// Index of the interface that it hands its packets to.
    pub(crate) master: Option<u32>,
    /// `bridge`, `veth`; empty for hardware.
    pub(crate) kind: String,
    /// Of a pair, index of the other end, if that is in this network namespace.
    pub(crate) peer: Option<u32>,
    pub(crate) is_up: bool,
    pub(crate) is_loopback: bool,
}

impl Link {
    /// Whether it is an end of a virtual pair, as all that Fief makes are: who administers the namespace can give any other one its name,
    /// and what is no pair may not go away.
    pub(crate) fn is_of_pair(&self) -> bool {
        self.kind == PAIR
    }
}

#[cfg(test)]
thread_local! {
    /// How often this thread read all of them.
    pub(crate) static READINGS: std::cell::Cell<u32> = const { std::cell::Cell::new(0) };
}

/// All of them.
pub(crate) fn list() -> Result<Vec<Link>> {
    #[cfg(test)]
    READINGS.with(|readings| readings.set(readings.get() + 1));
    let links =
        dump(SockProtocol::NetlinkRoute, GET, &[0; HEADER]).context(|| "cannot list the network interfaces".into())?;
    Ok(links.iter().filter_map(|payload| read(payload)).collect())
}

fn read(payload: &[u8]) -> Option<Link> {
    let attributes = payload.get(HEADER..)?;
    let word = |kind| attribute(attributes, kind).map(text).unwrap_or_default().to_owned();
    let kind = attribute(attributes, INFO).and_then(|info| attribute(info, INFO_KIND)).map(text).unwrap_or_default();
    let is_near = kind == PAIR && attribute(attributes, PEER_ELSEWHERE).is_none();
    let flags = u32_at(payload, 8)?;
    Some(Link {
        name: text(attribute(attributes, NAME)?).to_owned(),
        index: u32_at(payload, 4)?,
        alias: word(ALIAS),
        ethernet: u16_at(payload, 2) == Some(ETHERNET),
        master: attribute(attributes, MASTER).and_then(|master| u32_at(master, 0)),
        kind: kind.to_owned(),
        peer: attribute(attributes, PEER).filter(|_| is_near).and_then(|peer| u32_at(peer, 0)),
        is_up: flags & UP != 0,
        is_loopback: flags & IS_LOOPBACK != 0,
    })
}

/// The names of ports with those of their masters; a routing domain has none.
pub(crate) fn masters(links: &[Link]) -> BTreeMap<&str, &str> {
    let by_index: HashMap<u32, &Link> = links.iter().map(|link| (link.index, link)).collect();
    let master = |port: &Link| by_index.get(&port.master?).copied();
    let ports = links.iter().filter_map(|port| Some((port, master(port)?)));
    ports
        .filter(|(_, master)| master.kind != ROUTING_DOMAIN)
        .map(|(port, master)| (port.name.as_str(), master.name.as_str()))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_loopback_is_read() {
        let links = list().expect("the kernel answers");
        let lo = links.iter().find(|link| link.name == "lo").expect("a loopback");
        assert_eq!((lo.index, lo.ethernet, lo.master, lo.peer, lo.is_loopback), (1, false, None, None, true));
    }

    #[test]
    fn the_ports_of_a_routing_domain_keep_their_packets() {
        let link = |name: &str, index, master, kind: &str| Link {
            name: name.into(),
            index,
            master,
            kind: kind.into(),
            ..Link::default()
        };
        let links = [
            link("br0", 1, None, "bridge"),
            link("red", 2, None, "vrf"),
            link("eth0", 3, Some(1), ""),
            link("eth1", 4, Some(2), ""),
            link("eth2", 5, None, ""),
            link("eth3", 6, Some(99), ""),
        ];
        assert_eq!(masters(&links), BTreeMap::from([("eth0", "br0")]));
    }
}
