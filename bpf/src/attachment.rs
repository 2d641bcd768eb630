// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The table of attachments: for each program its object, what it is attached to, when, and where its link is pinned.
//!
//! Installing, upgrading, managing a unit, guarding an interface and removing all walk this table, so a program is added by one
//! row here and one entry point in its object. A test holds the table against the objects.

use std::fs;
use std::path::{Path, PathBuf};

use libbpf_sys::bpf_attach_type;

use crate::link::{self, Place, Side};
use crate::pin::Pins;

/// The object that a program is part of; an object is loaded as a whole.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Object {
    /// Loaded with the installation.
    Core,
    /// Likewise.
    Front,
    /// Loaded when a policy first wants lanes.
    Lrp,
    /// Loaded while a policy labels files, one instance for each build.
    Files,
    /// Loaded and attached as a whole while a policy has shares, weights or limits of the CPU.
    Sched,
}

/// When a tracepoint of the whole machine is attached.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum When {
    /// While somebody needs to know who has the CPUs ([`charging`](crate::charging)).
    Charged,
    /// While a unit is managed.
    Managed,
    /// While a unit is managed whose threads follow their sockets.
    Follows,
    /// While a policy labels files.
    Labelled,
    /// While a listener has a queue.
    Queued,
}

/// What a program is attached to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// A tracepoint of the whole machine: `links/<program>`, or `files/<instance>/<program>` for those of labelled files.
    Trace(When),
    /// A hook of each managed cgroup: `units/<id>/<program>`.
    Unit(bpf_attach_type),
    /// The top of the cgroup2 hierarchy, while a listener needs it: `top/<program>`.
    Top(bpf_attach_type),
    /// The network namespace of the policy, while something there needs to be steered: `netns/<inode>`.
    Namespace(bpf_attach_type),
    /// Interfaces of a network namespace: `<folder>/<inode>/<before><index><after>`.
    Interface { folder: Folder, side: Side, place: Place, before: &'static str, after: &'static str },
    /// The machine's scheduler, all of whose programs have one link: `schedule/link`.
    Scheduler,
    /// Nothing: user space runs it, or another program calls it.
    Called,
}

/// Folders of links at interfaces.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Folder {
    Interfaces,
    Lanes,
}

/// One program.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Attachment {
    pub object: Object,
    pub program: &'static str,
    pub kind: Kind,
}

const fn row(object: Object, program: &'static str, kind: Kind) -> Attachment {
    Attachment { object, program, kind }
}

const fn door(program: &'static str, side: Side, after: &'static str) -> Attachment {
    // In front of whatever else is attached: a program that ends the chain (TC_ACT_OK) would let packets round it.
    let kind = Kind::Interface { folder: Folder::Interfaces, side, place: Place::First, before: "", after };
    row(Object::Front, program, kind)
}

const fn lane(program: &'static str, before: &'static str) -> Attachment {
    // Behind the others: no later program at the interface sees what it redirects.
    let (side, place) = (Side::Ingress, Place::Last);
    row(Object::Lrp, program, Kind::Interface { folder: Folder::Lanes, side, place, before, after: "" })
}

use Kind::{Called, Scheduler, Trace, Unit};
use Object::{Core, Files, Front, Sched};

