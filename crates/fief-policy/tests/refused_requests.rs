// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Every error about request rules: place, message, remedy.

mod marked;

use fief_policy::{Kind, parse};
use marked::{only_error, refuses};

const HEAD: &str = "version = 1\n[container.shop]\n[container.\"shop/cgi\"]\n";
const CATCH_ALL: &str = "[[listener.web.client]]\nfrom = [\"any\"]\ncontainer = \"shop\"\n";

/// A policy with these lines in its listener.
fn web(lines: &str) -> String {
    format!("{HEAD}[listener.web]\naddress = \"0.0.0.0:80\"\n{lines}\n{CATCH_ALL}")
}

/// The same with a request rule for each of these.
fn rules(rules: &[&str]) -> String {
    let rules: Vec<String> = rules.iter().map(|lines| format!("[[listener.web.request]]\n{lines}\n")).collect();
    web(&rules.concat())
}

fn rule(lines: &str) -> String {
    rules(&[lines])
}

/// Rules of which the marked ones' headers are expected at the error.
fn marked_header(text: &str, nth: usize) -> String {
    let header = "[[listener.web.request]]";
    let at = text.match_indices(header).nth(nth).expect("so many rules").0;
    format!("{}⟦{header}⟧{}", &text[..at], &text[at + header.len()..])
}

#[track_caller]
fn accepts(text: &str) {
    parse(text, "test.toml").unwrap_or_else(|errors| panic!("{errors}"));
}

#[test]
fn refuses_unknown_keys_and_names_the_ones_that_were_meant() {
    refuses(&rule("⟦url⟧ = \"/x\""), Kind::UnknownKey, "`url` in request rule 1 of [listener.web]", "write `path`");
    refuses(&rule("⟦sni⟧ = \"x\""), Kind::UnknownKey, "`sni`", "write `server-name`");
    refuses(&rule("⟦pth⟧ = \"/x\""), Kind::UnknownKey, "`pth`", "write `path`");
    refuses(&rule("⟦deny⟧ = true"), Kind::UnknownKey, "`deny`", "write `refuse`");
    let text = rule("path = \"/x\"\nrate = { ⟦per_second⟧ = 3 }");
    refuses(&text, Kind::UnknownKey, "`rate.per_second`", "write `rate.per-second`");
}

#[test]
fn says_what_words_of_other_programs_are_here() {
    let per = rule("path = \"/x\"\nrate = { per-second = 3, per = ⟦\"ip\"⟧ }");
    refuses(&per, Kind::Value, "\"ip\" is unknown", "write per = \"source\"");
    refuses(&rule("path = \"/x\"\nrefuse = ⟦\"deny\"⟧"), Kind::Value, "\"deny\" is unknown", "write refuse = \"503\"");
    for rate in ["\"50/s\"", "\"50 r/s\"", "50"] {
        let text = rule(&format!("path = \"/x\"\nrate = ⟦{rate}⟧"));
        refuses(&text, Kind::Type, "`rate` in request rule 1", "write rate = { per-second = 50 }");
    }
}

#[test]
fn says_what_regular_expressions_are_here() {
    let refuses_with = |pattern: &str, remedy: &str| {
        let text = rule(&format!("path = ⟦'{pattern}'⟧\nrefuse = \"503\""));
        refuses(&text, Kind::Pattern, "patterns are no regular expressions", remedy);
    };
    refuses_with(r"~ \.php$", "write \"*.php\"");
    refuses_with(r"~* ^/cgi-bin/", "write \"/cgi-bin/*\"");
    refuses_with(r"^/a/.*\.cgi$", "write \"/a/*.cgi\"");
    refuses_with(r"~ \.(php|cgi)$", "name the values in an array");
}

#[test]
fn refuses_one_table_in_place_of_an_array_of_rules() {
    let text = web("⟦[listener.web.request]⟧\npath = \"/x\"");
    refuses(
        &text,
        Kind::Type,
        "`request` in [listener.web] is a table",
        "[[listener.web.request]], in double brackets",
    );
}

