// SPDX-License-Identifier: Apache-2.0 OR MIT
//! One head in segments of one byte: what a segment costs by its place in the head.

use super::head::{Door, LENGTH};
use crate::error::{Error, Result};
use fief_testkit::Ending;
use serde_json::{Value, json};
use std::time::Duration;

/// Segments whose run time is told as one; all of them fit into the receiver's queue.
pub const WINDOW: usize = 128;
const ANSWER: Duration = Duration::from_secs(10);

/// ns of the program a segment.
#[derive(Clone, Debug)]
pub struct Head {
    /// Mean of each window, in the order of the head; what is left over at its end is not among them.
    pub windows: Vec<f64>,
    /// Of the segment with which the head is complete.
    pub verdict: f64,
}

impl Head {
    pub fn to_json(&self, round: usize) -> Value {
        json!({
            "experiment": "parse", "part": "segments", "round": round, "bytes": LENGTH, "window_segments": WINDOW,
            "window_ns": self.windows, "verdict_ns": self.verdict,
        })
    }
}

pub fn measure(door: &Door) -> Result<Head> {
    let mut connection = door.connect()?;
    let length = door.head_length();
    // the end of the handshake has to be out of the way
    let mut before = settled(door)?;
    let mut windows = Vec::new();
    for begin in (0..length - 1).step_by(WINDOW) {
        let end = (begin + WINDOW).min(length - 1);
        (begin..end).try_for_each(|at| door.send_byte(&connection, at))?;
        let now = door.wait_for(before.count + (end - begin) as u64)?;
        if end - begin == WINDOW {
            windows.push(now.since(before).mean_ns());
        }
        before = now;
    }
    door.send_byte(&connection, length - 1)?;
    let verdict = door.wait_for(before.count + 1)?.since(before).mean_ns();
    match connection.hear(ANSWER)? {
        Some(Ending::Closed) => Ok(Head { windows, verdict }),
        other => Err(Error::failed(format!("a head in segments of one byte was not answered: {other:?}"))),
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
