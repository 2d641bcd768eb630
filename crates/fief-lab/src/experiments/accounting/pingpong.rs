// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A byte to and fro between two threads on one CPU: nothing but context switches, and what Fief adds to each.

use crate::error::{Context, Error, Result};
use std::io::{PipeReader, PipeWriter, Read, Write, pipe};
use std::time::Instant;

const ROUNDS: u32 = 6000;

/// Nanoseconds a round trip, on this CPU.
pub fn round_trip_ns(cpu: usize) -> Result<f64> {
    let (mut near_in, mut far_out) = pipe().context("make a pipe")?;
    let (mut far_in, mut near_out) = pipe().context("make a pipe")?;
    std::thread::scope(|scope| {
        let far = scope.spawn(move || -> Result<()> {
            fief_testkit::pin(0, cpu)?;
            // The near side ends first and closes its pipe.
            while step(&mut far_in, &mut far_out).is_ok() {}
            Ok(())
        });
        let near = scope.spawn(move || -> Result<f64> {
            fief_testkit::pin(0, cpu)?;
            near_out.write_all(&[0]).context("write to a pipe")?;
            let begin = Instant::now();
            for _ in 0..ROUNDS {
                step(&mut near_in, &mut near_out).context("play ping-pong")?;
            }
            Ok(begin.elapsed().as_nanos() as f64 / f64::from(ROUNDS))
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
