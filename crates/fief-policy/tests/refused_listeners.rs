// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Every error about listeners and client rules: place, message, remedy.

mod marked;

use fief_policy::{Kind, parse};
use marked::{only_error, refuses};

const HEAD: &str = "version = 1\n[container.shop]\n[container.\"shop/gold\"]\n";
const CATCH_ALL: &str = "[[listener.web.client]]\nfrom = [\"any\"]\ncontainer = \"shop\"\n";

/// A policy with a listener on every IPv4 address, these lines, and the catch-all.
fn web(lines: &str) -> String {
    format!("{HEAD}[listener.web]\naddress = \"0.0.0.0:80\"\n{lines}\n{CATCH_ALL}")
}

/// The same with one rule of these lines before the catch-all.
fn rule(lines: &str) -> String {
    web(&format!("[[listener.web.client]]\n{lines}"))
}

/// The same with a rule for gold with this value of `from`.
fn from(value: &str) -> String {
    rule(&format!("from = {value}\ncontainer = \"shop/gold\""))
}

/// A policy whose listener has this address.
fn address(value: &str) -> String {
    format!("{HEAD}[listener.web]\naddress = {value}\n{CATCH_ALL}")
}

/// Rules for gold with these lines, in this order, and no catch-all.
fn rules(address: &str, lines: &[&str]) -> String {
    let mut text = format!("{HEAD}[listener.web]\naddress = \"{address}\"\n");
    for line in lines {
        text.push_str(&format!("[[listener.web.client]]\n{line}\ncontainer = \"shop/gold\"\n"));
    }
    text
}

#[test]
fn refuses_a_listener_without_an_address() {
    let text = format!("{HEAD}⟦[listener.web]⟧\n{CATCH_ALL}");
    refuses(&text, Kind::Missing, "[listener.web] has no `address`", "address = \"0.0.0.0:80\"");
}

#[test]
fn does_not_call_a_misspelt_key_missing_as_well() {
    let text = format!("{HEAD}[listener.web]\n⟦adress⟧ = \"0.0.0.0:80\"\n{CATCH_ALL}");
    refuses(&text, Kind::UnknownKey, "`adress`", "write `address`");
    let text = format!("{HEAD}[listener.web]\naddress = \"0.0.0.0:80\"\n[[listener.web.⟦clients⟧]]\n");
    refuses(&text, Kind::UnknownKey, "`clients`", "write `client`");
    let text = rule("⟦form⟧ = [\"10.0.0.0/8\"]\ncontainer = \"shop\"");
    refuses(&text, Kind::UnknownKey, "`form` in rule 1 of [listener.web]", "write `from`");
}

#[test]
fn refuses_what_is_not_an_address_and_a_port() {
    let not = "is not an address and a port";
    refuses(&address("⟦\"80\"⟧"), Kind::Address, not, "write \"0.0.0.0:80\" for every IPv4");
    refuses(&address("⟦\":8080\"⟧"), Kind::Address, not, "\"[::]:8080\" for every address");
    refuses(&address("⟦\"*:80\"⟧"), Kind::Address, not, "\"0.0.0.0:80\"");
    refuses(&address("⟦\"10.0.0.1\"⟧"), Kind::Address, not, "add a port, as in \"10.0.0.1:80\"");
    refuses(&address("⟦\"2001:db8::1\"⟧"), Kind::Address, not, "as in \"[2001:db8::1]:80\"");
    refuses(&address("⟦\"2001:db8::1:443\"⟧"), Kind::Address, not, "\"[2001:db8::1]:443\"");
    refuses(&address("⟦\"[10.0.0.1]:80\"⟧"), Kind::Address, not, "write \"10.0.0.1:80\"");
    refuses(&address("⟦\"10.0.0.1:http\"⟧"), Kind::Address, not, "a port from 1 to 65535");
    refuses(&address("⟦\"10.0.0.1:65536\"⟧"), Kind::Address, not, "a port from 1 to 65535");
    refuses(&address("⟦\" 10.0.0.1:80\"⟧"), Kind::Address, not, "without the spaces");
    refuses(&address("⟦\"shop.example:80\"⟧"), Kind::Address, not, "names are not looked up");
    refuses(&address("⟦\"\"⟧"), Kind::Address, not, "write \"0.0.0.0:80\"");
    refuses(&address("⟦80⟧"), Kind::Type, "is an integer", "write address = \"0.0.0.0:80\"");
}

