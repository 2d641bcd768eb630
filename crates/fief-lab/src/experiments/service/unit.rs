// SPDX-License-Identifier: Apache-2.0 OR MIT
//! nginx as a service of systemd: in a cgroup of its own, which goes with its end and is made for its start.
//!
//! It is asked to end as Debian's unit does (SIGQUIT, 5 s), and started either as it is or by what the drop-in of `fief unit` says.

use super::policy::{REFUSED, home};
use super::{PORT, WATCHED};
use crate::command::{beside, scope};
use crate::error::{Context, Error, Result};
use fief_testkit::{Cgroup, NginxConfig, Process, Topology, pin_command, wait_ready, wait_until};
use nix::sys::signal::Signal;
use std::fs::{self, OpenOptions};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

const ENTER: &str = "echo $$ > \"$0/cgroup.procs\" && exec \"$@\"";
const GRACE: Duration = Duration::from_secs(5);
/// systemd hears of an end at once; who looks for it has to look often.
const LOOKS: Duration = Duration::from_micros(500);
const SOON: Duration = Duration::from_secs(20);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Start {
    Plain,
    /// `fief exec --here --container HOME -- nginx`
    DropIn,
    /// The same, under a policy whose listeners have `restart`.
    Waited,
}

impl Start {
    pub fn words(self) -> &'static str {
        match self {
            Self::Plain => "without Fief",
            Self::DropIn => "with Fief, without restart",
            Self::Waited => "with Fief",
        }
    }
}

/// Ends with its guard.
#[derive(Debug)]
pub struct Unit<'a> {
    topology: &'a Topology,
    start: Start,
    // before the cgroup
    process: Option<Process>,
    config: NginxConfig,
    slice: Cgroup,
    made: Instant,
}

impl<'a> Unit<'a> {
    /// It serves once this returns.
    pub fn start(topology: &'a Topology, start: Start) -> Result<Self> {
        let ports = [PORT, WATCHED].map(|port| port.to_string());
        let config = NginxConfig::listening(PORT, &ports.each_ref().map(String::as_str), 1, "")?;
        fs::write(config.folder().join(REFUSED), "served\n").context("write a file that is to be refused")?;
        let slice = Cgroup::new("service")?;
        let mut unit = Self { topology, start, process: None, config, slice, made: Instant::now() };
        unit.begin()?;
        Ok(unit)
    }

    pub fn cgroup(&self) -> PathBuf {
        self.slice.path().join("nginx.service")
    }

    /// When its cgroup was made last.
    pub fn made(&self) -> Instant {
        self.made
    }

    /// From the first word of its end until it serves again.
    pub fn restart(&mut self) -> Result<Duration> {
        let begun = Instant::now();
        self.end()?;
        self.begin()?;
        Ok(begun.elapsed())
    }

    fn begin(&mut self) -> Result<()> {
        let cgroup = self.cgroup();
        fs::create_dir(&cgroup).context(format!("make {}", cgroup.display()))?;
        self.made = Instant::now();
        let log = self.config.log();
        let said = OpenOptions::new().create(true).append(true).open(&log).context("write what a server says")?;
        let mut command = Command::new("sh");
        self.topology.server.enter(&mut command);
        command.args(["-c", ENTER]).arg(&cgroup);
        if self.start != Start::Plain {
            command.arg(beside("fief", "fief-cli")?).env("FIEF_SCOPE", scope());
            command.args(["exec", "--here", "--container", &home(0), "--"]);
        }
        command.arg("nginx").args(self.config.arguments());
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(said);
        pin_command(&mut command, Topology::server_cpu());
        let mut process = Process::start(command)?;
        wait_ready(&self.topology.server, &mut process, PORT, Some(&log))?;
        self.process = Some(process);
        Ok(())
    }

    fn end(&mut self) -> Result<()> {
        if let Some(mut process) = self.process.take() {
            process.signal(Signal::SIGQUIT);
            let asked = Instant::now();
            while process.try_wait().is_none() && asked.elapsed() < GRACE {
                std::thread::sleep(LOOKS);
            }
            // who has not ended is killed
        }
        let cgroup = self.cgroup();
        let gone = wait_until(SOON, || fs::remove_dir(&cgroup).is_ok() || !cgroup.exists());
        gone.map_err(|_| Error::failed(format!("{} is busy although its server has ended", cgroup.display())))
    }
}
