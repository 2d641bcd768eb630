// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Ban and pardon: what an operator decides about a client by name, beside the rules.
//!
//! A ban ends by itself: the kernel side compares its end with the time. It finds the longest prefix alone, so each prefix has the
//! latest end of those around it. A pardon ends bans, penalties and isolations at once.
//! Limits: bans go with `fief down`, and stay over `fief apply`.

use std::collections::HashSet;
use std::mem::offset_of;
use std::net::{IpAddr, Ipv6Addr};
use std::time::Duration;

use fief_bpf::map::{MapCore, MapFlags, MapHandle};
use fief_bpf::record::{self, Record};
use fief_bpf::{Context, Error, ErrorKind, Result, abi, batch, word};
use ipnet::{IpNet, Ipv4Net, Ipv6Net};
use serde::{Deserialize, Serialize};

use crate::Fief;
use crate::charge::now_ns;
use crate::client::{V4_BITS, mapped_prefix};
use crate::names::Names;
use crate::verdicts::{prefix_text, source};
use fief_policy::Mode;

/// A prefix that is shut out.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ban {
    /// Whom.
    pub prefix: IpNet,
    /// Since when, by CLOCK_MONOTONIC.
    pub since_ns: u64,
    /// When it ends, by CLOCK_MONOTONIC.
    pub until_ns: u64,
    /// For so long still.
    pub remaining_ns: u64,
}

/// What banning changed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Banned {
    /// It as it is now.
    pub ban: Ban,
    /// It as it was before.
    pub before: Option<Ban>,
    /// The one around it that ends later, and shuts it out until then.
    pub within: Option<Ban>,
    /// What the operator should know.
    pub notes: Vec<String>,
}

/// What a pardon ended.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Pardoned {
    /// Bans of the prefix and of what is in it.
    pub bans: Vec<Ban>,
    /// Sources that had a penalty.
    pub penalties: Vec<String>,
    /// Isolated prefixes around it and in it, each with its listener.
    pub isolations: Vec<(String, String)>,
    /// Bans of wider prefixes, which stay.
    pub still: Vec<Ban>,
}

