// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `fief show`: all about one container.

mod combined;
mod queues;
mod usage;

use serde::Serialize;

use combined::Combined;

use crate::charged::NOT_CHARGED;
use crate::cli::Show;
use crate::commands::explain::counted::{self, Counted};
use crate::commands::explain::queues::Queued;
use crate::failure::Result;
use crate::look::{self, Reader, Source};
use crate::output::{Align, Output, Table, printable};
use crate::quantity::{bit_rate, bytes, count, duration, or_dash, percent};
use crate::record::{self, Attributes, Place, Usage};
use crate::tree::Tree;
use fief_control::{QueueView, SchedulerView, Snapshot, VerdictView};
use fief_policy::{Cpu, CpuPolicy};

pub fn run(args: &Show, output: &mut Output) -> Result<()> {
    let mut reader = Reader::open()?;
    let snapshot = reader.look()?;
    let front = reader.front()?;
    let details = Details::of(&snapshot, look::find(&snapshot, &args.container)?, &front.verdicts, &front.queues);
    match args.json {
        true => output.json(&details),
        false => output.text(page(&details)),
    }
}

#[derive(Debug, Serialize)]
struct Details<'a> {
    taken_ns: u64,
    #[serde(flatten)]
    place: Place<'a>,
    child_containers: Vec<&'a str>,
    /// Cgroups whose threads live here.
    cgroups: Vec<String>,
    attributes: Attributes,
    /// Who holds its share, limit and weight of the CPU: "scheduler", "cgroup-v1", "cgroup-v2", or nobody.
    cpu_enforced_by: Option<&'static str>,
    /// Why nobody does.
    cpu_not_enforced: Option<String>,
    /// Threads that serve it among others, and have the CPU of all of those.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    combined: Vec<Combined<'a>>,
    /// Somebody needs it: else no counter of CPU time moves.
    cpu_charged: bool,
    usage: Usage,
    /// Together with all below.
    usage_recursive: Usage,
    /// What the front door decided about its connections and requests.
    verdicts: Vec<Counted<'a>>,
    #[serde(skip)]
    verdict_table: Option<Table>,
    /// Those in which it is a class.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    queues: Vec<Queued<'a>>,
    #[serde(skip)]
    queue_page: String,
    /// Of the system container: what its time went to.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    kinds: Vec<Kind>,
    /// Of the system container: what the kernel side could not do since the installation.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    failures: Vec<Failure>,
    /// Of the system container: what the scheduler did since it was turned on.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    scheduler: Vec<Count>,
}

#[derive(Debug, Serialize)]
struct Count {
    event: &'static str,
    count: u64,
}

#[derive(Debug, Serialize)]
struct Failure {
    failure: &'static str,
    count: u64,
}

#[derive(Debug, Serialize)]
struct Kind {
    kind: &'static str,
    time_ns: u64,
}

