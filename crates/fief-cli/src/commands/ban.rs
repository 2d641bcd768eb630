// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `fief ban`: shuts a client or a network out for a while, and lists who is.

use serde::Serialize;

use crate::cli;
use crate::clock;
use crate::failure::Result;
use crate::look;
use crate::output::{Align, Output, Table, notes};
use crate::quantity::duration;
use fief_control::{Ban, Banned, Fief};

pub fn run(args: &cli::Ban, output: &mut Output) -> Result<()> {
    let fief = Fief::from_env()?;
    let Some(prefix) = args.prefix else { return list(args, &fief, output) };
    let banned = fief.ban(prefix, args.time).map_err(|error| look::failure(&fief, error))?;
    match args.json {
        true => output.json(&Changed::of(&banned)),
        false => output.text(page(&banned)),
    }
}

fn list(args: &cli::Ban, fief: &Fief, output: &mut Output) -> Result<()> {
    let bans = fief.bans().map_err(|error| look::failure(fief, error))?;
    match args.json {
        true => bans.iter().try_for_each(|ban| output.json(&Record::of(ban))),
        false if bans.is_empty() => output.line("nobody is banned"),
        false => output.text(table(&bans)),
    }
}

/// The names are a promise to programs; `docs/cli.md` lists them.
#[derive(Serialize)]
pub struct Record {
    source: String,
    since_ns: u64,
    remaining_ns: u64,
}

impl Record {
    pub fn of(ban: &Ban) -> Self {
        Self { source: ban.name(), since_ns: ban.since_ns, remaining_ns: ban.remaining_ns }
    }
}

#[derive(Serialize)]
struct Changed<'a> {
    #[serde(flatten)]
    ban: Record,
    before: Option<Record>,
    within: Option<Record>,
    notes: &'a [String],
}

impl<'a> Changed<'a> {
    fn of(banned: &'a Banned) -> Self {
        let Banned { ban, before, within, notes } = banned;
        let record = |ban: &Option<Ban>| ban.as_ref().map(Record::of);
        Self { ban: Record::of(ban), before: record(before), within: record(within), notes }
    }
}

fn table(bans: &[Ban]) -> Table {
    let mut table =
        Table::new(&[("BANNED", Align::Left), ("SINCE", Align::Left), ("UNTIL", Align::Left), ("STILL", Align::Right)]);
    for ban in bans {
        let times = [ban.since_ns, ban.until_ns].map(clock::wall_second);
        let [since, until] = times;
        table.push([ban.name(), since, until, duration(ban.remaining_ns)]);
    }
    table
}

fn page(banned: &Banned) -> String {
    let Banned { ban, before, within, notes: told } = banned;
    let until = clock::wall_second(ban.until_ns);
    let mut page = match before {
        Some(before) => format!(
            "{} stays banned, until {until} ({} from now; it was {})\n",
            ban.name(),
            duration(ban.remaining_ns),
            clock::wall_second(before.until_ns)
        ),
        None => format!("{} is banned until {until} ({} from now)\n", ban.name(), duration(ban.remaining_ns)),
    };
    if let Some(outer) = within {
        page.push_str(&format!(
            "it is in {}, which is banned until {}\n",
            outer.name(),
            clock::wall_second(outer.until_ns)
        ));
    }
    page.push_str(&notes(told));
    page
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ban(prefix: &str, until_ns: u64) -> Ban {
        let prefix = prefix.parse().expect("a prefix");
        Ban { prefix, since_ns: 5_000_000_000, until_ns, remaining_ns: 3_600_000_000_000 }
    }

    #[test]
    fn it_says_what_it_did_and_what_was() {
        let fresh = Banned { ban: ban("10.1.2.3/32", 10_000_000_000), before: None, within: None, notes: vec![] };
        assert!(page(&fresh).starts_with("10.1.2.3 is banned until "), "{}", page(&fresh));
        let again = Banned {
            before: Some(ban("10.1.2.3/32", 7)),
            within: Some(ban("10.0.0.0/8", 9)),
            notes: vec!["x".into()],
            ..fresh
        };
        let page = page(&again);
        assert!(page.contains("stays banned, until") && page.contains("it is in 10.0.0.0/8"), "{page}");
        assert!(page.ends_with("note: x\n"), "{page}");
    }

    #[test]
    fn every_name_is_in_the_documentation() {
        let page = include_str!("../../../../docs/cli.md");
        let banned = Banned { ban: ban("10.1.2.3/32", 10), before: None, within: None, notes: vec![] };
        let object = serde_json::to_value(Changed::of(&banned)).expect("texts and numbers");
        for name in object.as_object().expect("an object").keys() {
            assert!(page.contains(&format!("`{name}`")), "{name} is missing");
        }
    }
}
