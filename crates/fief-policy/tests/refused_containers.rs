// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Every error about the head of a policy and its containers: place, message, remedy.

mod marked;

use fief_policy::{Kind, parse};
use marked::{only_error, refuses};

/// A policy with these lines under `[container.shop]`.
fn shop(lines: &str) -> String {
    format!("version = 1\n[container.shop]\n{lines}\n")
}

#[test]
fn refuses_a_former_path_that_is_not_one() {
    let with = |was: &str| format!("version = 1\n[container.shop]\n[container.store]\nwas = {was}\n");
    refuses(&with("⟦\"shop\"⟧"), Kind::Contradiction, "`shop` is in this policy too", "remove `was`");
    refuses(&with("⟦\"store\"⟧"), Kind::Contradiction, "is its own path", "remove `was`");
    refuses(&with("⟦\"a//b\"⟧"), Kind::Name, "an empty name", "write \"a/b\"");
    refuses(&with("⟦5⟧"), Kind::Type, "is an integer", "write was = \"shop/old\"");
    let twice = format!("{}[container.other]\nwas = ⟦\"old\"⟧\n", with("\"old\""));
    refuses(&twice, Kind::Contradiction, "two containers were `old`", "leave `was` at the one");
    let text = with("\"old\"").replace("was", "⟦renamed-from⟧");
    refuses(&text, Kind::UnknownKey, "`renamed-from`", "write `was`");
}

#[test]
fn refuses_orders_among_threads_that_are_none_and_times_without_deadlines() {
    refuses(&shop("cpu.policy = ⟦\"deadline\"⟧"), Kind::Value, "\"deadline\" is unknown", "write policy = ");
    refuses(&shop("cpu.policy = ⟦\"fif\"⟧"), Kind::Value, "\"fif\" is unknown", "write policy = \"fifo\"");
    refuses(
        &shop("cpu.policy = \"rr\"\ncpu.period = ⟦\"20ms\"⟧"),
        Kind::Contradiction,
        "a time of deadlines",
        "remove cpu.period",
    );
    refuses(&shop("cpu.budget = ⟦\"5ms\"⟧"), Kind::Contradiction, "policy is `fair`", "write cpu.policy = \"edf\"");
    let edf = |times: &str| shop(&format!("cpu.policy = \"edf\"\n{times}"));
    refuses(
        &edf("cpu.period = \"20ms\"\ncpu.budget = ⟦\"21ms\"⟧"),
        Kind::Contradiction,
        "does not fit",
        "lower cpu.budget to \"20ms\"",
    );
    refuses(&edf("cpu.budget = ⟦\"101ms\"⟧"), Kind::Contradiction, "a period of 100ms", "raise cpu.period");
    refuses(&edf("cpu.period = ⟦\"2s\"⟧"), Kind::Value, "too long", "write at most \"1s\"");
    let text = edf("cpu.period = \"40ms\"\ncpu.budget = \"8ms\"");
    let policy = parse(&text, "policy").unwrap_or_else(|errors| panic!("{errors}"));
    let cpu = policy.containers[0].cpu;
    assert_eq!((cpu.policy, cpu.period_ns, cpu.budget_ns), (fief_policy::CpuPolicy::Edf, 40_000_000, 8_000_000));
    assert!(policy.divides_cpu());
}

#[test]
fn refuses_orders_from_outside_that_have_no_object_or_no_name_of_their_own() {
    let order = |name: &str, lines: &str| format!("version = 1\n[cpu-policy.{name}]\n{lines}\n");
    refuses(
        &order("mine", "object = ⟦\"mine.o\"⟧"),
        Kind::Value,
        "is no full path",
        "write object = \"/etc/fief/mine.o\"",
    );
    refuses(&order("⟦fifo⟧", "object = \"/mine.o\""), Kind::Name, "an order of Fief's own", "\"my-fifo\"");
    refuses(&order("⟦\"a/b\"⟧", "object = \"/mine.o\""), Kind::Name, "has a '/' in it", "write \"a-b\"");
    refuses(&order("mine", "⟦file⟧ = \"/mine.o\""), Kind::UnknownKey, "unknown key `file`", "write `object`");
    let many: String = (0..4).map(|number| format!("[cpu-policy.order-{number}]\nobject = \"/mine.o\"\n")).collect();
    let fifth = format!("version = 1\n{many}[cpu-policy.⟦fifth⟧]\nobject = \"/mine.o\"\n");
    refuses(&fifth, Kind::Value, "at most 4", "remove one");
    let used = |name: &str, lines: &str| {
        format!(
            "version = 1\n[cpu-policy.mine]\nobject = \"/mine.o\"\n[container.shop]\ncpu.policy = {name}\n{lines}\n"
        )
    };
    refuses(&used("⟦\"mien\"⟧", ""), Kind::Value, "\"mien\" is unknown", "write policy = \"mine\"");
    let policy = parse(&used("\"mine\"", "cpu.period = \"2ms\""), "policy").unwrap_or_else(|errors| panic!("{errors}"));
    let cpu = policy.containers[0].cpu;
    assert_eq!((cpu.policy, cpu.period_ns, cpu.budget_ns), (fief_policy::CpuPolicy::Object(0), 2_000_000, 0));
    assert_eq!(policy.orders[0].object, std::path::Path::new("/mine.o"));
    assert!(policy.divides_cpu());
}

