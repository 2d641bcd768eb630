// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `fief lab` becomes the program beside it; here that is a script which tells what it was given. The lab's own tests, in its
//! crate, start the real one.

use std::path::Path;
use std::process::Stdio;

use crate::started::{Fief, fief_at};

/// A folder with `fief`, and nothing beside it.
fn alone() -> tempfile::TempDir {
    // where a second name for the program can be made: on its file system
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a folder");
    std::fs::hard_link(env!("CARGO_BIN_EXE_fief"), folder.path().join("fief")).expect("a second name");
    folder
}

fn lab_in(folder: &Path) -> Fief {
    fief_at(&folder.join("fief")).arg("lab")
}

#[test]
fn lab_is_the_process_that_the_program_beside_runs_in_with_the_same_words() {
    let folder = alone();
    // no file that is written here: another test's child might hold it open, and then it cannot be run
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/command/lab.sh");
    std::os::unix::fs::symlink(script, folder.path().join("fief-lab")).expect("a name for it");
    let words = ["lrp", "--quick", "--json", "--report", "a folder"];
    let mut lab = lab_in(folder.path()).args(words);
    let lab = lab.command().stdout(Stdio::piped()).spawn().expect("fief starts");
    let pid = lab.id().to_string();
    let ended = lab.wait_with_output().expect("our child");
    assert_eq!(ended.status.code(), Some(130));
    let said = String::from_utf8(ended.stdout).expect("text");
    let said: Vec<&str> = said.lines().collect();
    assert_eq!(said[0], pid, "signals reach it");
    assert_eq!(said[1..], words);
}

#[test]
fn lab_says_what_is_missing_and_where_it_comes_from() {
    let folder = alone();
    let ended = lab_in(folder.path()).arg("lrp").ends();
    assert_eq!((ended.code, ended.stdout.as_str()), (1, ""), "{ended:?}");
    let said = ["/fief-lab is not there", "make install-lab", "cargo build -p fief-lab"];
    assert!(said.iter().all(|words| ended.stderr.contains(words)), "{ended:?}");
}

#[test]
fn lab_knows_its_experiments_where_none_can_be_made() {
    let folder = alone();
    let help = lab_in(folder.path()).arg("--help").ends();
    assert!(help.code == 0 && help.stdout.contains("- priority-clients: response time"), "{help:?}");
    let unknown = lab_in(folder.path()).arg("nonesuch").ends();
    assert!(
        unknown.code == 2 && unknown.stderr.contains("possible values: primitives, priority-clients"),
        "{unknown:?}"
    );
}