impl Fief {
    /// Shuts a prefix out for this long from now on, at every guarded listener.
    pub fn ban(&self, prefix: IpNet, time: Duration) -> Result<Banned> {
        if fief_policy::has_mapped(&prefix) {
            let what = format!("{prefix} would be a ban of all of IPv4 too");
            return Err(Error::new(ErrorKind::Other, what).remedy("ban 2000::/3 for the Internet of IPv6"));
        }
        self.require_installed()?;
        let _lock = self.lock()?;
        let prefix = prefix.trunc();
        let map = self.bans_map()?;
        let now = now_ns()?;
        let mut bans = running(&map, now)?;
        let before = bans.iter().position(|ban| ban.prefix == prefix).map(|at| bans.remove(at));
        let remaining_ns = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX / 2).min(u64::MAX / 2);
        let since_ns = before.as_ref().map_or(now, |before| before.since_ns);
        let ban = Ban { prefix, since_ns, until_ns: now.saturating_add(remaining_ns), remaining_ns };
        bans.push(ban.clone());
        self.write_bans(&map, &mut bans)?;
        let around = |other: &&Ban| other.prefix != prefix && other.prefix.contains(&prefix);
        let within = bans.iter().filter(around).max_by_key(|other| other.until_ns);
        let within = within.filter(|other| other.until_ns > ban.until_ns).cloned();
        Ok(Banned { ban, before, within, notes: guarding_notes(&self.names()?) })
    }

    /// The bans that have not ended, by prefix.
    pub fn bans(&self) -> Result<Vec<Ban>> {
        self.require_installed()?;
        running(&self.bans_map()?, now_ns()?)
    }

    /// Ends what keeps a prefix out: bans of it and of what is in it, penalties of its sources, isolations around it and in it.
    pub fn pardon(&self, prefix: IpNet) -> Result<Pardoned> {
        self.require_installed()?;
        let _lock = self.lock()?;
        let (prefix, now) = (prefix.trunc(), now_ns()?);
        let map = self.bans_map()?;
        let (bans, mut stay): (Vec<_>, Vec<_>) =
            running(&map, now)?.into_iter().partition(|ban| prefix.contains(&ban.prefix));
        self.write_bans(&map, &mut stay)?;
        let still = stay.into_iter().filter(|ban| ban.prefix.contains(&prefix)).collect();
        let (penalties, isolations) = (self.end_penalties(prefix, now)?, self.end_isolations(prefix, now)?);
        Ok(Pardoned { bans, penalties, isolations, still })
    }

    fn bans_map(&self) -> Result<MapHandle> {
        self.map("bans").map_err(|error| match error.kind() {
            ErrorKind::NotFound => Error::new(ErrorKind::NotFound, "what is in force is of a version without bans")
                .remedy("apply the policy again: fief apply FILE"),
            _ => error,
        })
    }

    /// Writes each ban with the latest end around it, and removes all others.
    fn write_bans(&self, map: &MapHandle, bans: &mut [Ban]) -> Result<()> {
        if bans.len() > abi::FIEF_BANS as usize {
            let what = format!("{} bans are too many; {} are possible", bans.len(), abi::FIEF_BANS);
            return Err(Error::new(ErrorKind::Full, what).remedy("ban wider prefixes"));
        }
        let what = || "cannot write the table of bans".to_owned();
        let wanted: Vec<_> = records(bans);
        let keys: HashSet<_> = wanted.iter().map(|(key, _)| key.bytes().to_vec()).collect();
        let gone: Vec<_> = map.keys().filter(|key| !keys.contains(key)).collect();
        for key in gone {
            map.delete(&key).context(what)?;
        }
        for (key, record) in &wanted {
            map.update(key.bytes(), record.bytes(), MapFlags::ANY).context(what)?;
        }
        record::update(&self.map("ban_counts")?, 0, &(bans.len() as u32))
    }

    /// Of the sources in a prefix; an IPv6 source is its /64.
    fn end_penalties(&self, prefix: IpNet, now: u64) -> Result<Vec<String>> {
        let map = self.map("sources")?;
        let sources: Vec<(u32, abi::fief_source)> = batch::entries(&map)?;
        let is_in = |(_, record): &&(u32, abi::fief_source)| {
            record.proven_ns != 0 && record.penalty_until_ns > now && overlap(prefix, source_net(&record.address))
        };
        let ended: Vec<_> = sources.iter().filter(is_in).collect();
        let places: Vec<u32> = ended.iter().map(|(at, _)| *at).collect();
        word::store(&map, &places, offset_of!(abi::fief_source, penalty_until_ns), 0)?;
        let mut names: Vec<_> = ended.iter().map(|(_, record)| source(&record.address)).collect();
        names.sort();
        Ok(names)
    }

    /// An isolated prefix keeps its place, and nobody else writes its end but a SYN above the threshold, which may begin the
    /// isolation anew all the same.
    fn end_isolations(&self, prefix: IpNet, now: u64) -> Result<Vec<(String, String)>> {
        let (map, names) = (self.map("meters")?, self.names()?);
        let meters: Vec<(u32, abi::fief_meter)> = batch::entries(&map)?;
        let mut ended = Vec::new();
        for (at, meter) in meters {
            let net = meter_net(&meter);
            if meter.isolated_until_ns <= now || !net.is_some_and(|net| overlap(prefix, net)) {
                continue;
            }
            let fresh = abi::fief_meter { isolated_until_ns: 0, syns: 0, window_ns: now, ..meter };
            record::update(&map, at, &fresh)?;
            ended.push((names.listener(meter.listener), prefix_text(&meter.prefix, meter.length)));
        }
        ended.sort();
        Ok(ended)
    }
}

/// A prefix as people write it: a single address without its length.
pub fn name(prefix: IpNet) -> String {
    if prefix.prefix_len() == prefix.max_prefix_len() { prefix.addr().to_string() } else { prefix.to_string() }
}

impl Ban {
    /// Whom, as people write it: a single address without its length.
    pub fn name(&self) -> String {
        name(self.prefix)
    }
}

/// Where a ban does nothing.
fn guarding_notes(names: &Names) -> Vec<String> {
    let Some(policy) = names.policy() else { return Vec::new() };
    let guarded: Vec<_> = policy.listeners.iter().filter(|listener| listener.is_guarded()).collect();
    let watches = |mode: Mode| policy.mode == Mode::Monitor || mode == Mode::Monitor;
    let mut notes = Vec::new();
    if guarded.is_empty() {
        notes.push("no listener of the policy in force is guarded, so this ban drops nothing".to_owned());
    }
    for listener in guarded.iter().filter(|listener| watches(listener.mode)) {
        notes.push(format!(
            "listener {} is in monitor mode: what this ban would drop there is counted, and passes",
            listener.name
        ));
    }
    let open = policy.listeners.iter().filter(|listener| !listener.is_guarded() && !guarded.is_empty());
    notes.extend(open.map(|listener| format!("nothing stands before listener {}: it is open to all", listener.name)));
    notes
}

