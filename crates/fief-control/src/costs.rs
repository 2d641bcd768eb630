// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Which clients cost most CPU time (`fief explain --costliest`).
//!
//! The kernel side counts while somebody asks, and ends that by itself some minutes after the last reader. Any number of readers share
//! the count: each subtracts its own earlier reading.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::time::Duration;

use fief_bpf::abi;
use fief_bpf::costs::Costs;
use fief_bpf::{Error, ErrorKind, Result};
use ipnet::IpNet;
use serde::{Deserialize, Serialize};

use crate::Fief;
use crate::charge::now_ns;

/// Counted on after a reading: who asks again has what came in between.
pub const COSTS_GO_ON: Duration = Duration::from_secs(600);

/// The word of ::/64.
const LOOPBACK: u64 = abi::FIEF_COST_LOOPBACK as u64;

/// What one client, or one network of clients, cost since it has its place in the table.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClientCost {
    /// An IPv4 address or the /64 of an IPv6 one; of networks a /24 or a /48.
    pub from: IpNet,
    /// CPU time.
    pub ns: u64,
    /// Of it, for its packets.
    pub receive_ns: u64,
    /// CLOCK_MONOTONIC when it got the place. What it cost before that is among what its set has forgotten.
    pub since_ns: u64,
    /// CPU time that its set has forgotten in all, rounded up. The number of the set is not told: a reader who knew it could choose
    /// sources that push this client out.
    pub forgotten_ns: u64,
}

/// One reading.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct CostView {
    /// When, by CLOCK_MONOTONIC.
    pub taken_ns: u64,
    /// Since when is counted.
    pub since_ns: u64,
    /// By address.
    pub clients: Vec<ClientCost>,
    /// By network.
    pub networks: Vec<ClientCost>,
    /// Of those who lost their place, by set of `clients`.
    pub clients_forgotten_ns: Vec<u64>,
    /// Of `networks`.
    pub networks_forgotten_ns: Vec<u64>,
    /// What found no place: of `clients`, and of `networks`.
    pub unplaced_ns: [u64; 2],
}

/// One of them between two readings.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Costly {
    /// Who.
    pub from: IpNet,
    /// CPU time between the readings.
    pub ns: u64,
    /// Of it, for its packets.
    pub receive_ns: u64,
    /// Since it is counted.
    pub all: ClientCost,
    /// What it may have cost beyond `all`, before it got its place.
    pub before_ns: u64,
}

/// The costliest first.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ranking {
    /// By cost between the readings, then in all.
    pub costly: Vec<Costly>,
    /// All clients together, between the readings: those that lost their place, too.
    pub ns: u64,
    /// Since it is counted.
    pub all_ns: u64,
    /// Who is not in the list cost no more between the readings.
    pub left_out_ns: u64,
    /// Since it is counted.
    pub left_out_all_ns: u64,
}

/// What clients cost between two readings.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Costliest {
    /// CLOCK_MONOTONIC of the earlier reading.
    pub from_ns: u64,
    /// Of the later one.
    pub to_ns: u64,
    /// Since when is counted.
    pub since_ns: u64,
    /// By address.
    pub clients: Ranking,
    /// By network.
    pub networks: Ranking,
}

impl Fief {
    /// What clients have cost. From now on that is counted, if it was not, until [`COSTS_GO_ON`] beyond `lasts` after this reading.
    pub fn costs(&self, lasts: Duration) -> Result<CostView> {
        self.require_installed()?;
        let costs = Costs::open(self.pins()).map_err(of_another_version)?;
        let now = now_ns()?;
        let until = now + (lasts + COSTS_GO_ON).as_nanos() as u64;
        if costs.control()?.until_ns > now {
            costs.extend(until)?;
        } else {
            let _one_begins = self.lock()?;
            match costs.control()?.until_ns > now {
                true => costs.extend(until)?,
                false => costs.begin(until)?,
            }
        }
        let control = costs.control()?;
        let sets = costs.sets()?;
        let (clients, networks) = sets.split_at((abi::FIEF_COST_SETS as usize).min(sets.len()));
        let forgotten = |sets: &[abi::fief_cost_set]| {
            let mut all: Vec<_> = sets.iter().map(|set| rounded_up(set.forgotten_ns)).collect();
            all.sort_unstable();
            all
        };
        Ok(CostView {
            taken_ns: now_ns()?,
            since_ns: control.since_ns,
            clients: of_sets(clients, |client| {
                let from = address(client);
                IpNet::new_assert(from, if from.is_ipv4() { 32 } else { 64 })
            }),
            networks: of_sets(networks, |client| match address(client) {
                from if client == LOOPBACK => IpNet::new_assert(from, 64),
                from => IpNet::new_assert(from, if from.is_ipv4() { 24 } else { 48 }),
            }),
            clients_forgotten_ns: forgotten(clients),
            networks_forgotten_ns: forgotten(networks),
            unplaced_ns: costs.unplaced_ns()?,
        })
    }
}

