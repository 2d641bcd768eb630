// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What `fief status` is made of: each way in which a policy is in force and does not do what it says.

use std::fs::File;
use std::io::{BufRead, BufReader};
use std::net::TcpListener;
use std::os::unix::net::UnixStream;
use std::process::{Command, Stdio};

use fief_control::{Classes, ManageOptions, Status, Target, WhyUnguarded};
use fief_testkit::{Cgroup, Feature, Process, require, wait_until};
use fief_tests_netns::front::{Door, Front, ready};
use fief_tests_netns::{SOON, role, send};
use nix::sys::resource::{Resource, getrlimit, setrlimit};

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
    assert!(status.is_current() && status.policy.is_some() && status.since.is_some());
    assert_eq!(status.units, [front.installation().cgroup()]);
    assert_eq!(status.unguarded, [], "it guards nothing");
}

#[test]
fn a_server_on_another_port_is_told() {
    let Some(front) = front(ONE_CLASS) else { return };
    tells(&front, &["plain: nothing listens on 0.0.0.0:80;"]);
    let _process = serve(&front, stranger(&front), 8080);
    tells(&front, &["plain: nothing listens on 0.0.0.0:80 (python", "on 0.0.0.0:8080 listens)"]);
}

/// Has more descriptors than are looked at, since processes that share one table have all of them each. They end with this one's group.
fn have_many_descriptors() {
    const ALL: u64 = 700_000;
    let (_, most) = getrlimit(Resource::RLIMIT_NOFILE).unwrap();
    setrlimit(Resource::RLIMIT_NOFILE, most, most).unwrap();
    let each = 5000u64.min(most - 100);
    let null = File::open("/dev/null").unwrap();
    (0..each).for_each(|_| std::mem::forget(null.try_clone().unwrap()));
    for _ in 0..ALL / each {
        let flags = libc::c_long::from(libc::CLONE_FILES | libc::SIGCHLD);
        // SAFETY: the child goes on in a copy of this memory, as after fork, and makes system calls alone.
        let child = unsafe { libc::syscall(libc::SYS_clone, flags, 0, 0, 0, 0) };
        assert!(child >= 0, "{}", std::io::Error::last_os_error());
        if child == 0 {
            loop {
                // SAFETY: no pointers are passed.
                unsafe { libc::pause() };
            }
        }
    }
}

/// Any user can have them.
#[test]
fn a_server_that_is_not_found_among_ever_so_many_descriptors_is_told_and_hides_no_other() {
    let name = "a_server_that_is_not_found_among_ever_so_many_descriptors_is_told_and_hides_no_other";
    if role().is_some() {
        let (over, _other_end) = UnixStream::pair().unwrap();
        // on its way to somebody, it is in no process
        send(&over, TcpListener::bind("0.0.0.0:80").unwrap());
        have_many_descriptors();
        println!("\nhas many");
        loop {
            std::thread::park();
        }
    }
    let other = "[listener.other]\naddress = \"0.0.0.0:8080\"\n[[listener.other.client]]\nfrom = [\"any\"]\n\
                 container = \"web\"\n";
    let policy = format!("{ONE_CLASS}{other}");
    let Some(front) = front(&policy) else { return };
    let mut command = front.installation().part(Some(&front.installation().cgroup()), name, "user");
    front.topology.server.enter(&mut command);
    command.stdout(Stdio::piped());
    let mut user = Process::start(command).unwrap();
    let mut told = BufReader::new(user.child().stdout.take().unwrap()).lines().map_while(Result::ok);
    assert!(told.any(|line| line == "has many"));
    let process = serve(&front, front.server_command("python3"), 8080);
    front.apply(&policy).unwrap();
    tells(&front, &["plain: who listens on 0.0.0.0:80 is not known", "LimitNOFILE="]);
    let pids = |name: &str| -> Vec<Option<i32>> {
        let listeners = status(&front).listeners;
        let own = listeners.iter().find(|listener| listener.name == name).unwrap();
        own.servers.iter().map(|server| server.pid).collect()
    };
    assert_eq!((pids("plain"), pids("other")), (vec![None], vec![Some(process.pid().cast_signed())]));
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
classes = "listeners"
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
    let found = |front: &Front| status(front).listeners.swap_remove(0).classes;
    assert_eq!(found(&front), Classes { count: 2, with_socket: 0, shim: false, queue: None });
    // by default its requests wait
    front.apply(&classes.replace("classes = \"listeners\"\n", "")).unwrap();
    assert_eq!(status(&front).problems, [""; 0]);
    assert_eq!(found(&front), Classes { count: 2, with_socket: 0, shim: false, queue: Some(true) });
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
    tells(&front, &["plain: rate.cpu never refuses anybody", &format!("`fief manage {pid} --container web --follow`")]);
    let manage = ManageOptions { container: Some("web".to_owned()), follow: true };
    front.installation().fief().manage(&Target::Process(pid.cast_signed()), &manage).unwrap();
    // its socket is older than the hooks, and in their cgroup all the same
    assert_eq!(status(&front).problems, [""; 0]);
}

