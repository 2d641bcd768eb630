// SPDX-License-Identifier: Apache-2.0 OR MIT
//! nginx as the distribution ships it, with a file of 1 kB at `/1k`.

use super::{folder, wait_ready, write};
use crate::{NetNs, Process, Result};
use std::ffi::OsString;
use std::fmt::Write;
use std::path::PathBuf;

/// What the generated configuration says.
#[derive(Debug)]
pub struct NginxConfig {
    folder: tempfile::TempDir,
    port: u16,
}

impl NginxConfig {
    /// `workers` processes on `0.0.0.0:port` and `[::]:port`. `more` goes into the server block (gzip, a location).
    pub fn new(port: u16, workers: usize, more: &str) -> Result<NginxConfig> {
        let both = [format!("{port}"), format!("[::]:{port}")];
        NginxConfig::listening(port, &both.each_ref().map(String::as_str), workers, more)
    }

    /// The same on these addresses, as nginx writes them; `port` must be among them on 127.0.0.1.
    pub fn listening(port: u16, addresses: &[&str], workers: usize, more: &str) -> Result<NginxConfig> {
        NginxConfig::with_http(port, addresses, workers, "", more)
    }

    /// The same with `http` in the http block, where nginx wants the zones of its limits.
    pub fn with_http(port: u16, addresses: &[&str], workers: usize, http: &str, more: &str) -> Result<NginxConfig> {
        let folder = folder()?;
        let root = folder.path().display().to_string();
        write(&folder.path().join("1k"), &"x".repeat(1024))?;
        let mut text = String::new();
        let mut line = |words: &str| writeln!(text, "{words}").expect("a String takes everything");
        // Debian's workers give up root; where its account is missing nginx takes the one it was built with.
        if std::fs::read_to_string("/etc/passwd").is_ok_and(|accounts| accounts.contains("www-data:")) {
            line("user www-data;");
        }
        line(&format!("worker_processes {workers};"));
        line(&format!("pid {root}/pid;\nerror_log {root}/error.log;\nworker_rlimit_nofile 8192;"));
        line("events { worker_connections 4096; }");
        line("http {\naccess_log off;\ndefault_type text/plain;\nkeepalive_timeout 65;");
        for kind in ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"] {
            line(&format!("{kind}_temp_path {root}/{kind};"));
        }
        line(http);
        line(&format!("server {{\nroot {root};"));
        for address in addresses {
            let backlog = if address.contains("backlog=") { "" } else { " backlog=4096" };
            line(&format!("listen {address}{backlog};"));
        }
        line(more);
        line("}\n}");
        write(&folder.path().join("nginx.conf"), &text)?;
        Ok(NginxConfig { folder, port })
    }

    pub fn port(&self) -> u16 {
        self.port
    }

    /// Where its files are; more of them can be put there and are served.
    pub fn folder(&self) -> PathBuf {
        self.folder.path().to_owned()
    }

    /// What the server wrote about its errors.
    pub fn log(&self) -> PathBuf {
        self.folder.path().join("error.log")
    }

    /// The arguments that start it in the foreground.
    pub fn arguments(&self) -> Vec<OsString> {
        let folder = self.folder.path();
        vec![
            "-p".into(),
            folder.into(),
            "-c".into(),
            folder.join("nginx.conf").into(),
            "-e".into(),
            self.log().into(),
            "-g".into(),
            "daemon off;".into(),
        ]
    }
}

/// A running nginx.
#[derive(Debug)]
pub struct Nginx {
    process: Process,
    config: NginxConfig,
}

impl Nginx {
    /// One worker on every address of the namespace.
    pub fn start(namespace: &NetNs, port: u16) -> Result<Nginx> {
        Nginx::start_with(namespace, NginxConfig::new(port, 1, "")?)
    }

    pub fn start_with(namespace: &NetNs, config: NginxConfig) -> Result<Nginx> {
        let mut command = namespace.command("nginx");
        // It writes the same words into its log.
        command.args(config.arguments()).stderr(std::process::Stdio::null());
        Nginx::start_command(namespace, command, config)
    }

    /// Starts it by another program, which gets the arguments; ready when nginx answers.
    pub fn start_command(namespace: &NetNs, command: std::process::Command, config: NginxConfig) -> Result<Nginx> {
        let mut process = Process::start(command)?;
        wait_ready(namespace, &mut process, config.port, Some(&config.log()))?;
        Ok(Nginx { process, config })
    }

    /// The started process: nginx's master, or the program that started it.
    pub fn process(&mut self) -> &mut Process {
        &mut self.process
    }

    pub fn pid(&self) -> u32 {
        self.process.pid()
    }

    /// The worker processes, where the started process is the master.
    pub fn workers(&self) -> Vec<u32> {
        let pid = self.process.pid();
        std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children"))
            .unwrap_or_default()
            .split_whitespace()
            .filter_map(|word| word.parse().ok())
            .collect()
    }

    pub fn config(&self) -> &NginxConfig {
        &self.config
    }

    /// Asks it to end and waits; the guard's drop kills it instead.
    pub fn stop(self, deadline: std::time::Duration) -> Option<std::process::ExitStatus> {
        self.process.stop(deadline)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Client, Family, Feature, Topology, get, require};

    #[test]
    fn serves_a_kilobyte_to_both_families() {
        if !(require(Feature::NetNs) && require(Feature::Nginx)) {
            return;
        }
        let topology = Topology::new().expect("a topology");
        let nginx = Nginx::start(&topology.server, 80).expect("nginx");
        assert_eq!(nginx.workers().len(), 1);
        for family in [Family::V4, Family::V6] {
            let response = get(&topology.clients, Topology::server_address(family, 80), "/1k").expect("a response");
            let body = response.split("\r\n\r\n").nth(1).expect("a body");
            assert_eq!(body.len(), 1024, "{}", Client::High.address(family, 1));
        }
    }

    #[test]
    fn a_configuration_that_nginx_refuses_is_an_error_with_its_words() {
        if !(require(Feature::NetNs) && require(Feature::Nginx)) {
            return;
        }
        let topology = Topology::new().expect("a topology");
        let config = NginxConfig::new(80, 1, "no_such_directive on;").expect("written");
        let error = Nginx::start_with(&topology.server, config).expect_err("it refuses");
        assert!(error.to_string().contains("no_such_directive"), "{error}");
    }
}
