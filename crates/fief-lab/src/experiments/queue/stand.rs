// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A server of one kind on the testbed's port by one way, on the server's core; ready when it answers.

use super::kind::{Kind, Start};
use super::way::{BEHIND, PORT, Way};
use crate::command::{DOWN, PolicyFile};
use crate::error::{Context, Error, Result};
use fief_testkit::{Client, Family, Haproxy, HaproxyConfig, Process, Topology, napi_threads, pin_command, wait_ready};
use std::fs::File;
use std::process::Stdio;

/// Ends with its guard.
#[derive(Debug)]
pub struct Stand {
    // the front goes before what is behind it
    _front: Option<Haproxy>,
    server: Option<Process>,
    policy: Option<PolicyFile>,
    _start: Start,
}

impl Stand {
    pub fn start(topology: &Topology, kind: Kind, way: Way, work: usize) -> Result<Stand> {
        Self::under(topology, kind, way, work, way.policy(kind).as_deref())
    }

    /// The same under a policy of the experiment's own.
    pub fn under(topology: &Topology, kind: Kind, way: Way, work: usize, policy: Option<&str>) -> Result<Stand> {
        let port = if matches!(way, Way::Haproxy(_)) { BEHIND } else { PORT };
        let start = kind.prepare(port, work, limits(way))?;
        let policy = policy.map(PolicyFile::new).transpose()?;
        let (program, words) = start.words.split_first().expect("a server has a program");
        let mut command = match &policy {
            Some(policy) => policy.run(&topology.server, program, words.to_vec())?,
            None => {
                let mut command = topology.server.command(program);
                command.args(words);
                command
            }
        };
        command.envs(start.environment.iter().map(|(name, value)| (name, value)));
        // nginx writes the same words into its log
        let said = if kind.is_nginx() { Stdio::null() } else { said(&start.log)?.into() };
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(said);
        pin_command(&mut command, Topology::server_cpu());
        let mut process = Process::start(command)?;
        process.ask_first(DOWN);
        wait_ready(&topology.server, &mut process, port, Some(&start.log))?;
        let front = match way {
            Way::Haproxy(most) => Some(haproxy(topology, most)?),
            _ => None,
        };
        Ok(Stand { _front: front, server: Some(process), policy, _start: start })
    }

    /// What works for it: the processes in its namespace, and the thread that receives.
    pub fn processes(&self, topology: &Topology) -> Result<Vec<u32>> {
        let mut all = topology.server.pids();
        all.extend(napi_threads(&topology.server, Topology::SERVER)?);
        Ok(all)
    }

    /// Ends it; an error if Fief did not come down in order.
    pub fn stop(mut self) -> Result<()> {
        let ended = self.server.take().and_then(|server| server.stop(DOWN));
        match (&self.policy, ended) {
            (Some(_), None) => Err(Error::failed(format!("fief run did not end within {DOWN:?}"))),
            _ => Ok(()),
        }
    }
}

fn said(log: &std::path::Path) -> Result<File> {
    File::create(log).context(format!("make {}", log.display()))
}

/// For nginx's http and server block: at most eight of the others' requests at once.
fn limits(way: Way) -> [&'static str; 2] {
    match way {
        Way::LimitConn => [
            "geo $others { default 1; 10.77.1.0/24 \"\"; }\nlimit_conn_zone $others zone=others:1m;",
            "limit_conn others 8; limit_conn_status 503;",
        ],
        _ => [""; 2],
    }
}

/// As good as it gets: connections to the server are kept, whatever the clients do.
fn haproxy(topology: &Topology, most: u32) -> Result<Haproxy> {
    const KEEP: &str = "    no option http-server-close\n    option http-keep-alive\n";
    let gold = Client::High.prefix(Family::V4);
    let rules = format!(
        "{KEEP}    acl gold src {gold}\n    http-request set-priority-class int(-10) if gold\n    \
         http-request set-priority-class int(10) unless gold"
    );
    let server = format!("maxconn {most}\n{KEEP}    http-reuse always");
    let mut command = topology.server.command("haproxy");
    pin_command(&mut command, Topology::server_cpu());
    Ok(Haproxy::start_command(&topology.server, command, HaproxyConfig::new(PORT, BEHIND, &rules, &server)?)?)
}
