// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Which index a listener's address has.
//!
//! Sockets are registered under the index. If it were the position in the policy, a new policy with its listeners in another
//! order would give one server's sockets the connections of another.

use std::collections::{HashMap, HashSet};
use std::net::SocketAddr;

use fief_bpf::{Error, ErrorKind, Result, abi};
use fief_policy::Listener;

/// A listener of the policy with its number on the kernel side.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Indexed<'p> {
    pub(crate) index: u16,
    pub(crate) listener: &'p Listener,
}

/// An index for each address: the one it has in the policy in force, or one that nobody has there. A listener for several
/// ports is known by its first one; when it is taken apart, the first part keeps the index.
pub(super) fn assign(addresses: &[SocketAddr], in_force: &HashMap<SocketAddr, u16>) -> Result<Vec<u16>> {
    let mut taken: HashSet<u16> = in_force.values().copied().collect();
    let most = u16::try_from(abi::FIEF_MAX_LISTENERS).unwrap_or(u16::MAX);
    let mut free = (0..most).filter(|index| !taken.contains(index)).collect::<Vec<_>>().into_iter();
    addresses
        .iter()
        .map(|address| {
            // what was taken by the policy in force is given once
            let kept = in_force.get(address).copied().filter(|index| taken.remove(index));
            kept.or_else(|| free.next()).ok_or_else(|| {
                Error::new(ErrorKind::Full, format!("there is no room for the listener {address}; {most} are possible"))
                    .remedy("name fewer listeners, or apply the change in two steps")
            })
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(text: &str) -> SocketAddr {
        text.parse().expect("an address")
    }

    #[test]
    fn an_address_keeps_its_index_when_the_order_changes() {
        let (web, api) = (address("0.0.0.0:80"), address("[::]:8080"));
        let first = assign(&[web, api], &HashMap::new()).expect("room");
        let in_force = HashMap::from([(web, first[0]), (api, first[1])]);
        let second = assign(&[api, web], &in_force).expect("room");
        assert_eq!(second, [first[1], first[0]]);
    }

    #[test]
    fn a_new_address_takes_no_index_of_the_policy_in_force() {
        let (old, new) = (address("0.0.0.0:80"), address("0.0.0.0:81"));
        let indexes = assign(&[new], &HashMap::from([(old, 0)])).expect("room");
        assert_eq!(indexes, [1]);
    }

    #[test]
    fn the_parts_of_a_range_of_ports_have_indexes_of_their_own() {
        let (first, second) = (address("0.0.0.0:8000"), address("0.0.0.0:8001"));
        let in_force = HashMap::from([(first, 3), (second, 3)]);
        let indexes = assign(&[first, second], &in_force).expect("room");
        assert_eq!(indexes, [3, 0]);
    }

    #[test]
    fn too_many_addresses_are_refused_with_a_remedy() {
        let addresses: Vec<_> = (1..=1025).map(|port| SocketAddr::from(([0, 0, 0, 0], port))).collect();
        let error = assign(&addresses, &HashMap::new()).expect_err("one too many");
        assert_eq!(error.kind(), ErrorKind::Full);
        assert!(error.advice().is_some());
    }
}
