// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Reads a record: what was at a time, and everything from a time on. It may grow meanwhile.

use std::fs::File;
use std::io::{self, Write};
use std::path::PathBuf;

use fief_control::{Result, Snapshot};
use jiff::civil::Date;
use zstd::stream::write::Decoder;

use super::change::{Step, is_another};
use super::chunk::{Chunk, Chunks, Kind};
use super::folder::{self, Folder};
use super::seek;

/// A reading is good for the time up to the next, and for three intervals where that is missing.
const INTERVALS: u64 = 3;

/// One reading of a record.
#[derive(Debug, Clone, Copy)]
pub struct Reading<'p> {
    /// Milliseconds since 1970.
    pub time_ms: u64,
    /// Until when nothing else is known.
    pub until_ms: u64,
    /// What was read.
    pub snapshot: &'p Snapshot,
}

/// What is in a day's file.
#[derive(Debug, Clone)]
pub struct Day {
    /// In UTC, as `2026-11-25`.
    pub date: String,
    /// Its size.
    pub bytes: u64,
    /// Bytes that are no readings: it is damaged, was cut at its end, or grows.
    pub unreadable_bytes: u64,
    /// How many it has.
    pub readings: u64,
    /// Milliseconds since 1970.
    pub first_ms: Option<u64>,
    /// Of the last one.
    pub last_ms: Option<u64>,
}

/// Plays readings, one after the other.
pub struct Player {
    folder: Folder,
    /// Those that are still to be played.
    days: Vec<(Date, PathBuf)>,
    file: Option<(File, u64)>,
    stream: Option<Decoder<'static, Vec<u8>>>,
    snapshot: Option<Snapshot>,
    /// The last one before nothing was known.
    before: Option<Snapshot>,
    ended: Option<Snapshot>,
    time_ms: u64,
    interval_ms: u64,
}

impl std::fmt::Debug for Player {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Player").field("folder", &self.folder).field("time_ms", &self.time_ms).finish_non_exhaustive()
    }
}

impl Folder {
    /// What each day has. Errors: there is no such folder.
    pub fn contents(&self) -> Result<Vec<Day>> {
        let days = self.days()?.into_iter().map(|(date, path)| day(date, &path));
        days.map(|day| day.map_err(|error| self.error("cannot read", &error))).collect()
    }

    /// When the first reading and the last one are of, in milliseconds since 1970; `None`: there is none. Errors: there is no such folder.
    pub fn span_ms(&self) -> Result<Option<(u64, u64)>> {
        let days = self.days()?;
        let time = |found: fn(&File) -> io::Result<Option<Chunk>>| {
            move |(_, path): &(Date, PathBuf)| {
                let chunk = File::open(path).and_then(|file| found(&file));
                chunk.map(|chunk| chunk.map(|chunk| chunk.time_ms)).transpose()
            }
        };
        let ends = (days.iter().find_map(time(seek::first)), days.iter().rev().find_map(time(seek::last)));
        let (Some(first), Some(last)) = ends else { return Ok(None) };
        first.and_then(|first| Ok(Some((first, last?)))).map_err(|error| self.error("cannot read", &error))
    }

    /// Plays from the last whole reading at or before a time; if there is none, from the first.
    pub fn play(&self, from_ms: u64) -> Result<Player> {
        let mut days = self.days()?;
        let before = days.iter().rposition(|(day, _)| *day <= folder::day(from_ms));
        let mut offset = 0;
        for first in (0..=before.unwrap_or(0)).rev().take_while(|_| !days.is_empty()) {
            let found = File::open(&days[first].1).and_then(|file| seek::whole_before(&file, from_ms));
            let found = found.map_err(|error| self.error("cannot read", &error))?;
            if found.is_some() || first == 0 {
                offset = found.unwrap_or(0);
                days.drain(..first);
                break;
            }
        }
        days.reverse();
        let mut player = Player {
            folder: self.clone(),
            days,
            file: None,
            stream: None,
            snapshot: None,
            before: None,
            ended: None,
            time_ms: 0,
            interval_ms: 0,
        };
        player.open_next().map_err(|error| self.error("cannot read", &error))?;
        if let Some((_, at)) = &mut player.file {
            *at = offset;
        }
        Ok(player)
    }