pub(crate) const TABLE: &[Attachment] = &[
    // every switch, thread and interrupt of the machine passes these eight; a CPU is to begin with a switch
    row(Core, "switch_charges", Trace(When::Charged)),
    row(Core, "newtask_inherits", Trace(When::Charged)),
    row(Core, "task_frees", Trace(When::Charged)),
    row(Core, "attach_adopts", Trace(When::Charged)),
    row(Core, "softirq_enters", Trace(When::Charged)),
    row(Core, "softirq_leaves", Trace(When::Charged)),
    row(Core, "irq_enters", Trace(When::Charged)),
    row(Core, "irq_leaves", Trace(When::Charged)),
    row(Core, "exec_begins", Trace(When::Managed)),
    row(Core, "exec_drains", Trace(When::Managed)),
    row(Core, "exit_drains", Trace(When::Managed)),
    row(Core, "cpu_drains", Called),
    row(Core, "cpu_closes", Called),
    // every packet, send and receive of the machine passes these four
    row(Core, "packet_starts", Trace(When::Managed)),
    row(Core, "poll_ends", Trace(When::Managed)),
    row(Core, "recv_follows", Trace(When::Managed)), // also tells when an accepted socket counts
    row(Core, "send_follows", Trace(When::Follows)),
    row(Core, "sockopt_sets", Unit(libbpf_sys::BPF_CGROUP_SETSOCKOPT)),
    row(Core, "sockopt_gets", Unit(libbpf_sys::BPF_CGROUP_GETSOCKOPT)),
    row(Core, "release_puts", Unit(libbpf_sys::BPF_CGROUP_INET_SOCK_RELEASE)),
    row(Core, "bind4_steers", Unit(libbpf_sys::BPF_CGROUP_INET4_BIND)),
    row(Core, "connect_refuses", Unit(libbpf_sys::BPF_CGROUP_INET4_CONNECT)),
    row(Core, "sendmsg_refuses", Unit(libbpf_sys::BPF_CGROUP_UDP4_SENDMSG)),
    row(Core, "sockops_label", Unit(libbpf_sys::BPF_CGROUP_SOCK_OPS)),
    row(Core, "ingress_charges", Unit(libbpf_sys::BPF_CGROUP_INET_INGRESS)),
    row(Core, "egress_charges", Unit(libbpf_sys::BPF_CGROUP_INET_EGRESS)),
    row(Core, "bind6_steers", Unit(libbpf_sys::BPF_CGROUP_INET6_BIND)),
    row(Core, "bound4_filter", Unit(libbpf_sys::BPF_CGROUP_INET4_POST_BIND)),
    row(Core, "bound6_filter", Unit(libbpf_sys::BPF_CGROUP_INET6_POST_BIND)),
    row(Core, "admin_init", Called),
    row(Core, "admin_create", Called),
    row(Core, "admin_rename", Called),
    row(Core, "admin_release", Called),
    row(Core, "admin_attributes", Called),
    row(Core, "admin_set", Called),
    row(Core, "admin_flip", Called),
    row(Core, "admin_usage", Called),
    row(Core, "admin_unit", Called),
    row(Core, "admin_task", Called),
    row(Core, "admin_asked", Called),
    row(Core, "admin_lost", Called),
    row(Core, "admin_forget", Called),
    row(Core, "admin_userless", Called),
    row(Core, "admin_unlabel", Called),
    row(Core, "admin_files", Called),
    row(Core, "admin_watch", Called),
    row(Core, "admin_costs", Called),
    row(Core, "admin_pauses", Called),
    row(Core, "sweep_fds", Called),
    row(Core, "sweep_labels", Called),
    row(Core, "sweep_files", Called),
    row(Core, "sweep_tasks", Called),
    row(Front, "lookup_steer", Kind::Namespace(libbpf_sys::BPF_SK_LOOKUP)),
    row(Front, "made_keeps", Kind::Top(libbpf_sys::BPF_CGROUP_INET_INGRESS)),
    door("ingress_guards", Side::Ingress, ""),
    row(Front, "ack_guards", Called),
    door("egress_confirms", Side::Egress, "-out"),
    door("ingress_notes", Side::Ingress, "-own"),
    door("egress_clocks", Side::Egress, "-clock"),
    door("ingress_ticks", Side::Ingress, "-ticks"),
    row(Front, "state_clocks", Trace(When::Queued)),
    row(Front, "state_reclocks", Trace(When::Queued)),
    row(Front, "queue_decides", Called),
    row(Front, "queue_carries", Called),
    row(Front, "queue_delivers", Called),
    row(Front, "queue_opens", Called),
    lane("lrp_sorts", "lrp_sorts-"),
    lane("lrp_leaves", "lrp_leaves-"),
    row(Files, "read_follows", Trace(When::Labelled)),
    row(Files, "fault_follows", Trace(When::Labelled)),
    row(Files, "miss_follows", Trace(When::Labelled)),
    row(Files, "dirty_charges", Trace(When::Labelled)),
    row(Files, "write_begins", Trace(When::Labelled)),
    row(Files, "write_ends", Trace(When::Labelled)),
    row(Sched, "wakeup_places", Scheduler),
    row(Sched, "enqueue_waits", Scheduler),
    row(Sched, "dispatch_picks", Scheduler),
    row(Sched, "running_begins", Scheduler),
    row(Sched, "stopping_ends", Scheduler),
    row(Sched, "tick_stops", Scheduler),
    row(Sched, "yield_gives", Scheduler),
    row(Sched, "disable_leaves", Scheduler),
    row(Sched, "cpu_comes", Scheduler),
    row(Sched, "cpu_goes", Scheduler),
    row(Sched, "task_begins", Scheduler),
    row(Sched, "init_begins", Scheduler),
    row(Sched, "exit_tells", Scheduler),
    row(Sched, "threads_tell", Called),
];

