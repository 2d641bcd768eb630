// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Class listeners of unmodified servers: who is accepted first, who may register, and what happens when servers come
//! and go.

#[path = "steer/rig.rs"]
mod rig;

use std::collections::HashSet;
use std::net::{IpAddr, SocketAddr};

use fief_testkit::{Family, Topology, wait_until};
use fief_tests_netns::{SOON, connect_from};
use rig::{PORT, PORT6, Rig, high, low, ready, robot};

/// Robots come first, then the low clients, the high ones last.
fn queue() -> Vec<IpAddr> {
    let mut clients = vec![robot(1)];
    clients.extend((1..=12).map(low));
    clients.extend((1..=3).map(high));
    clients
}

/// The order that the policy asks for.
fn by_class(clients: &[IpAddr]) -> Vec<u8> {
    let mut classes: Vec<u8> = clients.iter().map(class).collect();
    classes.sort_unstable();
    classes
}

/// The third number of the address: 1 high, 2 low, 3 robots.
fn class(client: &IpAddr) -> u8 {
    match client {
        IpAddr::V4(v4) => v4.octets()[2],
        IpAddr::V6(v6) => v6.segments()[6] as u8,
    }
}

fn serves_by_class(way: &str) {
    if !ready() {
        return;
    }
    let rig = Rig::new(rig::POLICY);
    let mut server = rig.server(way, "0.0.0.0", PORT);
    let clients = queue();
    let connections = rig.connect(&clients, Topology::server_address(Family::V4, PORT));
    server.go();
    let served = server.served(clients.len());
    assert_eq!(served.iter().map(class).collect::<Vec<_>>(), by_class(&clients), "{way}");
    for connection in connections {
        let answer = connection.answer();
        assert_eq!(answer.address, Topology::server_address(Family::V4, PORT), "the hidden address shows");
    }
}

#[test]
fn a_blocking_server_takes_the_highest_class_first() {
    serves_by_class("blocking");
}

#[test]
fn a_server_with_a_timeout_takes_the_highest_class_first() {
    serves_by_class("timeout");
}

#[test]
fn a_duplicate_of_the_listener_takes_the_highest_class_first() {
    serves_by_class("duplicate");
}

#[test]
fn a_poll_server_takes_the_highest_class_first() {
    serves_by_class("poll");
}

#[test]
fn a_select_server_takes_the_highest_class_first() {
    serves_by_class("select");
}

#[test]
fn a_level_triggered_server_takes_the_highest_class_first() {
    serves_by_class("level-triggered");
}

#[test]
fn an_edge_triggered_server_takes_the_highest_class_first() {
    serves_by_class("edge-triggered");
}

#[test]
fn a_program_that_inherited_the_listener_takes_the_highest_class_first() {
    serves_by_class("exec");
}

fn answers_everybody(way: &str, workers: usize) {
    if !ready() {
        return;
    }
    let rig = Rig::new(rig::POLICY);
    let mut server = rig.server(way, "0.0.0.0", PORT);
    assert!(!rig.registered().is_empty());
    server.go();
    let mut pids = HashSet::new();
    // A worker may be slow to start; all of them serve in the end.
    for _ in 0..50 {
        let connections = rig.connect(&queue(), Topology::server_address(Family::V4, PORT));
        pids.extend(connections.into_iter().map(|connection| connection.answer().pid));
        if pids.len() == workers {
            return;
        }
    }
    panic!("{way}: {} of {workers} workers served", pids.len());
}

#[test]
fn forked_workers_share_the_class_listeners() {
    if !ready() {
        return;
    }
    let rig = Rig::new(rig::POLICY);
    let mut server = rig.server("forked", "0.0.0.0", PORT);
    server.go();
    // A worker that waits for its client's word accepts no other.
    let clients = [high(1), low(1), robot(1)];
    let server_address = Topology::server_address(Family::V4, PORT);
    let mut connections = clients.map(|client| rig.connect_silently(client, server_address));
    server.served(clients.len());
    connections.iter_mut().for_each(rig::Connection::say);
    let pids: HashSet<_> = connections.into_iter().map(|connection| connection.answer().pid).collect();
    assert_eq!(pids.len(), clients.len(), "each by a worker of its own");
}

/// How often the children of a process went to sleep by themselves.
fn sleeps(parent: u32) -> u64 {
    let children = std::fs::read_to_string(format!("/proc/{parent}/task/{parent}/children")).unwrap();
    let of = |pid: &str| {
        let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"));
        line.unwrap().trim().parse::<u64>().unwrap()
    };
    children.split_whitespace().map(of).sum()
}

