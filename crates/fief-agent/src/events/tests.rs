// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What is told of one look after the other.

use std::time::Duration;

use fief_control::ShutOut;

use super::*;
use crate::metrics::tests::{front, status};

struct Now {
    status: Status,
    front: FrontView,
}

/// One problem, a busy listener, an isolated prefix.
fn now() -> Now {
    Now { status: Status { failures: vec![("table_full", 2)], ..status() }, front: front() }
}

impl Now {
    fn told(&self, seen: &mut Seen) -> Vec<Event> {
        seen.turn(Some(&Look { status: &self.status, front: &self.front }))
    }

    /// A look after one that saw the same, but for what `change` does.
    fn after(change: impl FnOnce(&mut Now)) -> Vec<Event> {
        let (mut now, mut seen) = (now(), Seen::default());
        now.told(&mut seen);
        assert_eq!(now.told(&mut seen), [], "what stays is told once");
        change(&mut now);
        now.told(&mut seen)
    }
}

fn kinds(events: &[Event]) -> Vec<&'static str> {
    events.iter().map(|(kind, _)| kind.as_str()).collect()
}

fn banned(number: usize) -> ShutOut {
    ShutOut { source: format!("10.0.{number}.1"), why: Reason::Banned, remaining_ns: 1_500_000_000 }
}

#[test]
fn the_first_look_tells_what_there_is() {
    let events = now().told(&mut Seen::default());
    assert_eq!(kinds(&events), ["policy-in-force", "problem", "shut-out", "level"]);
    let policy = &events[0].1;
    assert_eq!(
        (policy.message.as_str(), policy.mode),
        ("a policy is in force since 1970-01-01T00:00:01Z", Some("enforce"))
    );
    assert_eq!(events[1].1.message, "one");
    let out = &events[2].1;
    assert_eq!((out.source.as_deref(), out.reason, out.seconds), (Some("10.0.0.0/24"), Some("syn-isolated"), Some(1)));
    let level = &events[3].1;
    assert_eq!((level.listener.as_deref(), level.level, level.before), (Some("web"), Some("busy"), Some("always")));
    assert_eq!(level.message, "listener web: busy, it was not loaded");
}

#[test]
fn nothing_in_force_is_told_once_and_ends_what_was() {
    let (now, mut seen) = (now(), Seen::default());
    assert_eq!(seen.turn(None), [], "nothing was, and nothing is");
    now.told(&mut seen);
    assert_eq!(kinds(&seen.turn(None)), ["policy-gone"], "problems of what is gone are none");
    assert_eq!(seen.turn(None), []);
    assert_eq!(kinds(&now.told(&mut seen))[0], "policy-in-force");
}

#[test]
fn a_policy_in_place_of_another_is_told() {
    let events = Now::after(|now| now.status.since = now.status.since.map(|since| since + Duration::from_secs(9)));
    assert_eq!(kinds(&events), ["policy-in-force"]);
}

#[test]
fn problems_come_and_go_but_not_with_their_counts() {
    let events = Now::after(|now| now.status.problems = vec!["two".into()]);
    let said: Vec<_> = events.iter().map(|(kind, fields)| (kind.as_str(), fields.message.as_str())).collect();
    assert_eq!(said, [("problem", "two"), ("problem-gone", "no longer: one")]);
    let (mut now, mut seen) = (now(), Seen::default());
    let failed = |count| vec![format!("the kernel side failed {count} times (table_full: {count}) on 10.0.0.1:80")];
    now.status.problems = failed(3);
    now.told(&mut seen);
    now.status.problems = failed(14);
    assert_eq!(now.told(&mut seen), []);
    now.status.problems = vec![failed(14)[0].replace("10.0.0.1", "10.0.0.2")];
    assert_eq!(kinds(&now.told(&mut seen)), ["problem", "problem-gone"], "an address is no count");
}

#[test]
fn who_is_shut_out_and_let_in_is_told_by_reason() {
    let events = Now::after(|now| now.front.shut_out.push(banned(1)));
    let [(Kind::ShutOut, out)] = &events[..] else { panic!("{events:?}") };
    assert_eq!(out.message, "10.0.1.1 is shut out for 2 s: banned");
    assert_eq!((out.source.as_deref(), out.reason, out.seconds), (Some("10.0.1.1"), Some("banned"), Some(2)));
    let events = Now::after(|now| now.front.shut_out.clear());
    let [(Kind::LetIn, back)] = &events[..] else { panic!("{events:?}") };
    assert_eq!((back.source.as_deref(), back.reason), (Some("10.0.0.0/24"), Some("syn-isolated")));
    let longer = Now::after(|now| now.front.shut_out[0].remaining_ns += 1_000_000_000);
    assert_eq!(longer, [], "that it goes on is no news");
}

#[test]
fn clients_cannot_fill_the_journal() {
    let events = Now::after(|now| now.front.shut_out.extend((0..1000).map(banned)));
    assert_eq!(events.len(), MOST + 1);
    let (kind, more) = &events[MOST];
    assert_eq!((*kind, more.count, more.source.as_deref()), (Kind::ShutOut, Some(968), None));
    assert_eq!(more.message, "968 more sources are shut out");
}

#[test]
fn levels_and_failures_are_told_as_they_change() {
    let events = Now::after(|now| now.front.loads[0].level = "overloaded");
    let [(Kind::Level, level)] = &events[..] else { panic!("{events:?}") };
    assert_eq!((level.level, level.before), (Some("overloaded"), Some("busy")));
    let events = Now::after(|now| now.status.failures.push(("lock_held", 3)));
    let [(Kind::Failure, failure)] = &events[..] else { panic!("{events:?}") };
    assert_eq!((failure.error, failure.count), (Some("lock_held"), Some(3)));
    let again = Now::after(|now| now.status.failures.clear());
    assert_eq!(again, [], "a new installation counts from the begin");
}

#[test]
fn every_event_and_field_is_in_the_documentation() {
    let page = include_str!("../../../../docs/metrics.md");
    let kinds = [Kind::PolicyInForce, Kind::PolicyGone, Kind::Problem, Kind::ProblemGone];
    for kind in kinds.into_iter().chain([Kind::ShutOut, Kind::LetIn, Kind::Level, Kind::Failure]) {
        assert!(page.contains(&format!("`{}`", kind.as_str())), "{} is missing", kind.as_str());
    }
    let source = include_str!("../journal.rs");
    let fields = source.lines().filter_map(|line| line.trim_start().strip_prefix("fief_")?.split(' ').next());
    let mut count = 0;
    for field in fields {
        let name = format!("`FIEF_{}`", field.to_uppercase());
        assert!(page.contains(&name), "{name} is missing");
        count += 1;
    }
    assert!(count > 8, "{count}");
}