/// Those whose end has not come, by prefix.
fn running(map: &MapHandle, now: u64) -> Result<Vec<Ban>> {
    let mut bans = Vec::new();
    for key in map.keys() {
        let Some(record) = record::lookup::<abi::fief_ban>(map, &key)? else { continue };
        let Some(prefix) = abi::fief_ban_key::from_bytes(&key).and_then(|key| net_of(&key)) else { continue };
        if record.own_until_ns > now {
            let remaining_ns = record.own_until_ns - now;
            bans.push(Ban { prefix, since_ns: record.since_ns, until_ns: record.own_until_ns, remaining_ns });
        }
    }
    bans.sort_by_key(|ban| ban.prefix);
    Ok(bans)
}

/// Each with its key and the latest end of those around it.
fn records(bans: &mut [Ban]) -> Vec<(abi::fief_ban_key, abi::fief_ban)> {
    // a prefix stands before those in it
    bans.sort_by_key(|ban| ban.prefix);
    let mut around: Vec<(IpNet, u64)> = Vec::new();
    let record = |ban: &Ban| {
        while around.last().is_some_and(|(outer, _)| !outer.contains(&ban.prefix)) {
            around.pop();
        }
        let until_ns = around.last().map_or(0, |(_, until)| *until).max(ban.until_ns);
        around.push((ban.prefix, until_ns));
        (key_of(ban.prefix), abi::fief_ban { until_ns, own_until_ns: ban.until_ns, since_ns: ban.since_ns })
    };
    bans.iter().map(record).collect()
}

fn key_of(prefix: IpNet) -> abi::fief_ban_key {
    let (address, bits) = mapped_prefix(&prefix);
    abi::fief_ban_key { bits, address }
}

fn net_of(key: &abi::fief_ban_key) -> Option<IpNet> {
    let (address, bits) = (Ipv6Addr::from(key.address), u8::try_from(key.bits).ok()?);
    match address.to_ipv4_mapped() {
        Some(v4) if bits >= V4_BITS => Ipv4Net::new(v4, bits - V4_BITS).ok().map(IpNet::V4),
        _ => Ipv6Net::new(address, bits).ok().map(IpNet::V6),
    }
}

/// What a source of the kernel side's table is: an IPv4 address, or an IPv6 /64.
fn source_net(address: &[u8; 16]) -> IpNet {
    match crate::verdicts::address(address) {
        IpAddr::V4(v4) => IpNet::from(IpAddr::V4(v4)),
        IpAddr::V6(v6) => IpNet::V6(Ipv6Net::new(v6, 64).expect("at most 128").trunc()),
    }
}

fn meter_net(meter: &abi::fief_meter) -> Option<IpNet> {
    IpNet::new(crate::verdicts::address(&meter.prefix), meter.length).ok()
}

fn overlap(one: IpNet, other: IpNet) -> bool {
    one.contains(&other) || other.contains(&one)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn net(text: &str) -> IpNet {
        text.parse().expect("a prefix")
    }

    fn ban(prefix: &str, until_ns: u64) -> Ban {
        Ban { prefix: net(prefix), since_ns: 1, until_ns, remaining_ns: until_ns }
    }

    #[test]
    fn a_ban_within_another_has_the_later_end_of_both() {
        let mut bans = [
            ban("10.1.1.1/32", 200),
            ban("10.2.0.0/16", 70),
            ban("fd77::/16", 900),
            ban("10.1.0.0/16", 50),
            ban("10.0.0.0/8", 100),
            ban("11.0.0.0/8", 20),
        ];
        let ends: Vec<_> =
            records(&mut bans).iter().map(|(_, record)| (record.until_ns, record.own_until_ns)).collect();
        assert_eq!(ends, [(100, 100), (100, 50), (200, 200), (100, 70), (20, 20), (900, 900)]);
    }

    #[test]
    fn a_prefix_is_a_key_and_back() {
        for text in ["10.0.0.0/8", "10.1.2.3/32", "fd77:1::/48", "fd77::1/128", "::/0"] {
            assert_eq!(net_of(&key_of(net(text))), Some(net(text)), "{text}");
        }
        assert_eq!(key_of(net("10.0.0.0/8")).bits, 104);
    }

    #[test]
    fn a_pardon_of_an_address_is_about_the_prefix_around_it_too() {
        assert!(overlap(net("10.88.3.4/32"), net("10.88.3.0/24")));
        assert!(overlap(net("10.88.0.0/16"), net("10.88.3.0/24")));
        assert!(!overlap(net("10.88.4.4/32"), net("10.88.3.0/24")));
        assert!(!overlap(net("::/0"), net("10.88.3.0/24")), "families are apart");
    }
}