impl<'a> Details<'a> {
    fn of(snapshot: &'a Snapshot, at: usize, verdicts: &'a [VerdictView], queues: &'a [QueueView]) -> Self {
        let tree = Tree::of(snapshot);
        let view = &snapshot.containers[at];
        let usage_of = |at: usize| Usage::from(&snapshot.containers[at].usage);
        let path_of = |at: &usize| snapshot.containers[*at].path.as_str();
        let (kinds, failures) = match view.id {
            fief::abi::FIEF_SYSTEM => (snapshot.system_kinds.as_slice(), snapshot.failures.as_slice()),
            _ => (&[][..], &[][..]),
        };
        let by = snapshot.scheduler.word_for(&view.path);
        let why = by.is_none().then(|| why_not(&snapshot.scheduler));
        let (counts, combined) = match &snapshot.scheduler {
            SchedulerView::On { counts, combined } => (counts.as_slice(), combined.as_slice()),
            _ => (&[][..], &[][..]),
        };
        let counts = if view.id == fief::abi::FIEF_SYSTEM { counts } else { &[] };
        let units = snapshot.units.iter().filter(|unit| unit.container == view.path);
        let own: Vec<_> = verdicts.iter().filter(|verdict| verdict.container == view.path).collect();
        let queued = queues::of(queues, &view.path);
        let cgroups = units.filter_map(|unit| unit.cgroup.as_ref());
        Self {
            taken_ns: snapshot.taken_ns,
            place: Place::of(view, &record::paths(snapshot)),
            child_containers: tree.children(at).iter().map(path_of).collect(),
            cgroups: cgroups.map(|cgroup| cgroup.to_string_lossy().into_owned()).collect(),
            attributes: (&view.attributes).into(),
            cpu_enforced_by: by,
            cpu_not_enforced: why,
            combined: Combined::of(combined, &view.path),
            cpu_charged: snapshot.charged,
            usage: usage_of(at),
            usage_recursive: tree.below(at).into_iter().map(usage_of).fold(Usage::default(), Usage::plus),
            verdicts: own.iter().map(|verdict| Counted::of(verdict)).collect(),
            queues: queues::objects(&queued),
            queue_page: if queued.is_empty() { String::new() } else { queues::page(&queued) },
            verdict_table: (!own.is_empty()).then(|| counted::verdicts(own.iter().copied())),
            kinds: kinds.iter().map(|&(kind, time_ns)| Kind { kind, time_ns }).collect(),
            failures: failures.iter().map(|&(failure, count)| Failure { failure, count }).collect(),
            scheduler: counts.iter().map(|&(event, count)| Count { event, count }).collect(),
        }
    }
}

fn why_not(scheduler: &SchedulerView) -> String {
    match scheduler {
        SchedulerView::Ejected(why) => {
            format!("the kernel took the scheduler out ({why}); apply the policy again to turn it on")
        }
        SchedulerView::Groups(_) => "no process has its home there, and cgroups know whole processes".to_owned(),
        SchedulerView::Off | SchedulerView::On { .. } => {
            "the scheduler is off (schedule = \"auto\" turns it on, where the policy divides the CPU)".to_owned()
        }
    }
}

fn page(details: &Details) -> String {
    let mut page = format!("{}\n{}", printable(details.place.container), about(details));
    page.push_str(&format!("\n{}", attributes(&details.attributes)));
    page.push_str(&enforcement(details));
    page.push_str(&later(&details.attributes));
    page.push_str(&combined::lines(&details.combined));
    page.push_str(&format!("\n{}", usage::table(&details.place, &details.usage, &details.usage_recursive)));
    if !details.cpu_charged {
        page.push_str(&format!("{NOT_CHARGED}\n"));
    }
    if !details.queue_page.is_empty() {
        page.push_str(&format!("\n{}", details.queue_page));
    }
    if let Some(verdicts) = &details.verdict_table {
        page.push_str(&format!("\n{verdicts}"));
    }
    if !details.kinds.is_empty() {
        let mut table = Table::new(&[("KIND", Align::Left), ("TIME", Align::Right)]);
        for kind in &details.kinds {
            table.push([kind.kind.into(), duration(kind.time_ns)]);
        }
        page.push_str(&format!("\n{table}"));
    }
    if !details.scheduler.is_empty() {
        let mut table = Table::new(&[("SCHEDULER", Align::Left), ("COUNT", Align::Right)]);
        for one in &details.scheduler {
            table.push([one.event.into(), count(one.count)]);
        }
        page.push_str(&format!("\n{table}"));
    }
    if details.failures.iter().any(|failure| failure.count > 0) {
        let mut table = Table::new(&[("FAILED", Align::Left), ("COUNT", Align::Right)]);
        for failure in &details.failures {
            table.push([failure.failure.into(), count(failure.count)]);
        }
        page.push_str(&format!("\n{table}"));
    }
    page
}

/// What no version enforces yet, where it was given.
fn later(attributes: &Attributes) -> String {
    let (memory, network) = (attributes.memory_max_bytes, attributes.network_max_bits_per_second);
    let given = fief_control::not_yet_enforced(memory.unwrap_or(0), network.unwrap_or(0), attributes.network_weight);
    match given.len() {
        0 => String::new(),
        1 => format!("{} is kept and not enforced in this version\n", given[0]),
        _ => format!("{} are kept and not enforced in this version\n", given.join(" and ")),
    }
}

