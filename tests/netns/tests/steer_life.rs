// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What servers do with their listening sockets besides accepting, and what the listen shim makes of it.

#[path = "steer/rig.rs"]
mod rig;

use std::net::{IpAddr, SocketAddr};

use fief_control::steer::ClassListener;
use fief_testkit::{Family, Topology, wait_until};
use fief_tests_netns::SOON;
use libbpf_rs::{MapCore, MapFlags, MapHandle};
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
    let sockets = || {
        let descriptors = std::fs::read_dir(format!("/proc/{}/fd", before[0])).unwrap();
        let held = descriptors.filter_map(|entry| std::fs::read_link(entry.unwrap().path()).ok());
        held.filter(|what| what.to_string_lossy().starts_with("socket:")).collect::<Vec<_>>()
    };
    // the server goes on a moment before the kernel closes what the helper is not to have; the helper lives for a minute
    wait_until(SOON / 2, || sockets().is_empty()).unwrap_or_else(|_| panic!("{:?}", sockets()));
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

#[test]
fn a_server_that_pauses_often_leaves_its_successor_a_place_in_each_class() {
    if !ready() {
        return;
    }
    let rig = Rig::new(rig::POLICY);
    let server = start(&rig, "pauses", "8080");
    assert_eq!(rig.registered().len(), 3, "one for each class");
    answers_every_class(&rig, FIRST);
    drop(server);
    wait_until(SOON, || rig.registered().is_empty()).unwrap();

    let _server = start(&rig, "leaves", "8080");
    assert_eq!(rig.registered().len(), 3, "one for each class");
    let _successor = start(&rig, "serves", "8080");
    assert_eq!(rig.registered().len(), 6, "and one for each of the successor");
    answers_every_class(&rig, FIRST);
}

#[test]
fn a_group_of_listeners_that_pauses_shares_its_class_listeners_ports_again() {
    if !ready() {
        return;
    }
    let rig = Rig::new(rig::POLICY);
    let (_server, before) = start(&rig, "group-pauses", "8080");
    assert_eq!(before, ["9 on 3"], "a port for each class");
    assert_eq!(rig.registered().len(), 9, "one for each class and socket of the group");
    answers_every_class(&rig, FIRST);
}

/// A server with class listeners, which another program replaces at a word.
fn replaced_under(rig: &Rig, policy: &str, waiting: &[IpAddr]) -> (Server, Vec<rig::Connection>) {
    let mut server = rig.server("exec-later", "0.0.0.0", FIRST);
    let connections = rig.connect(waiting, address(FIRST));
    let before = rig.registered();
    rig.apply(policy);
    server.go();
    assert_eq!(server.line(), "listening");
    assert_eq!(rig.registered(), before, "the sockets are the same");
    (server, connections)
}

fn rule_of(net: u8, class: &str) -> String {
    format!("[[listener.web.client]]\nfrom = [\"10.77.{net}.0/24\"]\ncontainer = \"shop/{class}\"\n")
}

#[test]
fn class_listeners_keep_their_containers_where_the_policy_has_them_in_another_order() {
    if !ready() {
        return;
    }
    let rig = Rig::new(rig::POLICY);
    let (high_rule, robot_rule) = (rule_of(1, "high"), rule_of(3, "robots"));
    let turned = rig::POLICY.replace(&high_rule, "?").replace(&robot_rule, &high_rule).replace('?', &robot_rule);
    assert_ne!(turned, rig::POLICY);
    let (mut server, _connections) = replaced_under(&rig, &turned, &[robot(1), low(1), high(1)]);
    server.go();
    assert_eq!(server.served(3), [high(1), low(1), robot(1)]);
}

#[test]
fn who_waits_for_a_class_that_is_gone_is_served_by_a_program_that_begins_then() {
    if !ready() {
        return;
    }
    let rig = Rig::new(rig::POLICY);
    let policy = rig::POLICY.replace(&rule_of(3, "robots"), "");
    assert_ne!(policy, rig::POLICY);
    let (mut server, mut connections) = replaced_under(&rig, &policy, &[robot(1), high(1)]);
    connections.extend(rig.connect(&[robot(2)], address(FIRST)));
    server.go();
    answered(connections);
    assert!(rig.accepts("shop/low") > 0, "the second robot is of another class by now");
}

const ROBOTS: &str = "shop/robots";

fn without_robots() -> String {
    let policy = rig::POLICY.replace(&rule_of(3, "robots"), "");
    let policy = policy.replace("[container.\"shop/robots\"]\ncpu.priority = 0\n", "");
    assert!(!policy.contains("robots"), "{policy}");
    policy
}

/// Slot and generation of the robots' container.
fn robots_slot(rig: &Rig) -> Option<(u32, u32)> {
    let containers = rig.installation.fief().snapshot().unwrap().containers;
    containers.iter().find(|container| container.path == ROBOTS).map(|container| (container.id, container.generation))
}

/// As if every other free slot had been taken and left since.
fn comes_next(rig: &Rig, slot: u32) {
    let free = MapHandle::from_pinned_path(rig.installation.fief().pins().map("free_slots")).unwrap();
    for _ in 0..1 << 16 {
        let first = free.lookup(&[], MapFlags::ANY).unwrap().expect("one is free");
        if first == slot.to_ne_bytes() {
            return;
        }
        let first = free.lookup_and_delete(&[]).unwrap().expect("it was there");
        free.update(&[], &first, MapFlags::ANY).unwrap();
    }
    panic!("slot {slot} is not free");
}

#[test]
fn clients_of_a_container_that_has_an_old_ones_slot_do_not_reach_the_old_ones_listener() {
    if !ready() {
        return;
    }
    let rig = Rig::new(rig::POLICY);
    // it looks at no policy before it accepts
    let mut server = rig.server("blocking", "0.0.0.0", FIRST);
    let before = rig.registered();
    let (slot, generation) = robots_slot(&rig).unwrap();
    let has = |socket: &&ClassListener, (slot, generation): (u32, u32)| {
        // a key has room for so much of it
        (socket.container, socket.generation) == (slot, generation % (1 << 26))
    };
    assert!(before.iter().any(|socket| has(&socket, (slot, generation))), "{before:?}");
    rig.apply(&without_robots());
    wait_until(SOON, || robots_slot(&rig).is_none()).unwrap();
    comes_next(&rig, slot);
    rig.apply(rig::POLICY);
    let again = robots_slot(&rig).unwrap();
    assert_eq!(again, (slot, generation + 1), "the slot is the same");

    let connections = rig.connect(&[robot(1)], address(FIRST));
    // by the server's own socket, which asks the policy; by the old listener they would be of the container that has ended
    wait_until(SOON, || rig.accepts(ROBOTS) == 1).unwrap();
    server.go();
    answered(connections);
    // once it has looked, the new container has its own
    let is_new = |rig: &Rig| rig.registered().iter().filter(|socket| has(socket, again)).count();
    wait_until(SOON, || is_new(&rig) == 1).unwrap();
    assert_eq!(rig.registered().len(), before.len() + 1);
    answers_every_class(&rig, FIRST);
    assert_eq!(rig.accepts(ROBOTS), 2);
}
