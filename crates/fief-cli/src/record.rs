// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The JSON objects about containers that `ls`, `show` and `usage` print: raw integers, the unit in the name.
//!
//! These names are a promise to programs; `docs/cli.md` lists them.

use std::collections::HashMap;

use serde::Serialize;

use fief_control::{ContainerView, Snapshot};

#[cfg(test)]
pub use fief_sample as sample;

/// Place and holders.
#[derive(Debug, Serialize)]
pub struct Place<'a> {
    pub container: &'a str,
    pub id: u32,
    pub generation: u32,
    /// Path of the parent.
    pub parent: Option<&'a str>,
    pub state: &'a str,
    /// Named by the policy in force.
    pub policy: bool,
    /// Home of a managed unit.
    pub unit: bool,
    pub handles: u32,
    pub threads: u32,
    pub processes: u32,
    pub sockets: u32,
    /// Labelled.
    pub files: u32,
    pub discarded: u64,
    pub children: u32,
}

impl<'a> Place<'a> {
    pub fn of(view: &'a ContainerView, paths: &Paths<'a>) -> Self {
        Self {
            container: &view.path,
            id: view.id,
            generation: view.generation,
            parent: view.parent.and_then(|id| paths.get(&id).copied()),
            state: view.state,
            policy: view.policy,
            unit: view.unit,
            handles: view.handles,
            threads: view.threads,
            processes: view.processes,
            sockets: view.sockets,
            files: view.files,
            discarded: view.discarded,
            children: view.children,
        }
    }
}

/// Paths by id.
pub type Paths<'a> = HashMap<u32, &'a str>;

pub fn paths(snapshot: &Snapshot) -> Paths<'_> {
    snapshot.containers.iter().map(|view| (view.id, view.path.as_str())).collect()
}

/// Attributes; null: none.
#[derive(Debug, Serialize)]
pub struct Attributes {
    pub cpu_share_ppm: u32,
    pub cpu_limit_ppm: Option<u32>,
    pub cpu_weight: u32,
    pub cpu_priority: u32,
    /// Sum of the children's shares.
    pub cpu_reserved_ppm: u32,
    pub memory_max_bytes: Option<u64>,
    pub network_max_bits_per_second: Option<u64>,
    pub network_weight: u32,
    pub pass_up: bool,
    pub descendants_max: Option<u32>,
    pub cpu_policy: &'static str,
    /// Of `edf`; null: its default.
    pub cpu_period_us: Option<u64>,
    pub cpu_budget_us: Option<u64>,
}

impl From<&fief::Attributes> for Attributes {
    fn from(attributes: &fief::Attributes) -> Self {
        Self {
            cpu_share_ppm: attributes.share_ppm,
            cpu_limit_ppm: attributes.limit_ppm,
            cpu_weight: attributes.weight,
            cpu_priority: attributes.priority,
            cpu_reserved_ppm: attributes.reserved_ppm,
            memory_max_bytes: attributes.memory_max,
            network_max_bits_per_second: attributes.net_max,
            network_weight: attributes.net_weight,
            pass_up: attributes.pass_up,
            descendants_max: attributes.descendants_max,
            cpu_policy: attributes.policy.name(),
            cpu_period_us: attributes.period.map(|time| time.as_micros() as u64),
            cpu_budget_us: attributes.budget.map(|time| time.as_micros() as u64),
        }
    }
}

/// What was used; `user_ns` and `system_ns` are the kernel's samples, `thread_ns` is exact.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Usage {
    pub thread_ns: u64,
    pub receive_ns: u64,
    pub user_ns: u64,
    pub system_ns: u64,
    pub packets_in: u64,
    pub bytes_in: u64,
    pub packets_out: u64,
    pub bytes_out: u64,
    pub disk_read_bytes: u64,
    pub disk_write_bytes: u64,
    pub minor_faults: u64,
    pub major_faults: u64,
    pub syns_seen: u64,
    pub syns_dropped: u64,
    pub accepts: u64,
}

/// The names of a [`Usage`], in their order.
pub const USAGE_NAMES: [&str; fief::COUNTERS] = [
    "thread_ns",
    "receive_ns",
    "user_ns",
    "system_ns",
    "packets_in",
    "bytes_in",
    "packets_out",
    "bytes_out",
    "disk_read_bytes",
    "disk_write_bytes",
    "minor_faults",
    "major_faults",
    "syns_seen",
    "syns_dropped",
    "accepts",
];

impl From<&fief::Usage> for Usage {
    fn from(usage: &fief::Usage) -> Self {
        Self {
            thread_ns: usage.thread_ns,
            receive_ns: usage.receive_ns,
            user_ns: usage.user_ns,
            system_ns: usage.system_ns,
            packets_in: usage.packets_in,
            bytes_in: usage.bytes_in,
            packets_out: usage.packets_out,
            bytes_out: usage.bytes_out,
            disk_read_bytes: usage.disk_read_bytes,
            disk_write_bytes: usage.disk_write_bytes,
            minor_faults: usage.minor_faults,
            major_faults: usage.major_faults,
            syns_seen: usage.syns_seen,
            syns_dropped: usage.syns_dropped,
            accepts: usage.accepts,
        }
    }
}

impl Usage {
    pub fn cpu_ns(&self) -> u64 {
        self.thread_ns + self.receive_ns
    }

