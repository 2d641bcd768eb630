// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `media`: a player and its display server over a UNIX socket, beside 1 to 7 processes that compute (table 2 of the paper on resource
//! containers for Linux).
//!
//! Both only compute, a fixed amount for each frame. The frame rate tells what they had of the CPU together: neither can go on without
//! the other. With `--vm` the clock of the machine counts instructions, so that rates are exact.

mod arithmetic;
mod cast;
mod clip;
mod deadlines;
mod display;
mod outcome;
mod player;
mod way;

pub use display::display_main;
pub use player::player_main;

use std::time::Duration;

use arithmetic::{jitter_ms, missed, rate};
use cast::{Cast, Computing};
use clip::{Steps, Work};
use deadlines::Order;
use way::Way;

use crate::command::usage;
use crate::effort::is_least;
use crate::error::{Error, Kind, Result};
use crate::experiments::Outcome;
use crate::experiments::cpu::{Spinner, Stand, require_one_cpu};
use crate::progress::Progress;
use crate::wanted::Wanted;

/// A frame of the film: with the whole CPU there are 25 in a second, as in the paper.
const DECODE: Duration = Duration::from_millis(24);
const SHOW: Duration = Duration::from_millis(16);
/// Where only one share is tried.
const PERCENT: u32 = 40;

/// One run as fast as it goes.
#[derive(Clone, Copy, Debug)]
struct Measured {
    way: Way,
    /// Of the machine.
    percent: u32,
    hogs: usize,
    round: usize,
    /// Frames a second.
    rate: f64,
    /// Of the second player of a shared server.
    other_rate: Option<f64>,
    jitter_ms: f64,
    /// Of a shared server: what the player's container was charged for a frame, ms.
    charged_ms: Option<f64>,
}

/// One run of a clip.
#[derive(Clone, Copy, Debug)]
struct Clip {
    order: Order,
    frames: usize,
    missed: usize,
    jitter_ms: f64,
}

/// Everything that was seen.
#[derive(Debug, Default)]
struct Sample {
    /// What a frame costs player and server together while nobody else wants the CPU.
    frame_ms: f64,
    alone_rate: f64,
    measured: Vec<Measured>,
    clips: Vec<Clip>,
    /// Why something was left out.
    notes: Vec<String>,
}

struct Plan {
    /// For what a step of a frame's work costs.
    trials: u32,
    rounds: usize,
    /// Before each run; what came then is not counted.
    warm_up: Duration,
    length: Duration,
    clip: Duration,
    hogs: &'static [usize],
    percents: &'static [u32],
}

fn plan(quick: bool) -> Plan {
    let (seconds, millis) = (Duration::from_secs, Duration::from_millis);
    let full = Plan {
        trials: 20,
        rounds: 2,
        warm_up: millis(500),
        length: seconds(6),
        clip: seconds(20),
        hogs: &[1, 3, 5, 7],
        percents: &[20, PERCENT, 60],
    };
    match quick {
        _ if is_least() => Plan {
            trials: 2,
            rounds: 1,
            warm_up: millis(50),
            length: millis(250),
            clip: millis(200),
            hogs: &[1, 2],
            percents: &[PERCENT],
        },
        true => Plan { rounds: 1, percents: &[PERCENT], ..full },
        false => full,
    }
}

impl Plan {
    fn most(&self) -> usize {
        self.hogs.iter().copied().max().unwrap_or(0)
    }

    /// Which shares are tried: for what must not depend on the hogs, all.
    fn percents(&self, way: Way) -> &'static [u32] {
        if matches!(way, Way::One | Way::Shared) { self.percents } else { &[PERCENT] }
    }

    fn steps(&self) -> usize {
        let runs: usize = Way::ALL.iter().map(|way| self.percents(*way).len() * self.hogs.len() * self.rounds).sum();
        runs + 2 + Order::FIEF.len()
    }
}

pub fn run(quick: bool) -> Result<Outcome> {
    // a player and its server have one at a time, whatever part of the machine they are given
    require_one_cpu("media", |cpus| format!("hogs would leave a player one of {cpus} CPUs"))?;
    let plan = plan(quick);
    let mut progress = Progress::new("media", plan.steps());
    progress.step("alone")?;
    let steps = Steps::measure(plan.trials)?;
    let (work, clip) = (steps.within(DECODE, SHOW), steps.within(deadlines::DECODE, deadlines::SHOW));
    let mut runs =
        Runs { plan: &plan, work, clip_work: clip, wanted: &Wanted::from_env(), progress, sample: Sample::default() };
    (runs.sample.frame_ms, runs.sample.alone_rate) = alone(work, plan.length)?;
    without_fief(&mut runs)?;
    with_fief(&mut runs)?;
    Ok(outcome::of(&runs.sample))
}