#[test]
fn refuses_addresses_that_nobody_listens_on() {
    refuses(&address("⟦\"10.0.0.1:0\"⟧"), Kind::Address, "port 0", "\"10.0.0.1:80\"");
    refuses(&address("⟦\"224.0.0.1:80\"⟧"), Kind::Address, "not an address of one machine", "0.0.0.0");
    refuses(&address("⟦\"[ff02::1]:80\"⟧"), Kind::Address, "not an address of one", "[::]");
    refuses(&address("⟦\"[fe80::1%2]:80\"⟧"), Kind::Address, "interface", "\"[fe80::1]:80\"");
}

/// Two listeners with a catch-all each.
fn two(first: &str, second: &str) -> String {
    let rules = CATCH_ALL.replace("web", "api");
    format!("{}[listener.api]\naddress = {second}\n{rules}", address(first))
}

#[test]
fn refuses_two_listeners_on_one_address() {
    let message = "listeners `web` and `api` have the same address 10.0.0.1:80";
    let text = two("\"10.0.0.1:80\"", "⟦\"10.0.0.1:80\"⟧");
    refuses(&text, Kind::Conflict, message, "move the rules of `api` to `web`");
    let text = two("\"10.0.0.1:80\"", "⟦\"[::ffff:10.0.0.1]:80\"⟧");
    refuses(&text, Kind::Conflict, message, "change one of the addresses");
    let text = two("\"[::]:80\"", "⟦\"[0:0::0]:80\"⟧");
    let error = only_error(&text, Kind::Conflict);
    assert_eq!((error.related[0].line, error.related[0].column), (5, 11));
}

#[test]
fn refuses_a_wildcard_beside_an_address_of_its_family() {
    let message = "connections to 10.0.0.1:80 of `api` arrive at 0.0.0.0:80 of `web`";
    let text = two("\"0.0.0.0:80\"", "⟦\"10.0.0.1:80\"⟧");
    refuses(&text, Kind::Conflict, message, "give `web` the exact address too");
    let text = two("⟦\"[2001:db8::1]:80\"⟧", "\"[::]:80\"");
    refuses(&text, Kind::Conflict, "arrive at [::]:80 of `api`", "move the rules of `web` to `api`");
}

#[test]
fn reports_a_listener_on_a_taken_address_once() {
    let more = CATCH_ALL.replace("web", "more");
    let text = two("\"0.0.0.0:80\"", "\"10.0.0.1:80\"") + "[listener.more]\naddress = \"10.0.0.1:80\"\n" + &more;
    let errors = parse(&text, "test.toml").expect_err("three listeners on one port");
    let messages: Vec<_> = errors.iter().map(|error| error.message.as_str()).collect();
    assert_eq!(messages.len(), 2, "{errors}");
    assert!(messages[0].contains("of `api` arrive at 0.0.0.0:80 of `web`"), "{errors}");
    assert!(messages[1].contains("`api` and `more` have the same address"), "{errors}");
}

#[test]
fn takes_listeners_that_share_no_connection() {
    for (first, second) in [
        ("0.0.0.0:80", "[::]:80"),
        ("10.0.0.1:80", "[::]:80"),
        ("0.0.0.0:80", "[2001:db8::1]:80"),
        ("0.0.0.0:80", "0.0.0.0:443"),
        ("0.0.0.0:80", "10.0.0.1:443"),
        ("10.0.0.1:80", "10.0.0.2:80"),
    ] {
        let text = two(&format!("\"{first}\""), &format!("\"{second}\""));
        parse(&text, "test.toml").unwrap_or_else(|errors| panic!("{errors}"));
    }
}

