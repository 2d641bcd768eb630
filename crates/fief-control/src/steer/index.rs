// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Which index a listener's address has.
//!
//! Sockets are registered under the index, and labels of listening sockets bear it. If it were the position in the policy, a new
//! policy with its listeners in another order would give one server's sockets the connections of another. Sockets outlive the
//! policies that name their address too. So an address keeps its index while policies leave it out, and another one gets that only once
//! no index is new: then the one that is out of use longest, and whose class listeners are gone.

use std::collections::{HashMap, HashSet};
use std::fs;
use std::net::SocketAddr;
use std::path::PathBuf;

use fief_bpf::{Context, Error, ErrorKind, Result, abi};
use fief_policy::Listener;

use super::{ClassListener, registered};
use crate::Fief;

/// A listener of the policy with its number on the kernel side.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Indexed<'p> {
    pub(crate) index: u16,
    pub(crate) listener: &'p Listener,
}

/// Whose the indexes were and are, whatever policy is in force.
#[derive(Debug, Default)]
pub(crate) struct Indexes {
    /// Each that was given, with the last address that had it; those of the last policy stand last.
    given: Vec<(u16, SocketAddr)>,
    /// Of class listeners that are there now.
    borne: HashSet<u16>,
}

impl Indexes {
    /// From a note, as [`Indexes::to_text`] writes it.
    fn of(note: &str, registered: &[ClassListener]) -> Self {
        let pair = |line: &str| -> Option<(u16, SocketAddr)> {
            let (index, address) = line.split_once(' ')?;
            Some((index.parse().ok()?, address.parse().ok()?))
        };
        Self {
            given: note.lines().filter_map(pair).collect(),
            borne: registered.iter().map(|socket| socket.listener).collect(),
        }
    }

    fn to_text(&self) -> String {
        self.given.iter().map(|(index, address)| format!("{index} {address}\n")).collect()
    }

    /// An index for each address: the one it has in the policy in force, or had in an earlier one, or one that nobody has. A listener
    /// for several ports is known by its first one; when it is taken apart, the first part keeps the index.
    pub(super) fn assign(&mut self, addresses: &[SocketAddr], in_force: &HashMap<SocketAddr, u16>) -> Result<Vec<u16>> {
        let held: HashSet<u16> = in_force.values().copied().collect();
        let before: HashMap<SocketAddr, u16> = self
            .given
            .iter()
            .filter(|(index, _)| !held.contains(index))
            .map(|(index, address)| (*address, *index))
            .collect();
        let mut used = HashSet::new();
        // what was taken by the policy in force is given once
        let keep = |address: &SocketAddr| {
            in_force.get(address).or_else(|| before.get(address)).copied().filter(|index| used.insert(*index))
        };
        let kept: Vec<Option<u16>> = addresses.iter().map(keep).collect();
        let most = u16::try_from(abi::FIEF_MAX_LISTENERS).unwrap_or(u16::MAX);
        let old: HashSet<u16> = self.given.iter().map(|(index, _)| *index).collect();
        let is_free = |index: &u16| *index < most && ![&held, &used, &self.borne].iter().any(|set| set.contains(index));
        let new = (0..most).filter(|index| !old.contains(index));
        let mut free = new.chain(self.given.iter().map(|(index, _)| *index)).filter(is_free);
        let indexes = addresses
            .iter()
            .zip(kept)
            .map(|(address, kept)| {
                kept.or_else(|| free.next()).ok_or_else(|| {
                    Error::new(
                        ErrorKind::Full,
                        format!("there is no room for the listener {address}; {most} are possible"),
                    )
                    .remedy("name fewer listeners, or apply the change in two steps")
                })
            })
            .collect::<Result<Vec<_>>>()?;
        let own: HashSet<_> = addresses.iter().collect();
        self.given.retain(|(index, address)| !own.contains(address) && !indexes.contains(index));
        self.given.extend(indexes.iter().copied().zip(addresses.iter().copied()));
        Ok(indexes)
    }
}

impl Fief {
    fn indexes_file(&self) -> PathBuf {
        self.run_dir().join("listeners")
    }

    /// Where nothing is noted, those of the policy in force and of class listeners are known.
    pub(crate) fn listener_indexes(&self) -> Result<Indexes> {
        let note = fs::read_to_string(self.indexes_file()).unwrap_or_default();
        Ok(Indexes::of(&note, &registered(&self.map("class_listeners")?)?))
    }

