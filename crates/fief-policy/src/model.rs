// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The checked model of a policy: plain data with defaults filled in and units resolved.
//!
//! A value from [`parse`](crate::parse) holds all the rules of `docs/policy.md`; one that was built by hand holds what
//! its builder saw to.

mod listener;

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

use crate::cpu::{Cpu, Order};
pub use listener::{AcceptOrder, ClassQueue, Client, From, Isolate, Listener, Lrp, Per, Queue, Serve, SynRate, Until};

/// A whole policy file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Policy {
    pub version: u32,
    pub mode: Mode,
    /// Files can be labelled with containers.
    pub label_files: bool,
    pub schedule: Schedule,
    pub front: Front,
    pub overload: Overload,
    /// Orders among threads that were built outside of Fief.
    pub orders: Vec<Order>,
    /// Every path, the implied parents too, parents before their children, otherwise in the order of the file.
    pub containers: Vec<Container>,
    /// In the order of the file. The index in the kernel is another: an address keeps its own from policy to policy.
    pub listeners: Vec<Listener>,
}

impl Policy {
    /// The container of that path.
    pub fn container(&self, path: &str) -> Option<&Container> {
        self.containers.iter().find(|container| container.path == path)
    }

    /// The listener of that name.
    pub fn listener(&self, name: &str) -> Option<&Listener> {
        self.listeners.iter().find(|listener| listener.name == name)
    }

    /// Whether nothing is refused at the listener, and what would be is counted.
    pub fn watches(&self, listener: &Listener) -> bool {
        [self.mode, listener.mode].contains(&Mode::Monitor)
    }

    /// Whether requests of IPv4 may wait in a queue at the loopback.
    pub fn queues_at_loopback(&self) -> bool {
        let waits = |listener: &Listener| listener.queue.is_some() && listener.has_ipv4() && !self.watches(listener);
        self.front.guards_loopback() && self.listeners.iter().any(waits)
    }

    /// Whether what it says of the CPU needs somebody who holds it: a scheduler that knows containers, or cgroups. Priorities of
    /// classes alone do not: they order accepting and serving without.
    pub fn wants_enforcer(&self) -> bool {
        self.schedule != Schedule::Off && self.divides_cpu()
    }

    /// The containers of programs that servers start, each once.
    pub fn program_containers(&self) -> BTreeSet<&str> {
        self.containers.iter().filter_map(|container| container.programs.as_deref()).collect()
    }

    /// Whether it says of a container how the CPU is divided.
    pub fn divides_cpu(&self) -> bool {
        self.dividing().next().is_some()
    }

    /// What it says of how the CPU is divided, by the names of a policy, container by container. The priority of a class, or of what is
    /// above one, is not among it; any other one can order nothing but threads.
    pub fn dividing(&self) -> impl Iterator<Item = (&Container, Vec<&'static str>)> {
        let classes = self.classes_and_above();
        self.containers.iter().filter_map(move |container| {
            let mut given: Vec<&'static str> = container.cpu.given().collect();
            if container.cpu.has_priority() && !classes.contains(container.path.as_str()) {
                given.push("cpu.priority");
            }
            (!given.is_empty()).then_some((container, given))
        })
    }

    /// Classes, and what is above one, that have a priority: it orders accepting and serving.
    pub fn prioritised_classes(&self) -> impl Iterator<Item = &Container> {
        let classes = self.classes_and_above();
        let is_one =
            move |container: &&Container| container.cpu.has_priority() && classes.contains(container.path.as_str());
        self.containers.iter().filter(is_one)
    }

    fn classes_and_above(&self) -> BTreeSet<&str> {
        let mut found = BTreeSet::new();
        for class in self.listeners.iter().flat_map(Listener::class_paths) {
            let mut path = Some(class);
            // what is above one that was seen has been seen
            while let Some(next) = path.filter(|path| found.insert(*path)) {
                path = next.rsplit_once('/').map(|(above, _)| above);
            }
        }
        found
    }
}

/// Whether Fief divides the CPU, and how.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Schedule {
    /// Where a container has a share, a limit, a weight, a policy, or a priority that is for threads alone; by cgroups where the kernel
    /// takes no schedulers.
    Auto,
    /// By cgroups, also where the kernel takes schedulers.
    Cgroup,
    /// The default, as long as the scheduler has not been turned on and off often enough under load.
    #[default]
    Off,
}

