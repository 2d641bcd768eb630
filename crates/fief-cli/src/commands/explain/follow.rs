// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Drops and refusals as they happen, a line each, until Ctrl-C.

use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use serde::Serialize;

use super::counted::Counted;
use crate::cli::Explain;
use crate::failure::{Failure, Result};
use crate::look;
use crate::output::{Output, printable};
use fief_control::{Fief, Notice};

pub fn run(args: &Explain, output: &mut Output) -> Result<()> {
    let fief = Fief::from_env()?;
    if !fief.installed() {
        return Err(look::nothing());
    }
    let interrupted = Arc::new(AtomicBool::new(false));
    let flag = Arc::clone(&interrupted);
    ctrlc::set_handler(move || flag.store(true, Ordering::Relaxed))
        .map_err(|error| Failure::new(format!("cannot wait for Ctrl-C: {error}")))?;
    let left = Cell::new(args.count.map(|count| count.get()));
    let goes_on = || !interrupted.load(Ordering::Relaxed) && left.get() != Some(0);
    fief.follow(goes_on, |notice| {
        let is_other = args.listener.as_ref().is_some_and(|listener| *listener != notice.verdict.listener);
        if is_other || left.get() == Some(0) {
            return Ok(());
        }
        left.set(left.get().map(|left| left - 1));
        match args.json {
            true => output.json(&Told::of(&notice)),
            false => output.line(line(&notice)),
        }?;
        // the reader waits for each
        output.flush()
    })?;
    match goes_on() {
        true => Err(look::nothing()), // it was taken down
        false => Ok(()),
    }
}

/// The names are a promise to programs; `docs/cli.md` lists them.
#[derive(Serialize)]
struct Told<'a> {
    time_ns: u64,
    source: String,
    source_port: u16,
    destination: String,
    destination_port: u16,
    #[serde(flatten)]
    verdict: Counted<'a>,
}

impl<'a> Told<'a> {
    fn of(notice: &'a Notice) -> Self {
        Self {
            time_ns: notice.time_ns,
            source: notice.source.ip().to_string(),
            source_port: notice.source.port(),
            destination: notice.destination.ip().to_string(),
            destination_port: notice.destination.port(),
            verdict: Counted::of(&notice.verdict),
        }
    }
}

/// `123.456789 web shop/browse rule 2 syn-rate 10.88.3.4:5123 -> 10.77.0.1:80 and 812 more`
fn line(notice: &Notice) -> String {
    let verdict = &notice.verdict;
    let seconds = notice.time_ns / 1_000_000_000;
    let micros = notice.time_ns / 1000 % 1_000_000;
    let rule = verdict.rule.map_or_else(String::new, |rule| format!(" rule {rule}"));
    let more = match verdict.count {
        0 | 1 => String::new(),
        count => format!(" and {} more", count - 1),
    };
    let monitored = if verdict.monitored { " (monitor: let pass)" } else { "" };
    let line = format!(
        "{seconds}.{micros:06} {} {}{rule} {} {} -> {}{more}{monitored}",
        verdict.listener, verdict.container, verdict.reason, notice.source, notice.destination
    );
    printable(&line)
}

#[cfg(test)]
mod tests {
    use super::*;
    use fief::Reason;
    use fief_control::VerdictView;

    fn notice(count: u64, monitored: bool) -> Notice {
        Notice {
            time_ns: 123_456_789_012,
            source: "10.88.3.4:5123".parse().expect("an address"),
            destination: "10.77.0.1:80".parse().expect("an address"),
            verdict: VerdictView {
                listener: "web".into(),
                container: "shop/browse".into(),
                rule: Some(2),
                reason: Reason::SynRate,
                monitored,
                count,
            },
        }
    }

    #[test]
    fn a_line_says_when_who_where_and_why() {
        let expected = "123.456789 web shop/browse rule 2 syn-rate 10.88.3.4:5123 -> 10.77.0.1:80";
        assert_eq!(line(&notice(1, false)), expected);
        assert_eq!(line(&notice(813, false)), format!("{expected} and 812 more"));
        assert_eq!(line(&notice(1, true)), format!("{expected} (monitor: let pass)"));
    }

    #[test]
    fn every_name_is_in_the_documentation() {
        let page = include_str!("../../../../../docs/cli.md");
        let notice = notice(1, false);
        let object = serde_json::to_value(Told::of(&notice)).expect("texts and numbers");
        for name in object.as_object().expect("an object").keys() {
            assert!(page.contains(&format!("`{name}`")), "{name} is missing");
        }
    }
}
