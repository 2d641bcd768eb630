// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What has happened between two looks, for the journal: policies, problems, who is shut out, levels of overload, failures. Pure.
//!
//! Problem: what clients shape could fill a journal; a sentence with a count in it would be a new problem at each look.
//! How: of each kind so many events are told at a look, and the rest as one with their number. Numbers that stand alone in a sentence
//! do not tell problems apart.
//! Limits: what begins and ends between two looks is not seen.

use std::collections::{BTreeMap, BTreeSet};
use std::time::SystemTime;

use fief::Reason;
use fief_control::{FrontView, Status};
use fief_policy::Mode;

/// Events of one kind at one look.
const MOST: usize = 32;

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Kind {
    PolicyInForce,
    PolicyGone,
    Problem,
    ProblemGone,
    ShutOut,
    LetIn,
    Level,
    Failure,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Weight {
    Warning,
    Notice,
    Informational,
}

impl Kind {
    /// `FIEF_EVENT`, a promise to programs.
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::PolicyInForce => "policy-in-force",
            Self::PolicyGone => "policy-gone",
            Self::Problem => "problem",
            Self::ProblemGone => "problem-gone",
            Self::ShutOut => "shut-out",
            Self::LetIn => "let-in",
            Self::Level => "level",
            Self::Failure => "failure",
        }
    }

    pub(crate) fn weight(self) -> Weight {
        match self {
            Self::Problem | Self::Failure => Weight::Warning,
            Self::PolicyInForce | Self::PolicyGone | Self::ProblemGone | Self::Level => Weight::Notice,
            Self::ShutOut | Self::LetIn => Weight::Informational,
        }
    }
}

/// One record: the sentence, and what it is made of.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Fields {
    /// `MESSAGE`
    pub(crate) message: String,
    /// `FIEF_MODE`
    pub(crate) mode: Option<&'static str>,
    /// `FIEF_LISTENER`
    pub(crate) listener: Option<String>,
    /// `FIEF_SOURCE`
    pub(crate) source: Option<String>,
    /// `FIEF_REASON`
    pub(crate) reason: Option<&'static str>,
    /// `FIEF_SECONDS`
    pub(crate) seconds: Option<u64>,
    /// `FIEF_LEVEL`
    pub(crate) level: Option<&'static str>,
    /// `FIEF_LEVEL_BEFORE`
    pub(crate) before: Option<&'static str>,
    /// `FIEF_ERROR`
    pub(crate) error: Option<&'static str>,
    /// `FIEF_COUNT`
    pub(crate) count: Option<u64>,
}

pub(crate) type Event = (Kind, Fields);

/// What was seen at a look.
#[derive(Debug, Default)]
pub(crate) struct Seen {
    in_force: bool,
    since: Option<SystemTime>,
    /// By the sentence without its counts.
    problems: BTreeMap<String, String>,
    shut_out: BTreeSet<(Reason, String)>,
    levels: BTreeMap<String, &'static str>,
    /// Those that are above zero.
    failures: Vec<(&'static str, u64)>,
}

/// What is in force.
pub(crate) struct Look<'a> {
    pub(crate) status: &'a Status,
    pub(crate) front: &'a FrontView,
}

impl Seen {
    /// What has happened since; from now on this look is what was seen. `None`: nothing is in force.
    pub(crate) fn turn(&mut self, look: Option<&Look<'_>>) -> Vec<Event> {
        let now = look.map(Self::of).unwrap_or_default();
        let mut events = Vec::new();
        if let Some(look) = look.filter(|_| !self.in_force || self.since != now.since) {
            events.push((Kind::PolicyInForce, policy(look.status)));
        }
        if self.in_force && !now.in_force {
            events.push((
                Kind::PolicyGone,
                Fields { message: "nothing is in force any more".into(), ..Fields::default() },
            ));
        }
        let began = now.problems.iter().filter(|(key, _)| !self.problems.contains_key(*key));
        events.extend(bounded(Kind::Problem, "problems", began, |(_, problem)| said((*problem).clone())));
        // where nothing is in force nothing is wrong with it, and nobody is let in
        if let Some(look) = look {
            let gone = self.problems.iter().filter(|(key, _)| !now.problems.contains_key(*key));
            let over = |(_, problem): &(&String, &String)| said(format!("no longer: {problem}"));
            events.extend(bounded(Kind::ProblemGone, "problems are gone", gone, over));
            events.extend(self.shut_out_since(look, &now));
            events.extend(self.levels_since(&now));
            events.extend(self.failures_since(&now));
        }
        *self = now;
        events
    }

