// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A process whose one thread serves containers in turn, as it is told to line by line.

use std::io::{BufRead, BufReader, Write, stdin};
use std::os::fd::AsFd;
use std::process::{ChildStdin, ChildStdout, Stdio};
use std::time::Duration;

use fief::Container;
use fief_testkit::Process;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::time::{ClockId, clock_gettime};
use nix::unistd::Pid;

use super::load::{bind, used};
use crate::command::{fief, own};
use crate::error::{Context, Error, Kind, Result};

/// What the thread works for one container before it goes on to the next.
const TURN: Duration = Duration::from_millis(1);

/// Takes the containers that it is bound to from outside (`take`), works for some of them, by number, each in turn (`serve 0 1`),
/// or for one, and forgets the others (`forget 1`). Each line is answered by one.
pub fn serve_main() -> Result<()> {
    let mut taken = Vec::new();
    let mut served: Vec<usize> = Vec::new();
    let mut line = String::new();
    println!("{}", std::process::id());
    for turn in 0.. {
        if served.is_empty() || is_told()? {
            line.clear();
            if stdin().lock().read_line(&mut line).context("hear what to do")? == 0 {
                return Ok(());
            }
            obey(&line, &mut taken, &mut served)?;
            println!("done");
            std::io::stdout().flush().context("answer")?;
        }
        if let Some(next) = served.get(turn % served.len().max(1)) {
            taken[*next].bind_thread().context("serve a container")?;
            spin(TURN)?;
        }
    }
    Ok(())
}

fn obey(line: &str, taken: &mut Vec<Container>, served: &mut Vec<usize>) -> Result<()> {
    let mut words = line.split_whitespace();
    let verb = words.next().unwrap_or_default();
    let numbers: Vec<usize> = words.filter_map(|word| word.parse().ok()).filter(|at| *at < taken.len()).collect();
    match (verb, &numbers[..]) {
        ("take", []) => taken.push(fief::open_current().context("open the thread's container")?),
        ("serve", [_, ..]) => *served = numbers,
        ("forget", [only]) => {
            taken[*only].bind_thread().context("serve a container")?;
            fief::reset_scheduler_binding(&taken[*only]).context("forget the others")?;
            *served = numbers;
        }
        ("rest", []) => served.clear(),
        _ => return Err(Error::new(Kind::Usage, format!("no such order: {line:?}"))),
    }
    Ok(())
}

fn is_told() -> Result<bool> {
    let input = stdin();
    let mut polled = [PollFd::new(input.as_fd(), PollFlags::POLLIN)];
    Ok(poll(&mut polled, PollTimeout::ZERO).context("ask for what to do")? > 0)
}

/// Computes for so long by the thread's own clock.
fn spin(length: Duration) -> Result<()> {
    let now = || clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID).map(Duration::from).context("the thread's clock");
    let begin = now()?;
    while now()? - begin < length {}
    Ok(())
}

/// Such a process, in the unit that `fief exec` makes for it. Ended with the guard.
#[derive(Debug)]
pub struct Server {
    process: Process,
    orders: ChildStdin,
    answers: BufReader<ChildStdout>,
    pid: Pid,
}

impl Server {
    /// Its home is the first of the containers that it can serve.
    pub fn start(containers: &[&str]) -> Result<Server> {
        let mut command = fief()?;
        command.args(["exec", "--container", containers[0], "--no-follow", "--"]).arg(own()?).arg("lab-serves");
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut process = Process::start(command)?;
        let orders = process.child().stdin.take().expect("it was piped");
        let answers = BufReader::new(process.child().stdout.take().expect("it was piped"));
        let mut server = Server { process, orders, answers, pid: Pid::from_raw(0) };
        server.pid = server.hear()?.parse().map(Pid::from_raw).map_err(|_| Error::failed("it told no number"))?;
        for container in containers {
            bind(server.pid, container)?;
            server.tell("take")?;
        }
        Ok(server)
    }

    /// Returns once it has done so.
    pub fn tell(&mut self, order: &str) -> Result<()> {
        writeln!(self.orders, "{order}").context("tell the process what to do")?;
        match self.hear()?.as_str() {
            "done" => Ok(()),
            other => Err(Error::failed(format!("the process said {other:?}"))),
        }
    }

    fn hear(&mut self) -> Result<String> {
        let mut line = String::new();
        self.answers.read_line(&mut line).context("hear the process")?;
        Ok(line.trim().to_owned())
    }

    pub fn used(&self) -> Result<Duration> {
        used(self.pid)
    }

    pub fn end(self) -> Result<()> {
        drop(self.orders);
        self.process.finish(crate::command::DOWN).map(drop).map_err(Error::from)
    }
}