#[test]
fn refuses_paths_that_no_request_can_have() {
    let path = |value: &str| rule(&format!("path = {value}\nrefuse = \"reset\""));
    let never = "can never match";
    refuses(&path("⟦\"cgi-bin/*\"⟧"), Kind::Pattern, never, "write \"/cgi-bin/*\", or \"*cgi-bin/*\"");
    refuses(&path("⟦\"/a?q=1\"⟧"), Kind::Pattern, "without the query", "write \"/a\"");
    refuses(&path("⟦\"/a%20b\"⟧"), Kind::Pattern, "compared decoded", "write \"/a b\"");
    refuses(&path("⟦\"/a//b\"⟧"), Kind::Pattern, "double slashes", "write \"/a/b\"");
    refuses(&path("[\"/x\", ⟦\"/a/../b\"⟧]"), Kind::Pattern, "are resolved", "without them");
    refuses(&path("⟦\"/a/./*\"⟧"), Kind::Pattern, "are resolved", "without them");
    refuses(&path("⟦\"/*/b/*\"⟧"), Kind::Pattern, "more than one `*`", "keep one `*`");
    refuses(&path("⟦[]⟧"), Kind::Pattern, "`path` in request rule 1 of [listener.web] is empty", "add a value");
    refuses(&path("[⟦7⟧]"), Kind::Type, "has an integer in it", "in quotes");
    refuses(&path("⟦7⟧"), Kind::Type, "is an integer", "path = ");
    let long = format!("⟦\"/{}\"⟧", "x".repeat(255));
    refuses(&path(&long), Kind::Pattern, "256 bytes long", "at most 255 bytes");
    for value in
        ["\"*\"", "\"/\"", "\"/*\"", "\"*.php\"", "\"/img/*.png\"", "\"/100%\"", "\"/.well-known/*\"", "\"/a/..b\""]
    {
        accepts(&path(value));
    }
}

#[test]
fn refuses_hosts_in_another_form_than_they_are_compared_in() {
    let host = |value: &str| rule(&format!("host = {value}\nrefuse = \"reset\""));
    refuses(&host("⟦\"shop.example:80\"⟧"), Kind::Pattern, "without the port", "write \"shop.example\"");
    refuses(&host("⟦\"http://shop.example/\"⟧"), Kind::Pattern, "no scheme", "write \"shop.example\"");
    refuses(&host("⟦\"shop.example/x\"⟧"), Kind::Pattern, "no `/`", "the key `path`");
    refuses(&host("⟦\"shop.example.\"⟧"), Kind::Pattern, "without the last dot", "write \"shop.example\"");
    refuses(&host("⟦\"2001:db8::1\"⟧"), Kind::Pattern, "without the port", "write \"[2001:db8::1]\"");
    refuses(&host("⟦\"\"⟧"), Kind::Pattern, "is empty", "shop.example");
    refuses(&host("⟦\"*.shop.*\"⟧"), Kind::Pattern, "more than one `*`", "keep one");
    for value in ["\"Shop.Example\"", "\"*.shop.example\"", "\"[2001:db8::1]\"", "\"*\"", "\"www.*\""] {
        accepts(&host(value));
    }
}

#[test]
fn refuses_methods_that_are_none() {
    let method = |value: &str| rule(&format!("method = {value}\nrefuse = \"reset\""));
    refuses(&method("⟦\"post\"⟧"), Kind::Pattern, "written in capitals", "write \"POST\"");
    refuses(&method("[\"GET\", ⟦\"*\"⟧]"), Kind::Pattern, "not a method", "remove `method` for any");
    refuses(&method("⟦\"GET /\"⟧"), Kind::Pattern, "not a method", "as in \"POST\"");
    accepts(&method("[\"GET\", \"HEAD\", \"M-SEARCH\"]"));
}

#[test]
fn refuses_headers_and_cookies_that_no_request_can_have() {
    let with = |lines: &str| rule(&format!("{lines}\nrefuse = \"reset\""));
    let name = "is not the name of a header or cookie";
    refuses(&with("header = { ⟦\"user agent\"⟧ = \"x\" }"), Kind::Pattern, name, "as in \"user-agent\"");
    refuses(&with("header = { ⟦Host⟧ = \"x\" }"), Kind::Contradiction, "the header `host`", "write host = ");
    refuses(&with("header = { ⟦cookie⟧ = \"x\" }"), Kind::Contradiction, "the header `cookie`", "write cookie = ");
    refuses(&with("header = ⟦\"x\"⟧"), Kind::Type, "is a text", "write header = {");
    refuses(&with("header = { x = ⟦\" y\"⟧ }"), Kind::Pattern, "blanks around", "write \"y\"");
    refuses(&with("cookie = { x = ⟦\"y;z\"⟧ }"), Kind::Pattern, "end at `;`", "one cookie");
    refuses(&with("header = { x = ⟦\"a*b*\"⟧ }"), Kind::Pattern, "more than one `*`", "keep one");
    accepts(&with("header = { \"User-Agent\" = [\"Bad*\", \"*bot\"] }"));
    accepts(&with("cookie = { tier = \"*\" }"));
}

