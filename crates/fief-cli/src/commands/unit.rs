// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `fief unit`: a systemd service starts under the policy in force, by a drop-in.

use std::path::PathBuf;

use crate::cli::Unit;
use crate::failure::{Failure, Result};
use crate::output::{Output, notes, printable};
use fief_control::{Change, DropIn, DropInOptions, ExecOptions, Fief};

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
    let options = ExecOptions {
        container: args.container.clone(),
        listeners: args.listener.clone(),
        no_follow: args.no_follow,
        tell: None,
    };
    let made = drop_in.text(&DropInOptions { fief, words: words(&options) })?;
    if args.print {
        return output.text(&made.text);
    }
    let mut said = made.notes.clone();
    let mut refusing = None;
    if args.root.is_none() {
        let fief = Fief::from_env()?;
        said.extend(checked(&fief, &options)?);
        refusing = if fief.installed() { Some(fief.refusing(&options)?) } else { None };
    }
    let change = drop_in.write(&made.text)?;
    output.text(written(&drop_in, change))?;
    if change != Change::Nothing {
        said.extend(meanwhile(refusing.as_deref()));
    }
    output.text(notes(&said))
}

/// Tells the operator whether connections are refused while the unit restarts. `refusing`: its listeners that refuse them; `None`: no policy
/// is in force that says it.
fn meanwhile(refusing: Option<&[String]>) -> Option<String> {
    let (whose, listeners) = match refusing {
        Some([]) => return None,
        Some(names) => (if names.len() == 1 { "its listener " } else { "its listeners " }, names.join(", ")),
        None => ("its listener", String::new()),
    };
    let have = if refusing.is_some_and(|names| names.len() > 1) { "have" } else { "has" };
    Some(format!(
        "connections asked for while the unit restarts are refused; they are kept waiting if {whose}{listeners} {have} \
         restart = \"10s\""
    ))
}

/// The options of `fief exec`.
fn words(options: &ExecOptions) -> Vec<String> {
    let mut words = Vec::new();
    if let Some(path) = &options.container {
        words.extend(["--container".to_owned(), path.clone()]);
    }
    for name in &options.listeners {
        words.extend(["--listener".to_owned(), name.clone()]);
    }
    if options.no_follow {
        words.push("--no-follow".to_owned());
    }
    words
}

/// What `fief exec` would tell of it. A service that asks for what that refuses would not start. Without a policy nobody knows.
fn checked(fief: &Fief, options: &ExecOptions) -> Result<Option<String>> {
    if fief.installed() {
        return Ok(fief.check_here(options)?);
    }
    let container = options.container.iter().map(|path| format!("a container {path}"));
    let named: Vec<_> = container.chain(options.listeners.iter().map(|name| format!("a listener {name}"))).collect();
    let unknown = || format!("nothing is in force, so that nobody knows whether there is {}", named.join(", "));
    Ok((!named.is_empty()).then(unknown))
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connections_during_a_restart_are_spoken_of_unless_they_wait() {
        let said = |names: &[&str]| meanwhile(Some(&names.iter().map(|&name| name.to_owned()).collect::<Vec<_>>()));
        assert_eq!(said(&[]), None);
        let one = said(&["web"]).expect("it refuses");
        assert!(one.ends_with("kept waiting if its listener web has restart = \"10s\""), "{one}");
        let two = said(&["web", "api"]).expect("they refuse");
        assert!(two.ends_with("if its listeners web, api have restart = \"10s\""), "{two}");
        let unknown = meanwhile(None).expect("nobody knows");
        assert!(unknown.ends_with("if its listener has restart = \"10s\""), "{unknown}");
    }
}
