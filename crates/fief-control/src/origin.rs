// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Where the policy in force came from: who applied it, from which file, by which command, and who answers its connection requests since. It is kept
//! beside the policy's text, and goes with it.

use std::fs;
use std::path::{Path, PathBuf};

use fief_bpf::{Context, Result};
use nix::unistd::{Uid, User};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::{Fief, cgroup, wire};

/// What a number of a login is while nobody has logged in.
const NOBODY: u32 = u32::MAX;

/// Who applied a policy, and what came of it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Origin {
    /// The user; who became it, if the machine knows; the systemd unit, if it was one.
    pub by: String,
    /// The words of the command.
    pub command: String,
    /// The policy's file, absolute; `None`: its text came another way, or an older version applied it.
    #[serde(default, serialize_with = "wire::some_path")]
    pub file: Option<PathBuf>,
    /// Its process.
    pub pid: u32,
    /// Sentences: whether the kernel or the front door answers connection requests to admitted listeners, and why.
    pub answers: Vec<String>,
}

/// The text of a policy, and the file that it was read from.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Source<'a> {
    pub text: &'a str,
    pub file: Option<&'a Path>,
}

impl Origin {
    /// Of this process.
    fn own(file: Option<&Path>, answers: &[String]) -> Self {
        let read = |file: &str| fs::read(format!("/proc/self/{file}")).unwrap_or_default();
        let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
        let command = text(read("cmdline")).trim_end_matches('\0').replace('\0', " ");
        let login = text(read("loginuid")).trim().parse().ok().filter(|login| *login != NOBODY);
        let unit = unit(&read("cgroup"));
        let by = by(&name(Uid::effective().as_raw()), login.map(name).as_deref(), unit.as_deref());
        Self { by, command, file: file.map(Path::to_owned), pid: std::process::id(), answers: answers.to_vec() }
    }
}

fn name(uid: u32) -> String {
    let user = User::from_uid(Uid::from_raw(uid)).ok().flatten();
    user.map_or_else(|| format!("user {uid}"), |user| user.name)
}

/// `root, logged in as alice`
fn by(user: &str, login: Option<&str>, unit: Option<&str>) -> String {
    match (login, unit) {
        (_, Some(unit)) => format!("{user}, in {unit}"),
        (Some(login), None) if login != user => format!("{user}, logged in as {login}"),
        _ => user.to_owned(),
    }
}

/// The service that a process is in.
pub(crate) fn unit_of(pid: i32) -> Option<String> {
    unit(&fs::read(format!("/proc/{pid}/cgroup")).ok()?)
}

/// By its cgroup in the unified hierarchy. Below a service's there may be others, as `fief exec` makes them.
fn unit(cgroups: &[u8]) -> Option<String> {
    let mut names = cgroup::in_unified(cgroups)?.rsplit(|byte| *byte == b'/');
    let unit = names.find(|name| name.ends_with(b".service") && !name.starts_with(b"user@"))?;
    Some(String::from_utf8_lossy(unit).into_owned())
}

/// What sha256sum(1) says of the file, if this is its text.
pub(crate) fn hash(text: &str) -> String {
    Sha256::digest(text).iter().map(|byte| format!("{byte:02x}")).collect()
}

impl Fief {
    fn origin_file(&self, slot: u32) -> PathBuf {
        self.run_dir().join(format!("origin.{slot}.json"))
    }

    /// Keeps what is known of the policy that is built in a slot.
    pub(crate) fn keep_origin(&self, slot: u32, file: Option<&Path>, answers: &[String]) -> Result<()> {
        let path = self.origin_file(slot);
        let text = serde_json::to_string(&Origin::own(file, answers)).expect("texts and a number");
        fs::write(&path, text).context(|| format!("cannot write {}", path.display()))
    }

    /// `None`: it was removed, or an older version applied the policy.
    pub(crate) fn origin(&self, slot: u32) -> Option<Origin> {
        serde_json::from_slice(&fs::read(self.origin_file(slot)).ok()?).ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_login_and_a_service_are_told_beside_the_user() {
        assert_eq!(by("root", None, None), "root");
        assert_eq!(by("root", Some("root"), None), "root");
        assert_eq!(by("root", Some("alice"), None), "root, logged in as alice");
        assert_eq!(by("root", None, Some("fief.service")), "root, in fief.service");
    }

    #[test]
    fn a_service_is_the_last_part_of_its_cgroup() {
        let unit = |cgroups: &[u8]| unit(cgroups);
        assert_eq!(unit(b"1:cpu:/x\n0::/system.slice/fief.service\n").as_deref(), Some("fief.service"));
        assert_eq!(unit(b"0::/user.slice/user-0.slice/session-1.scope\n"), None);
        assert_eq!(unit(b"0::/\n"), None);
        assert_eq!(unit(b"0::/system.slice/nginx.service/fief/\xff\n").as_deref(), Some("nginx.service"));
        assert_eq!(unit(b"0::/user.slice/user-0.slice/user@0.service/app.slice/run-1.scope\n"), None);
    }

    #[test]
    fn the_file_is_kept_and_what_an_older_version_kept_is_read() {
        let own = Origin::own(Some(Path::new("/etc/shop.toml")), &["the kernel answers".to_owned()]);
        let text = serde_json::to_string(&own).expect("texts and a number");
        assert_eq!(serde_json::from_str::<Origin>(&text).expect("as it was written"), own);
        let old = r#"{"by":"root","command":"fief apply shop.toml","pid":7,"answers":[]}"#;
        let old: Origin = serde_json::from_str(old).expect("without a file");
        assert_eq!((old.file, old.pid), (None, 7));
    }

    #[test]
    fn the_hash_is_that_of_sha256sum() {
        assert_eq!(hash("abc"), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
    }
}