#[test]
fn refuses_conditions_of_http_and_of_tls_in_one_rule() {
    let text = rule("path = \"/x\"\nserver-name = ⟦\"shop.example\"⟧\nrefuse = \"reset\"");
    refuses(&text, Kind::Contradiction, "`path` of HTTP and `server-name` of TLS", "remove `server-name`, or `path`");
    let text = rule("alpn = \"h2\"\nrefuse = ⟦\"503\"⟧");
    refuses(&text, Kind::Contradiction, "answers 503 to TLS", "write refuse = \"reset\"");
    refuses(&rule("alpn = ⟦\"h*\"⟧"), Kind::Pattern, "is not a protocol", "as in \"h2\"");
    accepts(&rule("server-name = \"*.shop.example\"\nalpn = [\"h2\", \"http/1.1\"]\nrate = { per-second = 10 }"));
}

#[test]
fn refuses_keys_about_refusing_where_nothing_is_refused() {
    let text = rule("path = \"/x\"\nretry-after = ⟦\"2s\"⟧");
    refuses(&text, Kind::Contradiction, "has `retry-after`, but refuses nothing", "add refuse = \"503\" or a rate");
    let text = rule("path = \"/x\"\npenalty = ⟦\"2s\"⟧");
    refuses(&text, Kind::Contradiction, "has `penalty`, but refuses nothing", "or remove `penalty`");
    let text = rule("path = \"/x\"\nrefuse = \"drop\"\nretry-after = ⟦\"2s\"⟧");
    refuses(&text, Kind::Contradiction, "does not answer 503", "write refuse = \"503\"");
    let text = rule("alpn = \"h2\"\nrate = { per-second = 1 }\nretry-after = ⟦\"2s\"⟧");
    refuses(&text, Kind::Contradiction, "does not answer 503", "or remove it");
    refuses(&rule("refuse = ⟦\"504\"⟧"), Kind::Value, "\"504\" is unknown", "write refuse = \"503\"");
    refuses(&rule("refuse = ⟦503⟧"), Kind::Type, "is an integer", "write refuse = \"503\"");
    refuses(
        &rule("refuse = \"503\"\nretry-after = ⟦\"1500ms\"⟧"),
        Kind::Value,
        "not a whole number of seconds",
        "\"1s\"",
    );
    refuses(&rule("refuse = \"503\"\nretry-after = ⟦\"19h\"⟧"), Kind::Value, "too long", "at most \"18h\"");
    refuses(&rule("refuse = \"503\"\nretry-after = ⟦2⟧"), Kind::Type, "is an integer", "retry-after = \"2s\"");
}

#[test]
fn refuses_rates_of_nothing_or_of_two_things() {
    let rate = |rate: &str| rule(&format!("path = \"/x\"\ncontainer = \"shop/cgi\"\nrate = {rate}"));
    refuses(&rate("⟦{}⟧"), Kind::Missing, "has neither `per-second` nor `cpu`", "add per-second = 10");
    refuses(&rate("{ per-second = 1, cpu = ⟦\"20%\"⟧ }"), Kind::Contradiction, "of requests and of CPU", "two rules");
    refuses(&rate("{ per-second = ⟦0⟧ }"), Kind::Value, "0 is out of range", "write rate.per-second = 1");
    refuses(&rate("{ per-second = ⟦1000001⟧ }"), Kind::Value, "out of range", "rate.per-second = 1000000");
    refuses(&rate("{ per-second = 1, burst = ⟦0⟧ }"), Kind::Value, "out of range", "rate.burst = 1");
    refuses(&rate("{ per-second = 1, burst = ⟦\"50ms\"⟧ }"), Kind::Type, "is a text", "rate.burst = ");
    refuses(&rate("{ cpu = ⟦20⟧ }"), Kind::Type, "is an integer", "rate.cpu = \"20%\"");
    refuses(&rate("{ cpu = \"20%\", burst = ⟦\"50\"⟧ }"), Kind::Value, "has no unit", "\"50s\" or \"50ms\"");
    let text = rate("{ cpu = \"20%\", per = ⟦\"source\"⟧ }");
    refuses(&text, Kind::Contradiction, "of CPU time and for each source", "remove `per`");
    let text = rule("path = \"/x\"\nrate = { cpu = ⟦\"20%\"⟧ }");
    refuses(&text, Kind::Contradiction, "names no container that it would be charged to", "add the container");
    refuses(&rule("rate = ⟦10⟧"), Kind::Type, "`rate` in request rule 1 of [listener.web] is an integer", "rate = {");
    accepts(&rate("{ cpu = \"20%\", burst = \"50ms\" }"));
    accepts(&rate("{ per-second = 10, burst = 2, per = \"source\" }"));
}

