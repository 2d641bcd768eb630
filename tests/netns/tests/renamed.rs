// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A container that a policy gives another path keeps its account and its members, and what its rules counted stays theirs.

use std::time::Duration;

use fief::{Container, State};
use fief_bpf::abi;
use fief_control::{Applied, ApplyOptions, ContainerView, Fief, LetGo};
use fief_testkit::{Client, Family, wait_until};
use fief_tests_netns::front::{Door, plain, ready};
use fief_tests_netns::rig::Rig;
use fief_tests_netns::{SOON, in_unit, spin};

fn apply(fief: &Fief, containers: &str) -> Applied {
    let text = format!("version = 1\n{containers}");
    let policy = fief_policy::parse(&text, "test.toml").unwrap_or_else(|errors| panic!("{errors}"));
    fief.apply(&policy, &text, &ApplyOptions { here: true, let_go: LetGo::All, ..ApplyOptions::default() })
        .unwrap_or_else(|e| panic!("{e}"))
}

fn at(fief: &Fief, path: &str) -> Option<ContainerView> {
    fief.snapshot().unwrap().containers.into_iter().find(|view| view.path == path)
}

/// Usage of the container at a path once it is above this.
fn grows(fief: &Fief, path: &str, above: u64) -> u64 {
    let used = || at(fief, path).map_or(0, |view| view.usage.cpu_ns());
    wait_until(SOON, || used() > above).unwrap_or_else(|_| panic!("{path}: {} ns, {above} before", used()));
    used()
}

#[test]
fn a_renamed_container_keeps_its_usage_its_members_and_what_is_below_it() {
    in_unit("a_renamed_container_keeps_its_usage_its_members_and_what_is_below_it", || {
        let fief = Fief::from_env().unwrap();
        let held = Container::create().unwrap();
        held.set_name("held").unwrap();
        spin(Duration::from_millis(30));
        let before = at(&fief, "unit").expect("the unit's home");
        assert!(before.usage.cpu_ns() >= 20_000_000);
        for (step, (policy, renamed)) in [
            ("[container.web]\nwas = \"unit\"\n", ("unit", "web")),
            ("[container.\"acme/shop\"]\nwas = \"web\"\n", ("web", "acme/shop")),
            // with its parent, of which alone it is said
            ("[container.ajax]\nwas = \"acme\"\n[container.\"ajax/shop\"]\n", ("acme/shop", "ajax/shop")),
            ("[container.unit]\nwas = \"ajax/shop\"\n", ("ajax/shop", "unit")),
        ]
        .into_iter()
        .enumerate()
        {
            let applied = apply(&fief, policy);
            let told = applied.renamed.iter().any(|(old, new)| (old.as_str(), new.as_str()) == renamed);
            assert!(told && applied.notes.is_empty(), "step {step}: {applied:?}");
            let now = at(&fief, renamed.1).unwrap_or_else(|| panic!("step {step}: no {}", renamed.1));
            assert_eq!((now.id, now.generation), (before.id, before.generation), "step {step}");
            assert!(now.usage.cpu_ns() >= before.usage.cpu_ns(), "step {step}: its past is gone");
            assert!(at(&fief, renamed.0).is_none(), "step {step}: {} is there still", renamed.0);
            let child = at(&fief, &format!("{}/held", renamed.1)).expect("what was below it");
            assert_eq!((child.id, held.info().unwrap().state), (held.info().unwrap().id, State::Alive), "step {step}");
            spin(Duration::from_millis(10));
            grows(&fief, renamed.1, now.usage.cpu_ns() + 5_000_000);
            // once more it changes nothing
            let again = apply(&fief, policy);
            assert!(again.renamed.is_empty() && again.made.is_empty() && again.released.is_empty(), "{again:?}");
        }
        // without it the path is another container's
        let applied = apply(&fief, "[container.other]\n");
        assert_eq!(
            (applied.made, applied.released, applied.renamed),
            (vec!["other".into()], vec!["unit".into()], vec![])
        );
    });
}

const RULES: &str = r#"
[container.web]
[listener.plain]
address = "[::]:80"
[[listener.plain.client]]
from = ["any"]
container = "web"
[[listener.plain.request]]
path = "/10"
container = "web"
"#;

#[test]
fn what_a_rule_counted_is_not_told_of_another_one_of_its_number() {
    if !ready() {
        return;
    }
    let rig = Rig::new(Door::Own, RULES);
    let from = Client::High.address(Family::V4, 1);
    let ask = || rig.front.ask_from(from, plain(Family::V4), "/10").map(drop).unwrap();
    let counted = || {
        let rules = rig.front.verdicts();
        let of = |rule| {
            let of_rule =
                rules.all().iter().filter(|found| (found.reason, found.rule) == (abi::FIEF_REQUEST_RULE, rule));
            of_rule.map(|found| found.count).sum::<u64>()
        };
        [of(Some(0)), of(Some(1))]
    };
    // the client may send it again
    let is_one = |count: u64| rig.front.is_counted(count, 1);
    let is_first = |[first, other]: [u64; 2]| is_one(first) && other == 0;
    ask();
    wait_until(SOON, || counted()[0] > 0).unwrap();
    rig.front.apply(RULES).unwrap();
    assert!(is_first(counted()), "the same rules go on: {:?}", counted());
    let renamed = RULES.replace("container = \"web\"", "container = \"shop\"");
    let renamed = renamed.replace("[container.web]", "[container.shop]\nwas = \"web\"");
    let applied = rig.front.apply(&renamed).unwrap();
    assert!(is_first(counted()) && applied.renamed.len() == 1, "so do those of a renamed container: {:?}", counted());
    let first = "[[listener.plain.request]]\npath = \"/new\"\nrefuse = \"drop\"\n";
    let other = renamed.replacen("[[listener.plain.request]]", &format!("{first}[[listener.plain.request]]"), 1);
    rig.front.apply(&other).unwrap();
    assert_eq!(counted(), [0, 0], "rule 1 is another one now");
    ask();
    wait_until(SOON, || counted()[1] > 0).unwrap();
    assert!(counted()[0] == 0 && is_one(counted()[1]), "{:?}", counted());
}
