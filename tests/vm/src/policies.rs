// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The checks of the orders among a container's own threads, all on one CPU of the guest.

use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use nix::sched::{CpuSet, sched_setaffinity};
use nix::unistd::Pid;

use crate::command::{fief, write_policy};
use crate::report::{Found, Report, text};
use crate::schedule::{Spinner, apply, near, start};
use crate::work::spin;

const WINDOW: Duration = Duration::from_secs(3);
const FRAME: Duration = Duration::from_millis(27);
const WORK: Duration = Duration::from_millis(5);
const FRAMES: u32 = 100;

pub fn check(report: &mut Report) {
    report.check("each policy orders a container's threads, exchanged while they run", orders);
    check_outside(report);
    report.check("a player misses no frame beside those that only compute, with deadlines", plays);
}

/// Those of orders that are built outside of Fief.
pub fn check_outside(report: &mut Report) {
    report.check("an order built outside is loaded into the running scheduler, and exchanged", outside);
    report.check("an order that goes by time is good in a line that was idle for long", idles);
    report.check("an order that means ill is not asked any more, which status tells", faults);
}

pub fn pin(pid: Pid) -> Result<(), String> {
    let mut cpus = CpuSet::new();
    cpus.set(0).map_err(text)?;
    sched_setaffinity(pid, &cpus).map_err(text)
}

pub fn renice(pid: Pid, nice: u32) -> Result<(), String> {
    let (nice, pid) = (nice.to_string(), pid.to_string());
    let status = Command::new("busybox").args(["renice", "-n", &nice, "-p", &pid]).stdout(Stdio::null()).status();
    if status.map_err(text)?.success() { Ok(()) } else { Err("renice".to_owned()) }
}

fn policy(order: &str) -> Result<(), String> {
    // the limit keeps the scheduler on under the default order
    apply(&[("line", &format!("cpu.policy = {order}\ncpu.limit = \"90%\"")), ("other", "")]).map(drop)
}

/// Percent of one CPU that each got in a window.
fn parts(spinners: &[Spinner]) -> Result<Vec<f64>, String> {
    std::thread::sleep(Duration::from_millis(300));
    let used = || spinners.iter().map(Spinner::used).collect::<Result<Vec<_>, _>>();
    let (before, begin) = (used()?, Instant::now());
    std::thread::sleep(WINDOW);
    let (after, passed) = (used()?, begin.elapsed().as_secs_f64());
    Ok(after.iter().zip(&before).map(|(after, before)| (*after - *before).as_secs_f64() * 100.0 / passed).collect())
}

fn orders() -> Found {
    policy("\"rr\"")?;
    let spinners = start(&[("line", 2)])?;
    spinners.iter().try_for_each(|one| pin(one.pid()))?;
    // nice 3 has a weight of 526 beside 1024 (the kernel's sched_prio_to_weight)
    renice(spinners[1].pid(), 3)?;
    let by_weight = [1024.0 / 15.5, 526.0 / 15.5];
    let mut told = Vec::new();
    for (order, expected, points) in [
        ("rr", [50.0, 50.0], 1.5),
        ("fair", by_weight, 2.0),
        ("lottery", by_weight, 12.0),
        ("rr", [50.0, 50.0], 1.5),
        ("edf", [50.0, 50.0], 2.0),
    ] {
        policy(&format!("\"{order}\""))?;
        told.push(format!(
            "{order} {}",
            near(&parts(&spinners)?, &expected, points).map_err(|e| format!("{order}: {e}"))?
        ));
    }
    policy("\"fifo\"")?;
    let found = parts(&spinners)?;
    let (most, least) = (found[0].max(found[1]), found[0].min(found[1]));
    near(&[most, least], &[100.0, 0.0], 1.5).map_err(|e| format!("fifo: {e}"))?;
    told.push(format!("fifo {most:.1} {least:.2}"));
    Ok(told.join("; "))
}

/// The policy's own order, from a file that this writes; the container of the spinners has it, by that name.
fn bring(name: &str, object: &[u8]) -> Result<String, String> {
    let file = format!("/tmp/{name}.bpf.o");
    std::fs::write(&file, object).map_err(text)?;
    let policy = format!(
        "version = 1\nschedule = \"auto\"\n[cpu-policy.{name}]\nobject = \"{file}\"\n\
         [container.line]\ncpu.policy = \"{name}\"\n[container.other]\n"
    );
    let output = Command::new("fief").args(["apply", write_policy(&policy)?]).output().map_err(text)?;
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    if output.status.success() && !said.contains("not enforced") { Ok(said) } else { Err(said) }
}

