// SPDX-License-Identifier: Apache-2.0 OR MIT
//! HAProxy in front of another server.

use super::{folder, wait_ready, write};
use crate::{Error, NetNs, Process, Result};
use std::ffi::OsString;

#[derive(Debug)]
pub struct HaproxyConfig {
    folder: tempfile::TempDir,
    port: u16,
}

impl HaproxyConfig {
    /// One thread on `port` in front of `127.0.0.1:behind`. `rules` go into the front end (one a line);
    /// `server` are words for the server line, such as `maxconn 1`.
    pub fn new(port: u16, behind: u16, rules: &str, server: &str) -> Result<HaproxyConfig> {
        let folder = folder()?;
        let text = format!(
            "global\n    nbthread 1\n    maxconn 4000\n    stats socket {folder}/stats.sock\n\
             defaults\n    mode http\n    timeout connect 10s\n    timeout client 60s\n    timeout server 60s\n    \
             timeout queue 60s\n    maxconn 4000\n    option http-server-close\n    retries 3\n\
             frontend front\n    bind :{port} backlog 4096\n{rules}\n    default_backend back\n\
             backend back\n    server s1 127.0.0.1:{behind} {server}\n",
            folder = folder.path().display()
        );
        write(&folder.path().join("haproxy.cfg"), &text)?;
        Ok(HaproxyConfig { folder, port })
    }

    pub fn arguments(&self) -> Vec<OsString> {
        vec!["-db".into(), "-f".into(), self.folder.path().join("haproxy.cfg").into()]
    }
}

#[derive(Debug)]
pub struct Haproxy {
    process: Process,
    _config: HaproxyConfig,
}

impl Haproxy {
    pub fn start(namespace: &NetNs, config: HaproxyConfig) -> Result<Haproxy> {
        Haproxy::start_command(namespace, namespace.command("haproxy"), config)
    }

    /// Starts it by a command that the caller prepared; its arguments are added here.
    pub fn start_command(
        namespace: &NetNs,
        mut command: std::process::Command,
        config: HaproxyConfig,
    ) -> Result<Haproxy> {
        let log = config.folder.path().join("haproxy.log");
        let file = std::fs::File::create(&log).map_err(|error| Error::io(format!("make {}", log.display()), error))?;
        command.args(config.arguments()).stdout(std::process::Stdio::null()).stderr(file);
        let mut process = Process::start(command)?;
        wait_ready(namespace, &mut process, config.port, Some(&log))?;
        Ok(Haproxy { process, _config: config })
    }

    pub fn pid(&self) -> u32 {
        self.process.pid()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Family, Feature, Nginx, Topology, answers, require};

    #[test]
    fn passes_requests_on_to_nginx() {
        if !(require(Feature::NetNs) && require(Feature::Nginx) && require(Feature::Haproxy)) {
            return;
        }
        let topology = Topology::new().expect("a topology");
        let _nginx = Nginx::start(&topology.server, 8080).expect("nginx");
        let config = HaproxyConfig::new(80, 8080, "", "maxconn 1").expect("written");
        let _haproxy = Haproxy::start(&topology.server, config).expect("haproxy");
        assert!(answers(&topology.clients, Topology::server_address(Family::V4, 80)));
    }
}
