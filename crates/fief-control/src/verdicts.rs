// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The front door's verdicts with their reasons: counters by listener, container, rule and reason; the level of overload of
//! each listener; the isolated prefixes. All of it is read from the kernel side's tables; this module changes nothing.

use std::collections::HashSet;
use std::net::{IpAddr, Ipv6Addr};

use fief::Reason;
use fief_bpf::abi;
use fief_bpf::map::MapHandle;
use fief_bpf::record::{self, Record};
use fief_bpf::table::{self, Table, entries_in_place};
use fief_bpf::{Result, batch, ingress};
use serde::{Deserialize, Serialize};

use crate::charge::now_ns;
use crate::names::{Listeners, Names};
use crate::queue::QueueView;
use crate::{Fief, wire};
use fief_policy::{Listener, Policy};

/// How often a verdict fell.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct VerdictView {
    /// Name of the listener in the policy in force; its number if that policy does not have it.
    pub listener: String,
    /// Path of the container that it is counted for.
    pub container: String,
    /// Which rule, counted from 1 in the order of the file: of the listener's clients or, for a request, of its requests.
    pub rule: Option<u32>,
    /// Why.
    pub reason: Reason,
    /// Monitor mode: it was let pass all the same.
    pub monitored: bool,
    /// How often, since the policy was first applied.
    pub count: u64,
}

impl VerdictView {
    /// Which client rule, counted from 1: of what happens to connection requests.
    pub fn client_rule(&self) -> Option<u32> {
        self.rule.filter(|_| !self.reason.is_request())
    }

    /// Which request rule, counted from 1.
    pub fn request_rule(&self) -> Option<u32> {
        self.rule.filter(|_| self.reason.is_request())
    }

    /// A verdict that fell so often; `None`: a reason that this version does not know.
    pub(crate) fn new(key: &abi::fief_verdict_key, count: u64, names: &Names) -> Option<Self> {
        Some(Self {
            listener: names.listener(key.listener),
            container: names.container(key.container),
            rule: (key.rule != abi::FIEF_NO_ID).then(|| key.rule + 1),
            reason: Reason::from_number(key.reason.into())?,
            monitored: key.monitored != 0,
            count,
        })
    }
}

/// How loaded a listener is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LoadView {
    /// Name of the listener.
    pub listener: String,
    /// `always` (not loaded), `busy` or `overloaded`.
    #[serde(deserialize_with = "wire::word")]
    pub level: wire::Word,
    /// Connections that wait for accept, of the queue's length.
    pub queue_percent: u32,
    /// CPU time of the machine that was spent for somebody: not idle, and not on packets that found no socket of a
    /// managed unit. In parts per million; `None`: no CPU time was charged.
    pub cpu_ppm: Option<u32>,
    /// Connections that found the listen queue full, in the last second it looked at.
    pub drops_per_second: u32,
    /// How long ago the kernel side looked; it does when a connection request comes.
    pub age_ns: u64,
}

/// Sources whose connection requests, or packets, are dropped for a while.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ShutOut {
    /// An address, or a prefix as `10.88.3.0/24`.
    pub source: String,
    /// `isolated`: it sends too many; `penalty`: its request was refused; `banned`: the operator says so.
    pub why: Reason,
    /// For so long still.
    pub remaining_ns: u64,
}

/// The front door at one moment.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct FrontView {
    /// When, by CLOCK_MONOTONIC.
    pub taken_ns: u64,
    /// Interfaces that it stands at, by name where they are this namespace's.
    pub interfaces: Vec<String>,
    /// Listeners of the policy in force, by name.
    pub listeners: Vec<String>,
    /// In the order of listener, container, reason.
    pub verdicts: Vec<VerdictView>,
    /// Of each listener of the policy that was looked at.
    pub loads: Vec<LoadView>,
    /// Requests that wait in front of servers.
    pub queues: Vec<QueueView>,
    /// Who is shut out now.
    pub shut_out: Vec<ShutOut>,
    /// Sources that have returned a cookie, as far as the table remembers.
    pub proven_sources: usize,
    /// What has changed on the machine since the policy was applied, and what to do.
    pub notes: Vec<String>,
}

impl Fief {
    /// Reads the front door's counters and tables.
    pub fn front(&self) -> Result<FrontView> {
        self.require_installed()?;
        self.front_of(&self.names()?)
    }