    /// Plays up to a time: [`Player::reading`] is what was known then.
    pub fn at(&self, time_ms: u64) -> Result<Player> {
        let mut player = self.play(time_ms)?;
        while player.step(time_ms)? {}
        Ok(player)
    }
}

impl Player {
    /// What is known at the place where it stands; `None`: nothing was in force, or nobody recorded.
    pub fn reading(&self) -> Option<Reading<'_>> {
        let until_ms = self.time_ms + INTERVALS * self.interval_ms;
        self.snapshot.as_ref().map(|snapshot| Reading { time_ms: self.time_ms, until_ms, snapshot })
    }

    /// The last that was known, also where nothing is any more.
    pub fn known(&self) -> Option<&Snapshot> {
        self.snapshot.as_ref().or(self.before.as_ref())
    }

    /// The last reading of an installation, once the first of the next one is played: counters have begun anew.
    pub fn take_ended(&mut self) -> Option<Snapshot> {
        self.ended.take()
    }

    /// Goes one reading on, or to where the record has none for a while. False: there is none up to this time.
    pub fn step(&mut self, until_ms: u64) -> Result<bool> {
        self.try_step(until_ms).map_err(|error| self.folder.error("cannot read", &error))
    }

    fn try_step(&mut self, until_ms: u64) -> io::Result<bool> {
        loop {
            let Some((file, offset)) = &mut self.file else { return Ok(false) };
            let Some(chunk) = Chunk::next(file, file.metadata()?.len(), *offset)? else {
                match self.days.is_empty() {
                    true => return Ok(false), // it may grow
                    false => self.open_next()?,
                }
                continue;
            };
            if chunk.time_ms > until_ms {
                return Ok(false);
            }
            *offset = chunk.end();
            let payload = chunk.payload(file)?;
            self.time_ms = chunk.time_ms;
            let had = self.snapshot.is_some();
            self.take(chunk.kind, payload);
            if self.snapshot.is_some() || had {
                return Ok(true);
            }
        }
    }

    /// What is damaged, or lacks what it would change, is as if nothing were known.
    fn take(&mut self, kind: Kind, payload: Option<Vec<u8>>) {
        if kind == Kind::Whole {
            self.stream = Decoder::new(Vec::new()).ok();
        }
        let stream = self.stream.as_mut().filter(|_| kind != Kind::Nothing);
        let step = stream.zip(payload).and_then(|(stream, payload)| {
            stream.write_all(&payload).and_then(|()| stream.flush()).ok()?;
            postcard::from_bytes(&std::mem::take(stream.get_mut())).ok()
        });
        match (step, &mut self.snapshot) {
            (Some(Step::Whole { interval_ms, snapshot }), _) => {
                let before = self.snapshot.take().or(self.before.take());
                self.ended = before.filter(|before| is_another(before, &snapshot));
                (self.interval_ms, self.snapshot) = (interval_ms, Some(snapshot));
            }
            (Some(Step::Change(change)), Some(snapshot)) => change.apply(snapshot),
            _ => {
                self.stream = None;
                self.before = self.snapshot.take().or(self.before.take());
            }
        }
    }

    fn open_next(&mut self) -> io::Result<()> {
        (self.stream, self.file) = (None, None);
        if let Some((_, path)) = self.days.pop() {
            self.file = Some((File::open(path)?, 0));
        }
        Ok(())
    }
}

fn day(date: Date, path: &PathBuf) -> io::Result<Day> {
    let file = File::open(path)?;
    let bytes = file.metadata()?.len();
    let mut day =
        Day { date: date.to_string(), bytes, unreadable_bytes: bytes, readings: 0, first_ms: None, last_ms: None };
    for chunk in Chunks::of(&file, 0)? {
        let chunk = chunk?;
        day.unreadable_bytes = day.unreadable_bytes.saturating_sub(chunk.end() - chunk.offset);
        if seek::is_reading(&chunk) {
            day.readings += 1;
            day.first_ms = day.first_ms.or(Some(chunk.time_ms));
            day.last_ms = Some(chunk.time_ms);
        }
    }
    Ok(day)
}
