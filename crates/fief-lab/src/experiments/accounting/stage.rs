// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Where the accounting is watched: the testbed, and a worker in the server's namespace under `fief run`.

use super::worker::{Answer, Order};
use crate::command::{DOWN, PolicyFile, own};
use crate::error::{Context, Error, Result};
use fief_testkit::{Process, Topology};
use std::io::{BufRead, BufReader, Write};
use std::process::{ChildStdin, ChildStdout, Stdio};

/// A home for the worker; its containers are below.
const POLICY: &str = "version = 1\n\n[container.lab]\n";

#[derive(Debug)]
pub struct Stage {
    pub topology: Topology,
    process: Process,
    orders: ChildStdin,
    answers: BufReader<ChildStdout>,
    _policy: PolicyFile,
}

impl Stage {
    pub fn start() -> Result<Stage> {
        let topology = Topology::new()?;
        let policy = PolicyFile::new(POLICY)?;
        let program = own()?;
        let words = ["lab-accounting", "worker"].map(Into::into);
        let mut command = policy.run(&topology.server, program, words.into())?;
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut process = Process::start(command)?;
        process.ask_first(DOWN);
        let orders = process.child().stdin.take().expect("it was piped");
        let answers = BufReader::new(process.child().stdout.take().expect("it was piped"));
        let mut stage = Stage { topology, process, orders, answers, _policy: policy };
        stage.ask(&Order::Hello)?;
        Ok(stage)
    }

    /// Gives the worker an order and waits until it is done.
    pub fn ask(&mut self, order: &Order) -> Result<Answer> {
        self.tell(order)?;
        self.answer()
    }

    /// Gives the worker an order without waiting.
    pub fn tell(&mut self, order: &Order) -> Result<()> {
        let text = serde_json::to_string(order).context("write down an order")?;
        writeln!(self.orders, "{text}").context("tell the worker")
    }

    pub fn answer(&mut self) -> Result<Answer> {
        let mut line = String::new();
        let length = self.answers.read_line(&mut line).context("hear the worker")?;
        if length == 0 {
            return Err(Error::failed("the worker under `fief run` ended; its words are above"));
        }
        match serde_json::from_str(&line).context("read the worker's answer")? {
            Answer::Failed(why) => Err(Error::failed(why)),
            answer => Ok(answer),
        }
    }

    /// Ends the worker; an error if Fief did not come down in order.
    pub fn stop(self) -> Result<()> {
        match self.process.stop(DOWN) {
            Some(_) => Ok(()),
            None => Err(Error::failed(format!("fief run did not end within {DOWN:?}"))),
        }
    }
}