/// What becomes of verdicts on connections and requests. What stands further out holds for all within: a listener of a
/// policy in monitor mode is in monitor mode, and so are its rules.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Mode {
    #[default]
    Enforce,
    /// They are counted; nothing is done.
    Monitor,
}

/// What the control of connections and requests needs from the machine.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Front {
    /// Empty: every interface that is up, but lo; of a bridge or bond itself, not its ports.
    pub interfaces: Vec<String>,
    pub handshake: Handshake,
    /// `None`: it depends on the listener.
    pub unguarded: Option<Unguarded>,
}

/// What becomes of a new connection that came in where nothing guards its listener.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Unguarded {
    /// It is refused, and counted.
    Refuse,
    /// It is counted.
    Pass,
}

impl Front {
    /// Whether connections of the machine to itself pass the door.
    pub fn guards_loopback(&self) -> bool {
        self.interfaces.iter().any(|name| name == "lo")
    }

    /// Whether connections to the listener that came in where nothing guards are refused; `None`: they are expected.
    pub fn refuses_unguarded(&self, listener: &Listener) -> Option<bool> {
        match self.unguarded {
            Some(unguarded) => Some(unguarded == Unguarded::Refuse),
            None if self.interfaces.is_empty() => Some(listener.limits()),
            None => None,
        }
    }
}

/// Who answers connection requests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Handshake {
    /// What goes together with the firewall of the machine.
    #[default]
    Auto,
    /// Fief's own cookies, before the firewall.
    Own,
    /// The kernel's cookies (`net.ipv4.tcp_syncookies = 2`), behind the firewall.
    Kernel,
}

/// When a listener is busy or overloaded: when any of a level's thresholds is reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Overload {
    pub busy: Thresholds,
    pub overloaded: Thresholds,
    /// A level is left after so long below it.
    pub hold_ns: u64,
}

impl Default for Overload {
    fn default() -> Self {
        Self {
            busy: Thresholds { queue_percent: 25, cpu_percent: 80, drops: 100 },
            overloaded: Thresholds { queue_percent: 75, cpu_percent: 95, drops: 1000 },
            hold_ns: 5_000_000_000,
        }
    }
}

/// 0: not looked at.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Thresholds {
    /// Connections that wait for accept, of the listen queue's length.
    pub queue_percent: u32,
    /// CPU time of the machine that is not idle.
    pub cpu_percent: u32,
    /// Connection requests a second that were dropped at the listener.
    pub drops: u32,
}

/// Level of overload from which on a control is in force (Voigt et al. 2001, section 3).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Level {
    #[default]
    Always,
    Busy,
    Overloaded,
}

/// A resource principal.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Container {
    /// Components joined by `/`, the topmost first.
    pub path: String,
    /// The path that it had before.
    pub was: Option<String>,
    pub cpu: Cpu,
    /// Bytes; 0: no limit.
    pub memory_max: u64,
    pub network: Network,
    /// At its end, the usage is added to the parent's.
    pub pass_up: bool,
    /// Most containers below this one; 0: no limit of its own.
    pub descendants_max: u32,
    /// How soon its requests are answered, by queues whose class it is.
    pub latency: Option<Latency>,
    /// Path of the container below which each program has one that a server starts for a client of this container; `None`: as
    /// the nearest container above says.
    pub programs: Option<String>,
}

/// So many of a million requests are answered within a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Latency {
    pub within_ns: u64,
    pub ppm: u32,
}

impl Container {
    /// A container with the defaults of every attribute.
    pub fn new(path: impl Into<String>) -> Self {
        Self {
            path: path.into(),
            was: None,
            cpu: Cpu::default(),
            memory_max: 0,
            network: Network::default(),
            pass_up: false,
            descendants_max: 0,
            latency: None,
            programs: None,
        }
    }

    /// Path of the parent; none: it stands right below the root.
    pub fn parent(&self) -> Option<&str> {
        self.path.rsplit_once('/').map(|(parent, _)| parent)
    }

    /// Last component of the path.
    pub fn name(&self) -> &str {
        self.path.rsplit('/').next().unwrap_or(&self.path)
    }

    /// Levels below the root, from 1.
    pub fn depth(&self) -> usize {
        self.path.split('/').count()
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Network {
    /// Bits per second; 0: no limit.
    pub max_bits: u64,
    /// Among siblings, 1 to 10,000.
    pub weight: u32,
}

impl Default for Network {
    fn default() -> Self {
        Self { max_bits: 0, weight: 100 }
    }
}
