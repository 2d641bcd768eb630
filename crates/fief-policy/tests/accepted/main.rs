// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What a policy means: units, defaults, orders.

mod classes;
mod front;

use fief_policy::{Container, Mode, Policy, parse};

#[track_caller]
fn policy(text: &str) -> Policy {
    parse(text, "test.toml").unwrap_or_else(|errors| panic!("{errors}"))
}

#[track_caller]
fn shop(lines: &str) -> Container {
    policy(&format!("version = 1\n[container.shop]\n{lines}\n")).containers.remove(0)
}

fn paths(policy: &Policy) -> Vec<&str> {
    policy.containers.iter().map(|container| container.path.as_str()).collect()
}

#[test]
fn a_version_is_a_whole_policy() {
    let policy = policy("version = 1\n");
    assert_eq!((policy.version, policy.mode), (1, Mode::Enforce));
    assert!(policy.containers.is_empty() && policy.listeners.is_empty());
}

#[test]
fn files_have_labels_where_the_policy_says_so() {
    assert!(!policy("version = 1\n").label_files);
    assert!(!policy("version = 1\nlabel-files = false\n").label_files);
    assert!(policy("version = 1\nlabel-files = true\n").label_files);
}

#[test]
fn a_policy_that_divides_the_cpu_wants_somebody_who_holds_that() {
    let wants = |text: &str| policy(&format!("version = 1\nschedule = \"auto\"\n{text}")).wants_enforcer();
    assert!(wants("[container.shop]\ncpu.share = \"10%\"\n"));
    assert!(wants("[container.shop]\ncpu.limit = \"10%\"\n"));
    assert!(wants("[container.shop]\ncpu.weight = 200\n"));
    assert!(!wants("[container.shop]\n"));
    let limit = "[container.shop]\ncpu.limit = \"10%\"\n";
    assert!(policy(&format!("version = 1\nschedule = \"cgroup\"\n{limit}")).wants_enforcer());
    assert!(!policy(&format!("version = 1\nschedule = \"off\"\n{limit}")).wants_enforcer());
    assert!(!policy(&format!("version = 1\n{limit}")).wants_enforcer());
}

#[test]
fn a_priority_that_can_order_nothing_but_threads_wants_somebody_who_does() {
    let prioritised = |path: &str, lines: &str| {
        let gold = if path == "shop/gold" { "" } else { "[container.\"shop/gold\"]\n" };
        policy(&format!(
            "version = 1\nschedule = \"auto\"\n{gold}[container.\"{path}\"]\ncpu.priority = 0\n\
             [listener.web]\naddress = \"0.0.0.0:80\"\n{lines}[[listener.web.client]]\nfrom = [\"any\"]\n\
             container = \"shop/gold\"\n"
        ))
    };
    let named = |policy: &Policy| policy.prioritised_classes().map(|one| one.path.clone()).collect::<Vec<_>>();
    // a class, and what is above one
    for path in ["shop/gold", "shop"] {
        let policy = prioritised(path, "");
        assert!(!policy.wants_enforcer(), "{path}");
        assert_eq!(named(&policy), [path]);
    }
    // neither: beside a class, below one, and of a name that begins as one's
    for path in ["batch", "shop/gold/batch", "shop/gol", "shop/goldfish"] {
        let policy = prioritised(path, "");
        assert!(policy.wants_enforcer(), "{path}");
        assert_eq!(named(&policy), [""; 0]);
        let given: Vec<_> = policy.dividing().map(|(one, given)| (one.path.clone(), given)).collect();
        assert_eq!(given, [(path.to_owned(), vec!["cpu.priority"])]);
    }
    // what isolates sources has priority 0, and needs no scheduler for that
    let lines = "admit = true\nunproven = { rate = 9 }\nisolate = { above = 10, for = \"1s\", into = \"last\" }\n";
    let isolates = prioritised("last", lines);
    assert!(!isolates.wants_enforcer());
    assert_eq!(named(&isolates), ["last"]);
}

#[test]
fn a_container_without_keys_has_all_defaults() {
    let container = shop("");
    assert_eq!(container, Container::new("shop"));
    assert_eq!((container.cpu.share_ppm, container.cpu.limit_ppm), (0, 0));
    assert_eq!((container.cpu.weight, container.cpu.priority), (100, 100));
    assert_eq!((container.memory_max, container.descendants_max), (0, 0));
    assert_eq!((container.network.max_bits, container.network.weight), (0, 100));
    assert!(!container.pass_up);
}

