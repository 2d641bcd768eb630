// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A child process with all its descendants, ended when its guard is dropped.
//!
//! The child leads a process group of its own, so that the workers of a server end with it and Ctrl-C in the terminal
//! reaches only the program that holds the guard.

use crate::{Error, Kind, Result, wait_until};
use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;
use std::io::Read;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::time::Duration;

#[derive(Debug)]
pub struct Process {
    child: Child,
    name: String,
    /// How long it has to end by itself when the guard is dropped.
    grace: Option<Duration>,
}

impl Process {
    /// Starts the command in a process group of its own.
    pub fn start(mut command: Command) -> Result<Process> {
        let name = command.get_program().to_string_lossy().into_owned();
        let child = command.process_group(0).spawn().map_err(|error| Error::io(format!("start {name}"), error))?;
        Ok(Process { child, name, grace: None })
    }

    /// The dropped guard asks it to end, and kills it after the deadline: what a killed `fief run` had in force would stay.
    pub fn ask_first(&mut self, deadline: Duration) {
        self.grace = Some(deadline);
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// The child, for its pipes.
    pub fn child(&mut self) -> &mut Child {
        &mut self.child
    }

    /// The exit status if it has ended.
    pub fn try_wait(&mut self) -> Option<ExitStatus> {
        self.child.try_wait().ok().flatten()
    }

    /// Waits for the end; `standard output` is read if it was piped.
    pub fn finish(mut self, deadline: Duration) -> Result<Output> {
        // A full pipe would keep the child from ending, so it is drained aside.
        let pipe = self.child.stdout.take();
        let reader = std::thread::spawn(move || {
            let mut bytes = Vec::new();
            if let Some(mut pipe) = pipe {
                let _ = pipe.read_to_end(&mut bytes);
            }
            bytes
        });
        let mut status = None;
        wait_until(deadline, || {
            status = self.try_wait();
            status.is_some()
        })
        .map_err(|_| Error::new(Kind::Deadline, format!("{} did not end within {deadline:?}", self.name)))?;
        self.kill_group(Signal::SIGKILL);
        let stdout = reader.join().unwrap_or_default();
        Ok(Output { status: status.expect("wait_until saw a status"), stdout, stderr: Vec::new() })
    }

    /// Asks it to end, and makes it after the deadline.
    pub fn stop(mut self, deadline: Duration) -> Option<ExitStatus> {
        self.grace = None;
        self.ask(deadline)
    }

    fn ask(&mut self, deadline: Duration) -> Option<ExitStatus> {
        self.signal(Signal::SIGTERM);
        let mut status = None;
        let _ = wait_until(deadline, || {
            status = self.try_wait();
            status.is_some()
        });
        status
    }

    /// A signal to the child alone, not to its group.
    pub fn signal(&self, signal: Signal) {
        let _ = nix::sys::signal::kill(self.group(), signal);
    }

    fn group(&self) -> Pid {
        Pid::from_raw(self.child.id().cast_signed())
    }

    fn kill_group(&self, signal: Signal) {
        let _ = killpg(self.group(), signal);
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        if let Some(deadline) = self.grace
            && self.try_wait().is_none()
        {
            self.ask(deadline);
        }
        self.kill_group(Signal::SIGKILL);
        let _ = self.child.wait();
    }
}

/// Whether a process has not ended yet; one that nobody has waited for has.
pub fn lives(pid: u32) -> bool {
    let stat = std::fs::read(format!("/proc/{pid}/stat")).unwrap_or_default();
    // the name is in parentheses and may hold anything; the state follows it
    String::from_utf8_lossy(&stat).rsplit_once(") ").is_some_and(|(_, rest)| !rest.starts_with(['Z', 'X']))
}

/// Runs a command to its end; its standard output, or an error with what it said.
pub fn run(command: &mut Command) -> Result<String> {
    let name = format!("{command:?}");
    let output = command.stdin(Stdio::null()).output().map_err(|error| Error::io(format!("start {name}"), error))?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    let said = String::from_utf8_lossy(&output.stderr);
    Err(Error::failed(format!("{name} ended with {}: {}", output.status, said.trim())))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dropping_the_guard_ends_the_child_and_its_children() {
        let mut command = Command::new("sh");
        command.args(["-c", "sleep 1000 & echo $!; wait"]).stdout(Stdio::piped());
        let mut process = Process::start(command).expect("sh starts");
        let mut line = [0; 32];
        let length = process.child().stdout.take().expect("piped").read(&mut line).expect("a pid");
        let inner: u32 = String::from_utf8_lossy(&line[..length]).trim().parse().expect("a pid");
        drop(process);
        // The orphan is reaped by init, which may take a moment.
        wait_until(Duration::from_secs(10), || !lives(inner)).expect("the grandchild ends");
    }

    #[test]
    fn who_was_not_waited_for_has_ended() {
        let mut child = Command::new("true").spawn().expect("true");
        wait_until(Duration::from_secs(10), || !lives(child.id())).expect("it ends");
        child.wait().expect("it was started here");
        assert!(!lives(child.id()) && lives(std::process::id()));
    }

    #[test]
    fn a_failed_command_says_what_it_said() {
        let error = run(Command::new("sh").args(["-c", "echo no such thing >&2; exit 3"])).expect_err("exit 3");
        assert!(error.to_string().contains("no such thing"), "{error}");
    }
}