/// The keys of the CPU that were set, as a policy names them, without the priority.
fn given(attributes: &Attributes) -> Vec<&'static str> {
    let given = [
        ("cpu.share", attributes.cpu_share_ppm > 0),
        ("cpu.limit", attributes.cpu_limit_ppm.is_some()),
        ("cpu.weight", attributes.cpu_weight != Cpu::default().weight),
        ("cpu.policy", attributes.cpu_policy != CpuPolicy::default().name()),
    ];
    given.into_iter().filter_map(|(name, is_given)| is_given.then_some(name)).collect()
}

/// Said where it matters: of what has a part of the CPU, and of the system. The priority of a policy's container may order requests.
fn enforcement(details: &Details) -> String {
    let attributes = &details.attributes;
    let divided = attributes.cpu_share_ppm > 0 || attributes.cpu_limit_ppm.is_some() || attributes.cpu_weight != 100;
    match (&details.cpu_not_enforced, details.cpu_enforced_by) {
        (None, Some("scheduler")) => "cpu.* is enforced by Fief's scheduler\n".to_owned(),
        (None, by) if divided => {
            let by = by.unwrap_or_default().replace('-', " ");
            format!("cpu.share, cpu.limit and cpu.weight are enforced by {by}, for whole processes\n")
        }
        (None, _) => String::new(),
        (Some(why), _) => {
            let (given, why) = (given(attributes), printable(why));
            let has_priority = attributes.cpu_priority != Cpu::default().priority;
            let mut said = match given.as_slice() {
                [] => String::new(),
                [one] => format!("{one} is not enforced: {why}\n"),
                [some @ .., last] => format!("{} and {last} are not enforced: {why}\n", some.join(", ")),
            };
            if has_priority {
                said.push_str(&format!("cpu.priority orders no threads: {why}\n"));
            }
            said
        }
    }
}

fn about(details: &Details) -> String {
    let place = &details.place;
    let mut lines = vec![
        ("id", format!("{}, generation {}", place.id, place.generation)),
        ("state", place.state.to_owned()),
        ("parent", place.parent.unwrap_or("none").to_owned()),
        ("handles", place.handles.to_string()),
        ("threads", place.threads.to_string()),
        ("processes", place.processes.to_string()),
        ("sockets", place.sockets.to_string()),
    ];
    if place.files > 0 {
        lines.push(("files", place.files.to_string()));
    }
    if place.discarded > 0 {
        lines.push((
            "discarded",
            format!("{} packets, as receive work exceeded its part of the limit", place.discarded),
        ));
    }
    if place.policy {
        lines.push(("policy", "named by the policy in force".to_owned()));
    }
    lines.extend(details.cgroups.iter().map(|cgroup| ("unit", cgroup.clone())));
    // A container per request can have very many.
    const SHOWN: usize = 20;
    let children = &details.child_containers;
    lines.extend(children.iter().take(SHOWN).map(|child| ("child", (*child).to_owned())));
    if children.len() > SHOWN {
        lines.push(("child", format!("and {} more", children.len() - SHOWN)));
    }
    lines.into_iter().map(|(name, value)| format!("  {name:<10}{}\n", printable(&value))).collect()
}

