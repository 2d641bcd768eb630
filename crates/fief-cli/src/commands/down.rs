// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `fief down`: takes down everything that is in force, and says what that was, and which services do not start again without it. Where
//! nothing is in force, there is nothing to do.

use std::path::PathBuf;

use serde::Serialize;

use crate::cli;
use crate::failure::Result;
use crate::output::{Output, notes, printable};
use crate::quantity::counted;
use fief_control::{Down, Fief};

pub fn run(args: &cli::Down, output: &mut Output) -> Result<()> {
    let fief = Fief::from_env()?;
    let down = fief.down()?;
    let stranded = if systemd_stops_it() { Vec::new() } else { Fief::stranded_units() };
    if args.json {
        return output.json(&Record::of(&down, stranded));
    }
    if down.was_in_force {
        output.text(report(&down))?;
    } else {
        output.text(unmounted(&down))?;
        output.line(nothing(&Fief::scopes()))?;
    }
    output.text(left_behind(&stranded))
}

/// Whether systemd runs this to stop a service, which it tells by this variable (systemd.exec(5)). What it has stopped, as `fief.service`, it
/// starts again before a unit that wants it.
fn systemd_stops_it() -> bool {
    std::env::var_os("SERVICE_RESULT").is_some()
}

#[derive(Serialize)]
struct Record<'a> {
    was_in_force: bool,
    listeners: &'a [String],
    units: usize,
    cgroups: Vec<String>,
    containers: usize,
    still_held: usize,
    mounts: Vec<String>,
    run_pid: Option<u32>,
    notes: &'a [String],
    stranded_units: Vec<String>,
}

impl<'a> Record<'a> {
    fn of(down: &'a Down, stranded_units: Vec<String>) -> Self {
        Self {
            was_in_force: down.was_in_force,
            listeners: &down.listeners,
            units: down.units,
            cgroups: paths(&down.cgroups),
            containers: down.containers,
            still_held: down.still_held,
            mounts: paths(&down.mounts),
            run_pid: down.run,
            notes: &down.notes,
            stranded_units,
        }
    }
}

fn paths(folders: &[PathBuf]) -> Vec<String> {
    folders.iter().map(|folder| folder.to_string_lossy().into_owned()).collect()
}

fn unmounted(down: &Down) -> String {
    paths(&down.mounts).iter().map(|folder| format!("unmounted: {}\n", printable(folder))).collect()
}

/// `others`: scopes in force beside the one that was asked for.
fn nothing(others: &[String]) -> String {
    match others {
        [] => "nothing is in force".to_owned(),
        others => format!("nothing is in force in this scope; in force are (FIEF_SCOPE): {}", others.join(", ")),
    }
}

/// Units that a page names.
const NAMED: usize = 10;

/// `units`: those that start under Fief.
fn left_behind(units: &[String]) -> String {
    if units.is_empty() {
        return String::new();
    }
    let named = units[..units.len().min(NAMED)].join(", ");
    let more = match units.len().saturating_sub(NAMED) {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    format!(
        "until something is in force again these units do not start: {named}{more}; `systemctl restart fief` puts \
         /etc/fief/policy.toml in force, and `fief unit UNIT --undo` has one start without Fief\n"
    )
}

fn report(down: &Down) -> String {
    let listeners = match &down.listeners[..] {
        [] => "no listener".to_owned(),
        names => format!("{} ({})", counted(names.len(), "listener"), printable(&names.join(", "))),
    };
    let (containers, units) = (counted(down.containers, "container"), counted(down.units, "managed unit"));
    let mut page = format!("took down {containers}, {listeners} and {units}\n");
    for folder in paths(&down.cgroups) {
        page.push_str(&format!("no longer managed: {}\n", printable(&folder)));
    }
    page.push_str(&unmounted(down));
    if let Some(pid) = down.run {
        page.push_str(&format!("`fief run` (process {pid}) goes on with its server, without a policy\n"));
    }
    if down.still_held > 0 {
        page.push_str(&format!("applications still hold {}\n", counted(down.still_held, "container")));
    }
    page.push_str(&notes(&down.notes));
    page
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_taken_down_is_named() {
        let down = Down {
            was_in_force: true,
            listeners: vec!["web".into(), "api".into()],
            units: 1,
            cgroups: vec!["/sys/fs/cgroup/web".into()],
            containers: 3,
            still_held: 1,
            mounts: vec!["/mnt/fief".into()],
            run: Some(812),
            notes: vec!["2 requests that waited were refused".into()],
        };
        assert_eq!(
            report(&down),
            "took down 3 containers, 2 listeners (web, api) and 1 managed unit\n\
             no longer managed: /sys/fs/cgroup/web\n\
             unmounted: /mnt/fief\n\
             `fief run` (process 812) goes on with its server, without a policy\n\
             applications still hold 1 container\n\
             note: 2 requests that waited were refused\n"
        );
        let record = serde_json::to_value(Record::of(&down, Vec::new())).expect("numbers and texts");
        assert_eq!(record["notes"][0], "2 requests that waited were refused");
        assert_eq!(report(&Down::default()), "took down 0 containers, no listener and 0 managed units\n");
    }

    #[test]
    fn units_that_do_not_start_again_are_named_with_what_helps() {
        let units = |count| (1..=count).map(|n| format!("web{n}.service")).collect::<Vec<_>>();
        assert_eq!(left_behind(&[]), "");
        assert_eq!(
            left_behind(&units(2)),
            "until something is in force again these units do not start: web1.service, web2.service; `systemctl restart fief` \
             puts /etc/fief/policy.toml in force, and `fief unit UNIT --undo` has one start without Fief\n"
        );
        assert!(left_behind(&units(10)).contains(", web10.service; "));
        assert!(left_behind(&units(12)).contains(", web10.service and 2 more; "));
    }

    #[test]
    fn other_scopes_are_named_where_nothing_is_in_force() {
        assert_eq!(nothing(&[]), "nothing is in force");
        assert!(nothing(&["fief".to_owned()]).ends_with("in force are (FIEF_SCOPE): fief"));
    }
}