/// The orders that this was built with.
const FAVOURITE: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/favourite.bpf.o"));
const BEYOND: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/beyond.bpf.o"));
const BY_TIME: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/by_time.bpf.o"));
const SILENT: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/silent.bpf.o"));
const ENDLESS: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/endless.bpf.o"));

fn outside() -> Found {
    policy("\"rr\"")?;
    // one by one: the first one that waits in the line is the favourite
    let spinners = start(&[("line", 1), ("line", 1)])?;
    spinners.iter().try_for_each(|one| pin(one.pid()))?;
    let mut told = Vec::new();
    for round in 0..2 {
        bring("favourite", FAVOURITE)?;
        let found = parts(&spinners)?;
        let (most, least) = (found[0].max(found[1]), found[0].min(found[1]));
        let status = fief(&["status"]).unwrap_or_else(|said| said);
        let divided = near(&[most, least], &[75.0, 25.0], 2.0);
        told.push(divided.map_err(|e| format!("round {round}: {e}; {status}"))?);
    }
    policy("\"rr\"")?;
    told.push(format!("rr {}", near(&parts(&spinners)?, &[50.0, 50.0], 1.5)?));
    Ok(told.join("; "))
}

/// An order whose places are times, in a line that had nobody for longer than an order's reach.
fn idles() -> Found {
    bring("by_time", BY_TIME)?;
    drop(start(&[("line", 1)])?);
    std::thread::sleep(Duration::from_secs(70));
    let spinners = start(&[("line", 2)])?;
    spinners.iter().try_for_each(|one| pin(one.pid()))?;
    let found = parts(&spinners)?;
    let status = fief(&["status"]).unwrap_or_else(|said| said);
    let (most, least) = (found[0].max(found[1]), found[0].min(found[1]));
    let divided = near(&[most, least], &[100.0, 0.0], 1.5).map_err(|e| format!("{e}; {status}"))?;
    if status.contains("faults 0)") { Ok(divided) } else { Err(status) }
}

fn faults() -> Found {
    let mut told = Vec::new();
    for (name, object) in [("beyond", BEYOND), ("endless", ENDLESS), ("silent", SILENT)] {
        policy("\"rr\"")?;
        let spinners = start(&[("line", 2)])?;
        spinners.iter().try_for_each(|one| pin(one.pid()))?;
        bring(name, object)?;
        let found = near(&parts(&spinners)?, &[50.0, 50.0], 2.0).map_err(|e| format!("{name}: {e}"))?;
        let status = fief(&["status"]).unwrap_or_else(|said| said);
        if !status.contains("is not asked any more") {
            return Err(format!("{name}: status says {status}"));
        }
        told.push(format!("{name} {found}"));
    }
    Ok(told.join("; "))
}

/// The part `play`: works in each frame; prints how many frames were late.
pub fn play() {
    let begin = Instant::now();
    let mut late = 0;
    for frame in 0..FRAMES {
        spin(WORK);
        late += u32::from(begin.elapsed() > FRAME * (frame + 1));
        std::thread::sleep((FRAME * (frame + 1)).saturating_sub(begin.elapsed()));
    }
    println!("{late}");
}

/// Late frames beside three that only compute.
fn late(order: &str) -> Result<u32, String> {
    policy(order)?;
    let hogs = start(&[("line", 3)])?;
    hogs.iter().try_for_each(|hog| pin(hog.pid()))?;
    let mut player = Spinner::telling("line", "play", pin)?;
    let said = player.said()?;
    said.trim().parse().map_err(|_| format!("the player said {said:?}"))
}

fn plays() -> Found {
    let turns = late("\"rr\"")?;
    let deadlines = late("\"edf\"\ncpu.period = \"27ms\"\ncpu.budget = \"6ms\"")?;
    let figures = format!("{deadlines} of {FRAMES} late, {turns} with rr");
    if deadlines == 0 { Ok(figures) } else { Err(figures) }
}
