// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What the front door knows of one client now, in words and as the object `live`.

use serde::Serialize;

use crate::clock;
use crate::quantity::duration;
use fief_control::{Budget, ClientView, Isolation, Left};
use fief_policy::Level;

/// The names are a promise to programs; `docs/cli.md` lists them.
#[derive(Serialize)]
pub struct Live<'a> {
    taken_ns: u64,
    level: Level,
    guarded: bool,
    monitored: bool,
    /// Why its next connection request is refused.
    refused: Option<&'a str>,
    banned_remaining_ns: Option<u64>,
    penalty_remaining_ns: Option<u64>,
    isolated: Vec<Isolated<'a>>,
    never_isolated: bool,
    never_penalised: bool,
    /// How long ago it returned the first cookie that is remembered, and the last one.
    proven_ns: Option<u64>,
    proven_last_ns: Option<u64>,
    rates: Vec<Rate>,
    waiting: u32,
    in_service: u32,
}

#[derive(Serialize)]
struct Isolated<'a> {
    prefix: &'a str,
    since_ns: u64,
    remaining_ns: u64,
}

#[derive(Serialize)]
struct Rate {
    of: &'static str,
    in_force: bool,
    left: Option<u64>,
    most: Option<u64>,
    left_cpu_ns: Option<u64>,
    most_cpu_ns: Option<u64>,
    again_ns: u64,
}

impl<'a> Live<'a> {
    pub fn of(view: &'a ClientView) -> Self {
        let isolated = |Isolation { prefix, since_ns, remaining_ns }: &'a Isolation| Isolated {
            prefix,
            since_ns: *since_ns,
            remaining_ns: *remaining_ns,
        };
        let ago = |ns: u64| view.taken_ns.saturating_sub(ns);
        Self {
            taken_ns: view.taken_ns,
            level: view.level,
            guarded: view.guarded,
            monitored: view.monitored,
            refused: view.refused.map(|reason| reason.as_str()),
            banned_remaining_ns: view.banned.as_ref().map(|ban| ban.remaining_ns),
            penalty_remaining_ns: view.penalty_remaining_ns,
            isolated: view.isolated.iter().map(isolated).collect(),
            never_isolated: view.never_isolated,
            never_penalised: view.never_penalised,
            proven_ns: view.proven.map(|proven| ago(proven.since_ns)),
            proven_last_ns: view.proven.map(|proven| ago(proven.last_ns)),
            rates: view.budgets.iter().map(Rate::of).collect(),
            waiting: view.waiting,
            in_service: view.in_service,
        }
    }
}

impl Rate {
    fn of(budget: &Budget) -> Self {
        let Budget { of, in_force, left, again_ns } = *budget;
        let (cells, time) = match left {
            Left::Cells { left, most } => (Some((left, most)), None),
            Left::Time { left_ns, most_ns } => (None, Some((left_ns, most_ns))),
        };
        Self {
            of,
            in_force,
            left: cells.map(|(left, _)| left),
            most: cells.map(|(_, most)| most),
            left_cpu_ns: time.map(|(left, _)| left),
            most_cpu_ns: time.map(|(_, most)| most),
            again_ns,
        }
    }
}

/// A line for each thing that is known, before what the rules say.
pub fn lines(view: &ClientView) -> Vec<String> {
    if !view.guarded {
        return vec!["  nothing stands before this listener: nothing is known of its clients".to_owned()];
    }
    let until = |remaining: u64| {
        format!("until {} ({} more)", clock::wall_second(view.taken_ns + remaining), duration(remaining))
    };
    let mut lines = Vec::new();
    if let Some(ban) = &view.banned {
        lines.push(format!("  {} is banned {}", ban.name(), until(ban.remaining_ns)));
    }
    for Isolation { prefix, since_ns, remaining_ns } in &view.isolated {
        let since = clock::wall_second(*since_ns);
        lines.push(format!(
            "  {prefix} is isolated since {since}, {}, or while it sends too many",
            until(*remaining_ns)
        ));
    }
    if let Some(remaining) = view.penalty_remaining_ns {
        lines.push(format!("  it has a penalty {}: a request of it was refused", until(remaining)));
    }
    if view.never_isolated {
        lines.push("  isolation never holds for it here (isolate.except)".to_owned());
    }
    if view.never_penalised {
        lines.push("  penalties never hold for it here (penalty.except)".to_owned());
    }
    lines.push(match view.proven {
        Some(proven) => format!(
            "  proven since {}, last seen {}",
            clock::wall_second(proven.since_ns),
            clock::wall_second(proven.last_ns)
        ),
        None => "  not proven: no handshake that it ended is remembered".to_owned(),
    });
    match view.level {
        Level::Always => {}
        Level::Busy => lines.push("  the listener is busy".to_owned()),
        Level::Overloaded => lines.push("  the listener is overloaded".to_owned()),
    }
    lines.extend(view.budgets.iter().map(budget));
    if view.waiting + view.in_service > 0 {
        lines.push(format!("  queue: {} of its requests wait, the server has {}", view.waiting, view.in_service));
    }
    lines
}

