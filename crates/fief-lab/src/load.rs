// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A load of HTTP, also within TLS, or of queries, as a child process on its own core.
//!
//! Closed loop: each client has one request under way, so a slow server slows the load and the response time of the
//! others is the queue's length, as in the papers. Open loop: requests come when they come, whatever the server does,
//! as a crowd does; only so can a server be offered more than it can do. A process of its own, because the
//! high-priority client must not wait for the low ones in the same event loop, and because it takes a real-time priority.

mod arrivals;
mod connection;
mod engine;
mod postgres;
mod response;
mod tls;
mod turns;

pub use arrivals::{Arrivals, Volleys};
pub use postgres::{USER as POSTGRES_USER, startup as postgres_startup};

use crate::error::{Context, Error, Kind, Result};
use crate::statistics::Histogram;
use fief_testkit::{Client, Family, NetNs, Process, Topology};
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde::{Deserialize, Serialize};
use std::io::{BufRead, BufReader};
use std::net::{IpAddr, SocketAddr};
use std::process::Stdio;
use std::time::Duration;

/// What one load process does.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Load {
    pub server: SocketAddr,
    pub protocol: Protocol,
    /// What is asked for: a path, or PostgreSQL's query.
    pub path: String,
    pub seconds: f64,
    /// Before the measurement starts.
    pub warm_up: f64,
    /// Address of the first client; the others follow it.
    pub first: IpAddr,
    pub addresses: u8,
    /// In an open loop: how many requests can be under way; more are shed by the load itself.
    pub clients: usize,
    pub think_us: u64,
    /// An open loop; without it every client asks again when it was answered.
    pub arrivals: Option<Arrivals>,
    /// A request that is not answered so long is given up, and its connection closed as a browser does; 0: never.
    pub patience_ms: u64,
    pub close: Close,
    /// After its time it begins nothing, and waits so long for what is under way; what is not answered then counts as given up.
    /// 0: it ends at once, and nobody knows what became of that.
    pub settle_ms: u64,
    pub cpu: usize,
    /// Real-time priority; 0: none.
    pub fifo: i32,
    /// Interval of interim lines in ms; 0: none.
    pub live_ms: u64,
}

impl Load {
    /// Clients of a class, who ask the testbed's server again and again, each when it was answered.
    pub fn of(class: Client, addresses: u8, clients: usize) -> Load {
        Load {
            server: Topology::server_address(Family::V4, 80),
            protocol: Protocol::Http,
            path: "/1k".to_owned(),
            seconds: 1.0,
            warm_up: 0.0,
            first: class.address(Family::V4, 1),
            addresses,
            clients,
            think_us: 0,
            arrivals: None,
            patience_ms: 0,
            close: Close::Rst,
            settle_ms: 0,
            cpu: Topology::load_cpu(),
            fifo: 0,
            live_ms: 0,
        }
    }

    /// The one client of high priority whose time is measured. The others share its core: it must not wait for them, and
    /// thinks so that they can run.
    pub fn watched() -> Load {
        Load { think_us: 2000, fifo: 40, ..Load::of(Client::High, 10, 1) }
    }
}

/// What clients and server speak.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Protocol {
    Http,
    /// HTTP within TLS.
    Tls,
    Postgres {
        /// First of all whether the server has TLS, which the lab's has not.
        asks_tls: bool,
    },
}

/// How a client ends its connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Close {
    /// At once, without TIME_WAIT.
    Rst,
    /// As a browser does, after the server's end.
    Fin,
    /// Not at all: the next request goes the same way, until the server ends it.
    Keep,
}

/// What it saw.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Seen {
    pub seconds: f64,
    /// Of requests that were served: answered with 2xx.
    pub latency: Histogram,
    /// Requests sent, or attempted: connections begun.
    pub begun: u64,
    /// Connections over which a request was answered, in whatever way.
    pub connections: u64,
    /// Answered with 503 or 429.
    pub refused: u64,
    /// Connections that failed or were reset, and all other answers.
    pub errors: u64,
    /// Requests given up after the client's patience.
    pub given_up: u64,
    /// Arrivals of an open loop that found no free client.
    pub shed: u64,
    /// Requests that took, or are taking, longer than 900 ms: a lost SYN is sent again after a second.
    pub stalls: u64,
}

impl Seen {
    pub fn per_second(&self) -> f64 {
        self.latency.count() as f64 / self.seconds
    }

    pub fn mean_us(&self) -> f64 {
        self.latency.mean() / 1000.0
    }

