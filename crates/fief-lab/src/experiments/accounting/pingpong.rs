// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A byte to and fro between two threads on one CPU: nothing but context switches, and what Fief adds to each.

use crate::error::{Context, Error, Result};
use crate::sides::Side;
use crate::statistics::quantile;
use std::io::{PipeReader, PipeWriter, Read, Write, pipe};
use std::time::Instant;

/// Round trips of a batch, some 2 ms: short enough that many batches meet neither the hypervisor nor another program.
const BATCH: u32 = 500;
/// The quantile of the batches that counts.
const LOW: f64 = 0.1;

/// One of the two threads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Player {
    Near,
    Far,
}

/// Nanoseconds a round trip on this CPU, by the fastest batches. `prepare` runs in each thread.
pub fn round_trip_ns(cpu: usize, batches: usize, prepare: impl Fn(Player) -> Result<()> + Sync) -> Result<f64> {
    let (mut near_in, mut far_out) = pipe().context("make a pipe")?;
    let (mut far_in, mut near_out) = pipe().context("make a pipe")?;
    let prepare = &prepare;
    std::thread::scope(|scope| {
        let far = scope.spawn(move || -> Result<()> {
            fief_testkit::pin(0, cpu)?;
            prepare(Player::Far)?;
            // The near side ends first and closes its pipe.
            while step(&mut far_in, &mut far_out).is_ok() {}
            Ok(())
        });
        let near = scope.spawn(move || -> Result<f64> {
            fief_testkit::pin(0, cpu)?;
            prepare(Player::Near)?;
            near_out.write_all(&[0]).context("write to a pipe")?;
            let mut batch = || -> Result<f64> {
                let begin = Instant::now();
                for _ in 0..BATCH {
                    step(&mut near_in, &mut near_out).context("play ping-pong")?;
                }
                Ok(begin.elapsed().as_nanos() as f64 / f64::from(BATCH))
            };
            let all: Vec<f64> = (0..batches.max(1)).map(|_| batch()).collect::<Result<_>>()?;
            Ok(quantile(&all, LOW))
        });
        let took = near.join().unwrap_or_else(|_| Err(Error::failed("a player panicked")));
        far.join().unwrap_or_else(|_| Err(Error::failed("a player panicked")))?;
        took
    })
}

fn step(from: &mut PipeReader, to: &mut PipeWriter) -> std::io::Result<()> {
    let mut byte = [0];
    from.read_exact(&mut byte)?;
    to.write_all(&byte)
}

/// Round trips by what was in force.
#[derive(Debug, Default)]
pub struct Pings {
    taken: Vec<(Side, f64)>,
}

impl Pings {
    pub fn push(&mut self, side: Side, ns: f64) {
        self.taken.push((side, ns));
    }

    /// In the order of the rounds.
    pub fn of(&self, side: Side) -> Vec<f64> {
        self.taken.iter().filter(|one| one.0 == side).map(|one| one.1).collect()
    }
}
