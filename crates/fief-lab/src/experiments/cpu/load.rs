// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Processes that compute without end, each for a container; and what their own clocks say.

use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::time::{clock_getcpuclockid, clock_gettime};
use nix::unistd::Pid;

use crate::command::{PolicyFile, child, fief};
use crate::error::{Context, Error, Kind, Result};
use crate::installation::Installation;

/// A container of the policy with its processes.
#[derive(Clone, Copy, Debug)]
pub struct Load {
    pub container: &'static str,
    /// Its lines in the policy.
    pub given: &'static str,
    pub processes: usize,
    /// Percent of the machine that it must get.
    pub expected: f64,
}

/// The child's main: computes until it is killed.
pub fn spin_main() -> Result<()> {
    let mut step = 0u64;
    loop {
        step = std::hint::black_box(step.wrapping_add(1));
    }
}

/// What a process had of the CPUs by its own clock.
pub fn used(process: Pid) -> Result<Duration> {
    let clock = clock_getcpuclockid(process).context("the clock of a process")?;
    clock_gettime(clock).map(Duration::from).context("read the clock of a process")
}

/// From outside, as an operator does.
pub fn bind(process: Pid, container: &str) -> Result<()> {
    fief_testkit::run(fief()?.args(["bind", &process.to_string(), container])).map(drop).map_err(Error::from)
}

/// Killed with the guard.
#[derive(Debug)]
pub struct Spinner {
    process: Child,
}

impl Spinner {
    /// It is stopped until it is let go on.
    pub fn start(container: &str) -> Result<Spinner> {
        // what binding the others needs would be taken from its part of the machine
        let spinner = Spinner::stopped()?;
        bind(spinner.pid(), container)?;
        Ok(spinner)
    }

    /// In no container; stopped likewise.
    pub fn stopped() -> Result<Spinner> {
        let process = child("lab-spin")?.stdin(Stdio::null()).spawn().context("start a process that computes")?;
        let spinner = Spinner { process };
        spinner.stop()?;
        Ok(spinner)
    }

    pub fn pid(&self) -> Pid {
        Pid::from_raw(self.process.id() as i32)
    }

    pub fn go_on(&self) -> Result<()> {
        kill(self.pid(), Signal::SIGCONT).context("let a process go on")
    }

    pub fn stop(&self) -> Result<()> {
        kill(self.pid(), Signal::SIGSTOP).context("stop a process")
    }

    pub fn used(&self) -> Result<Duration> {
        used(self.pid())
    }
}

impl Drop for Spinner {
    fn drop(&mut self) {
        // one that has ended is as good
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// One installation for all policies of an experiment: to load it anew takes an emulated machine half a minute.
#[derive(Debug, Default)]
pub struct Stand {
    installation: Option<Installation>,
}

impl Stand {
    fn apply(&mut self, policy: &PolicyFile) -> Result<()> {
        policy.check()?;
        match &self.installation {
            Some(installation) => installation.change(policy),
            None => {
                self.installation = Some(Installation::apply(policy)?);
                Ok(())
            }
        }
    }

    /// Takes it down.
    pub fn end(self) -> Result<()> {
        self.installation.map_or(Ok(()), Installation::down)
    }

    /// Puts these containers into force, each with its lines.
    pub fn give(&mut self, containers: &[(&str, &str)]) -> Result<()> {
        let mut text = "version = 1\nschedule = \"auto\"\n".to_owned();
        for (container, given) in containers {
            text.push_str(&format!("[container.\"{container}\"]\n{given}\n"));
        }
        self.apply(&PolicyFile::new(&text)?)?;
        require_scheduler(containers[0].0)
    }

    /// Percent of the machine by window and load.
    pub fn windows(&mut self, loads: &[Load], count: usize, length: Duration) -> Result<Vec<Vec<f64>>> {
        self.give(&loads.iter().map(|load| (load.container, load.given)).collect::<Vec<_>>())?;
        let windows = windows(loads, count, length, bind)?;
        require_scheduler(loads[0].container)?;
        Ok(windows)
    }
}

/// `put` has a process be in the container of its load.
pub fn windows(
    loads: &[Load],
    count: usize,
    length: Duration,
    put: impl Fn(Pid, &str) -> Result<()>,
) -> Result<Vec<Vec<f64>>> {
    let mut spinners = Vec::new();
    for load in loads {
        let start = |_| Spinner::stopped().and_then(|one| put(one.pid(), load.container).map(|()| one));
        spinners.push((0..load.processes).map(start).collect::<Result<Vec<_>>>()?);
    }
    spinners.iter().flatten().try_for_each(Spinner::go_on)?;
    // the start of the processes is not what is asked for
    std::thread::sleep(length.min(Duration::from_millis(500)));
    let cpus = std::thread::available_parallelism().context("count the CPUs")?.get() as f64;
    let used = || -> Result<Vec<Duration>> {
        spinners.iter().map(|own| own.iter().map(Spinner::used).sum::<Result<Duration>>()).collect()
    };
    let mut windows = Vec::new();
    let (mut before, mut begin) = (used()?, Instant::now());
    for _ in 0..count {
        std::thread::sleep(length);
        let (after, end) = (used()?, Instant::now());
        let passed = (end - begin).as_secs_f64() * cpus;
        let part = |(after, before): (&Duration, &Duration)| (*after - *before).as_secs_f64() * 100.0 / passed;
        windows.push(after.iter().zip(&before).map(part).collect());
        (before, begin) = (after, end);
    }
    Ok(windows)
}

/// The mean of each load over all windows, which are as long as each other.
pub fn means(windows: &[Vec<f64>]) -> Vec<f64> {
    let loads = windows.first().map_or(0, Vec::len);
    (0..loads).map(|load| windows.iter().map(|window| window[load]).sum::<f64>() / windows.len() as f64).collect()
}

/// The largest distance from what each load must get.
pub fn error_points(found: &[f64], loads: &[Load]) -> f64 {
    found.iter().zip(loads).map(|(found, load)| (found - load.expected).abs()).fold(0.0, f64::max)
}

/// Errors: nobody holds the shares; a figure would be of the kernel's own scheduler.
fn require_scheduler(container: &str) -> Result<()> {
    let text = fief_testkit::run(fief()?.args(["show", container, "--json"])).map_err(Error::from)?;
    let shown: serde_json::Value = serde_json::from_str(&text).context("read what fief shows")?;
    match shown["cpu_enforced_by"].as_str() {
        Some("scheduler") => Ok(()),
        _ => Err(Error::new(
            Kind::Missing,
            format!(
                "Fief's scheduler does not have the CPUs ({}); `fief lab NAME --vm` boots a kernel that has it",
                shown["cpu_not_enforced"].as_str().unwrap_or("cgroups divide them")
            ),
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_error_is_that_of_the_worst_load() {
        let load = |expected| Load { container: "a", given: "", processes: 1, expected };
        let found = means(&[vec![10.0, 20.0], vec![20.0, 22.0]]);
        assert_eq!(found, [15.0, 21.0]);
        assert!((error_points(&found, &[load(16.0), load(20.5)]) - 1.0).abs() < 1e-9);
    }
}
