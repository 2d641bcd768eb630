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
    recorder: Recorder,
    folder: Folder,
    options: RecorderOptions,
    failed: Option<String>,
    failures: u64,
}

impl Keeper {
    /// As [`Recorder::open`].
    pub fn open(folder: Folder, options: RecorderOptions) -> Result<Self> {
        let recorder = Recorder::open(folder.clone(), options)?;
        Ok(Self { recorder, folder, options, failed: None, failures: 0 })
    }

    /// Adds what was read, or that nothing is in force. `warn` is told what has begun to fail.
    pub fn turn(&mut self, read: Result<Arc<Snapshot>>, warn: &mut dyn FnMut(&str)) {
        let added = match read {
            Err(error) if error.kind() == ErrorKind::NotFound => self.recorder.add(SystemTime::now(), None),
            read => read.and_then(|snapshot| self.recorder.add(SystemTime::now(), Some(snapshot))),
        };
        let failed = match added {
            Ok(Kept::Written) => None,
            Ok(Kept::NoRoom) => Some(format!(
                "{}: this day alone has taken the {} MiB that may be kept; nothing is recorded until the next one",
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

    /// Turns that kept nothing.
    pub fn failures(&self) -> u64 {
        self.failures
    }

    /// Says in the record that it ends.
    pub fn finish(self) -> Result<()> {
        self.recorder.finish(SystemTime::now())
    }
}