#[test]
fn refuses_names_of_listeners_with_a_slash_or_too_long() {
    let text = address("\"0.0.0.0:80\"").replace("listener.web]\n", "listener.⟦\"a/b\"⟧]\n");
    let text = text.replace("listener.web.client", "listener.\"a/b\".client");
    refuses(&text, Kind::Name, "\"a/b\" has a '/' in it", "write \"a-b\"");
    let name = "w".repeat(32);
    let text = address("\"0.0.0.0:80\"").replace("listener.web]\n", &format!("listener.⟦{name}⟧]\n"));
    let text = text.replace("listener.web.client", &format!("listener.{name}.client"));
    refuses(&text, Kind::Name, "is 32 bytes long", "shorten it");
}

#[test]
fn says_what_was_meant_by_a_prefix_with_host_bits() {
    let message = "\"10.1.2.3/16\" has host bits set";
    let remedy = "write \"10.1.0.0/16\" for the whole prefix, or \"10.1.2.3\" for the one address";
    refuses(&from("[\"10.9.0.0/16\", ⟦\"10.1.2.3/16\"⟧]"), Kind::Prefix, message, remedy);
    let remedy = "write \"2001:db8::/32\" for the whole prefix, or \"2001:db8::1\"";
    refuses(&from("[⟦\"2001:db8::1/32\"⟧]"), Kind::Prefix, "host bits set", remedy);
}

#[test]
fn refuses_prefixes_with_a_bad_length() {
    let message = "has no valid prefix length";
    refuses(&from("[⟦\"10.0.0.0/33\"⟧]"), Kind::Prefix, message, "a length from 0 to 32");
    refuses(&from("[⟦\"2001:db8::/129\"⟧]"), Kind::Prefix, message, "a length from 0 to 128");
    refuses(&from("[⟦\"10.0.0.0/\"⟧]"), Kind::Prefix, message, "a length from 0 to 32");
    refuses(&from("[⟦\"10.0.0.0/08\"⟧]"), Kind::Prefix, message, "write \"10.0.0.0/8\"");
    refuses(&from("[⟦\"10.1.0.0/255.255.0.0\"⟧]"), Kind::Prefix, message, "write \"10.1.0.0/16\"");
}

#[test]
fn guesses_what_was_meant_by_a_bad_address() {
    let message = "is not an address or prefix";
    refuses(&from("[⟦\"10.1/16\"⟧]"), Kind::Prefix, message, "write \"10.1.0.0/16\"");
    refuses(&from("[⟦\"10.1.*\"⟧]"), Kind::Prefix, message, "write \"10.1.0.0/16\"");
    refuses(&from("[⟦\"10.0.0.256\"⟧]"), Kind::Prefix, message, "write an address with all its parts");
    refuses(&from("[⟦\" 10.0.0.1\"⟧]"), Kind::Prefix, message, "write \"10.0.0.1\", without the spaces");
    refuses(&from("[⟦\"*\"⟧]"), Kind::Prefix, message, "write \"any\"");
    refuses(&from("[⟦\"anny\"⟧]"), Kind::Prefix, message, "write \"any\"");
    refuses(&from("[⟦\"localhost\"⟧]"), Kind::Prefix, message, "names are not looked up");
    refuses(&from("[⟦10⟧]"), Kind::Type, "has an integer in it", "in quotes");
    refuses(&from("⟦\"10.0.0.0/8\"⟧"), Kind::Type, "is a text", "from = [\"10.0.0.0/8\"]");
    refuses(&from("⟦[]⟧"), Kind::Prefix, "`from` of rule 1 of [listener.web] is empty", "add a prefix");
}

#[test]
fn refuses_any_beside_prefixes() {
    let remedy = "write from = [\"any\"], or remove \"any\"";
    refuses(&from("[\"10.0.0.0/8\", ⟦\"any\"⟧]"), Kind::Contradiction, "beside other", remedy);
}