fn budget(budget: &Budget) -> String {
    let whose = match budget.of {
        "client-rule" => "rate of its client rule, shared by all that it matches",
        "client-rule-source" => "its own rate of its client rule",
        "proven" => "its own rate as a proven source",
        "unproven" => "budget of all sources that are not proven",
        "request-rule-source" => "its own rate of the request rule",
        _ => "rate of the request rule, shared by all that it matches",
    };
    let left = match budget.left {
        Left::Cells { left, most } => format!("{left} of {most} left"),
        Left::Time { left_ns, most_ns } => format!("{} of {} of CPU time left", duration(left_ns), duration(most_ns)),
    };
    let again = match budget.again_ns {
        0 => String::new(),
        ns => format!(", the next in {}", duration(ns)),
    };
    let idle = if budget.in_force { "" } else { "; not in force at this level" };
    format!("  {whose}: {left}{again}{idle}")
}

/// What becomes of its next connection request, if that is refused.
pub fn refusal(view: &ClientView) -> Option<String> {
    let reason = view.refused?;
    Some(match view.monitored {
        true => format!("its next connection request would be refused (monitor: it passes): {reason}"),
        false => format!("its next connection request is refused: {reason}, {}", reason.means()),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use fief::Reason;
    use fief_control::{Ban, Proven};

    fn view() -> ClientView {
        ClientView {
            taken_ns: 10_000_000_000,
            level: Level::Busy,
            guarded: true,
            monitored: false,
            banned: Some(Ban {
                prefix: "10.0.0.0/8".parse().expect("a prefix"),
                since_ns: 1,
                until_ns: 13_000_000_000,
                remaining_ns: 3_000_000_000,
            }),
            isolated: vec![Isolation {
                prefix: "10.88.3.0/24".into(),
                since_ns: 9_000_000_000,
                remaining_ns: 4_000_000_000,
            }],
            penalty_remaining_ns: Some(2_000_000_000),
            proven: Some(Proven { since_ns: 1_000_000_000, last_ns: 8_000_000_000 }),
            budgets: vec![
                Budget {
                    of: "client-rule",
                    in_force: true,
                    left: Left::Cells { left: 0, most: 20 },
                    again_ns: 5_000_000,
                },
                Budget {
                    of: "request-rule",
                    in_force: false,
                    left: Left::Time { left_ns: 40_000_000, most_ns: 50_000_000 },
                    again_ns: 0,
                },
            ],
            waiting: 2,
            in_service: 1,
            refused: Some(Reason::SynPenalty),
            never_isolated: true,
            never_penalised: false,
            last: false,
        }
    }

    #[test]
    fn all_that_is_known_has_its_line() {
        let lines = lines(&view());
        let has = |words: &[&str]| lines.iter().any(|line| words.iter().all(|word| line.contains(word)));
        assert!(has(&["10.0.0.0/8 is banned until", "(3.000 s more)"]), "{lines:#?}");
        assert!(has(&["10.88.3.0/24 is isolated since", "(4.000 s more)"]), "{lines:#?}");
        assert!(has(&["it has a penalty until", "(2.000 s more)"]), "{lines:#?}");
        assert!(has(&["isolation never holds for it here"]), "{lines:#?}");
        assert!(has(&["proven since", "last seen"]), "{lines:#?}");
        assert!(has(&["the listener is busy"]), "{lines:#?}");
        assert!(has(&["shared by all that it matches: 0 of 20 left, the next in 5 ms"]), "{lines:#?}");
        assert!(has(&["40 ms of 50 ms of CPU time left; not in force at this level"]), "{lines:#?}");
        assert!(has(&["2 of its requests wait, the server has 1"]), "{lines:#?}");
        assert!(refusal(&view()).is_some_and(|line| line.contains("is refused: syn-penalty")));
    }

    #[test]
    fn monitor_mode_says_that_it_passes() {
        let watched = ClientView { monitored: true, ..view() };
        assert!(refusal(&watched).is_some_and(|line| line.contains("would be refused (monitor: it passes)")));
        assert_eq!(refusal(&ClientView { refused: None, ..view() }), None);
    }

    #[test]
    fn every_name_of_the_object_is_in_the_documentation() {
        let page = include_str!("../../../../../docs/cli.md");
        let view = view();
        let object = serde_json::to_value(Live::of(&view)).expect("texts and numbers");
        let mut names: Vec<String> = object.as_object().expect("an object").keys().cloned().collect();
        for inner in [&object["isolated"][0], &object["rates"][0]] {
            names.extend(inner.as_object().expect("an object").keys().cloned());
        }
        for name in names {
            assert!(page.contains(&format!("`{name}`")), "{name} is missing");
        }
    }
}
