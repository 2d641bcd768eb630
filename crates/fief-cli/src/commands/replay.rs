// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `fief replay`: what a record holds.

use fief_agent::record::{Day, Folder};
use serde::Serialize;

use crate::cli;
use crate::failure::Result;
use crate::history::time;
use crate::output::{Align, Output, Table};
use crate::quantity::{bytes, count, or_dash};

pub fn run(args: &cli::Replay, output: &mut Output) -> Result<()> {
    let days = Folder::of(&args.folder).contents()?;
    match args.json {
        true => days.iter().try_for_each(|day| output.json(&Object::of(day))),
        false => output.text(table(&days)),
    }
}

/// The names are a promise to programs; `docs/cli.md` lists them.
#[derive(Serialize)]
struct Object<'a> {
    day: &'a str,
    from: Option<String>,
    to: Option<String>,
    readings: u64,
    bytes: u64,
    unreadable_bytes: u64,
}

impl<'a> Object<'a> {
    fn of(day: &'a Day) -> Self {
        Self {
            day: &day.date,
            from: day.first_ms.map(time),
            to: day.last_ms.map(time),
            readings: day.readings,
            bytes: day.bytes,
            unreadable_bytes: day.unreadable_bytes,
        }
    }
}

fn table(days: &[Day]) -> Table {
    let mut table = Table::new(&[
        ("DAY", Align::Left),
        ("FROM", Align::Left),
        ("TO", Align::Left),
        ("READINGS", Align::Right),
        ("SIZE", Align::Right),
        ("UNREADABLE", Align::Right),
    ]);
    for day in days {
        table.push([
            day.date.clone(),
            or_dash(day.first_ms.map(time)),
            or_dash(day.last_ms.map(time)),
            count(day.readings),
            bytes(day.bytes),
            bytes(day.unreadable_bytes),
        ]);
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_name_of_the_object_is_in_the_documentation() {
        let page = include_str!("../../../../docs/cli.md");
        let day = Day {
            date: "2026-11-25".into(),
            bytes: 5,
            unreadable_bytes: 0,
            readings: 1,
            first_ms: Some(1_795_629_600_000),
            last_ms: None,
        };
        let object = serde_json::to_value(Object::of(&day)).expect("texts and numbers");
        for name in object.as_object().expect("an object").keys() {
            assert!(page.contains(&format!("`{name}`")), "{name} is missing");
        }
        assert!(table(&[day]).to_string().contains("2026-11-25T18:00:00Z"));
    }
}