    pub(crate) fn front_of(&self, names: &Names) -> Result<FrontView> {
        let taken_ns = now_ns()?;
        let is_known = |source: &abi::fief_source| source.proven_ns != 0 || source.penalty_until_ns > taken_ns;
        let sources: Vec<(u32, abi::fief_source)> = entries_in_place(self.pins(), "sources", is_known)?;
        Ok(FrontView {
            taken_ns,
            interfaces: self.interfaces(),
            listeners: names.listeners().map(|(_, name)| name.to_owned()).collect(),
            verdicts: self.verdicts(names)?,
            loads: self.loads(names, taken_ns)?,
            queues: self.queues(names)?,
            shut_out: self.shut_out(&sources, taken_ns)?,
            proven_sources: sources.iter().filter(|(_, source)| source.proven_ns != 0).count(),
            notes: self.front_notes(names)?,
        })
    }

    /// What the operator should know of the front door.
    pub(crate) fn front_notes(&self, names: &Names) -> Result<Vec<String>> {
        Ok(self.outdated(names)?.into_iter().chain(self.uncounted()?).collect())
    }

    /// What verdicts were not counted, since there were too many kinds of them.
    fn uncounted(&self) -> Result<Option<String>> {
        let lost = table::control(self.pins())?.errors[abi::FIEF_ERR_VERDICT as usize];
        Ok((lost > 0).then(|| {
            format!(
                "{lost} verdicts were not counted: the table of counters was full; `fief apply` makes room, as far as \
                 counters are of containers and listeners that are gone"
            )
        }))
    }

    /// Listeners whose rules are others than in the policy in force, by number: what was counted by rule is not theirs.
    /// `slot`: of the policy in force; `renamed`: old and new paths of containers, which change no rule.
    pub(crate) fn changed_listeners(
        &self,
        policy: &Policy,
        slot: u32,
        renamed: &[(String, String)],
    ) -> Result<Vec<u16>> {
        let listeners = Listeners::read(self, slot)?;
        let Some(before) = listeners.policy() else { return Ok(Vec::new()) };
        let same = |name: &str| {
            let old = before.listener(name).map(|old| with_names(old, renamed));
            let new = policy.listener(name);
            old.zip(new).is_some_and(|(old, new)| (&old.clients, &old.requests) == (&new.clients, &new.requests))
        };
        Ok(listeners.all().filter(|(_, name)| !same(name)).map(|(index, _)| index).collect())
    }

    /// Lets go of what these listeners counted by rule. The rest of their counters goes on.
    pub(crate) fn forget_rules_of(&self, listeners: &[u16]) -> Result<()> {
        if listeners.is_empty() {
            return Ok(());
        }
        let map = self.map("verdicts")?;
        let keys: Vec<abi::fief_verdict_key> = batch::sums(&map)?.into_iter().map(|(key, _)| key).collect();
        let theirs = |key: &abi::fief_verdict_key| key.rule != abi::FIEF_NO_ID && listeners.contains(&key.listener);
        let gone: Vec<_> = keys.into_iter().filter(theirs).collect();
        batch::delete(&map, &gone)
    }

    /// Lets go of the counters of containers that have ended and of listeners that the policy in force does not have.
    pub(crate) fn prune_verdicts(&self, table: &Table) -> Result<()> {
        let map = self.map("verdicts")?;
        let listeners: HashSet<u16> = self.steer_tables()?.indexes(table.policy().0 as u8)?.into_values().collect();
        let counted: Vec<(abi::fief_verdict_key, u64)> = batch::sums(&map)?;
        let ended = |container: abi::fief_ref| {
            container.id != abi::FIEF_NO_ID && table.row(container.id).is_none_or(|row| row.container != container)
        };
        // what belongs to no listener is of all
        let has_listener = |index: u16| u32::from(index) == abi::FIEF_NO_LISTENER || listeners.contains(&index);
        let gone = |key: &abi::fief_verdict_key| ended(key.container) || !has_listener(key.listener);
        let gone: Vec<_> = counted.into_iter().map(|(key, _)| key).filter(gone).collect();
        batch::delete(&map, &gone)
    }

    /// Counters by listener, container, rule and reason; what never happened is not there.
    fn verdicts(&self, names: &Names) -> Result<Vec<VerdictView>> {
        let counted: Vec<(abi::fief_verdict_key, u64)> = batch::sums(&self.map("verdicts")?)?;
        let mut views: Vec<_> =
            counted.iter().filter_map(|(key, count)| VerdictView::new(key, *count, names)).collect();
        views.sort_by(|a, b| {
            let order = |view: &VerdictView| (view.listener.clone(), view.container.clone(), view.reason, view.rule);
            order(a).cmp(&order(b)).then(a.monitored.cmp(&b.monitored))
        });
        Ok(views)
    }

