// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Very many processes of one container: those that only compute, and those that fork on and end all the time.

use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::sys::prctl::{set_child_subreaper, set_pdeathsig};
use nix::sys::resource::{Resource, setrlimit};
use nix::sys::signal::{SigHandler, Signal};
use nix::sys::wait::wait;
use nix::unistd::{ForkResult, Pid, Uid, getppid, setuid};

use crate::command::{number, objects};
use crate::policies::pin;
use crate::report::{Found, Report, text};
use crate::schedule::{DEADLINE, Spinner, apply, must, near, percents, start, start_part};
use crate::work::{spin, until_told, without_end};

const BOMB: usize = 150;
/// Processes of a storm at a time, as the kernel counts its user's.
const STORM_MOST: u64 = 150;
/// For so long it forks on.
const STORM: Duration = Duration::from_secs(10);
const STORM_USER: u32 = 1001;
/// Of each of its processes, before it forks.
const WORK: Duration = Duration::from_micros(500);
const FORKS_EACH: u32 = 2;
/// In the window that is measured; with fewer nothing would be under load.
const FORKS_LEAST: u64 = 20;

pub fn check(report: &mut Report) {
    report.check("who waits behind very many under fifo, on one CPU of two, is let in", bears_a_fifo);
    report.check("very many processes in a limited container do not stop others", bears_a_bomb);
}

/// A part of its own: in the emulated 7.0.13 the storm's last threads find the kernel in a loop without end (bpf_local_storage_destroy, which
/// waits for the count of a storage's owners) while the other CPU is idle (docs/kernel-facts.md).
pub fn check_storm(report: &mut Report) {
    report.check("processes that fork on and end take nothing from others, and leave nothing", bears_a_storm);
}

fn processes(container: &str) -> Result<u64, String> {
    let shown = objects(&["show", container])?;
    shown.first().map(|one| number(one, "processes")).ok_or_else(|| format!("{container} is not shown"))
}

fn bears_a_bomb() -> Found {
    apply(&[("limited", "cpu.limit = \"10%\""), ("free", "")])?;
    let bomb = start_part("limited", "bomb")?;
    bomb.tell()?;
    let others = start(&[("free", 2)])?;
    let since = Instant::now();
    while processes("limited")? < 100 {
        if since.elapsed() > DEADLINE {
            return Err(format!("{} processes", processes("limited")?));
        }
    }
    let found = percents(&["free"], &[&others])?;
    must(true)?;
    let figures = near(&found, &[90.0], 3.0)?;
    Ok(format!("{figures}; {} processes", processes("limited")?))
}

/// The kernel takes a scheduler out under which a thread waits for 30 s, or that puts one on a CPU where it may not run.
fn bears_a_fifo() -> Found {
    apply(&[("line", "cpu.policy = \"fifo\""), ("other", "")])?;
    let bomb = start_part("line", "bomb")?;
    pin(bomb.pid())?;
    bomb.tell()?;
    let others = start(&[("other", 2)])?;
    std::thread::sleep(Duration::from_secs(35));
    must(true)?;
    drop(others);
    let processes = processes("line")?;
    if processes < 100 { Err(format!("{processes} processes")) } else { Ok(format!("{processes} processes")) }
}

/// The part `bomb`: once it is told to, makes processes that compute until there are very many, and computes.
pub fn bomb() -> ! {
    until_told();
    let parent = Pid::this();
    for _ in 0..BOMB {
        // SAFETY: this process has one thread, and the child only computes.
        #[allow(unsafe_code)]
        match unsafe { nix::unistd::fork() } {
            Ok(ForkResult::Child) => {
                set_pdeathsig(Signal::SIGKILL).expect("a signal that is known");
                // the kernel sends nothing for a parent that ended before that
                if getppid() != parent {
                    std::process::exit(1);
                }
                without_end()
            }
            Ok(_) => {}
            Err(_) => break,
        }
    }
    without_end()
}

