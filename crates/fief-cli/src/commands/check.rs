// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `fief check`: the errors of policies, each in its line, or what the policies mean. Nothing is changed.

pub mod listener;

use std::path::Path;

use fief_policy::{Container, Diagnostics, Network, Policy};
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
        Ok(policy) if args.json => output.json(&Valid { file: &name, valid: true, policy: &policy }),
        Ok(_) if args.quiet => Ok(()),
        Ok(policy) => {
            let here = fief_control::scheduler_here().map_err(|e| e.to_string());
            output.text(meaning(&name, &policy, &here))
        }
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
}

/// `here`: whether this machine takes the scheduler; if not, why.
fn meaning(name: &str, policy: &Policy, here: &std::result::Result<(), String>) -> String {
    let mut page = format!(
        "{}: no errors; {}, {}\n",
        printable(name),
        quantity::counted(policy.containers.len(), "container"),
        quantity::counted(policy.listeners.len(), "listener"),
    );
    if !policy.containers.is_empty() {
        page.push_str(&format!("\n{}", containers(policy)));
        if policy.wants_scheduler() {
            page.push_str(&match here {
                Ok(()) => "SHARE, LIMIT and WEIGHT will be enforced by Fief's scheduler (sched_ext)\n".to_owned(),
                Err(why) => format!("SHARE, LIMIT and WEIGHT are kept and not enforced here: {}\n", printable(why)),
            });
        } else if policy.divides_cpu() {
            page.push_str("SHARE, LIMIT and WEIGHT are kept and not enforced without schedule = \"auto\"\n");
        }
        if policy.containers.iter().any(is_unenforced) {
            page.push_str("MEMORY and SENDS are kept and not enforced in this version\n");
        }
    }
    for listener in &policy.listeners {
        page.push_str(&format!("\n{}", listener::page(listener)));
    }
    page
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

    #[test]
    fn a_policy_is_explained_container_by_container_and_rule_by_rule() {
        let policy = fief_policy::parse(SHOP, "shop.toml").expect("a policy without errors");
        assert_eq!(
            meaning("shop.toml", &policy, &Ok(())),
            "\
shop.toml: no errors; 3 containers, 1 listener

CONTAINER    SHARE  LIMIT  WEIGHT  PRIORITY  MEMORY  SENDS  BELOW
shop           60%      -     100       100       -      -      -
shop/gold        -      -     100       200       -      -      -
shop/browse      -      -     100       100      1G      -      -
SHARE, LIMIT and WEIGHT will be enforced by Fief's scheduler (sched_ext)
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
    fn a_policy_tells_who_holds_its_shares_and_why_nobody_does() {
        let page =
            |text: &str, here| meaning("p", &fief_policy::parse(text, "p").expect("a policy without errors"), &here);
        let none: std::result::Result<(), String> = Err("this kernel has no sched_ext; use another".into());
        let shop = "version = 1\nschedule = \"auto\"\n[container.shop]\ncpu.limit = \"10%\"\n";
        let said = page(shop, none.clone());
        assert!(said.contains("not enforced here: this kernel has no sched_ext; use another\n"), "{said}");
        let said = page(&shop.replace("auto", "off"), Ok(()));
        assert!(said.contains("not enforced without schedule = \"auto\"\n"), "{said}");
        assert!(!page("version = 1\n[container.shop]\n", none).contains("enforced"));
    }
}
