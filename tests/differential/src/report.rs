// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What a run found, in words and as JSON.

use std::collections::BTreeMap;
use std::fmt;

use serde_json::{Value, json};

use crate::campaign::{Campaign, Finding, Speech, Tally, Wrong};
use crate::server::Kind;
use crate::shrink;
use crate::stage::{Port, Position, Stage};
use crate::vector::{Seed, known};

/// Failures that are made smaller; the rest is of the same kinds mostly, and counted.
pub const SHRUNK: usize = 60;
/// Of these so many lose bytes too.
const PRINTED: usize = 12;

/// An entry of `known.txt` that every failure is about.
const EVERYTHING: &str = "everything";

/// A failure, as small as it became.
#[derive(Debug)]
pub struct Failure {
    pub finding: Finding,
    pub names: Vec<String>,
    pub line: String,
    /// The entry of `known.txt` that it is about.
    pub known: Option<String>,
}

#[derive(Debug)]
pub struct Report {
    pub speech: Speech,
    pub seed: u64,
    pub tallies: BTreeMap<Kind, Tally>,
    pub failures: Vec<Failure>,
    /// Failures that an entry of `known.txt` is about, at first sight.
    pub open: usize,
    /// Others that were not made smaller.
    pub more: usize,
}

impl Report {
    pub fn new(stage: &Stage, seeds: &[Seed], seed: u64, campaign: Campaign<'_>, most: usize) -> Report {
        let (known, speech) = (known(), campaign.speech);
        let (tallies, findings) = (campaign.tallies, campaign.findings);
        // What an open entry already names is not made smaller: the new ones are to be seen.
        let everything = known.iter().any(|name| name == EVERYTHING);
        let is_known = |finding: &Finding| everything || finding.names(seeds).iter().any(|name| known.contains(name));
        let (open, findings): (Vec<_>, Vec<_>) = findings.into_iter().partition(is_known);
        let more = findings.len().saturating_sub(most);
        let mut failures: Vec<Failure> = vec![];
        for finding in spread(findings).into_iter().take(most) {
            let finding = shrink::steps(stage, speech, seeds, finding);
            let names = finding.names(seeds);
            let same = |other: &Failure| {
                (other.finding.wrong, other.finding.kind, &other.names) == (finding.wrong, finding.kind, &names)
            };
            if failures.iter().any(same) {
                continue;
            }
            let known = names.iter().find(|name| known.contains(name)).cloned();
            let new = failures.iter().filter(|failure| failure.known.is_none()).count();
            let case = if known.is_none() && new < PRINTED {
                shrink::bytes(stage, speech, &finding)
            } else {
                finding.case.clone()
            };
            failures.push(Failure { line: case.write(), finding, names, known });
        }
        Report { speech, seed, tallies, failures, open: open.len(), more }
    }

    /// Failures that no entry of `known.txt` is about.
    pub fn new_failures(&self) -> usize {
        self.failures.iter().filter(|failure| failure.known.is_none()).count() + self.more
    }

    /// One object for each server.
    pub fn json(&self) -> Vec<Value> {
        let line = |(kind, tally): (&Kind, &Tally)| {
            let of_server = self.failures.iter().filter(|failure| failure.finding.kind == *kind);
            let failures: Vec<String> = of_server.map(Failure::to_string).collect();
            json!({
                "failures": failures,
                "server": kind.name(), "speech": self.speech.name(), "seed": self.seed, "cases": tally.cases, "let_round": tally.let_round,
                "refused_wrongly": tally.refused_wrongly, "passed": tally.passed, "held": tally.held,
                "unserved": tally.unserved, "read_otherwise": tally.read_otherwise, "unsteady": tally.unsteady, "silent": tally.silent, "unopened": tally.unopened,
            })
        };
        self.tallies.iter().map(line).collect()
    }
}

/// By server and kind of failure in turns, those of few steps first, so that many of one do not hide another.
fn spread(mut findings: Vec<Finding>) -> Vec<Finding> {
    let mut groups: BTreeMap<_, Vec<Finding>> = BTreeMap::new();
    findings.sort_by_key(Finding::steps);
    for finding in findings {
        groups.entry((finding.wrong, finding.kind)).or_default().push(finding);
    }
    let mut turns: Vec<_> = groups.into_values().map(Vec::into_iter).collect();
    let mut all = vec![];
    loop {
        let before = all.len();
        all.extend(turns.iter_mut().filter_map(Iterator::next));
        if all.len() == before {
            return all;
        }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let finding = &self.finding;
        let wrong = if finding.wrong == Wrong::LetRound { "let round" } else { "refused wrongly" };
        let position = if finding.position == Position::First { "first" } else { "later" };
        let port = if finding.port == Port::Unavailable { "503" } else { "reset" };
        let known = self.known.as_ref().map(|name| format!(" (known: {name})")).unwrap_or_default();
        // An open one is in the table already.
        let most = if self.known.is_some() { 150 } else { 2000 };
        let line: String = self.line.chars().take(most).collect();
        write!(f, "{wrong} at {}, {position}, {port}{known}: {}: {line}", finding.kind.name(), self.names.join("+"))
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}, seed {}", self.speech.name(), self.seed)?;
        writeln!(
            f,
            "{:10} {:>8} {:>9} {:>15} {:>14} {:>8} {:>8} {:>8} {:>8} {:>6} {:>8}",
            "server",
            "cases",
            "let_round",
            "refused_wrongly",
            "read_otherwise",
            "passed",
            "held",
            "unserved",
            "unsteady",
            "silent",
            "unopened"
        )?;
        for (kind, tally) in &self.tallies {
            writeln!(
                f,
                "{:10} {:8} {:9} {:15} {:14} {:8} {:8} {:8} {:8} {:6} {:8}",
                kind.name(),
                tally.cases,
                tally.let_round,
                tally.refused_wrongly,
                tally.read_otherwise,
                tally.passed,
                tally.held,
                tally.unserved,
                tally.unsteady,
                tally.silent,
                tally.unopened
            )?;
        }
        for failure in &self.failures {
            writeln!(f, "{failure}")?;
        }
        if self.open > 0 {
            writeln!(f, "and {} that known.txt names", self.open)?;
        }
        if self.more > 0 {
            writeln!(f, "and {} more failures that were not made smaller", self.more)?;
        }
        Ok(())
    }
}
