// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Which sockets listen in this network namespace, which of them cannot take a connection from the front door, and whose hooks
//! see them.

mod table;

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use nix::sys::socket::SockProtocol;

use crate::netlink::{attribute, dump, text};

const BY_FAMILY: u16 = 20; // SOCK_DIAG_BY_FAMILY
const FAMILIES: [u8; 2] = [2, 10]; // AF_INET, AF_INET6
const TCP: u8 = 6;
const LISTEN: u32 = 1 << 10; // TCP_LISTEN
const INFO: u8 = 1 << 1; // INET_DIAG_INFO, which upper protocols come with
const MESSAGE: usize = 72; // struct inet_diag_msg
const UPPER: u16 = 19; // INET_DIAG_ULP_INFO
const UPPER_NAME: u16 = 1; // INET_ULP_INFO_NAME
const CGROUP: u16 = 21; // INET_DIAG_CGROUP_ID

/// A TCP socket that listens.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Listening {
    pub(crate) address: SocketAddr,
    /// The kernel hands no connection to it whose handshake was another's.
    pub(crate) multipath: bool,
    /// Id of the cgroup that its maker was in: the hooks there see it and the connections that it accepts, wherever the
    /// process is now.
    pub(crate) cgroup: Option<u64>,
    /// By which its process has it open.
    pub(crate) inode: u32,
    /// By which maps of sockets know it; `None`: the kernel does not tell.
    pub(crate) cookie: Option<u64>,
}

impl Listening {
    /// Whether connections to an address of a policy can reach it.
    pub(crate) fn serves(&self, address: SocketAddr) -> bool {
        let own = self.address.ip();
        let both = own == IpAddr::V6(Ipv6Addr::UNSPECIFIED);
        let overlap = own == address.ip()
            || both
            || address.ip() == IpAddr::V6(Ipv6Addr::UNSPECIFIED)
            || (own.is_ipv4() == address.is_ipv4() && (own.is_unspecified() || address.ip().is_unspecified()));
        self.address.port() == address.port() && overlap
    }
}

/// All of them. A kernel without inet_diag still has its table in text.
pub(crate) fn find() -> io::Result<Vec<Listening>> {
    by_netlink().or_else(|_| table::find())
}

fn by_netlink() -> io::Result<Vec<Listening>> {
    let mut found = Vec::new();
    for family in FAMILIES {
        // struct inet_diag_req_v2: family, protocol, extensions, padding, states, then the identity of one socket
        let mut request = vec![family, TCP, INFO, 0];
        request.extend(LISTEN.to_ne_bytes());
        request.extend([0; 48]);
        let sockets = dump(SockProtocol::NetlinkSockDiag, BY_FAMILY, &request)?;
        found.extend(sockets.iter().filter_map(|socket| read(socket)));
    }
    Ok(found)
}

fn read(message: &[u8]) -> Option<Listening> {
    let (fixed, attributes) = message.split_at_checked(MESSAGE)?;
    let port = u16::from_be_bytes(fixed[4..6].try_into().ok()?);
    let source: [u8; 16] = fixed[8..24].try_into().ok()?;
    let ip = match fixed[0] {
        2 => IpAddr::V4(Ipv4Addr::from(<[u8; 4]>::try_from(&source[..4]).ok()?)),
        _ => IpAddr::V6(Ipv6Addr::from(source)),
    };
    let upper = attribute(attributes, UPPER).and_then(|info| attribute(info, UPPER_NAME)).map(text);
    let cgroup = attribute(attributes, CGROUP).and_then(|id| id.try_into().ok()).map(u64::from_ne_bytes);
    let inode = u32::from_ne_bytes(fixed[68..72].try_into().ok()?);
    let cookie = Some(u64::from_ne_bytes(fixed[44..52].try_into().ok()?));
    Some(Listening { address: SocketAddr::new(ip, port), multipath: upper == Some("mptcp"), cgroup, inode, cookie })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cgroup;
    use std::net::TcpListener;

    #[test]
    fn a_socket_that_listens_is_found() {
        let plain = TcpListener::bind("127.0.0.1:0").expect("a listener");
        let address = plain.local_addr().expect("bound");
        let found = find().expect("the kernel answers");
        let own = found.iter().find(|listening| listening.address == address).expect("it is there");
        assert!(!own.multipath);
        let cgroup = cgroup::of_process(std::process::id().cast_signed()).expect("a cgroup");
        assert_eq!(own.cgroup, Some(cgroup::id(&cgroup).expect("its folder")));
    }

    #[test]
    fn a_wildcard_serves_the_addresses_of_its_families() {
        let at = |text: &str| text.parse::<SocketAddr>().expect("an address");
        let serves = |own: &str, address: &str| {
            Listening { address: at(own), multipath: true, cgroup: None, inode: 0, cookie: None }.serves(at(address))
        };
        assert!(serves("0.0.0.0:80", "10.1.2.3:80"));
        assert!(serves("10.1.2.3:80", "0.0.0.0:80"));
        assert!(serves("[::]:80", "10.1.2.3:80"));
        assert!(serves("10.1.2.3:80", "[::]:80"));
        assert!(!serves("0.0.0.0:80", "[fd77::1]:80"));
        assert!(!serves("10.1.2.3:80", "10.1.2.4:80"));
        assert!(!serves("0.0.0.0:80", "10.1.2.3:81"));
    }
}