impl CostView {
    /// What came after an earlier reading. Where it was counted anew in between, what came since then.
    pub fn since(&self, earlier: &CostView) -> Costliest {
        let none = CostView::default();
        let is_one = earlier.since_ns == self.since_ns;
        let before = if is_one { earlier } else { &none };
        let ranking =
            |of: usize, now: &[ClientCost], then: &[ClientCost], forgotten: &[u64], forgotten_then: &[u64]| {
                let all_unplaced = self.unplaced_ns[of];
                let unplaced = all_unplaced.saturating_sub(before.unplaced_ns[of]);
                let then: HashMap<_, _> = then.iter().map(|cost| ((cost.from, cost.since_ns), cost)).collect();
                let mut costly: Vec<_> = now
                    .iter()
                    .map(|all| {
                        let had = then.get(&(all.from, all.since_ns));
                        let less = |now: u64, had: Option<u64>| now.saturating_sub(had.unwrap_or(0));
                        Costly {
                            from: all.from,
                            ns: less(all.ns, had.map(|had| had.ns)),
                            receive_ns: less(all.receive_ns, had.map(|had| had.receive_ns)),
                            before_ns: all.forgotten_ns + all_unplaced,
                            all: all.clone(),
                        }
                    })
                    .collect();
                costly.sort_by_key(|one| (std::cmp::Reverse((one.ns, one.all.ns)), one.from));
                let lost = forgotten.iter().enumerate().map(|(at, ns)| {
                    let then = forgotten_then.get(at).copied().unwrap_or(0);
                    ns.saturating_sub(then)
                });
                let all_ns: u64 = now.iter().map(|cost| cost.ns).sum::<u64>() + forgotten.iter().sum::<u64>();
                let then_ns: u64 = then.values().map(|cost| cost.ns).sum::<u64>() + forgotten_then.iter().sum::<u64>();
                Ranking {
                    costly,
                    ns: all_ns.saturating_sub(then_ns) + unplaced,
                    all_ns: all_ns + all_unplaced,
                    left_out_ns: lost.max().unwrap_or(0) + unplaced,
                    left_out_all_ns: forgotten.iter().max().copied().unwrap_or(0) + all_unplaced,
                }
            };
        Costliest {
            from_ns: if is_one { earlier.taken_ns } else { self.since_ns },
            to_ns: self.taken_ns,
            since_ns: self.since_ns,
            clients: ranking(
                0,
                &self.clients,
                &before.clients,
                &self.clients_forgotten_ns,
                &before.clients_forgotten_ns,
            ),
            networks: ranking(
                1,
                &self.networks,
                &before.networks,
                &self.networks_forgotten_ns,
                &before.networks_forgotten_ns,
            ),
        }
    }
}

fn of_sets(sets: &[abi::fief_cost_set], name: impl Fn(u64) -> IpNet) -> Vec<ClientCost> {
    let of_set = |set: &abi::fief_cost_set| {
        let forgotten_ns = rounded_up(set.forgotten_ns);
        let has = set.ways.into_iter().filter(|cost| cost.client != 0);
        has.map(|cost| ClientCost {
            from: name(cost.client),
            ns: cost.ns,
            receive_ns: cost.receive_ns,
            since_ns: cost.since_ns,
            forgotten_ns,
        })
        .collect::<Vec<_>>()
    };
    let mut all: Vec<_> = sets.iter().flat_map(of_set).collect();
    // in the order of the sets, neighbours would be of one
    all.sort_by_key(|one| one.from);
    all
}

/// To an eighth at most: exact, it would tell which clients are of one set.
fn rounded_up(ns: u64) -> u64 {
    const BITS: u32 = 4;
    let step = 1 << ns.checked_ilog2().unwrap_or(0).saturating_sub(BITS - 1);
    ns.checked_next_multiple_of(step).unwrap_or(u64::MAX)
}

