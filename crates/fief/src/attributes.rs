// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What can be read from a container and set on it.

use std::fmt;
use std::time::Duration;

use crate::abi;

/// What a container has used since it was made. Times in nanoseconds.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
pub struct Usage {
    /// In threads bound to it, user mode and system calls.
    pub thread_ns: u64,
    /// Protocol work on packets for its sockets, whichever thread they interrupted.
    pub receive_ns: u64,
    /// The part of `thread_ns` in user mode, from the kernel's tick samples.
    pub user_ns: u64,
    /// The part of `thread_ns` in the kernel, from the kernel's tick samples.
    pub system_ns: u64,
    /// Packets that reached its sockets; segments that the kernel merged count one by one.
    pub packets_in: u64,
    /// Their bytes from the network layer up.
    pub bytes_in: u64,
    /// Packets sent by its sockets.
    pub packets_out: u64,
    /// Their bytes from the network layer up.
    pub bytes_out: u64,
    /// Bytes read from disks.
    pub disk_read_bytes: u64,
    /// Bytes written to disks; buffered writes count for who made the page dirty.
    pub disk_write_bytes: u64,
    /// Page faults without disk work.
    pub minor_faults: u64,
    /// Page faults with disk work.
    pub major_faults: u64,
    /// Connection requests for its class.
    pub syns_seen: u64,
    /// Of these, dropped by the listener.
    pub syns_dropped: u64,
    /// Connections accepted for it.
    pub accepts: u64,
}

/// Counters of a [`Usage`].
pub const COUNTERS: usize = 15;

impl Usage {
    /// All counters, in the order of the fields.
    pub fn counters(&self) -> [u64; COUNTERS] {
        [
            self.thread_ns,
            self.receive_ns,
            self.user_ns,
            self.system_ns,
            self.packets_in,
            self.bytes_in,
            self.packets_out,
            self.bytes_out,
            self.disk_read_bytes,
            self.disk_write_bytes,
            self.minor_faults,
            self.major_faults,
            self.syns_seen,
            self.syns_dropped,
            self.accepts,
        ]
    }

    /// The counterpart of [`Usage::counters`].
    pub fn of_counters(counters: [u64; COUNTERS]) -> Self {
        let [thread_ns, receive_ns, user_ns, system_ns, rest @ ..] = counters;
        let [packets_in, bytes_in, packets_out, bytes_out, rest @ ..] = rest;
        let [disk_read_bytes, disk_write_bytes, minor_faults, major_faults, rest @ ..] = rest;
        let [syns_seen, syns_dropped, accepts] = rest;
        Self {
            thread_ns,
            receive_ns,
            user_ns,
            system_ns,
            packets_in,
            bytes_in,
            packets_out,
            bytes_out,
            disk_read_bytes,
            disk_write_bytes,
            minor_faults,
            major_faults,
            syns_seen,
            syns_dropped,
            accepts,
        }
    }

    /// All CPU time: threads and receive work.
    pub fn cpu_ns(&self) -> u64 {
        self.thread_ns + self.receive_ns
    }

    /// `thread_ns` split into user and system time by the proportion of the tick samples.
    pub fn user_system_ns(&self) -> (u64, u64) {
        let samples = u128::from(self.user_ns) + u128::from(self.system_ns);
        if samples == 0 {
            return (self.thread_ns, 0);
        }
        let user = (u128::from(self.thread_ns) * u128::from(self.user_ns) / samples) as u64;
        (user, self.thread_ns - user)
    }
}

impl From<abi::fief_usage> for Usage {
    fn from(u: abi::fief_usage) -> Self {
        Self {
            thread_ns: u.thread_ns,
            receive_ns: u.receive_ns,
            user_ns: u.user_ns,
            system_ns: u.system_ns,
            packets_in: u.packets_in,
            bytes_in: u.bytes_in,
            packets_out: u.packets_out,
            bytes_out: u.bytes_out,
            disk_read_bytes: u.disk_read_bytes,
            disk_write_bytes: u.disk_write_bytes,
            minor_faults: u.minor_faults,
            major_faults: u.major_faults,
            syns_seen: u.syns_seen,
            syns_dropped: u.syns_dropped,
            accepts: u.accepts,
        }
    }
}

/// Attributes of a container, in the vocabulary and ranges of cgroup v2 where that has them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
pub struct Attributes {
    /// Guaranteed CPU, in parts per million of the machine.
    pub share_ppm: u32,
    /// Most CPU, in parts per million of the machine; `None`: no limit.
    pub limit_ppm: Option<u32>,
    /// Weight among siblings, 1 to 10000, default 100.
    pub weight: u32,
    /// Priority, 0 to 65535, default 100; 0 is served only when nothing else wants the CPU.
    pub priority: u32,
    /// Memory limit in bytes; `None`: no limit.
    pub memory_max: Option<u64>,
    /// Most bits per second sent; `None`: no limit.
    pub net_max: Option<u64>,
    /// Weight of what it sends among siblings, 1 to 10000, default 100.
    pub net_weight: u32,
    /// At its end, the usage is added to the parent's.
    pub pass_up: bool,
    /// Most containers below it; `None`: no limit but the user's quota.
    pub descendants_max: Option<u32>,
    /// Sum of the children's shares, in parts per million of the machine.
    pub reserved_ppm: u32,
    /// Which of its own threads goes first.
    pub policy: Policy,
    /// Of each thread under [`Policy::Edf`]; `None`: 100 ms.
    pub period: Option<Duration>,
    /// What each thread has in a period; `None`: 10 ms.
    pub budget: Option<Duration>,
}