#[test]
fn names_the_nearest_container_for_an_unknown_one() {
    let text = rule("path = \"/x\"\ncontainer = ⟦\"shop/cgy\"⟧");
    refuses(&text, Kind::UnknownContainer, "no container `shop/cgy`", "write \"shop/cgi\"");
}

#[test]
fn refuses_words_that_are_no_level_or_mode() {
    refuses(&rule("when = ⟦\"bussy\"⟧"), Kind::Value, "\"bussy\" is unknown", "when = \"busy\"");
    refuses(&rule("mode = ⟦\"dry-run\"⟧"), Kind::Value, "\"dry-run\" is unknown", "mode = ");
    refuses(&web("mode = ⟦\"monitr\"⟧"), Kind::Value, "\"monitr\" is unknown", "mode = \"monitor\"");
}

#[test]
fn finds_a_rule_behind_an_equal_one() {
    let text = rules(&["path = \"/x\"\nrefuse = \"reset\"", "path = \"/x\"\ncontainer = \"shop/cgi\""]);
    let message = "request rule 2 of [listener.web] can never match: request rule 1 takes all its requests";
    refuses(&marked_header(&text, 1), Kind::Unreachable, message, "move it before request rule 1");
}

#[test]
fn finds_rules_behind_more_general_ones() {
    for (general, special) in [
        ("path = \"/cgi-bin/*\"", "path = [\"/cgi-bin/x\", \"/cgi-bin/a*\", \"/cgi-bin/*.php\"]"),
        ("path = \"*.php\"", "path = [\"/a.php\", \"*x.php\", \"/*.php\"]"),
        ("path = \"/img/*.png\"", "path = [\"/img/a.png\", \"/img/b*x.png\"]"),
        ("path = \"*\"", "path = \"/x\"\nmethod = \"GET\""),
        ("path = \"/*\"", "path = \"/x\"\nhost = \"shop.example\""),
        ("host = \"*.example\"", "host = \"Shop.Example\"\nmethod = [\"GET\", \"POST\"]"),
        ("method = [\"GET\", \"POST\"]", "method = [\"POST\", \"GET\"]"),
        ("header = { X-A = \"*\" }", "header = { \"x-a\" = \"1\", y = \"2\" }"),
        ("cookie = { tier = \"g*\" }", "cookie = { tier = \"gold\" }"),
        ("server-name = \"*.example\"", "server-name = \"a.example\"\nalpn = \"h2\""),
        ("", "path = \"/x\""),
        ("when = \"busy\"", "when = \"overloaded\"\npath = \"/x\""),
        ("", "mode = \"monitor\"\npath = \"/x\""),
        ("mode = \"monitor\"", "mode = \"monitor\"\npath = \"/x\""),
    ] {
        let refused = |rule: &str| format!("{rule}\nrefuse = \"reset\"");
        let text = rules(&[&refused(general), &refused(special)]);
        let error = only_error(&marked_header(&text, 1), Kind::Unreachable);
        assert_eq!(error.related.len(), 1, "{general} before {special}");
    }
}

#[test]
fn finds_a_rule_whose_values_several_earlier_ones_take() {
    let text = rules(&[
        "path = \"/a*\"\nrefuse = \"drop\"",
        "path = \"/other\"\nrefuse = \"drop\"",
        "path = \"*.php\"\nrefuse = \"drop\"",
        "path = [\"/ab\", \"/x.php\"]\nrefuse = \"drop\"",
    ]);
    let error = only_error(&marked_header(&text, 3), Kind::Unreachable);
    assert!(error.message.contains("2 earlier ones, the first of them request rule 1"), "{error:?}");
    let lines: Vec<usize> = error.related.iter().map(|related| related.line).collect();
    assert_eq!(lines, [6, 12]);
}

