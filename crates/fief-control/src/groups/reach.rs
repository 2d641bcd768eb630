// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What a policy says of the CPU that cgroups cannot hold, container by container.

use std::collections::BTreeSet;

use fief_policy::{Container, Cpu, CpuPolicy, Listener, Policy, Serve};

use super::portion::Quota;
use crate::plan::common_parent;
use crate::priorities::some_of;

/// A sentence each, and one for all limits that are too low; nothing, if cgroups hold all of it for processes. `cpus`: of the machine.
pub fn beyond_groups(policy: &Policy, cpus: u32) -> Vec<String> {
    let (mut said, mut within) = (Vec::new(), BTreeSet::new());
    for listener in &policy.listeners {
        let classes = classes_within(listener);
        said.extend(within_a_process(policy, listener, &classes));
        within.extend(classes);
    }
    let ordering: BTreeSet<&str> = policy.prioritised_classes().map(|class| class.path.as_str()).collect();
    let least = Quota::least_ppm(cpus);
    let mut below_least = Vec::new();
    for container in &policy.containers {
        let Container { path, cpu, .. } = container;
        if cpu.limit_ppm != 0 && cpu.limit_ppm < least {
            below_least.push(path.as_str());
        }
        if cpu.policy != CpuPolicy::Fair {
            said.push(format!("{path}: cgroups have no cpu.policy = \"{}\" among threads", cpu.policy.name()));
        }
        // a class that has no group was named above
        if within.contains(path.as_str()) {
            continue;
        }
        // where there are also the processes that nobody manages
        let is_top = container.parent().is_none();
        let is_given = cpu.priority != Cpu::default().priority;
        if cpu.priority == 0 && is_top {
            said.push(format!(
                "{path}: cpu.idle is among containers, so cpu.priority = 0 does not wait for processes that nobody manages"
            ));
        } else if cpu.priority != 0 && is_given && (is_top || divides_siblings(policy, container)) {
            let counts = match cpu.share_ppm {
                0 => "counts in its weight as the nice value of a process would",
                _ => "changes nothing beside its cpu.share",
            };
            let serves = match ordering.contains(path.as_str()) {
                true => "; it orders accepting and serving as ever",
                false => "",
            };
            let priority = cpu.priority;
            said.push(format!("{path}: cgroups have no strict order, so cpu.priority = {priority} {counts}{serves}"));
        }
    }
    if !below_least.is_empty() {
        said.push(format!(
            "{}: the least cpu.limit that a cgroup holds is {}% of this machine",
            some_of(&below_least),
            f64::from(least) / 10_000.0
        ));
    }
    said
}

/// Classes that one server works for: its threads change the container, and stay in their group.
fn classes_within(listener: &Listener) -> BTreeSet<&str> {
    let clients: BTreeSet<&str> = listener.clients.iter().map(|client| client.container.as_str()).collect();
    let mut classes: BTreeSet<&str> =
        listener.requests.iter().filter_map(|request| request.container.as_deref()).collect();
    if listener.serve == Serve::CopiesPerClass {
        classes.retain(|class| !clients.contains(class));
    } else {
        classes.extend(&clients);
        // where the server itself lives
        let all: Vec<&str> = clients.into_iter().collect();
        if let Some(home) = common_parent(&all) {
            classes.remove(home);
        }
    }
    classes
}

fn within_a_process(policy: &Policy, listener: &Listener, classes: &BTreeSet<&str>) -> Option<String> {
    let held: Vec<String> = classes.iter().filter_map(|class| named(policy.container(class)?)).collect();
    (!held.is_empty()).then(|| {
        let remedy = match listener.serve {
            Serve::CopiesPerClass => "sort clients by address to give each class a copy",
            _ => "copies = \"per-class\" gives each class processes of its own",
        };
        format!(
            "listener {}: cgroups know whole processes, and one process serves these classes, so that they get no part of their \
             own: {}; {remedy}",
            listener.name,
            held.join("; ")
        )
    })
}

/// What it says of the CPU that is not the default.
fn named(container: &Container) -> Option<String> {
    let Container { path, cpu, .. } = container;
    let mut named: Vec<_> = cpu.given().collect();
    if cpu.priority != Cpu::default().priority {
        named.push("cpu.priority");
    }
    (!named.is_empty()).then(|| format!("{path}: {}", named.join(", ")))
}

