// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Adds readings to a record. What cannot be written leaves nothing behind, and the next reading begins anew.

use std::fs::File;
use std::io::{self, Write};
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use fief_control::{Result, Snapshot};
use jiff::civil::Date;
use nix::fcntl::Flock;
use zstd::stream::write::Encoder;

use super::change::{Change, StepOf, is_another};
use super::chunk::{self, Chunk, Chunks, Kind};
use super::folder::{self, Folder, own_file};

/// A whole reading is needed as often: to reach any second, this much is played.
const WHOLE_EVERY_MS: u64 = 600_000;
/// Until the disk has what was written; what a machine loses that loses its power.
const SYNC_EVERY: Duration = Duration::from_secs(10);
/// The part of the record that one day may take: who makes it long, as by names that change, costs no more than one day.
const DAY_PART: u64 = 8;
/// A clock that is set back by so much stands still until it is as late again; one that is set back by more is believed.
const STANDS_STILL_MS: u64 = 60_000;
const LEVEL: i32 = 3;

/// How a record is kept.
#[derive(Debug, Clone, Copy)]
pub struct RecorderOptions {
    /// Between two readings.
    pub interval: Duration,
    /// The most bytes of all days: the oldest make room. No day takes more than an eighth.
    pub most_bytes: u64,
}

/// What became of a reading.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kept {
    /// It is in the record.
    Written,
    /// This day has taken its part of the room.
    NoRoom,
}

/// The only one that writes into its folder.
#[derive(Debug)]
pub struct Recorder {
    folder: Folder,
    options: RecorderOptions,
    _lock: Flock<File>,
    open: Option<Open>,
    last: Option<Last>,
    last_ms: u64,
}

/// The file of a day.
#[derive(Debug)]
struct Open {
    day: Date,
    file: File,
    end: u64,
    /// Of the other days, as of the last look.
    others: u64,
    /// A reading had no room in its part. A shorter one that comes then has none either: it was said that the day is over.
    full: bool,
    synced: Instant,
}

/// What the next reading is compared with, and the stream that it goes into.
struct Last {
    snapshot: Arc<Snapshot>,
    whole_ms: u64,
    stream: Encoder<'static, Vec<u8>>,
}

impl std::fmt::Debug for Last {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Last").field("whole_ms", &self.whole_ms).finish_non_exhaustive()
    }
}

impl Recorder {
    /// Goes on with what is in the folder, or makes it. Errors: another process records there; it cannot be written.
    pub fn open(folder: Folder, options: RecorderOptions) -> Result<Self> {
        let lock = folder.lock()?;
        Ok(Self { folder, options, _lock: lock, open: None, last: None, last_ms: 0 })
    }

    /// Adds a reading; `None`: nothing is in force. After an error, what was written before is there and nothing else.
    pub fn add(&mut self, now: SystemTime, snapshot: Option<Arc<Snapshot>>) -> Result<Kept> {
        let time_ms = self.time(now);
        self.open_day(folder::day(time_ms))?;
        let last = self.last.take();
        let Some(snapshot) = snapshot else {
            return match last {
                Some(_) => self.write(time_ms, Kind::Nothing, &[]),
                None => Ok(Kept::Written),
            };
        };
        let goes_on = |last: &Last| {
            let is_due = time_ms < last.whole_ms || time_ms >= last.whole_ms + WHOLE_EVERY_MS;
            !is_due && !is_another(&last.snapshot, &snapshot)
        };
        let interval_ms = self.options.interval.as_millis() as u64;
        let change;
        let (kind, step, whole_ms, stream) = match last.filter(goes_on) {
            Some(last) => {
                change = Change::between(&last.snapshot, &snapshot);
                (Kind::Change, StepOf::Change(&change), last.whole_ms, Ok(last.stream))
            }
            None => {
                let step = StepOf::Whole { interval_ms, snapshot: &snapshot };
                (Kind::Whole, step, time_ms, Encoder::new(Vec::new(), LEVEL))
            }
        };
        let compressed = stream.and_then(|mut stream| {
            stream.write_all(&postcard::to_stdvec(&step).map_err(io::Error::other)?)?;
            stream.flush()?;
            let payload = std::mem::take(stream.get_mut());
            Ok((stream, payload))
        });
        let (stream, payload) = compressed.map_err(|error| self.folder.error("cannot compress what is for", &error))?;
        let kept = self.write(time_ms, kind, &payload)?;
        if kept == Kept::Written {
            self.last = Some(Last { snapshot, whole_ms, stream });
        }
        Ok(kept)
    }

    /// Says in the record that it ends here.
    pub fn finish(mut self, now: SystemTime) -> Result<()> {
        self.add(now, None)?;
        match &self.open {
            Some(open) => open.file.sync_data().map_err(|error| self.folder.error("cannot write to", &error)),
            None => Ok(()),
        }
    }

    /// No two chunks have one time: at any time one of them is the last.
    fn time(&mut self, now: SystemTime) -> u64 {
        let since = now.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        let now = since.as_millis() as u64;
        self.last_ms = match self.last_ms.checked_sub(now) {
            Some(back) if back < STANDS_STILL_MS => self.last_ms + 1,
            _ => now,
        };
        self.last_ms
    }

    fn open_day(&mut self, day: Date) -> Result<()> {
        if self.open.as_ref().is_some_and(|open| open.day == day) {
            return Ok(());
        }
        (self.open, self.last) = (None, None);
        let path = self.folder.file(day);
        let file = own_file().open(path);
        let opened = file.and_then(|file| {
            let end = readable(&file)?;
            file.set_len(end)?;
            Ok((file, end))
        });
        let (file, end) = opened.map_err(|error| self.folder.error("cannot write in", &error))?;
        self.open = Some(Open { day, file, end, others: u64::MAX, full: false, synced: Instant::now() });
        Ok(())
    }

    fn write(&mut self, time_ms: u64, kind: Kind, payload: &[u8]) -> Result<Kept> {
        let Some(open) = self.open.as_mut().filter(|open| !open.full) else { return Ok(Kept::NoRoom) };
        let bytes = chunk::bytes(time_ms, kind, payload);
        let length = bytes.len() as u64;
        open.full = open.end + length > self.options.most_bytes / DAY_PART;
        if open.full {
            return Ok(Kept::NoRoom);
        }
        if open.others.saturating_add(open.end + length) > self.options.most_bytes {
            let has_room = self.folder.trim(open.day, self.options.most_bytes.saturating_sub(length))?;
            open.others = self.folder.size()?.saturating_sub(open.end);
            if !has_room {
                return Ok(Kept::NoRoom);
            }
        }
        let written = open.file.write_all_at(&bytes, open.end).and_then(|()| {
            open.end += length;
            if open.synced.elapsed() < SYNC_EVERY {
                return Ok(());
            }
            open.synced = Instant::now();
            open.file.sync_data()
        });
        written.map(|()| Kept::Written).map_err(|error| {
            // a part of it, as on a full disk; if even this fails, the next opening does it
            let _ = open.file.set_len(open.end);
            self.folder.error("cannot write in", &error)
        })
    }
}

/// Where to go on: behind the last chunk that is whole. What is behind it was cut off while it was written.
fn readable(file: &File) -> io::Result<u64> {
    let mut last: [Option<Chunk>; 2] = [None, None];
    for chunk in Chunks::of(file, 0)? {
        last = [last[1], Some(chunk?)];
    }
    match last {
        [before, Some(chunk)] if chunk.payload(file)?.is_none() => Ok(before.map_or(0, |chunk| chunk.end())),
        [_, chunk] => Ok(chunk.map_or(0, |chunk| chunk.end())),
    }
}
