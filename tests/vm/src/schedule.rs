// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The checks of the scheduler: shares, limits and priorities as the processes' own clocks show them.

use std::io::Read;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::time::{clock_getcpuclockid, clock_gettime};
use nix::unistd::Pid;

use crate::command::{fief, write_policy};
use crate::report::{Found, Report, text};
use crate::types;

pub const STATE: &str = "/sys/kernel/sched_ext/state";
/// Long enough for many slices of each.
const WINDOW: Duration = Duration::from_secs(3);
const WINDOWS: usize = 3;
/// For what happens by itself, in the guest's time.
pub const DEADLINE: Duration = Duration::from_secs(300);

/// A short form of them: part of `make test`.
pub fn check_briefly(report: &mut Report) {
    report.check("a policy with shares turns the scheduler on, and one without turns it off", crate::turns::is_turned);
    report.check("shares are held", holds_shares);
    report.check("weights divide the rest", divides_by_weight);
    report.check("a thread that is bound anew is scheduled anew at once", follows_a_rebind);
    crate::inversion::check_briefly(report);
    crate::rounds::check(report);
    report.check("receive work above a limit is discarded", crate::flood::is_discarded);
    report.check("a CPU that goes and comes changes no share", crate::hotplug::is_borne);
    crate::turns::check_briefly(report);
}

/// All of them.
pub fn check(report: &mut Report) {
    if !Path::new(STATE).exists() {
        return; // cgroups hold them
    }
    if let Some(why) = refused() {
        return report.skip("Fief's scheduler", &why);
    }
    report.check("a policy with shares turns the scheduler on, and one without turns it off", crate::turns::is_turned);
    report.check("shares are held", holds_shares);
    report.check("weights divide the rest", divides_by_weight);
    report.check("shares are held at two levels, beside threads of the inner container", holds_two_levels);
    report.check("a limit is held for 1, 2 and 5 processes, alone and beside others", holds_limits);
    report.check("priority 0 has what nobody else wants", holds_priorities);
    report.check("a thread that is bound anew is scheduled anew at once", follows_a_rebind);
    crate::attributes::check(report);
    report.check("receive work above a limit is discarded", crate::flood::is_discarded);
    crate::combined::check(report);
    crate::changes::check(report);
    crate::connections::check(report);
    crate::inversion::check(report);
    crate::policies::check(report);
    crate::numbers::check(report);
    crate::rounds::check(report);
    crate::bombs::check(report);
    report.check("a CPU that goes and comes changes no share", crate::hotplug::is_borne);
    crate::turns::check(report);
}

/// Why nothing of it can be checked, on a kernel that takes schedulers and no program of Fief's.
fn refused() -> Option<String> {
    let is_on = apply(&[("a", "cpu.share = \"10%\"")]).and_then(|_| must(true)).is_ok();
    if is_on { None } else { types::broken() }
}

pub fn policy(containers: &[(&str, &str)]) -> String {
    let mut text = "version = 1\nschedule = \"auto\"\n".to_owned();
    for (name, given) in containers {
        text.push_str(&format!("[container.\"{name}\"]\n{given}\n"));
    }
    text
}

pub fn apply(containers: &[(&str, &str)]) -> Result<String, String> {
    fief(&["apply", write_policy(&policy(containers))?])
}

pub fn is_on() -> Result<bool, String> {
    Ok(std::fs::read_to_string(STATE).map_err(text)?.trim() == "enabled")
}

pub fn must(on: bool) -> Result<(), String> {
    let found = is_on()?;
    if found == on { Ok(()) } else { Err(format!("the scheduler is {}", if found { "on" } else { "off" })) }
}

/// A process that only computes, for a container; killed with the guard.
pub struct Spinner {
    process: Child,
    container: &'static str,
    verb: Verb,
}

/// How a process comes into its container.
#[derive(Clone, Copy)]
pub enum Verb {
    Bind,
    Manage,
    /// Managed, and what it does is for whom its sockets say.
    Follow,
}

impl Spinner {
    /// It is stopped until it is told to go on: what the other ones need to be bound would be taken from this part of the machine.
    fn start(container: &'static str, part: &str, verb: Verb) -> Result<Self, String> {
        Self::start_to(container, part, verb, Stdio::inherit())
    }

    fn start_to(container: &'static str, part: &str, verb: Verb, output: Stdio) -> Result<Self, String> {
        let program = std::env::current_exe().map_err(text)?;
        let mut command = Command::new(program);
        let process = command.arg(part).stdin(Stdio::null()).stdout(output).spawn().map_err(text)?;
        let mut spinner = Self { process, container, verb };
        spinner.signal(Signal::SIGSTOP)?;
        spinner.bind(container)?;
        Ok(spinner)
    }

