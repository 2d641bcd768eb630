// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Services that start under Fief by a drop-in of ours and cannot while nothing is in force, so that whoever takes a policy down hears of
//! it before their next restart.
//!
//! Only the folder is read that `fief unit` writes to: who made a drop-in elsewhere knows of it.

use std::path::Path;

use super::{DropIn, FOLDER, NAME, SUFFIX, systemd_runs};
use crate::Fief;

/// Entries of the folder that are looked at.
const MOST: usize = 4096;
/// The scope in which services start.
const SCOPE: &str = "fief";

impl Fief {
    /// The units of this machine that do not start now, by name.
    pub fn stranded_units() -> Vec<String> {
        if !systemd_runs() || Self::with_scope(SCOPE).installed() {
            return Vec::new();
        }
        with_drop_in(None)
    }
}

/// The units with a drop-in of ours below this root; `None`: on this machine.
fn with_drop_in(root: Option<&Path>) -> Vec<String> {
    let folder = root.unwrap_or(Path::new("/")).join(FOLDER);
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten().take(MOST);
    let mut units: Vec<_> = entries
        .filter_map(|entry| {
            let name = entry.file_name().into_string().ok()?;
            let unit = name.strip_suffix(".d").filter(|unit| unit.ends_with(SUFFIX))?;
            // most have other drop-ins alone
            entry.path().join(NAME).exists().then_some(())?;
            let drop_in = DropIn::of(unit, root).ok()?;
            drop_in.own_text().ok()?.map(|_| drop_in.unit)
        })
        .collect();
    units.sort();
    units
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::super::MARK;
    use super::*;

    #[test]
    fn units_with_a_drop_in_of_ours_are_found() {
        let root = tempfile::tempdir().expect("a folder");
        let write = |below: &str, text: &str| {
            let path = root.path().join(FOLDER).join(below);
            fs::create_dir_all(path.parent().expect("a folder")).expect("made");
            fs::write(path, text).expect("written");
        };
        assert_eq!(with_drop_in(Some(root.path())), [""; 0], "there is no such folder");
        for unit in ["web@.service", "nginx.service"] {
            write(&format!("{unit}.d/{NAME}"), &format!("{MARK}, after\n[Service]\n"));
        }
        write(&format!("theirs.service.d/{NAME}"), "[Service]\nNice=5\n");
        write("other.service.d/override.conf", MARK);
        write(&format!("web.socket.d/{NAME}"), MARK);
        write("plain.service", MARK);
        write("plain.d", MARK);
        assert_eq!(with_drop_in(Some(root.path())), ["nginx.service", "web@.service"]);
    }
}
