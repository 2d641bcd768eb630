// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Threads that know what they spend: each reads its own CPU clock before it goes from one of its containers to the
//! next, and keeps the books itself.

use super::receiver::Receiver;
use super::{Binding, Clocked, Look};
use crate::error::{Context, Result};
use fief::Container;
use fief_testkit::SchedStat;
use nix::time::{ClockId, clock_gettime};
use std::time::{Duration, Instant};

/// One container gets twice what each of the others gets: equal parts would hide an exchange. All stays are as long: the
/// way into the call is some 25 ns longer after a stay three times as long, half a percent of a stay of 5 us.
const TURNS: [usize; 4] = [0, 1, 0, 2];

/// Of a call that nothing interrupts, with a wide margin, in ns. What a longer one was interrupted by lies before or behind
/// the change of containers; nobody can tell.
const LONGEST_CALL: u64 = 20_000;

/// CPU time of the calling thread, without steal; with softirqs that ran on top of it.
pub fn own_ns() -> u64 {
    let now = clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID).expect("every thread has this clock");
    now.tv_sec() as u64 * 1_000_000_000 + now.tv_nsec() as u64
}

/// `receiver`: whose packets come as softirqs on top of the threads.
pub fn run(binding: &Binding, receiver: Option<&Receiver>) -> Result<Vec<Clocked>> {
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..binding.threads).map(|_| scope.spawn(|| thread(binding, receiver))).collect();
        threads.into_iter().map(|thread| thread.join().expect("the thread does not panic")).collect()
    })
}

fn thread(binding: &Binding, receiver: Option<&Receiver>) -> Result<Clocked> {
    fief_testkit::pin(0, binding.cpu)?;
    if binding.fifo > 0 {
        fief_testkit::set_fifo(0, binding.fifo)?;
    }
    let make = || Container::create().context("make a container");
    let containers = [make()?, make()?, make()?];
    let mut clocked = Clocked::default();
    let part = 1_000_000_000 / u64::from(binding.hertz);
    let end = Instant::now() + Duration::from_secs_f64(binding.seconds);
    // By the thread itself: what comes before or after it is on top of others.
    let received = || Ok::<_, crate::error::Error>(receiver.map(Receiver::receive_ns).transpose()?.unwrap_or(0));
    let waited = || Ok::<_, crate::error::Error>(SchedStat::of_caller()?.waited.as_nanos() as u64);
    let waited_before = waited()?;
    let before = received()?;
    let mut last = own_ns();
    for place in TURNS.into_iter().cycle() {
        if Instant::now() >= end {
            break;
        }
        containers[place].bind_thread().context("bind a thread")?;
        clocked.binds += 1;
        // The call before and a part of the call after are equal on both sides of every change.
        let until = last + part;
        let mut now = own_ns();
        if now - last > LONGEST_CALL {
            clocked.doubt_ns += now - last;
        }
        while now < until {
            now = own_ns();
        }
        clocked.own_ns[place] += now - last;
        last = now;
    }
    clocked.received_ns = received()? - before;
    clocked.waited_ns = waited()? - waited_before;
    fief::unbind(&containers[0]).context("go home")?;
    for (charged, container) in clocked.charged_ns.iter_mut().zip(&containers) {
        *charged = Look::of(container)?.thread_ns;
    }
    Ok(clocked)
}