#[test]
fn refuses_a_policy_without_a_version() {
    refuses("⟦mode = \"enforce\"⟧\n", Kind::Missing, "no `version`", "add version = 1");
    refuses("⟦⟧", Kind::Missing, "no `version`", "add version = 1");
}

#[test]
fn refuses_another_version_and_says_nothing_about_the_rest() {
    let text = "version = ⟦2⟧\nnonsense = true\n[listener.web]\n";
    refuses(text, Kind::Version, "version 2", "write version = 1");
    refuses("version = ⟦0x10⟧\n", Kind::Version, "version 0x10", "write version = 1");
}

#[test]
fn refuses_a_version_in_quotes() {
    refuses("version = ⟦\"1\"⟧\n", Kind::Type, "is a text", "write version = 1, without the quotes");
}

#[test]
fn refuses_labels_of_files_that_are_no_yes_or_no() {
    refuses(
        "version = 1\nlabel-files = ⟦\"/var/log\"⟧\n",
        Kind::Type,
        "`label-files` in the policy is a text",
        "write label-files = true",
    );
    refuses("version = 1\n⟦files⟧ = true\n", Kind::UnknownKey, "`files`", "write `label-files`");
    refuses("version = 1\n[container.shop]\n⟦label-files⟧ = true\n", Kind::UnknownKey, "`label-files`", "remove it");
}

#[test]
fn names_the_nearest_key_for_an_unknown_one() {
    let text = "version = 1\n⟦mod⟧ = \"enforce\"\n";
    refuses(text, Kind::UnknownKey, "unknown key `mod` in the policy", "write `mode`");
    refuses(&shop("cpu.⟦shere⟧ = \"6%\""), Kind::UnknownKey, "`cpu.shere`", "write `cpu.share`");
    refuses(&shop("⟦pass_up⟧ = true"), Kind::UnknownKey, "`pass_up`", "write `pass-up`");
}

#[test]
fn knows_the_words_of_other_programs() {
    refuses(&shop("cpu.⟦max⟧ = \"6%\""), Kind::UnknownKey, "`cpu.max`", "write `cpu.limit`");
    refuses(&shop("cpu.⟦prio⟧ = 7"), Kind::UnknownKey, "`cpu.prio`", "write `cpu.priority`");
    let remedy = "`processes` is not supported";
    refuses(&shop("⟦pids⟧.max = 3"), Kind::UnknownKey, "`pids`", remedy);
}

#[test]
fn refuses_programs_in_a_container_that_is_not_there_or_holds_the_server() {
    let text = "version = 1\n[container.shop]\nprograms = ⟦\"shop/cgj\"⟧\n[container.\"shop/cgi\"]\n";
    refuses(text, Kind::UnknownContainer, "no container `shop/cgj`", "write \"shop/cgi\"");
    let remedy = "write programs = \"shop/cgi\"";
    refuses(&shop("programs = ⟦\"shop\"⟧"), Kind::Contradiction, "the programs of `shop`", remedy);
    let above = "version = 1\n[container.\"shop/gold\"]\nprograms = ⟦\"shop\"⟧\n";
    refuses(above, Kind::Contradiction, "charged to `shop`", "write programs = \"shop/gold/cgi\"");
    refuses(&shop("⟦cgi⟧ = \"shop/cgi\""), Kind::UnknownKey, "`cgi`", "write `programs`");
}

