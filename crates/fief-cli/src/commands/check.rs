// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `fief check`: the errors of policies, each in its line, or what the policies mean. Nothing is changed.

pub mod listener;
mod queue;

use std::path::Path;

use fief_control::{Enforcer, LOOPBACK_QUEUES, classes_alone, squeezed};
use fief_policy::{Container, Diagnostics, Listener, Network, Policy};
use serde::Serialize;

use crate::cli::Check;
use crate::failure::{Failure, Result, USAGE};
use crate::output::{Align, Output, Table, printable};
use crate::{policy_file, quantity};

/// Every file is checked, whatever is wrong with the one before.
pub fn run(args: &Check, output: &mut Output) -> Result<()> {
    let mut worst = 0;
    for path in &args.files {
        if let Err(failure) = check(path, args, output) {
            output.flush()?;
            failure.report();
            worst = worst.max(failure.code());
        }
    }
    if worst == 0 { Ok(()) } else { Err(Failure::told(worst)) }
}

fn check(path: &Path, args: &Check, output: &mut Output) -> Result<()> {
    let text = policy_file::read(path)?;
    let name = policy_file::name(path);
    match fief_policy::parse(&text, &name) {
        Ok(policy) if args.json => {
            let enforcer = Enforcer::of(&policy);
            output.json(&Valid::of(&name, &policy, enforcer.as_ref()))
        }
        Ok(_) if args.quiet => Ok(()),
        Ok(policy) => output.text(meaning(&name, &policy, Enforcer::of(&policy).as_ref())),
        Err(diagnostics) if args.json => tell_errors(&diagnostics, output),
        Err(diagnostics) => Err(diagnostics.into()),
    }
}

fn tell_errors(diagnostics: &Diagnostics, output: &mut Output) -> Result<()> {
    output.text(diagnostics.to_json_lines())?;
    Err(Failure::told(USAGE))
}

#[derive(Serialize)]
struct Valid<'a> {
    file: &'a str,
    valid: bool,
    policy: &'a Policy,
    /// Who would hold `cpu.share`, `cpu.weight` and `cpu.limit` on this machine; null: nobody, or the policy has none.
    cpu_enforced_by: Option<&'static str>,
    /// Why nobody would.
    cpu_not_enforced: Option<&'a str>,
    /// What whoever holds them cannot hold.
    cpu_beyond: &'a [String],
    /// Notes on keys of the CPU that hold less, or otherwise, than they seem to say.
    cpu_notes: Vec<String>,
}

impl<'a> Valid<'a> {
    fn of(file: &'a str, policy: &'a Policy, enforcer: Option<&'a Enforcer>) -> Self {
        let (not, beyond) = match enforcer {
            Some(Enforcer::Nobody(why)) => (Some(why.as_str()), &[][..]),
            Some(Enforcer::Scheduler { beyond } | Enforcer::Groups { beyond, .. }) => (None, beyond.as_slice()),
            None => (None, &[][..]),
        };
        let by = enforcer.and_then(Enforcer::word);
        Self {
            file,
            valid: true,
            policy,
            cpu_enforced_by: by,
            cpu_not_enforced: not,
            cpu_beyond: beyond,
            cpu_notes: unordered(policy, enforcer).into_iter().chain(less(policy, enforcer)).collect(),
        }
    }
}

/// `enforcer`: who would hold on this machine what the policy says of the CPU.
fn meaning(name: &str, policy: &Policy, enforcer: Option<&Enforcer>) -> String {
    let mut page = format!(
        "{}: no errors; {}, {}\n",
        printable(name),
        quantity::counted(policy.containers.len(), "container"),
        quantity::counted(policy.listeners.len(), "listener"),
    );
    if !policy.containers.is_empty() {
        page.push_str(&format!("\n{}", containers(policy)));
        page.push_str(&programs(policy));
        page.push_str(&enforcer.map(held).unwrap_or_default());
        if let Some(what) = unordered(policy, enforcer) {
            page.push_str(&format!("not enforced: {}\n", printable(&what)));
        }
        if let Some(what) = less(policy, enforcer) {
            page.push_str(&format!("note: {}\n", printable(&what)));
        }
        if policy.containers.iter().any(is_unenforced) {
            page.push_str("MEMORY and SENDS are kept and not enforced in this version\n");
        }
    }
    for listener in &policy.listeners {
        page.push_str(&format!("\n{}", listener::page(listener)));
    }
    page.push_str(&loopback(policy));
    page
}