/// What a frame costs, ms of the CPU, and how many come in a second.
fn alone(work: Work, length: Duration) -> Result<(f64, f64)> {
    let mut cast = Way::Plain.cast(work, None)?;
    let before = cast.used()?;
    let (played, _) = cast.play(length, Duration::ZERO, Duration::ZERO)?;
    let used = cast.used()? - before;
    cast.end()?;
    Ok((used.as_secs_f64() * 1000.0 / played.shown_us.len() as f64, rate(&played.shown_us, Duration::ZERO)))
}

fn without_fief(runs: &mut Runs<'_>) -> Result<()> {
    let most = runs.plan.most();
    if runs.wanted.any(&[Way::Plain.name()]) {
        let hogs = way::hogs(most, None)?;
        runs.all(Way::Plain, PERCENT, &mut Way::Plain.cast(runs.work, None)?, &hogs)?;
    }
    if !runs.wanted.any(&[Way::Groups.name()]) {
        return Ok(());
    }
    let groups = match way::groups(most) {
        Ok(groups) => groups,
        Err(error) if error.kind() == Kind::Missing => {
            runs.sample.notes.push(format!("{} was left out: {error}", Way::Groups.title()));
            return Ok(());
        }
        Err(error) => return Err(error),
    };
    let hogs = way::hogs(most, Some(&groups))?;
    // as an operator who gives both their part beside one hog, and knows of no more
    way::weigh(&groups, PERCENT, 1)?;
    runs.all(Way::Groups, PERCENT, &mut Way::Groups.cast(runs.work, Some(&groups))?, &hogs)?;
    let (work, length) = (runs.clip_work, runs.plan.clip);
    runs.clip(Order::Kernel, || deadlines::by_groups(&groups, work, &hogs, length))?;
    drop(hogs);
    Ok(())
}

fn with_fief(runs: &mut Runs<'_>) -> Result<()> {
    let (mut stand, wanted) = (Stand::default(), runs.wanted);
    let most = runs.plan.most();
    way::give(&mut stand, &Way::One.containers(PERCENT), most)?;
    let hogs = way::bound_hogs(most)?;
    for way in Way::FIEF.into_iter().filter(|way| wanted.any(&[way.name()])) {
        let mut started = None;
        for &percent in runs.plan.percents(way) {
            way::give(&mut stand, &way.containers(percent), most)?;
            // it is bound to containers that are there, and stays in them
            let mut cast = started.take().map_or_else(|| way.cast(runs.work, None), Ok)?;
            runs.all(way, percent, &mut cast, &hogs)?;
            started = Some(cast);
        }
        started.map_or(Ok(()), Cast::end)?;
    }
    for order in Order::FIEF.into_iter().filter(|order| wanted.any(&[order.name()])) {
        let (work, length) = (runs.clip_work, runs.plan.clip);
        runs.clip(order, || deadlines::by_fief(&mut stand, work, order, &hogs, length))?;
    }
    drop(hogs);
    stand.end()
}

/// What a container was charged for threads, ns.
fn charged(container: &str) -> Result<u64> {
    let found = usage()?.into_iter().find(|one| one.container == container);
    found.map(|one| one.thread_ns).ok_or_else(|| Error::failed(format!("nothing was charged to {container}")))
}

struct Runs<'a> {
    plan: &'a Plan,
    work: Work,
    clip_work: Work,
    wanted: &'a Wanted,
    progress: Progress,
    sample: Sample,
}

impl Runs<'_> {
    /// Beside each number of the hogs.
    fn all(&mut self, way: Way, percent: u32, cast: &mut Cast, hogs: &[Spinner]) -> Result<()> {
        for round in 0..self.plan.rounds {
            for &count in self.plan.hogs {
                self.progress.step(&format!("round {}, {}, {percent} %, {count} hogs", round + 1, way.title()))?;
                let before = way.payer().map(charged).transpose()?;
                let computing = Computing::begin(&hogs[..count])?;
                let warm_up = self.plan.warm_up;
                let (played, other) = cast.play(warm_up + self.plan.length, Duration::ZERO, way.other_period())?;
                drop(computing);
                let after = way.payer().map(charged).transpose()?;
                let charged_ns = before.zip(after).map(|(before, after)| (after - before) as f64);
                self.sample.measured.push(Measured {
                    way,
                    percent,
                    hogs: count,
                    round,
                    rate: rate(&played.shown_us, warm_up),
                    other_rate: other.map(|other| rate(&other.shown_us, warm_up)),
                    jitter_ms: jitter_ms(&played.shown_us, warm_up),
                    charged_ms: charged_ns.map(|ns| ns / 1e6 / played.shown_us.len() as f64),
                });
            }
        }
        Ok(())
    }

    fn clip(&mut self, order: Order, play: impl FnOnce() -> Result<player::Played>) -> Result<()> {
        self.progress.step(&format!("a clip, {}", order.title()))?;
        let shown_us = play()?.shown_us;
        let frames = (self.plan.clip.as_micros() / deadlines::PERIOD.as_micros()) as usize;
        self.sample.clips.push(Clip {
            order,
            frames,
            missed: missed(&shown_us, deadlines::PERIOD, frames),
            jitter_ms: jitter_ms(&shown_us, Duration::ZERO),
        });
        Ok(())
    }
}