    /// One that says something at its end, which this waits for.
    pub fn telling(
        container: &'static str,
        part: &str,
        prepare: impl Fn(Pid) -> Result<(), String>,
    ) -> Result<Self, String> {
        let spinner = Self::start_to(container, part, Verb::Bind, Stdio::piped())?;
        prepare(spinner.pid())?;
        spinner.signal(Signal::SIGCONT)?;
        Ok(spinner)
    }

    /// One that has the CPU of what the caller is bound to, and goes on with it at once.
    pub fn inheriting(name: &'static str) -> Result<Self, String> {
        let program = std::env::current_exe().map_err(text)?;
        let process = Command::new(program).arg("spin").stdin(Stdio::null()).stdout(Stdio::null()).spawn();
        Ok(Self { process: process.map_err(text)?, container: name, verb: Verb::Bind })
    }

    pub fn said(&mut self) -> Result<String, String> {
        let mut said = String::new();
        if let Some(mut output) = self.process.stdout.take() {
            output.read_to_string(&mut said).map_err(text)?;
        }
        Ok(said)
    }

    /// Lets it go on, and tells it to begin once it waits for that: before, the signal would end it.
    pub fn tell(&self) -> Result<(), String> {
        self.signal(Signal::SIGCONT)?;
        let since = Instant::now();
        while !self.waits_to_be_told() {
            if since.elapsed() > DEADLINE {
                return Err("it does not wait to be told".into());
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        self.signal(Signal::SIGUSR1)
    }

    /// Whether it is in sigtimedwait(), during which the kernel does not call the signal blocked.
    fn waits_to_be_told(&self) -> bool {
        let call = std::fs::read_to_string(format!("/proc/{}/syscall", self.pid())).unwrap_or_default();
        call.starts_with(&format!("{} ", nix::libc::SYS_rt_sigtimedwait))
    }

    pub fn pid(&self) -> Pid {
        Pid::from_raw(self.process.id() as i32)
    }

    pub fn signal(&self, signal: Signal) -> Result<(), String> {
        kill(self.pid(), signal).map_err(text)
    }

    fn bind(&mut self, container: &'static str) -> Result<(), String> {
        self.container = container;
        let pid = self.pid().to_string();
        match self.verb {
            Verb::Bind => fief(&["bind", &pid, container]),
            Verb::Manage => fief(&["manage", &pid, "--container", container]),
            Verb::Follow => fief(&["manage", &pid, "--follow", "--container", container]),
        }
        .map(drop)
    }

    /// By the kernel's own clock of it.
    pub fn used(&self) -> Result<Duration, String> {
        let clock = clock_getcpuclockid(self.pid()).map_err(text)?;
        clock_gettime(clock).map(Duration::from).map_err(text)
    }
}

impl Drop for Spinner {
    fn drop(&mut self) {
        // one that has ended is as good
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

pub fn start(containers: &[(&'static str, usize)]) -> Result<Vec<Spinner>, String> {
    start_by(Verb::Bind, containers)
}

/// One that is stopped as yet.
pub fn start_part(container: &'static str, part: &str) -> Result<Spinner, String> {
    Spinner::start(container, part, Verb::Bind)
}

/// The same, managed: it can make containers.
pub fn start_managed(container: &'static str, part: &str) -> Result<Spinner, String> {
    Spinner::start(container, part, Verb::Manage)
}

pub fn start_by(verb: Verb, containers: &[(&'static str, usize)]) -> Result<Vec<Spinner>, String> {
    let each = |(name, count): &(&'static str, usize)| {
        (0..*count).map(|_| Spinner::start(name, "spin", verb)).collect::<Vec<_>>()
    };
    let spinners: Vec<Spinner> = containers.iter().flat_map(each).collect::<Result<_, _>>()?;
    spinners.iter().try_for_each(|spinner| spinner.signal(Signal::SIGCONT))?;
    Ok(spinners)
}

/// Percent of the machine that the processes of each container got in a window.
pub fn percents(names: &[&str], spinners: &[&[Spinner]]) -> Result<Vec<f64>, String> {
    percents_in(WINDOW, names, spinners)
}

pub fn percents_in(window: Duration, names: &[&str], spinners: &[&[Spinner]]) -> Result<Vec<f64>, String> {
    std::thread::sleep(Duration::from_millis(300));
    let used = || -> Result<Vec<Duration>, String> {
        let of = |name: &&str| {
            spinners.iter().flat_map(|some| some.iter()).filter(|one| one.container == *name).map(Spinner::used).sum()
        };
        names.iter().map(of).collect()
    };
    let (before, begin) = (used()?, Instant::now());
    std::thread::sleep(window);
    let (after, passed) = (used()?, begin.elapsed().as_secs_f64());
    let cpus = nix::unistd::sysconf(nix::unistd::SysconfVar::_NPROCESSORS_ONLN).map_err(text)?.unwrap_or(1) as f64;
    let part = |(after, before): (&Duration, &Duration)| (*after - *before).as_secs_f64() * 100.0 / (passed * cpus);
    Ok(after.iter().zip(&before).map(part).collect())
}

pub fn near(found: &[f64], expected: &[f64], points: f64) -> Found {
    let shown = found.iter().map(|one| format!("{one:.2}")).collect::<Vec<_>>().join(" ");
    let worst = found.iter().zip(expected).map(|(found, expected)| (found - expected).abs()).fold(0.0, f64::max);
    let figures = format!("{shown} of {expected:?}, off by {worst:.2}");
    if worst <= points { Ok(figures) } else { Err(figures) }
}

/// [`near`] in one of some windows: a CPU that the host takes from the guest is charged to whom it had then, 70 ms of 6 s
/// are more than a point. What is not held is in none.
pub fn held(expected: &[f64], points: f64, measure: impl Fn() -> Result<Vec<f64>, String>) -> Found {
    for _ in 1..WINDOWS {
        if let Ok(figures) = near(&measure()?, expected, points) {
            return Ok(figures);
        }
    }
    near(&measure()?, expected, points)
}

fn holds_shares() -> Found {
    let names = ["a", "b", "c", "d"];
    apply(&[
        ("a", "cpu.share = \"16%\""),
        ("b", "cpu.share = \"32%\""),
        ("c", "cpu.share = \"48%\""),
        ("d", "cpu.share = \"4%\""),
    ])?;
    let spinners = start(&names.map(|name| (name, 2)))?;
    held(&[16.0, 32.0, 48.0, 4.0], 1.0, || percents(&names, &[&spinners]))
}

fn divides_by_weight() -> Found {
    let names = ["a", "b", "c"];
    apply(&[("a", "cpu.weight = 100"), ("b", "cpu.weight = 200"), ("c", "cpu.weight = 400")])?;
    let spinners = start(&names.map(|name| (name, 2)))?;
    held(&[100.0 / 7.0, 200.0 / 7.0, 400.0 / 7.0], 1.5, || percents(&names, &[&spinners]))
}

fn holds_two_levels() -> Found {
    let names = ["g/x", "g/y", "h/p", "h/q", "h"];
    apply(&[
        ("g", "cpu.share = \"50%\""),
        ("g/x", "cpu.share = \"35%\""),
        ("g/y", "cpu.share = \"15%\""),
        ("h", "cpu.share = \"50%\""),
        ("h/p", "cpu.weight = 100"),
        ("h/q", "cpu.weight = 300"),
    ])?;
    let spinners = start(&names.map(|name| (name, 2)))?;
    held(&[35.0, 15.0, 10.0, 30.0, 10.0], 1.5, || percents(&names, &[&spinners]))
}

fn holds_limits() -> Found {
    let mut all = Vec::new();
    apply(&[("limited", "cpu.limit = \"10%\""), ("free", "")])?;
    for others in [0, 2] {
        for count in [1, 2, 5] {
            let spinners = start(&[("limited", count), ("free", others)])?;
            let found = held(&[10.0], 0.6, || percents(&["limited"], &[&spinners]));
            all.push(found.map_err(|e| format!("{count} beside {others}: {e}"))?);
        }
    }
    Ok(all.join("; "))
}

fn holds_priorities() -> Found {
    apply(&[("zero", "cpu.priority = 0"), ("other", "")])?;
    // it is nobody's class, so it is what turns the scheduler on
    must(true)?;
    let zero = start(&[("zero", 3)])?;
    let part = || percents(&["zero"], &[&zero]);
    let alone = held(&[100.0], 3.0, part)?;
    let others = start(&[("other", 2)])?;
    let beside = held(&[0.0], 0.5, part)?;
    drop(others);
    let after = held(&[100.0], 3.0, part)?;
    Ok(format!("{alone} alone; {beside} beside others; {after} after them"))
}

fn follows_a_rebind() -> Found {
    apply(&[("limited", "cpu.limit = \"5%\""), ("free", "")])?;
    let mut spinners = start(&[("limited", 1)])?;
    let before = held(&[5.0], 0.6, || percents(&["limited"], &[&spinners]))?;
    spinners[0].bind("free")?;
    let freed = held(&[50.0], 3.0, || percents(&["free"], &[&spinners]))?;
    spinners[0].bind("limited")?;
    let again = held(&[5.0], 0.6, || percents(&["limited"], &[&spinners]))?;
    Ok(format!("{before}; one CPU of two: {freed}; {again}"))
}
