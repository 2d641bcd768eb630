// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A stage without wake-ups between CPUs: what one request costs in CPU time, to some tenths of a microsecond.
//!
//! Problem: with the clients on another core a microsecond on the server's core costs four, since the waker pays, and
//! requests a second hang on who sleeps when.
//! How: server, clients and both ends' receiving threads are on one core, and one client asks at a time. The core never waits,
//! so the time of a batch of requests is CPU time. Batches of 5 ms are short enough that many meet neither the
//! hypervisor nor another program; a low quantile of them is what the request costs.
//! Limits: caches are shared by both sides, so a request costs less than over a network; differences are what it is for.

mod client;

pub use client::client_main;

use crate::error::{Context, Error, Result};
use crate::statistics::quantile;
use fief_testkit::{Cgroup, Nginx, NginxConfig, Process, Topology, napi_threads, pin, pin_command, set_fifo};
use serde::{Deserialize, Serialize};
use std::io::{BufRead, BufReader, Write};
use std::process::{ChildStdin, ChildStdout, Stdio};
use std::rc::Rc;
use std::time::Duration;

const PORT: u16 = 80;
/// For nginx: a persistent connection lasts.
pub const LASTING: &str = "keepalive_requests 1000000000;";
/// Of one batch.
const BATCH: Duration = Duration::from_millis(5);
/// The quantile of the batches that counts.
const LOW: f64 = 0.1;
const END: Duration = Duration::from_secs(20);

/// How the client asks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Manner {
    /// A connection for each request, which the client ends with RST.
    ConnectionEach,
    Persistent,
}

impl Manner {
    pub const ALL: [Manner; 2] = [Manner::ConnectionEach, Manner::Persistent];

    /// In [`Manner::ALL`].
    pub fn place(self) -> usize {
        self as usize
    }

    /// Ends the names of its figures.
    pub fn suffix(self) -> &'static str {
        match self {
            Manner::ConnectionEach => "",
            Manner::Persistent => "_persistent",
        }
    }

    pub fn title(self) -> &'static str {
        match self {
            Manner::ConnectionEach => "a connection per request",
            Manner::Persistent => "persistent connections",
        }
    }
}

/// What the client is asked to do.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
struct Order {
    manner: Manner,
    batches: usize,
    /// Requests of each batch.
    requests: usize,
}

/// Server and client, until it is dropped.
#[derive(Debug)]
pub struct Stage {
    // ends before the namespaces
    client: Process,
    orders: ChildStdin,
    answers: BufReader<ChildStdout>,
    _nginx: Option<Nginx>,
    topology: Rc<Topology>,
}

impl Stage {
    /// nginx with one worker, in a cgroup if there is one; `prepare` may change its folder before it starts. The client asks for
    /// `path`.
    pub fn start(
        path: &str,
        cgroup: Option<&Cgroup>,
        prepare: impl FnOnce(&NginxConfig) -> Result<()>,
    ) -> Result<Stage> {
        let mut stage = Stage::bare(path)?;
        let config = NginxConfig::listening(PORT, &[&PORT.to_string()], 1, LASTING)?;
        prepare(&config)?;
        stage._nginx = Some(start_nginx(&stage.topology, config, cgroup)?);
        Ok(stage)
    }

    /// Without a server; one on port 80 has to be there before the client is asked.
    pub fn bare(path: &str) -> Result<Stage> {
        let topology = Topology::new()?;
        for (namespace, interface) in [(&topology.server, Topology::SERVER), (&topology.clients, Topology::CLIENTS)] {
            for thread in napi_threads(namespace, interface)? {
                pin(thread, Topology::server_cpu())?;
                set_fifo(thread, 50)?;
            }
        }
        let mut command = crate::command::child("lab-client")?;
        topology.clients.enter(&mut command);
        command.arg(path).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut client = Process::start(command)?;
        let lost = || Error::failed("the client of the stage has no pipes");
        let orders = client.child().stdin.take().ok_or_else(lost)?;
        let answers = BufReader::new(client.child().stdout.take().ok_or_else(lost)?);
        Ok(Stage { client, orders, answers, _nginx: None, topology: Rc::new(topology) })
    }

    /// Its bench, which lasts as long as somebody holds it.
    pub fn topology(&self) -> Rc<Topology> {
        Rc::clone(&self.topology)
    }

    /// ns of CPU a request: the low quantile of so many batches.
    pub fn request_ns(&mut self, manner: Manner, batches: usize) -> Result<f64> {
        // what it costs by now, and warm caches
        let first = self.ask(Order { manner, batches: 5, requests: 20 })?;
        let requests = (BATCH.as_nanos() as f64 / quantile(&first, 0.5)).clamp(1.0, 10_000.0) as usize;
        Ok(quantile(&self.ask(Order { manner, batches, requests })?, LOW))
    }

    /// ns a request of each batch.
    fn ask(&mut self, order: Order) -> Result<Vec<f64>> {
        let order = serde_json::to_string(&order).context("write down an order")?;
        writeln!(self.orders, "{order}").context("ask the client of the stage")?;
        let mut line = String::new();
        self.answers.read_line(&mut line).context("hear the client of the stage")?;
        serde_json::from_str(&line).context("read the answer of the client of the stage")
    }

    /// Ends it in order.
    pub fn stop(self) -> Result<()> {
        let Stage { client, orders, .. } = self;
        drop(orders);
        let status = client.finish(END)?.status;
        if status.success() {
            Ok(())
        } else {
            Err(Error::failed(format!("the client of the stage ended with {status}")))
        }
    }
}

/// nginx on the server's core. A socket belongs to the cgroup in which it was made, so nginx is inside before it listens.
pub fn start_nginx(topology: &Topology, config: NginxConfig, cgroup: Option<&Cgroup>) -> Result<Nginx> {
    let mut command = match cgroup {
        None => topology.server.command("nginx"),
        Some(cgroup) => {
            let mut command = topology.server.command("sh");
            let script = "echo $$ > \"$0/cgroup.procs\" && exec nginx \"$@\"";
            command.args(["-c", script]).arg(cgroup.path());
            command
        }
    };
    command.args(config.arguments()).stderr(Stdio::null());
    pin_command(&mut command, Topology::server_cpu());
    Ok(Nginx::start_command(&topology.server, command, config)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_low_quantile_of_batches_lies_among_the_undisturbed_ones() {
        let mut batches = vec![50_000.0; 60];
        batches.extend(vec![90_000.0; 40]);
        assert!((quantile(&batches, LOW) - 50_000.0).abs() < 1.0);
    }
}
