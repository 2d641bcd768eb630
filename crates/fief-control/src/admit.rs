// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Admit: which requests come in, as the kernel side's records. The kernel side reads and matches requests
//! (`bpf/front/match.bpf.h`). Here a policy's request rules become shapes of a guard, keys of the rule table and their Bloom
//! filter.

use fief_bpf::{Error, ErrorKind, Result, abi};
use fief_policy::{Listener, Part, Policy, Refusal, Request, RequestRate, RequestTable, ShapeCondition};

use crate::blooms::Blooms;
use crate::charge::online_cpus;
use crate::police::{self, Buckets};
use crate::staging::Staging;

/// Adds the request rules of a listener, to its guard too.
pub(crate) fn stage(
    policy: &Policy,
    listener: &Listener,
    guard: &mut abi::fief_guard,
    staging: &mut Staging,
    container: &impl Fn(&str) -> Option<abi::fief_ref>,
) -> Result<()> {
    if listener.requests.is_empty() {
        return Ok(());
    }
    let table = listener.request_table(staging.secret);
    add_shapes(listener, &table, guard, &mut staging.blooms)?;
    let records = listener
        .requests
        .iter()
        .zip(0..)
        .map(|(request, rule)| {
            let record = self::rule(policy, listener, request, rule, &mut staging.buckets, container)?;
            staging.rules.add_record(&record)
        })
        .collect::<Result<Vec<_>>>()?;
    let keys: Vec<_> = table.patterns.iter().map(|pattern| (pattern.key(), records[pattern.rule as usize])).collect();
    guard.patterns = staging.rules.add_keys(&keys)?;
    Ok(())
}

fn add_shapes(
    listener: &Listener,
    table: &RequestTable,
    guard: &mut abi::fief_guard,
    blooms: &mut Blooms,
) -> Result<()> {
    if table.shapes.len() > guard.shape.len() {
        return Err(full(listener, "combinations of conditions", guard.shape.len()));
    }
    if table.names.len() > guard.name.len() {
        return Err(full(listener, "names of headers and cookies", guard.name.len()));
    }
    let placed = blooms.place(&table.bloom).ok_or_else(|| full(listener, "words of filters", 1))?;
    (guard.bloom, guard.bloom_mask) = (placed.first.into(), placed.mask.into());
    guard.name[..table.names.len()].copy_from_slice(&table.names);
    for (part, flag) in [(Part::Header, abi::FIEF_GUARD_HEADERS), (Part::Cookie, abi::FIEF_GUARD_COOKIES)] {
        guard.flags |= if table.compares(part) { flag } else { 0 };
    }
    if table.compares(Part::ServerName) || table.compares(Part::Alpn) {
        guard.flags |= abi::FIEF_GUARD_NAMES;
    }
    guard.shapes = table.shapes.len() as u32;
    for (to, shape) in guard.shape.iter_mut().zip(&table.shapes) {
        to.first_rule = shape.first_rule;
        to.conditions = shape.conditions.len() as u32;
        for (to, condition) in to.condition.iter_mut().zip(&shape.conditions) {
            *to = self::condition(condition);
        }
    }
    Ok(())
}

fn condition(condition: &ShapeCondition) -> abi::fief_condition {
    abi::fief_condition {
        field: condition.part as u8,
        match_: condition.comparison as u8,
        name: condition.name,
        pad: 0,
        length: condition.length,
        least: condition.least,
    }
}

fn rule(
    policy: &Policy,
    listener: &Listener,
    request: &Request,
    rule: u32,
    buckets: &mut Buckets,
    container: &impl Fn(&str) -> Option<abi::fief_ref>,
) -> Result<abi::fief_request> {
    let place = match &request.container {
        None => abi::fief_ref { id: abi::FIEF_NO_ID, generation: 0 },
        Some(path) => container(path).ok_or_else(|| {
            Error::new(ErrorKind::NotFound, format!("listener {}: there is no container {path}", listener.name))
        })?,
    };
    let bucket = request.rate.map_or(0, |rate| {
        let identity = police::identity(&listener.name, request);
        buckets.add(bucket(rate, place, online_cpus()), identity)
    });
    let refusal = match request.refusal {
        Some(Refusal::Unavailable) => abi::FIEF_REFUSE_503,
        Some(Refusal::TooMany) => abi::FIEF_REFUSE_429,
        Some(Refusal::Reset) => abi::FIEF_REFUSE_RESET,
        Some(Refusal::Drop) | None => abi::FIEF_REFUSE_DROP,
    };
    Ok(abi::fief_request {
        rule,
        bucket,
        container: place,
        penalty_ns: request.penalty_ns,
        retry_after_s: request.retry_after_s,
        refuse: request.refuses_all().into(),
        refusal: refusal as u8,
        level: police::level(request.when),
        monitor: police::is_monitor([policy.mode, listener.mode, request.mode]),
        unqueued: request.unqueued.into(),
        ..Default::default()
    })
}

/// CPU time: what a second of wall clock grants is that part of all CPUs.
fn bucket(rate: RequestRate, container: abi::fief_ref, cpus: u32) -> abi::fief_bucket {
    match rate {
        RequestRate::Requests { per_second, burst, per } => {
            let (interval_ns, tolerance_ns) = police::rate(per_second, burst);
            abi::fief_bucket { interval_ns, tolerance_ns, kind: police::kind(per), ..Default::default() }
        }
        RequestRate::Cpu { ppm, burst_ns } => {
            let granted_us = (u64::from(ppm) * u64::from(cpus.max(1))).max(1);
            let interval_ns = ((1_000_000_000 + granted_us / 2) / granted_us).max(1);
            let tolerance_ns = (burst_ns / 1000).saturating_mul(interval_ns);
            abi::fief_bucket { interval_ns, tolerance_ns, container, kind: abi::FIEF_BUCKET_CPU, ..Default::default() }
        }
    }
}

fn full(listener: &Listener, what: &str, room: usize) -> Error {
    Error::new(ErrorKind::Full, format!("listener {}: its request rules need more than {room} {what}", listener.name))
        .remedy("put rules together, or leave some out")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cpu_time_is_a_part_of_all_cpus() {
        let container = abi::fief_ref { id: 9, generation: 1 };
        let rate = RequestRate::Cpu { ppm: 200_000, burst_ns: 50_000_000 };
        // a fifth of two CPUs is 400 ms a second: each microsecond of CPU is worth 2.5 of wall clock
        let bucket = bucket(rate, container, 2);
        assert_eq!((bucket.interval_ns, bucket.tolerance_ns), (2500, 125_000_000));
        assert_eq!((bucket.container, bucket.kind), (container, abi::FIEF_BUCKET_CPU));
    }
}