#[test]
fn refuses_a_rule_with_both_or_neither_of_from_and_not_from() {
    let text = rule("from = [\"10.0.0.0/8\"]\nnot-from = ⟦[\"10.1.0.0/16\"]⟧\ncontainer = \"shop\"");
    refuses(&text, Kind::Contradiction, "both `from` and `not-from`", "remove one of them");
    let text = rule("").replacen("[[listener.web.client]]\n", "⟦[[listener.web.client]]⟧\ncontainer = \"shop\"\n", 1);
    refuses(&text, Kind::Missing, "neither `from` nor `not-from`", "add from = ");
}

#[test]
fn refuses_a_rule_without_a_container() {
    let text = rule("from = [\"10.0.0.0/8\"]").replacen("[[listener.web.client]]", "⟦[[listener.web.client]]⟧", 1);
    let message = "rule 1 of [listener.web] has no `container`";
    refuses(&text, Kind::Missing, message, "add container = \"shop/gold\"");
}

#[test]
fn names_the_nearest_container_for_an_unknown_one() {
    let text = rule("from = [\"10.0.0.0/8\"]\ncontainer = ⟦\"shop/glod\"⟧");
    let remedy = "write \"shop/gold\", or add [container.\"shop/glod\"]";
    refuses(&text, Kind::UnknownContainer, "no container `shop/glod`", remedy);
    let text = rule("from = [\"10.0.0.0/8\"]\ncontainer = ⟦\"tower\"⟧");
    refuses(&text, Kind::UnknownContainer, "no container `tower`", "add [container.tower]");
    let text = rule("from = [\"10.0.0.0/8\"]\ncontainer = ⟦\"system\"⟧");
    refuses(&text, Kind::UnknownContainer, "no container `system`", "\"my-system\"");
}

#[test]
fn does_not_call_a_container_with_a_refused_name_unknown_as_well() {
    let text = rule("from = [\"10.0.0.0/8\"]\ncontainer = \"idle\"") + "[container.⟦idle⟧]\n";
    refuses(&text, Kind::Name, "Fief's own", "\"my-idle\"");
}

#[test]
fn refuses_an_unknown_order_of_accept() {
    let text = rule("from = [\"10.0.0.0/8\"]\ncontainer = \"shop\"\naccept = ⟦\"befor\"⟧");
    refuses(&text, Kind::Value, "\"befor\" is unknown", "accept = \"before\"");
}

#[test]
fn refuses_both_orders_of_accept_for_one_container() {
    let rule = |accept: &str, net: &str, container: &str| {
        format!("[[listener.web.client]]\nfrom = [\"{net}\"]\naccept = \"{accept}\"\ncontainer = {container}\n")
    };
    let first = rule("after", "10.0.0.0/8", "\"shop/gold\"");
    let text = web(&(first + &rule("before", "11.0.0.0/8", "⟦\"shop/gold\"⟧")));
    refuses(&text, Kind::Contradiction, "both before and after", "write accept = \"after\"");
}

#[test]
fn refuses_keys_of_later_versions_by_name() {
    let text = rule("from = [\"10.0.0.0/8\"]\ncontainer = \"shop\"\n⟦from-port⟧ = \"1024-65535\"");
    refuses(&text, Kind::Unsupported, "`from-port` is not supported by this version", "remove it");
}

#[test]
fn refuses_contradicting_ways_to_serve() {
    let text = web("classes = \"shared\"\ncopies = ⟦\"per-class\"⟧");
    refuses(&text, Kind::Contradiction, "both `copies` and `classes`", "remove `classes`");
    refuses(&web("copies = ⟦\"per-clas\"⟧"), Kind::Value, "unknown", "copies = \"per-class\"");
    refuses(&web("copies = ⟦3⟧"), Kind::Type, "is an integer", "copies = \"per-class\"");
}

