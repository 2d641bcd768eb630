// SPDX-License-Identifier: Apache-2.0 OR MIT
//! 10,000 segments of one byte a second, of heads of almost 16 kB: what part of a core reading them takes.

use super::PORT;
use super::head::{Door, LENGTH, head};
use crate::cpu_time::cpu_seconds;
use crate::error::Result;
use fief_testkit::{RawConnection, Topology, napi_threads};
use serde_json::{Value, json};
use std::time::{Duration, Instant};

pub const PER_SECOND: u64 = 10_000;
/// Connections at once, each at another place of its head.
pub const CONNECTIONS: usize = 8;
const STEP: Duration = Duration::from_millis(1);

/// Parts of one core.
#[derive(Clone, Copy, Debug)]
pub struct Used {
    /// The receiving thread, which also takes the frames and sends the acknowledgements.
    pub thread: f64,
    /// The program alone.
    pub program: f64,
    pub per_second: f64,
}

impl Used {
    pub fn to_json(self, round: usize) -> Value {
        json!({
            "experiment": "parse", "part": "load", "round": round, "segments_per_second": self.per_second,
            "receive_thread": self.thread, "program": self.program, "connections": CONNECTIONS, "bytes": LENGTH,
        })
    }
}

/// A connection and how far its head is.
struct Under<'a> {
    connection: RawConnection<'a>,
    at: usize,
}

pub fn measure(door: &Door, seconds: f64) -> Result<Used> {
    let receivers = napi_threads(&door.topology().server, Topology::SERVER)?;
    let head = head(LENGTH);
    let send = |connection: &RawConnection<'_>, at: usize| door.send(connection, at, &head[at..=at]);
    let mut all = Vec::new();
    for place in 0..CONNECTIONS {
        let mut one = Under { connection: door.connect(PORT)?, at: 0 };
        // they are at places all over the head from the first second on
        let first = place * head.len() / CONNECTIONS;
        while one.at < first {
            let now = door.ran()?.count;
            let end = (one.at + 128).min(first);
            (one.at..end).try_for_each(|at| send(&one.connection, at))?;
            door.wait_for(now + (end - one.at) as u64)?;
            one.at = end;
        }
        all.push(one);
    }
    let (ran, cpu, begin) = (door.ran()?, cpu_seconds(&receivers), Instant::now());
    let mut sent = 0;
    while begin.elapsed().as_secs_f64() < seconds {
        let due = (begin.elapsed().as_secs_f64() * PER_SECOND as f64) as u64;
        // what it fell behind by more than this is given up, as a queue would overflow
        sent = sent.max(due.saturating_sub(100));
        while sent < due {
            let one = &mut all[(sent % CONNECTIONS as u64) as usize];
            if one.at == head.len() {
                // the old one is reset as it goes
                *one = Under { connection: door.connect(PORT)?, at: 0 };
            }
            send(&one.connection, one.at)?;
            one.at += 1;
            sent += 1;
        }
        std::thread::sleep(STEP);
    }
    let elapsed = begin.elapsed().as_secs_f64();
    let ran = door.ran()?.since(ran);
    Ok(Used {
        thread: (cpu_seconds(&receivers) - cpu) / elapsed,
        program: ran.time.as_secs_f64() / elapsed,
        per_second: ran.count as f64 / elapsed,
    })
}
