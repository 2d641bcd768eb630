// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A CPU that goes and comes: the kernel takes a scheduler out that does not follow, and threads that ran there go on elsewhere. So does
//! what it had received.

use std::fs;
use std::time::Duration;

use nix::sched::{CpuSet, sched_setaffinity};
use nix::unistd::Pid;

use crate::inversion::{GOLD, Rig};
use crate::report::{Found, text};
use crate::schedule::{apply, held, must, percents_in, start};

/// Of the machine's two.
const LAST: &str = "/sys/devices/system/cpu/cpu1/online";
const ROUNDS: usize = 2;
/// A limit is in debt by some ticks when a window begins or ends.
const WINDOW: Duration = Duration::from_secs(6);

fn turn(on: bool) -> Result<(), String> {
    fs::write(LAST, if on { "1" } else { "0" }).map_err(text)
}

/// The CPU is back, whatever was found.
struct Away;

impl Drop for Away {
    fn drop(&mut self) {
        // where it is there already, nothing happens
        let _ = turn(true);
    }
}

/// Shares and limits are of what is there.
pub fn is_borne() -> Found {
    let names = ["a", "b", "c"];
    apply(&[("a", "cpu.share = \"60%\""), ("b", "cpu.limit = \"10%\""), ("c", "")])?;
    let spinners = start(&names.map(|name| (name, 3)))?;
    let expected = [60.0, 10.0, 30.0];
    let found = || -> Result<Vec<f64>, String> {
        let found = percents_in(WINDOW, &names, &[&spinners])?;
        // the kernel's own work, where a CPU has come, is of none of the three
        let all: f64 = found.iter().sum();
        if all < 90.0 {
            return Err(format!("{all:.2} of 100 % in use"));
        }
        Ok(found.iter().map(|part| part * 100.0 / all).collect())
    };
    let mut told = Vec::new();
    for _ in 0..ROUNDS {
        turn(false)?;
        let away = Away;
        told.push(held(&expected, 1.5, found).map_err(|e| format!("one CPU: {e}"))?);
        drop(away);
        told.push(held(&expected, 1.5, found).map_err(|e| format!("two CPUs: {e}"))?);
    }
    must(true)?;
    Ok(told.pop().unwrap_or_default())
}

/// Of the server's CPU, ms: longer than a CPU takes to go or to come.
const HELD: u64 = 1500;
const WAITING: u32 = 4;

/// This thread, and those that it starts, run on these CPUs. What they send over the loopback is received there.
fn run_on(cpus: &[usize]) -> Result<(), String> {
    let mut set = CpuSet::new();
    cpus.iter().try_for_each(|cpu| set.set(*cpu)).map_err(text)?;
    sched_setaffinity(Pid::from_raw(0), &set).map_err(text)
}

/// The CPU goes, or comes, while some wait who came in at this CPU; nobody comes after them.
fn waits_while_it_turns(rig: &Rig, on: bool, cpu: usize) -> Result<(), String> {
    let held = rig.ask_long(HELD)?;
    run_on(&[cpu])?;
    let waits = (0..WAITING).map(|_| rig.ask(GOLD, 0)).collect::<Result<Vec<_>, _>>();
    run_on(&[0, 1])?;
    let waits = waits?;
    rig.wait_for(1, WAITING)?;
    turn(on)?;
    // they still do
    rig.wait_for(1, WAITING)?;
    held.answered("the first one")?;
    for (n, one) in waits.iter().enumerate() {
        one.answered("one that waited").map_err(|e| format!("{n}: {e}; {}", rig.state()))?;
    }
    Ok(())
}

/// It goes with all that those who wait have sent. (The guest has no sch_tbf, so its queues have no clock.)
pub fn is_borne_by_a_queue() -> Found {
    let rig = Rig::alone()?;
    let away = Away;
    waits_while_it_turns(&rig, false, 1).map_err(|e| format!("one CPU: {e}"))?;
    waits_while_it_turns(&rig, true, 0).map_err(|e| format!("two CPUs: {e}"))?;
    drop(away);
    rig.wait_for(0, 0)?;
    Ok(format!("{} of {}", 2 * WAITING, 2 * WAITING))
}
