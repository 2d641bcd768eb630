// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Whether what is in force does what it says: who listens where the policy says, whether they are managed, and what stands in
//! the way. It is all read at the moment of the question; no process watches.

use std::collections::HashSet;
use std::io;
use std::net::{SocketAddr, UdpSocket};
use std::path::PathBuf;
use std::time::SystemTime;

use fief_bpf::table::Table;
use fief_bpf::{Result, open};
use fief_policy::{Listener, Mode, Policy, RequestRate, Serve};
use serde::{Deserialize, Serialize};

use crate::groups::named;
use crate::listening::{self, Listening};
use crate::names::Names;
use crate::{Fief, SchedulerView, Snapshot, cgroup, namespace, servers, wire};

/// What is in force, and what is wrong with it.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Status {
    /// The text of the policy in force; `None`: it was removed.
    #[serde(serialize_with = "wire::some_path")]
    pub policy: Option<PathBuf>,
    /// When it was put in force.
    pub since: Option<SystemTime>,
    /// Whether verdicts are carried out or only counted; `None`: its text was removed.
    pub mode: Option<Mode>,
    /// Whether the programs in force are those of this version.
    pub current: bool,
    /// Interfaces that the front door stands at.
    pub interfaces: Vec<String>,
    /// Listeners of the policy, in its order.
    pub listeners: Vec<ListenerStatus>,
    /// Managed cgroups that are there.
    #[serde(serialize_with = "wire::paths")]
    pub units: Vec<PathBuf>,
    /// Who holds shares, weights and limits of the CPU.
    pub scheduler: SchedulerView,
    /// What the policy asks for and something holds, and by what.
    pub enforced: Vec<String>,
    /// Attributes of the CPU that are kept and that nothing enforces, by container.
    pub unenforced: Vec<String>,
    /// What does not work, a sentence each, with what to do.
    pub problems: Vec<String>,
}

/// A listener of the policy.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct ListenerStatus {
    /// Its name.
    pub name: String,
    /// The address of the policy.
    pub address: SocketAddr,
    /// How its classes reach the server.
    pub serve: Serve,
    /// Whether verdicts on its clients and requests are carried out or only counted.
    pub mode: Mode,
    /// Who listens there.
    pub servers: Vec<ServerStatus>,
}

/// A socket that listens, and whose it is.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct ServerStatus {
    /// Where it listens.
    pub address: SocketAddr,
    /// Its process, if it can be seen from here.
    pub pid: Option<i32>,
    /// Name of its program.
    pub program: String,
    /// Whether what it uses is charged to containers.
    pub managed: bool,
}

impl Fief {
    /// Looks at what is in force. Changes nothing.
    pub fn status(&self) -> Result<Status> {
        let (snapshot, names) = (self.snapshot()?, self.names()?);
        let interfaces = self.interfaces();
        let netns = open::steered(self.pins()).unwrap_or_default();
        let managed = managed(&snapshot);
        let policy = names.policy();
        let of_policy = || Ok(policy.map(|policy| Here::look(policy, &managed)));
        let here = namespace::within(netns, of_policy)?.flatten().unwrap_or_default();
        let current = Table::open(self.pins())?.build() == fief_bpf::build();
        let mut problems = self.front_notes(&names)?;
        if policy.is_some_and(|policy| policy.listeners.iter().any(Listener::is_guarded)) && interfaces.is_empty() {
            problems.push("the front door stands nowhere, so nothing is guarded; apply the policy again".to_owned());
        }
        problems.extend(here.problems.iter().cloned());
        problems.extend(policy.map(|policy| unserved(policy, &here.listeners, &snapshot)).unwrap_or_default());
        problems.extend(of_machine(&snapshot, current));
        let (text, since) = self.policy_kept(&names);
        Ok(Status {
            policy: text,
            since,
            mode: policy.map(|policy| policy.mode),
            current,
            enforced: policy.map(|policy| enforced(policy, &interfaces, &snapshot.scheduler)).unwrap_or_default(),
            interfaces,
            units: snapshot.units.iter().filter_map(|unit| unit.cgroup.clone()).collect(),
            unenforced: policy.map(|policy| unenforced(policy, &snapshot.scheduler)).unwrap_or_default(),
            scheduler: snapshot.scheduler,
            listeners: here.listeners,
            problems,
        })
    }