/// The first address of a client, by its word (`bpf/abi/cost.h`).
fn address(client: u64) -> IpAddr {
    match client {
        LOOPBACK => Ipv6Addr::UNSPECIFIED.into(),
        _ if client >> 32 == 0xffff => Ipv4Addr::from(client as u32).into(),
        _ => Ipv6Addr::from(u128::from(client) << 64).into(),
    }
}

fn of_another_version(error: Error) -> Error {
    match error.kind() {
        ErrorKind::NotFound => {
            Error::new(ErrorKind::NotFound, "what is in force is of a version that does not count what clients cost")
                .remedy("apply the policy again: fief apply FILE")
        }
        _ => error,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cost(from: &str, ns: u64, since_ns: u64) -> ClientCost {
        ClientCost { from: from.parse().expect("a prefix"), ns, receive_ns: ns / 2, since_ns, forgotten_ns: 0 }
    }

    fn view(taken_ns: u64, clients: Vec<ClientCost>, forgotten: u64) -> CostView {
        CostView {
            taken_ns,
            since_ns: 5,
            clients,
            clients_forgotten_ns: vec![forgotten, forgotten / 2],
            ..CostView::default()
        }
    }

    #[test]
    fn a_client_is_an_address_or_a_slash_64() {
        assert_eq!(address(0xffff_0a58_0101), IpAddr::from([10, 88, 1, 1]));
        assert_eq!(address(0xfd77_0001_0002_0003), "fd77:1:2:3::".parse::<IpAddr>().expect("an address"));
        assert_eq!(address(LOOPBACK), "::".parse::<IpAddr>().expect("an address"));
    }

    #[test]
    fn an_interval_is_the_difference_and_the_costliest_of_it_comes_first() {
        let before = view(10, vec![cost("10.0.0.1/32", 100, 6), cost("10.0.0.2/32", 5, 7)], 0);
        let after = view(20, vec![cost("10.0.0.1/32", 101, 6), cost("10.0.0.2/32", 25, 7)], 0);
        let ranking = after.since(&before).clients;
        let order: Vec<_> = ranking.costly.iter().map(|one| (one.from.to_string(), one.ns, one.all.ns)).collect();
        assert_eq!(order, [("10.0.0.2/32".into(), 20, 25), ("10.0.0.1/32".into(), 1, 101)]);
        assert_eq!((ranking.ns, ranking.all_ns, ranking.left_out_ns), (21, 126, 0));
    }

    #[test]
    fn one_who_lost_its_place_and_has_it_again_is_counted_from_then_on() {
        let before = view(10, vec![cost("10.0.0.1/32", 100, 6)], 0);
        let again = ClientCost { forgotten_ns: 110, ..cost("10.0.0.1/32", 30, 15) };
        let after = view(20, vec![again], 110);
        let ranking = after.since(&before).clients;
        assert_eq!((ranking.costly[0].ns, ranking.costly[0].before_ns), (30, 110));
        assert_eq!((ranking.left_out_ns, ranking.left_out_all_ns), (110, 110));
        assert_eq!(ranking.ns, 30 + 110 + 55 - 100, "all that was counted, whoever has a place");
    }

    #[test]
    fn readers_are_not_told_which_clients_are_of_one_set() {
        let one = abi::fief_cost { client: 0xffff_0a58_0101, ns: 5, ..Default::default() };
        let mut sets = [abi::fief_cost_set::default(); 2];
        (sets[0].ways[0], sets[0].forgotten_ns) = (one, 1_000_001);
        (sets[1].ways[0], sets[1].forgotten_ns) = (one, 1_040_000);
        let told = of_sets(&sets, |client| IpNet::new_assert(address(client), 32));
        assert_eq!(told[0], told[1], "the two sets have forgotten about as much");
        assert!(!serde_json::to_string(&told).expect("numbers").contains("set"));
        assert_eq!([0, 7, 100, 110, u64::MAX].map(rounded_up), [0, 7, 104, 112, u64::MAX]);
    }

    #[test]
    fn after_a_new_begin_nothing_is_subtracted() {
        let before = view(10, vec![cost("10.0.0.1/32", 100, 6)], 90);
        let after = CostView { since_ns: 12, ..view(20, vec![cost("10.0.0.1/32", 30, 13)], 4) };
        let costliest = after.since(&before);
        assert_eq!((costliest.from_ns, costliest.clients.costly[0].ns, costliest.clients.left_out_ns), (12, 30, 4));
    }
}
