// SPDX-License-Identifier: Apache-2.0 OR MIT
//! One server address, without and with a guard before it.
//!
//! A test of transparency does the same at every [`Door`]; what an ordinary client sees must not differ.

use std::fmt::Debug;
use std::net::{IpAddr, SocketAddr};
use std::process::{Command, Stdio};

use fief_bpf::abi;
use fief_bpf::record::Record;
use fief_control::{Applied, Result};
use fief_testkit::{Family, Feature, PlainServer, Process, Topology, require, wait_until};
use libbpf_rs::{MapCore, MapFlags, MapHandle};

use crate::{Installation, SOON, spare};

/// A policy whose one listener refuses one path: text of `path` and of `refuse`.
#[macro_export]
macro_rules! refusing {
    ($path:literal, $refuse:literal) => {
        concat!(
            "\n[container.web]\n[listener.plain]\naddress = \"[::]:80\"\n",
            "[[listener.plain.client]]\nfrom = [\"any\"]\ncontainer = \"web\"\n",
            "[[listener.plain.request]]\npath = \"",
            $path,
            "\"\nrefuse = \"",
            $refuse,
            "\"\n"
        )
    };
}

/// What stands before the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Door {
    /// The kernel as it is, to compare with.
    Stock,
    /// Our programs answer SYNs themselves.
    Own,
    /// The kernel answers them with its own cookies.
    Kernel,
}

impl Door {
    pub const ALL: [Door; 3] = [Door::Stock, Door::Own, Door::Kernel];
    pub const GUARDS: [Door; 2] = [Door::Own, Door::Kernel];

    fn handshake(self) -> &'static str {
        match self {
            Door::Stock => "",
            Door::Own => "[front]\nhandshake = \"own\"\n",
            Door::Kernel => "[front]\nhandshake = \"kernel\"\n",
        }
    }
}

/// Listeners of both families at 80 and 443, with rules that no ordinary client meets.
pub const GUARDED: &str = r#"
[container.web]
[container."web/rest"]
[container."web/other"]
[listener.plain]
address = "[::]:80"
queue = false
[[listener.plain.client]]
from = ["any"]
container = "web/rest"
[[listener.plain.request]]
path = "/guarded/*"
container = "web/other"
[listener.tls]
address = "[::]:443"
queue = false
[[listener.tls.client]]
from = ["any"]
container = "web/rest"
[[listener.tls.request]]
server-name = "guarded.example"
container = "web/other"
"#;

/// A topology, and perhaps a policy in force in the server's namespace.
#[derive(Debug)]
pub struct Front {
    installation: Option<Installation>,
    pub topology: Topology,
    pub door: Door,
    /// Verdicts when the door was put there.
    before: Verdicts,
}

/// Whether the machine has what these tests need.
pub fn ready() -> bool {
    require(Feature::NetNs) && require(Feature::Cgroup2) && require(Feature::Bpf)
}

impl Front {
    /// `policy` without its first lines: version and handshake are the door's.
    pub fn new(door: Door, policy: &str) -> Self {
        Self::at(door, policy, Topology::new().unwrap())
    }

    /// The same in a topology of one's own making.
    pub fn at(door: Door, policy: &str, topology: Topology) -> Self {
        let mut front = Self { installation: None, topology, door: Door::Stock, before: Verdicts::default() };
        front.put(door, policy);
        front
    }

    /// Puts a door before the server, where another one may stand.
    fn put(&mut self, door: Door, policy: &str) {
        eprintln!("at {door:?}"); // a failed test shows it
        self.door = door;
        match (door, &self.installation) {
            (Door::Stock, _) => return,
            (_, Some(_)) => drop(self.apply(policy).unwrap_or_else(|e| panic!("{e}"))),
            (_, None) => {
                let (text, spare) = (text(door, policy), spare::take());
                let guard = || match spare {
                    Some(installation) => {
                        drop(installation.apply(&text).unwrap_or_else(|e| panic!("{e}")));
                        installation
                    }
                    None => Installation::new(&text, "web"),
                };
                self.installation = Some(self.topology.server.run(guard).unwrap());
            }
        }
        self.before = self.verdicts();
    }

    /// The policy's installation.
    pub fn installation(&self) -> &Installation {
        self.installation.as_ref().expect("a door with a guard")
    }

    /// The queue of its one listener that has one.
    pub fn queue(&self) -> abi::fief_queue {
        fief_bpf::queue::all(self.installation().fief().pins()).unwrap().pop().expect("a queue").1
    }

    /// Replaces the policy.
    pub fn apply(&self, policy: &str) -> Result<Applied> {
        self.topology.server.run(|| self.installation().apply(&text(self.door, policy))).unwrap()
    }

