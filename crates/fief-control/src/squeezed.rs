// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Containers that have no more than what their children are guaranteed. A parent without a share of its own has the sum of its children's,
//! and no weight any more: a small guarantee for one child takes from the parent, and from the other children, what they had by weight. A
//! server that is at home there has the hundredth that shares leave for its threads that work for no class.

use std::collections::{BTreeSet, HashMap, HashSet};

use fief_policy::{Container, Cpu, Listener, Policy, Serve, as_percent};

use crate::plan::common_parent;
use crate::priorities::some_of;

/// A sentence for all of them that had something to lose: what the first one lost, with what to write. `by_thread`: whoever divides the CPU
/// takes a server's threads for those of the classes that they work for. Cgroups take a server as a whole, and so for its home.
pub fn squeezed(policy: &Policy, by_thread: bool) -> Option<String> {
    let mut children: HashMap<&str, Vec<&Container>> = HashMap::new();
    for container in &policy.containers {
        if let Some(parent) = container.parent() {
            children.entry(parent).or_default().push(container);
        }
    }
    let homes: HashSet<&str> = policy.listeners.iter().filter(|_| by_thread).flat_map(homes_of).collect();
    let mut found: Vec<(&str, String)> = Vec::new();
    for parent in &policy.containers {
        let path = parent.path.as_str();
        let told = children.get(path).and_then(|children| of_parent(parent, children, homes.contains(path)));
        found.extend(told.map(|told| (path, told)));
    }
    let ((_, first), others) = found.split_first()?;
    let others: Vec<&str> = others.iter().map(|(path, _)| *path).collect();
    // each of a thousand tenants may be one
    let more = match others.is_empty() {
        true => String::new(),
        false => format!("; it is the same with {}", some_of(&others)),
    };
    Some(format!("{first}{more}"))
}

/// Where the listener's server is at home: a copy in its class, any other above all of its classes.
fn homes_of(listener: &Listener) -> BTreeSet<&str> {
    if listener.forward {
        return BTreeSet::new(); // on another machine
    }
    if listener.serve == Serve::CopiesPerClass {
        return listener.clients.iter().map(|client| client.container.as_str()).collect();
    }
    let classes: Vec<&str> = listener.class_paths().into_iter().collect();
    common_parent(&classes).into_iter().collect()
}

fn of_parent(parent: &Container, children: &[&Container], is_home: bool) -> Option<String> {
    let Container { path, cpu, .. } = parent;
    let guaranteed: u64 = children.iter().map(|child| u64::from(child.cpu.share_ppm)).sum();
    if guaranteed == 0 || guaranteed != u64::from(cpu.share_ppm) {
        return None;
    }
    let others: Vec<&str> =
        children.iter().filter(|child| child.cpu.share_ppm == 0).map(|child| child.path.as_str()).collect();
    let mut lost = Vec::new();
    // they are not starved (rest_of() of bpf/sched/order.h)
    if !others.is_empty() {
        lost.push(format!("a hundredth of that is for {} and threads of its own", some_of(&others)));
    } else if is_home {
        lost.push("a hundredth of that is for threads of the server there that work for no class".to_owned());
    }
    if cpu.weight != Cpu::default().weight {
        lost.push(format!("its cpu.weight = {} divides nothing", cpu.weight));
    }
    let has = as_percent(guaranteed);
    (!lost.is_empty()).then(|| {
        format!(
            "{path} has {has} while others want the CPU, the sum of its children's shares: {}; write a cpu.share of {path} above {has}, for \
             all below it together",
            lost.join(", and ")
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(text: &str) -> Policy {
        fief_policy::parse(text, "policy").unwrap_or_else(|errors| panic!("{errors}"))
    }

    fn told(containers: &str) -> Option<String> {
        let text = format!("version = 1\n{containers}");
        squeezed(&parsed(&text), true)
    }

    #[test]
    fn a_parent_that_lost_its_weight_to_a_childs_share_is_told() {
        let web = |web: &str, gold: &str| {
            told(&format!(
                "[container.web]\n{web}\n[container.\"web/gold\"]\n{gold}\n[container.\"web/tin\"]\n[container.other]\n"
            ))
        };
        let tail = "write a cpu.share of web above 10%, for all below it together";
        let begin = "web has 10% while others want the CPU, the sum of its children's shares: a hundredth of that is for web/tin and \
                     threads of its own";
        assert_eq!(web("", "cpu.share = \"10%\""), Some(format!("{begin}; {tail}")));
        let weighted = format!("{begin}, and its cpu.weight = 300 divides nothing; {tail}");
        assert_eq!(web("cpu.weight = 300", "cpu.share = \"10%\""), Some(weighted));
        // it would be the same if the operator had added them up
        assert!(web("cpu.share = \"10%\"", "cpu.share = \"10%\"").is_some());
        assert_eq!(web("cpu.share = \"50%\"", "cpu.share = \"10%\""), None);
        assert_eq!(web("cpu.weight = 300", ""), None);
    }

    #[test]
    fn many_parents_are_told_at_once() {
        let tenant = |number: u32| {
            format!(
                "[container.t{number}]\n[container.\"t{number}/a\"]\ncpu.share = \"0.01%\"\n[container.\"t{number}/b\"]\n"
            )
        };
        let tenants = |count: u32| told(&(0..count).map(tenant).collect::<Vec<String>>().concat()).expect("it is told");
        let one = tenants(1);
        assert!(one.starts_with("t0 has 0.01% while") && one.ends_with("for all below it together"), "{one}");
        assert_eq!(tenants(2), format!("{one}; it is the same with t1"));
        assert_eq!(tenants(1000), format!("{one}; it is the same with t1, t2, t3 and 996 more"));
    }

    #[test]
    fn nothing_is_lost_where_each_child_has_a_share() {
        let all = |shop: &str| {
            told(&format!(
                "[container.shop]\n{shop}\n[container.\"shop/a\"]\ncpu.share = \"30%\"\n[container.\"shop/b/c\"]\ncpu.share = \"5%\"\n"
            ))
        };
        assert_eq!(all(""), None);
        let weighted = all("cpu.weight = 7").expect("it is told");
        let lost = "children's shares: its cpu.weight = 7 divides nothing; ";
        assert!(weighted.contains(lost), "{weighted}");
    }

    #[test]
    fn a_server_at_home_where_each_class_has_a_share_is_told() {
        let text = |shop: &str, listener: &str| {
            format!(
                "version = 1\n[container.shop]\n{shop}\n[container.\"shop/a\"]\ncpu.share = \"30%\"\n\
                 [container.\"shop/b\"]\ncpu.share = \"5%\"\n[listener.web]\naddress = \"0.0.0.0:80\"\n{listener}\n\
                 [[listener.web.client]]\nfrom = [\"10.0.0.0/8\"]\ncontainer = \"shop/a\"\n\
                 [[listener.web.client]]\nfrom = [\"any\"]\ncontainer = \"shop/b\"\n"
            )
        };
        let told = |shop: &str, listener: &str| squeezed(&parsed(&text(shop, listener)), true);
        let said = "shop has 35% while others want the CPU, the sum of its children's shares: a hundredth of that is for threads of the \
                    server there that work for no class; write a cpu.share of shop above 35%, for all below it together";
        assert_eq!(told("", "").as_deref(), Some(said));
        assert_eq!(told("cpu.share = \"40%\"", ""), None);
        assert_eq!(told("", "copies = \"per-class\""), None, "each copy is at home in its class");
        assert_eq!(squeezed(&parsed(&text("", "")), false), None, "its cgroup has all of that");
    }
}
