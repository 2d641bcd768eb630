// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Finds rules that never match, and clients that no rule matches.
//!
//! Exact: `sweep` knows the rules that match on every region, so a rule matches some client if and only if it is the
//! first one on some region that is not empty. Unions of earlier prefixes, complements and the families are in that.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use crate::diagnostic::{Findings, Kind};
use crate::model::From;
use crate::reader::View;
use crate::rules::Rule;
use crate::sweep::{self, Universe};

/// Earlier rules that an error names; more explain nothing.
const MOST_SHOWN: usize = 8;

/// `local`: the listener's address, if it could be read; else both families are taken to reach it.
pub(crate) fn check(
    listener: &str,
    view: &View<'_, '_>,
    local: Option<IpAddr>,
    rules: &[Rule],
    findings: &mut Findings,
) {
    let universe = local.map_or(Universe::Both, Universe::of);
    let known = rules.iter().enumerate().filter_map(|(index, rule)| Some((index, rule.from.as_ref()?)));
    let (positions, sources): (Vec<usize>, Vec<&From>) = known.unzip();
    let reach = Reach::of(&sources, universe);

    for (&shadowed, winners) in &reach.shadowed {
        let winners: Vec<usize> = winners.iter().map(|&winner| positions[winner]).collect();
        let is_catch_all = *sources[shadowed] == From::Any;
        let (why, remedy) = match &winners[..] {
            [] => no_address(sources[shadowed], universe),
            [winner] if is_catch_all && rules[*winner].from == Some(From::Any) => {
                (format!("rule {} matches every client", winner + 1), "remove it".to_owned())
            }
            _ if is_catch_all => {
                let last = winners.iter().max().map_or(0, |last| last + 1);
                let why = format!("{} together match every client", listed(&winners));
                (why, format!("remove it, and write from = [\"any\"] in rule {last}"))
            }
            [winner] => {
                let why = format!("rule {} takes all its clients", winner + 1);
                (why, moved(*winner))
            }
            [first, ..] => {
                let why = format!("{} together take all its clients", listed(&winners));
                (why, moved(*first))
            }
        };
        let rule = &rules[positions[shadowed]];
        let title = format!("rule {} of {}", positions[shadowed] + 1, view.title);
        let message = format!("{title} can never match: {why}");
        let expected = "addresses that no earlier rule matches";
        let finding = findings.add(Kind::Unreachable, rule.from_span.clone(), message, expected, remedy);
        for &winner in winners.iter().take(MOST_SHOWN) {
            finding.also(rules[winner].from_span.clone(), format!("rule {} is before it", winner + 1));
        }
    }

    let has_catch_all = sources.contains(&&From::Any);
    // A last rule that could not be read may well have been meant as the catch-all.
    let last_is_unread = rules.last().is_some_and(|rule| rule.from.is_none());
    if has_catch_all || last_is_unread {
        return;
    }
    let span = rules.last().map_or(view.span.clone(), |rule| rule.from_span.clone());
    let (message, remedy) = if rules.is_empty() {
        (format!("{} has no rules for its clients", view.title), add_catch_all(listener))
    } else if reach.leaves_some {
        let message = format!("clients that match no rule of {} have no container", view.title);
        (message, add_catch_all(listener))
    } else {
        let message = format!("{} has no catch-all, though its rules match every client", view.title);
        (message, format!("write from = [\"any\"] in rule {}", rules.len()))
    };
    findings.add(Kind::CatchAll, span, message, "a last rule with from = [\"any\"]", remedy);
}

/// Why a rule has no address at all that could arrive.
fn no_address(source: &From, universe: Universe) -> (String, String) {
    let (other, takes) = match (source, universe) {
        (From::In(_), Universe::Ipv4) => ("IPv6", "IPv4"),
        (From::In(_), Universe::Ipv6) => ("IPv4", "IPv6"),
        _ => return ("it excepts every client".to_owned(), "remove it".to_owned()),
    };
    let why = format!("it names {other}, and the listener takes {takes} alone");
    let both = if universe == Universe::Ipv4 { "; [::] takes both families" } else { "" };
    (why, format!("remove it, or move it to a listener with an {other} address{both}"))
}

fn moved(first: usize) -> String {
    format!("remove it, or, if it is to win, move it before rule {}", first + 1)
}

fn add_catch_all(listener: &str) -> String {
    let name = crate::reader::bare_or_quoted(listener);
    format!("add at the end: [[listener.{name}.client]] with from = [\"any\"] and a container")
}

/// "rules 1, 2 and 5"
fn listed(rules: &[usize]) -> String {
    let numbers: Vec<String> = rules.iter().take(MOST_SHOWN).map(|rule| (rule + 1).to_string()).collect();
    match &numbers[..] {
        [one] => format!("rule {one}"),
        [first @ .., last] if numbers.len() == rules.len() => {
            format!("rules {} and {last}", first.join(", "))
        }
        _ => format!("rules {} and {} more", numbers.join(", "), rules.len() - numbers.len()),
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
        let mut shadowed: BTreeMap<usize, BTreeSet<usize>> =
            (0..sources.len()).filter(|&rule| !reached[rule]).map(|rule| (rule, BTreeSet::new())).collect();
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
        Self { shadowed, leaves_some }
    }
}
