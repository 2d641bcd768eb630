// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What a policy asks for that a server, as it runs, does not get, with what to do.

use fief_policy::{Container, Listener, Policy, RequestRate, Serve};

use super::listeners::{Classes, Kernel, ListenerStatus, ServerStatus};
use crate::children::ROOT;
use crate::plan::common_parent;
use crate::{Snapshot, cgroup};

pub(super) fn find(
    policy: &Policy,
    listeners: &[ListenerStatus],
    kernel: &Kernel<'_>,
    snapshot: &Snapshot,
) -> Vec<String> {
    let gone = snapshot.units.iter().filter(|unit| unit.cgroup.is_none()).count();
    let is_inside = |pid| cgroup::of_process(pid).and_then(|path| cgroup::id(&path)).is_ok_and(|id| kernel.has(id));
    unserved(policy, listeners, gone, is_inside)
}

/// `gone`: managed cgroups that are no longer there. `is_inside`: whether the process is in one that is there.
fn unserved(
    policy: &Policy,
    listeners: &[ListenerStatus],
    gone: usize,
    is_inside: impl Fn(i32) -> bool,
) -> Vec<String> {
    let mut said = Vec::new();
    for status in listeners.iter().filter(|status| !status.servers.is_empty()) {
        let Some(listener) = policy.listeners.iter().find(|listener| listener.name == status.name) else { continue };
        if let Some(server) = status.servers.iter().find(|server| !server.managed) {
            let is_inside = server.pid.is_some_and(&is_inside);
            let problem =
                if is_inside { outside(policy, listener, server) } else { unmanaged(policy, listener, server, gone) };
            said.extend(problem);
        }
        let (name, &Classes { count, with_socket, .. }) = (&status.name, &status.classes);
        if listener.serve == Serve::CopiesPerClass && with_socket < count {
            said.push(format!(
                "{name}: copies of the server listen for {with_socket} of {count} classes, and nobody for the clients of the others; \
                 look why these copies ended, and start the server again by `fief run`"
            ));
        }
        if listener.serve == Serve::Shim && listener.queue.is_none() && count > 1 && with_socket == 0 {
            said.push(format!(
                "{name}: {} has one socket for all {count} classes, which are charged apart and served in the order in \
                 which they come: it does not run by `fief run` or `fief exec`, or is linked statically; start it so, or let a queue order its requests (queue = true in the place of `classes`) if its clients speak first",
                status.servers[0].program
            ));
        }
    }
    said
}

/// The server's process is in no managed cgroup.
fn unmanaged(policy: &Policy, listener: &Listener, server: &ServerStatus, gone: usize) -> Option<String> {
    let (name, program, how) = (&listener.name, &server.program, manage(listener, server));
    let is_limited = |path: &str| policy.container(path).is_some_and(|container| container.cpu.limit_ppm > 0);
    if has_cpu_rate(listener) {
        Some(format!(
            "{name}: rate.cpu never refuses anybody, since {program} is not managed and its CPU time is nobody's; {how}"
        ))
    } else if listener.queue.is_some() && listener.class_paths().into_iter().any(is_limited) {
        Some(format!(
            "{name}: cpu.limit holds no class of it, since {program} is not managed and its CPU time is nobody's; {how}"
        ))
    } else if gone > 0 && wants_account(policy, listener) {
        Some(format!(
            "{name}: {program} is not managed, and {gone} managed cgroups are gone: its unit was started again; {how}"
        ))
    } else {
        let order = match listener.queue.is_some() && listener.class_paths().len() > 1 {
            true => ", and classes of one priority have their turns by number of requests",
            false => "",
        };
        wants_account(policy, listener)
            .then(|| format!("{name}: {program} is not managed, so nobody's account has what it uses{order}; {how}"))
    }
}

/// The server's process is managed, and its listening socket is not: the hooks of the cgroup that its maker was in see it.
fn outside(policy: &Policy, listener: &Listener, server: &ServerStatus) -> Option<String> {
    let (name, program) = (&listener.name, &server.program);
    wants_account(policy, listener).then(|| {
        format!(
            "{name}: {program} is managed, and its socket was made in a cgroup that is not: its connections have no listening \
             sockets of their classes, and their packets are not charged; start the server again by `fief exec`, or in the cgroup that is managed, and \
             without a socket unit"
        )
    })
}

/// Whether the policy has the listener for more than the front door does by itself: for what a managed server alone can have.
fn wants_account(policy: &Policy, listener: &Listener) -> bool {
    !listener.is_guarded()
        || has_cpu_rate(listener)
        || divides(policy, listener)
        || is_ordered_by_charge(policy, listener)
}

fn has_cpu_rate(listener: &Listener) -> bool {
    listener.requests.iter().any(|request| matches!(request.rate, Some(RequestRate::Cpu { .. })))
}

