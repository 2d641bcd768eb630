// SPDX-License-Identifier: Apache-2.0 OR MIT
//! nginx as the distribution ships it, with the listen shim: its workers, its reload, its change of binary.

#[path = "steer/rig.rs"]
mod rig;

use std::io::{Read, Write};
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::process::Command;

use fief_testkit::{Family, Feature, Nginx, NginxConfig, Topology, require, run, wait_until};
use fief_tests_netns::{SOON, connect_from};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use rig::{PORT, Rig, high, low};

fn ready() -> bool {
    rig::ready() && require(Feature::Nginx)
}

fn nginx(rig: &Rig, workers: usize) -> Nginx {
    let config = NginxConfig::new(PORT, workers, "").unwrap();
    let mut command = rig.command_with_shim("nginx");
    command.args(config.arguments()).stderr(std::process::Stdio::null());
    Nginx::start_command(&rig.topology.server, command, config).unwrap()
}

/// One request on a connection of its own; the whole response.
fn get(rig: &Rig, from: IpAddr) -> String {
    let server = Topology::server_address(Family::V4, PORT);
    let mut stream = connect_from(&rig.topology.clients, (from, 0).into(), server).unwrap();
    stream.set_read_timeout(Some(SOON)).unwrap();
    stream.write_all(b"GET /1k HTTP/1.0\r\nHost: server\r\n\r\n").unwrap();
    let mut response = String::new();
    stream.read_to_string(&mut response).unwrap();
    response
}

/// Requests of both classes are answered, and counted for their containers.
fn serves_both_classes(rig: &Rig) {
    let before = (rig.accepts("shop/high"), rig.accepts("shop/low"));
    for n in 1..=20 {
        for from in [high(n), low(n)] {
            assert!(get(rig, from).starts_with("HTTP/1.1 200"), "{from}");
        }
    }
    let after = (rig.accepts("shop/high"), rig.accepts("shop/low"));
    assert_eq!((after.0 - before.0, after.1 - before.1), (20, 20));
}

#[test]
fn every_class_has_a_listener_of_its_own() {
    if !ready() {
        return;
    }
    let rig = Rig::new(rig::POLICY);
    let _nginx = nginx(&rig, 1);
    let classes: Vec<_> = rig.registered();
    assert_eq!(classes.len(), 3, "{classes:?}");
    serves_both_classes(&rig);
}

#[test]
fn several_workers_share_the_listeners() {
    if !ready() {
        return;
    }
    let rig = Rig::new(rig::POLICY);
    let nginx = nginx(&rig, 3);
    wait_until(SOON, || nginx.workers().len() == 3).unwrap();
    assert_eq!(rig.registered().len(), 3);
    serves_both_classes(&rig);
}

#[test]
fn a_reload_keeps_the_listeners() {
    if !ready() {
        return;
    }
    let rig = Rig::new(rig::POLICY);
    let mut nginx = nginx(&rig, 1);
    let (before, workers) = (rig.registered(), nginx.workers());
    nginx.process().signal(Signal::SIGHUP);
    wait_until(SOON, || {
        let now = nginx.workers();
        !now.is_empty() && now.iter().all(|pid| !workers.contains(pid))
    })
    .unwrap();
    assert_eq!(rig.registered(), before);
    serves_both_classes(&rig);
}

/// An nginx that left for the background: only that way does it change its binary.
struct Daemon {
    pid_file: PathBuf,
    started: Vec<u32>,
}

impl Daemon {
    fn start(rig: &Rig, config: &NginxConfig) -> Self {
        // It starts its new binary by the path that it was started by itself.
        let path = run(Command::new("sh").args(["-c", "command -v nginx"])).unwrap();
        let mut command = rig.command_with_shim(path.trim());
        command.args(config.arguments().iter().filter(|word| *word != "daemon off;" && *word != "-g"));
        run(&mut command).unwrap();
        let mut daemon = Self { pid_file: config.folder().join("pid"), started: Vec::new() };
        daemon.started.push(daemon.wait_for_master(0));
        daemon
    }

    /// The master in the pid file, once it is another one than `old` and has a worker.
    fn wait_for_master(&self, old: u32) -> u32 {
        let mut found = 0;
        wait_until(SOON, || {
            let text = std::fs::read_to_string(&self.pid_file).unwrap_or_default();
            found = text.trim().parse().unwrap_or(0);
            found != 0 && found != old && has_child(found)
        })
        .unwrap();
        found
    }

    fn signal(&self, master: u32, signal: Signal) {
        kill(Pid::from_raw(master.cast_signed()), signal).unwrap();
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        for &pid in &self.started {
            // Only while it is still what was started here.
            let name = std::fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
            if name.trim() == "nginx" {
                let _ = kill(Pid::from_raw(pid.cast_signed()), Signal::SIGTERM);
            }
        }
    }
}

fn has_child(pid: u32) -> bool {
    std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).is_ok_and(|text| !text.trim().is_empty())
}

#[test]
fn a_new_binary_takes_the_listeners_over() {
    if !ready() {
        return;
    }
    let rig = Rig::new(rig::POLICY);
    let config = NginxConfig::new(PORT, 1, "").unwrap();
    let mut daemon = Daemon::start(&rig, &config);
    let before = rig.registered();
    assert_eq!(before.len(), 3);
    let old = daemon.started[0];
    daemon.signal(old, Signal::SIGUSR2);
    let new = daemon.wait_for_master(old);
    daemon.started.push(new);
    daemon.signal(old, Signal::SIGQUIT);
    wait_until(SOON, || !Path::new(&format!("/proc/{old}")).exists()).unwrap();
    assert_eq!(rig.registered(), before, "inherited, not made again");
    serves_both_classes(&rig);
    daemon.signal(new, Signal::SIGTERM);
    wait_until(SOON, || rig.registered().is_empty()).unwrap();
}
