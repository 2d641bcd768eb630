// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The process that has the rings: it makes what it is told to and measures when it is asked, one line for each.

use std::io::{BufRead, BufReader, Write, stdin};
use std::process::{ChildStdin, ChildStdout, Command, Stdio};

use fief::{Container, Options};
use fief_testkit::{Process, cpus, pin};
use nix::sys::resource::{Resource, setrlimit};
use serde::{Deserialize, Serialize};

use super::ring::{Lapped, Ring, pipe_alone};
use super::{operations, side};
use crate::command::{DOWN, child, fief, own};
use crate::error::{Context, Error, Result};
use crate::experiments::primitives::tell;

/// Of the containers, in turn.
const WEIGHTS: [u32; 3] = [50, 100, 200];
/// Descriptors beside those of the containers.
const DESCRIPTORS: u64 = 1000;

#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum Order {
    /// So many containers, and a ring of each size, spread over them, in the place of what was made before. 0: nobody is bound.
    Make {
        containers: usize,
        processes: Vec<usize>,
    },
    Measure {
        operations: bool,
    },
}

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Answer {
    /// Of a pipe without a switch.
    pub pipe_ns: f64,
    pub rings: Vec<Lapped>,
    /// ns by name.
    pub operations: Vec<(String, f64)>,
}

/// The child's main.
pub fn child_main() -> Result<()> {
    pin(0, cpus()[0])?;
    let (mut containers, mut rings) = (Vec::new(), Vec::new());
    for line in stdin().lock().lines() {
        let line = line.context("hear what to do")?;
        match serde_json::from_str(&line).context("read what to do")? {
            Order::Make { containers: count, processes } => {
                rings.clear();
                make(&mut containers, count)?;
                for processes in processes {
                    rings.push(Ring::start(processes, &containers)?);
                }
                tell(&Answer::default())?;
            }
            Order::Measure { operations } => tell(&measure(&rings, operations)?)?,
        }
    }
    Ok(())
}

/// So many, each with a weight; this process works for the first.
fn make(containers: &mut Vec<Container>, count: usize) -> Result<()> {
    let most = count as u64 + DESCRIPTORS;
    setrlimit(Resource::RLIMIT_NOFILE, most, most).context("allow more descriptors")?;
    while containers.len() < count {
        let weight = WEIGHTS[containers.len() % WEIGHTS.len()];
        if let Some(first) = containers.first() {
            // beside the first one, not below it
            fief::unbind(first).context("leave a container")?;
        }
        containers.push(Options::new().weight(weight).create().context("make a container")?);
    }
    containers.first().map_or(Ok(()), |first| first.bind_thread().context("work for a container"))
}

fn measure(rings: &[Ring], operations: bool) -> Result<Answer> {
    let pipe_ns = pipe_alone()?;
    let rings = rings.iter().map(Ring::measure).collect::<Result<Vec<_>>>()?;
    let mut answer = Answer { pipe_ns, rings, operations: Vec::new() };
    if operations {
        answer.operations = operations::measure()?;
        answer.operations.extend(operations::round_trip(&answer.rings));
    }
    Ok(answer)
}

/// Ended with the guard, and its rings with it.
#[derive(Debug)]
pub struct Worker {
    process: Process,
    orders: ChildStdin,
    answers: BufReader<ChildStdout>,
}

impl Worker {
    /// Nobody manages it.
    pub fn plain() -> Result<Worker> {
        Worker::start(child(WORD)?)
    }

    /// In the unit that `fief exec` makes for it.
    pub fn managed() -> Result<Worker> {
        let mut command = fief()?;
        command.args(["exec", "--container", side::HOME, "--no-follow", "--"]).arg(own()?).arg(WORD);
        Worker::start(command)
    }

    fn start(mut command: Command) -> Result<Worker> {
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut process = Process::start(command)?;
        let orders = process.child().stdin.take().expect("it was piped");
        let answers = BufReader::new(process.child().stdout.take().expect("it was piped"));
        Ok(Worker { process, orders, answers })
    }

    /// Returns once it has done so.
    pub fn ask(&mut self, order: &Order) -> Result<Answer> {
        let order = serde_json::to_string(order).context("write down an order")?;
        writeln!(self.orders, "{order}").context("tell the worker what to do")?;
        let mut line = String::new();
        match self.answers.read_line(&mut line).context("hear the worker")? {
            0 => Err(Error::failed("the worker has ended; its own words are above")),
            _ => serde_json::from_str(&line).context("read what the worker says"),
        }
    }

    pub fn end(self) -> Result<()> {
        drop(self.orders);
        self.process.finish(DOWN).map(drop).map_err(Error::from)
    }
}

const WORD: &str = "lab-switches";