#[test]
fn a_connection_wakes_one_of_many_blocked_workers() {
    if !ready() {
        return;
    }
    let rig = Rig::new(rig::POLICY);
    let mut command = rig.command_with_shim("python3");
    command.arg(rig.script()).args(["forked", "0.0.0.0", &PORT.to_string(), "20"]);
    let mut server = rig::Server::start(command);
    server.go();
    let address = Topology::server_address(Family::V4, PORT);
    // All of them have gone to sleep once the number rests.
    let mut before = 0;
    wait_until(SOON, || {
        rig::answered(rig.connect(&[low(1)], address));
        let now = sleeps(server.pid());
        let rests = now - std::mem::replace(&mut before, now) <= 3;
        std::thread::yield_now();
        rests
    })
    .unwrap();
    let before = sleeps(server.pid());
    for _ in 0..40 {
        rig::answered(rig.connect(&[low(1)], address));
    }
    let each = (sleeps(server.pid()) - before) as f64 / 40.0;
    assert!(each < 5.0, "{each} of 20 workers woke for each connection");
}

#[test]
fn a_group_of_listeners_on_one_port_is_used_as_a_whole() {
    answers_everybody("group", 6);
}

#[test]
fn threads_share_the_class_listeners() {
    answers_everybody("threads", 1);
}

#[test]
fn a_socket_of_both_families_tells_the_classes_of_both() {
    if !ready() {
        return;
    }
    let rig = Rig::new(rig::POLICY);
    let mut server = rig.server("blocking", "::", PORT6);
    let six = |client: fief_testkit::Client, n| client.address(Family::V6, n);
    let four = Topology::server_address(Family::V4, PORT6);
    let connections = [
        rig.connect(&[low(1)], four),
        rig.connect(&[six(fief_testkit::Client::Low, 1)], Topology::server_address(Family::V6, PORT6)),
        rig.connect(&[high(1)], four),
        rig.connect(&[six(fief_testkit::Client::High, 1)], Topology::server_address(Family::V6, PORT6)),
    ];
    server.go();
    assert_eq!(server.served(4).iter().map(class).collect::<Vec<_>>(), [1, 1, 2, 2]);
    for connection in connections.into_iter().flatten() {
        assert_eq!(connection.answer().address.port(), PORT6);
    }
}

#[test]
fn a_low_class_gets_a_turn_and_priority_zero_gets_none() {
    if !ready() {
        return;
    }
    let rig = Rig::new(rig::POLICY);
    let mut server = rig.server("blocking", "0.0.0.0", PORT);
    let mut clients = vec![robot(1), low(1), low(2)];
    clients.extend((1..=100).map(high));
    let connections = rig.connect(&clients, Topology::server_address(Family::V4, PORT));
    server.go();
    let served: Vec<u8> = server.served(clients.len()).iter().map(class).collect();
    let first_low = served.iter().position(|&class| class == 2).unwrap();
    assert_eq!(first_low, 31, "one in 32: {served:?}");
    assert_eq!(served.last(), Some(&3), "robots come last: {served:?}");
    drop(connections);
}

/// What a server does with three connections that wait: true for accept, false for serve.
fn accepts_and_serves(order: &str) -> Option<Vec<bool>> {
    if !ready() {
        return None;
    }
    let accept = format!("container = \"shop/low\"\naccept = \"{order}\"\n");
    let rig = Rig::new(&rig::POLICY.replace("container = \"shop/low\"\n", &accept));
    let mut server = rig.server("told", "0.0.0.0", PORT);
    let connections = rig.connect(&[low(1), low(2), low(3)], Topology::server_address(Family::V4, PORT));
    server.go();
    let told = server.served(6);
    drop(connections);
    Some(told.iter().map(IpAddr::is_unspecified).collect())
}

#[test]
fn new_connections_come_first_in_each_turn() {
    let Some(told) = accepts_and_serves("before") else { return };
    assert_eq!(told[..3], [true, true, false], "{told:?}");
}

#[test]
fn new_connections_of_a_class_can_come_after_existing_ones() {
    let Some(told) = accepts_and_serves("after") else { return };
    assert_eq!(told, [true, false, true, false, true, false]);
}