    fn policy_kept(&self, names: &Names) -> (Option<PathBuf>, Option<SystemTime>) {
        let path = self.policy_file(names.slot());
        match path.metadata() {
            Ok(meta) => (Some(path), meta.modified().ok()),
            Err(_) => (None, None),
        }
    }
}

/// Ids of the cgroups whose sockets the hooks see.
pub(crate) fn managed(snapshot: &Snapshot) -> HashSet<u64> {
    let folders = snapshot.units.iter().filter_map(|unit| unit.cgroup.as_deref());
    folders.flat_map(cgroup::ids).collect()
}

/// What is found in a network namespace.
#[derive(Default)]
pub(crate) struct Here {
    pub(crate) listeners: Vec<ListenerStatus>,
    problems: Vec<String>,
}

impl Here {
    pub(crate) fn look(policy: &Policy, managed: &HashSet<u64>) -> Self {
        let sockets = listening::find().unwrap_or_default();
        let servers = servers::of(&sockets, managed);
        let mut here = Self::default();
        for listener in policy.listeners.iter().filter(|listener| !listener.forward) {
            let own: Vec<_> = servers
                .iter()
                .filter(|(socket, _)| listener.addresses().any(|address| socket.serves(address)))
                .map(|(_, server)| server.clone())
                .collect();
            here.problems.extend(absent(listener, &own, &servers));
            here.listeners.push(ListenerStatus {
                name: listener.name.clone(),
                address: listener.address,
                serve: listener.serve,
                mode: listener.mode,
                servers: own,
            });
        }
        here
    }
}

/// Nobody can reach the listener, or nobody listens there.
fn absent(listener: &Listener, own: &[ServerStatus], all: &[(&Listening, ServerStatus)]) -> Option<String> {
    let Listener { name, address, .. } = listener;
    if is_foreign(*address) {
        let ip = address.ip();
        return Some(format!(
            "{name}: {ip} is no address of this machine, so nobody reaches {address}; give it to an interface, or change \
             the policy"
        ));
    }
    if !own.is_empty() {
        return None;
    }
    const NAMED: usize = 3;
    let others = all.iter().filter(|(socket, _)| !socket.address.ip().is_loopback());
    let mut others: Vec<_> = others.map(|(_, server)| format!("{} on {}", server.program, server.address)).collect();
    others.sort();
    others.dedup();
    let others = match &others[..] {
        [] => String::new(),
        others => format!(" ({} listens)", others[..others.len().min(NAMED)].join(", ")),
    };
    Some(format!("{name}: nothing listens on {address}{others}; start its server there, or change the policy"))
}

/// Whether the kernel refuses to bind to it.
fn is_foreign(address: SocketAddr) -> bool {
    let bound = UdpSocket::bind((address.ip(), 0));
    bound.is_err_and(|error| error.kind() == io::ErrorKind::AddrNotAvailable)
}