    /// All that came to an end, one way or the other.
    pub fn ended(&self) -> u64 {
        self.latency.count() + self.lost()
    }

    /// All that came to an end and was not served.
    pub fn lost(&self) -> u64 {
        self.refused + self.errors + self.given_up
    }

    pub fn p99_us(&self) -> f64 {
        self.latency.quantile(0.99) / 1000.0
    }

    pub fn merge(&mut self, other: &Seen) {
        self.seconds += other.seconds;
        self.latency.merge(&other.latency);
        self.begun += other.begun;
        self.connections += other.connections;
        self.refused += other.refused;
        self.errors += other.errors;
        self.given_up += other.given_up;
        self.shed += other.shed;
        self.stalls += other.stalls;
    }
}

/// A line of the child: what it saw since the last one, or in all.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Line {
    Live(Seen),
    Done(Seen),
}

/// A running load.
#[derive(Debug)]
pub struct Running {
    process: Process,
    deadline: Duration,
}

impl Load {
    /// Starts it inside the namespace.
    pub fn start(&self, namespace: &NetNs) -> Result<Running> {
        let spec = serde_json::to_string(self).context("write down the load")?;
        let mut command = crate::command::child("lab-load")?;
        namespace.enter(&mut command);
        command.arg(spec).stdin(Stdio::null()).stdout(Stdio::piped());
        let process = Process::start(command)?;
        // Stalled clients do not hold it up, so little more than its time is enough even on a busy machine.
        Ok(Running { process, deadline: Duration::from_secs_f64(self.warm_up + self.seconds + 30.0) })
    }
}

impl Running {
    /// For [`end`].
    pub fn pid(&self) -> u32 {
        self.process.pid()
    }

    /// Waits for its end and reads what it saw.
    pub fn finish(self) -> Result<Seen> {
        let output = self.process.finish(self.deadline)?;
        let text = String::from_utf8_lossy(&output.stdout);
        let lines = text.lines().map(str::to_owned);
        last(lines, |_| ()).ok_or_else(|| Error::failed(format!("the load ended with {} and no result", output.status)))
    }

    /// The same, and tells what it sees meanwhile.
    pub fn watch(mut self, tell: impl FnMut(&Seen)) -> Result<Seen> {
        let pipe = self.process.child().stdout.take();
        let lines = pipe.into_iter().flat_map(|pipe| BufReader::new(pipe).lines());
        let seen = last(lines.map_while(std::result::Result::ok), tell);
        let status = self.process.finish(self.deadline)?.status;
        seen.ok_or_else(|| Error::failed(format!("the load ended with {status} and no result")))
    }
}

/// Asks a running load, known by its pid, to end before its time, and in order.
pub fn end(pid: u32) {
    let _ = kill(Pid::from_raw(pid.cast_signed()), Signal::SIGTERM);
}

/// Goes through the child's lines; what it saw in all, if it came to that.
fn last(lines: impl Iterator<Item = String>, mut tell: impl FnMut(&Seen)) -> Option<Seen> {
    lines
        .filter_map(|line| serde_json::from_str(&line).ok())
        .filter_map(|line| match line {
            Line::Done(seen) => Some(seen),
            Line::Live(seen) => {
                tell(&seen);
                None
            }
        })
        .last()
}

/// The child's main: the only argument is the load as JSON.
pub fn load_main(arguments: &[String]) -> Result<()> {
    let [spec] = arguments else {
        return Err(Error::new(Kind::Usage, "a load takes one argument, its description in JSON"));
    };
    let load: Load = serde_json::from_str(spec).context("read the load")?;
    // A crowd has more connections under way than a process may open by default.
    if let Ok((_, most)) = getrlimit(Resource::RLIMIT_NOFILE) {
        let _ = setrlimit(Resource::RLIMIT_NOFILE, most, most);
    }
    fief_testkit::pin(0, load.cpu)?;
    if load.fifo > 0 {
        fief_testkit::set_fifo(0, load.fifo)?;
    }
    ctrlc::set_handler(engine::end).context("wait for a signal to end")?;
    engine::run(&load, |line| {
        if let Ok(text) = serde_json::to_string(&line) {
            println!("{text}");
        }
    })
}

/// What a load sees that runs in the caller's thread, in its network namespace.
#[cfg(test)]
pub fn seen_here(load: &Load) -> Result<Seen> {
    let mut done = None;
    engine::run(load, |line| {
        if let Line::Done(seen) = line {
            done = Some(seen);
        }
    })?;
    done.ok_or_else(|| Error::failed("the load ended with no result"))
}
