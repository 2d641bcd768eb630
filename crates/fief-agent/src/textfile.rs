// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The metrics as a file, for node_exporter's textfile collector: a whole one at any moment, or the one before.

use std::fs::{self, OpenOptions};
use std::io::{self, BufWriter, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

/// What node_exporter takes ends in `.prom`; what is being written does not.
const FILE: &str = "fief.prom";

/// Removes what a write that was cut off has left, and writes anew.
pub(crate) fn write(folder: &Path, write: impl FnOnce(&mut dyn Write) -> io::Result<()>) -> io::Result<()> {
    // of a fixed name, so that at most one is left over
    let young = folder.join(format!(".{FILE}.young"));
    let _ = fs::remove_file(&young);
    // nobody's link is followed: the folder may be the collector's
    let written = OpenOptions::new().write(true).create_new(true).mode(0o644).open(&young).and_then(|file| {
        let mut file = BufWriter::new(file);
        write(&mut file)?;
        file.into_inner()?.sync_data()
    });
    let done = written.and_then(|()| fs::rename(&young, folder.join(FILE)));
    if done.is_err() {
        let _ = fs::remove_file(&young);
    }
    done
}

/// An agent that has ended leaves no numbers that look like new ones.
pub(crate) fn remove(folder: &Path) {
    let _ = fs::remove_file(folder.join(FILE));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_write_that_fails_leaves_the_file_before() {
        let folder = tempfile::tempdir().expect("a folder");
        write(folder.path(), |to| to.write_all(b"one\n")).expect("written");
        let failed = write(folder.path(), |to| {
            to.write_all(b"tw")?;
            Err(io::ErrorKind::StorageFull.into())
        });
        assert!(failed.is_err());
        assert_eq!(fs::read_to_string(folder.path().join(FILE)).expect("there"), "one\n");
        assert_eq!(fs::read_dir(folder.path()).expect("a folder").count(), 1);
        remove(folder.path());
        assert_eq!(fs::read_dir(folder.path()).expect("a folder").count(), 0);
    }
}
