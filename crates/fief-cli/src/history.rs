// SPDX-License-Identifier: Apache-2.0 OR MIT
//! History, read as the present is: the reading of a record that was the present at some time, and those after it.

use std::time::{Duration, Instant};

use fief_agent::record::{Folder, Player};
use jiff::Timestamp;

use crate::cli::History;
use crate::failure::{Failure, Result};
use crate::look::{Reader, Source};
use fief_control::Snapshot;

/// How time goes by in a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pace {
    /// As it is waited for, at once.
    Leaps,
    /// As it does here.
    AsItWas,
}

/// The record that is named, or else what is in force.
pub fn source(history: &History, pace: Pace) -> Result<Box<dyn Source>> {
    let Some(path) = &history.replay else { return Ok(Box::new(Reader::open()?)) };
    let folder = Folder::of(path);
    // a time that is named needs no look at the days beside its own
    let from_ms = match history.at {
        Some(at) => Some(at),
        None => folder.span_ms()?.map(|(first, last)| if pace == Pace::Leaps { last } else { first }),
    };
    let Some(from_ms) = from_ms else {
        return Err(Failure::new(format!("{} has no record; `fief record {0}` makes one", path.display())));
    };
    let player = folder.play(from_ms)?;
    Ok(Box::new(Replay { folder, player, from_ms, began: Instant::now(), leapt: Duration::ZERO, pace, looked: false }))
}

struct Replay {
    folder: Folder,
    player: Player,
    from_ms: u64,
    began: Instant,
    leapt: Duration,
    pace: Pace,
    looked: bool,
}

impl Source for Replay {
    fn look(&mut self) -> Result<Snapshot> {
        let gone = self.now() - self.began;
        let time_ms = self.from_ms + gone.as_millis() as u64;
        while self.player.step(time_ms)? {}
        if let Some(reading) = self.player.reading().filter(|reading| time_ms <= reading.until_ms) {
            self.looked = true;
            return Ok(reading.snapshot.clone());
        }
        if !self.looked {
            let at = time(time_ms);
            let folder = self.folder.path().display();
            return Err(Failure::new(format!("nothing is recorded at {at}; `fief replay {folder}` tells what is")));
        }
        // over a hole to what is after it
        while self.player.step(u64::MAX)? {
            if let Some(reading) = self.player.reading() {
                self.from_ms += reading.time_ms.saturating_sub(time_ms);
                return Ok(reading.snapshot.clone());
            }
        }
        Err(Failure::told(0)) // all was shown
    }

    fn now(&self) -> Instant {
        match self.pace {
            Pace::Leaps => self.began + self.leapt,
            Pace::AsItWas => Instant::now(),
        }
    }

    fn wait(&mut self, time: Duration) {
        match self.pace {
            Pace::Leaps => self.leapt += time,
            Pace::AsItWas => std::thread::sleep(time),
        }
    }
}

/// In UTC, as people and programs read it.
pub fn time(time_ms: u64) -> String {
    let time = i64::try_from(time_ms).ok().and_then(|ms| Timestamp::from_millisecond(ms).ok());
    time.map_or_else(|| format!("{time_ms} ms"), |time| time.to_string())
}