#[test]
fn a_new_policy_finds_the_listeners_of_the_old_one() {
    if !ready() {
        return;
    }
    let rig = Rig::new(rig::POLICY);
    let mut server = rig.server("blocking", "0.0.0.0", PORT);
    let before = rig.registered();
    // Another address comes first now.
    let first = "[listener.first]\naddress = \"0.0.0.0:7000\"\n[[listener.first.client]]\nfrom = [\"any\"]\n\
                 container = \"shop/low\"\n[listener.web]";
    rig.apply(&rig::POLICY.replace("[listener.web]", first));
    assert_eq!(rig.registered(), before);
    let clients = queue();
    let connections = rig.connect(&clients, Topology::server_address(Family::V4, PORT));
    server.go();
    assert_eq!(server.served(clients.len()).iter().map(class).collect::<Vec<_>>(), by_class(&clients));
    drop(connections);
}

/// Neither while a policy leaves its address out, nor when the next one has a new address.
#[test]
fn a_listener_that_is_new_gets_no_socket_of_a_server_whose_address_was_left_out() {
    if !ready() {
        return;
    }
    let rig = Rig::new(rig::POLICY);
    let _server = rig.server("blocking", "0.0.0.0", PORT);
    let before = rig.registered();
    assert_eq!(before.len(), 3, "one for each class");
    let (web, both) = (rig::POLICY.find("[listener.web]").unwrap(), rig::POLICY.find("[listener.both]").unwrap());
    rig.apply(&rig::POLICY.replace(&rig::POLICY[web..both], ""));
    rig.apply(&rig::POLICY.replacen("0.0.0.0:8080", "0.0.0.0:9090", 1));
    assert_eq!(rig.registered(), before, "the server goes on");
    for client in [high(1), low(1)] {
        let server = Topology::server_address(Family::V4, 9090);
        let refused = connect_from(&rig.topology.clients, (client, 0).into(), server);
        assert_eq!(refused.unwrap_err(), nix::errno::Errno::ECONNREFUSED, "nobody listens there");
    }
    rig.apply(rig::POLICY);
    let address: SocketAddr = "0.0.0.0:8080".parse().unwrap();
    let listeners = rig.installation.fief().snapshot().unwrap().class_listeners;
    let own: Vec<_> = listeners.iter().map(|listener| listener.address).collect();
    assert_eq!(own, [Some(address); 3], "it has its classes again");
}

#[test]
fn a_new_policy_changes_the_order_of_a_server_that_runs() {
    if !ready() {
        return;
    }
    let rig = Rig::new(rig::POLICY);
    let mut server = rig.server("blocking", "0.0.0.0", PORT);
    server.go();
    rig.apply(&rig::POLICY.replace("cpu.priority = 200", "cpu.priority = 50"));
    let address = Topology::server_address(Family::V4, PORT);
    // It asks for the policy once a second.
    wait_until(SOON, || {
        // The first keeps it busy until the others have queued up.
        let mut plug = rig.connect_silently(low(9), address);
        let served = server.served(1);
        assert_eq!(served, [low(9)]);
        let connections = rig.connect(&[high(1), low(1)], address);
        plug.say();
        let served = server.served(2);
        rig::answered(connections);
        served == [low(1), high(1)]
    })
    .unwrap();
}

#[test]
fn a_class_that_a_new_policy_brings_gets_its_listener_while_the_server_runs() {
    if !ready() {
        return;
    }
    let rig = Rig::new(rig::POLICY);
    let mut server = rig.server("level-triggered", "0.0.0.0", PORT);
    server.go();
    let new = "[container.\"shop/new\"]\ncpu.priority = 300\n[listener.web]\naddress = \"0.0.0.0:8080\"\nclasses = \"listeners\"\n\
               [[listener.web.client]]\nfrom = [\"10.77.2.7\"]\ncontainer = \"shop/new\"";
    rig.apply(&rig::POLICY.replace("[listener.web]\naddress = \"0.0.0.0:8080\"\nclasses = \"listeners\"", new));
    let address = Topology::server_address(Family::V4, PORT);
    wait_until(SOON, || {
        rig::answered(rig.connect(&[low(1), low(7)], address));
        rig.registered().len() == 4
    })
    .unwrap();
    rig::answered(rig.connect(&[low(7)], address));
    assert!(rig.accepts("shop/new") > 0);
}

