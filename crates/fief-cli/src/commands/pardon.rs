// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `fief pardon`: lets a client or a network in again.

use serde::Serialize;

use super::ban::Record;
use crate::cli;
use crate::clock;
use crate::failure::Result;
use crate::look;
use crate::output::{Output, printable};
use fief_control::{Fief, Pardoned};

pub fn run(args: &cli::Pardon, output: &mut Output) -> Result<()> {
    let fief = Fief::from_env()?;
    let pardoned = fief.pardon(args.prefix).map_err(|error| look::failure(&fief, error))?;
    match args.json {
        true => output.json(&Object::of(&pardoned)),
        false => output.text(page(&fief_control::ban_name(args.prefix), &pardoned)),
    }
}

/// The names are a promise to programs; `docs/cli.md` lists them.
#[derive(Serialize)]
struct Object<'a> {
    bans: Vec<Record>,
    penalties: &'a [String],
    isolations: Vec<Isolation<'a>>,
    still: Vec<Record>,
}

#[derive(Serialize)]
struct Isolation<'a> {
    listener: &'a str,
    prefix: &'a str,
}

impl<'a> Object<'a> {
    fn of(pardoned: &'a Pardoned) -> Self {
        let isolation = |(listener, prefix): &'a (String, String)| Isolation { listener, prefix };
        Self {
            bans: pardoned.bans.iter().map(Record::of).collect(),
            penalties: &pardoned.penalties,
            isolations: pardoned.isolations.iter().map(isolation).collect(),
            still: pardoned.still.iter().map(Record::of).collect(),
        }
    }
}

fn page(prefix: &str, pardoned: &Pardoned) -> String {
    let Pardoned { bans, penalties, isolations, still } = pardoned;
    let mut lines: Vec<String> = bans.iter().map(|ban| format!("ended the ban of {}", ban.name())).collect();
    lines.extend(penalties.iter().map(|source| format!("ended the penalty of {source}")));
    lines.extend(isolations.iter().map(|(listener, prefix)| {
        format!("ended the isolation of {prefix} at listener {listener}; it comes back if the prefix goes on to send too many")
    }));
    if lines.is_empty() {
        lines.push(format!("{prefix} had no ban, no penalty and no isolation"));
    }
    lines.extend(still.iter().map(|ban| {
        let (outer, until) = (ban.name(), clock::wall_second(ban.until_ns));
        format!("it stays shut out until {until}, since {outer} is banned; `fief pardon {outer}` ends that")
    }));
    lines.iter().map(|line| format!("{}\n", printable(line))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use fief_control::Ban;

    fn ban(prefix: &str) -> Ban {
        Ban { prefix: prefix.parse().expect("a prefix"), since_ns: 1, until_ns: 10, remaining_ns: 5 }
    }

    #[test]
    fn it_says_what_it_ended_and_what_stays() {
        assert_eq!(page("10.1.2.3", &Pardoned::default()), "10.1.2.3 had no ban, no penalty and no isolation\n");
        let pardoned = Pardoned {
            bans: vec![ban("10.1.2.3/32")],
            penalties: vec!["10.1.2.3".into()],
            isolations: vec![("web".into(), "10.1.2.0/24".into())],
            still: vec![ban("10.0.0.0/8")],
        };
        let page = page("10.1.2.3", &pardoned);
        for line in [
            "ended the ban of 10.1.2.3\n",
            "ended the penalty of 10.1.2.3\n",
            "ended the isolation of 10.1.2.0/24 at listener web",
            "`fief pardon 10.0.0.0/8` ends that\n",
        ] {
            assert!(page.contains(line), "{line} in {page}");
        }
    }

    #[test]
    fn every_name_is_in_the_documentation() {
        let page = include_str!("../../../../docs/cli.md");
        let object = serde_json::to_value(Object::of(&Pardoned::default())).expect("texts and numbers");
        for name in object.as_object().expect("an object").keys() {
            assert!(page.contains(&format!("`{name}`")), "{name} is missing");
        }
    }
}
