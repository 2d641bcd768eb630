// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Records turn after turn, and says what fails: once, until it works again. A record that fails stops nothing.

use std::sync::Arc;
use std::time::SystemTime;

use fief_control::{ErrorKind, Result, Snapshot};

use super::folder::Folder;
use super::write::{Kept, Recorder, RecorderOptions};

/// Keeps one record.
#[derive(Debug)]
pub struct Keeper {
    /// `None`: the disk had no room to begin.
    recorder: Option<Recorder>,
    folder: Folder,
    options: RecorderOptions,
    failed: Option<String>,
    failures: u64,
}

impl Keeper {
    /// As [`Recorder::open`], but a disk that is full is no error: each turn tries again.
    pub fn open(folder: Folder, options: RecorderOptions) -> Result<Self> {
        let recorder = match Recorder::open(folder.clone(), options) {
            Err(error) if error.kind() == ErrorKind::Full => None,
            opened => Some(opened?),
        };
        Ok(Self { recorder, folder, options, failed: None, failures: 0 })
    }

    /// Adds what was read, or that nothing is in force. `warn` is told what has begun to fail.
    pub fn turn(&mut self, read: Result<Arc<Snapshot>>, warn: &mut dyn FnMut(&str)) {
        let added = self.recorder().and_then(|recorder| match read {
            Err(error) if error.kind() == ErrorKind::NotFound => recorder.add(SystemTime::now(), None),
            read => read.and_then(|snapshot| recorder.add(SystemTime::now(), Some(snapshot))),
        });
        let failed = match added {
            Ok(Kept::Written) => None,
            Ok(Kept::NoRoom) => Some(format!(
                "{}: this day has taken its part, an eighth of the {} MiB that may be kept; nothing is recorded until the next one",
                self.folder.path().display(),
                self.options.most_bytes >> 20
            )),
            Err(error) => {
                Some(format!("{error}; what was recorded before stays, and it is tried again at the next turn"))
            }
        };
        self.failures += u64::from(failed.is_some());
        if let Some(failed) = failed.as_ref().filter(|_| self.failed.is_none()) {
            warn(failed);
        }
        self.failed = failed;
    }

    fn recorder(&mut self) -> Result<&mut Recorder> {
        let recorder = match self.recorder.take() {
            Some(recorder) => recorder,
            None => Recorder::open(self.folder.clone(), self.options)?,
        };
        Ok(self.recorder.insert(recorder))
    }

    /// Turns that kept nothing.
    pub fn failures(&self) -> u64 {
        self.failures
    }

    /// Says in the record that it ends.
    pub fn finish(self) -> Result<()> {
        self.recorder.map_or(Ok(()), |recorder| recorder.finish(SystemTime::now()))
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::io::Write;
    use std::path::Path;
    use std::time::Duration;

    use fief_testkit::{Feature, require};

    use super::super::tests::Disk;
    use super::*;
    use crate::series::tests::{container, snapshot};

    const OPTIONS: RecorderOptions = RecorderOptions { interval: Duration::from_secs(1), most_bytes: 1 << 30 };

    fn open(folder: &Path) -> Result<Keeper> {
        Keeper::open(Folder::of(folder), OPTIONS)
    }

    #[test]
    fn a_disk_that_is_full_at_the_start_is_said_once_and_tried_again() {
        if !require(Feature::Root) {
            return;
        }
        // its root, and as many files as a record needs: a folder, a lock and a day
        let disk = Disk::of("size=64k,nr_inodes=4");
        let fillers = ["1", "2", "3"].map(|name| disk.path().join(name));
        for filler in &fillers {
            let mut file = fs::File::create(filler).expect("it is left");
            while file.write_all(&[0; 4096]).is_ok() {}
        }
        let folder = disk.path().join("record");
        let mut keeper = open(&folder).expect("a full disk ends nobody");
        let mut said = Vec::new();
        let mut turn = |keeper: &mut Keeper| {
            let read = Arc::new(snapshot(vec![container("shop", 8, None, 5)]));
            keeper.turn(Ok(read), &mut |problem: &str| said.push(problem.to_owned()));
            keeper.failures()
        };
        assert_eq!([turn(&mut keeper), turn(&mut keeper)], [1, 2]);
        fillers.iter().for_each(|filler| fs::remove_file(filler).expect("there"));
        assert_eq!([turn(&mut keeper), turn(&mut keeper)], [2, 2], "it has room now");
        assert_eq!(said.len(), 1, "{said:?}");
        assert!(said[0].contains("No space left on device") && said[0].contains("it is tried again"), "{said:?}");
        keeper.finish().expect("room");
        assert_eq!(Folder::of(&folder).contents().expect("a record")[0].readings, 2);
    }

    #[test]
    fn a_folder_that_cannot_be_one_is_an_error_at_once() {
        let file = tempfile::NamedTempFile::new().expect("a file");
        for wrong in [file.path().to_owned(), file.path().join("record")] {
            open(&wrong).expect_err("it is no folder");
        }
        let folder = tempfile::tempdir().expect("a folder");
        let first = open(folder.path()).expect("a folder");
        assert_eq!(open(folder.path()).expect_err("there is one").kind(), ErrorKind::Exists);
        drop(first);
    }
}
