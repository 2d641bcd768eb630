// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The folder of a record: its files by day, who writes, and how much is kept.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use fief_control::{Error, ErrorKind, Result, open_lock};
use jiff::civil::Date;
use jiff::{Timestamp, tz::TimeZone};
use nix::errno::Errno;
use nix::fcntl::{Flock, FlockArg};

const ENDING: &str = "fief";
const LOCK: &str = "lock";

/// A record tells who used what, which is for root and its group.
const FOLDER_MODE: u32 = 0o750;
const FILE_MODE: u32 = 0o640;

/// To write into a file of the folder, which is made if it is not there. It is no link, which could lead to any other file.
pub(super) fn own_file() -> OpenOptions {
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(true).truncate(false).mode(FILE_MODE).custom_flags(libc::O_NOFOLLOW);
    options
}

/// Days are those of UTC: each has as many seconds as the others, and one name.
#[derive(Debug, Clone)]
pub struct Folder {
    path: PathBuf,
}

impl Folder {
    /// It need not be there.
    pub fn of(path: impl Into<PathBuf>) -> Self {
        Self { path: path.into() }
    }

    /// Its path.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The files of a record, by day.
    pub(super) fn days(&self) -> Result<Vec<(Date, PathBuf)>> {
        let entries = fs::read_dir(&self.path).map_err(|error| self.error("cannot read", &error))?;
        let day = |entry: io::Result<fs::DirEntry>| {
            let path = entry.ok()?.path();
            let name = path.file_name()?.to_str()?.strip_suffix(ENDING)?.strip_suffix('.')?;
            Some((name.parse().ok()?, path))
        };
        let mut days: Vec<_> = entries.filter_map(day).collect();
        days.sort();
        Ok(days)
    }

    pub(super) fn file(&self, day: Date) -> PathBuf {
        self.path.join(format!("{day}.{ENDING}"))
    }

    /// Makes it, and lets nobody else write there. Errors: somebody does.
    pub(super) fn lock(&self) -> Result<Flock<File>> {
        let made = DirBuilder::new().recursive(true).mode(FOLDER_MODE).create(&self.path);
        made.map_err(|error| self.error("cannot make", &error))?;
        let path = self.path.join(LOCK);
        let file = open_lock(&path)?;
        Flock::lock(file, FlockArg::LockExclusiveNonblock).map_err(|(_, errno)| match errno {
            Errno::EWOULDBLOCK => {
                let what = format!("another process records into {}", self.path.display());
                Error::new(ErrorKind::Exists, what).remedy("end it first, or record into another folder")
            }
            errno => self.error("cannot lock", &errno.into()),
        })
    }

    /// Bytes of all days.
    pub(super) fn size(&self) -> Result<u64> {
        Ok(self.days()?.iter().map(|(_, path)| size(path)).sum())
    }

    /// Removes the oldest days until all together have room in so many bytes, but never `today`. Whether they have.
    pub(super) fn trim(&self, today: Date, most: u64) -> Result<bool> {
        let mut days = self.days()?;
        let mut all: u64 = days.iter().map(|(_, path)| size(path)).sum();
        while all > most && days.first().is_some_and(|(day, _)| *day < today) {
            let (_, oldest) = days.remove(0);
            let bytes = size(&oldest);
            fs::remove_file(&oldest).map_err(|error| self.error("cannot remove an old day of", &error))?;
            all -= bytes;
        }
        Ok(all <= most)
    }

    pub(super) fn error(&self, what: &str, error: &io::Error) -> Error {
        let kind = match error.kind() {
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => ErrorKind::Full,
            _ => ErrorKind::Other,
        };
        Error::new(kind, format!("{what} {}: {error}", self.path.display()))
    }
}

fn size(path: &Path) -> u64 {
    fs::metadata(path).map_or(0, |meta| meta.len())
}

/// Of a time since 1970.
pub(super) fn day(time_ms: u64) -> Date {
    let time =
        i64::try_from(time_ms).ok().and_then(|ms| Timestamp::from_millisecond(ms).ok()).unwrap_or(Timestamp::MAX);
    time.to_zoned_datetime(TimeZone::UTC).date()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_days_make_room_and_today_stays() {
        let folder = tempfile::tempdir().expect("a folder");
        for name in ["2026-11-23.fief", "2026-11-24.fief", "2026-11-25.fief", "notes.txt", "x.fief"] {
            fs::write(folder.path().join(name), [0; 100]).expect("written");
        }
        let kept = Folder::of(folder.path());
        let today = day(1_795_600_000_000);
        assert_eq!(today.to_string(), "2026-11-25");
        assert!(kept.trim(today, 250).expect("trimmed"));
        assert_eq!(kept.days().expect("days").len(), 2);
        assert!(!kept.trim(today, 50).expect("trimmed"));
        assert_eq!(kept.days().expect("days"), [(today, kept.file(today))]);
        assert!(folder.path().join("notes.txt").exists());
    }

    #[test]
    fn one_writes_at_a_time() {
        let folder = tempfile::tempdir().expect("a folder");
        let kept = Folder::of(folder.path().join("record"));
        let lock = kept.lock().expect("nobody else");
        assert_eq!(kept.lock().expect_err("somebody").kind(), ErrorKind::Exists);
        drop(lock);
        kept.lock().expect("nobody any more");
    }
}
