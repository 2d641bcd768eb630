// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A second link between server and clients, beside the one that a topology has: s2 and c2, 10.66.3.0/30 and fd66:3::/64. The
//! server has the first address of each, the clients have the second.

use fief_testkit::{NetNs, Topology, Veth};

pub fn second_link(topology: &Topology) -> Veth {
    let link = Veth::between((&topology.server, "s2"), (&topology.clients, "c2")).unwrap();
    second_up(&topology.server, "s2", 1);
    second_up(&topology.clients, "c2", 2);
    link
}

/// Gives the link's device the addresses of the n-th host, and brings it up.
pub fn second_up(namespace: &NetNs, device: &str, n: u8) {
    namespace.sysctl(&format!("net/ipv4/conf/{device}/rp_filter"), "0").unwrap();
    namespace.ip(&format!("addr add 10.66.3.{n}/30 dev {device}")).unwrap();
    namespace.ip(&format!("addr add fd66:3::{n}/64 dev {device} nodad")).unwrap();
    namespace.ip(&format!("link set {device} up")).unwrap();
}