/// Threads begin, wait and end all the time: also in the middle of their end, where the kernel asks a scheduler only if it wants to be
/// (SCX_OPS_ENQ_EXITING).
fn bears_a_storm() -> Found {
    let held_back = |given: &str, neighbour: f64| -> Found {
        apply(&[("storm", given), ("free", "")])?;
        storm_beside(neighbour).map_err(|e| format!("{given}: {e}"))
    };
    let limited = held_back("cpu.limit = \"10%\"", 90.0)?;
    let shared = held_back("cpu.share = \"40%\"", 60.0)?;
    Ok(format!("limited: {limited}; with a share: {shared}"))
}

/// `neighbour`: percent of the machine that two processes beside it have at least.
fn storm_beside(neighbour: f64) -> Found {
    let others = start(&[("free", 2)])?;
    let mut storm = Spinner::telling("storm", "storm", |_| Ok(()))?;
    let begun = forks()?;
    storm.tell()?;
    let since = Instant::now();
    while forks()? < begun + STORM_MOST {
        if since.elapsed() > STORM {
            return Err(format!("{} forks in {STORM:?}", forks()? - begun));
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    let before = forks()?;
    let had = percents(&["free"], &[&others])?[0];
    let forked = forks()? - before;
    must(true)?;
    drop(others);
    let said = storm.said()?;
    if said.trim() != OVER {
        return Err(format!("the storm said {said:?}"));
    }
    drop(storm);
    let since = Instant::now();
    while processes("storm")? > 0 {
        if since.elapsed() > DEADLINE {
            return Err(format!("{} processes are left", processes("storm")?));
        }
    }
    must(true)?;
    let figures = format!("{had:.2} of {neighbour:.0} beside {forked} forks");
    if had >= neighbour - 3.0 && forked >= FORKS_LEAST { Ok(figures) } else { Err(figures) }
}

/// Of the whole machine, since it began (proc_stat(5)).
fn forks() -> Result<u64, String> {
    let stat = std::fs::read_to_string("/proc/stat").map_err(text)?;
    let count = stat.lines().find_map(|line| line.strip_prefix("processes ")?.trim().parse().ok());
    count.ok_or_else(|| "/proc/stat counts no forks".to_owned())
}

/// What a storm says once its last process has ended.
const OVER: &str = "over";

/// The part `storm`: once it is told to, begins processes that fork on, until its time is over; says so when all have ended.
pub fn storm() -> Found {
    until_told();
    // whose parent has ended is this one's; and nobody has to wait for them
    set_child_subreaper(true).map_err(text)?;
    // SAFETY: without a handler there is nothing that would have to be safe to call.
    #[allow(unsafe_code)]
    let ignored = unsafe { nix::sys::signal::signal(Signal::SIGCHLD, SigHandler::SigIgn) };
    ignored.map_err(text)?;
    setrlimit(Resource::RLIMIT_NPROC, STORM_MOST, STORM_MOST).map_err(text)?;
    // root is not held to it
    setuid(Uid::from_raw(STORM_USER)).map_err(text)?;
    let until = Instant::now() + STORM;
    while Instant::now() < until {
        if is_forked() {
            fork_on(until);
        }
        std::thread::sleep(WORK);
    }
    // of ignored ones the last one's end is told as an error
    while wait() != Err(Errno::ECHILD) {}
    Ok(OVER.to_owned())
}

/// Whether this is a new process. None is made while the user has as many as it may.
fn is_forked() -> bool {
    // SAFETY: this process has one thread.
    #[allow(unsafe_code)]
    let forked = unsafe { nix::unistd::fork() };
    matches!(forked, Ok(ForkResult::Child))
}

/// Works, forks and ends, as its children do after it.
fn fork_on(until: Instant) -> ! {
    let mut left = FORKS_EACH;
    while left > 0 && Instant::now() < until {
        spin(WORK);
        left = if is_forked() { FORKS_EACH } else { left - 1 };
    }
    std::process::exit(0)
}