    /// A command in the server's namespace, and in the managed cgroup if there is one.
    pub fn server_command(&self, program: &str) -> Command {
        let Some(installation) = &self.installation else { return self.topology.server.command(program) };
        let mut command = installation.command(program);
        self.topology.server.enter(&mut command);
        command
    }

    /// A server that is this program of Python's ([`crate::python_server`]), there too.
    pub fn python(&self, program: &str) -> Process {
        let mut command = self.server_command("python3");
        command.args(["-c", program]).stderr(Stdio::null());
        Process::start(command).unwrap()
    }

    /// A server of the test's own, at the guarded port over both families.
    pub fn plain_server(&self) -> PlainServer {
        PlainServer::start(&self.topology.server, "[::]:80".parse().unwrap()).unwrap()
    }

    /// States of the server's sockets that belong to a client's port, as /proc writes them (01 established, 03 request).
    pub fn sockets(&self, port: u16) -> Vec<String> {
        self.states(|_, remote| remote == port)
    }

    /// Whether a socket of the server's namespace listens at a port.
    pub fn listens(&self, port: u16) -> bool {
        self.states(|local, _| local == port).iter().any(|state| state == "0A")
    }

    /// Of the server's sockets with these ports, their own and the remote one.
    fn states(&self, have: impl Fn(u16, u16) -> bool) -> Vec<String> {
        let read = |file: &str| std::fs::read_to_string(format!("/proc/thread-self/net/{file}")).unwrap();
        let text = self.topology.server.run(|| read("tcp") + &read("tcp6")).unwrap();
        let fields = text.lines().filter_map(|line| {
            let words: Vec<_> = line.split_whitespace().collect();
            let port = |at: usize| u16::from_str_radix(words.get(at)?.rsplit(':').next()?, 16).ok();
            have(port(1)?, port(2)?).then(|| (*words.get(3).unwrap()).to_owned())
        });
        fields.collect()
    }

    /// How many sources have proved that they are there.
    pub fn proven_sources(&self) -> usize {
        self.topology.server.run(|| self.installation().fief().front().unwrap().proven_sources).unwrap()
    }

    /// From now on no CPU has time left to answer more than a budget allows, so that a budget is exact.
    pub fn no_cpu_idle(&self) {
        self.hold_cpus(0);
    }

    /// From now on every CPU has time left.
    pub fn cpus_idle(&self) {
        self.hold_cpus(1);
    }

    fn hold_cpus(&self, spare: u64) {
        let map = MapHandle::from_pinned_path(self.installation().fief().pins().map("idle_looks")).unwrap();
        // A look of the far future: none is due before.
        let look = [u64::MAX / 2, 0, spare].map(u64::to_ne_bytes).concat();
        let looks = vec![look; libbpf_rs::num_possible_cpus().unwrap()];
        map.update_percpu(&0u32.to_ne_bytes(), &looks, MapFlags::ANY).unwrap();
    }

    /// Verdicts so far.
    pub fn verdicts(&self) -> Verdicts {
        Verdicts::read(self.installation())
    }

    /// Segments that TCP sent again in the clients' namespace.
    pub fn sent_again(&self) -> u64 {
        self.topology.clients.tcp_counter("RetransSegs").unwrap()
    }

    /// Whether so many verdicts are those on what was asked: one each, and at most one more for what a client sent again, as it
    /// does on a busy machine where nobody has run for the first yet.
    pub fn is_counted(&self, counted: u64, asked: u64) -> bool {
        (asked..=asked + self.sent_again()).contains(&counted)
    }

    /// Verdicts when the door was put there.
    pub fn before(&self) -> &Verdicts {
        &self.before
    }

    /// Nothing of a guard was skipped: what the server accepted had a verdict.
    pub fn assert_ruled(&self, requests: u64) {
        if self.door != Door::Stock {
            let new = || self.verdicts().since(&self.before);
            wait_until(SOON, || new().requests() >= requests)
                .unwrap_or_else(|_| panic!("{requests} requests, and these verdicts: {:?}", new()));
        }
    }
}

impl Drop for Front {
    fn drop(&mut self) {
        // before the namespace, which what it attached must not outlive
        if let Some(installation) = self.installation.take() {
            spare::put(installation, &self.topology.server);
        }
    }
}

/// A policy that begins with a mode has it before the first table.
fn text(door: Door, policy: &str) -> String {
    let (mode, rest) = match policy.split_once('\n') {
        Some((mode, rest)) if mode.starts_with("mode =") => (mode, rest),
        _ => ("", policy),
    };
    format!("version = 1\n{mode}\n{}{rest}", door.handshake())
}

