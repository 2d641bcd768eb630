// SPDX-License-Identifier: Apache-2.0 OR MIT
//! How the scheduler is turned on and off: by policies, and beside who kills, takes it out, has the CPUs already, or is a later version.

use std::ffi::OsStr;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use fief_bpf::pin::Pins;
use fief_bpf::schedule;
use fief_bpf::upgrade::pretend_another_build;
use fief_bpf::yardstick::Yardstick;
use libbpf_rs::query::{LinkInfoIter, LinkTypeInfo, MapInfoIter, ProgInfoIter};
use libbpf_rs::{PrintLevel, ProgramType};

use crate::attach::attaches_many;
use crate::command::{fief, write_policy};
use crate::policies::renice;
use crate::report::{Found, Report, text};
use crate::schedule::{DEADLINE, apply, is_on, must, policy, start};

const WITH: [(&str, &str); 1] = [("a", "cpu.share = \"10%\"")];
const WITHOUT: [(&str, &str); 1] = [("a", "")];
/// All pins of the machine's installation.
const PINS: &str = "/sys/fs/bpf/fief";
/// What the kernel calls the yardstick.
const FOREIGN: &str = "yardstick";
const ATTACHES: &str = "loaded once, it is attached and detached many times, and nothing is left";

pub fn check_briefly(report: &mut Report) {
    report.check("another scheduler that has the CPUs is named, and keeps them", names_another);
    report.check("a scheduler that the kernel took out is told, and turned on by the next apply", recovers);
    report.check("it is turned on and off many times", || turns(2));
    report.check("down gives the CPUs back", gives_back);
}

pub fn check(report: &mut Report) {
    report.check("a killed apply leaves a scheduler or none, and the next one goes on", bears_kills);
    report.check("another scheduler that has the CPUs is named, and keeps them", names_another);
    report.check("a scheduler that the kernel took out is told, and turned on by the next apply", recovers);
    report.check("an apply that replaces a former version's says how long the kernel's own had the CPUs", is_replaced);
    report.check("it is turned on and off many times", || turns(5));
    report.check("so it is without a policy each time, and nothing is left", || turns_alone(2));
    report.check(ATTACHES, || attaches_many(50));
    report.check("down gives the CPUs back", gives_back);
}

/// For who has more time than a test.
pub fn check_turns(report: &mut Report, times: u32) {
    report.check("it is turned on and off many times", || turns(times));
    report.check("down gives the CPUs back", gives_back);
}

/// The same without a policy each time. An emulated CPU takes half a minute for each, nearly all of it the verifier's.
pub fn check_turns_alone(report: &mut Report, times: u32) {
    report.check("it is turned on and off many times, and nothing is left", || turns_alone(times));
    report.check("down gives the CPUs back", gives_back);
}

/// What the kernel does of it each time, without the verifier's part.
pub fn check_attaches(report: &mut Report, times: u32) {
    report.check(ATTACHES, || attaches_many(times));
    report.check("down gives the CPUs back", gives_back);
}

pub fn is_turned() -> Found {
    apply(&WITHOUT)?;
    must(false)?;
    let said = apply(&WITH)?;
    // and nothing else
    if said.matches("note").count() != 1 || !said.contains("scheduled by Fief's scheduler (sched_ext) from now on") {
        return Err(said);
    }
    must(true)?;
    let name = std::fs::read_to_string("/sys/kernel/sched_ext/root/ops").map_err(text)?;
    apply(&WITHOUT)?;
    must(false)?;
    Ok(format!("its name is {}", name.trim()))
}

fn bears_kills() -> Found {
    let mut on = 0;
    for round in 0..6u64 {
        let policy = policy(if round % 2 == 0 { &WITH } else { &WITHOUT });
        let mut applying =
            Command::new("fief").args(["apply", write_policy(&policy)?]).stdout(Stdio::null()).spawn().map_err(text)?;
        std::thread::sleep(Duration::from_millis(300 * round));
        // one that has ended is as good
        let _ = applying.kill();
        applying.wait().map_err(text)?;
        on += u32::from(is_on()?);
    }
    apply(&WITH)?;
    must(true)?;
    Ok(format!("on after {on} of 6 kills"))
}

fn names_another() -> Found {
    apply(&WITHOUT)?;
    must(false)?;
    let other = Yardstick::attach().map_err(text)?;
    let limited = policy(&[("a", "cpu.limit = \"10%\"")]);
    let by_groups = limited.replace("\"auto\"", "\"cgroup\"");
    for (command, policy, not) in [
        ("check", &limited, "not enforced here"),
        ("check", &by_groups, "not enforced here"),
        ("apply", &limited, "not enforced"),
    ] {
        let said = fief(&[command, write_policy(policy)?])?;
        if !said.contains(&format!("{not}: the scheduler {FOREIGN} has the CPUs")) {
            return Err(format!("{command} says {said}"));
        }
    }
    if schedule::attached().as_deref() != Some(FOREIGN) {
        return Err(format!("{:?} has the CPUs", schedule::attached()));
    }
    other.end().map_err(text)?;
    must(false)?;
    let said = fief(&["apply", write_policy(&limited)?])?;
    if said.contains("not enforced") {
        return Err(said);
    }
    must(true)?;
    match schedule::attached().as_deref() {
        Some("fief") => Ok(format!("{FOREIGN}, and fief after it")),
        other => Err(format!("{other:?} has the CPUs")),
    }
}

