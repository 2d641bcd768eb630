// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The checks of the division of the CPU by cgroups of version 2, as the processes' own clocks show it.

use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::command::{fief, objects, write_policy};
use crate::report::{Found, Report, text};
use crate::schedule::{Verb, near, percents, start_by};
use crate::types;

/// The groups of the installation.
const ROOT: &str = "/sys/fs/cgroup/fief/fief";
/// For what happens by itself, in the guest's time.
const DEADLINE: Duration = Duration::from_secs(300);

pub fn check(report: &mut Report) {
    report.check("cgroups hold what a policy says where the kernel takes no schedulers", stands_in);
    report.check("cgroups hold shares", holds_shares);
    report.check("cgroups hold shares at two levels, beside processes of the inner container", holds_two_levels);
    report.check("cgroups hold a limit for 1 and 4 processes", holds_limits);
    report.check("a policy without shares takes the division back", takes_back);
    report.check("down leaves no cgroup", leaves_none);
    report.check("copies under run are in the groups of their classes", places_copies);
}

fn apply(schedule: &str, containers: &[(&str, &str)]) -> Result<String, String> {
    let mut policy = format!("version = 1\nschedule = \"{schedule}\"\n");
    for (name, given) in containers {
        policy.push_str(&format!("[container.\"{name}\"]\n{given}\n"));
    }
    fief(&["apply", write_policy(&policy)?])
}

fn by() -> Result<String, String> {
    let status = objects(&["status"])?;
    Ok(status.first().map(|one| one["cpu_enforced_by"].to_string()).unwrap_or_default())
}

fn stands_in() -> Found {
    let said = apply("auto", &[("a", "cpu.share = \"10%\"")])?;
    let found = by()?;
    let takes = Path::new("/sys/kernel/sched_ext").exists();
    let groups = "\"cgroup-v2\"";
    let is_right = match takes {
        true => found == "\"scheduler\"" || (found == groups && types::broken().is_some()),
        false => found == groups,
    };
    if is_right { Ok(found) } else { Err(format!("{found}: {said}")) }
}

fn holds_shares() -> Found {
    let names = ["a", "b", "c", "d"];
    let shares = ["16%", "32%", "48%", "4%"].map(|share| format!("cpu.share = \"{share}\""));
    let containers: Vec<_> = names.iter().zip(&shares).map(|(name, share)| (*name, share.as_str())).collect();
    apply("cgroup", &containers)?;
    let spinners = start_by(Verb::Manage, &names.map(|name| (name, 2)))?;
    near(&percents(&names, &[&spinners])?, &[16.0, 32.0, 48.0, 4.0], 3.0)
}

fn holds_two_levels() -> Found {
    let names = ["g", "g/x", "h"];
    apply("cgroup", &[("g", "cpu.share = \"60%\""), ("g/x", "cpu.share = \"45%\""), ("h", "cpu.share = \"40%\"")])?;
    let spinners = start_by(Verb::Manage, &names.map(|name| (name, 2)))?;
    near(&percents(&names, &[&spinners])?, &[15.0, 45.0, 40.0], 3.0)
}

fn holds_limits() -> Found {
    apply("cgroup", &[("a", "cpu.limit = \"10%\""), ("b", "cpu.limit = \"30%\"")])?;
    let spinners = start_by(Verb::Manage, &[("a", 1), ("b", 4)])?;
    near(&percents(&["a", "b"], &[&spinners])?, &[10.0, 30.0], 2.0)
}

fn takes_back() -> Found {
    apply("cgroup", &[("a", "cpu.limit = \"10%\"")])?;
    let spinners = start_by(Verb::Manage, &[("a", 2)])?;
    apply("cgroup", &[("a", "")])?;
    if by()? != "null" {
        return Err(by()?);
    }
    near(&percents(&["a"], &[&spinners])?, &[100.0], 10.0)
}

/// Killed with the guard.
struct Run(Child);

impl Drop for Run {
    fn drop(&mut self) {
        // one that has ended is as good
        let _ = kill(Pid::from_raw(self.0.id() as i32), Signal::SIGTERM);
        let _ = self.0.wait();
    }
}

fn wait(what: &str, found: impl Fn() -> bool) -> Result<(), String> {
    let begin = Instant::now();
    while !found() {
        if begin.elapsed() > DEADLINE {
            return Err(what.to_owned());
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    Ok(())
}

fn places_copies() -> Found {
    let policy = "version = 1\nschedule = \"cgroup\"\n\
                  [container.\"shop/gold\"]\ncpu.share = \"60%\"\n[container.\"shop/tin\"]\ncpu.share = \"20%\"\n\
                  [listener.web]\naddress = \"127.0.0.9:8099\"\ncopies = \"per-class\"\n\
                  [[listener.web.client]]\nfrom = [\"10.0.0.0/8\"]\ncontainer = \"shop/gold\"\n\
                  [[listener.web.client]]\nfrom = [\"any\"]\ncontainer = \"shop/tin\"\n";
    let program = std::env::current_exe().map_err(text)?;
    let mut command = Command::new("fief");
    command.args(["run", write_policy(policy)?, "--"]).arg(program).arg("spin").stdin(Stdio::null());
    let run = Run(command.spawn().map_err(text)?);
    for class in ["gold", "tin"] {
        let file = format!("{ROOT}/@shop/@{class}/own/shop-{class}/cgroup.procs");
        let comes = || std::fs::read_to_string(&file).is_ok_and(|text| !text.trim().is_empty());
        wait(&format!("nobody is in {file}"), comes)?;
    }
    drop(run);
    wait("the groups stay", || !Path::new(ROOT).exists())?;
    Ok("two copies".to_owned())
}

fn leaves_none() -> Found {
    apply("cgroup", &[("a", "cpu.limit = \"10%\"")])?;
    let spinners = start_by(Verb::Manage, &[("a", 1)])?;
    if !Path::new(ROOT).join("@a/own").exists() {
        return Err("there is none before".to_owned());
    }
    fief(&["down"])?;
    if Path::new("/sys/fs/cgroup/fief").exists() {
        return Err("the folder is there".to_owned());
    }
    drop(spinners);
    Ok("none".to_owned())
}
