// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The worker under `fief run`: divides its time by its ring, and measures what that costs.

use std::time::{Duration, Instant};

use fief::{Container, Place, Ring};
use fief_testkit::{cpus, pin};

use super::{DIVISIONS, Divided, Round};
use crate::error::{Context, Result};
use crate::experiments::primitives::{BATCHES, Costs, measure_bind, tell};

/// Between two looks at the clock the thread did not have the CPU: an interrupt that is charged to it takes less.
const GAP: Duration = Duration::from_micros(15);
/// A gap is longer than so many flushes, which are work: on an emulated processor one takes five of the above.
const FLUSHES: u32 = 3;
/// Records that fit without a flush.
const RECORDS: u32 = 200;

pub fn main(milliseconds: u32, rates: &[u32]) -> Result<()> {
    pin(0, *cpus().last().expect("a running process has a CPU"))?;
    let mut divided = Vec::new();
    for parts in DIVISIONS {
        for &rate in rates {
            divided.push(divide(parts, rate, Duration::from_millis(milliseconds.into()))?);
        }
    }
    tell(&Round { divided, costs: costs()? })
}

/// Works in turn for containers of its own, each its part of the time, with so many rebindings a second.
fn divide(parts: &[u32], rate: u32, total: Duration) -> Result<Divided> {
    let fail = "rebind";
    let containers: Vec<Container> =
        parts.iter().map(|_| Container::create()).collect::<std::result::Result<_, _>>().context(fail)?;
    let mut ring = Ring::open().context(fail)?;
    let places: Vec<Place> =
        containers.iter().map(|container| ring.add(container)).collect::<std::result::Result<_, _>>().context(fail)?;
    let least_gap = GAP.max(flush(&mut ring)? * FLUSHES);
    let turn = Duration::from_secs(parts.len() as u64) / rate;
    let sum: u32 = parts.iter().sum();
    let spans: Vec<Duration> = parts.iter().map(|&part| turn * part / sum).collect();
    let mut worked = vec![Duration::ZERO; parts.len()];
    let (begin, mut rebindings) = (Instant::now(), 0u64);
    let mut last = Duration::ZERO;
    // one loop for all, so that each container has as much of it between its moment and the ring's
    let mut at = 0;
    while last < total || at != 0 {
        // what is between two of these moments is this container's; the ring's own look comes a little later, each time
        let since = last;
        ring.bind(places[at]).context(fail)?;
        let mut gaps = Duration::ZERO;
        loop {
            let now = begin.elapsed();
            if now - last > least_gap {
                gaps += now - last;
            }
            last = now;
            if now - since >= spans[at] + gaps {
                break;
            }
        }
        worked[at] += last - since - gaps;
        rebindings += 1;
        at = (at + 1) % parts.len();
    }
    ring.bind(Place::HOME).context(fail)?;
    ring.flush().context(fail)?;
    let charged = containers.iter().map(|container| container.usage().map(|usage| usage.thread_ns));
    Ok(Divided {
        parts: parts.to_vec(),
        wanted_rate: rate,
        rate: rebindings as f64 / last.as_secs_f64(),
        worked_ns: worked.iter().map(|worked| worked.as_nanos() as u64).collect(),
        charged_ns: charged.collect::<std::result::Result<_, _>>().context(fail)?,
    })
}

/// How long a flush of a full ring takes, where nothing comes between.
fn flush(ring: &mut Ring) -> Result<Duration> {
    let mut least = Duration::MAX;
    for _ in 0..10 {
        for _ in 0..fief::abi::FIEF_RING_RECORDS {
            ring.bind(Place::HOME).context("fill a ring")?;
        }
        let begin = Instant::now();
        ring.flush().context("flush a ring")?;
        least = least.min(begin.elapsed());
    }
    Ok(least)
}

fn costs() -> Result<Costs> {
    let fail = "measure a rebinding";
    let (one, two) = (Container::create().context(fail)?, Container::create().context(fail)?);
    let mut costs = Costs::default();
    measure_bind(&mut costs, &one, &two)?;
    let mut ring = Ring::open().context(fail)?;
    let places = [ring.add(&one).context(fail)?, ring.add(&two).context(fail)?];
    let mut turn = false;
    costs.measure("ring", 20 * RECORDS, || {
        turn = !turn;
        ring.bind(places[usize::from(turn)]).context(fail)
    })?;
    costs.measure("counter", 2000, || {
        std::hint::black_box(counter());
        Ok(())
    })?;
    let mut least = f64::INFINITY;
    for _ in 0..10 * BATCHES {
        ring.flush().context(fail)?;
        let begin = Instant::now();
        for at in 0..RECORDS {
            ring.bind(places[at as usize % 2]).context(fail)?;
        }
        least = least.min(begin.elapsed().as_nanos() as f64 / f64::from(RECORDS));
    }
    costs.put("record", least);
    Ok(costs)
}

/// What no record can do without: a moment.
fn counter() -> u64 {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: reads a counter that every processor of this kind has.
    return unsafe { std::arch::x86_64::_rdtsc() };
    #[cfg(not(target_arch = "x86_64"))]
    0
}