#[test]
fn refuses_one_table_in_place_of_an_array_of_rules() {
    let text = address("\"0.0.0.0:80\"").replace("[[listener.web.client]]", "⟦[listener.web.client]⟧");
    refuses(&text, Kind::Type, "is a table", "[[listener.web.client]], in double brackets");
    let text = format!("{HEAD}[listener.web]\naddress = \"0.0.0.0:80\"\nclient = [⟦3⟧]\n");
    let error = parse(&text.replace(['⟦', '⟧'], ""), "test.toml").expect_err("3 is no rule");
    assert!(error.iter().all(|error| error.kind == Kind::Type), "{error}");
}

#[test]
fn refuses_a_listener_without_a_catch_all() {
    let text = rules("0.0.0.0:80", &["from = [\"10.0.0.0/8\"]", "from = ⟦[\"11.0.0.0/8\"]⟧"]);
    let remedy = "add at the end: [[listener.web.client]] with from = [\"any\"]";
    refuses(&text, Kind::CatchAll, "clients that match no rule of [listener.web]", remedy);
    let text = format!("{HEAD}⟦[listener.web]⟧\naddress = \"0.0.0.0:80\"\n");
    refuses(&text, Kind::CatchAll, "[listener.web] has no rules for its clients", remedy);
}

#[test]
fn asks_for_any_where_prefixes_cover_everything() {
    let text = rules("0.0.0.0:80", &["from = [\"10.0.0.0/8\"]", "not-from = ⟦[\"10.0.0.0/8\"]⟧"]);
    refuses(&text, Kind::CatchAll, "match every client", "write from = [\"any\"] in rule 2");
}

#[test]
fn finds_a_rule_behind_a_wider_one() {
    let text = rules(
        "0.0.0.0:80",
        &["from = [\"10.0.0.0/8\"]", "from = ⟦[\"10.1.0.0/16\", \"10.2.0.1\"]⟧", "from = [\"any\"]"],
    );
    let message = "rule 2 of [listener.web] can never match: rule 1 takes all its clients";
    refuses(&text, Kind::Unreachable, message, "move it before rule 1");
}

#[test]
fn finds_a_rule_behind_a_union_of_earlier_ones() {
    let lines = [
        "from = [\"10.0.0.0/9\", \"192.168.0.0/16\"]",
        "from = [\"172.16.0.0/12\"]",
        "from = [\"10.128.0.0/9\"]",
        "from = ⟦[\"10.0.0.0/8\"]⟧",
        "from = [\"any\"]",
    ];
    let error = only_error(&rules("0.0.0.0:80", &lines), Kind::Unreachable);
    assert!(error.message.contains("rules 1 and 3 together take all its clients"), "{error:?}");
    let lines: Vec<_> = error.related.iter().map(|related| related.line).collect();
    assert_eq!(lines, [7, 13]);
}

#[test]
fn finds_rules_behind_complements_and_complements_behind_rules() {
    let behind = ["not-from = [\"10.0.0.0/8\"]", "from = ⟦[\"11.0.0.0/8\"]⟧", "from = [\"any\"]"];
    refuses(&rules("0.0.0.0:80", &behind), Kind::Unreachable, "rule 1 takes", "before rule 1");
    let complement =
        ["from = [\"0.0.0.0/1\"]", "not-from = ⟦[\"0.0.0.0/1\"]⟧", "from = [\"128.0.0.0/1\"]", "from = [\"any\"]"];
    // Here the third rule is dead, not the complement.
    let text = rules("0.0.0.0:80", &complement).replace(['⟦', '⟧'], "");
    let text = text.replace("[\"128.0.0.0/1\"]", "⟦[\"128.0.0.0/1\"]⟧");
    let errors = parse(&text.replace(['⟦', '⟧'], ""), "test.toml").expect_err("two rules are dead");
    let remedies: Vec<_> = errors.iter().map(|error| error.remedy.as_str()).collect();
    assert_eq!(errors.len(), 2, "{errors}");
    assert!(remedies[0].contains("before rule 2"), "{errors}");
    assert!(remedies[1].contains("write from = [\"any\"] in rule 2"), "{errors}");
}

