// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A thread that computes without a break and publishes its own clock, and a reader of its container on another CPU.

use super::Lagged;
use super::clocked::own_ns;
use crate::error::{Context, Result};
use fief::Container;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// As long as the hog computes without a break.
const EPISODE: Duration = Duration::from_millis(200);
/// What is compared is the growth within so short a time: softirqs on top of the hog are in its clock and not in its
/// container, and would add up. A reader that saw only what the last switch charged would be behind by all of it.
const WINDOW: Duration = Duration::from_millis(10);
/// Of a view that others are compared with, in ns.
const WIDEST: u64 = 20_000;
/// The reader must not keep the hog's CPU from its cache lines.
const PAUSE: Duration = Duration::from_micros(100);

pub fn run(seconds: f64, cpu: usize, reader_cpu: usize) -> Result<Lagged> {
    let mut all = Lagged::default();
    let end = Instant::now() + Duration::from_secs_f64(seconds);
    while Instant::now() < end {
        let one = episode(cpu, reader_cpu)?;
        all.reads += one.reads;
        all.behind_ns = all.behind_ns.max(one.behind_ns);
        all.ahead_ns = all.ahead_ns.max(one.ahead_ns);
        all.episodes += 1;
    }
    Ok(all)
}

fn episode(cpu: usize, reader_cpu: usize) -> Result<Lagged> {
    let container = Container::create().context("make a container")?;
    let (told, ended) = (AtomicU64::new(0), AtomicBool::new(false));
    std::thread::scope(|scope| {
        let hog = scope.spawn(|| {
            fief_testkit::pin(0, cpu)?;
            let begin = own_ns();
            container.bind_thread().context("bind the hog")?;
            while !ended.load(Ordering::Relaxed) {
                told.store(own_ns() - begin, Ordering::Release);
            }
            fief::unbind(&container).context("send the hog home")
        });
        let seen = read(&container, &told, reader_cpu);
        ended.store(true, Ordering::Relaxed);
        hog.join().expect("the hog does not panic")?;
        seen
    })
}

fn read(container: &Container, told: &AtomicU64, cpu: usize) -> Result<Lagged> {
    // It must not stay on one CPU, since the calling thread has other work later.
    std::thread::scope(|scope| {
        let reader = scope.spawn(|| {
            fief_testkit::pin(0, cpu)?;
            let mut lagged = Lagged::default();
            let end = Instant::now() + EPISODE;
            let mut base: Option<(Instant, View)> = None;
            while Instant::now() < end {
                let view = View::take(container, told)?;
                match &base {
                    Some((since, base)) if since.elapsed() < WINDOW => {
                        lagged.reads += 1;
                        lagged.behind_ns = lagged.behind_ns.max(view.behind(base));
                        lagged.ahead_ns = lagged.ahead_ns.max(view.ahead(base));
                    }
                    // A view that took long is no base: nobody knows what of it was when.
                    _ if view.before > 0 && view.after - view.before < WIDEST => base = Some((Instant::now(), view)),
                    _ => {}
                }
                let pause = Instant::now() + PAUSE;
                while Instant::now() < pause {
                    std::hint::spin_loop();
                }
            }
            Ok(lagged)
        });
        reader.join().expect("the reader does not panic")
    })
}

/// What the container says, between two words of the hog.
#[derive(Clone, Copy, Debug)]
struct View {
    before: u64,
    container: u64,
    after: u64,
}

impl View {
    fn take(container: &Container, told: &AtomicU64) -> Result<View> {
        let before = told.load(Ordering::Acquire);
        let usage = container.usage().context("read the hog")?;
        Ok(View { before, container: usage.thread_ns, after: told.load(Ordering::Acquire) })
    }

    /// By how much the container grew too little since the base, at least.
    fn behind(&self, base: &View) -> u64 {
        u64::try_from(signed(base.after, self.before) - signed(base.container, self.container)).unwrap_or(0)
    }

    /// By how much the container grew too much since the base, at least.
    fn ahead(&self, base: &View) -> u64 {
        u64::try_from(signed(base.container, self.container) - signed(base.before, self.after)).unwrap_or(0)
    }
}

/// Growth, which is negative where a reader saw less than before: time that turned out to be somebody else's.
fn signed(from: u64, to: u64) -> i64 {
    to as i64 - from as i64
}
