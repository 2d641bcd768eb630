// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Names that others chose and that are no text stand in no command's way.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::process::Command;

use fief_testkit::Cgroup;

use crate::place::Place;
use crate::started::Ended;

/// A command where something is mounted at `odd`. In a PID namespace too: an ancestor that sees another table would help.
fn with_mount_at(odd: &Path, place: &Place, words: &[&str]) -> Ended {
    let mut command = Command::new("unshare");
    let script = "mount -t tmpfs none \"$1\" && shift && exec \"$0\" \"$@\"";
    command.args(["--mount", "--pid", "--fork", "--mount-proc", "sh", "-c", script, env!("CARGO_BIN_EXE_fief")]);
    place.namespace.enter(command.arg(odd).args(words).env("FIEF_SCOPE", &place.scope));
    Ended::from(command.output().expect("unshare starts"))
}

#[test]
fn a_mount_whose_name_is_no_text_stops_no_command() {
    let Some(place) = Place::new() else { return };
    place.apply();
    let folder = tempfile::tempdir().expect("a folder");
    let odd = folder.path().join(OsStr::from_bytes(b"\xff"));
    std::fs::create_dir(&odd).expect("made");
    let unit = Cgroup::new("odd-mount").expect("a cgroup");
    let cgroup = unit.path().to_str().expect("text");
    let managed = with_mount_at(&odd, &place, &["manage", cgroup, "--container", "shop/gold"]);
    assert_eq!(managed.code, 0, "{managed:?}");
    assert_eq!(place.units(), [cgroup]);
    let down = with_mount_at(&odd, &place, &["down"]);
    assert!(down.code == 0 && down.stdout.contains(" and 1 managed unit\n"), "{down:?}");
    assert!(!Path::new("/sys/fs/bpf").join(&place.scope).exists());
}