/// Every program, in the order in which it is attached.
pub(crate) fn all() -> impl Iterator<Item = &'static Attachment> {
    TABLE.iter()
}

/// Tracepoints of the whole machine that are attached then.
pub(crate) fn traces(when: When) -> impl Iterator<Item = &'static Attachment> {
    all().filter(move |row| row.kind == Trace(when))
}

/// Hooks of a managed cgroup, with their place there.
pub(crate) fn of_units() -> impl Iterator<Item = (&'static str, bpf_attach_type)> {
    all().filter_map(|row| if let Unit(hook) = row.kind { Some((row.program, hook)) } else { None })
}

/// Hooks of the top of the cgroups.
pub(crate) fn of_top() -> impl Iterator<Item = (&'static Attachment, bpf_attach_type)> {
    all().filter_map(|row| if let Kind::Top(hook) = row.kind { Some((row, hook)) } else { None })
}

/// What steers connections in a network namespace, and its hook there. There is one such program: its pin is the namespace's.
pub(crate) fn of_namespace() -> (&'static str, bpf_attach_type) {
    let hooked = |row: &Attachment| if let Kind::Namespace(hook) = row.kind { Some((row.program, hook)) } else { None };
    all().find_map(hooked).expect("the table has one")
}

/// The row of a program.
pub(crate) fn of(program: &str) -> &'static Attachment {
    all().find(|row| row.program == program).expect("a test finds each program of the objects in the table")
}

impl Folder {
    pub(crate) fn below(self, pins: &Pins) -> PathBuf {
        match self {
            Folder::Interfaces => pins.interfaces(),
            Folder::Lanes => pins.lanes(),
        }
    }
}

impl Attachment {
    /// Where the link to an interface of a network namespace is pinned; for programs at interfaces.
    pub(crate) fn pin_at(&self, pins: &Pins, netns: u64, interface: u32) -> PathBuf {
        let Kind::Interface { folder, before, after, .. } = self.kind else {
            unreachable!("{self:?} has no interface")
        };
        folder.below(pins).join(netns.to_string()).join(format!("{before}{interface}{after}"))
    }

    /// Whether a pin below the folder of a network namespace is of this program.
    pub(crate) fn is_at(&self, pin: &Path) -> bool {
        let Kind::Interface { before, after, .. } = self.kind else { return false };
        let index = pin.file_name().and_then(|name| name.to_str()?.strip_prefix(before)?.strip_suffix(after));
        index.is_some_and(|index| !index.is_empty() && index.bytes().all(|digit| digit.is_ascii_digit()))
    }

