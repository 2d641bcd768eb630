// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Client: what the front door knows of one client at one listener now, and what it would do with the next connection request of
//! it. Read from the tables of police and of the queues; this module changes nothing.
//!
//! The kernel side finds a source by a keyed hash. Here the tables are read as a whole, which takes milliseconds and repeats no
//! hash.
//! Limits: the tables are read one after the other, so what changes meanwhile may be told half. Whether the budget of strangers
//! answers one more is the kernel side's to decide, when it comes.

mod budget;
mod read;

use std::net::IpAddr;

use fief_bpf::record::{self, Record};
use fief_bpf::{Result, abi, batch, inner};
use fief_policy::{Level, Listener, Request};
use ipnet::IpNet;
use serde::{Deserialize, Serialize};

use crate::Fief;
use crate::ban::Ban;
use crate::charge::now_ns;
use crate::police;
pub use budget::{Budget, Left};
use fief::Reason;
use read::Read;

/// What isolation looks at besides an IPv4 /24: prefixes of IPv6.
const IPV6_PREFIXES: [u8; 2] = [64, 48];
const IPV4_PREFIX: u8 = 24;

/// One client at one listener, at one moment.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClientView {
    /// When, by CLOCK_MONOTONIC.
    pub taken_ns: u64,
    /// How loaded the listener is.
    pub level: Level,
    /// The door stands before this listener.
    pub guarded: bool,
    /// What would be refused is counted, and passes.
    pub monitored: bool,
    /// The ban of a prefix around it that ends last.
    pub banned: Option<Ban>,
    /// Prefixes around it that are isolated at this listener.
    pub isolated: Vec<Isolation>,
    /// So long its connection requests are dropped, since a request of it was refused.
    pub penalty_remaining_ns: Option<u64>,
    /// It has returned a cookie, and that is remembered.
    pub proven: Option<Proven>,
    /// How much is left of each rate that counts it.
    pub budgets: Vec<Budget>,
    /// Requests of it that wait in front of the server.
    pub waiting: u32,
    /// Requests of it that the server has not begun to answer.
    pub in_service: u32,
    /// Why the next connection request is refused; `None`: it is answered, as far as the budget of strangers allows.
    pub refused: Option<Reason>,
    /// Isolation never holds for it here.
    pub never_isolated: bool,
    /// Penalties never hold for it here.
    pub never_penalised: bool,
    /// It proved itself while its prefix was isolated: the class of its connections.
    pub last: bool,
}

/// A prefix that sends too many connection requests.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Isolation {
    /// As `10.88.3.0/24`.
    pub prefix: String,
    /// Since when without a break, by CLOCK_MONOTONIC.
    pub since_ns: u64,
    /// For so long still, unless the flood goes on.
    pub remaining_ns: u64,
}

/// When a source returned cookies, by CLOCK_MONOTONIC.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Proven {
    /// The first one that is remembered.
    pub since_ns: u64,
    /// The last one, to a second.
    pub last_ns: u64,
}