fn recovers() -> Found {
    apply(&WITH)?;
    must(true)?;
    // the operator's way out of a scheduler (Documentation/scheduler/sched-ext.rst)
    std::fs::write("/proc/sysrq-trigger", "S").map_err(text)?;
    let since = Instant::now();
    while is_on()? {
        if since.elapsed() > DEADLINE {
            return Err("the kernel keeps it".into());
        }
    }
    let shown = fief(&["show", "a"])?;
    let told = shown.lines().find(|line| line.contains("took the scheduler out")).ok_or(shown.clone())?.to_owned();
    if !told.contains("sysrq") {
        return Err(told);
    }
    let said = apply(&WITH)?;
    if !said.contains("turned on again") {
        return Err(said);
    }
    must(true)?;
    Ok(told)
}

fn is_replaced() -> Found {
    apply(&WITH)?;
    must(true)?;
    pretend_another_build(&Pins::from_env().map_err(text)?).map_err(text)?;
    let said = apply(&WITH)?;
    must(true)?;
    let told = said.lines().find(|line| line.contains("had the CPUs for"));
    told.map(str::to_owned).ok_or_else(|| format!("apply says {said}"))
}

fn turns(times: u32) -> Found {
    let _busy = start(&[("a", 2)])?;
    let (mut off, mut on) = (Duration::ZERO, Duration::ZERO);
    for _ in 0..times {
        off += taken(|| apply(&WITHOUT))?;
        must(false)?;
        on += taken(|| apply(&WITH))?;
        must(true)?;
    }
    Ok(format!("{times} times; off took {} and on {} each", each(off, times), each(on, times)))
}

/// Without `fief apply`, and beside threads that leave nearly all of the CPUs to what the kernel has to do for it.
fn turns_alone(times: u32) -> Found {
    // else it tells each time what of the operations this kernel does not know
    libbpf_rs::set_print(Some((PrintLevel::Warn, |_, said| eprint!("{said}"))));
    apply(&WITH)?;
    let busy = start(&[("a", 2)])?;
    busy.iter().try_for_each(|one| renice(one.pid(), 19))?;
    let pins = Pins::from_env().map_err(text)?;
    schedule::remove(&pins).map_err(text)?;
    must(false)?;
    let without = Left::with_deadline()?;
    let (mut off, mut on) = (Duration::ZERO, Duration::ZERO);
    for turn in 0..times {
        on += taken(|| schedule::install(&pins))?;
        must(true)?;
        if turn == 0 {
            Left::must_be_seen()?;
        }
        off += taken(|| schedule::remove(&pins))?;
        must(false)?;
    }
    let left = Left::with_deadline()?;
    if left.pins != without.pins {
        return Err(format!("{} pins became {}", without.pins, left.pins));
    }
    schedule::install(&pins).map_err(text)?;
    let gap = schedule::upgrade(&pins).map_err(text)?.ok_or("it was not on before an upgrade")?;
    must(true)?;
    apply(&WITH)?;
    must(true)?;
    let (off, on) = (each(off, times), each(on, times));
    Ok(format!(
        "{times} times; off took {off} and on {on} each; an upgrade leaves a gap of {:.1} ms",
        gap.as_secs_f64() * 1e3
    ))
}

fn taken<T, E: std::fmt::Display>(work: impl FnOnce() -> Result<T, E>) -> Result<Duration, String> {
    let begin = Instant::now();
    work().map_err(text)?;
    Ok(begin.elapsed())
}

fn each(all: Duration, times: u32) -> String {
    format!("{:.1} s", all.as_secs_f64() / f64::from(times.max(1)))
}

/// What the kernel has of a scheduler, by what nothing else has in a guest, and all pins of the installation.
#[derive(Debug)]
pub struct Left {
    programs: usize,
    maps: usize,
    links: usize,
    pub pins: usize,
}

impl Left {
    fn now() -> Self {
        let is_programs = |ty: ProgramType, name: &OsStr| ty == ProgramType::StructOps || name == "threads_tell";
        Self {
            programs: ProgInfoIter::default().filter(|one| is_programs(one.ty, &one.name)).count(),
            maps: MapInfoIter::default().filter(|one| one.name.to_string_lossy().starts_with("sched_")).count(),
            links: LinkInfoIter::default().filter(|one| matches!(one.info, LinkTypeInfo::StructOps(_))).count(),
            pins: pins_below(Path::new(PINS)),
        }
    }

    /// Once none of its programs, maps and links is there: the kernel frees them some time after they are let go of.
    pub fn with_deadline() -> Result<Self, String> {
        let since = Instant::now();
        loop {
            let left = Self::now();
            if (left.programs, left.maps, left.links) == (0, 0, 0) {
                return Ok(left);
            }
            if since.elapsed() > DEADLINE {
                return Err(format!("{left:?}"));
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// While it is on. What is not found then would be missed in vain later.
    pub fn must_be_seen() -> Result<(), String> {
        let left = Self::now();
        let is_seen = left.programs > 1 && left.maps > 1 && left.links == 1;
        if is_seen { Ok(()) } else { Err(format!("while it is on there are {left:?}")) }
    }
}

fn pins_below(folder: &Path) -> usize {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    entries.map(|entry| 1 + if entry.path().is_dir() { pins_below(&entry.path()) } else { 0 }).sum()
}

fn gives_back() -> Found {
    fief(&["down"])?;
    must(false)?;
    if Path::new(PINS).exists() { Err("pins are left".into()) } else { Ok("the kernel's own has them".into()) }
}
