// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A server on the testbed's port, by itself or under a policy of Fief's.

use super::{COST_US, PORT, WORKERS};
use crate::command::{self, DOWN, PolicyFile};
use crate::error::{Context, Error, Kind, Result};
use fief_testkit::{Feature, Nginx, NginxConfig, Process, Topology, napi_threads, pin_command, wait_ready};
use std::ffi::OsString;
use std::fmt::Write;
use std::process::{Command, Stdio};

/// A limit that nginx keeps by itself: limit_req, one bucket for all clients of a folder.
#[derive(Clone, Copy, Debug)]
pub struct Limit {
    pub folder: &'static str,
    pub per_second: f64,
    pub burst: u32,
}

#[derive(Clone, Debug)]
pub enum Program {
    /// One worker, which compresses this text for every request.
    Nginx { text: String, limits: Vec<Limit> },
    /// The lab's blocking workers.
    Workers,
}

#[derive(Clone, Debug)]
pub struct Site {
    pub program: Program,
    pub policy: Option<String>,
}

/// Ends with its guard.
#[derive(Debug)]
pub struct Running {
    server: Option<Server>,
    policy: Option<PolicyFile>,
}

#[derive(Debug)]
enum Server {
    Nginx(Nginx),
    Workers(Process),
}

impl Server {
    fn stop(self) -> bool {
        match self {
            Server::Nginx(nginx) => nginx.stop(DOWN).is_some(),
            Server::Workers(process) => process.stop(DOWN).is_some(),
        }
    }
}

impl Site {
    /// Whether the machine, and this Fief, can do it.
    pub fn check(&self) -> Result<()> {
        if matches!(self.program, Program::Nginx { .. }) && !Feature::Nginx.is_there() {
            return Err(Error::new(Kind::Missing, "nginx is not installed"));
        }
        match &self.policy {
            None => Ok(()),
            Some(policy) => command::can_run_with(policy),
        }
    }

    /// Starts it on the server's core; ready when it answers.
    pub fn start(&self, topology: &Topology) -> Result<Running> {
        let policy = self.policy.as_deref().map(PolicyFile::new).transpose()?;
        let server = match &self.program {
            Program::Nginx { text, limits } => {
                let config = config(text, limits)?;
                let command = command(topology, policy.as_ref(), "nginx".into(), config.arguments())?;
                Server::Nginx(Nginx::start_command(&topology.server, command, config)?)
            }
            Program::Workers => {
                let program = command::own()?;
                let words = [PORT.to_string(), WORKERS.to_string(), COST_US.to_string()];
                let words = ["lab-workers".to_owned()].into_iter().chain(words).map(OsString::from).collect();
                let mut process = Process::start(command(topology, policy.as_ref(), program.into(), words)?)?;
                wait_ready(&topology.server, &mut process, PORT, None)?;
                Server::Workers(process)
            }
        };
        Ok(Running { server: Some(server), policy })
    }
}

impl Running {
    /// What works for it: the processes in its namespace, and the thread that receives.
    pub fn processes(&self, topology: &Topology) -> Result<Vec<u32>> {
        let mut all = topology.server.pids();
        all.extend(napi_threads(&topology.server, Topology::SERVER)?);
        Ok(all)
    }

    /// Ends it; an error if Fief did not come down in order.
    pub fn stop(mut self) -> Result<()> {
        let ended = self.server.take().is_none_or(|server| self.policy.is_none() || server.stop());
        match ended {
            true => Ok(()),
            false => Err(Error::failed(format!("fief run did not end within {DOWN:?}"))),
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // A killed `fief run` would leave its programs in the kernel, so it is asked first.
        if let Some(server) = self.server.take()
            && self.policy.is_some()
        {
            server.stop();
        }
    }
}

/// The program inside the server's namespace, by `fief run` if there is a policy.
fn command(
    topology: &Topology,
    policy: Option<&PolicyFile>,
    program: OsString,
    words: Vec<OsString>,
) -> Result<Command> {
    let mut command = match policy {
        Some(policy) => policy.run(&topology.server, program, words)?,
        None => {
            let mut command = topology.server.command(program);
            command.args(words);
            command
        }
    };
    // nginx writes the same words into its log.
    command.stdin(Stdio::null()).stderr(Stdio::null());
    pin_command(&mut command, Topology::server_cpu());
    Ok(command)
}

/// Every path but /1k is the text. It is compressed as it leaves, at nginx's own level.
fn config(text: &str, limits: &[Limit]) -> Result<NginxConfig> {
    let mut http = String::new();
    let mut server = "gzip on; gzip_http_version 1.0; gzip_types text/plain; gzip_min_length 2000;\n\
                      location / { try_files $uri /page; }\n"
        .to_owned();
    for (number, limit) in limits.iter().enumerate() {
        let Limit { folder, per_second, burst } = limit;
        // nginx counts per second in whole numbers, or per minute.
        let rate = match per_second {
            rate if rate.fract() == 0.0 => format!("{rate:.0}r/s"),
            rate => format!("{:.0}r/m", rate * 60.0),
        };
        // A constant key: one bucket for everybody.
        let _ = writeln!(http, "limit_req_zone $server_port zone=zone{number}:1m rate={rate};");
        let _ = writeln!(
            server,
            "location {folder} {{ limit_req zone=zone{number} burst={burst} nodelay; limit_req_status 503; \
             try_files $uri /page; }}"
        );
    }
    let config = NginxConfig::with_http(PORT, &[&PORT.to_string()], 1, &http, &server)?;
    let file = config.folder().join("page");
    std::fs::write(&file, text).context(format!("write {}", file.display()))?;
    Ok(config)
}

#[cfg(test)]
mod tests {
    use super::*;
    use fief_testkit::{Family, get, require};

    #[test]
    fn nginx_serves_the_text_everywhere_and_refuses_above_a_folders_limit() {
        if !(require(Feature::NetNs) && require(Feature::Nginx)) {
            return;
        }
        let topology = Topology::new().expect("a topology");
        let limits = vec![Limit { folder: "/limited/", per_second: 1.0, burst: 1 }];
        let site = Site { program: Program::Nginx { text: "some text".to_owned(), limits }, policy: None };
        let _running = site.start(&topology).expect("started");
        let address = Topology::server_address(Family::V4, PORT);
        let response = |path: &str| get(&topology.clients, address, path).expect("a response");
        assert!(response("/shop/item").ends_with("some text"));
        let (begin, mut passed) = (std::time::Instant::now(), 0);
        let refused = loop {
            let answer = response("/limited/item");
            if !answer.ends_with("some text") {
                break answer;
            }
            passed += 1;
            let took = begin.elapsed();
            assert!(passed <= 2 + took.as_secs(), "two at once and one a second: {passed} in {took:?}");
        };
        assert!(passed > 0, "the bucket is full at first");
        assert!(refused.contains(" 503 "), "{refused}");
    }
}