/// Whether another child of its parent has another priority.
fn divides_siblings(policy: &Policy, container: &Container) -> bool {
    let others = policy.containers.iter().filter(|one| one.parent() == container.parent());
    others.into_iter().any(|one| one.cpu.priority != container.cpu.priority)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said(containers: &str, listener: &str) -> Vec<String> {
        let text = format!(
            "version = 1\nschedule = \"cgroup\"\n{containers}\n[listener.web]\naddress = \"0.0.0.0:80\"\n{listener}\n\
             [[listener.web.client]]\nfrom = [\"10.0.0.0/8\"]\ncontainer = \"shop/gold\"\n\
             [[listener.web.client]]\nfrom = [\"any\"]\ncontainer = \"shop/tin\"\n"
        );
        let policy = fief_policy::parse(&text, "policy").unwrap_or_else(|errors| panic!("{errors}"));
        beyond_groups(&policy, 2)
    }

    const SHARES: &str =
        "[container.\"shop/gold\"]\ncpu.share = \"30%\"\n[container.\"shop/tin\"]\ncpu.limit = \"10%\"\n";

    #[test]
    fn classes_within_one_process_are_named_and_copies_are_not() {
        let found = said(SHARES, "");
        assert_eq!(found.len(), 1, "{found:?}");
        assert!(found[0].contains("listener web:"), "{found:?}");
        assert!(found[0].contains("shop/gold: cpu.share; shop/tin: cpu.limit; copies"), "{found:?}");
        assert_eq!(said(SHARES, "copies = \"per-class\""), [""; 0]);
    }

    #[test]
    fn a_priority_of_a_class_within_one_process_is_named_once() {
        let containers = "[container.\"shop/gold\"]\ncpu.priority = 200\n[container.\"shop/tin\"]\ncpu.priority = 0\n";
        let found = said(containers, "");
        assert_eq!(found.len(), 1, "{found:?}");
        assert!(found[0].contains("shop/gold: cpu.priority; shop/tin: cpu.priority; copies"), "{found:?}");
    }

    #[test]
    fn a_priority_at_the_top_has_no_order_beside_what_nobody_manages() {
        let shop = "[container.\"shop/gold\"]\n[container.\"shop/tin\"]\n";
        let found = said(&format!("{shop}[container.batch]\ncpu.priority = 200\n"), "");
        assert_eq!(found.len(), 1, "{found:?}");
        assert!(found[0].starts_with("batch: cgroups have no strict order"), "{found:?}");
        assert!(!found[0].contains("accepting"), "it is no class: {found:?}");
        let idle = said(&format!("{shop}[container.batch]\ncpu.priority = 0\n"), "");
        assert!(idle.len() == 1 && idle[0].starts_with("batch: cpu.idle is among containers"), "{idle:?}");
        let below = said(&format!("{shop}[container.\"batch/night\"]\ncpu.priority = 0\n"), "");
        assert_eq!(below, [""; 0], "its siblings are all that it waits for");
        // beside siblings of the same priority there is nothing to order
        let alike = "[container.\"shop/gold\"]\ncpu.priority = 200\n[container.\"shop/tin\"]\ncpu.priority = 200\n";
        assert_eq!(said(alike, "copies = \"per-class\""), [""; 0]);
    }

    #[test]
    fn the_home_of_the_server_is_held() {
        let shop = "[container.shop]\ncpu.share = \"30%\"\n[container.\"shop/gold\"]\n[container.\"shop/tin\"]\n";
        assert_eq!(said(shop, ""), [""; 0]);
    }

    #[test]
    fn a_priority_among_siblings_and_a_limit_below_the_least_are_named() {
        let containers =
            "[container.\"shop/gold\"]\ncpu.priority = 200\n[container.\"shop/tin\"]\ncpu.limit = \"0.01%\"\n";
        let found = said(containers, "copies = \"per-class\"");
        assert_eq!(found.len(), 2, "{found:?}");
        assert!(found[0].starts_with("shop/gold: cgroups have no strict order, so cpu.priority = 200"), "{found:?}");
        assert!(found[1].contains("shop/tin: the least cpu.limit that a cgroup holds is 0.05%"), "{found:?}");
    }

    #[test]
    fn many_limits_below_the_least_are_told_at_once() {
        let tenant = |number: u32| format!("[container.t{number}]\ncpu.limit = \"0.01%\"\n");
        let tenants = (0..1000).map(tenant).collect::<Vec<String>>().concat();
        let found = said(&format!("{tenants}[container.\"shop/gold\"]\n[container.\"shop/tin\"]\n"), "");
        assert_eq!(found.len(), 1, "{found:?}");
        assert!(found[0].starts_with("t0, t1, t2 and 997 more: the least cpu.limit that a cgroup"), "{found:?}");
    }
}