    /// `thread_ns` of the container with that id, divided in the proportion of the samples.
    pub fn split(&self, id: u32) -> Split {
        use fief::abi::{FIEF_IDLE, FIEF_ROOT, FIEF_STEAL, FIEF_SYSTEM, FIEF_UNATTRIBUTED};
        let has_samples = self.user_ns + self.system_ns > 0;
        match id {
            FIEF_SYSTEM | FIEF_UNATTRIBUTED if !has_samples => Split { system_ns: self.thread_ns, ..Split::default() },
            FIEF_ROOT | FIEF_STEAL | FIEF_IDLE if !has_samples => {
                Split { undivided_ns: self.thread_ns, ..Split::default() }
            }
            _ => {
                let mut usage = fief::Usage::default();
                usage.thread_ns = self.thread_ns;
                usage.user_ns = self.user_ns;
                usage.system_ns = self.system_ns;
                let (user_ns, system_ns) = usage.user_system_ns();
                Split { user_ns, system_ns, undivided_ns: 0 }
            }
        }
    }

    /// In the order of [`USAGE_NAMES`].
    pub fn counters(&self) -> [u64; fief::COUNTERS] {
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

    pub fn plus(self, other: Self) -> Self {
        self.each(other, u64::saturating_add)
    }

    /// The smaller of each counter.
    pub fn least(self, other: Self) -> Self {
        self.each(other, u64::min)
    }

    /// The larger of each counter.
    pub fn most(self, other: Self) -> Self {
        self.each(other, u64::max)
    }

    /// Counters that were read in the middle of a change may seem to go back; that is no use.
    pub fn minus(self, other: Self) -> Self {
        self.each(other, u64::saturating_sub)
    }

    fn each(self, other: Self, operation: impl Fn(u64, u64) -> u64) -> Self {
        Self {
            thread_ns: operation(self.thread_ns, other.thread_ns),
            receive_ns: operation(self.receive_ns, other.receive_ns),
            user_ns: operation(self.user_ns, other.user_ns),
            system_ns: operation(self.system_ns, other.system_ns),
            packets_in: operation(self.packets_in, other.packets_in),
            bytes_in: operation(self.bytes_in, other.bytes_in),
            packets_out: operation(self.packets_out, other.packets_out),
            bytes_out: operation(self.bytes_out, other.bytes_out),
            disk_read_bytes: operation(self.disk_read_bytes, other.disk_read_bytes),
            disk_write_bytes: operation(self.disk_write_bytes, other.disk_write_bytes),
            minor_faults: operation(self.minor_faults, other.minor_faults),
            major_faults: operation(self.major_faults, other.major_faults),
            syns_seen: operation(self.syns_seen, other.syns_seen),
            syns_dropped: operation(self.syns_dropped, other.syns_dropped),
            accepts: operation(self.accepts, other.accepts),
        }
    }
}

/// The time of threads by mode.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Split {
    pub user_ns: u64,
    pub system_ns: u64,
    /// Of threads that nobody manages, which are not sampled; or nobody's.
    pub undivided_ns: u64,
}

impl Split {
    pub fn plus(self, other: Self) -> Self {
        Self {
            user_ns: self.user_ns.saturating_add(other.user_ns),
            system_ns: self.system_ns.saturating_add(other.system_ns),
            undivided_ns: self.undivided_ns.saturating_add(other.undivided_ns),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_names_of_the_usage_are_those_that_are_promised() {
        let value = serde_json::to_value(Usage { thread_ns: 7, ..Usage::default() }).expect("numbers");
        let mut names: Vec<&str> = value.as_object().expect("an object").keys().map(String::as_str).collect();
        names.sort_unstable();
        let mut promised = USAGE_NAMES;
        promised.sort_unstable();
        assert_eq!(names, promised);
        let text = serde_json::to_string(&Usage::default()).expect("numbers");
        let places: Vec<_> = USAGE_NAMES.iter().map(|name| text.find(&format!("\"{name}\""))).collect();
        assert!(places.is_sorted(), "{text}");
        assert_eq!(value["thread_ns"], 7);
    }

    #[test]
    fn every_name_is_in_the_documentation() {
        let page = include_str!("../../../docs/cli.md");
        let snapshot = sample::snapshot(vec![sample::container("shop", 8, None)]);
        let view = &snapshot.containers[0];
        for object in [
            serde_json::to_value(Usage::default()),
            serde_json::to_value(Place::of(view, &paths(&snapshot))),
            serde_json::to_value(Attributes::from(&view.attributes)),
        ] {
            for name in object.expect("texts and numbers").as_object().expect("an object").keys() {
                assert!(page.contains(&format!("`{name}`")), "{name} is missing");
            }
        }
    }

    #[test]
    fn time_is_divided_only_where_it_is_sampled() {
        let sampled = Usage { thread_ns: 100, user_ns: 3, system_ns: 1, ..Usage::default() };
        assert_eq!(sampled.split(8), Split { user_ns: 75, system_ns: 25, undivided_ns: 0 });
        let unsampled = Usage { thread_ns: 100, ..Usage::default() };
        let split = |id| unsampled.split(id);
        assert_eq!(split(fief::abi::FIEF_SYSTEM), Split { system_ns: 100, ..Split::default() });
        assert_eq!(split(fief::abi::FIEF_ROOT), Split { undivided_ns: 100, ..Split::default() });
        assert_eq!(split(fief::abi::FIEF_IDLE), Split { undivided_ns: 100, ..Split::default() });
    }

    #[test]
    fn a_place_names_its_parent_by_path() {
        let snapshot =
            sample::snapshot(vec![sample::container("shop", 8, Some(0)), sample::container("shop/gold", 9, Some(8))]);
        let place =
            serde_json::to_value(Place::of(&snapshot.containers[1], &paths(&snapshot))).expect("numbers and texts");
        assert_eq!(place["parent"], "shop");
        let place =
            serde_json::to_value(Place::of(&snapshot.containers[0], &paths(&snapshot))).expect("numbers and texts");
        assert_eq!(place["parent"], serde_json::Value::Null);
    }
}
