// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The cgroup of a systemd unit, as systemd reports it.
//!
//! A unit is never searched for by the name of its folder: a user with a delegated subtree can make a folder of any name there,
//! and it would be taken for the service.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use fief_bpf::{Context, Error, ErrorKind, Result};

use crate::cgroup;
use crate::service::systemd_runs;

/// Folder of the unit below the cgroup2 mount `top`.
pub(super) fn cgroup(top: &Path, unit: &str) -> Result<PathBuf> {
    if systemd_runs() { told_by_systemd(top, unit) } else { system_service(top, unit) }
}

fn told_by_systemd(top: &Path, unit: &str) -> Result<PathBuf> {
    let asked = Command::new("systemctl")
        .args(["show", "--property=ControlGroup", "--value", "--", unit])
        .stdin(Stdio::null())
        .output()
        .context(|| "cannot ask systemd by systemctl".into())?;
    let told = String::from_utf8_lossy(&asked.stdout);
    match told.trim() {
        "" => Err(not_running(unit, "systemd knows no cgroup of it")),
        group => existing(&top.join(group.trim_start_matches('/')), unit),
    }
}

/// Without systemd: the folder right below system.slice, where only root can make one.
fn system_service(top: &Path, unit: &str) -> Result<PathBuf> {
    if unit.contains('/') {
        return Err(Error::new(ErrorKind::NotFound, format!("{unit} is no name of a unit")));
    }
    existing(&top.join("system.slice").join(unit), unit)
}

fn existing(path: &Path, unit: &str) -> Result<PathBuf> {
    match cgroup::id(path) {
        Ok(_) => Ok(path.to_owned()),
        Err(_) => Err(not_running(unit, &format!("there is no cgroup {}", path.display()))),
    }
}

fn not_running(unit: &str, why: &str) -> Error {
    Error::new(ErrorKind::NotFound, format!("cannot find the unit {unit}: {why}"))
        .remedy("is it running? name its main process, or its cgroup by the full path, instead")
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn a_folder_of_the_units_name_elsewhere_is_not_the_unit() {
        let top = tempfile::tempdir().expect("a folder");
        fs::create_dir_all(top.path().join("a-user.slice/nginx.service")).expect("made");
        let error = system_service(top.path(), "nginx.service").expect_err("not there");
        assert_eq!(error.kind(), ErrorKind::NotFound);
        let own = top.path().join("system.slice/nginx.service");
        fs::create_dir_all(&own).expect("made");
        assert_eq!(system_service(top.path(), "nginx.service").expect("there"), own);
        assert!(system_service(top.path(), "../a-user.slice/nginx.service").is_err());
    }
}