#[test]
fn connections_are_counted_for_the_container_of_their_class() {
    if !ready() {
        return;
    }
    let rig = Rig::new(rig::POLICY);
    let mut server = rig.server("blocking", "0.0.0.0", PORT);
    server.go();
    let connections = rig.connect(&[high(1), high(2), low(1)], Topology::server_address(Family::V4, PORT));
    rig::answered(connections);
    assert_eq!((rig.accepts("shop/high"), rig.accepts("shop/low"), rig.accepts("shop/robots")), (2, 1, 0));
}

#[test]
fn a_socket_of_both_families_has_the_classes_of_a_policy_for_one() {
    if !ready() {
        return;
    }
    let rig = Rig::new(&rig::POLICY.replacen("\"listeners\"", "\"shared\"", 1));
    let program = rig.script();
    let mut command = rig.command("python3");
    command.arg(program).args(["blocking", "::", &PORT.to_string()]);
    let mut server = rig::Server::start(command);
    server.go();
    rig::answered(rig.connect(&[high(1), low(1)], Topology::server_address(Family::V4, PORT)));
    let six = fief_testkit::Client::High.address(Family::V6, 1);
    rig::answered(rig.connect(&[six], Topology::server_address(Family::V6, PORT)));
    let accepts = (rig.accepts("shop/high"), rig.accepts("shop/low"));
    assert_eq!(accepts, (1, 1), "the policy does not name the address of the third");
}

#[test]
fn a_killed_server_leaves_nothing_and_the_next_registers_by_itself() {
    if !ready() {
        return;
    }
    let rig = Rig::new(rig::POLICY);
    let server = rig.server("blocking", "0.0.0.0", PORT);
    let before = rig.registered();
    assert_eq!(before.len(), 3);
    drop(server); // kill -9
    wait_until(SOON, || rig.registered().is_empty()).unwrap_or_else(|_| panic!("{:?}", rig.registered()));
    let mut server = rig.server("blocking", "0.0.0.0", PORT);
    let after = rig.registered();
    assert_eq!(after.len(), 3);
    assert!(before.iter().all(|old| after.iter().all(|new| new.cookie != old.cookie)));
    let connections = rig.connect(&[low(1), high(1)], Topology::server_address(Family::V4, PORT));
    server.go();
    assert_eq!(server.served(2), [high(1), low(1)]);
    drop(connections);
}

#[test]
fn a_second_server_takes_over_when_the_first_closes() {
    if !ready() {
        return;
    }
    let rig = Rig::new(rig::POLICY);
    // A group of six, and one more process that joins it, as in a restart without a gap.
    let first = rig.server("group", "0.0.0.0", PORT);
    let mut second = rig.server("group", "0.0.0.0", PORT);
    drop(first);
    second.go();
    let clients = queue();
    let connections = rig.connect(&clients, Topology::server_address(Family::V4, PORT));
    rig::answered(connections);
    assert_eq!(rig.accepts("shop/high"), 3);
}

#[test]
fn a_server_on_an_address_that_the_policy_does_not_name_is_left_alone() {
    if !ready() {
        return;
    }
    let rig = Rig::new(rig::POLICY);
    let mut server = rig.server("blocking", "0.0.0.0", 9000);
    assert_eq!(rig.registered(), []);
    server.go();
    let connections = rig.connect(&[low(1), high(1)], Topology::server_address(Family::V4, 9000));
    rig::answered(connections);
}

#[test]
fn a_server_with_an_io_uring_is_left_alone() {
    if !ready() {
        return;
    }
    let rig = Rig::new(rig::POLICY);
    let mut command = rig.command_with_shim("python3");
    command.arg(rig.script()).args(["io_uring", "0.0.0.0", &PORT.to_string()]);
    let (mut server, before) = rig::Server::start_after(command);
    if before == ["no io_uring"] {
        return; // the machine forbids it, so no server has one
    }
    assert_eq!(rig.registered(), []);
    server.go();
    rig::answered(rig.connect(&[low(1), high(1)], Topology::server_address(Family::V4, PORT)));
}

#[test]
fn a_server_on_one_address_is_not_handed_connections_to_others() {
    if !ready() {
        return;
    }
    let rig = Rig::new(rig::POLICY);
    let _server = rig.server("blocking", "127.0.0.1", PORT);
    assert_eq!(rig.registered(), []);
    let server: SocketAddr = Topology::server_address(Family::V4, PORT);
    let refused = connect_from(&rig.topology.clients, (low(1), 0).into(), server);
    assert_eq!(refused.unwrap_err(), nix::errno::Errno::ECONNREFUSED);
}
