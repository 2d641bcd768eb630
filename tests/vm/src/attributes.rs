// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The checks of what an application sets of containers of its own making, while work is done for them: limit, weight, priority.

use std::time::{Duration, Instant};

use fief::Container;

use crate::command::{WHOLE, run_part};
use crate::report::{Found, Report, text};
use crate::schedule::{Spinner, held, near, percents, percents_in, policy};
use crate::work::{SPELL, spin};

/// In which a thread that waits is let in for a moment whatever its priority is (bpf/sched/floor.bpf.h), and some more.
const FLOOR: Duration = Duration::from_secs(10);
const NAMES: [&str; 2] = ["a", "b"];

pub fn check(report: &mut Report) {
    report.check("an application's own limit is held, and left with the binding", holds_a_limit);
    report.check("weights and priorities that an application sets hold from then on", holds_what_is_set);
}

fn holds_a_limit() -> Found {
    run_part(&policy(&[("site", "cpu.limit = \"60%\"")]), "limits-itself")
}

/// The part `limits-itself`: a thread that works in a container of its own making, which has a tenth of a CPU, and outside of it.
pub fn limits_itself() -> Found {
    let cpus = nix::unistd::sysconf(nix::unistd::SysconfVar::_NPROCESSORS_ONLN).map_err(text)?.unwrap_or(1) as u32;
    let limited = Container::create().map_err(text)?;
    limited.set_limit(Some(100_000 / cpus)).map_err(text)?;
    let timed = || {
        let begin = Instant::now();
        let worked = spin(SPELL);
        begin.elapsed().as_secs_f64() * 1e9 / worked as f64
    };
    let before = timed();
    let bound = limited.bind().map_err(text)?;
    let held = timed();
    drop(bound);
    let after = timed();
    let figures = format!("took {before:.2}, {held:.2} and {after:.2} times the work");
    if before < 1.5 && (8.0..12.0).contains(&held) && after < 1.5 { Ok(figures) } else { Err(figures) }
}

fn holds_what_is_set() -> Found {
    run_part(WHOLE, "sets-attributes")
}

/// Two that want the whole machine each.
fn busy(container: &Container, name: &'static str) -> Result<[Spinner; 2], String> {
    let _bound = container.bind().map_err(text)?;
    Ok([Spinner::inheriting(name)?, Spinner::inheriting(name)?])
}

/// The part `sets-attributes`: two containers of its own, with processes that only compute. None has a higher priority than this thread, which
/// wakes up to measure.
pub fn set_attributes() -> Found {
    let (a, b) = (Container::create().map_err(text)?, Container::create().map_err(text)?);
    let (of_a, of_b) = (busy(&a, NAMES[0])?, busy(&b, NAMES[1])?);
    let spinners: [&[Spinner]; 2] = [&of_a, &of_b];
    let weights = |of_a: u32, of_b: u32| -> Result<(), String> {
        a.set_weight(of_a).and_then(|()| b.set_weight(of_b)).map_err(text)
    };
    let priorities = |of_a: u32, of_b: u32| -> Result<(), String> {
        a.set_priority(of_a).and_then(|()| b.set_priority(of_b)).map_err(text)
    };
    let divided = |expected: &[f64; 2]| held(expected, 1.5, || percents(&NAMES, &spinners));

    weights(100, 300)?;
    let mut told = vec![divided(&[25.0, 75.0]).map_err(|e| format!("weights 100 and 300: {e}"))?];
    weights(300, 100)?;
    told.push(divided(&[75.0, 25.0]).map_err(|e| format!("weights 300 and 100: {e}"))?);
    priorities(100, 50)?;
    told.push(has_nearly_all(&percents(&NAMES, &spinners)?).map_err(|e| format!("priorities 100 and 50: {e}"))?);
    priorities(20, 50)?;
    let found = percents_in(FLOOR, &NAMES, &spinners)?;
    told.push(has_nearly_all(&[found[1], found[0]]).map_err(|e| format!("priorities 50 and 20: {e}"))?);
    if found[0] == 0.0 {
        return Err(format!("the lower one had nothing in {FLOOR:?}"));
    }
    priorities(50, 50)?;
    told.push(divided(&[75.0, 25.0]).map_err(|e| format!("weights again: {e}"))?);
    Ok(told.join("; "))
}

/// The first of two, the one of the higher priority.
fn has_nearly_all(found: &[f64]) -> Found {
    let most = near(&found[..1], &[100.0], 3.0)?;
    near(&found[1..], &[0.0], 0.5).map(|least| format!("{most} and {least}"))
}
