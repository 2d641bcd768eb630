// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A thread that computes without a break and publishes its own clock, and a reader of its container on another CPU.

use super::Lagged;
use super::clocked::own_ns;
use crate::error::{Context, Result};
use fief::Container;
use fief_testkit::SchedStat;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// As long as the hog computes without a break.
const EPISODE: Duration = Duration::from_millis(200);
/// What is compared is the growth within so short a time: softirqs on top of the hog are in its clock and not in its
/// container, and would add up. A reader that saw only what the last switch charged would be behind by all of it.
const WINDOW: Duration = Duration::from_millis(10);
/// Of a view that others are compared with, in ns.
const WIDEST: u64 = 20_000;
/// The hog tells of itself every microsecond. Was it silent for so much longer than it waited for other threads, then the
/// CPU was stolen; what is stolen is often followed by a preemption.
const SILENCE: Duration = Duration::from_micros(200);
/// The reader must not keep the hog's CPU from its cache lines.
const PAUSE: Duration = Duration::from_micros(100);

pub fn run(seconds: f64, cpu: usize, reader_cpu: usize) -> Result<Lagged> {
    let mut all = Lagged::default();
    let end = Instant::now() + Duration::from_secs_f64(seconds);
    while Instant::now() < end {
        all.add(&episode(cpu, reader_cpu)?);
        all.episodes += 1;
    }
    Ok(all)
}

/// What the hog tells of itself.
#[derive(Debug, Default)]
struct Hog {
    own_ns: AtomicU64,
    /// How often the hypervisor took its CPU away, whether it says so (the hog's clock leaves it out) or not.
    stolen: AtomicU64,
    ended: AtomicBool,
}

impl Hog {
    fn work(&self, container: &Container) -> Result<()> {
        let begin = own_ns();
        container.bind_thread().context("bind the hog")?;
        let mut last = (Instant::now(), SchedStat::of_caller()?.waited);
        while !self.ended.load(Ordering::Relaxed) {
            let now = Instant::now();
            if now - last.0 > SILENCE {
                let waited = SchedStat::of_caller()?.waited;
                let is_stolen = now - last.0 > SILENCE + waited.saturating_sub(last.1);
                self.stolen.fetch_add(u64::from(is_stolen), Ordering::Release);
                last.1 = waited;
            }
            last.0 = now;
            self.own_ns.store(own_ns() - begin, Ordering::Release);
        }
        fief::unbind(container).context("send the hog home")?;
        self.own_ns.store(own_ns() - begin, Ordering::Release);
        Ok(())
    }

    /// Returns once the hog has run again: what was stolen from it until now has been told.
    fn ran(&self) {
        let (told, deadline) = (self.own_ns.load(Ordering::Acquire), Instant::now() + EPISODE);
        while self.own_ns.load(Ordering::Acquire) == told && Instant::now() < deadline {
            std::hint::spin_loop();
        }
    }
}

fn episode(cpu: usize, reader_cpu: usize) -> Result<Lagged> {
    let container = Container::create().context("make a container")?;
    let hog = Hog::default();
    std::thread::scope(|scope| {
        let working = scope.spawn(|| {
            fief_testkit::pin(0, cpu)?;
            hog.work(&container)
        });
        let seen = read(&container, &hog, reader_cpu);
        hog.ended.store(true, Ordering::Relaxed);
        working.join().expect("the hog does not panic")?;
        let mut seen = seen?;
        // All is charged by now.
        let charged = container.usage().context("read the hog")?.thread_ns;
        let on_top = hog.own_ns.load(Ordering::Acquire).saturating_sub(charged);
        seen.behind_in_all_ns = seen.behind_in_all_ns.saturating_sub(on_top);
        Ok(seen)
    })
}

/// Views that are compared with the first of them.
#[derive(Debug)]
struct Window {
    since: Instant,
    base: View,
    /// How often the hog's CPU was stolen when this window began, and when the one before it did.
    stolen: u64,
    stolen_before: u64,
    seen: Lagged,
}

impl Window {
    fn new(base: View, stolen: u64, stolen_before: u64) -> Window {
        let nothing = View::default();
        let seen = Lagged {
            behind_in_all_ns: base.behind(&nothing),
            ahead_in_all_ns: base.ahead(&nothing),
            ..Lagged::default()
        };
        Window { since: Instant::now(), base, stolen, stolen_before, seen }
    }

    fn compare(&mut self, view: &View) {
        self.seen.reads += 1;
        self.seen.behind_ns = self.seen.behind_ns.max(view.behind(&self.base));
        self.seen.ahead_ns = self.seen.ahead_ns.max(view.ahead(&self.base));
    }

    /// No reader can know what the hypervisor takes before the hog's own CPU does, at its next tick: such a window says
    /// nothing, nor does the next one.
    fn close(self, hog: &Hog, all: &mut Lagged) {
        hog.ran();
        if hog.stolen.load(Ordering::Acquire) == self.stolen_before {
            all.add(&self.seen);
        } else {
            all.stolen += 1;
        }
    }
}

fn read(container: &Container, hog: &Hog, cpu: usize) -> Result<Lagged> {
    // It must not stay on one CPU, since the calling thread has other work later.
    std::thread::scope(|scope| {
        let reader = scope.spawn(|| {
            fief_testkit::pin(0, cpu)?;
            let mut lagged = Lagged::default();
            let end = Instant::now() + EPISODE;
            let mut window: Option<Window> = None;
            let mut stolen_before = 0;
            while Instant::now() < end {
                if let Some(old) = window.take_if(|window| window.since.elapsed() >= WINDOW) {
                    stolen_before = old.stolen;
                    old.close(hog, &mut lagged);
                }
                let stolen = hog.stolen.load(Ordering::Acquire);
                let view = View::take(container, &hog.own_ns)?;
                match &mut window {
                    Some(window) => window.compare(&view),
                    // A view that took long is no base: nobody knows what of it was when.
                    None if view.before > 0 && view.after - view.before < WIDEST => {
                        window = Some(Window::new(view, stolen, stolen_before));
                    }
                    None => {}
                }
                let pause = Instant::now() + PAUSE;
                while Instant::now() < pause {
                    std::hint::spin_loop();
                }
            }
            if let Some(last) = window {
                last.close(hog, &mut lagged);
            }
            Ok(lagged)
        });
        reader.join().expect("the reader does not panic")
    })
}

/// What the container says, between two words of the hog.
#[derive(Clone, Copy, Debug, Default)]
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lag_that_stays_the_same_shows_in_all_that_ran() {
        let view = |told: u64| View { before: told, container: told - 2_000_000, after: told + 1_000 };
        let mut window = Window::new(view(5_000_000), 0, 0);
        window.compare(&view(9_000_000));
        assert_eq!(window.seen.behind_ns, 0, "it grew as the hog did");
        assert_eq!((window.seen.behind_in_all_ns, window.seen.ahead_in_all_ns), (2_000_000, 0));
    }
}
