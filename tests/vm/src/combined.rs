// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The checks of a thread that serves several containers in turn: its scheduler binding. All on one CPU of the guest.

use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use fief::{Container, Ring};
use nix::unistd::Pid;

use crate::command::{WHOLE, run_part};
use crate::policies::pin;
use crate::report::{Found, Report, text};
use crate::schedule::near;
use crate::work::{spin, thread_ns};

const TURN: Duration = Duration::from_millis(1);
/// Shorter than a tick.
const FORGETS: Duration = Duration::from_micros(200);
const SETTLES: Duration = Duration::from_millis(500);
/// Longer than a container counts that is not served any more.
const PRUNED: Duration = Duration::from_millis(1500);
/// Three seconds: what a thread keeps without a reset until the other container is pruned would be 3 points of it.
const WINDOW: Duration = Duration::from_secs(3);

pub fn check(report: &mut Report) {
    report.check("a thread that serves two containers has the CPU of both, until one is pruned or reset", has_both);
}

fn has_both() -> Found {
    run_part(WHOLE, "serves-both")
}

/// Serves these in turn for so long. Returns the part of a CPU that it had, percent.
fn serve(served: &[&Container], length: Duration) -> Result<f64, String> {
    let (begin, before) = (Instant::now(), thread_ns());
    for next in served.iter().cycle() {
        next.bind_thread().map_err(text)?;
        spin(TURN);
        if begin.elapsed() >= length {
            break;
        }
    }
    Ok((thread_ns() - before) as f64 * 100.0 / begin.elapsed().as_nanos() as f64)
}

/// The part `serves-both`.
pub fn serve_both() -> Found {
    pin(Pid::this())?;
    let of = |share: u32| -> Result<Container, String> {
        let made = Container::create().map_err(text)?;
        made.set_share(share * 10_000).map_err(text)?;
        Ok(made)
    };
    let (wide, narrow, busy) = (of(60)?, of(5)?, of(35)?);
    let program = std::env::current_exe().map_err(text)?;
    let bound = busy.bind().map_err(text)?;
    // it inherits the binding and the CPU
    let mut hog = Command::new(program).arg("spin").stdin(Stdio::null()).stdout(Stdio::null()).spawn().map_err(text)?;
    drop(bound);
    let found = shares(&wide, &narrow);
    let ended = hog.kill().and_then(|()| hog.wait()).map_err(text);
    let said = found?;
    ended?;
    Ok(format!("{said}; {}; by a ring {}", limit(&wide, &narrow)?, limit_by_ring(&wide, &narrow)?))
}

fn shares(wide: &Container, narrow: &Container) -> Found {
    let both = [wide, narrow];
    serve(&both, SETTLES)?;
    let combined = serve(&both, WINDOW)?;
    serve(&[narrow], PRUNED)?;
    let pruned = serve(&[narrow], WINDOW)?;
    serve(&both, SETTLES)?;
    narrow.bind_thread().map_err(text)?;
    fief::reset_scheduler_binding(narrow).map_err(text)?;
    let reset = serve(&[narrow], WINDOW)?;
    let forgetful = forget(wide, narrow)?;
    // 5 of the 40 that are asked for
    let said = near(&[combined, pruned, reset], &[65.0, 12.5, 12.5], 1.5)?;
    // it pays for each turn that it takes, whoever it works for
    if forgetful <= 66.5 {
        Ok(format!("{said}; forgetful {forgetful:.1}"))
    } else {
        Err(format!("forgetful {forgetful:.1}"))
    }
}

/// Forgets and touches the better one again and again, and works for the other one alone. Returns the part of a CPU that it had,
/// percent.
fn forget(wide: &Container, narrow: &Container) -> Result<f64, String> {
    let (begin, before) = (Instant::now(), thread_ns());
    while begin.elapsed() < WINDOW {
        fief::reset_scheduler_binding(narrow).map_err(text)?;
        wide.bind_thread().map_err(text)?;
        spin(FORGETS / 20);
        narrow.bind_thread().map_err(text)?;
        spin(FORGETS);
    }
    Ok((thread_ns() - before) as f64 * 100.0 / begin.elapsed().as_nanos() as f64)
}

/// The same where a ring says whom the thread works for: the scheduler reads it at each look.
fn limit_by_ring(wide: &Container, narrow: &Container) -> Found {
    let mut ring = Ring::open().map_err(text)?;
    let both = [ring.add(wide).map_err(text)?, ring.add(narrow).map_err(text)?];
    let mut serve = |length: Duration| {
        let begin = Instant::now();
        for place in both.iter().cycle() {
            ring.bind(*place)?;
            spin(TURN);
            if begin.elapsed() >= length {
                break;
            }
        }
        ring.flush()
    };
    serve(SETTLES).map_err(text)?;
    near(&[charged_percent(narrow, || serve(WINDOW).map_err(text))?], &[10.0], 1.0)
}

/// What a container is charged for while this is done, percent of a CPU.
fn charged_percent(of: &Container, work: impl FnOnce() -> Result<(), String>) -> Result<f64, String> {
    let charged = || of.usage().map(|usage| usage.thread_ns).map_err(text);
    let (before, begin) = (charged()?, Instant::now());
    work()?;
    Ok((charged()? - before) as f64 * 100.0 / begin.elapsed().as_nanos() as f64)
}

/// What one of the two is limited to holds for its work, however much the thread may have.
fn limit(wide: &Container, narrow: &Container) -> Found {
    let cpus = nix::unistd::sysconf(nix::unistd::SysconfVar::_NPROCESSORS_ONLN).map_err(text)?.unwrap_or(1) as u32;
    narrow.set_limit(Some(100_000 / cpus)).map_err(text)?;
    let both = [wide, narrow];
    serve(&both, SETTLES)?;
    let part = charged_percent(narrow, || serve(&both, WINDOW).map(drop))?;
    near(&[part], &[10.0], 1.0).map(|said| format!("limited to {said}"))
}