/// Whether a class of it, or a container above one, has a part of the CPU, or the programs that the server starts.
fn divides(policy: &Policy, listener: &Listener) -> bool {
    let classes = listener.class_paths();
    let is_above = |of: &&Container| classes.iter().any(|class| fief_policy::is_within(class, &of.path));
    policy.containers.iter().filter(is_above).any(|of| of.cpu.given().next().is_some() || of.programs.is_some())
}

/// Whether it has a queue, with classes of one priority in it.
fn is_ordered_by_charge(policy: &Policy, listener: &Listener) -> bool {
    let classes = listener.class_paths();
    let mut priorities: Vec<_> = classes.iter().filter_map(|path| Some(policy.container(path)?.cpu.priority)).collect();
    priorities.sort_unstable();
    listener.queue.is_some() && priorities.windows(2).any(|pair| pair[0] == pair[1])
}

/// The command by which its connections have their classes.
fn manage(listener: &Listener, server: &ServerStatus) -> String {
    let classes: Vec<&str> = listener.class_paths().into_iter().collect();
    let home = common_parent(&classes).unwrap_or(ROOT);
    match server.pid {
        // nobody wants hooks on what starts all others
        Some(pid) if pid != 1 => format!("`fief manage {pid} --container {home} --follow`"),
        _ => format!("`fief manage UNIT --container {home} --follow`"),
    }
}

#[cfg(test)]
mod tests {
    use fief_policy::Mode;

    use super::*;

    const GOLD: &str = "[[listener.web.client]]\nfrom = [\"10.0.0.0/8\"]\ncontainer = \"shop/gold\"\n";

    /// One listener, whose lines these are; its last class is `shop/web`, whose attributes these are.
    fn policy(attributes: &str, lines: &str) -> Policy {
        let text = format!(
            "version = 1\n[container.\"shop/gold\"]\n[container.\"shop/web\"]\n{attributes}\n\
             [listener.web]\naddress = \"0.0.0.0:80\"\nclasses = \"shared\"\n{lines}\n\
             [[listener.web.client]]\nfrom = [\"any\"]\ncontainer = \"shop/web\"\n"
        );
        fief_policy::parse(&text, "policy").unwrap_or_else(|errors| panic!("{errors}"))
    }

    fn said(policy: &Policy, managed: bool, gone: usize, is_inside: bool) -> Vec<String> {
        let listener = &policy.listeners[0];
        let server = ServerStatus {
            address: listener.address,
            class: None,
            pid: Some(812),
            program: "nginx".into(),
            unit: None,
            managed,
        };
        let status = ListenerStatus {
            name: listener.name.clone(),
            address: listener.address,
            serve: listener.serve,
            mode: Mode::Enforce,
            classes: Classes::default(),
            servers: vec![server],
        };
        unserved(policy, &[status], gone, |pid| is_inside && pid == 812)
    }

    #[test]
    fn a_server_that_nobody_manages_is_told_with_the_command_that_manages_it() {
        let one = policy("", "");
        let expected = "web: nginx is not managed, so nobody's account has what it uses; \
                        `fief manage 812 --container shop/web --follow`";
        assert_eq!(said(&one, false, 0, false), [expected]);
        assert_eq!(said(&one, true, 0, true), [""; 0]);
        let mut queued = policy("", GOLD);
        queued.listeners[0].queue = Some(fief_policy::Queue::default());
        let by_number = said(&queued, false, 0, false);
        assert!(
            by_number[0].contains("classes of one priority have their turns by number of requests"),
            "{by_number:?}"
        );
        let two = said(&policy("", GOLD), false, 0, false);
        assert!(two[0].ends_with("; `fief manage 812 --container shop --follow`"), "{two:?}");
        let again = said(&one, false, 2, false);
        assert!(again.len() == 1 && again[0].contains("its unit was started again"), "{again:?}");
    }

    #[test]
    fn nothing_is_told_where_the_front_door_does_all_that_is_asked() {
        let is_told = |attributes: &str, lines: &str| !said(&policy(attributes, lines), false, 0, false).is_empty();
        assert!(!is_told("", "admit = true") && !is_told("cpu.priority = 7", "admit = true"));
        assert!(is_told("cpu.weight = 7", "admit = true"), "of the class");
        assert!(is_told("[container.shop]\ncpu.share = \"10%\"", "admit = true"), "above the class");
        assert!(!is_told("[container.other]\ncpu.share = \"10%\"", "admit = true"), "of no class of it");
        assert!(is_told("", &format!("queue = true\n{GOLD}")), "by charge, since their priority is one");
        assert!(!is_told("cpu.priority = 7", &format!("queue = true\n{GOLD}")), "by priority alone");
    }

    #[test]
    fn a_managed_server_whose_socket_was_made_elsewhere_is_not_to_be_managed_again() {
        let told = said(&policy("", ""), false, 0, true);
        assert!(told.len() == 1 && told[0].starts_with("web: nginx is managed, and its socket was made"), "{told:?}");
        assert!(told[0].contains("`fief exec`") && !told[0].contains("fief manage"), "{told:?}");
        assert_eq!(said(&policy("", "admit = true"), false, 0, true), [""; 0]);
    }
}
