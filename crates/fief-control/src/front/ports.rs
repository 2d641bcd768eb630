// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Ports: interfaces that hand what arrives on to a master (a bridge, a bond), where it arrives once more.

use std::collections::BTreeMap;

use fief_bpf::{Context, Result};
use nix::sys::socket::SockProtocol;

use crate::netlink::{attribute, dump, text, u32_at};

const GET_LINK: u16 = 18;
const LINK_HEADER: usize = 16; // struct ifinfomsg
const LINK_NAME: u16 = 3;
const LINK_MASTER: u16 = 10;
const LINK_INFO: u16 = 18;
const INFO_KIND: u16 = 1;
/// Its packets go on as those of their port: no program at the master sees them.
const ROUTING_DOMAIN: &str = "vrf";

#[derive(Debug)]
struct Link {
    name: String,
    index: u32,
    master: Option<u32>,
    kind: String,
}

/// The ports of the caller's network namespace, with their masters.
pub(super) fn masters() -> Result<BTreeMap<String, String>> {
    let links = dump(SockProtocol::NetlinkRoute, GET_LINK, &[0; LINK_HEADER])
        .context(|| "cannot list the network interfaces".into())?;
    Ok(of(&links.iter().filter_map(|payload| read(payload)).collect::<Vec<_>>()))
}

fn read(payload: &[u8]) -> Option<Link> {
    let attributes = payload.get(LINK_HEADER..)?;
    let kind = attribute(attributes, LINK_INFO).and_then(|info| attribute(info, INFO_KIND));
    Some(Link {
        name: text(attribute(attributes, LINK_NAME)?).to_owned(),
        index: u32_at(payload, 4)?,
        master: attribute(attributes, LINK_MASTER).and_then(|master| u32_at(master, 0)),
        kind: kind.map(text).unwrap_or_default().to_owned(),
    })
}

fn of(links: &[Link]) -> BTreeMap<String, String> {
    let master = |port: &Link| {
        let master = links.iter().find(|link| Some(link.index) == port.master)?;
        (master.kind != ROUTING_DOMAIN).then(|| (port.name.clone(), master.name.clone()))
    };
    links.iter().filter_map(master).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_ports_of_a_routing_domain_keep_their_packets() {
        let link = |name: &str, index, master, kind: &str| Link { name: name.into(), index, master, kind: kind.into() };
        let links = [
            link("br0", 1, None, "bridge"),
            link("red", 2, None, "vrf"),
            link("eth0", 3, Some(1), ""),
            link("eth1", 4, Some(2), ""),
            link("eth2", 5, None, ""),
            link("eth3", 6, Some(99), ""),
        ];
        assert_eq!(of(&links), BTreeMap::from([("eth0".to_owned(), "br0".to_owned())]));
    }
}
