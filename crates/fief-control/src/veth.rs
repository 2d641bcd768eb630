// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Pairs of virtual Ethernet interfaces of Fief's own in the caller's network namespace: what is sent at one end arrives at the
//! other. They have no address, no neighbours and no name resolution: only packets redirected to the sending end ever pass.

use std::io;

use fief_bpf::{Context, ErrorKind, Result};
use nix::sys::socket::SockProtocol;

use crate::links;
use crate::netlink::{self, NESTED, attribute, attribute_bytes, terminated, u32_at};

const NEW_LINK: u16 = 16;
const DELETE_LINK: u16 = 17;
const CREATE_EXCLUSIVE: u16 = 0x600; // NLM_F_CREATE | NLM_F_EXCL
const LINK_MTU: u16 = 4;
const LINK_TX_QUEUES: u16 = 31;
const LINK_RX_QUEUES: u16 = 32;
const INFO_DATA: u16 = 2;
const VETH_PEER: u16 = 1;
const UP: u32 = 0x1;
const NO_ARP: u32 = 0x80;

/// The two indexes of a pair.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Pair {
    pub(crate) sends: u32,
    pub(crate) receives: u32,
}

/// Scopes of one network namespace must not take each other's interfaces; the alias tells whose they are.
pub(crate) fn tag(scope: &str) -> String {
    if scope == "fief" {
        return String::new();
    }
    let hash = scope.bytes().fold(0x811c_9dc5u32, |hash, byte| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193));
    format!("{:02x}", hash & 0xff)
}

/// Makes a pair with these names, of the sending end and of the receiving one; both are down, without an alias. Errors:
/// [`ErrorKind::Exists`] an interface has one of them.
pub(crate) fn make([sends, receives]: [String; 2], mtu: u32) -> Result<Pair> {
    let end = |name: &str| {
        let mut bytes = attribute_bytes(links::NAME, &terminated(name));
        bytes.extend(attribute_bytes(LINK_MTU, &mtu.to_ne_bytes()));
        bytes.extend(attribute_bytes(LINK_TX_QUEUES, &1u32.to_ne_bytes()));
        bytes.extend(attribute_bytes(LINK_RX_QUEUES, &1u32.to_ne_bytes()));
        bytes
    };
    let peer = attribute_bytes(VETH_PEER | NESTED, &[header(0, 0, 0).to_vec(), end(&receives)].concat());
    let kind = attribute_bytes(links::INFO_KIND, b"veth");
    let info = attribute_bytes(links::INFO | NESTED, &[kind, attribute_bytes(INFO_DATA | NESTED, &peer)].concat());
    let request = [header(0, 0, 0).to_vec(), end(&sends), info].concat();
    let what = || format!("cannot make the interfaces {sends} and {receives}");
    let told = netlink::made(SockProtocol::NetlinkRoute, NEW_LINK, CREATE_EXCLUSIVE, &request);
    let told = told.context(what).map_err(|error| match error.kind() {
        ErrorKind::Exists => {
            error.remedy("an interface that is not of this installation has that name: rename or remove it")
        }
        _ => error,
    })?;
    // by what was made, and not by its name: that may be another one's by now
    pair(&told).ok_or_else(|| io::Error::from(io::ErrorKind::InvalidData)).context(what)
}

/// The pair that a message about its sending end tells of.
fn pair(message: &[u8]) -> Option<Pair> {
    let peer = attribute(message.get(links::HEADER..)?, links::PEER)?;
    Some(Pair { sends: u32_at(message, 4)?, receives: u32_at(peer, 0)? })
}

/// Says whose a pair is and takes both ends up.
pub(crate) fn raise(pair: Pair, alias: &str) -> Result<()> {
    let alias = attribute_bytes(links::ALIAS, alias.as_bytes());
    for index in [pair.receives, pair.sends] {
        let request = [header(index, UP | NO_ARP, UP | NO_ARP).to_vec(), alias.clone()].concat();
        netlink::change(SockProtocol::NetlinkRoute, NEW_LINK, 0, &request)
            .context(|| format!("cannot take the interface {index} up"))?;
    }
    Ok(())
}

/// Removes an interface, and with it the other end. One that is not there is no error.
pub(crate) fn remove(index: u32) -> Result<()> {
    match netlink::change(SockProtocol::NetlinkRoute, DELETE_LINK, 0, &header(index, 0, 0)) {
        Err(e) if e.raw_os_error() == Some(nix::errno::Errno::ENODEV as i32) => Ok(()),
        done => done.context(|| format!("cannot remove the interface {index}")),
    }
}

fn header(index: u32, flags: u32, change: u32) -> [u8; links::HEADER] {
    let mut bytes = [0; links::HEADER];
    bytes[4..8].copy_from_slice(&index.to_ne_bytes());
    bytes[8..12].copy_from_slice(&flags.to_ne_bytes());
    bytes[12..16].copy_from_slice(&change.to_ne_bytes());
    bytes
}

#[cfg(test)]
mod tests {
    use fief_testkit::{Feature, NetNs, require};

    use super::*;

    #[test]
    fn a_pair_is_known_by_what_was_made_and_a_name_that_is_taken_is_told() {
        if !(require(Feature::Root) && require(Feature::NetNs)) {
            return;
        }
        let namespace = NetNs::new("pairs").expect("a namespace");
        let names = || ["fief-1s", "fief-1r"].map(str::to_owned);
        let made = namespace.run(|| make(names(), 1500)).expect("in it").expect("made");
        let there = namespace.run(links::list).expect("in it").expect("the kernel answers");
        let name = |index| there.iter().find(|link| link.index == index).map(|link| (&*link.name, &*link.kind));
        assert_eq!(name(made.sends), Some(("fief-1s", "veth")));
        assert_eq!(name(made.receives), Some(("fief-1r", "veth")));
        let peer = |index| there.iter().find(|link| link.index == index).and_then(|link| link.peer);
        assert_eq!([made.sends, made.receives].map(peer), [Some(made.receives), Some(made.sends)]);
        let error = namespace.run(|| make(names(), 1500)).expect("in it").expect_err("they are there");
        assert_eq!(error.kind(), ErrorKind::Exists);
        assert!(error.advice().is_some_and(|advice| advice.contains("rename")));
    }
}
