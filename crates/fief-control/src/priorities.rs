// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Priorities that order no threads: those of classes, while nobody divides the CPU. They do not turn the scheduler on by themselves,
//! since a policy that only guards its listeners has them, and its machine is to keep the kernel's own.

use fief_policy::{Policy, Schedule};

/// So many are named.
const NAMED: usize = 3;

/// What the priorities of classes do not order while nobody divides the CPU, with what to write; `None`: no class has one.
pub fn classes_alone(policy: &Policy) -> Option<String> {
    let paths: Vec<&str> = policy.prioritised_classes().map(|container| container.path.as_str()).collect();
    if paths.is_empty() {
        return None;
    }
    let switch = (policy.schedule == Schedule::Off).then_some("schedule = \"auto\"");
    let division = (!policy.divides_cpu()).then_some("a cpu.share, a cpu.limit or a cpu.weight other than 100");
    let missing: Vec<&str> = switch.into_iter().chain(division).collect();
    let remedy = match missing.is_empty() {
        // somebody should divide it, and it is told why nobody does
        true => String::new(),
        false => format!("; write {} for that", missing.join(" and ")),
    };
    let named = some_of(&paths);
    Some(format!("cpu.priority of {named} among threads (it orders connections and requests alone{remedy})"))
}

/// The first of them.
pub(crate) fn some_of(paths: &[&str]) -> String {
    let named = paths[..paths.len().min(NAMED)].join(", ");
    match paths.len().saturating_sub(NAMED) {
        0 => named,
        more => format!("{named} and {more} more"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said(head: &str, gold: &str) -> Option<String> {
        let text = format!(
            "version = 1\n{head}\n[container.gold]\n{gold}\n[container.tin]\n[listener.web]\naddress = \"0.0.0.0:80\"\n\
             [[listener.web.client]]\nfrom = [\"10.0.0.0/8\"]\ncontainer = \"gold\"\n\
             [[listener.web.client]]\nfrom = [\"any\"]\ncontainer = \"tin\"\n"
        );
        classes_alone(&fief_policy::parse(&text, "policy").unwrap_or_else(|errors| panic!("{errors}")))
    }

    #[test]
    fn a_priority_of_a_class_is_told_with_what_it_lacks_for_threads() {
        let begin = "cpu.priority of gold among threads (it orders connections and requests alone";
        let division = "a cpu.share, a cpu.limit or a cpu.weight other than 100";
        let priority = "cpu.priority = 200";
        assert_eq!(said("", ""), None);
        let off = format!("{begin}; write schedule = \"auto\" and {division} for that)");
        assert_eq!(said("", priority), Some(off));
        assert_eq!(said("schedule = \"auto\"", priority), Some(format!("{begin}; write {division} for that)")));
        let divided = "cpu.priority = 200\ncpu.limit = \"50%\"";
        assert_eq!(said("", divided), Some(format!("{begin}; write schedule = \"auto\" for that)")));
        let told_elsewhere = format!("{begin})");
        assert_eq!(said("schedule = \"auto\"", divided), Some(told_elsewhere), "why nobody does");
    }

    #[test]
    fn of_many_some_are_named() {
        assert_eq!(some_of(&["a", "b", "c"]), "a, b, c");
        assert_eq!(some_of(&["a", "b", "c", "d", "e"]), "a, b, c and 2 more");
    }
}
