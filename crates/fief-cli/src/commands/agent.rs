// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `fief agent`: metrics, and reading without root.

use std::sync::Arc;
use std::sync::mpsc::channel;

use fief_agent::record::Folder;
use fief_agent::{Agent, AgentOptions, Readers, SeriesOptions};
use nix::unistd::Group;

use crate::cli;
use crate::commands::record::options;
use crate::failure::{Failure, Result};
use crate::output::{Output, say};
use fief_control::Fief;

/// Made by the package.
const GROUP: &str = "fief";

pub fn run(args: &cli::Agent, output: &mut Output) -> Result<()> {
    if !nix::unistd::geteuid().is_root() {
        return Err(Failure::new("the agent reads from the kernel; run it as root"));
    }
    let name = args.group.as_deref().unwrap_or(GROUP);
    let group = group(args.group.as_deref())?;
    let (ended, end) = channel();
    ctrlc::set_handler(move || {
        let _ = ended.send(());
    })
    .map_err(|error| Failure::new(format!("cannot wait for Ctrl-C: {error}")))?;
    let agent = Agent::start(
        Fief::from_env()?,
        AgentOptions {
            readers: Readers { group: group.as_ref().map(|group| group.gid) },
            listen: args.listen,
            textfile: args.textfile.clone(),
            textfile_interval: args.interval,
            series: SeriesOptions { most: args.series, applications: args.applications },
            journal: args.journal || fief_agent::reads_standard_error(),
            record: args
                .record
                .as_ref()
                .map(|folder| (Folder::of(folder), options(args.record_interval, args.record_keep))),
        },
        Arc::new(|problem: &str| say(problem)),
    )?;
    let readers = match &group {
        Some(_) => format!("root and members of the group {name}"),
        None => format!("root alone, since there is no group {name}"),
    };
    output.line(format!("serves {readers} at {}", agent.socket().display()))?;
    if let Some(address) = agent.address() {
        output.line(format!("serves metrics at http://{address}/metrics"))?;
    }
    output.flush()?;
    let wait = |time: Option<_>| match time {
        Some(time) => end.recv_timeout(time).is_ok(),
        None => end.recv().is_ok(),
    };
    agent.run(wait);
    Ok(())
}

/// Whose members may read: the one that was named, or fief where there is one.
pub fn group(named: Option<&str>) -> Result<Option<Group>> {
    let Some(name) = named else { return find(GROUP) };
    let missing = || Failure::new(format!("there is no group {name}; make it: groupadd --system {name}"));
    find(name)?.ok_or_else(missing).map(Some)
}

fn find(name: &str) -> Result<Option<Group>> {
    Group::from_name(name).map_err(|errno| Failure::new(format!("cannot look for the group {name}: {errno}")))
}
