// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Fief in a scope of the lab's own, worked by the command `fief` as anybody would.

use crate::command::{PolicyFile, fief};
use crate::error::{Context, Error, Kind, Result};
use fief_testkit::NetNs;
use serde::Deserialize;
use serde_json::Value;
use std::ffi::OsStr;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Stdio;

/// A verdict among the lines of `fief explain --json`.
#[derive(Debug, Deserialize)]
struct Counted {
    reason: String,
    container: String,
    count: u64,
}

/// What `fief explain --json` says of each class of a queue, of whatever put the lab's policy into force.
pub fn queues() -> Result<Vec<Value>> {
    let text = call(["explain", "--json"].map(OsStr::new))?;
    let records = text.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    Ok(records.filter(|one| one["record"] == "queue").collect())
}

/// What holds the shares of a container, in a word of `fief show`; an error if nothing does.
pub fn cpu_enforced_by(container: &str) -> Result<String> {
    let text = call(["show", container, "--json"].map(OsStr::new))?;
    let shown: Value = serde_json::from_str(&text).context("read what fief shows")?;
    let why_not = || shown["cpu_not_enforced"].as_str().unwrap_or("fief does not say why");
    let nothing = || Error::new(Kind::Missing, format!("nothing holds the shares of the CPU here: {}", why_not()));
    shown["cpu_enforced_by"].as_str().map(str::to_owned).ok_or_else(nothing)
}

/// Taken down when it is dropped.
#[derive(Debug)]
pub struct Installation {
    is_up: bool,
}

impl Installation {
    /// In the network namespace of the servers that the policy is about.
    pub fn apply_in(policy: &PolicyFile, servers: &NetNs) -> Result<Installation> {
        call_in(Some(servers), [OsStr::new("apply"), policy.path().as_os_str()])?;
        Ok(Installation { is_up: true })
    }

    pub fn apply(policy: &PolicyFile) -> Result<Installation> {
        call([OsStr::new("apply"), policy.path().as_os_str()])?;
        Ok(Installation { is_up: true })
    }

    /// Another policy in its place.
    pub fn change(&self, policy: &PolicyFile) -> Result<()> {
        call([OsStr::new("apply"), policy.path().as_os_str()]).map(drop)
    }

    pub fn manage(&self, cgroup: &Path, container: &str, follow: bool) -> Result<()> {
        let mut words =
            vec![OsStr::new("manage"), cgroup.as_os_str(), OsStr::new("--container"), OsStr::new(container)];
        if follow {
            words.push(OsStr::new("--follow"));
        }
        call(words).map(drop)
    }

    /// How often a verdict with this reason fell for this container.
    pub fn verdicts(&self, reason: &str, container: &str) -> Result<u64> {
        let text = call(["explain", "--json"].map(OsStr::new))?;
        let counted = text.lines().filter_map(|line| serde_json::from_str::<Counted>(line).ok());
        Ok(counted.filter(|one| one.reason == reason && one.container == container).map(|one| one.count).sum())
    }

    pub fn down(mut self) -> Result<()> {
        self.is_up = false;
        call([OsStr::new("down")]).map(drop)
    }
}

impl Drop for Installation {
    fn drop(&mut self) {
        if self.is_up {
            let _ = call([OsStr::new("down")]);
        }
    }
}

/// Another policy in the place of the lab's that is in force, whatever put it there; in the network namespace of the servers.
pub fn change_in(policy: &PolicyFile, servers: &NetNs) -> Result<()> {
    call_in(Some(servers), [OsStr::new("apply"), policy.path().as_os_str()]).map(drop)
}

fn call<'a>(words: impl IntoIterator<Item = &'a OsStr>) -> Result<String> {
    call_in(None, words)
}

fn call_in<'a>(namespace: Option<&NetNs>, words: impl IntoIterator<Item = &'a OsStr>) -> Result<String> {
    let mut command = fief()?;
    if let Some(namespace) = namespace {
        namespace.enter(&mut command);
    }
    // In a group of its own: Ctrl-C is for the lab, and must not cut an apply in two.
    command.args(words).stdin(Stdio::null()).process_group(0);
    let name = format!("{command:?}");
    let output = command.output().context(format!("start {name}"))?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr).trim().to_owned();
        return Err(Error::failed(format!("{name} ended with {}: {said}", output.status)));
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}
