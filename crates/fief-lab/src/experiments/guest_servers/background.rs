// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A program that computes in the background, in as many threads as it is told.

use std::io::{BufRead, BufReader, Write, stdin};
use std::process::{ChildStdin, Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::Thread;

use fief_testkit::{Process, Topology, pin_command};

use crate::command::{DOWN, own};
use crate::cpu_time::cpu_seconds;
use crate::error::{Context, Error, Kind, Result};

/// How many threads compute; those beyond it rest.
static COMPUTING: AtomicUsize = AtomicUsize::new(0);
/// From one look at that number to the next.
const STEPS: u32 = 10_000;

/// The child's main: tells its number, then obeys a line for each number of threads, until its input ends.
pub fn background_main() -> Result<()> {
    println!("{}", std::process::id());
    std::io::stdout().flush().context("tell the number of the process")?;
    let mut threads: Vec<Thread> = Vec::new();
    for line in stdin().lock().lines() {
        let line = line.context("hear how many threads are to compute")?;
        let wanted: usize = line.trim().parse().map_err(|_| Error::new(Kind::Usage, format!("no number: {line:?}")))?;
        COMPUTING.store(wanted, Ordering::Relaxed);
        while threads.len() < wanted {
            let number = threads.len();
            threads.push(std::thread::spawn(move || compute(number)).thread().clone());
        }
        threads.iter().for_each(Thread::unpark);
    }
    Ok(())
}

/// Ends with the process.
fn compute(number: usize) {
    loop {
        match number < COMPUTING.load(Ordering::Relaxed) {
            true => (0..STEPS).for_each(|step| {
                std::hint::black_box(step);
            }),
            false => std::thread::park(),
        }
    }
}

/// Ends with its guard.
#[derive(Debug)]
pub struct Background {
    process: Process,
    orders: ChildStdin,
    pid: u32,
}

impl Background {
    /// Nothing computes yet. `command` makes the command of the program's words.
    pub fn start(command: impl FnOnce(Vec<std::ffi::OsString>) -> Result<Command>) -> Result<Background> {
        let mut command = command([own()?.into(), "lab-background".into()].to_vec())?;
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        pin_command(&mut command, Topology::server_cpu());
        let mut process = Process::start(command)?;
        process.ask_first(DOWN);
        let orders = process.child().stdin.take().expect("it was piped");
        let mut answer = String::new();
        let answers = process.child().stdout.take().expect("it was piped");
        BufReader::new(answers).read_line(&mut answer).context("hear the program in the background")?;
        let pid = answer.trim().parse().map_err(|_| Error::failed("the program in the background did not start"))?;
        Ok(Background { process, orders, pid })
    }

    pub fn compute(&mut self, threads: usize) -> Result<()> {
        writeln!(self.orders, "{threads}").context("tell the background what to do")
    }

    /// CPU time of all its threads up to now.
    pub fn seconds(&self) -> f64 {
        cpu_seconds(&[self.pid])
    }

    pub fn stop(self) -> Result<()> {
        drop(self.orders);
        self.process.finish(DOWN).map(drop).map_err(Error::from)
    }
}