#[test]
fn takes_rules_that_some_request_can_still_reach() {
    for (first, second) in [
        ("path = \"/cgi-bin/x\"", "path = \"/cgi-bin/*\""),
        ("path = \"/cgi-bin/*\"", "path = [\"/cgi-bin/x\", \"/y\"]"),
        ("path = \"/img/*.png\"", "path = \"/img/*\""),
        ("path = \"/img/*/img/\"", "path = \"/img/\""),
        ("path = \"/x\"\nmethod = \"GET\"", "path = \"/x\""),
        ("path = \"/x\"\nmethod = \"GET\"", "path = \"/x\"\nmethod = \"POST\""),
        ("when = \"overloaded\"\npath = \"/x\"", "path = \"/x\""),
        ("when = \"overloaded\"\npath = \"/x\"", "when = \"busy\"\npath = \"/x\""),
        ("mode = \"monitor\"\npath = \"/x\"", "path = \"/x\""),
        ("header = { a = \"*\" }", "cookie = { a = \"1\" }"),
        ("header = { a = \"1\" }", "header = { b = \"1\" }"),
        ("cookie = { a = \"1\" }", "cookie = { A = \"1\" }"),
        ("path = \"*\"", ""),
        ("alpn = \"h2\"", "alpn = [\"h2\", \"http/1.1\"]"),
    ] {
        accepts(&rules(&[&format!("{first}\nrefuse = \"drop\""), &format!("{second}\nrefuse = \"drop\"")]));
    }
}

#[test]
fn refuses_more_conditions_than_the_kernel_side_compares() {
    let five = "method = \"GET\"\npath = \"/a*b\"\nhost = \"x*y\"\nrefuse = \"drop\"";
    let message = "request rule 1 of [listener.web] compares 5 parts of requests";
    refuses(&marked_header(&rule(five), 0), Kind::Limit, message, "a rule of their own");
    accepts(&rule("method = \"GET\"\npath = \"/a*b\"\nhost = \"x*\"\nrefuse = \"drop\""));
}

#[test]
fn refuses_more_names_than_the_kernel_side_has_room_for() {
    let names = |count: usize| -> Vec<String> {
        (0..count).map(|n| format!("header = {{ \"x-{n}\" = \"1\" }}\nrefuse = \"drop\"")).collect()
    };
    let texts = |names: &[String]| rules(&names.iter().map(String::as_str).collect::<Vec<_>>());
    accepts(&texts(&names(8)));
    refuses(&marked_header(&texts(&names(10)), 8), Kind::Limit, "look at 9 headers and cookies", "the same ones");
}

#[test]
fn refuses_more_forms_than_the_kernel_side_has_room_for() {
    // One form for each length of the prefix.
    let lengths = |count: usize| -> Vec<String> {
        (1..=count).rev().map(|n| format!("path = \"/{}*\"\nrefuse = \"drop\"", "x".repeat(n))).collect()
    };
    let texts = |rules_: &[String]| rules(&rules_.iter().map(String::as_str).collect::<Vec<_>>());
    accepts(&texts(&lengths(64)));
    refuses(&marked_header(&texts(&lengths(70)), 64), Kind::Limit, "of 65 different forms", "of the same length");
}

#[test]
fn refuses_more_patterns_than_the_kernel_side_has_room_for() {
    let list = |count: usize| (0..count).map(|n| format!("\"/{n}\"")).collect::<Vec<_>>().join(", ");
    let hosts = |count: usize| (0..count).map(|n| format!("\"h{n}\"")).collect::<Vec<_>>().join(", ");
    let text = rule(&format!("path = [{}]\nhost = [{}]\nrefuse = \"drop\"", list(2000), hosts(600)));
    refuses(&marked_header(&text, 0), Kind::Limit, "1200000 patterns", "name fewer values");
}

#[test]
fn counts_the_containers_of_request_rules_as_classes() {
    let containers: String = (0..40).map(|n| format!("[container.c{n}]\n")).collect();
    let rule = |n: usize| format!("[[listener.web.request]]\npath = \"/{n}\"\ncontainer = \"c{n}\"\n");
    let text = |count: usize| web(&(0..count).map(rule).collect::<String>()) + &containers;
    accepts(&text(31));
    let over = text(33).replace("container = \"c31\"", "container = ⟦\"c31\"⟧");
    refuses(&over, Kind::Limit, "`c31` is class 33 of [listener.web]", "one container in several rules");
}
