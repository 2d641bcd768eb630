// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Threads that know what they spend: each reads its own CPU clock before it goes from one of its containers to the
//! other, and keeps the books itself.

use super::{Binding, Clocked, Look};
use crate::error::{Context, Result};
use fief::Container;
use nix::time::{ClockId, clock_gettime};
use std::time::{Duration, Instant};

/// CPU time of the calling thread, without steal; with softirqs that ran on top of it.
pub fn own_ns() -> u64 {
    let now = clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID).expect("every thread has this clock");
    now.tv_sec() as u64 * 1_000_000_000 + now.tv_nsec() as u64
}

pub fn run(binding: &Binding) -> Result<Vec<Clocked>> {
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..binding.threads).map(|_| scope.spawn(|| thread(binding))).collect();
        threads.into_iter().map(|thread| thread.join().expect("the thread does not panic")).collect()
    })
}

fn thread(binding: &Binding) -> Result<Clocked> {
    fief_testkit::pin(0, binding.cpu)?;
    if binding.fifo > 0 {
        fief_testkit::set_fifo(0, binding.fifo)?;
    }
    let make = || Container::create().context("make a container");
    let containers = [make()?, make()?];
    let mut clocked = Clocked::default();
    // One container gets thrice what the other gets: equal parts would hide an exchange.
    let parts = [1_500_000_000 / u64::from(binding.hertz), 500_000_000 / u64::from(binding.hertz)];
    let end = Instant::now() + Duration::from_secs_f64(binding.seconds);
    let mut place = 0;
    let mut last = own_ns();
    while Instant::now() < end {
        containers[place].bind_thread().context("bind a thread")?;
        clocked.binds += 1;
        // The call before and half of the call after are equal on both sides of every change.
        let until = last + parts[place];
        let mut now = own_ns();
        while now < until {
            now = own_ns();
        }
        clocked.own_ns[place] += now - last;
        last = now;
        place ^= 1;
    }
    fief::unbind(&containers[0]).context("go home")?;
    for (charged, container) in clocked.charged_ns.iter_mut().zip(&containers) {
        *charged = Look::of(container)?.thread_ns;
    }
    Ok(clocked)
}
