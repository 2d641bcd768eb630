// SPDX-License-Identifier: Apache-2.0 OR MIT
//! PostgreSQL: its data, made once, and how it is started in the foreground.
//!
//! It refuses to run as root, so it gets the account that its package makes, or nobody's. A namespace of its own keeps its shared
//! memory of System V, which the kernel would keep for ever behind one that was killed. Nothing is flushed to the disk: what is
//! measured is the CPU.

use crate::error::{Context, Error, Kind, Result};
use crate::load::POSTGRES_USER;
use fief_testkit::postgresql;
use nix::unistd::{User, chown};
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

/// Adds up so many numbers as the server is told to.
pub const QUERY: &str = "SELECT sum(n) FROM generate_series(1, current_setting('lab.rounds')::int) n";

/// More than the lab's clients and the server's own.
const CONNECTIONS: usize = 300;

/// What its configuration says, which is written with its data.
const SETTINGS: &str = "listen_addresses = '0.0.0.0'\nunix_socket_directories = ''\nfsync = off\nautovacuum = off\njit = off\n\
                        dynamic_shared_memory_type = mmap\nshared_buffers = 16MB\nlog_min_messages = fatal\n";

/// Everybody of the lab's network, without a password.
const ACCESS: &str = "host all all 0.0.0.0/0 trust\n";

/// The words that start it.
pub fn words(port: u16, work: usize) -> Result<Vec<OsString>> {
    let programs = programs()?;
    let mut words = as_account()?;
    words.push(programs.join("postgres").into());
    words.push("-D".into());
    words.push(data(&programs)?.into());
    for setting in [format!("port={port}"), format!("max_connections={CONNECTIONS}"), format!("lab.rounds={work}")] {
        words.extend(["-c".into(), setting.into()]);
    }
    Ok(words)
}

fn programs() -> Result<PathBuf> {
    postgresql().ok_or_else(|| Error::new(Kind::Missing, "PostgreSQL is not installed; `make deps` installs it"))
}

fn account() -> Result<User> {
    let known = ["postgres", "nobody"].iter().find_map(|name| User::from_name(name).ok().flatten());
    known.ok_or_else(|| {
        Error::new(Kind::Missing, "there is neither an account postgres nor nobody, and PostgreSQL refuses root")
    })
}

/// Words before a program that make it one of the account's, in a folder that this may enter.
fn as_account() -> Result<Vec<OsString>> {
    let User { uid, gid, .. } = account()?;
    let words = format!("unshare --ipc --wd=/ setpriv --reuid={uid} --regid={gid} --clear-groups --");
    Ok(words.split(' ').map(OsString::from).collect())
}

/// The folder of its data, which all servers of the lab have one after the other.
fn data(programs: &Path) -> Result<PathBuf> {
    static MADE: OnceLock<std::result::Result<(tempfile::TempDir, PathBuf), String>> = OnceLock::new();
    let made = MADE.get_or_init(|| make_data(programs).map_err(|error| error.to_string()));
    made.as_ref().map(|(_, data)| data.clone()).map_err(|said| Error::failed(said.clone()))
}

fn make_data(programs: &Path) -> Result<(tempfile::TempDir, PathBuf)> {
    let folder = tempfile::Builder::new().prefix("ff-postgres-").tempdir().context("make a folder for PostgreSQL")?;
    let User { uid, gid, .. } = account()?;
    chown(folder.path(), Some(uid), Some(gid)).context("give PostgreSQL its folder")?;
    let data = folder.path().join("data");
    let words = as_account()?;
    let mut command = Command::new(&words[0]);
    command.args(&words[1..]).arg(programs.join("initdb")).arg("-D").arg(&data);
    command.args(["--auth=trust", "--no-sync", "--locale=C", "--encoding=UTF8", "--username", POSTGRES_USER]);
    fief_testkit::run(&mut command).context("make the data of PostgreSQL")?;
    for (name, text, is_kept) in [("postgresql.conf", SETTINGS, true), ("pg_hba.conf", ACCESS, false)] {
        let file = data.join(name);
        let before = if is_kept {
            std::fs::read_to_string(&file).context(format!("read {}", file.display()))?
        } else {
            String::new()
        };
        std::fs::write(&file, format!("{before}\n{text}")).context(format!("write {}", file.display()))?;
    }
    Ok((folder, data))
}

#[cfg(test)]
mod tests {
    use super::*;
    use fief_testkit::{Feature, require};

    #[test]
    fn it_is_started_as_an_account_that_is_not_root() {
        if !(require(Feature::Root) && require(Feature::PostgreSql)) {
            return;
        }
        let words = words(80, 1234).expect("words");
        let text = words.iter().map(|word| word.to_string_lossy()).collect::<Vec<_>>().join(" ");
        assert!(text.contains("lab.rounds=1234") && text.contains("port=80"), "{text}");
        assert!(!text.contains("--reuid=0 "), "{text}");
    }
}
