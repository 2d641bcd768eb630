// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The two programs that experiments start: this one, for load generators and servers, and `fief`, like any user would.

use crate::error::{Context, Error, Kind, Result};
use fief_testkit::NetNs;
use serde::Deserialize;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::OnceLock;
use std::time::Duration;

/// Long enough for every program of a policy to be taken down on a busy machine.
pub const DOWN: Duration = Duration::from_secs(15);

/// This program, which has the lab's load generators and servers (`children`).
pub fn own() -> Result<PathBuf> {
    std::env::current_exe().context("find the running program")
}

/// `fief-lab lab-load ...` and the like, which the help does not show.
pub fn child(word: &str) -> Result<Command> {
    let mut command = Command::new(own()?);
    command.arg(word);
    Ok(command)
}

/// A program that lies in the folder of this one, where the build and the installation put it.
pub fn beside(name: &str, package: &str) -> Result<PathBuf> {
    find_beside(&own()?, name, package)
}

fn find_beside(own: &Path, name: &str, package: &str) -> Result<PathBuf> {
    let program = own.with_file_name(name);
    if program.exists() {
        return Ok(program);
    }
    let program = program.display();
    let what =
        format!("{program} is not there; in the source tree `cargo build -p {package}` in the same profile makes it");
    Err(Error::new(Kind::Missing, what))
}

/// Gives the namespace's own packet filter these rules.
pub fn nft(namespace: &NetNs, rules: &str) -> Result<()> {
    fief_testkit::run(namespace.command("nft").arg(rules)).map(drop).map_err(Error::from)
}

const SCOPE_PREFIX: &str = "ff-lab-";

/// Fief's installation of this lab, apart from the one that may be in force on the machine.
pub fn scope() -> String {
    format!("{SCOPE_PREFIX}{}", std::process::id())
}

/// The command `fief`, in the scope of this lab.
pub fn fief() -> Result<Command> {
    in_scope(&scope())
}

fn in_scope(scope: &str) -> Result<Command> {
    let mut command = Command::new(beside("fief", "fief-cli")?);
    command.env("FIEF_SCOPE", scope);
    Ok(command)
}

/// What is being built for a scope has the builder's pid behind a tilde.
fn scope_of(name: &str) -> &str {
    name.split_once('~').map_or(name, |(scope, _)| scope)
}

/// Whether this is the scope of a lab that has ended.
pub fn is_left(scope: &str) -> bool {
    let lab = scope.strip_prefix(SCOPE_PREFIX).and_then(|lab| lab.parse().ok());
    lab.is_some_and(|lab| !fief_testkit::lives(lab))
}

/// Takes down what labs left that were killed together with their `fief run`; how many there were.
pub fn sweep() -> usize {
    let entries = std::fs::read_dir("/sys/fs/bpf").into_iter().flatten().flatten();
    let left = entries.filter(|entry| is_left(scope_of(&entry.file_name().to_string_lossy())));
    left.filter(|entry| {
        let name = entry.file_name().to_string_lossy().into_owned();
        let _ = in_scope(scope_of(&name)).map(|mut fief| fief.arg("down").output());
        !entry.path().exists()
    })
    .count()
}

/// One line of `fief usage --json`.
#[derive(Clone, Debug, Deserialize)]
pub struct Used {
    pub taken_ns: u64,
    pub container: String,
    /// With the generation its name for good.
    pub id: u32,
    pub generation: u64,
    pub thread_ns: u64,
    pub receive_ns: u64,
    pub packets_in: u64,
    /// Connections of its class.
    pub accepts: u64,
}

/// Every container of this lab's installation with what it used up to now.
pub fn usage() -> Result<Vec<Used>> {
    let text = fief_testkit::run(fief()?.args(["usage", "--json"])).map_err(Error::from)?;
    text.lines().map(|line| serde_json::from_str(line).context("read the usage of a container")).collect()
}

/// A policy as a file that lives as long as the guard.
#[derive(Debug)]
pub struct PolicyFile {
    file: tempfile::NamedTempFile,
}

impl PolicyFile {
    pub fn new(text: &str) -> Result<PolicyFile> {
        let file = tempfile::Builder::new()
            .prefix("ff-policy-")
            .suffix(".toml")
            .tempfile()
            .context("make a file for a policy")?;
        std::fs::write(file.path(), text).context("write a policy")?;
        Ok(PolicyFile { file })
    }

    pub fn path(&self) -> PathBuf {
        self.file.path().to_owned()
    }

    /// An error with what `fief check` says of it.
    pub fn check(&self) -> Result<()> {
        fief_testkit::run(fief()?.arg("check").arg(self.path())).map(drop).map_err(Error::from)
    }

    /// `fief run POLICY -- program arguments`, inside the namespace.
    pub fn run(&self, namespace: &NetNs, program: impl Into<OsString>, arguments: Vec<OsString>) -> Result<Command> {
        let mut command = fief()?;
        namespace.enter(&mut command);
        command.arg("run").arg(self.path()).arg("--").arg(program.into()).args(arguments);
        command.stdin(Stdio::null());
        Ok(command)
    }
}

/// Whether `fief run` works on this machine, tried once; its own words if not.
pub fn can_run() -> Result<()> {
    static TRIED: OnceLock<std::result::Result<(), String>> = OnceLock::new();
    let tried = TRIED.get_or_init(|| try_run().unwrap_or_else(|error| Err(error.to_string())));
    tried.clone().map_err(|said| Error::new(Kind::Missing, said))
}

/// Whether `fief run` works, and this policy says nothing that `fief` does not know; its own words if not.
pub fn can_run_with(policy: &str) -> Result<()> {
    can_run()?;
    let policy = PolicyFile::new(policy)?;
    let output = fief()?.arg("check").arg(policy.path()).stdin(Stdio::null()).output().context("start fief")?;
    match output.status.success() {
        true => Ok(()),
        false => Err(Error::new(Kind::Missing, String::from_utf8_lossy(&output.stderr).trim().to_owned())),
    }
}

fn try_run() -> Result<std::result::Result<(), String>> {
    let policy = PolicyFile::new("version = 1\n\n[container.lab]\n")?;
    let mut command = fief()?;
    command.arg("run").arg(policy.path()).args(["--", "true"]).stdin(Stdio::null());
    let output = command.output().context("start fief")?;
    if output.status.success() {
        return Ok(Ok(()));
    }
    Ok(Err(String::from_utf8_lossy(&output.stderr).trim().to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_that_is_missing_is_named_with_what_builds_it() {
        let folder = tempfile::tempdir().expect("a folder");
        let own = folder.path().join("fief-lab");
        let said = find_beside(&own, "fief", "fief-cli").expect_err("an empty folder").to_string();
        assert!(said.contains("/fief is not there") && said.contains("cargo build -p fief-cli"), "{said}");
        std::fs::write(folder.path().join("fief"), "").expect("room on the disk");
        assert_eq!(find_beside(&own, "fief", "fief-cli").expect("it is there"), folder.path().join("fief"));
    }
}
