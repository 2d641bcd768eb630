// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Finds rules that never match, and clients that no rule matches.
//!
//! Exact: `sweep` knows the rules that match on every region, so a rule matches some client if and only if it is the
//! first one on some region that is not empty. Unions of earlier prefixes, complements and the families are in that.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::ops::Range;

use crate::diagnostic::{Findings, Kind};
use crate::listeners::Rule;
use crate::model::From;
use crate::sweep::{self, Universe};

/// `local`: the listener's address, if it could be read; else both families are taken to reach it.
pub(crate) fn check(
    listener: &str,
    header: &Range<usize>,
    local: Option<IpAddr>,
    rules: &[Rule],
    findings: &mut Findings,
) {
    let universe = local.map_or(Universe::Both, Universe::of);
    let (positions, sources): (Vec<usize>, Vec<&From>) = rules
        .iter()
        .enumerate()
        .filter_map(|(index, rule)| Some((index, rule.from.as_ref()?)))
        .unzip();
    let reach = Reach::of(&sources, universe);

    for (&shadowed, winners) in &reach.shadowed {
        let rule = &rules[positions[shadowed]];
        let number = positions[shadowed] + 1;
        let winners: Vec<usize> = winners.iter().map(|&winner| positions[winner]).collect();
        let is_catch_all = *sources[shadowed] == From::Any;
        let (message, remedy) = match (&winners[..], universe) {
            ([], Universe::Ipv4 | Universe::Ipv6)
                if has_other_family(sources[shadowed], universe) =>
            {
                let (has, takes) = if universe == Universe::Ipv4 {
                    ("IPv6", "IPv4")
                } else {
                    ("IPv4", "IPv6")
                };
                let message = format!(
                    "rule {number} of `{listener}` can never match: it names {has}, and the listener takes {takes}"
                );
                let both = if universe == Universe::Ipv4 {
                    "; [::] takes both families"
                } else {
                    ""
                };
                (
                    message,
                    format!(
                        "remove the rule, or move it to a listener with an {has} address{both}"
                    ),
                )
            }
            ([], _) => (
                format!("rule {number} of `{listener}` can never match: it leaves no address"),
                "remove the rule".to_owned(),
            ),
            (_, _) if is_catch_all => {
                let last = winners.iter().max().expect("it is shadowed by some rule") + 1;
                let message = format!(
                    "rule {number} of `{listener}` can never match: {} match every client",
                    listed(&winners)
                );
                (
                    message,
                    format!(
                        "remove this rule and write from = [\"any\"] in rule {last} in place of its addresses"
                    ),
                )
            }
            ([winner], _) => {
                let message = format!(
                    "rule {number} of `{listener}` can never match: rule {} takes all its clients",
                    winner + 1
                );
                (
                    message,
                    format!("move it before rule {}, or remove it", winner + 1),
                )
            }
            _ => {
                let message = format!(
                    "rule {number} of `{listener}` can never match: {} together take all its clients",
                    listed(&winners)
                );
                (
                    message,
                    format!("move it before rule {}, or remove it", winners[0] + 1),
                )
            }
        };
        let expected = "addresses that no earlier rule matches";
        let finding = findings.add(
            Kind::Unreachable,
            rule.from_span.clone(),
            message,
            expected,
            remedy,
        );
        for &winner in winners.iter().take(8) {
            finding.also(
                rules[winner].from_span.clone(),
                format!("rule {} is before it", winner + 1),
            );
        }
    }

    let has_catch_all = sources.contains(&&From::Any);
    // A last rule that could not be read may well have been meant as the catch-all.
    let last_is_unknown = rules.last().is_some_and(|rule| rule.from.is_none());
    if !has_catch_all && !last_is_unknown {
        let span = rules
            .last()
            .map_or(header.clone(), |rule| rule.from_span.clone());
        let (message, remedy) = match rules.len() {
            0 => (
                format!("listener `{listener}` has no client rules"),
                add_catch_all(listener),
            ),
            last if !reach.leaves_some => (
                format!(
                    "listener `{listener}` has no catch-all, though its rules match every client"
                ),
                format!("write from = [\"any\"] in rule {last} in place of its addresses"),
            ),
            _ => (
                format!("clients that match no rule of `{listener}` have no container"),
                add_catch_all(listener),
            ),
        };
        findings.add(
            Kind::CatchAll,
            span,
            message,
            "a last rule with from = [\"any\"]",
            remedy,
        );
    }
}

fn add_catch_all(listener: &str) -> String {
    let name = crate::reader::bare_or_quoted(listener);
    format!("add at the end: [[listener.{name}.client]] with from = [\"any\"] and a container")
}

fn has_other_family(source: &From, universe: Universe) -> bool {
    let From::In(nets) = source else { return false };
    nets.iter()
        .any(|net| net.addr().is_ipv4() != (universe == Universe::Ipv4))
}

/// "rules 1, 2 and 5"
fn listed(rules: &[usize]) -> String {
    let numbers: Vec<String> = rules
        .iter()
        .take(8)
        .map(|rule| (rule + 1).to_string())
        .collect();
    match &numbers[..] {
        [one] => format!("rule {one}"),
        [first @ .., last] if numbers.len() == rules.len() => {
            format!("rules {} and {last}", first.join(", "))
        }
        _ => format!(
            "rules {} and {} more",
            numbers.join(", "),
            rules.len() - numbers.len()
        ),
    }
}

/// What a walk over the regions says about the rules.
pub(crate) struct Reach {
    /// Rules that never match, each with the rules that match first wherever it would.
    pub(crate) shadowed: BTreeMap<usize, BTreeSet<usize>>,
    /// Some address matches no rule.
    pub(crate) leaves_some: bool,
}

impl Reach {
    pub(crate) fn of(sources: &[&From], universe: Universe) -> Self {
        let mut reached = vec![false; sources.len()];
        let mut leaves_some = false;
        sweep::walk(sources, universe, |region, matching| {
            if !region.is_empty {
                match matching.first() {
                    Some(&first) => reached[first] = true,
                    None => leaves_some = true,
                }
            }
        });
        let mut shadowed: BTreeMap<usize, BTreeSet<usize>> = (0..sources.len())
            .filter(|&rule| !reached[rule])
            .map(|rule| (rule, BTreeSet::new()))
            .collect();
        if !shadowed.is_empty() {
            sweep::walk(sources, universe, |region, matching| {
                let Some(&first) = matching.first().filter(|_| !region.is_empty) else {
                    return;
                };
                for rule in matching {
                    if let Some(winners) = shadowed.get_mut(rule) {
                        winners.insert(first);
                    }
                }
            });
        }
        Self {
            shadowed,
            leaves_some,
        }
    }
}
