// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Who listens where the policy says, and by what the classes are told apart there: asked of the kernel and of the servers'
//! processes, not of the policy.

use std::collections::{BTreeSet, HashSet};
use std::ffi::OsStr;
use std::fs;
use std::io;
use std::net::{SocketAddr, UdpSocket};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use fief_bpf::Result;
use fief_policy::{Listener, Mode, Policy, Serve};
use serde::{Deserialize, Serialize};

use crate::listening::{self, Listening};
use crate::names::Names;
use crate::steer::is_shim;
use crate::{ClassListenerView, Fief, Snapshot, cgroup, patience, servers, sockets};

/// A listener of the policy.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct ListenerStatus {
    /// Its name.
    pub name: String,
    /// The address of the policy.
    pub address: SocketAddr,
    /// How its classes are to reach the server, as the policy says.
    pub serve: Serve,
    /// Whether verdicts on its clients and requests are carried out or only counted.
    pub mode: Mode,
    /// How its classes are told apart, as it is found.
    #[serde(default)]
    pub classes: Classes,
    /// The servers that listen there.
    pub servers: Vec<ServerStatus>,
}

/// A socket that listens, and whose it is.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct ServerStatus {
    /// Where it listens; a copy of the server, hidden on the loopback.
    pub address: SocketAddr,
    /// The class that it is the copy of.
    #[serde(default)]
    pub class: Option<String>,
    /// Its process, if it can be seen from here.
    pub pid: Option<i32>,
    /// Name of its program.
    pub program: String,
    /// Service of systemd that the process is in.
    #[serde(default)]
    pub unit: Option<String>,
    /// Whether what it uses is charged to containers.
    pub managed: bool,
}

/// How the classes of a listener are told apart.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Classes {
    /// How many there are.
    pub count: usize,
    /// Those with a listening socket of their own.
    pub with_socket: usize,
    /// The shim is loaded in a process that listens.
    pub shim: bool,
    /// Requests are to wait in the order of the classes, and they do: the queue is there.
    pub queue: Option<bool>,
}

impl Classes {
    /// What of it is not there though it is asked for; that the shim has no socket at all is told elsewhere.
    fn problem(&self, listener: &Listener) -> Option<String> {
        let name = &listener.name;
        if self.queue == Some(false) {
            return Some(format!(
                "{name}: its queue is not there; apply the policy again, and see what `fief apply` notes"
            ));
        }
        let Self { count, with_socket, .. } = self;
        let is_partial = listener.serve == Serve::Shim && listener.queue.is_none() && (1..*count).contains(with_socket);
        is_partial.then(|| {
            format!("{name}: {with_socket} of its {count} classes have a socket; start the server again by `fief exec`")
        })
    }
}

/// Ids of the cgroups whose sockets the hooks see.
pub(crate) fn managed(snapshot: &Snapshot) -> HashSet<u64> {
    let folders = snapshot.units.iter().filter_map(|unit| unit.cgroup.as_deref());
    folders.flat_map(cgroup::ids).collect()
}

/// What the kernel side has of the listeners of the policy in force.
#[derive(Debug, Default)]
pub(crate) struct Kernel<'a> {
    pub(crate) managed: HashSet<u64>,
    pub(crate) class_listeners: &'a [ClassListenerView],
    /// Names of listeners.
    pub(crate) queues: HashSet<String>,
}

impl<'a> Kernel<'a> {
    pub(crate) fn read(fief: &Fief, names: &Names, snapshot: &'a Snapshot) -> Result<Self> {
        let mut queues = HashSet::new();
        for (index, name) in names.listeners() {
            if fief.guard_of(names.slot(), index)?.is_some_and(|guard| guard.queue != 0) {
                queues.insert(name.to_owned());
            }
        }
        Ok(Self { managed: managed(snapshot), class_listeners: &snapshot.class_listeners, queues })
    }

    /// Whether the hooks of this cgroup are there.
    pub(super) fn has(&self, cgroup: u64) -> bool {
        self.managed.contains(&cgroup)
    }

    /// The class listeners of a listener.
    fn class_listeners<'s>(&'s self, listener: &'s Listener) -> impl Iterator<Item = &'s ClassListenerView> {
        let is_its = move |address: SocketAddr| listener.addresses().any(|own| own == address);
        self.class_listeners.iter().filter(move |class| class.address.is_some_and(&is_its))
    }

    /// The server of a socket, if connections to the listener come to it: by its address, or as a copy.
    fn serves(&self, listener: &Listener, socket: &Listening, server: &ServerStatus) -> Option<ServerStatus> {
        if listener.addresses().any(|address| socket.serves(address)) {
            return Some(server.clone());
        }
        // the shim's are in a process that has the address itself
        let mut copies = self.class_listeners(listener).filter(|_| listener.serve == Serve::CopiesPerClass);
        let copy = copies.find(|class| Some(class.cookie) == socket.cookie)?;
        Some(ServerStatus { class: Some(copy.container.clone()), ..server.clone() })
    }

    /// How the classes of a listener with these servers are told apart.
    fn classes(&self, listener: &Listener, servers: &[ServerStatus]) -> Classes {
        let classes: BTreeSet<String> = listener.table().classes.into_iter().map(|class| class.container).collect();
        let with_socket: BTreeSet<_> = self.class_listeners(listener).map(|class| &class.container).collect();
        let pids: BTreeSet<i32> = servers.iter().filter_map(|server| server.pid).collect();
        Classes {
            count: classes.len(),
            with_socket: classes.iter().filter(|class| with_socket.contains(class)).count(),
            shim: pids.into_iter().any(has_shim),
            queue: listener.queue.map(|_| self.queues.contains(&listener.name)),
        }
    }
}