impl Fief {
    /// What the front door knows of this client at a listener of the policy in force. `request`: the rule that a request of it
    /// meets at a level of overload.
    pub fn client<'p>(
        &self,
        listener: &Listener,
        from: IpAddr,
        request: impl FnOnce(Level) -> Option<&'p Request>,
    ) -> Result<ClientView> {
        self.require_installed()?;
        let from = from.to_canonical();
        let names = self.names()?;
        let index = names.listeners().find(|(_, name)| *name == listener.name).map(|(index, _)| index);
        let guard = match index {
            Some(index) => self.guard_of(names.slot(), index)?,
            None => None,
        };
        let load: Option<abi::fief_load> = match index {
            Some(index) => record::lookup(&self.map("loads")?, u32::from(index).bytes())?,
            None => None,
        };
        let guarded = guard.is_some();
        let read = Read {
            now: now_ns()?,
            slot: names.slot(),
            address: mapped(from),
            guard: guard.unwrap_or_default(),
            load: load.unwrap_or_default(),
            // what is in force may be of a version without bans
            banned: self
                .bans()
                .unwrap_or_default()
                .into_iter()
                .filter(|ban| ban.prefix.contains(&from))
                .max_by_key(|ban| ban.until_ns),
            source: self.source(from)?,
            meters: self.meters_of(from, index.unwrap_or(u16::MAX))?,
            never_isolated: listener.isolate.as_ref().is_some_and(|isolate| is_in(&isolate.except, from)),
            never_penalised: is_in(&listener.penalty_except, from),
        };
        let budgets =
            if guarded { self.budgets(&read, listener, from, request(level(read.load.level)))? } else { Vec::new() };
        let (waiting, in_service) = if read.guard.queue != 0 { self.queued(&read, listener)? } else { (0, 0) };
        Ok(ClientView {
            taken_ns: read.now,
            level: level(read.load.level),
            guarded,
            monitored: read.guard.flags & abi::FIEF_GUARD_MONITOR != 0,
            banned: read.banned.clone(),
            isolated: read.isolations(),
            penalty_remaining_ns: read.penalty(),
            proven: read.source.map(|source| Proven { since_ns: source.since_ns, last_ns: source.proven_ns }),
            refused: if guarded { read.refusal(&budgets) } else { None },
            budgets,
            waiting,
            in_service,
            never_isolated: read.never_isolated,
            never_penalised: read.never_penalised,
            last: read.is_last(),
        })
    }

    pub(crate) fn guard_of(&self, slot: u32, index: u16) -> Result<Option<abi::fief_guard>> {
        record::lookup(&self.map("guards")?, (slot * abi::FIEF_MAX_LISTENERS + u32::from(index)).bytes())
    }

    /// The entry of a source, if it is remembered.
    fn source(&self, from: IpAddr) -> Result<Option<abi::fief_source>> {
        let wanted = source_words(from);
        let sources: Vec<(u32, abi::fief_source)> = batch::entries(&self.map("sources")?)?;
        Ok(sources
            .into_iter()
            .map(|(_, source)| source)
            .find(|source| source.proven_ns != 0 && source.address == wanted))
    }

    /// The meters of the prefixes around it at a listener.
    fn meters_of(&self, from: IpAddr, index: u16) -> Result<Vec<abi::fief_meter>> {
        let meters: Vec<(u32, abi::fief_meter)> = batch::entries(&self.map("meters")?)?;
        let prefixes = prefixes(from);
        let is_of = |meter: &abi::fief_meter| {
            meter.window_ns != 0 && meter.listener == index && prefixes.contains(&(meter.prefix, meter.length))
        };
        Ok(meters.into_iter().map(|(_, meter)| meter).filter(is_of).collect())
    }

    /// How many of its requests wait, and how many the server has.
    fn queued(&self, read: &Read, listener: &Listener) -> Result<(u32, u32)> {
        let ports = listener.address.port()..=listener.last_port;
        let is_its = |flow: &abi::fief_flow_key| flow.remote == read.address && ports.contains(&flow.local_port);
        let holds: Vec<abi::fief_flow_key> = batch::keys(&self.map("queue_holds")?)?;
        // those whose place has run out are remembered for a while
        let has_place = |served: &abi::fief_served| served.ends > read.now;
        let serves: Vec<(abi::fief_flow_key, _)> = batch::entries_if(&self.map("queue_serves")?, has_place)?;
        let waiting = holds.iter().filter(|flow| is_its(flow)).count();
        let lasts: Vec<abi::fief_flow_key> = batch::keys(&self.map("queue_lasts")?)?;
        let in_service = serves.iter().map(|(flow, _)| flow).chain(&lasts).filter(|flow| is_its(flow)).count();
        Ok((waiting as u32, in_service as u32))
    }

    /// The rates that count it, in the order in which they are asked.
    fn budgets(
        &self,
        read: &Read,
        listener: &Listener,
        from: IpAddr,
        request: Option<&Request>,
    ) -> Result<Vec<Budget>> {
        let buckets: Vec<(u32, abi::fief_bucket)> = match inner::get(&self.map("bucket_tables")?, read.slot)? {
            Some(table) => batch::entries(&table)?,
            None => Vec::new(),
        };
        let of_sources: Vec<(u32, abi::fief_source_bucket)> = batch::entries(&self.map("source_buckets")?)?;
        let own = |number: u32| {
            let source = source_word(from);
            let is_own = |bucket: &abi::fief_source_bucket| {
                bucket.bucket == number
                    && u32::from(bucket.slot) == read.slot
                    && (bucket.source, bucket.ipv6 != 0) == (source, from.is_ipv6())
            };
            of_sources.iter().map(|(_, bucket)| bucket).find(|bucket| is_own(bucket)).map_or(0, |own| own.arrival_ns)
        };
        let find = |identity: u64| buckets.iter().find(|(_, bucket)| bucket.identity == identity);
        let mut budgets = Vec::new();
        if let Some((_, client)) = listener.client_of(from)
            && let Some(syn) = &client.syn
            && let Some((number, bucket)) = find(police::identity(&listener.name, client))
        {
            // of a proven source its connections count, which nobody forges
            let number = if read.connections_count() { *number } else { number | abi::FIEF_BUCKET_OF_SYNS };
            let is_own = bucket.kind == abi::FIEF_BUCKET_PER_SOURCE;
            let arrival = if is_own { own(number) } else { bucket.arrival_ns };
            let of = if is_own { "client-rule-source" } else { "client-rule" };
            budgets.push(Budget::cells(of, arrival, bucket, read.now, read.reaches(police::level(syn.when).into())));
        }
        let guard = &read.guard;
        if let Some(source) = &read.source
            && guard.proven_interval_ns != 0
        {
            let bucket = rate_of(guard.proven_interval_ns, guard.proven_tolerance_ns);
            budgets.push(Budget::cells("proven", source.arrival_ns, &bucket, read.now, true));
        }
        if read.source.is_none() && guard.unproven_interval_ns != 0 {
            let bucket = rate_of(guard.unproven_interval_ns, guard.unproven_tolerance_ns);
            let in_force = read.reaches(guard.unproven_level);
            budgets.push(Budget::cells("unproven", read.load.unproven_arrival_ns, &bucket, read.now, in_force));
        }
        if let Some(request) = request
            && request.rate.is_some()
            && let Some((number, bucket)) = find(police::identity(&listener.name, request))
        {
            let in_force = read.reaches(police::level(request.when).into());
            budgets.push(match bucket.kind {
                abi::FIEF_BUCKET_CPU => Budget::time("request-rule", bucket, read.now, in_force),
                abi::FIEF_BUCKET_PER_SOURCE => {
                    Budget::cells("request-rule-source", own(*number), bucket, read.now, in_force)
                }
                _ => Budget::cells("request-rule", bucket.arrival_ns, bucket, read.now, in_force),
            });
        }
        Ok(budgets)
    }
}