    fn loads(&self, names: &Names, now: u64) -> Result<Vec<LoadView>> {
        let loads = self.map("loads")?;
        let mut views = Vec::new();
        for (index, listener) in names.listeners() {
            let load: Option<abi::fief_load> = record::lookup(&loads, u32::from(index).bytes())?;
            let Some(load) = load.filter(|load| load.looked_ns != 0) else { continue };
            views.push(LoadView {
                listener: listener.to_owned(),
                level: level(load.level),
                queue_percent: load.queue_percent,
                cpu_ppm: (load.cpus > 0).then_some(load.cpu_ppm),
                drops_per_second: load.drops,
                age_ns: now.saturating_sub(load.looked_ns),
            });
        }
        Ok(views)
    }

    fn shut_out(&self, sources: &[(u32, abi::fief_source)], now: u64) -> Result<Vec<ShutOut>> {
        let is_isolated = |meter: &abi::fief_meter| meter.isolated_until_ns > now;
        let meters: Vec<(u32, abi::fief_meter)> = entries_in_place(self.pins(), "meters", is_isolated)?;
        let prefixes = meters.iter().map(|(_, meter)| ShutOut {
            source: prefix_text(&meter.prefix, meter.length),
            why: Reason::SynIsolated,
            remaining_ns: meter.isolated_until_ns - now,
        });
        let own = sources.iter().filter(|(_, source)| source.penalty_until_ns > now).map(|(_, source)| ShutOut {
            source: self::source(&source.address),
            why: Reason::SynPenalty,
            remaining_ns: source.penalty_until_ns - now,
        });
        // what is in force may be of a version without bans
        let bans = self.bans().unwrap_or_default().into_iter().map(|ban| ShutOut {
            source: crate::ban::name(ban.prefix),
            why: Reason::Banned,
            remaining_ns: ban.remaining_ns,
        });
        let mut views: Vec<_> = prefixes.chain(own).chain(bans).collect();
        views.sort_by(|a, b| (a.why, &a.source).cmp(&(b.why, &b.source)));
        Ok(views)
    }

    pub(crate) fn interfaces(&self) -> Vec<String> {
        let labels = crate::front::Labels::read();
        ingress::attached(self.pins()).into_iter().map(|at| labels.of(at)).collect()
    }

    pub(crate) fn map(&self, name: &str) -> Result<MapHandle> {
        self.pins().open_map(name)
    }

    pub(crate) fn names(&self) -> Result<Names> {
        Names::read(self, &Table::open(self.pins())?)
    }
}

/// A listener whose containers have their new names.
fn with_names(listener: &Listener, renamed: &[(String, String)]) -> Listener {
    let mut listener = listener.clone();
    let paths = listener.clients.iter_mut().map(|client| &mut client.container);
    for path in paths.chain(listener.requests.iter_mut().filter_map(|request| request.container.as_mut())) {
        if let Some((_, new)) = renamed.iter().find(|(old, _)| old == path) {
            path.clone_from(new);
        }
    }
    listener
}

/// The word of a level of overload.
pub(crate) fn level(level: u32) -> &'static str {
    match level {
        abi::FIEF_ALWAYS => "always",
        abi::FIEF_BUSY => "busy",
        _ => "overloaded",
    }
}

/// An address of the kernel side's: IPv4 mapped, or IPv6.
pub(crate) fn address(bytes: &[u8; 16]) -> IpAddr {
    let v6 = Ipv6Addr::from(*bytes);
    v6.to_ipv4_mapped().map_or(IpAddr::V6(v6), IpAddr::V4)
}

/// A source: an IPv4 address or an IPv6 /64.
pub(crate) fn source(bytes: &[u8; 16]) -> String {
    match address(bytes) {
        IpAddr::V4(v4) => v4.to_string(),
        IpAddr::V6(v6) => format!("{v6}/64"),
    }
}

/// What isolation takes together: an IPv4 /24, an IPv6 /64 or /48.
pub(crate) fn prefix_text(bytes: &[u8; 16], length: u8) -> String {
    format!("{}/{length}", address(bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sources_and_prefixes_are_written_as_people_write_them() {
        let v4 = "10.88.3.0".parse::<std::net::Ipv4Addr>().expect("an address").to_ipv6_mapped().octets();
        assert_eq!((source(&v4), prefix_text(&v4, 24)), ("10.88.3.0".to_owned(), "10.88.3.0/24".to_owned()));
        let v6 = "fd77:1::".parse::<Ipv6Addr>().expect("an address").octets();
        assert_eq!((source(&v6), prefix_text(&v6, 48)), ("fd77:1::/64".to_owned(), "fd77:1::/48".to_owned()));
    }
}