/// Whether the process has the shim among its files in memory.
fn has_shim(pid: i32) -> bool {
    let maps = patience::in_time(move || fs::read(format!("/proc/{pid}/maps")).unwrap_or_default());
    maps.is_some_and(|maps| is_shim_among(&maps))
}

/// Files may have any names.
fn is_shim_among(maps: &[u8]) -> bool {
    let files = maps.split(|byte| *byte == b'\n').filter_map(|line| line.splitn(2, |byte| *byte == b'/').nth(1));
    files.map(OsStr::from_bytes).any(|path| is_shim(Path::new(path)))
}

/// What is found in a network namespace.
#[derive(Default)]
pub(crate) struct Here {
    pub(crate) listeners: Vec<ListenerStatus>,
    pub(super) problems: Vec<String>,
}

impl Here {
    pub(crate) fn look(policy: &Policy, kernel: &Kernel<'_>) -> Self {
        let listening = listening::find().unwrap_or_default();
        let servers = servers::of(&listening, &kernel.managed, sockets::MOST);
        let mut here = Self::default();
        for listener in policy.listeners.iter().filter(|listener| !listener.forward) {
            let own: Vec<_> =
                servers.iter().filter_map(|(socket, server)| kernel.serves(listener, socket, server)).collect();
            let classes = kernel.classes(listener, &own);
            // copies without a cookie (a kernel without inet_diag) are known by their number alone
            if !(own.is_empty() && listener.serve == Serve::CopiesPerClass && classes.with_socket > 0) {
                here.problems.extend(absent(listener, &own, &servers));
            }
            here.problems.extend(classes.problem(listener).filter(|_| !own.is_empty()));
            here.problems.extend(hidden(listener, &own));
            here.listeners.push(ListenerStatus {
                name: listener.name.clone(),
                address: listener.address,
                serve: listener.serve,
                mode: listener.mode,
                classes,
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

/// Somebody listens there, and nobody can tell who.
fn hidden(listener: &Listener, own: &[ServerStatus]) -> Option<String> {
    let Listener { name, address, .. } = listener;
    own.iter().any(|server| server.program == servers::HIDDEN).then(|| {
        format!(
            "{name}: who listens on {address} is not known, since more descriptors are open on this machine than the {} that are looked \
             at (lower the limit of who has them: ulimit -n, LimitNOFILE=), or a process is within exec that does not end (ps waits \
             for it too: kill it)",
            sockets::MOST
        )
    })
}

/// Whether the kernel refuses to bind to it.
fn is_foreign(address: SocketAddr) -> bool {
    let bound = UdpSocket::bind((address.ip(), 0));
    bound.is_err_and(|error| error.kind() == io::ErrorKind::AddrNotAvailable)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn policy(lines: &str) -> Policy {
        let text = format!(
            "version = 1\n[container.web]\n[container.gold]\n[listener.web]\naddress = \"0.0.0.0:80\"\n{lines}\n\
             [[listener.web.client]]\nfrom = [\"10.0.0.0/8\"]\ncontainer = \"gold\"\n\
             [[listener.web.client]]\nfrom = [\"any\"]\ncontainer = \"web\"\n"
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
    fn a_mapped_file_whose_name_is_no_text_hides_no_shim() {
        let maps = b"1-2 r-xp 0 08:01 7    /tmp/\xff\n3-4 r-xp 0 08:01 8    /run/fief/shim-0a.so\n5-6 rw-p 0 0 0\n";
        assert!(is_shim_among(maps) && !is_shim_among(&maps[..40]) && !is_shim_among(b""));
    }

    #[test]
    fn a_server_that_was_not_found_in_time_is_told_with_what_to_do() {
        let server = |program: &str| ServerStatus {
            address: "0.0.0.0:80".parse().expect("an address"),
            class: None,
            pid: None,
            program: program.to_owned(),
            unit: None,
            managed: true,
        };
        let listener = &policy("").listeners[0];
        assert_eq!(hidden(listener, &[server("nginx")]), None);
        let said = hidden(listener, &[server("nginx"), server(servers::HIDDEN)]).expect("one is hidden");
        assert!(
            said.starts_with("web: who listens on 0.0.0.0:80 is not known") && said.contains("LimitNOFILE="),
            "{said}"
        );
    }

    #[test]
    fn a_listener_without_a_server_comes_with_those_that_listen_elsewhere() {
        let socket = Listening {
            address: "0.0.0.0:8080".parse().expect("an address"),
            multipath: false,
            cgroup: None,
            inode: 1,
            cookie: None,
        };
        let server = ServerStatus {
            address: socket.address,
            class: None,
            pid: Some(7),
            program: "nginx".into(),
            unit: None,
            managed: true,
        };
        let said = absent(&policy("").listeners[0], &[], &[(&socket, server.clone())]).expect("nobody listens");
        assert!(said.contains("nothing listens on 0.0.0.0:80 (nginx on 0.0.0.0:8080 listens)"), "{said}");
        assert_eq!(absent(&policy("").listeners[0], std::slice::from_ref(&server), &[(&socket, server.clone())]), None);
    }
}