fn rate_of(interval_ns: u64, tolerance_ns: u64) -> abi::fief_bucket {
    abi::fief_bucket { interval_ns, tolerance_ns, ..Default::default() }
}

fn is_in(nets: &[IpNet], from: IpAddr) -> bool {
    nets.iter().any(|net| net.contains(&from))
}

fn level(number: u32) -> Level {
    match number {
        abi::FIEF_ALWAYS => Level::Always,
        abi::FIEF_BUSY => Level::Busy,
        _ => Level::Overloaded,
    }
}

/// An address as the kernel side has it: IPv4 mapped.
pub(crate) fn mapped(from: IpAddr) -> [u8; 16] {
    match from {
        IpAddr::V4(v4) => v4.to_ipv6_mapped().octets(),
        IpAddr::V6(v6) => v6.octets(),
    }
}

/// IPv4 in the bits of a mapped address.
pub(crate) const V4_BITS: u8 = 96;

/// A prefix as tables of mapped addresses have it: its first address, and how many bits of that.
pub(crate) fn mapped_prefix(net: &IpNet) -> ([u8; 16], u32) {
    let family = if let IpNet::V4(_) = net { V4_BITS } else { 0 };
    (mapped(net.network()), u32::from(family + net.prefix_len()))
}

/// What a source is: an IPv4 address, or the /64 of an IPv6 one.
fn source_words(from: IpAddr) -> [u8; 16] {
    let mut words = mapped(from);
    if from.is_ipv6() {
        words[8..].fill(0);
    }
    words
}

/// The same in the word that buckets of single sources have.
fn source_word(from: IpAddr) -> u64 {
    let words = mapped(from);
    let at = if from.is_ipv6() { 0 } else { 8 };
    u64::from_ne_bytes(words[at..at + 8].try_into().expect("half of an address"))
}

/// The prefixes around it that are metered.
fn prefixes(from: IpAddr) -> Vec<([u8; 16], u8)> {
    let cut = |length: u8| {
        let net = IpNet::new(from, length).expect("lengths of the address's own family").trunc();
        (mapped(net.addr()), length)
    };
    match from {
        IpAddr::V4(_) => vec![cut(IPV4_PREFIX)],
        IpAddr::V6(_) => IPV6_PREFIXES.map(cut).to_vec(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_source_is_its_address_or_its_slash_64() {
        let (v4, v6) = ("10.88.3.4".parse().expect("IPv4"), "fd77:1:2:3:4::5".parse().expect("IPv6"));
        assert_eq!(source_words(v4)[10..], [0xff, 0xff, 10, 88, 3, 4]);
        assert_eq!(source_words(v6)[6..10], [0, 3, 0, 0]);
        assert_eq!(source_word(v4).to_ne_bytes(), [0, 0, 0xff, 0xff, 10, 88, 3, 4]);
        assert_eq!(source_word(v6).to_ne_bytes(), [0xfd, 0x77, 0, 1, 0, 2, 0, 3]);
        assert_eq!(prefixes(v4)[0].0[12..], [10, 88, 3, 0]);
        assert_eq!(prefixes(v6).iter().map(|(_, length)| *length).collect::<Vec<_>>(), [64, 48]);
    }
}
