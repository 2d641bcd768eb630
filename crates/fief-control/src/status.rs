// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Whether what is in force does what it says: who listens where the policy says, whether they are managed, and what stands in
//! the way. It is all read at the moment of the question; no process watches.

mod listeners;
mod real_time;
mod unguarded;
mod unheld;
mod unserved;

use std::collections::HashSet;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use fief_bpf::abi;
use fief_bpf::table::{Row, Table};
use fief_bpf::{Result, ingress, open};
use fief_policy::{Container, Listener, Mode, Network, Policy};
use serde::{Deserialize, Serialize};

use crate::names::Names;
use crate::origin::{self, Origin};
use crate::priorities::classes_alone;
use crate::tree::Tree;
use crate::{Fief, NO_POLICY, NO_POLICY_REMEDY, SchedulerView, Snapshot, namespace, shell, wire};
pub use listeners::{Classes, ListenerStatus, ServerStatus};
pub(crate) use listeners::{Here, Kernel};
pub use unguarded::{UnguardedInterface, WhyUnguarded};

/// What is in force, and what is wrong with it.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Status {
    /// False: what there is, is left of a first apply that was killed.
    #[serde(default = "wire::yes")]
    pub in_force: bool,
    /// The text of the policy in force; `None`: it was removed.
    #[serde(serialize_with = "wire::some_path")]
    pub policy: Option<PathBuf>,
    /// When it was put in force.
    pub since: Option<SystemTime>,
    /// What sha256sum(1) says of it.
    pub sha256: Option<String>,
    /// Who put it in force; `None`: nobody knows any more.
    pub origin: Option<Origin>,
    /// Whether verdicts are carried out or only counted; `None`: its text was removed.
    pub mode: Option<Mode>,
    /// Which build the programs in force are of, and which this command's would be.
    pub builds: [u32; 2],
    /// What the kernel side could not do, and how often, as far as it happened.
    #[serde(deserialize_with = "wire::counts")]
    pub failures: Vec<(&'static str, u64)>,
    /// Interfaces that the front door stands at.
    pub interfaces: Vec<String>,
    /// Interfaces that are up, and by which connections to a guarded listener come in past the front door.
    #[serde(default)]
    pub unguarded: Vec<UnguardedInterface>,
    /// Listeners of the policy, in its order.
    pub listeners: Vec<ListenerStatus>,
    /// Managed cgroups that are there.
    #[serde(serialize_with = "wire::paths")]
    pub units: Vec<PathBuf>,
    /// CPU time is charged: somebody needs it.
    #[serde(default = "wire::yes")]
    pub charged: bool,
    /// Who holds shares, weights and limits of the CPU.
    pub scheduler: SchedulerView,
    /// What the policy asks for and something holds, and by what.
    pub enforced: Vec<String>,
    /// Attributes of the CPU that are kept and that nothing enforces, by container.
    pub unenforced: Vec<String>,
    /// What does not work, a sentence each, with what to do.
    pub problems: Vec<String>,
}

fn is_current([in_force, own]: [u32; 2]) -> bool {
    in_force == own
}

impl Status {
    /// Whether the programs in force are those of this version.
    pub fn is_current(&self) -> bool {
        is_current(self.builds)
    }
}

impl Fief {
    /// Looks at what is in force. Changes nothing.
    pub fn status(&self) -> Result<Status> {
        self.require_installed()?;
        let table = Table::open(self.pins())?;
        self.status_of(&table, &Names::read(self, &table)?)
    }