    fn of(look: &Look<'_>) -> Self {
        Self {
            in_force: true,
            since: look.status.since,
            problems: look.status.problems.iter().map(|problem| (without_counts(problem), problem.clone())).collect(),
            shut_out: look.front.shut_out.iter().map(|out| (out.why, out.source.clone())).collect(),
            levels: look.front.loads.iter().map(|load| (load.listener.clone(), load.level)).collect(),
            failures: look.status.failures.clone(),
        }
    }

    fn shut_out_since(&self, look: &Look<'_>, now: &Self) -> Vec<Event> {
        let fresh = look.front.shut_out.iter().filter(|out| !self.shut_out.contains(&(out.why, out.source.clone())));
        let mut events = bounded(Kind::ShutOut, "sources are shut out", fresh, |out| {
            let seconds = out.remaining_ns.div_ceil(1_000_000_000);
            Fields {
                message: format!("{} is shut out for {seconds} s: {}", out.source, out.why),
                source: Some(out.source.clone()),
                reason: Some(out.why.as_str()),
                seconds: Some(seconds),
                ..Fields::default()
            }
        });
        let over = self.shut_out.difference(&now.shut_out);
        events.extend(bounded(Kind::LetIn, "sources are let in again", over, |(why, source)| Fields {
            message: format!("{source} is let in again: {why} has ended"),
            source: Some(source.clone()),
            reason: Some(why.as_str()),
            ..Fields::default()
        }));
        events
    }

    /// A listener begins without load, and its level is told when it is another one.
    fn levels_since(&self, now: &Self) -> Vec<Event> {
        let before = |listener: &String| self.levels.get(listener).copied().unwrap_or("always");
        let changed = now.levels.iter().filter(|(listener, level)| before(listener) != **level);
        bounded(Kind::Level, "listeners have another level", changed, |(listener, level)| Fields {
            message: format!("listener {listener}: {}, it was {}", load(level), load(before(listener))),
            listener: Some((*listener).clone()),
            level: Some(**level),
            before: Some(before(listener)),
            ..Fields::default()
        })
    }

    /// What had failed before the first look is in the status.
    fn failures_since(&self, now: &Self) -> Vec<Event> {
        if !self.in_force {
            return Vec::new();
        }
        let before = |name: &str| self.failures.iter().find(|(own, _)| *own == name).map_or(0, |(_, count)| *count);
        let more = now.failures.iter().map(|(name, count)| (*name, count.saturating_sub(before(name))));
        bounded(Kind::Failure, "failures", more.filter(|(_, more)| *more > 0), |(name, more)| Fields {
            message: format!("the kernel side failed {more} times more: {name}"),
            error: Some(*name),
            count: Some(*more),
            ..Fields::default()
        })
    }
}

fn policy(status: &Status) -> Fields {
    let mode = status.mode.map(|mode| match mode {
        Mode::Enforce => "enforce",
        Mode::Monitor => "monitor",
    });
    let since = status.since.and_then(|since| jiff::Timestamp::try_from(since).ok());
    let since = since.map_or_else(String::new, |since| format!(" since {since:.0}"));
    Fields { message: format!("a policy is in force{since}"), mode, ..Fields::default() }
}

fn said(message: String) -> Fields {
    Fields { message, ..Fields::default() }
}

/// The level in words.
fn load(level: &str) -> &str {
    if level == "always" { "not loaded" } else { level }
}

/// The first ones each by itself, the others together.
fn bounded<T>(kind: Kind, what: &str, all: impl Iterator<Item = T>, tell: impl Fn(&T) -> Fields) -> Vec<Event> {
    let mut all = all.fuse();
    let mut events: Vec<_> = all.by_ref().take(MOST).map(|one| (kind, tell(&one))).collect();
    let more = all.count() as u64;
    if more > 0 {
        events.push((kind, Fields { message: format!("{more} more {what}"), count: Some(more), ..Fields::default() }));
    }
    events
}

/// With a mark in the place of each number that is a word of its own.
fn without_counts(sentence: &str) -> String {
    let is_count = |word: &str| !word.is_empty() && word.bytes().all(|digit| digit.is_ascii_digit());
    let words = sentence.split(' ').map(|word| {
        let bare = word.trim_matches(|letter: char| !letter.is_alphanumeric());
        if is_count(bare) { word.replace(bare, "#") } else { word.to_owned() }
    });
    words.collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests;