/// Does the same at every door, with and without the guard, and holds the outcomes against each other.
pub fn through_every_door<T: PartialEq + Debug>(policy: &str, action: impl Fn(&Front) -> T) {
    at_every_door(policy, Topology::new().unwrap(), action);
}

/// The same in a topology of one's own making.
pub fn at_every_door<T: PartialEq + Debug>(policy: &str, topology: Topology, action: impl Fn(&Front) -> T) {
    let [stock, guards @ ..] = Door::ALL;
    let mut front = Front::at(stock, policy, topology);
    let expected = action(&front);
    for door in guards {
        front.put(door, policy);
        assert_eq!(action(&front), expected, "{door:?} differs from stock");
    }
}

/// How often each verdict fell.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Verdicts(Vec<Verdict>);

/// One kind of verdict.
#[derive(Clone, Debug, PartialEq)]
pub struct Verdict {
    /// Number of the listener in the policy.
    pub listener: u32,
    /// Path of the container.
    pub container: String,
    pub rule: Option<u32>,
    pub reason: abi::fief_reason,
    pub monitored: bool,
    pub count: u64,
}

impl Verdicts {
    fn read(installation: &Installation) -> Self {
        let fief = installation.fief();
        let map = MapHandle::from_pinned_path(fief.pins().map("verdicts")).unwrap();
        let containers = fief.snapshot().unwrap().containers;
        let path = |id| containers.iter().find(|view| view.id == id).map(|view| view.path.clone()).unwrap_or_default();
        let verdicts = map.keys().filter_map(|bytes| {
            let key = abi::fief_verdict_key::from_bytes(&bytes).unwrap();
            let counts = map.lookup_percpu(&bytes, MapFlags::ANY).unwrap()?;
            let count = counts.iter().map(|count| u64::from_ne_bytes(count[..8].try_into().unwrap())).sum();
            Some(Verdict {
                listener: key.listener.into(),
                container: path(key.container.id),
                rule: (key.rule != abi::FIEF_NO_ID).then_some(key.rule),
                reason: abi::fief_reason::from(key.reason),
                monitored: key.monitored != 0,
                count,
            })
        });
        Self(verdicts.collect())
    }

    /// Every kind of verdict that fell.
    pub fn all(&self) -> &[Verdict] {
        &self.0
    }

    /// How many had this reason and were carried out.
    pub fn count(&self, reason: abi::fief_reason) -> u64 {
        self.0
            .iter()
            .filter(|verdict| verdict.reason == reason && !verdict.monitored)
            .map(|verdict| verdict.count)
            .sum()
    }

    /// How many had this reason in a guard or rule that only counts.
    pub fn monitored(&self, reason: abi::fief_reason) -> u64 {
        self.0.iter().filter(|verdict| verdict.reason == reason && verdict.monitored).map(|verdict| verdict.count).sum()
    }

    /// How many requests could not be read, let pass or refused: those whose begin is not known are among them.
    pub fn unread(&self) -> u64 {
        (abi::FIEF_PASSED_MALFORMED..=abi::FIEF_REFUSED_OTHER).map(|kind| self.count(kind) + self.monitored(kind)).sum()
    }

    /// How many requests were looked at.
    pub fn requests(&self) -> u64 {
        let requests = self.0.iter().filter(|verdict| verdict.reason >= abi::FIEF_REQUEST_RULE);
        requests.map(|verdict| verdict.count).sum()
    }

    /// How many connection requests were looked at, other than on trial.
    pub fn syns(&self) -> u64 {
        let syns = self.0.iter().filter(|verdict| verdict.reason <= abi::FIEF_SYN_QUEUE && !verdict.monitored);
        syns.map(|verdict| verdict.count).sum()
    }

    /// What fell since `before`.
    pub fn since(&self, before: &Self) -> Self {
        let earlier = |verdict: &Verdict| {
            let same = before.0.iter().find(|old| Verdict { count: verdict.count, ..(*old).clone() } == *verdict);
            same.map_or(0, |old| old.count)
        };
        let new = self.0.iter().map(|verdict| Verdict { count: verdict.count - earlier(verdict), ..verdict.clone() });
        Self(new.filter(|verdict| verdict.count > 0).collect())
    }
}

/// The server's address at port 80.
pub fn plain(family: Family) -> SocketAddr {
    Topology::server_address(family, 80)
}

/// The clients' own address, any port.
pub fn anywhere(family: Family) -> SocketAddr {
    let ip: IpAddr = fief_testkit::Client::High.address(family, 1);
    (ip, 0).into()
}