    pub(crate) fn status_of(&self, table: &Table, names: &Names) -> Result<Status> {
        let snapshot = self.around(table, names.tree())?;
        let interfaces = self.interfaces();
        let netns = open::steered(self.pins()).unwrap_or_default();
        let kernel = Kernel::read(self, names, &snapshot)?;
        let policy = names.policy();
        let guarded = ingress::attached(self.pins()).into_iter().filter(|place| place.0 == netns.inode);
        let guarded: Vec<u32> = guarded.map(|(_, index)| index).collect();
        let of_policy = || Ok(policy.map(|policy| (Here::look(policy, &kernel), unguarded::find(policy, &guarded))));
        let (here, unguarded) = namespace::within(netns, of_policy)?.flatten().unwrap_or_default();
        let builds = [table.build(), fief_bpf::build()];
        let in_force = table.policy().1 > 0;
        let mut problems = self.front_notes(names)?;
        if !in_force {
            problems.push(format!("{NO_POLICY}; {NO_POLICY_REMEDY}"));
        }
        if policy.is_some_and(|policy| policy.listeners.iter().any(Listener::is_guarded)) && interfaces.is_empty() {
            problems.push("the front door stands nowhere, so nothing is guarded; apply the policy again".to_owned());
        }
        problems.extend(here.problems.iter().cloned());
        problems.extend(self.lane_problems(names.tree())?);
        problems.extend(
            policy.map(|policy| unserved::find(policy, &here.listeners, &kernel, &snapshot)).unwrap_or_default(),
        );
        problems.extend(policy.map(|policy| real_time::find(policy, &snapshot)).unwrap_or_default());
        let of_orders = policy.map(|policy| self.orders(policy, names.slot(), &snapshot.scheduler));
        let (orders, of_orders) = of_orders.transpose()?.unwrap_or_default();
        problems.extend(of_orders);
        problems.extend(homeless(names.tree(), &snapshot));
        problems.extend(of_machine(&snapshot, is_current(builds)));
        let (text, since) = self.policy_kept(names);
        Ok(Status {
            in_force,
            sha256: text.as_ref().and_then(|path| Some(origin::hash(&std::fs::read_to_string(path).ok()?))),
            origin: self.origin(names.slot()),
            policy: text,
            since,
            mode: policy.map(|policy| policy.mode),
            builds,
            failures: snapshot.failures.iter().copied().filter(|(_, count)| *count > 0).collect(),
            enforced: policy
                .map(|policy| enforced(policy, &interfaces, &snapshot.scheduler))
                .into_iter()
                .chain([orders])
                .flatten()
                .collect(),
            interfaces,
            unguarded,
            units: snapshot.units.iter().filter_map(|unit| unit.cgroup.clone()).collect(),
            unenforced: policy
                .map(|policy| unenforced(policy, &snapshot.scheduler))
                .into_iter()
                .flatten()
                .chain(unheld::by_applications(names.tree(), &snapshot.scheduler))
                .collect(),
            charged: snapshot.charged,
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

/// Whether requests wait there.
fn orders(listener: &&Listener) -> bool {
    listener.queue.is_some() && listener.mode == Mode::Enforce
}

/// What is held, and by what.
fn enforced(policy: &Policy, interfaces: &[String], scheduler: &SchedulerView) -> Vec<String> {
    let mut held = Vec::new();
    let holds = |listener: &&Listener| listener.is_guarded() && listener.mode == Mode::Enforce;
    let guarded: Vec<_> = policy.listeners.iter().filter(holds).map(|listener| listener.name.as_str()).collect();
    if !guarded.is_empty() && !interfaces.is_empty() {
        held.push(format!("the rules of {}, by the front door at {}", guarded.join(", "), interfaces.join(", ")));
    }
    let queues: Vec<_> = policy.listeners.iter().filter(orders).collect();
    if !queues.is_empty() {
        let names: Vec<_> = queues.iter().map(|listener| listener.name.as_str()).collect();
        held.push(format!("the order of the classes of {}, and their limits, by its queue", names.join(", ")));
    }
    if let Some(who) = scheduler.title().filter(|_| policy.divides_cpu()) {
        let what = match scheduler {
            SchedulerView::On { .. } => "cpu.share, cpu.limit, cpu.weight, cpu.priority and cpu.policy",
            _ => "cpu.share, cpu.limit and cpu.weight",
        };
        held.push(format!("{what}, by {who}"));
    }
    held
}

/// Attributes of the CPU that nobody holds.
fn unenforced(policy: &Policy, scheduler: &SchedulerView) -> Vec<String> {
    let queued: HashSet<&str> = policy.listeners.iter().filter(orders).flat_map(Listener::class_paths).collect();
    let others = policy.dividing().filter(|(container, _)| !queued.contains(container.path.as_str()));
    let attributes = others.map(|(container, given)| (container, format!("{}: {}", container.path, given.join(", "))));
    let mut said: Vec<_> = match scheduler {
        SchedulerView::On { .. } => Vec::new(),
        SchedulerView::Groups(groups) => attributes
            .filter(|(container, _)| !groups.containers.contains(&container.path))
            .map(|(_, named)| format!("{named} (no process has its home there, and cgroups know whole processes)"))
            .collect(),
        SchedulerView::Off | SchedulerView::Ejected(_) => {
            attributes.map(|(_, named)| named).chain(classes_alone(policy)).collect()
        }
    };
    said.extend(policy.containers.iter().filter_map(of_later));
    said
}

/// Which of these were given, though no version enforces them yet: bytes, bits per second, the weight among siblings. 0: not given.
pub fn not_yet_enforced(memory_max: u64, network_max: u64, network_weight: u32) -> Vec<&'static str> {
    let given = [
        ("memory.max", memory_max > 0),
        ("network.max", network_max > 0),
        ("network.weight", ![0, Network::default().weight].contains(&network_weight)),
    ];
    given.into_iter().filter_map(|(name, is_given)| is_given.then_some(name)).collect()
}

/// What a container says that no version enforces yet.
fn of_later(container: &Container) -> Option<String> {
    let Network { max_bits, weight } = container.network;
    let named = not_yet_enforced(container.memory_max, max_bits, weight);
    let path = &container.path;
    (!named.is_empty()).then(|| format!("{path}: {} (no version enforces that yet)", named.join(", ")))
}

/// Managed cgroups whose container the policy has let go: it lives on for their sake.
fn homeless(tree: &Tree, snapshot: &Snapshot) -> Vec<String> {
    let is_let_go = |row: &Row| {
        let is_named = row.record.flags & abi::FIEF_CONTAINER_POLICY != 0 && row.attributes(tree.slot).named != 0;
        // those that somebody made by hand are somebody's
        let makers = abi::FIEF_CONTAINER_UNIT | abi::FIEF_CONTAINER_USER | abi::FIEF_CONTAINER_FOLDER;
        let is_made = row.record.flags & makers != 0;
        row.record.state == abi::FIEF_ALIVE && row.container.id >= abi::FIEF_FIRST_ID && !is_named && !is_made
    };
    let gone: HashSet<String> = tree.rows().iter().filter(|row| is_let_go(row)).map(|row| tree.path(row)).collect();
    let units = snapshot.units.iter().filter(|unit| gone.contains(&unit.container));
    units.filter_map(|unit| Some(let_go(unit.cgroup.as_ref()?, &unit.container))).collect()
}

fn let_go(folder: &Path, container: &str) -> String {
    let folder = shell::word(folder);
    format!(
        "{folder} is at home in {container}, which the policy no longer names, so nobody's account has what it uses; \
         `fief manage {folder} --container NAME` gives it one of the policy's"
    )
}

/// Threads that had no record get it, and switches between threads that were not seen are made good, at the next one; who was refused one by
/// a call was told so; verdicts that were not counted have a note.
const HARMLESS: [&str; 3] = ["no_storage", "switch_missed", "verdict_uncounted"];

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
    said.extend(failed(&snapshot.failures));
    said
}

/// What the kernel side could not do, and nothing makes good.
fn failed(failures: &[(&'static str, u64)]) -> Vec<String> {
    let lasting = failures.iter().filter(|(what, count)| *count > 0 && !HARMLESS.contains(what));
    let said = lasting.map(|(what, count)| match *what {
        "thread_unbound" => format!(
            "{count} threads were born without the container of their creators, since the kernel gave them no storage ({what}), and they \
             are in no managed cgroup that would give them one"
        ),
        _ => format!(
            "the kernel side failed {count} times ({what}) since the installation; `fief show system` tells of all"
        ),
    });
    said.collect()
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
    fn what_is_enforced_is_named_with_what_does_it() {
        let eth0 = ["eth0".to_owned()];
        let held = |lines: &str, interfaces: &[String], scheduler| enforced(&policy(lines), interfaces, &scheduler);
        let refuses = "syn = { rate = 5 }\n";
        assert_eq!(held("", &eth0, SchedulerView::Off), [""; 0], "nothing stands before it");
        assert_eq!(held(refuses, &eth0, SchedulerView::Off), ["the rules of web, by the front door at eth0"]);
        assert_eq!(held(refuses, &[], SchedulerView::Off), [""; 0], "it stands nowhere");
        let on = || SchedulerView::On { counts: Vec::new(), combined: Vec::new() };
        assert_eq!(held("[container.c]\ncpu.weight = 7\n", &[], on()).len(), 1);
        assert_eq!(held("", &[], on()), [""; 0], "nothing asks for it");
        let mut trial = policy(refuses);
        trial.listeners[0].mode = Mode::Monitor;
        assert_eq!(enforced(&trial, &eth0, &SchedulerView::Off), [""; 0], "it is counted only");
    }

    #[test]
    fn only_threads_that_stay_without_their_container_are_a_problem() {
        assert_eq!(failed(&[("no_storage", 3), ("switch_missed", 1), ("thread_unbound", 0)]), [""; 0]);
        let said = failed(&[("no_storage", 3), ("table_full", 2), ("thread_unbound", 4)]);
        assert_eq!(said.len(), 2, "{said:?}");
        assert!(said[0].contains("failed 2 times (table_full)"), "{said:?}");
        assert!(said[1].starts_with("4 threads were born"), "{said:?}");
    }

    #[test]
    fn a_folder_without_a_home_does_nothing_in_the_command_that_helps() {
        let told = let_go(Path::new("/sys/fs/cgroup/x;id>y"), "shop");
        assert!(told.contains("`fief manage '/sys/fs/cgroup/x;id>y' --container NAME`"), "{told}");
    }

    #[test]
    fn attributes_that_nothing_enforces_are_named() {
        let text = "version = 1\n[container.a]\ncpu.share = \"10%\"\ncpu.limit = \"50%\"\n[container.b]\n";
        let policy = fief_policy::parse(text, "policy").unwrap_or_else(|errors| panic!("{errors}"));
        assert_eq!(unenforced(&policy, &SchedulerView::Off), ["a: cpu.share, cpu.limit"]);
        assert!(unenforced(&policy, &SchedulerView::On { counts: Vec::new(), combined: Vec::new() }).is_empty());
        let text = "version = 1\n[container.a]\n[container.b]\ncpu.priority = 0\n";
        let later = fief_policy::parse(text, "policy").unwrap_or_else(|errors| panic!("{errors}"));
        assert_eq!(unenforced(&later, &SchedulerView::Off), ["b: cpu.priority"]);
        let mut of_class = self::policy("");
        of_class.containers[0].cpu.priority = 0;
        let told = unenforced(&of_class, &SchedulerView::Off);
        assert!(told.len() == 1 && told[0].starts_with("cpu.priority of web among threads ("), "{told:?}");
        let text = "version = 1\n[container.a]\nmemory.max = \"1G\"\nnetwork.weight = 7\n[container.b]\n";
        let policy = fief_policy::parse(text, "policy").unwrap_or_else(|errors| panic!("{errors}"));
        let said = ["a: memory.max, network.weight (no version enforces that yet)"];
        assert_eq!(unenforced(&policy, &SchedulerView::On { counts: Vec::new(), combined: Vec::new() }), said);
    }
}
