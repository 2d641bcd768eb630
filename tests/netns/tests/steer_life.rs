// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What servers do with their listening sockets besides accepting, and what the listen shim makes of it.

#[path = "steer/rig.rs"]
mod rig;

use std::net::SocketAddr;

use fief_testkit::{Family, Topology};
use rig::{Rig, Server, answered, high, low, ready, robot};

const FIRST: u16 = 8080;

/// Starts life.py on these ports; also what it says before it waits.
fn start(rig: &Rig, way: &str, ports: &str) -> (Server, Vec<String>) {
    let script = rig.script().with_file_name("life.py");
    std::fs::write(&script, include_str!("steer/life.py")).unwrap();
    let mut command = rig.command_with_shim("python3");
    command.arg(script).args([way, ports]);
    Server::start_after(command)
}

fn address(port: u16) -> SocketAddr {
    Topology::server_address(Family::V4, port)
}

/// A client of each class is answered.
fn answers_every_class(rig: &Rig, port: u16) {
    answered(rig.connect(&[high(1), low(1), robot(1)], address(port)));
}

#[test]
fn a_child_that_closes_the_listener_leaves_its_parent_the_classes() {
    if !ready() {
        return;
    }
    let rig = Rig::new(rig::POLICY);
    let _server = start(&rig, "child-closes", "8080");
    answers_every_class(&rig, FIRST);
}

#[test]
fn an_event_set_hears_the_classes_of_more_than_32_listeners() {
    if !ready() {
        return;
    }
    let web = &rig::POLICY[rig::POLICY.find("[listener.web]").unwrap()..rig::POLICY.find("[listener.both]").unwrap()];
    let each = |port: u16| web.replace("web", &format!("web-{port}")).replace("8080", &port.to_string());
    let rig = Rig::new(&(8100..8150).fold(rig::POLICY.to_owned(), |policy, port| policy + &each(port)));
    let _server = start(&rig, "many", "8100-8149");
    for port in [8100, 8131, 8132, 8133, 8149] {
        answers_every_class(&rig, port);
    }
}

#[test]
fn a_helper_that_is_started_without_the_listener_takes_no_class_with_it() {
    if !ready() {
        return;
    }
    let rig = Rig::new(rig::POLICY);
    let (_server, before) = start(&rig, "spawns", "8080");
    assert_eq!(rig.registered().len(), 3, "one for each class");
    let helper = std::fs::read_dir(format!("/proc/{}/fd", before[0])).unwrap();
    let held = helper.map(|entry| std::fs::read_link(entry.unwrap().path()).unwrap());
    let sockets: Vec<_> = held.filter(|what| what.to_string_lossy().starts_with("socket:")).collect();
    assert_eq!(sockets, Vec::<std::path::PathBuf>::new());
}

#[test]
fn a_duplicate_that_fails_leaves_the_listener_what_it_is() {
    if !ready() {
        return;
    }
    let rig = Rig::new(rig::POLICY);
    let _server = start(&rig, "replaces", "8080");
    assert_eq!(rig.registered().len(), 3, "one for each class");
    answers_every_class(&rig, FIRST);
}

#[test]
fn a_one_shot_listener_tells_of_one_class_until_it_is_armed_again() {
    if !ready() {
        return;
    }
    let rig = Rig::new(rig::POLICY);
    let (mut server, _) = start(&rig, "one-shot", "8080");
    let connections = rig.connect(&[low(1), high(1)], address(FIRST));
    server.go();
    assert_eq!(server.line(), "told 1");
    answered(connections);
    answers_every_class(&rig, FIRST);
}