/// What a queue at the loopback changes there, and which one meets nobody.
fn loopback(policy: &Policy) -> String {
    let mut page = String::new();
    if policy.queues_at_loopback() {
        let names = LOOPBACK_QUEUES.map(|(name, _)| name).join(" and ");
        page.push_str(&format!(
            "\nat lo: `fief apply` sets {names} to 1, without which the kernel drops what comes out of a queue; `fief down` gives \
             them back\n"
        ));
    }
    let is_inside = |listener: &&Listener| listener.queue.is_some() && listener.address.ip().is_loopback();
    for listener in policy.listeners.iter().filter(is_inside).filter(|_| !policy.front.guards_loopback()) {
        let name = printable(&listener.name);
        page.push_str(&format!(
            "\nnobody waits at {name}: its clients come by lo, which [front].interfaces does not name\n"
        ));
    }
    page
}

/// Where programs go that servers start.
fn programs(policy: &Policy) -> String {
    let named = policy.containers.iter().filter_map(|container| Some((&container.path, container.programs.as_ref()?)));
    let line = |(path, programs): (&String, &String)| {
        let (path, programs) = (printable(path), printable(programs));
        format!("programs (CGI) for {path} and what is below: a container each, below {programs}\n")
    };
    named.map(line).collect()
}

/// A note on priorities that order requests alone, which is no error.
fn unordered(policy: &Policy, enforcer: Option<&Enforcer>) -> Option<String> {
    match enforcer {
        Some(Enforcer::Scheduler { .. } | Enforcer::Groups { .. }) => None,
        Some(Enforcer::Nobody(_)) | None => classes_alone(policy),
    }
}

/// A note on parents that have no more than the sum of the shares of their children.
fn less(policy: &Policy, enforcer: Option<&Enforcer>) -> Option<String> {
    squeezed(policy, !matches!(enforcer, Some(Enforcer::Groups { .. })))
}

/// Who holds which attribute of the CPU.
fn held(enforcer: &Enforcer) -> String {
    match enforcer {
        Enforcer::Scheduler { beyond } => {
            let begin = "SHARE, LIMIT, WEIGHT and PRIORITY will be enforced by Fief's scheduler (sched_ext)\n";
            begin.to_owned() + &not_held(beyond)
        }
        Enforcer::Nobody(why) => {
            format!("SHARE, LIMIT, WEIGHT and PRIORITY of threads are kept and not enforced here: {}\n", printable(why))
        }
        Enforcer::Groups { hierarchy, why, beyond } => {
            let why = why.as_ref().map_or_else(String::new, |why| format!(": {}", printable(why)));
            let mut page = format!(
                "SHARE, LIMIT and WEIGHT of whole processes will be enforced by {}{why}\n",
                printable(&hierarchy.name())
            );
            for (attribute, file) in hierarchy.files() {
                page.push_str(&format!("  {attribute} by {file}\n"));
            }
            page.push_str("  cpu.priority: 0 by cpu.idle, others only in the weight\n");
            page.push_str(
                "  not for threads that bind to another container than their process's, nor for receive work\n",
            );
            page + &not_held(beyond)
        }
    }
}

fn not_held(beyond: &[String]) -> String {
    beyond.iter().map(|what| format!("not enforced: {}\n", printable(what))).collect()
}

/// Says something that waits for a later version.
fn is_unenforced(container: &Container) -> bool {
    container.memory_max != 0 || container.network != Network::default()
}

