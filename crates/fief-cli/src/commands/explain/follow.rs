// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Drops and refusals, and what waits and is released, as they happen, a line each, until Ctrl-C.

use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use serde::Serialize;

use super::counted::Counted;
use crate::cli::Explain;
use crate::clock;
use crate::failure::{Failure, Result};
use crate::look::{self, Reader};
use crate::output::{Output, printable, say};
use fief_control::{Notice, Told};

pub fn run(args: &Explain, output: &mut Output) -> Result<()> {
    let reader = Reader::open()?;
    if let Some(listener) = &args.listener {
        let names = reader.front()?.listeners;
        if !names.contains(listener) {
            let names: Vec<&str> = names.iter().map(String::as_str).collect();
            return Err(look::no_listener(listener, &names, "the policy in force"));
        }
    }
    let interrupted = Arc::new(AtomicBool::new(false));
    let flag = Arc::clone(&interrupted);
    ctrlc::set_handler(move || flag.store(true, Ordering::Relaxed))
        .map_err(|error| Failure::new(format!("cannot wait for Ctrl-C: {error}")))?;
    if let Some(header) = header(args.json, Output::is_terminal()) {
        output.line(header)?;
        output.flush()?;
    }
    let left = Cell::new(args.count.map(|count| count.get()));
    let goes_on = || !interrupted.load(Ordering::Relaxed) && left.get() != Some(0);
    reader.follow(goes_on, |told| {
        let notice = match told {
            Told::Notice(notice) => notice,
            Told::Lost(count) => return lost(count, args.json, output),
        };
        let is_other = args.listener.as_ref().is_some_and(|listener| *listener != notice.verdict.listener);
        let is_unasked = !args.reason.is_empty() && !args.reason.contains(&notice.verdict.reason);
        if is_other || is_unasked || left.get() == Some(0) {
            return Ok(());
        }
        left.set(left.get().map(|left| left - 1));
        match args.json {
            true => output.json(&Object::of(&notice)),
            false => output.line(line(&notice)),
        }?;
        // the reader waits for each
        output.flush()
    })?;
    match goes_on() {
        true => Err(reader.nothing()), // it was taken down
        false => Ok(()),
    }
}

/// What the words of a line are, for people: programs that read lines get nothing but notices.
fn header(json: bool, is_terminal: bool) -> Option<&'static str> {
    (is_terminal && !json).then_some(
        "TIME                        INTERFACE LISTENER CONTAINER [RULE] REASON SOURCE -> DESTINATION [AND MORE]",
    )
}

/// The names are a promise to programs; `docs/cli.md` lists them.
#[derive(Serialize)]
struct Object<'a> {
    time: String,
    time_ns: u64,
    interface: Option<&'a str>,
    source: String,
    source_port: u16,
    destination: String,
    destination_port: u16,
    #[serde(flatten)]
    verdict: Counted<'a>,
}

impl<'a> Object<'a> {
    fn of(notice: &'a Notice) -> Self {
        Self {
            time: clock::wall(notice.time_ns),
            time_ns: notice.time_ns,
            interface: notice.interface.as_deref(),
            source: notice.source.ip().to_string(),
            source_port: notice.source.port(),
            destination: notice.destination.ip().to_string(),
            destination_port: notice.destination.port(),
            verdict: Counted::of(&notice.verdict),
        }
    }
}

/// This reader was too slow: standard error says so, where no line is taken for a notice.
fn lost(count: u64, json: bool, output: &mut Output) -> Result<()> {
    #[derive(Serialize)]
    struct Lost {
        lost: u64,
    }
    if json {
        output.json(&Lost { lost: count })?;
        return output.flush();
    }
    say(format_args!("{} lost: this reader was too slow", counted_in_words(count)));
    Ok(())
}

fn counted_in_words(count: u64) -> String {
    match count {
        1 => "1 notice was".to_owned(),
        _ => format!("{count} notices were"),
    }
}

/// `2026-11-25T18:00:00.123456Z eth0 web shop/browse client rule 2 syn-rate 10.88.3.4:5123 -> 10.77.0.1:80 and 812 more`
fn line(notice: &Notice) -> String {
    let verdict = &notice.verdict;
    let time = clock::wall(notice.time_ns);
    let interface = notice.interface.as_deref().unwrap_or("-");
    let rule = match (verdict.client_rule(), verdict.request_rule()) {
        (Some(rule), _) => format!(" client rule {rule}"),
        (_, Some(rule)) => format!(" request rule {rule}"),
        _ => String::new(),
    };
    let more = match verdict.count {
        0 | 1 => String::new(),
        count => format!(" and {} more", count - 1),
    };
    let monitored = if verdict.monitored { " (monitor: let pass)" } else { "" };
    let line = format!(
        "{time} {interface} {} {}{rule} {} {} -> {}{more}{monitored}",
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
            interface: Some("eth0".into()),
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
        let expected = "eth0 web shop/browse client rule 2 syn-rate 10.88.3.4:5123 -> 10.77.0.1:80";
        let (time, rest) =
            line(&notice(1, false)).split_once(' ').map(|(a, b)| (a.to_owned(), b.to_owned())).expect("words");
        assert!(time.parse::<jiff::Timestamp>().is_ok() && time.ends_with('Z'), "{time}");
        assert_eq!(rest, expected);
        assert!(line(&notice(813, false)).ends_with(&format!("{expected} and 812 more")));
        assert!(line(&notice(1, true)).ends_with(&format!("{expected} (monitor: let pass)")));
    }

    #[test]
    fn a_terminal_has_a_header_that_names_the_words_of_a_line() {
        let header = header(false, true).expect("people read it");
        let begins = |line: &str| {
            line.find(|letter: char| letter.is_whitespace())
                .and_then(|end| line[end..].find(|letter: char| !letter.is_whitespace()).map(|next| end + next))
        };
        assert_eq!(begins(header), begins(&line(&notice(1, false))), "the second word stands below its name");
        let words: Vec<&str> = header.split_whitespace().collect();
        assert_eq!(words[..5], ["TIME", "INTERFACE", "LISTENER", "CONTAINER", "[RULE]"]);
        let in_pipes_and_json = [(false, false), (true, true), (true, false)];
        assert!(in_pipes_and_json.into_iter().all(|(json, terminal)| super::header(json, terminal).is_none()));
    }

    #[test]
    fn a_request_rule_is_told_from_a_client_rule() {
        let mut other = notice(1, false);
        other.interface = None;
        other.verdict.reason = Reason::RequestRate;
        assert!(line(&other).contains(" - web shop/browse request rule 2 request-rate "), "{}", line(&other));
    }

    #[test]
    fn every_name_is_in_the_documentation() {
        let page = include_str!("../../../../../docs/cli.md");
        let notice = notice(1, false);
        let object = serde_json::to_value(Object::of(&notice)).expect("texts and numbers");
        for name in object.as_object().expect("an object").keys() {
            assert!(page.contains(&format!("`{name}`")), "{name} is missing");
        }
    }
}