fn attributes(attributes: &Attributes) -> Table {
    let milliseconds = |us: Option<u64>| or_dash(us.map(|us| format!("{} ms", us as f64 / 1000.0)));
    let mut table = Table::new(&[("ATTRIBUTE", Align::Left), ("VALUE", Align::Right)]);
    let rows = [
        ("cpu.share", percent(attributes.cpu_share_ppm)),
        ("  reserved by children", percent(attributes.cpu_reserved_ppm)),
        ("cpu.limit", or_dash(attributes.cpu_limit_ppm.map(percent))),
        ("cpu.weight", attributes.cpu_weight.to_string()),
        ("cpu.priority", attributes.cpu_priority.to_string()),
        ("cpu.policy", attributes.cpu_policy.to_owned()),
        ("cpu.period", milliseconds(attributes.cpu_period_us)),
        ("cpu.budget", milliseconds(attributes.cpu_budget_us)),
        ("memory.max", or_dash(attributes.memory_max_bytes.map(bytes))),
        ("network.max", or_dash(attributes.network_max_bits_per_second.map(bit_rate))),
        ("network.weight", attributes.network_weight.to_string()),
        ("pass up", if attributes.pass_up { "yes" } else { "no" }.to_owned()),
        ("descendants.max", or_dash(attributes.descendants_max.map(|count| count.to_string()))),
    ];
    for (name, value) in rows {
        table.push([name.into(), value]);
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::sample;
    use fief_control::UnitView;
    use fief_control::{GroupsView, Hierarchy, Version};
    use std::collections::BTreeSet;

    fn snapshot() -> Snapshot {
        let mut gold = sample::container("shop/gold", 9, Some(8));
        gold.usage.thread_ns = 5_000;
        gold.usage.packets_in = 7;
        let mut snapshot = sample::snapshot(vec![
            sample::container("shop", 8, Some(0)),
            gold,
            sample::container("system", fief::abi::FIEF_SYSTEM, None),
        ]);
        snapshot.units = vec![UnitView { cgroup: Some("/sys/fs/cgroup/web".into()), container: "shop".into() }];
        snapshot
    }

    #[test]
    fn a_parent_is_shown_with_all_below() {
        let snapshot = snapshot();
        let details = serde_json::to_value(Details::of(&snapshot, 0, &[], &[])).expect("texts and numbers");
        assert_eq!(details["container"], "shop");
        assert_eq!(details["child_containers"][0], "shop/gold");
        assert_eq!(details["cgroups"][0], "/sys/fs/cgroup/web");
        assert_eq!(details["usage"]["thread_ns"], 0);
        assert_eq!(details["usage_recursive"]["thread_ns"], 5_000);
        assert_eq!(details["attributes"]["cpu_limit_ppm"], serde_json::Value::Null);
        assert!(details.get("kinds").is_none());
    }

    #[test]
    fn where_no_cpu_time_is_charged_that_is_said() {
        let mut snapshot = snapshot();
        let said = |snapshot: &Snapshot| page(&Details::of(snapshot, 0, &[], &[])).contains("no CPU time is charged");
        assert!(!said(&snapshot));
        snapshot.charged = false;
        assert!(said(&snapshot));
    }

    #[test]
    fn labelled_files_are_told_where_there_are_some() {
        let mut snapshot = snapshot();
        snapshot.containers[1].files = 3;
        let page_of = |at| page(&Details::of(&snapshot, at, &[], &[]));
        assert!(page_of(1).contains("\n  files     3\n"), "{}", page_of(1));
        assert!(!page_of(0).contains("files"));
    }

    #[test]
    fn the_time_of_the_system_container_has_names() {
        let snapshot = snapshot();
        let page = page(&Details::of(&snapshot, 2, &[], &[]));
        assert!(page.ends_with("KIND    TIME\ntimer  40 ns\nrcu     2 ns\n"), "{page}");
    }

    #[test]
    fn what_the_kernel_side_could_not_do_is_told() {
        let mut snapshot = snapshot();
        snapshot.failures = vec![("no_storage", 0), ("table_full", 7)];
        let details = Details::of(&snapshot, 2, &[], &[]);
        assert!(
            page(&details).ends_with("FAILED      COUNT\nno_storage      0\ntable_full      7\n"),
            "{}",
            page(&details)
        );
        assert_eq!(serde_json::to_value(&details).expect("texts and numbers")["failures"][1]["count"], 7);
    }

    #[test]
    fn a_container_shows_why_what_is_its_was_refused() {
        let snapshot = snapshot();
        let verdict = |container: &str| VerdictView {
            listener: "web".into(),
            container: container.into(),
            rule: Some(1),
            reason: fief::Reason::SynRate,
            monitored: false,
            count: 3,
        };
        let verdicts = [verdict("shop"), verdict("shop/gold")];
        let details = Details::of(&snapshot, 1, &verdicts, &[]);
        let object = serde_json::to_value(&details).expect("texts and numbers");
        assert_eq!(object["verdicts"].as_array().map(Vec::len), Some(1));
        assert_eq!(object["verdicts"][0]["reason"], "syn-rate");
        assert!(page(&details).contains("syn-rate"));
    }

    #[test]
    fn who_waits_is_told_where_it_is_a_class_of_a_queue() {
        use crate::queued::sample::{class, queue};
        let (snapshot, queues) = (snapshot(), [queue("web", 2, vec![class("shop/gold", 4)])]);
        let details = |at| Details::of(&snapshot, at, &[], &queues);
        assert!(page(&details(1)).contains("\n\nQUEUE OF  WAITING  IN SERVICE"), "{}", page(&details(1)));
        let object = |at| serde_json::to_value(details(at)).expect("texts and numbers");
        assert_eq!(object(1)["queues"][0]["waiting"], 1);
        assert!(!page(&details(0)).contains("QUEUE OF") && object(0).get("queues").is_none());
    }

    #[test]
    fn the_page_tells_the_units_and_children_of_a_container() {
        let snapshot = snapshot();
        let page = page(&Details::of(&snapshot, 0, &[], &[]));
        assert!(page.starts_with("shop\n  id        8, generation 1\n"), "{page}");
        assert!(page.contains("  unit      /sys/fs/cgroup/web\n  child     shop/gold\n"), "{page}");
    }

    #[test]
    fn what_is_not_enforced_is_told_where_it_was_given() {
        let mut snapshot = snapshot();
        let page_of = |snapshot: &Snapshot, at| page(&Details::of(snapshot, at, &[], &[]));
        assert!(!page_of(&snapshot, 1).contains("enforced"));
        snapshot.containers[1].attributes.share_ppm = 100_000;
        assert!(page_of(&snapshot, 1).contains("\ncpu.share is not enforced: the scheduler is off ("));
        snapshot.containers[1].attributes.priority = 0;
        snapshot.containers[1].attributes.weight = 7;
        let page = page_of(&snapshot, 1);
        assert!(page.contains("\ncpu.share and cpu.weight are not enforced: the scheduler is off ("), "{page}");
        assert!(page.contains("\ncpu.priority orders no threads: the scheduler is off ("), "{page}");
        snapshot.containers[1].attributes.memory_max = Some(1 << 30);
        assert!(page_of(&snapshot, 1).contains("\nmemory.max is kept and not enforced in this version\n"));
        snapshot.containers[1].attributes.net_max = Some(1_000_000);
        let both = "\nmemory.max and network.max are kept and not enforced in this version\n";
        assert!(page_of(&snapshot, 1).contains(both));
        snapshot.scheduler = SchedulerView::Ejected("runnable task stall".into());
        assert!(page_of(&snapshot, 1).contains("took the scheduler out (runnable task stall)"));
        let containers = BTreeSet::from(["shop/gold".to_owned()]);
        let hierarchy = Hierarchy { version: Version::V1, top: "/sys/fs/cgroup/cpu".into() };
        let groups = GroupsView { hierarchy, containers, problems: Vec::new() };
        snapshot.scheduler = SchedulerView::Groups(groups.clone());
        assert!(page_of(&snapshot, 1).contains("enforced by cgroup v1, for whole processes\n"));
        let none = GroupsView { containers: BTreeSet::new(), ..groups };
        snapshot.scheduler = SchedulerView::Groups(none);
        assert!(page_of(&snapshot, 1).contains("not enforced: no process has its home there"));
        snapshot.scheduler = SchedulerView::On { counts: vec![("picked", 3)], combined: Vec::new() };
        assert!(page_of(&snapshot, 1).contains("enforced by Fief's scheduler"));
        assert!(page_of(&snapshot, 2).contains("SCHEDULER  COUNT\npicked         3\n"));
        assert!(!page_of(&snapshot, 1).contains("picked"));
    }
}
