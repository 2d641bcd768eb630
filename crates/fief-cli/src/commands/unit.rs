// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `fief unit`: a systemd service starts under the policy in force, by a drop-in.

use std::path::PathBuf;

use crate::cli::Unit;
use crate::failure::{Failure, Result};
use crate::look::{self, Source};
use crate::output::{Output, notes, printable};
use fief_control::{Change, DropIn, DropInOptions, Fief};

/// Where a package puts it.
const PACKAGED: &str = "/usr/bin/fief";

pub fn run(args: &Unit, output: &mut Output) -> Result<()> {
    let drop_in = DropIn::of(&args.unit, args.root.as_deref())?;
    if args.undo {
        return output.text(undone(&drop_in, drop_in.remove()?));
    }
    let fief = match args.root {
        Some(_) => PathBuf::from(PACKAGED),
        None => std::env::current_exe().map_err(|error| Failure::new(format!("cannot find this program: {error}")))?,
    };
    let made = drop_in.text(&DropInOptions { fief, words: words(args) })?;
    if args.print {
        return output.text(&made.text);
    }
    let mut said = made.notes.clone();
    if args.root.is_none() {
        said.extend(unknown_container(args)?);
    }
    let change = drop_in.write(&made.text)?;
    output.text(written(&drop_in, change))?;
    output.text(notes(&said))
}

/// The options of `fief exec`.
fn words(args: &Unit) -> Vec<String> {
    let mut words = Vec::new();
    if let Some(path) = &args.container {
        words.extend(["--container".to_owned(), path.clone()]);
    }
    for name in &args.listener {
        words.extend(["--listener".to_owned(), name.clone()]);
    }
    if args.no_follow {
        words.push("--no-follow".to_owned());
    }
    words
}

/// A service that names a container that the policy lacks would not start. Without a policy nobody knows.
fn unknown_container(args: &Unit) -> Result<Option<String>> {
    let Some(path) = &args.container else { return Ok(None) };
    let mut fief = Fief::from_env()?;
    if !fief.installed() {
        return Ok(Some(format!("nothing is in force, so that nobody knows whether there is a container {path}")));
    }
    look::find(&fief.look()?, path).map(|_| None)
}

fn written(drop_in: &DropIn, change: Change) -> String {
    let (unit, path) = (drop_in.unit(), drop_in.path().display());
    let done = match change {
        Change::Made => format!("wrote {path}"),
        Change::Replaced => format!("replaced {path}"),
        Change::Removed | Change::Nothing => return printable(&format!("{path} is as it should be")) + "\n",
    };
    let next = match drop_in.is_of_running_systemd() {
        true => format!("{unit} starts under Fief from its next start on: systemctl restart {unit}"),
        false => format!("{unit} starts under Fief once systemd has read it"),
    };
    printable(&format!("{done}; {next}")) + "\n"
}

fn undone(drop_in: &DropIn, change: Change) -> String {
    let (unit, path) = (drop_in.unit(), drop_in.path().display());
    let done = match change {
        Change::Removed => format!("removed {path}; {unit} starts without Fief from its next start on"),
        _ => format!("there is no {path}, so {unit} starts without Fief already"),
    };
    printable(&done) + "\n"
}
