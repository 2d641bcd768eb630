// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The policy's listeners and class entries as the kernel's records.
//!
//! Addresses are IPv6, IPv4 mapped (::ffff:a.b.c.d), and 0.0.0.0 too; the address of both families is all zero.

use std::net::{IpAddr, Ipv6Addr, SocketAddr};

use fief_bpf::{Error, ErrorKind, Result, abi};
use fief_policy::{AcceptOrder, ClassEntry, ClassSpec};

use super::Place;
use crate::police::ClientRate;

fn mapped(address: IpAddr) -> Ipv6Addr {
    match address {
        IpAddr::V4(v4) => v4.to_ipv6_mapped(),
        IpAddr::V6(v6) => v6,
    }
}

pub(super) fn listener_key(slot: u8, address: SocketAddr) -> abi::fief_listener_key {
    abi::fief_listener_key { address: mapped(address.ip()).octets(), port: address.port(), slot, ..Default::default() }
}

/// The address that a key came from.
pub(super) fn address(key: &abi::fief_listener_key) -> SocketAddr {
    let v6 = Ipv6Addr::from(key.address);
    let ip = v6.to_ipv4_mapped().map_or(IpAddr::V6(v6), IpAddr::V4);
    SocketAddr::new(ip, key.port)
}

pub(super) fn client(entry: &ClassEntry, place: Place, rate: ClientRate) -> abi::fief_client {
    abi::fief_client {
        container: place.container,
        rule: entry.rule,
        class_: entry.class,
        bucket: rate.bucket,
        level: rate.level,
        monitor: rate.monitor,
        port_first: rate.ports.0,
        port_last: rate.ports.1,
        ..Default::default()
    }
}

/// Those in use but for 0, which no prefix is looked up by.
pub(super) fn prefix_lengths(lengths: impl IntoIterator<Item = u8>) -> abi::fief_prefix_lengths {
    let mut record = abi::fief_prefix_lengths::default();
    let distinct: std::collections::BTreeSet<u8> = lengths.into_iter().filter(|&length| length > 0).collect();
    for (to, length) in record.length.iter_mut().zip(distinct.iter().rev()) {
        *to = *length;
        record.count += 1;
    }
    record
}

pub(super) fn listener(index: u16, serve: u32, classes: &[ClassSpec], places: &[Place]) -> Result<abi::fief_listener> {
    let mut record = abi::fief_listener { index: index.into(), serve, ..Default::default() };
    if classes.len() > record.class_.len() {
        return Err(Error::new(
            ErrorKind::Full,
            format!("{} classes are too many; {} are possible", classes.len(), record.class_.len()),
        )
        .remedy("let several rules name one container"));
    }
    record.classes = classes.len() as u32;
    for (to, (class, place)) in record.class_.iter_mut().zip(classes.iter().zip(places)) {
        *to = abi::fief_class {
            container: place.container,
            priority: place.priority,
            accept: match class.accept {
                AcceptOrder::Before => abi::FIEF_ACCEPT_BEFORE,
                AcceptOrder::After => abi::FIEF_ACCEPT_AFTER,
            },
        };
    }
    Ok(record)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_survives_its_key() {
        for text in ["0.0.0.0:80", "10.1.2.3:443", "[::]:80", "[fd77::1]:8080"] {
            let address: SocketAddr = text.parse().expect("an address");
            assert_eq!(super::address(&listener_key(1, address)), address);
        }
    }

    #[test]
    fn every_ipv4_address_is_not_every_address() {
        let four = listener_key(0, "0.0.0.0:80".parse().expect("an address"));
        let both = listener_key(0, "[::]:80".parse().expect("an address"));
        assert_ne!(four.address, both.address);
        assert_eq!(both.address, [0; 16]);
    }

    #[test]
    fn the_longest_prefix_length_comes_first_and_0_not_at_all() {
        let record = prefix_lengths([0, 104, 128, 104]);
        assert_eq!((record.count, &record.length[..3]), (2, &[128, 104, 0][..]));
    }

    #[test]
    fn a_class_too_many_is_refused() {
        let class = ClassSpec { container: "a".into(), accept: AcceptOrder::Before };
        let place = Place { container: abi::fief_ref::default(), priority: 100 };
        let classes = vec![class; 33];
        let error = listener(0, 0, &classes, &[place; 33]).expect_err("one too many");
        assert_eq!(error.kind(), ErrorKind::Full);
    }
}
