// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What `fief status` is made of: each way in which a policy is in force and does not do what it says.

use std::process::Command;

use fief_control::{ManageOptions, Status, Target};
use fief_testkit::{Cgroup, Feature, Process, require, wait_until};
use fief_tests_netns::SOON;
use fief_tests_netns::front::{Door, Front, ready};

const ONE_CLASS: &str = r#"
[container.web]
[listener.plain]
address = "0.0.0.0:80"
[[listener.plain.client]]
from = ["any"]
container = "web"
"#;

/// `None`: the machine lacks what the tests need.
fn front(policy: &str) -> Option<Front> {
    (ready() && require(Feature::Python)).then(|| Front::new(Door::Own, policy))
}

fn status(front: &Front) -> Status {
    front.topology.server.run(|| front.installation().fief().status().unwrap()).unwrap()
}

/// A server of Python's at this port.
fn serve(front: &Front, mut command: Command, port: u16) -> Process {
    command.args(["-m", "http.server", &port.to_string()]);
    let process = Process::start(command).unwrap();
    let listens = || {
        let listening =
            front.topology.server.run(|| std::fs::read_to_string("/proc/thread-self/net/tcp").unwrap()).unwrap();
        listening.contains(&format!(":{port:04X} 00000000:0000 0A"))
    };
    wait_until(SOON, listens).unwrap();
    process
}

fn stranger(front: &Front) -> Command {
    front.topology.server.command("python3")
}

#[track_caller]
fn tells(front: &Front, words: &[&str]) {
    let status = status(front);
    let told = status.problems.iter().any(|problem| words.iter().all(|word| problem.contains(word)));
    assert!(told, "{words:?} in {:?}", status.problems);
}

#[test]
fn a_policy_that_works_has_no_problems() {
    let Some(front) = front(ONE_CLASS) else { return };
    let process = serve(&front, front.server_command("python3"), 80);
    let status = status(&front);
    assert_eq!(status.problems, [""; 0]);
    let [listener] = &status.listeners[..] else { panic!("{status:?}") };
    let [server] = &listener.servers[..] else { panic!("{status:?}") };
    assert_eq!((server.pid, server.managed), (Some(process.pid().cast_signed()), true));
    assert!(server.program.starts_with("python"), "{server:?}");
    assert!(status.current && status.policy.is_some() && status.since.is_some());
    assert_eq!(status.units, [front.installation().cgroup()]);
}

#[test]
fn a_server_on_another_port_is_told() {
    let Some(front) = front(ONE_CLASS) else { return };
    tells(&front, &["plain: nothing listens on 0.0.0.0:80;"]);
    let _process = serve(&front, stranger(&front), 8080);
    tells(&front, &["plain: nothing listens on 0.0.0.0:80 (python", "on 0.0.0.0:8080 listens)"]);
}

#[test]
fn an_address_that_the_machine_does_not_have_is_told() {
    let Some(front) = front(&ONE_CLASS.replace("0.0.0.0", "192.0.2.7")) else { return };
    tells(&front, &["plain: 192.0.2.7 is no address of this machine"]);
}

#[test]
fn a_server_with_one_socket_for_two_classes_is_told() {
    let classes = r#"
[container.web]
[container.gold]
cpu.priority = 200
[listener.plain]
address = "0.0.0.0:80"
[[listener.plain.client]]
from = ["10.77.1.0/24"]
container = "gold"
[[listener.plain.client]]
from = ["any"]
container = "web"
"#;
    let Some(front) = front(classes) else { return };
    // as a program that is linked statically, it does not load the shim
    let _process = serve(&front, front.server_command("python3"), 80);
    tells(&front, &["plain: python", "one socket for all 2 classes", "queue = true"]);
    front
        .apply(&classes.replace(
            "[[listener.plain.client]]\nfrom = [\"10",
            "queue = true\n[[listener.plain.client]]\nfrom = [\"10",
        ))
        .unwrap();
    assert_eq!(status(&front).problems, [""; 0]);
}

#[test]
fn a_rate_of_cpu_time_at_a_server_that_is_not_managed_is_told() {
    let rate = format!(
        "{ONE_CLASS}[[listener.plain.request]]\npath = \"/x\"\ncontainer = \"web\"\nrate = {{ cpu = \"10%\" }}\n"
    );
    let Some(front) = front(&rate) else { return };
    let cgroup = Cgroup::new("status").unwrap();
    let mut command = front.installation().command_in(cgroup.path(), "python3");
    front.topology.server.enter(&mut command);
    let process = serve(&front, command, 80);
    let pid = process.pid();
    tells(&front, &["plain: rate.cpu never refuses anybody", &format!("`fief manage {pid}`")]);
    let manage = ManageOptions { container: Some("web".to_owned()), follow: true };
    front.installation().fief().manage(&Target::Process(pid.cast_signed()), &manage).unwrap();
    // its socket is older than the hooks, and in their cgroup all the same
    assert_eq!(status(&front).problems, [""; 0]);
}

#[test]
fn a_unit_that_was_started_again_is_told() {
    let Some(front) = front(ONE_CLASS) else { return };
    let managed = Cgroup::new("unit").unwrap();
    front.installation().manage(managed.path(), Some("web"), true);
    drop(managed);
    let again = Cgroup::new("unit").unwrap();
    let mut command = front.installation().command_in(again.path(), "python3");
    front.topology.server.enter(&mut command);
    let _process = serve(&front, command, 80);
    tells(&front, &["plain: python", "is not managed", "its unit was started again", "`fief manage"]);
}

#[test]
fn interfaces_and_firewalls_of_later_are_told() {
    let guarded = ONE_CLASS.replace("\"0.0.0.0:80\"", "\"0.0.0.0:80\"\nadmit = true");
    let Some(front) = front(ONE_CLASS) else { return };
    // who answers is for the machine to say
    let text = format!("version = 1\n{guarded}");
    front.topology.server.run(|| front.installation().apply(&text).unwrap()).unwrap();
    let _process = serve(&front, front.server_command("python3"), 80);
    assert_eq!(status(&front).problems, [""; 0]);
    for words in ["link add late0 type veth peer name late1", "link set late0 up", "link set late1 up"] {
        front.topology.server.ip(words).unwrap();
    }
    tells(&front, &["late0", "is not guarded"]);
    let nft = |words: &str| {
        let done = front.topology.server.command("nft").args(words.split(' ')).status().unwrap();
        assert!(done.success(), "nft {words}");
    };
    nft("add table inet late");
    nft("add chain inet late in { type filter hook input priority 0 ; }");
    nft("add rule inet late in tcp dport 81 drop");
    tells(&front, &["since then", "table inet late has rules", "apply the policy again"]);
}