#[test]
fn offers_only_removal_for_an_unknown_key_that_is_near_none() {
    let error = only_error(&shop("⟦colour⟧ = \"red\""), Kind::UnknownKey);
    assert_eq!(error.remedy, "remove it");
    assert!(error.expected.contains("`cpu`, `memory`, `network`, `pass-up`, `descendants`, `programs`"));
}

#[test]
fn shows_how_a_child_is_written_to_somebody_who_nests_tables() {
    let text = "version = 1\n[container.shop.⟦gold⟧]\ncpu.weight = 3\n";
    refuses(text, Kind::UnknownKey, "`gold`", "write [container.\"shop/gold\"]");
}

#[test]
fn refuses_keys_of_later_versions_by_name() {
    let says = "is not supported by this version";
    refuses(&shop("⟦processes⟧ = { max = 50, then = \"EAGAIN\" }"), Kind::Unsupported, says, "remove it");
    let text = "version = 1\n[[⟦gate⟧]]\ncall = \"accept\"\n";
    refuses(text, Kind::Unsupported, "`gate` is not supported", "remove it");
}

#[test]
fn refuses_an_unknown_mode() {
    let text = "version = 1\nmode = ⟦\"inforce\"⟧\n";
    refuses(text, Kind::Value, "\"inforce\" is unknown", "write mode = \"enforce\"");
    refuses("version = 1\nmode = ⟦7⟧\n", Kind::Type, "is an integer", "mode = \"enforce\"");
}

#[test]
fn refuses_shares_without_their_unit() {
    let remedy = "write cpu.share = \"60%\"";
    refuses(&shop("cpu.share = ⟦60⟧"), Kind::Type, "is an integer", remedy);
    refuses(&shop("cpu.share = ⟦0.6⟧"), Kind::Type, "is a decimal number", remedy);
    refuses(&shop("cpu.share = ⟦\"60\"⟧"), Kind::Value, "has no unit", "write \"60%\"");
    refuses(&shop("cpu.share = ⟦\"60 %\"⟧"), Kind::Value, "not a percentage", "write \"60%\"");
    refuses(&shop("cpu.share = ⟦\"half\"⟧"), Kind::Value, "not a percentage", "as in \"60%\"");
    refuses(&shop("cpu.share = ⟦\"-5%\"⟧"), Kind::Value, "not a percentage", "as in \"60%\"");
}

#[test]
fn refuses_shares_out_of_range() {
    refuses(&shop("cpu.share = ⟦\"101%\"⟧"), Kind::Value, "more than the machine", "at most \"100%\"");
    refuses(&shop("cpu.limit = ⟦\"0%\"⟧"), Kind::Value, "0%", "remove it");
    refuses(&shop("cpu.limit = ⟦\"0.00001%\"⟧"), Kind::Value, "finer", "at most four decimals");
    refuses(&shop("cpu.share = ⟦\"max\"⟧"), Kind::Value, "not a percentage", "as in \"60%\"");
}

#[test]
fn refuses_weights_and_priorities_out_of_range() {
    refuses(&shop("cpu.weight = ⟦0⟧"), Kind::Value, "0 is out of range", "write cpu.weight = 1,");
    refuses(&shop("cpu.weight = ⟦10001⟧"), Kind::Value, "out of range", "cpu.weight = 10000");
    refuses(&shop("network.weight = ⟦-1⟧"), Kind::Value, "-1 is out", "network.weight = 1,");
    refuses(&shop("cpu.priority = ⟦65536⟧"), Kind::Value, "out of range", "cpu.priority = 65535");
    refuses(&shop("cpu.priority = ⟦-20⟧"), Kind::Value, "out of range", "cpu.priority = 0");
    refuses(&shop("cpu.priority = ⟦\"7\"⟧"), Kind::Type, "is a text", "cpu.priority = 7, without");
    refuses(&shop("descendants.max = ⟦0⟧"), Kind::Value, "out of range", "descendants.max = 1,");
    refuses(&shop("descendants.max = ⟦1048577⟧"), Kind::Value, "out of range", "1048576");
}