#[test]
fn percentages_are_exact_parts_per_million() {
    let cases = [
        ("60%", 600_000),
        ("100%", 1_000_000),
        ("0.1%", 1_000),
        ("12.3456%", 123_456),
        ("0.0001%", 1),
        ("7.50%", 75_000),
    ];
    for (text, ppm) in cases {
        assert_eq!(shop(&format!("cpu.share = \"{text}\"")).cpu.share_ppm, ppm, "{text}");
        assert_eq!(shop(&format!("cpu.limit = \"{text}\"")).cpu.limit_ppm, ppm, "{text}");
    }
    assert_eq!(shop("cpu.limit = \"max\"").cpu.limit_ppm, 0);
}

#[test]
fn memory_counts_in_powers_of_1024_and_rates_in_powers_of_1000() {
    for (value, bytes) in [
        ("4096", 4096),
        ("\"8K\"", 8192),
        ("\"512m\"", 512 << 20),
        ("\"1.5G\"", 3 << 29),
        ("\"2T\"", 2 << 40),
        ("\"max\"", 0),
    ] {
        assert_eq!(shop(&format!("memory.max = {value}")).memory_max, bytes, "{value}");
    }
    for (value, bits) in [
        ("300bit", 300),
        ("8kbit", 8_000),
        ("100Mbit", 100_000_000),
        ("2.5Gbit", 2_500_000_000),
        ("1tbit", 1_000_000_000_000),
        ("max", 0),
    ] {
        assert_eq!(shop(&format!("network.max = \"{value}\"")).network.max_bits, bits, "{value}");
    }
}

#[test]
fn other_keys_are_taken_as_they_are() {
    let container =
        shop("cpu.weight = 10000\ncpu.priority = 0\nnetwork.weight = 1\npass-up = true\ndescendants.max = 7");
    assert_eq!((container.cpu.weight, container.cpu.priority, container.network.weight), (10_000, 0, 1));
    assert!(container.pass_up);
    assert_eq!(container.descendants_max, 7);
    assert_eq!(shop("descendants = { max = \"max\" }").descendants_max, 0);
}

#[test]
fn the_container_of_programs_may_stand_after_the_one_that_names_it() {
    let text = "version = 1\n[container.shop]\nprograms = \"shop/cgi\"\n[container.\"shop/gold\"]\nprograms = \"cgi\"\n\
                [container.\"shop/cgi\"]\ncpu.limit = \"10%\"\n[container.cgi]\n";
    let policy = policy(text);
    let programs = |path: &str| policy.container(path).and_then(|container| container.programs.as_deref());
    assert_eq!((programs("shop"), programs("shop/gold"), programs("cgi")), (Some("shop/cgi"), Some("cgi"), None));
    assert_eq!(policy.program_containers().into_iter().collect::<Vec<_>>(), ["cgi", "shop/cgi"]);
}

#[test]
fn parents_come_before_their_children_and_are_implied() {
    let policy = policy(
        "version = 1\n[container.\"b/x/y\"]\n[container.a]\n[container.\"c/z\"]\n[container.c]\ncpu.weight = 7\n[container.\"b/x\"]\n",
    );
    assert_eq!(paths(&policy), ["b", "b/x", "b/x/y", "a", "c", "c/z"]);
    assert_eq!(policy.container("c").map(|container| container.cpu.weight), Some(7));
    let deepest = policy.container("b/x/y").expect("it is named");
    assert_eq!((deepest.parent(), deepest.name(), deepest.depth()), (Some("b/x"), "y", 3));
}

#[test]
fn a_parent_without_a_share_has_what_its_children_need() {
    let policy = policy(
        "version = 1\n[container]\n\"a/b\".cpu.share = \"20%\"\n\"a/c/d\".cpu.share = \"5%\"\ne.cpu.share = \"75%\"\n",
    );
    let share = |path: &str| policy.container(path).expect("it is named").cpu.share_ppm;
    assert_eq!((share("a"), share("a/c"), share("a/b"), share("e")), (250_000, 50_000, 200_000, 750_000));
}

#[test]
fn a_parent_keeps_its_own_share_though_its_children_need_less() {
    let policy = policy("version = 1\n[container]\na.cpu.share = \"50%\"\n\"a/b\".cpu.share = \"20%\"\n");
    assert_eq!(policy.containers[0].cpu.share_ppm, 500_000);
}
