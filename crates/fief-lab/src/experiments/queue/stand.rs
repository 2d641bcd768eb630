// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A server of one kind on the testbed's port by one way, on the server's core; ready when it answers.

use super::kind::{Kind, Start};
use super::ready;
use super::way::{BEHIND, PORT, Way};
use crate::command::{DOWN, PolicyFile};
use crate::error::{Context, Error, Result};
use crate::installation;
use fief_testkit::{Client, Family, Haproxy, HaproxyConfig, Process, Topology, napi_threads, pin_command};
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
        if kind.is_postgres() {
            // it listens when it has given up root
            topology.server.sysctl("net.ipv4.ip_unprivileged_port_start", "0")?;
        }
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
        ready::wait(topology, &mut process, port, kind.protocol(), &start.log)?;
        let front = match way {
            Way::Haproxy(most) => Some(haproxy(topology, most)?),
            _ => None,
        };
        Ok(Stand { _front: front, server: Some(process), policy, _start: start })
    }

    /// Another policy in the place of the one that it was started under.
    pub fn change(&mut self, topology: &Topology, policy: &str) -> Result<()> {
        let policy = PolicyFile::new(policy)?;
        installation::change_in(&policy, &topology.server)?;
        self.policy = Some(policy);
        Ok(())
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::experiments::queue::case::Connections;
    use crate::load::{Load, seen_here};
    use fief_testkit::{Feature, require};

    #[test]
    fn every_server_answers_clients_that_speak_its_protocol_on_either_kind_of_connection() {
        if !require(Feature::NetNs) {
            return;
        }
        let postgres = [Kind::Postgres, Kind::PostgresBare].map(|kind| (kind, Feature::PostgreSql));
        let wanted = [(Kind::NginxTls, Feature::Nginx)].into_iter().chain(postgres);
        for (kind, _) in wanted.filter(|(_, feature)| require(*feature) && require(Feature::OpenSsl)) {
            let topology = Topology::new().expect("a topology");
            let stand = Stand::start(&topology, kind, Way::Plain, 3000).expect("it starts");
            for connections in Connections::ALL {
                let load = Load { seconds: 0.5, close: connections.close(), ..Load::of(Client::Low, 20, 5) };
                let load = kind.asked_by(load);
                // a machine that stands still has no answers meanwhile
                let is_answered = (0..5).any(|_| {
                    let seen = topology.clients.run(|| seen_here(&load)).expect("inside").expect("loaded");
                    assert_eq!((seen.errors, seen.refused), (0, 0), "{kind:?}, {connections:?}");
                    seen.latency.count() > 5
                });
                assert!(is_answered, "{kind:?}, {connections:?}");
            }
            stand.stop().expect("it ends");
        }
    }
}