/// Which of a container's own threads goes first, while Fief's scheduler is on.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
pub enum Policy {
    /// Each has a part by its nice value.
    #[default]
    Fair,
    /// Who woke up first, until it sleeps.
    Fifo,
    /// A slice each, in turn.
    Rr,
    /// Whose period ends first (earliest deadline first, with constant bandwidth: Abeni and Buttazzo, RTSS 1998).
    Edf,
    /// Drawn, by tickets as the nice values say (Waldspurger and Weihl, OSDI 1994).
    Lottery,
    /// By an object that the operator has loaded, which only a policy file can give.
    Object,
}

impl Policy {
    pub(crate) fn number(self) -> u32 {
        match self {
            Self::Fair => abi::FIEF_POLICY_FAIR,
            Self::Fifo => abi::FIEF_POLICY_FIFO,
            Self::Rr => abi::FIEF_POLICY_RR,
            Self::Edf => abi::FIEF_POLICY_EDF,
            Self::Lottery => abi::FIEF_POLICY_LOTTERY,
            Self::Object => abi::FIEF_POLICY_OBJECT,
        }
    }

    fn of(number: u32) -> Self {
        if number >= abi::FIEF_POLICY_OBJECT {
            return Self::Object;
        }
        let all = [Self::Fifo, Self::Rr, Self::Edf, Self::Lottery];
        all.into_iter().find(|policy| policy.number() == number).unwrap_or_default()
    }

    /// As policies write it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Fair => "fair",
            Self::Fifo => "fifo",
            Self::Rr => "rr",
            Self::Edf => "edf",
            Self::Lottery => "lottery",
            Self::Object => "object",
        }
    }
}

/// Of microseconds; 0: none.
fn time(us: u32) -> Option<Duration> {
    (us != 0).then(|| Duration::from_micros(us.into()))
}

impl From<abi::fief_attributes> for Attributes {
    fn from(a: abi::fief_attributes) -> Self {
        Self {
            share_ppm: a.share_ppm,
            limit_ppm: (a.limit_ppm != 0).then_some(a.limit_ppm),
            weight: a.weight,
            priority: a.priority,
            memory_max: (a.memory_max != 0).then_some(a.memory_max),
            net_max: (a.net_max != 0).then_some(a.net_max),
            net_weight: a.net_weight,
            pass_up: a.pass_up != 0,
            descendants_max: (a.descendants_max != 0).then_some(a.descendants_max),
            reserved_ppm: a.reserved_ppm,
            policy: Policy::of(a.policy),
            period: time(a.period_us),
            budget: time(a.budget_us),
        }
    }
}

/// Whether a container lives, and whether its parent does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum State {
    /// It has a holder.
    Alive,
    /// It has a holder, and no parent: that has ended. It stays under the limits of its nearest living ancestor.
    Orphan,
    /// No holder is left; descendants still live.
    Ended,
}

/// Place and holders of a container.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Info {
    /// Slot in the container table.
    pub id: u32,
    /// Generation of the slot; id and generation together name a container for good.
    pub generation: u32,
    /// Slot of the parent; `None`: no parent.
    pub parent: Option<u32>,
    /// Whether it lives.
    pub state: State,
    /// Rights of the descriptor it was read by.
    pub rights: Rights,
    /// Levels below the root.
    pub depth: u32,
    /// Descriptors, labelled sockets, and threads whose home it is.
    pub handles: u32,
    /// Children, ended ones that still have children included.
    pub children: u32,
    /// Threads bound to it; others than the caller, as of when they last left their CPU.
    pub threads: u32,
    /// Processes whose main thread is one of these.
    pub processes: u32,
    /// Labelled sockets that are open.
    pub sockets: u32,
    /// Last component of its path; empty if it was never named.
    pub name: String,
}

impl From<abi::fief_info> for Info {
    fn from(i: abi::fief_info) -> Self {
        let name: Vec<u8> = i.name.iter().map(|&c| c as u8).take_while(|&c| c != 0).collect();
        Self {
            id: i.self_.id,
            generation: i.self_.generation,
            parent: (i.parent.id != abi::FIEF_NO_ID).then_some(i.parent.id),
            state: match i.state {
                abi::FIEF_ALIVE => State::Alive,
                abi::FIEF_ORPHAN => State::Orphan,
                _ => State::Ended,
            },
            rights: Rights(i.rights),
            depth: i.depth,
            handles: i.holders,
            children: i.children,
            threads: i.threads,
            processes: i.processes,
            sockets: i.sockets,
            name: String::from_utf8_lossy(&name).into_owned(),
        }
    }
}

/// What a descriptor allows. Rights can be dropped, never added.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Rights(pub(crate) u32);

impl Rights {
    /// Bind threads and label sockets.
    pub const USE: Self = Self(abi::FIEF_RIGHT_USE);
    /// Read usage and attributes.
    pub const READ: Self = Self(abi::FIEF_RIGHT_READ);
    /// Make and adopt children.
    pub const CHILDREN: Self = Self(abi::FIEF_RIGHT_CHILDREN);
    /// Change attributes, name and parent.
    pub const ADMINISTER: Self = Self(abi::FIEF_RIGHT_ADMINISTER);
    /// All of them.
    pub const ALL: Self = Self(abi::FIEF_RIGHTS_ALL);

    /// Whether all of `other` are among these.
    pub fn contains(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }
}

impl std::ops::BitOr for Rights {
    type Output = Self;

    fn bitor(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

impl fmt::Debug for Rights {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names =
            [(Self::USE, "use"), (Self::READ, "read"), (Self::CHILDREN, "children"), (Self::ADMINISTER, "administer")];
        f.debug_set().entries(names.iter().filter(|(right, _)| self.contains(*right)).map(|(_, name)| name)).finish()
    }
}
