// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The testbed of one way: a server and what stands in front of it, and clients' hosts that a flood can come from.
//!
//! The packet filter's rules last as long as the testbed. Fief is machine-wide, so it is there only while it is measured.

use super::by_server::IsolatingServer;
use super::{PORT, Way};
use crate::command::{PolicyFile, nft};
use crate::error::Result;
use crate::flood::{self, Sources};
use crate::installation::Installation;
use fief_testkit::{Nginx, NginxConfig, Topology, pin_command};

/// The clients' host owns all of it.
pub const SPOOFED: Sources = Sources::new([10, 128, 0, 0], 10);

#[derive(Debug)]
pub struct Stand {
    pub way: Way,
    pub topology: Topology,
    _nginx: Option<Nginx>,
}

impl Stand {
    pub fn new(way: Way) -> Result<Stand> {
        let topology = Topology::new()?;
        topology.server.ip(&format!("route add {SPOOFED} via 10.77.0.2 dev {}", Topology::SERVER))?;
        topology.clients.ip(&format!("route add local {SPOOFED} dev lo"))?;
        flood::hush(&topology)?;
        for (name, value) in way.sysctls() {
            topology.server.sysctl(name, value)?;
        }
        if let Some(rules) = way.rules() {
            nft(&topology.server, &rules)?;
        }
        let nginx = (way != Way::Server).then(|| start_nginx(&topology)).transpose()?;
        Ok(Stand { way, topology, _nginx: nginx })
    }

    /// Puts in force what is not there all the time.
    pub fn front(&self) -> Result<Option<Front>> {
        if self.way == Way::Server {
            return IsolatingServer::start(&self.topology).map(|server| Some(Front::Server { server }));
        }
        self.way.policy().map(|policy| self.fief(&policy)).transpose()
    }

    /// Fief with a policy of its own.
    pub fn fief(&self, policy: &str) -> Result<Front> {
        let policy = PolicyFile::new(policy)?;
        let installation = Installation::apply_in(&policy, &self.topology.server)?;
        Ok(Front::Policy { _installation: installation, _policy: policy })
    }
}

/// Fief in force, until the guard ends.
#[derive(Debug)]
pub enum Front {
    Policy { _installation: Installation, _policy: PolicyFile },
    Server { server: IsolatingServer },
}

impl Front {
    /// Of a server that isolates by itself.
    pub fn time_to_isolate_s(&self) -> Option<f64> {
        match self {
            Front::Policy { .. } => None,
            Front::Server { server } => Some(server.isolated_s),
        }
    }
}

fn start_nginx(topology: &Topology) -> Result<Nginx> {
    let config = NginxConfig::listening(PORT, &[&PORT.to_string()], 1, "")?;
    let mut command = topology.server.command("nginx");
    command.args(config.arguments()).stderr(std::process::Stdio::null());
    pin_command(&mut command, Topology::server_cpu());
    Ok(Nginx::start_command(&topology.server, command, config)?)
}