/// What a policy asks for that a server, as it runs, does not get.
fn unserved(policy: &Policy, listeners: &[ListenerStatus], snapshot: &Snapshot) -> Vec<String> {
    let mut said = Vec::new();
    let gone = snapshot.units.iter().filter(|unit| unit.cgroup.is_none()).count();
    for status in listeners.iter().filter(|status| !status.servers.is_empty()) {
        let Some(listener) = policy.listeners.iter().find(|listener| listener.name == status.name) else { continue };
        let ListenerStatus { name, servers, .. } = status;
        let stranger = servers.iter().find(|server| !server.managed);
        let is_limited = |path: &str| policy.container(path).is_some_and(|container| container.cpu.limit_ppm > 0);
        let of_cpu = |rate: &Option<RequestRate>| matches!(rate, Some(RequestRate::Cpu { .. }));
        if let Some(server) = stranger {
            let how = manage(server);
            if listener.requests.iter().any(|request| of_cpu(&request.rate)) {
                said.push(format!(
                    "{name}: rate.cpu never refuses anybody, since {} is not managed and its CPU time is nobody's; {how}",
                    server.program
                ));
            } else if listener.queue.is_some() && listener.class_paths().into_iter().any(is_limited) {
                said.push(format!(
                    "{name}: cpu.limit holds no class of it, since {} is not managed and its CPU time is nobody's; {how}",
                    server.program
                ));
            } else if gone > 0 {
                said.push(format!(
                    "{name}: {} is not managed, and {gone} managed cgroups are gone: its unit was started again; {how}",
                    server.program
                ));
            }
        }
        let classes = listener.class_paths().len();
        let told_apart = snapshot.class_listeners.iter().any(|class| class.address == Some(listener.address));
        if listener.serve == Serve::Shim && listener.queue.is_none() && classes > 1 && !told_apart {
            said.push(format!(
                "{name}: {} has one socket for all {classes} classes, which are charged apart and served in the order in \
                 which they come: it does not run by `fief run` or `fief exec`, or is linked statically; start it so, or set queue = true",
                servers[0].program
            ));
        }
    }
    said
}

fn manage(server: &ServerStatus) -> String {
    match server.pid {
        Some(pid) => format!("`fief manage {pid}`"),
        None => "`fief manage` its unit".to_owned(),
    }
}

/// What is held, and by what.
fn enforced(policy: &Policy, interfaces: &[String], scheduler: &SchedulerView) -> Vec<String> {
    let mut held = Vec::new();
    let holds = |listener: &&Listener| listener.is_guarded() && listener.mode == Mode::Enforce;
    let guarded: Vec<_> = policy.listeners.iter().filter(holds).map(|listener| listener.name.as_str()).collect();
    if !guarded.is_empty() && !interfaces.is_empty() {
        held.push(format!("the rules of {}, by the front door at {}", guarded.join(", "), interfaces.join(", ")));
    }
    let queues: Vec<_> = policy.listeners.iter().filter(|listener| listener.queue.is_some()).collect();
    if !queues.is_empty() {
        let names: Vec<_> = queues.iter().map(|listener| listener.name.as_str()).collect();
        held.push(format!("the order of the classes of {}, and their limits, by its queue", names.join(", ")));
    }
    if let Some(who) = scheduler.title().filter(|_| policy.divides_cpu()) {
        held.push(format!("cpu.share, cpu.limit and cpu.weight, by {who}"));
    }
    held
}

/// Attributes of the CPU that nobody holds.
fn unenforced(policy: &Policy, scheduler: &SchedulerView) -> Vec<String> {
    let queued: HashSet<&str> =
        policy.listeners.iter().filter(|listener| listener.queue.is_some()).flat_map(Listener::class_paths).collect();
    let others = policy.containers.iter().filter(|container| !queued.contains(container.path.as_str()));
    let attributes = others.filter_map(|container| Some((container, named(container)?)));
    match scheduler {
        SchedulerView::On { .. } => Vec::new(),
        SchedulerView::Groups(groups) => attributes
            .filter(|(container, _)| !groups.containers.contains(&container.path))
            .map(|(_, named)| format!("{named} (no process has its home there, and cgroups know whole processes)"))
            .collect(),
        SchedulerView::Off | SchedulerView::Ejected(_) => attributes.map(|(_, named)| named).collect(),
    }
}

/// Switches between threads that were not seen are made good at the next one; verdicts that were not counted have a note.
const HARMLESS: [&str; 2] = ["switch_missed", "verdict_uncounted"];

