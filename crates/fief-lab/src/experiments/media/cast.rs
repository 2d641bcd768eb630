// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The processes of a case: a player and its display server, perhaps a second player that has the same server; and hogs.

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{ChildStdin, ChildStdout, Command, Stdio};
use std::time::Duration;

use fief_testkit::Process;
use nix::unistd::Pid;

use super::clip::Work;
use super::player::Played;
use crate::command::{DOWN, child, fief, own};
use crate::error::{Context, Error, Result};
use crate::experiments::cpu::{Spinner, used};

/// A process that tells its number, and answers each line by a line. Ended with the guard.
#[derive(Debug)]
struct Worker {
    process: Process,
    orders: ChildStdin,
    answers: BufReader<ChildStdout>,
    pid: Pid,
}

impl Worker {
    /// Under `home`, if there is one, it follows who asks it.
    fn start(home: Option<&str>, word: &str, socket: &Path, steps: usize) -> Result<Worker> {
        let mut command: Command = match home {
            Some(home) => {
                let mut command = fief()?;
                command.args(["exec", "--container", home, "--"]).arg(own()?).arg(word);
                command
            }
            None => child(word)?,
        };
        command.arg(socket).arg(steps.to_string()).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut process = Process::start(command)?;
        let orders = process.child().stdin.take().expect("it was piped");
        let answers = BufReader::new(process.child().stdout.take().expect("it was piped"));
        let mut worker = Worker { process, orders, answers, pid: Pid::from_raw(0) };
        worker.pid = worker.hear()?.parse().map(Pid::from_raw).map_err(|_| Error::failed("it told no number"))?;
        Ok(worker)
    }

    fn hear(&mut self) -> Result<String> {
        let mut line = String::new();
        self.answers.read_line(&mut line).context("hear a process")?;
        Ok(line.trim().to_owned())
    }

    fn end(self) -> Result<()> {
        drop(self.orders);
        self.process.finish(DOWN).map(drop).map_err(Error::from)
    }
}

#[derive(Debug)]
pub struct Cast {
    // the players end first, since the server ends with its last client
    player: Worker,
    other: Option<Worker>,
    display: Worker,
    _folder: tempfile::TempDir,
}

impl Cast {
    /// In the containers, and otherwise groups, of the one that starts it; under `home`, if there is one, by `fief exec`.
    pub fn start(work: Work, home: Option<&str>, with_other: bool) -> Result<Cast> {
        let folder = tempfile::tempdir().context("make a folder for a socket")?;
        let socket = folder.path().join("display");
        let display = Worker::start(home, "lab-display", &socket, work.pixels)?;
        let player = || Worker::start(home, "lab-player", &socket, work.blocks);
        let other = if with_other { Some(player()?) } else { None };
        Ok(Cast { player: player()?, other, display, _folder: folder })
    }

    pub fn player(&self) -> Pid {
        self.player.pid
    }

    pub fn display(&self) -> Pid {
        self.display.pid
    }

    pub fn other(&self) -> Option<Pid> {
        self.other.as_ref().map(|other| other.pid)
    }

    /// What both, the player and its server, had of the CPU.
    pub fn used(&self) -> Result<Duration> {
        Ok(used(self.player.pid)? + used(self.display.pid)?)
    }

    /// The player plays, and so does the other one, each a frame in so long; what each of them saw. No period: as fast as it can.
    pub fn play(
        &mut self,
        length: Duration,
        period: Duration,
        other_period: Duration,
    ) -> Result<(Played, Option<Played>)> {
        let length_ms = length.as_millis();
        if let Some(other) = &mut self.other {
            writeln!(other.orders, "{length_ms} {}", other_period.as_micros()).context("tell a player what to do")?;
        }
        writeln!(self.player.orders, "{length_ms} {}", period.as_micros()).context("tell a player what to do")?;
        let read = |line: String| serde_json::from_str(&line).context("read what a player says");
        let played = read(self.player.hear()?)?;
        let other = self.other.as_mut().map(|other| other.hear().and_then(read)).transpose()?;
        Ok((played, other))
    }

    pub fn end(self) -> Result<()> {
        self.player.end()?;
        self.other.map_or(Ok(()), Worker::end)?;
        self.display.end()
    }
}

/// Those of them that compute do so while this lives.
#[derive(Debug)]
pub struct Computing<'a>(&'a [Spinner]);

impl<'a> Computing<'a> {
    pub fn begin(hogs: &'a [Spinner]) -> Result<Computing<'a>> {
        hogs.iter().try_for_each(Spinner::go_on)?;
        Ok(Computing(hogs))
    }
}

impl Drop for Computing<'_> {
    fn drop(&mut self) {
        for hog in self.0 {
            // one that has ended is as good
            let _ = hog.stop();
        }
    }
}