    /// The links of this program that are pinned now.
    pub(crate) fn links(&self, pins: &Pins) -> Vec<PathBuf> {
        let inside = |folder: PathBuf| -> Vec<_> {
            fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path()).collect()
        };
        let named = |folders: Vec<PathBuf>| folders.into_iter().map(|folder| folder.join(self.program));
        let found: Vec<_> = match self.kind {
            Trace(When::Labelled) => named(inside(pins.files())).collect(),
            Trace(_) => vec![pins.links().join(self.program)],
            Unit(_) => named(inside(pins.units())).collect(),
            Kind::Top(_) => vec![pins.top().join(self.program)],
            Kind::Namespace(_) => inside(pins.netns()),
            Kind::Interface { folder, .. } => {
                link::pins_below(&folder.below(pins)).into_iter().filter(|pin| self.is_at(pin)).collect()
            }
            Scheduler => vec![pins.scheduler_link()],
            Called => Vec::new(),
        };
        found.into_iter().filter(|pin| pin.exists()).collect()
    }

    /// The folder of its links, if the kernel would go on running the program for a while after their last reference: packets
    /// and calls are acted on, so such links are detached before their pins go.
    pub(crate) fn acts_below(&self, pins: &Pins) -> Option<PathBuf> {
        match self.kind {
            Unit(_) => Some(pins.units()),
            Kind::Top(_) => Some(pins.top()),
            Kind::Namespace(_) => Some(pins.netns()),
            Kind::Interface { folder, .. } => Some(folder.below(pins)),
            Scheduler => Some(pins.schedule()),
            Trace(_) | Called => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use libbpf_rs::ProgramType;

    use super::*;
    use crate::skeleton::with_objects;

    /// What the kernel calls a program of this kind.
    fn fits(kind: Kind, program: ProgramType, section: &str) -> bool {
        match kind {
            Trace(_) => program == ProgramType::Tracing && section.starts_with("tp_btf/"),
            Unit(_) => section.starts_with("cgroup") || section == "sockops",
            Kind::Top(_) => section.starts_with("cgroup_skb/"),
            Kind::Namespace(_) => program == ProgramType::SkLookup,
            Kind::Interface { side: Side::Ingress, .. } => section == "tcx/ingress",
            Kind::Interface { side: Side::Egress, .. } => section == "tcx/egress",
            Scheduler => program == ProgramType::StructOps,
            Called => ["syscall", "tcx/ingress", "raw_tp"].contains(&section) || section.starts_with("iter/"),
        }
    }

    #[test]
    fn the_table_has_each_program_of_each_object_and_no_other() {
        let mut seen = BTreeSet::new();
        with_objects(|object, opened| {
            for program in opened.progs_mut() {
                let name = program.name().to_string_lossy().into_owned();
                let section = program.section().to_string_lossy().into_owned();
                let rows: Vec<_> = all().filter(|row| row.program == name).collect();
                let [row] = rows[..] else { panic!("{name} has {} rows", rows.len()) };
                assert_eq!(row.object, object, "{name}");
                assert!(fits(row.kind, program.prog_type(), &section), "{row:?} is {section}");
                seen.insert(row.program);
            }
        });
        assert_eq!(all().map(|row| row.program).collect::<BTreeSet<_>>(), seen);
    }

    #[test]
    fn pins_at_interfaces_tell_whose_they_are() {
        let at = |program: &str, file: &str| of(program).is_at(Path::new(file));
        assert!(at("ingress_guards", "/1/17") && at("egress_confirms", "/1/17-out") && at("ingress_notes", "/1/1-own"));
        assert!(at("lrp_sorts", "/1/lrp_sorts-2") && at("lrp_leaves", "/1/lrp_leaves-2"));
        assert!(!["17-out", "1-own", "", "-out", "lrp_sorts-2"].into_iter().any(|file| at("ingress_guards", file)));
        assert!(!at("lrp_sorts", "/1/lrp_leaves-2") && !at("lookup_steer", "/1/2"));
    }
}