fn containers(policy: &Policy) -> Table {
    let mut table = Table::new(&[
        ("CONTAINER", Align::Left),
        ("SHARE", Align::Right),
        ("LIMIT", Align::Right),
        ("WEIGHT", Align::Right),
        ("PRIORITY", Align::Right),
        ("MEMORY", Align::Right),
        ("SENDS", Align::Right),
        ("BELOW", Align::Right),
    ]);
    let some = |value: u64, shown: fn(u64) -> String| quantity::or_dash((value != 0).then(|| shown(value)));
    for container in &policy.containers {
        let cpu = &container.cpu;
        table.push([
            container.path.clone(),
            some(cpu.share_ppm.into(), |ppm| quantity::percent(ppm as u32)),
            some(cpu.limit_ppm.into(), |ppm| quantity::percent(ppm as u32)),
            cpu.weight.to_string(),
            cpu.priority.to_string(),
            some(container.memory_max, quantity::bytes),
            some(container.network.max_bits, quantity::bit_rate),
            some(container.descendants_max.into(), |count| count.to_string()),
        ]);
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;
    use fief_control::{Hierarchy, Version};

    const SHOP: &str = r#"
        version = 1
        schedule = "auto"
        [container.shop]
        cpu.share = "60%"
        [container."shop/gold"]
        cpu.priority = 200
        [container."shop/browse"]
        memory.max = "1G"
        [listener.web]
        address = "[::]:80"
        [[listener.web.client]]
        from = ["10.1.0.0/16", "2001:db8::/32"]
        container = "shop/gold"
        [[listener.web.client]]
        from = ["any"]
        container = "shop/browse"
        accept = "after"
    "#;

    /// It holds all of it.
    fn scheduler() -> Enforcer {
        Enforcer::Scheduler { beyond: Vec::new() }
    }

    #[test]
    fn where_programs_go_is_told_container_by_container() {
        let text = "version = 1\n[container.shop]\nprograms = \"shop/cgi\"\n[container.\"shop/cgi\"]\n";
        let policy = fief_policy::parse(text, "policy").expect("a policy without errors");
        let told = "programs (CGI) for shop and what is below: a container each, below shop/cgi\n";
        assert!(meaning("policy", &policy, None).contains(told));
    }

    #[test]
    fn what_a_queue_at_the_loopback_changes_is_told() {
        let text = "version = 1\n[front]\ninterfaces = [\"lo\"]\n[container.a]\n[listener.web]\naddress = \"127.0.0.1:80\"\nqueue = true\n\
            [[listener.web.client]]\nfrom = [\"any\"]\ncontainer = \"a\"\n";
        let said = |text: &str| {
            let policy = fief_policy::parse(text, "p").unwrap_or_else(|errors| panic!("{errors}"));
            meaning("p", &policy, None)
        };
        let sets = "\nat lo: `fief apply` sets net.ipv4.conf.lo.accept_local and net.ipv4.conf.lo.route_localnet to 1,";
        assert!(said(text).contains(sets), "{}", said(text));
        assert!(!said(&text.replace("queue = true", "queue = false")).contains("at lo:"));
        let elsewhere = said(&text.replace("\"lo\"", "\"eth0\""));
        let nobody = "\nnobody waits at web: its clients come by lo, which [front].interfaces does not name\n";
        assert!(elsewhere.contains(nobody) && !elsewhere.contains("at lo:"), "{elsewhere}");
    }

    #[test]
    fn a_policy_is_explained_container_by_container_and_rule_by_rule() {
        let policy = fief_policy::parse(SHOP, "shop.toml").expect("a policy without errors");
        assert_eq!(
            meaning("shop.toml", &policy, Some(&scheduler())),
            "\
shop.toml: no errors; 3 containers, 1 listener

CONTAINER    SHARE  LIMIT  WEIGHT  PRIORITY  MEMORY  SENDS  BELOW
shop           60%      -     100       100       -      -      -
shop/gold        -      -     100       200       -      -      -
shop/browse      -      -     100       100      1G      -      -
SHARE, LIMIT, WEIGHT and PRIORITY will be enforced by Fief's scheduler (sched_ext)
MEMORY and SENDS are kept and not enforced in this version

listener web on [::]:80: a listening socket for each class behind the server's own
  classes are served in order by event loops of one thread (nginx); threads that wait on one epoll set, and servers that \
accept ahead, keep it for new connections at most
RULE  CLIENTS                     CONTAINER    NEW CONNECTIONS
   1  10.1.0.0/16, 2001:db8::/32  shop/gold    before those being served
   2  all others                  shop/browse  after those being served
"
        );
    }

    #[test]
    fn a_share_of_a_child_that_takes_its_parents_weight_is_told() {
        let text = "version = 1\n[container.\"web/gold\"]\ncpu.share = \"10%\"\n[container.\"web/tin\"]\n";
        let policy = fief_policy::parse(text, "p").expect("a policy without errors");
        let said = meaning("p", &policy, Some(&scheduler()));
        assert!(said.contains("\nnote: web has 10% while others want the CPU,"), "{said}");
        assert_eq!(Valid::of("p", &policy, Some(&scheduler())).cpu_notes.len(), 1);
    }

    #[test]
    fn priorities_of_classes_alone_are_told_to_order_no_threads() {
        let text = SHOP.replace("cpu.share = \"60%\"", "");
        let policy = fief_policy::parse(&text, "p").expect("a policy without errors");
        assert_eq!(Enforcer::of(&policy), None, "requests are ordered without");
        let said = meaning("p", &policy, None);
        let line = "\nnot enforced: cpu.priority of shop/gold among threads (it orders connections and requests alone; write a \
                    cpu.share, a cpu.limit or a cpu.weight other than 100 for that)\n";
        assert!(said.contains(line), "{said}");
        assert_eq!(Valid::of("p", &policy, None).cpu_notes.len(), 1);
        assert!(!meaning("p", &policy, Some(&scheduler())).contains("among threads"));
        // that of no class can order threads alone
        let batch = "version = 1\n[container.batch]\ncpu.priority = 0\n";
        let policy = fief_policy::parse(batch, "p").expect("a policy without errors");
        let said = meaning("p", &policy, Enforcer::of(&policy).as_ref());
        let line =
            "PRIORITY of threads are kept and not enforced here: schedule is \"off\"; write schedule = \"auto\"\n";
        assert!(said.contains(line), "{said}");
    }

    #[test]
    fn a_policy_tells_who_holds_its_shares_and_why_nobody_does() {
        let text = "version = 1\nschedule = \"auto\"\n[container.shop]\ncpu.limit = \"10%\"\n";
        let policy = fief_policy::parse(text, "p").expect("a policy without errors");
        let nobody = Enforcer::Nobody("this kernel has no sched_ext; use another".into());
        let said = meaning("p", &policy, Some(&nobody));
        assert!(said.contains("not enforced here: this kernel has no sched_ext; use another\n"), "{said}");
        let hierarchy = Hierarchy { version: Version::V1, top: "/sys/fs/cgroup/cpu".into() };
        let why = Some("this kernel has no sched_ext".to_owned());
        let groups = Enforcer::Groups { hierarchy, why, beyond: vec!["shop: half of it".into()] };
        let said = meaning("p", &policy, Some(&groups));
        for line in [
            "SHARE, LIMIT and WEIGHT of whole processes will be enforced by cgroup v1 (/sys/fs/cgroup/cpu): this kernel has no \
             sched_ext\n",
            "  cpu.limit by cpu.cfs_quota_us\n",
            "  not for threads that bind to another container than their process's, nor for receive work\n",
            "not enforced: shop: half of it\n",
        ] {
            assert!(said.contains(line), "{said}");
        }
        assert_eq!(Valid::of("p", &policy, Some(&groups)).cpu_enforced_by, Some("cgroup-v1"));
        let scheduler = Enforcer::Scheduler { beyond: vec!["shop: so little".into()] };
        let said = meaning("p", &policy, Some(&scheduler));
        assert!(said.contains(" by Fief's scheduler (sched_ext)\nnot enforced: shop: so little\n"), "{said}");
        assert_eq!(Valid::of("p", &policy, Some(&scheduler)).cpu_beyond, ["shop: so little"]);
        assert!(!meaning("p", &policy, None).contains("enforced"));
        let off = fief_policy::parse(&text.replace("auto", "off"), "p").expect("a policy without errors");
        let said = meaning("p", &off, Enforcer::of(&off).as_ref());
        assert!(said.contains("not enforced here: schedule is \"off\"; write schedule = \"auto\"\n"), "{said}");
    }
}