#[test]
fn finds_a_second_catch_all() {
    let text = rules("0.0.0.0:80", &["from = [\"any\"]", "from = ⟦[\"any\"]⟧"]);
    refuses(&text, Kind::Unreachable, "rule 1 matches every client", "remove it");
}

#[test]
fn finds_rules_of_the_other_family() {
    let ipv6 = ["from = ⟦[\"2001:db8::/32\"]⟧", "from = [\"any\"]"];
    let message = "it names IPv6, and the listener takes IPv4 alone";
    refuses(&rules("10.0.0.1:80", &ipv6), Kind::Unreachable, message, "[::] takes both families");
    let ipv4 = ["from = ⟦[\"10.0.0.0/8\"]⟧", "from = [\"any\"]"];
    let message = "it names IPv4, and the listener takes IPv6 alone";
    refuses(&rules("[2001:db8::1]:80", &ipv4), Kind::Unreachable, message, "an IPv4 address");
}

#[test]
fn takes_lists_of_which_a_part_is_shadowed_or_of_the_other_family() {
    for lines in [
        ["from = [\"10.0.0.0/8\"]", "from = [\"10.1.0.0/16\", \"11.0.0.0/8\"]", "from = [\"any\"]"],
        ["from = [\"10.1.0.0/16\"]", "from = [\"10.0.0.0/8\", \"2001:db8::/32\"]", "from = [\"any\"]"],
        ["from = [\"0.0.0.0/1\"]", "not-from = [\"0.0.0.0/1\", \"255.255.255.255\"]", "from = [\"any\"]"],
    ] {
        parse(&rules("0.0.0.0:80", &lines), "test.toml").unwrap_or_else(|errors| panic!("{errors}"));
    }
}

#[test]
fn refuses_complements_that_leave_nobody() {
    let lines = ["not-from = ⟦[\"any\"]⟧", "from = [\"any\"]"];
    refuses(&rules("[::]:80", &lines), Kind::Unreachable, "excepts every client", "remove");
    let lines = ["not-from = ⟦[\"0.0.0.0/0\", \"::/0\"]⟧", "from = [\"any\"]"];
    refuses(&rules("[::]:80", &lines), Kind::Unreachable, "excepts every client", "remove it");
    let lines = ["not-from = ⟦[\"0.0.0.0/0\"]⟧", "from = [\"any\"]"];
    refuses(&rules("0.0.0.0:80", &lines), Kind::Unreachable, "excepts every client", "remove it");
}

#[test]
fn refuses_more_classes_than_the_kernel_side_has_room_for() {
    let containers = |count: usize| (0..count).map(|n| format!("[container.c{n}]\n")).collect::<String>();
    let rules = |count: usize| {
        (0..count)
            .map(|n| format!("[[listener.web.client]]\nfrom = [\"10.{n}.0.0/16\"]\ncontainer = \"c{n}\"\n"))
            .collect::<String>()
    };
    let fits = containers(31) + &web(&rules(31)).replace("version = 1\n", "");
    parse(&format!("version = 1\n{fits}"), "test.toml").unwrap_or_else(|errors| panic!("{errors}"));
    let over = containers(40) + &web(&rules(40)).replace("version = 1\n", "");
    let over = format!("version = 1\n{over}").replace("container = \"c32\"", "container = ⟦\"c32\"⟧");
    refuses(&over, Kind::Limit, "`c32` is class 33 of [listener.web]", "one container in several rules");
}

#[test]
fn refuses_more_listeners_than_the_kernel_side_has_room_for() {
    let mut text = HEAD.to_owned();
    for index in 0..1030 {
        let name = if index == 1024 { format!("⟦l{index}⟧") } else { format!("l{index}") };
        let port = index + 1;
        text.push_str(&format!("[listener.{name}]\naddress = \"0.0.0.0:{port}\"\n"));
        text.push_str(&CATCH_ALL.replace("web", &format!("l{index}")));
    }
    refuses(&text, Kind::Limit, "listener 1025", "remove this one and those after it");
}
