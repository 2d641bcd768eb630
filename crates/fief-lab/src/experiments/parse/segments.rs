// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A head, or something else that is kept until it is whole, in segments of one byte: what a segment costs by its place.

use super::head::Door;
use super::kept::{Kept, Stream};
use crate::error::{Error, Result};
use fief_testkit::{Ending, RawConnection};
use serde_json::{Value, json};
use std::time::Duration;

/// Segments whose run time is told as one; all of them fit into the receiver's queue.
pub const WINDOW: usize = 128;
const ANSWER: Duration = Duration::from_secs(10);
/// An answer to what was sent before has come by then.
const PAUSE: Duration = Duration::from_millis(50);

/// ns of the program a segment.
#[derive(Clone, Debug)]
pub struct Head {
    /// Mean of each window, in the order of the bytes; what is left over at their end is not among them.
    pub windows: Vec<f64>,
    /// Of the segment with which it is complete.
    pub verdict: f64,
}

impl Head {
    pub fn to_json(&self, kept: Kept, round: usize) -> Value {
        json!({
            "experiment": "parse", "part": "segments", "kept": kept.name(), "round": round,
            "bytes": kept.stream().bytes.len(), "window_segments": WINDOW,
            "window_ns": self.windows, "verdict_ns": self.verdict,
        })
    }
}

pub fn measure(door: &Door, kept: Kept) -> Result<Head> {
    let Stream { port, before, bytes, behind } = kept.stream();
    let mut connection = door.connect(port)?;
    if !before.is_empty() {
        door.send(&connection, 0, &before)?;
        if let Some(ending) = connection.hear(PAUSE)? {
            return Err(Error::failed(format!("a connection ended before {}: {ending:?}", kept.title())));
        }
    }
    let send = |connection: &RawConnection<'_>, at: usize| door.send(connection, before.len() + at, &bytes[at..=at]);
    // what came so far has to be out of the way
    let mut ran = settled(door)?;
    let mut windows = Vec::new();
    let last = bytes.len() - 1;
    for begin in (0..last).step_by(WINDOW) {
        let end = (begin + WINDOW).min(last);
        (begin..end).try_for_each(|at| send(&connection, at))?;
        let now = door.wait_for(ran.count + (end - begin) as u64)?;
        if end - begin == WINDOW {
            windows.push(now.since(ran).mean_ns());
        }
        ran = now;
    }
    send(&connection, last)?;
    let verdict = door.wait_for(ran.count + 1)?.since(ran).mean_ns();
    if !behind.is_empty() {
        door.send(&connection, before.len() + bytes.len(), &behind)?;
    }
    match connection.hear(ANSWER)? {
        Some(Ending::Closed) => Ok(Head { windows, verdict }),
        other => Err(Error::failed(format!("{} in segments of one byte was not answered: {other:?}", kept.title()))),
    }
}

/// The count once it does not grow any more.
fn settled(door: &Door) -> Result<fief_bpf::runs::Ran> {
    let mut last = door.ran()?;
    loop {
        std::thread::sleep(Duration::from_millis(5));
        let now = door.ran()?;
        if now.count == last.count {
            return Ok(now);
        }
        last = now;
    }
}