fn of_machine(snapshot: &Snapshot, current: bool) -> Vec<String> {
    let mut said = Vec::new();
    if !current {
        said.push("the programs in force are of another version; `fief apply` lets this one's take over".to_owned());
    }
    if let SchedulerView::Ejected(why) = &snapshot.scheduler {
        said.push(format!("the kernel took the scheduler out ({why}); apply the policy again to turn it on"));
    }
    if let SchedulerView::Groups(groups) = &snapshot.scheduler {
        said.extend(groups.problems.iter().cloned());
    }
    let failed = snapshot.failures.iter().filter(|(what, count)| *count > 0 && !HARMLESS.contains(what));
    said.extend(failed.map(|(what, count)| {
        format!("the kernel side failed {count} times ({what}) since the installation; `fief show system` tells of all")
    }));
    said
}

#[cfg(test)]
mod tests {
    use super::*;

    fn policy(lines: &str) -> Policy {
        let text = format!(
            "version = 1\n[container.web]\n[container.\"web/gold\"]\n[listener.web]\naddress = \"0.0.0.0:80\"\n\
             [[listener.web.client]]\nfrom = [\"any\"]\ncontainer = \"web\"\n{lines}"
        );
        fief_policy::parse(&text, "policy").unwrap_or_else(|errors| panic!("{errors}"))
    }

    #[test]
    fn an_address_of_others_is_told_from_one_of_ours() {
        assert!(is_foreign("192.0.2.1:80".parse().expect("an address")));
        assert!(!is_foreign("127.0.0.1:80".parse().expect("an address")));
        assert!(!is_foreign("0.0.0.0:80".parse().expect("an address")));
    }

    #[test]
    fn a_listener_without_a_server_comes_with_those_that_listen_elsewhere() {
        let socket = Listening {
            address: "0.0.0.0:8080".parse().expect("an address"),
            multipath: false,
            cgroup: None,
            inode: 1,
        };
        let server = ServerStatus { address: socket.address, pid: Some(7), program: "nginx".into(), managed: true };
        let said = absent(&policy("").listeners[0], &[], &[(&socket, server.clone())]).expect("nobody listens");
        assert!(said.contains("nothing listens on 0.0.0.0:80 (nginx on 0.0.0.0:8080 listens)"), "{said}");
        assert_eq!(absent(&policy("").listeners[0], std::slice::from_ref(&server), &[(&socket, server.clone())]), None);
    }

    #[test]
    fn what_is_enforced_is_named_with_what_does_it() {
        let eth0 = ["eth0".to_owned()];
        let held = |lines: &str, interfaces: &[String], scheduler| enforced(&policy(lines), interfaces, &scheduler);
        let refuses = "syn = { rate = 5 }\n";
        assert_eq!(held("", &eth0, SchedulerView::Off), [""; 0], "nothing stands before it");
        assert_eq!(held(refuses, &eth0, SchedulerView::Off), ["the rules of web, by the front door at eth0"]);
        assert_eq!(held(refuses, &[], SchedulerView::Off), [""; 0], "it stands nowhere");
        let on = || SchedulerView::On { counts: Vec::new() };
        assert_eq!(held("[container.c]\ncpu.weight = 7\n", &[], on()).len(), 1);
        assert_eq!(held("", &[], on()), [""; 0], "nothing asks for it");
        let mut trial = policy(refuses);
        trial.listeners[0].mode = Mode::Monitor;
        assert_eq!(enforced(&trial, &eth0, &SchedulerView::Off), [""; 0], "it is counted only");
    }

    #[test]
    fn attributes_that_nothing_enforces_are_named() {
        let text = "version = 1\n[container.a]\ncpu.share = \"10%\"\ncpu.limit = \"50%\"\n[container.b]\n";
        let policy = fief_policy::parse(text, "policy").unwrap_or_else(|errors| panic!("{errors}"));
        assert_eq!(unenforced(&policy, &SchedulerView::Off), ["a: cpu.share, cpu.limit"]);
        assert!(unenforced(&policy, &SchedulerView::On { counts: Vec::new() }).is_empty());
    }
}