#[test]
fn a_server_that_nobody_manages_is_told_unless_the_front_door_does_all_that_is_asked() {
    let Some(front) = front(ONE_CLASS) else { return };
    let cgroup = Cgroup::new("unmanaged").unwrap();
    let mut command = front.installation().command_in(cgroup.path(), "python3");
    front.topology.server.enter(&mut command);
    let process = serve(&front, command, 80);
    let how = format!("`fief manage {} --container web --follow`", process.pid());
    tells(&front, &["plain: python", "is not managed, so nobody's account has what it uses", &how]);
    front.apply(&ONE_CLASS.replace("\"0.0.0.0:80\"", "\"0.0.0.0:80\"\nadmit = true")).unwrap();
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

/// An admitted listener; who answers is for the machine to say.
fn admitted() -> Option<(Front, Process)> {
    let guarded = ONE_CLASS.replace("\"0.0.0.0:80\"", "\"0.0.0.0:80\"\nadmit = true");
    let front = front(ONE_CLASS)?;
    let text = format!("version = 1\n{guarded}");
    front.topology.server.run(|| front.installation().apply(&text).unwrap()).unwrap();
    let process = serve(&front, front.server_command("python3"), 80);
    let status = status(&front);
    assert_eq!(status.problems, [""; 0]);
    let answers = status.origin.expect("it was applied").answers;
    assert!(answers[0].starts_with("the front door answers connection requests itself: "), "{answers:?}");
    Some((front, process))
}

fn open(status: &Status) -> Vec<(&str, WhyUnguarded)> {
    status.unguarded.iter().map(|open| (open.name.as_str(), open.why)).collect()
}

#[test]
fn an_interface_that_came_later_is_told() {
    let Some((front, _process)) = admitted() else { return };
    assert_eq!(open(&status(&front)), [("lo", WhyUnguarded::Loopback)]);
    for words in ["link add late0 type veth peer name late1", "link set late0 up", "link set late1 up"] {
        front.topology.server.ip(words).unwrap();
    }
    tells(&front, &["late0", "is not guarded"]);
    let later = [("late0", WhyUnguarded::CameLater), ("late1", WhyUnguarded::CameLater)];
    assert_eq!(open(&status(&front)), [&later[..], &[("lo", WhyUnguarded::Loopback)]].concat());
    front.topology.server.ip("link set late1 down").unwrap();
    assert!(!open(&status(&front)).contains(&later[1]), "nothing comes in by one that is down");
}

#[test]
fn interfaces_that_the_policy_does_not_name_are_told_and_the_ports_of_a_guarded_bridge_are_not() {
    let Some((front, _process)) = admitted() else { return };
    let server = &front.topology.server;
    for words in ["link add br0 type bridge", "link add port0 master br0 type veth peer name far0"] {
        server.ip(words).unwrap();
    }
    for name in ["br0", "port0", "far0"] {
        server.ip(&format!("link set {name} up")).unwrap();
    }
    let text = "version = 1\n[front]\ninterfaces = [\"br0\"]\n".to_owned()
        + &ONE_CLASS.replace("\"0.0.0.0:80\"", "\"0.0.0.0:80\"\nadmit = true");
    server.run(|| front.installation().apply(&text).unwrap()).unwrap();
    let status = status(&front);
    assert_eq!(status.interfaces, ["br0"]);
    let open = open(&status);
    assert!(
        open.contains(&("far0", WhyUnguarded::NotNamed)) && open.contains(&("lo", WhyUnguarded::Loopback)),
        "{open:?}"
    );
    assert!(!open.iter().any(|(name, _)| ["br0", "port0"].contains(name)), "{open:?}");
}

#[test]
fn a_firewall_that_was_added_later_is_told() {
    let Some((front, _process)) = admitted() else { return };
    let nft = |words: &str| {
        let done = front.topology.server.command("nft").args(words.split(' ')).status().unwrap();
        assert!(done.success(), "nft {words}");
    };
    nft("add table inet late");
    nft("add chain inet late in { type filter hook input priority 0 ; }");
    nft("add rule inet late in tcp dport 81 drop");
    tells(&front, &["since then", "table inet late has rules", "apply the policy again"]);
}