#[test]
fn refuses_memory_that_is_no_number_of_bytes() {
    refuses(&shop("memory.max = ⟦4095⟧"), Kind::Value, "out of range", "memory.max = 4096");
    refuses(&shop("memory.max = ⟦\"1K\"⟧"), Kind::Value, "less than a page", "at least 4096");
    refuses(&shop("memory.max = ⟦\"12MB\"⟧"), Kind::Value, "unknown unit", "write \"12M\"");
    refuses(&shop("memory.max = ⟦\"lots\"⟧"), Kind::Value, "not a number of bytes", "\"512M\"");
    refuses(&shop("memory.max = ⟦\"0.3K\"⟧"), Kind::Value, "not a whole number", "\"max\"");
    refuses(&shop("memory.max = ⟦\"99999999999T\"⟧"), Kind::Value, "64 bits", "write less");
    refuses(&shop("memory.max = ⟦true⟧"), Kind::Type, "is true or false", "memory.max = \"512M\"");
}

#[test]
fn refuses_rates_without_their_unit() {
    refuses(&shop("network.max = ⟦100⟧"), Kind::Type, "is an integer", "network.max = \"100Mbit\"");
    refuses(&shop("network.max = ⟦\"100\"⟧"), Kind::Value, "no unit", "write \"100bit\"");
    refuses(&shop("network.max = ⟦\"10MB\"⟧"), Kind::Value, "unknown unit", "write \"10Mbit\"");
    refuses(&shop("network.max = ⟦\"0kbit\"⟧"), Kind::Value, "lets nothing through", "\"max\"");
    refuses(&shop("network.max = ⟦\"fast\"⟧"), Kind::Value, "not a rate", "\"100Mbit\"");
}

#[test]
fn refuses_a_value_where_a_table_belongs() {
    refuses(&shop("cpu = ⟦3⟧"), Kind::Type, "`cpu` in [container.shop]", "write cpu.share = \"60%\"");
    let text = "version = 1\ncontainer = ⟦\"shop\"⟧\n";
    refuses(text, Kind::Type, "`container` in the policy is a text", "[container.NAME]");
    let text = "version = 1\n[container]\nshop = ⟦1⟧\n";
    refuses(text, Kind::Type, "[container.shop] is an integer", "the header [container.shop]");
    refuses(&shop("pass-up = ⟦\"true\"⟧"), Kind::Type, "is a text", "pass-up = true, without");
}

#[test]
fn refuses_siblings_whose_shares_exceed_the_machine() {
    let text = "version = 1\n[container]\na.cpu.share = \"60%\"\nb.cpu.share = ⟦\"50%\"⟧\n";
    let error = only_error(text, Kind::Share);
    assert!(error.message.contains("add up to 110%"), "{}", error.message);
    assert_eq!(error.remedy, "lower the shares by 10% in all");
    assert_eq!(error.related.len(), 1);
    assert_eq!((error.related[0].line, error.related[0].column), (3, 15));
}

#[test]
fn refuses_a_child_above_the_share_of_its_parent() {
    let text = "version = 1\n[container]\na.cpu.share = \"60%\"\n\"a/b\".cpu.share = ⟦\"60.5%\"⟧\n";
    let message = "`a/b` is guaranteed 60.5%, but the share of its parent `a` is 60%";
    refuses(text, Kind::Share, message, "raise cpu.share of `a` to \"60.5%\"");
}

#[test]
fn refuses_children_that_exceed_their_parent_together() {
    let text = "version = 1\n[container]\na.cpu.share = \"60%\"\n\
        \"a/b\".cpu.share = \"30%\"\n\"a/c\".cpu.share = \"30%\"\n\"a/d\".cpu.share = ⟦\"1%\"⟧\n";
    let error = only_error(text, Kind::Share);
    assert!(error.message.contains("add up to 61%"), "{}", error.message);
    assert_eq!(error.related.len(), 3, "the parent and two siblings");
}

#[test]
fn counts_what_grandchildren_need_where_their_parent_names_no_share() {
    let text = "version = 1\n[container]\na.cpu.share = \"50%\"\n\
        \"a/b/c\".cpu.share = \"40%\"\n\"a/d\".cpu.share = ⟦\"20%\"⟧\n";
    refuses(text, Kind::Share, "add up to 60%", "lower the shares by 10% in all");
    let text = "version = 1\n[container]\n\"a/b\".cpu.share = \"90%\"\nc.cpu.share = ⟦\"20%\"⟧\n";
    refuses(text, Kind::Share, "add up to 110%, but the machine has 100%", "by 10% in all");
}