    /// Before the policy that has them comes into force.
    pub(crate) fn note_indexes(&self, indexes: &Indexes) -> Result<()> {
        let (file, text) = (self.indexes_file(), indexes.to_text());
        if fs::read_to_string(&file).unwrap_or_default() == text {
            return Ok(());
        }
        // never half of it: an index that is not noted seems new
        let aside = file.with_extension("next");
        self.make_run_dir()?;
        let written = fs::write(&aside, text).and_then(|()| fs::rename(&aside, &file));
        written.context(|| format!("cannot write {}", file.display()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(text: &str) -> SocketAddr {
        text.parse().expect("an address")
    }

    fn port(port: u16) -> SocketAddr {
        SocketAddr::from(([0, 0, 0, 0], port))
    }

    /// Policies that follow each other, and the class listeners that stay from them.
    #[derive(Default)]
    struct Policies {
        indexes: Indexes,
        in_force: HashMap<SocketAddr, u16>,
    }

    impl Policies {
        fn apply(&mut self, ports: &[u16]) -> Vec<u16> {
            let addresses: Vec<_> = ports.iter().copied().map(port).collect();
            let given = self.indexes.assign(&addresses, &self.in_force).expect("room");
            self.in_force = addresses.into_iter().zip(given.iter().copied()).collect();
            given
        }
    }

    #[test]
    fn an_address_keeps_its_index_when_the_order_changes() {
        let (web, api) = (address("0.0.0.0:80"), address("[::]:8080"));
        let mut indexes = Indexes::default();
        let first = indexes.assign(&[web, api], &HashMap::new()).expect("room");
        let in_force = HashMap::from([(web, first[0]), (api, first[1])]);
        let second = indexes.assign(&[api, web], &in_force).expect("room");
        assert_eq!(second, [first[1], first[0]]);
    }

    #[test]
    fn a_new_address_takes_no_index_of_the_policy_in_force() {
        let in_force = HashMap::from([(port(80), 0)]);
        assert_eq!(Indexes::default().assign(&[port(81)], &in_force).expect("room"), [1]);
    }

    #[test]
    fn the_parts_of_a_range_of_ports_have_indexes_of_their_own() {
        let in_force = HashMap::from([(port(8000), 3), (port(8001), 3)]);
        assert_eq!(Indexes::default().assign(&[port(8000), port(8001)], &in_force).expect("room"), [3, 0]);
    }

    #[test]
    fn too_many_addresses_are_refused_with_a_remedy() {
        let addresses: Vec<_> = (1..=1025).map(port).collect();
        let error = Indexes::default().assign(&addresses, &HashMap::new()).expect_err("one too many");
        assert_eq!(error.kind(), ErrorKind::Full);
        assert!(error.advice().is_some());
    }

    #[test]
    fn the_index_of_an_address_that_is_left_out_is_no_other_ones() {
        let mut policies = Policies::default();
        assert_eq!(policies.apply(&[8080]), [0]);
        assert_eq!(policies.apply(&[8081]), [1]);
        assert_eq!(policies.apply(&[8081, 9090]), [1, 2]);
        assert_eq!(policies.apply(&[9091, 8080]), [3, 0], "the one that comes back has its own");
    }

    #[test]
    fn an_index_that_a_class_listener_bears_is_not_given_although_nothing_is_noted() {
        let socket = ClassListener { listener: 0, container: 5, generation: 1, turn: 0, cookie: 1 };
        let mut policies = Policies { indexes: Indexes::of("", &[socket]), ..Policies::default() };
        assert_eq!(policies.apply(&[9090]), [1]);
    }

    #[test]
    fn once_all_were_given_the_one_out_of_use_longest_comes_first() {
        let mut policies = Policies::default();
        let all: Vec<u16> = (1..=1024).collect();
        policies.apply(&all);
        policies.apply(&all[2..]);
        policies.apply(&all[4..]);
        policies.indexes.borne.insert(0);
        let given = policies.apply(&[2001, 2002]);
        assert_eq!(given, [1, 2]);
    }

    #[test]
    fn a_note_is_read_as_it_was_written() {
        let mut indexes = Indexes::default();
        indexes.assign(&[address("[::]:8080"), port(80)], &HashMap::new()).expect("room");
        let read = Indexes::of(&indexes.to_text(), &[]);
        assert_eq!(read.given, indexes.given);
        assert_eq!(read.given.len(), 2);
    }
}
