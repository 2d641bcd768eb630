// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `fief manage`: a unit, process or cgroup that already runs gets a home.

use std::os::fd::AsFd;

use serde::Serialize;

use crate::cli::Manage;
use crate::failure::{Failure, Result};
use crate::output::{Output, notes, printable};
use crate::quantity::counted;
use fief_control::{Fief, ManageOptions, Managed, Target};

pub fn run(args: &Manage, output: &mut Output) -> Result<()> {
    let target = Target::parse(&args.target)?;
    let options = ManageOptions { container: args.container.clone(), follow: args.follow };
    if args.keep {
        return keep(args, &target, &options, output);
    }
    let managed = Fief::from_env()?.manage(&target, &options)?;
    match args.json {
        true => output.json(&Record::of(&managed)),
        false => output.text(page(&managed)),
    }
}

/// Manages it until Ctrl-C.
fn keep(args: &Manage, target: &Target, options: &ManageOptions, output: &mut Output) -> Result<()> {
    let no_signal = |error: &dyn std::fmt::Display| Failure::new(format!("cannot wait for Ctrl-C: {error}"));
    let (stop, stops) = nix::unistd::pipe().map_err(|error| no_signal(&error))?;
    ctrlc::set_handler(move || {
        // the pipe has room for more signals than anybody sends
        let _ = nix::unistd::write(&stops, &[1]);
    })
    .map_err(|error| no_signal(&error))?;
    let mut times = 0u64;
    let mut tell = |managed: &Managed| {
        match args.json {
            true => output.json(&Record::of(managed)),
            false => output.text(page(managed)),
        }?;
        if times == 0 && !args.json {
            output.text(notes(&[advice(target, args.container.as_deref())]))?;
        }
        times += 1;
        // the reader waits for each
        output.flush()
    };
    Fief::from_env()?.keep(target, options, stop.as_fd(), |managed| {
        // a reader that has gone, or a full disk, does not end what is kept
        if let Err(failure) = tell(managed) {
            let _ = failure.report();
        }
        Ok(())
    })
}

/// What to prefer where it can be had.
fn advice(target: &Target, container: Option<&str>) -> String {
    let goes_on = "this goes on over its restarts until Ctrl-C, and is lost with the machine's";
    match target {
        Target::Unit(unit) => {
            let home = container.map(|path| format!(" --container {path}")).unwrap_or_default();
            format!(
                "{goes_on}; prefer `fief unit {unit}{home}` where the unit can be started anew: it misses nothing, and stays"
            )
        }
        _ => goes_on.to_owned(),
    }
}

fn page(managed: &Managed) -> String {
    let mut page = format!(
        "{} in {} {} now in the container {}; {} {} classes\n",
        counted(managed.threads, "thread"),
        printable(&managed.cgroup.to_string_lossy()),
        if managed.threads == 1 { "is" } else { "are" },
        printable(&managed.container),
        counted(managed.listeners, "listening socket"),
        if managed.listeners == 1 { "has" } else { "have" },
    );
    page.push_str(&notes(&managed.notes));
    page
}

#[derive(Serialize)]
struct Record<'a> {
    container: &'a str,
    cgroup: String,
    threads: usize,
    listeners: usize,
    notes: &'a [String],
}

impl<'a> Record<'a> {
    fn of(managed: &'a Managed) -> Self {
        Self {
            container: &managed.container,
            cgroup: managed.cgroup.to_string_lossy().into_owned(),
            threads: managed.threads,
            listeners: managed.listeners,
            notes: &managed.notes,
        }
    }
}