#[test]
fn refuses_shares_above_a_limit() {
    let text = shop("cpu.share = ⟦\"60%\"⟧\ncpu.limit = \"30%\"");
    refuses(&text, Kind::Share, "guaranteed 60%, but limited to 30%", "raise cpu.limit to \"60%\"");
    let text = "version = 1\n[container]\na.cpu.limit = \"30%\"\n\"a/b\".cpu.share = ⟦\"40%\"⟧\n";
    refuses(text, Kind::Share, "the limit of its parent `a` is 30%", "lower cpu.share of `a/b`");
}

#[test]
fn refuses_the_names_of_its_own_containers() {
    for name in ["root", "system", "idle", "steal", "unattributed", "retired", "user"] {
        let text = format!("version = 1\n[container.⟦{name}⟧]\n");
        refuses(&text, Kind::Name, "Fief's own", &format!("\"my-{name}\""));
    }
    let text = "version = 1\n[container.⟦\"user/1000\"⟧]\n";
    refuses(text, Kind::Name, "Fief's own", "\"my-user/1000\"");
}

#[test]
fn takes_reserved_words_below_the_top() {
    parse("version = 1\n[container.\"shop/system\"]\n", "test.toml").expect("only the top is taken");
}

#[test]
fn refuses_names_that_the_kernel_has_no_room_for() {
    let longest = "x".repeat(31);
    parse(&format!("version = 1\n[container.{longest}]\n"), "test.toml").expect("31 bytes fit");
    let text = format!("version = 1\n[container.⟦{longest}y⟧]\n");
    refuses(&text, Kind::Name, "is 32 bytes long", &format!("\"{longest}\""));
    // 16 letters, 32 bytes
    let text = format!("version = 1\n[container.⟦\"shop/{}\"⟧]\n", "ä".repeat(16));
    refuses(&text, Kind::Name, "is 32 bytes long", &format!("\"{}\"", "ä".repeat(15)));
}

#[test]
fn refuses_empty_and_unprintable_names() {
    let empty = "has an empty name in it";
    refuses("version = 1\n[container.⟦\"/shop\"⟧]\n", Kind::Name, empty, "write \"shop\"");
    refuses("version = 1\n[container.⟦\"a//b/\"⟧]\n", Kind::Name, empty, "write \"a/b\"");
    refuses("version = 1\n[container.⟦\"\"⟧]\n", Kind::Name, "the name is empty", "write a name");
    refuses("version = 1\n[container.⟦\"a b\"⟧]\n", Kind::Name, "' ' in it", "write \"a-b\"");
    refuses("version = 1\n[container.⟦\"a\\u001b[0m\"⟧]\n", Kind::Name, "in it", "write \"a-[0m\"");
    refuses("version = 1\n[container.⟦\"a/..\"⟧]\n", Kind::Name, "\"..\"", "letters or digits");
}

#[test]
fn refuses_a_tree_that_is_too_deep() {
    let path = |depth: usize| vec!["a"; depth].join("/");
    parse(&format!("version = 1\n[container.\"{}\"]\n", path(16)), "test.toml").expect("16 levels");
    let text = format!("version = 1\n[container.⟦\"{}\"⟧]\n", path(17));
    refuses(&text, Kind::Name, "17 levels deep", "at most 16 names");
}

#[test]
fn refuses_a_latency_that_nothing_holds_or_that_says_nothing() {
    let text = |latency: &str| {
        format!(
            "version = 1\n[container.shop]\n{latency}\n[listener.web]\naddress = \"0.0.0.0:80\"\nqueue = true\n\
             [[listener.web.client]]\nfrom = [\"any\"]\ncontainer = \"shop\"\n"
        )
    };
    let queueless = "version = 1\n[container.⟦shop⟧]\nlatency = \"99% in 20ms\"\n";
    refuses(queueless, Kind::Contradiction, "no listener with a queue", "add `queue = true`");
    refuses(&text("latency = ⟦\"20ms\"⟧"), Kind::Value, "is not a part of requests and a time", "99% in 20ms");
    refuses(&text("latency = ⟦\"20% in 20ms\"⟧"), Kind::Value, "not within 50% and 99.9%", "99% in 20ms");
    refuses(&text("latency = ⟦\"99% in 20\"⟧"), Kind::Value, "has no unit", "20ms");
}
